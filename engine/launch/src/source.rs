//! What each launcher sets in the environment.

use std::fmt;

use rankine_topology::{LocalRank, Process, RANKS_MAX};

/// The program that started the processes. If several did, the first in this order counts: inner launchers come
/// before outer ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Launcher {
    /// None: arguments of the user, or a single process.
    None,
    /// torchrun, and launchers that set the same variables, among them Kubeflow's PyTorchJob, which counts nodes.
    Torchrun,
    /// Kubeflow's TrainJob: one process per node.
    Kubernetes,
    /// Open MPI's mpirun.
    OpenMpi,
    /// mpirun of MPICH and Intel MPI, and others that speak PMI.
    Pmi,
    /// Slurm's srun.
    Slurm,
}

/// Why the rank of this process cannot be determined.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LaunchError {
    /// A variable or an argument that cannot be parsed.
    #[error("{name} is `{value}`: {why}")]
    Invalid {
        /// The variable, or the argument.
        name: String,
        /// Its value.
        value: String,
        /// What it should be.
        why: String,
    },
    /// One of two variables that belong together is missing.
    #[error("{there} is set but {missing} is not: both are needed to determine the rank of this process")]
    Half {
        /// What is set.
        there: String,
        /// What is not.
        missing: String,
    },
    /// Two launchers contradict each other.
    #[error(
        "{first} sets rank {} of {} ({}), but {second} sets rank {} of {} ({}): select one of the two with \
         --launcher {first} or --launcher {second}",
        first_rank.0, first_rank.1, first.variables(), second_rank.0, second_rank.1, second.variables()
    )]
    Contradiction {
        /// The one that takes precedence.
        first: Launcher,
        /// Its rank and its number of ranks.
        first_rank: (Process, usize),
        /// The other one.
        second: Launcher,
        /// Its rank and its number of ranks.
        second_rank: (Process, usize),
    },
    /// The launcher that was asked for did not start this process.
    #[error("--launcher {launcher}: this process was not started by it: {} are not set", launcher.variables())]
    Absent {
        /// Which.
        launcher: Launcher,
    },
    /// The address to meet at is unknown.
    #[error(
        "no rendezvous address for {ranks} processes ({}): set MASTER_ADDR (and MASTER_PORT) to the host of rank 0, or \
         give --meet HOST:PORT",
        launcher.variables()
    )]
    Nowhere {
        /// The launcher.
        launcher: Launcher,
        /// The processes.
        ranks: usize,
    },
}

/// The rank of this process, as a launcher sets it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ReportedRank {
    pub(super) rank: Process,
    pub(super) ranks: usize,
    pub(super) local_rank: Option<LocalRank>,
    /// The number of processes on this host.
    pub(super) ranks_on_host: Option<usize>,
}

/// The environment: the value of a variable, if it is set and not empty.
pub(super) type Environment<'a> = dyn Fn(&str) -> Option<String> + 'a;

/// The variables that one launcher sets.
struct Variables {
    rank: &'static [&'static str],
    ranks: &'static [&'static str],
    local_rank: &'static [&'static str],
    ranks_on_host: &'static [&'static str],
}

impl Launcher {
    /// All that set variables, in the order of precedence.
    pub const ALL: [Self; 5] = [Self::Torchrun, Self::Kubernetes, Self::OpenMpi, Self::Pmi, Self::Slurm];

    /// Its name for `--launcher`.
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Torchrun => "torchrun",
            Self::Kubernetes => "kubernetes",
            Self::OpenMpi => "openmpi",
            Self::Pmi => "pmi",
            Self::Slurm => "slurm",
        }
    }

    /// The launcher with this name.
    ///
    /// # Errors
    /// All names, if it is none of them.
    pub fn named(name: &str) -> Result<Self, String> {
        let all = || [Self::None].into_iter().chain(Self::ALL);
        let names = || all().map(Self::name).collect::<Vec<_>>().join(", ");
        all().find(|launcher| launcher.name() == name).ok_or_else(|| format!("expected one of {}", names()))
    }

    /// The variable with the job's id, which is the same for all its processes.
    pub(super) fn job_id(self) -> Option<&'static str> {
        match self {
            Self::Torchrun => Some("TORCHELASTIC_RUN_ID"),
            Self::Slurm => Some("SLURM_JOB_ID"),
            Self::None | Self::Kubernetes | Self::OpenMpi | Self::Pmi => None,
        }
    }

    /// The variables with the rank and the number of ranks.
    pub fn variables(self) -> String {
        match self {
            Self::None => "--rank, --ranks".into(),
            _ => {
                let Variables { rank, ranks, .. } = self.of();
                format!("{}, {}", rank[0], ranks[0])
            }
        }
    }

    fn of(self) -> Variables {
        match self {
            Self::None => Variables { rank: &[], ranks: &[], local_rank: &[], ranks_on_host: &[] },
            Self::Torchrun => Variables {
                rank: &["RANK"],
                ranks: &["WORLD_SIZE"],
                local_rank: &["LOCAL_RANK"],
                ranks_on_host: &["LOCAL_WORLD_SIZE"],
            },
            Self::Kubernetes => Variables {
                rank: &["PET_NODE_RANK", "JOB_COMPLETION_INDEX"],
                ranks: &["PET_NNODES"],
                local_rank: &[],
                ranks_on_host: &[],
            },
            Self::OpenMpi => Variables {
                rank: &["OMPI_COMM_WORLD_RANK"],
                ranks: &["OMPI_COMM_WORLD_SIZE"],
                local_rank: &["OMPI_COMM_WORLD_LOCAL_RANK"],
                ranks_on_host: &["OMPI_COMM_WORLD_LOCAL_SIZE"],
            },
            Self::Pmi => Variables {
                rank: &["PMI_RANK"],
                ranks: &["PMI_SIZE"],
                local_rank: &["MPI_LOCALRANKID"],
                ranks_on_host: &["MPI_LOCALNRANKS"],
            },
            // The shell of an sbatch script has SLURM_PROCID, too, but only tasks that srun started have the second.
            Self::Slurm => Variables {
                rank: &["SLURM_PROCID"],
                ranks: &["SLURM_STEP_NUM_TASKS"],
                local_rank: &["SLURM_LOCALID"],
                ranks_on_host: &[],
            },
        }
    }

    /// What it sets, if it started this process.
    pub(super) fn reported_rank(
        self,
        environment: &Environment<'_>,
    ) -> Result<Option<ReportedRank>, LaunchError> {
        let Variables { rank, ranks, local_rank, ranks_on_host } = self.of();
        let half = |there: &str, missing: &str| {
            Err(LaunchError::Half { there: there.into(), missing: missing.into() })
        };
        let (rank, ranks) = match (first(environment, rank)?, first(environment, ranks)?) {
            (Some(rank), Some(ranks)) => (rank, ranks),
            // Slurm sets one of them in shells; a job index by itself says nothing about ranks.
            (Some(rank), None) if self == Self::Slurm || rank.name == "JOB_COMPLETION_INDEX" => {
                return Ok(None);
            }
            (Some(rank), None) => return half(rank.name, ranks[0]),
            (None, Some(_)) if self == Self::Slurm => return Ok(None),
            (None, Some(ranks)) => return half(ranks.name, rank[0]),
            (None, None) => return Ok(None),
        };
        check_below(rank, ranks)?;
        check_ranks(ranks.name, ranks.value)?;
        let local_rank = first(environment, local_rank)?;
        let ranks_on_host = first(environment, ranks_on_host)?;
        if let (Some(local_rank), Some(ranks_on_host)) = (local_rank, ranks_on_host) {
            check_below(local_rank, ranks_on_host)?;
        }
        // A launcher that counts nodes instead of processes has one process on each.
        let counts_nodes = self == Self::Kubernetes || self == Self::Torchrun && local_rank.is_none();
        let number = |given: Option<Number>, of_node: usize| {
            given.map(|number| number.value).or(counts_nodes.then_some(of_node))
        };
        let (local_rank, ranks_on_host) = (number(local_rank, 0), number(ranks_on_host, 1));
        let (rank, local_rank) = (Process(rank.value), local_rank.map(LocalRank));
        Ok(Some(ReportedRank { rank, ranks: ranks.value, local_rank, ranks_on_host }))
    }
}

impl fmt::Display for Launcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A variable and its value.
#[derive(Clone, Copy)]
struct Number {
    name: &'static str,
    value: usize,
}

/// The first variable that is set.
fn first(environment: &Environment<'_>, names: &[&'static str]) -> Result<Option<Number>, LaunchError> {
    let Some((name, value)) = names.iter().find_map(|&name| Some((name, environment(name)?))) else {
        return Ok(None);
    };
    match value.trim().parse() {
        Ok(value) => Ok(Some(Number { name, value })),
        Err(_) => Err(LaunchError::Invalid {
            name: name.into(),
            value,
            why: "it must be a whole number of 0 or more; the number of processes cannot change during a job"
                .into(),
        }),
    }
}

/// Refuses more processes than can work together, before memory is allocated for each of them.
pub(super) fn check_ranks(name: &str, ranks: usize) -> Result<(), LaunchError> {
    if ranks <= RANKS_MAX {
        return Ok(());
    }
    let why = format!("there can be {} processes at most", RANKS_MAX);
    Err(LaunchError::Invalid { name: name.into(), value: ranks.to_string(), why })
}

fn check_below(number: Number, limit: Number) -> Result<(), LaunchError> {
    let (Number { name, value }, Number { name: of, value: count }) = (number, limit);
    if value < count {
        return Ok(());
    }
    let why = format!("it must be less than {of} ({count})");
    Err(LaunchError::Invalid { name: name.into(), value: value.to_string(), why })
}
