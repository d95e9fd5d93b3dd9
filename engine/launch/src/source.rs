//! What each launcher sets in the environment.

use std::fmt;

use rankine_base::InvalidValue;
use rankine_topology::{LocalProcess, Process, RANKS_MAX};

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

/// Why the place of this process cannot be determined.
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
    #[error(
        "{there} is set but {missing} is not: both are needed to know which process of the job this one is"
    )]
    Half {
        /// What is set.
        there: String,
        /// What is not.
        missing: String,
    },
    /// Two launchers contradict each other.
    #[error(
        "{first} sets process {} of {} ({}), but {second} sets process {} of {} ({}): select one of the two with \
         --launcher {first} or --launcher {second}",
        first_place.0, first_place.1, first.variables(), second_place.0, second_place.1, second.variables()
    )]
    Contradiction {
        /// The one that takes precedence.
        first: Launcher,
        /// The number that it sets, and the number of processes.
        first_place: (Process, usize),
        /// The other one.
        second: Launcher,
        /// The number that it sets, and the number of processes.
        second_place: (Process, usize),
    },
    /// The launcher that was asked for did not start this process.
    #[error("--launcher {launcher}: this process was not started by it: {} are not set", launcher.variables())]
    Absent {
        /// Which.
        launcher: Launcher,
    },
    /// The address to meet at is unknown.
    #[error(
        "no rendezvous address for {processes} processes ({}): set MASTER_ADDR (and MASTER_PORT) to the host of \
         process 0, or give --meet HOST:PORT",
        launcher.variables()
    )]
    Nowhere {
        /// The launcher.
        launcher: Launcher,
        /// The processes.
        processes: usize,
    },
}

/// The place of this process, as a launcher sets it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ReportedPlace {
    pub(super) process: Process,
    pub(super) processes: usize,
    pub(super) local: Option<LocalProcess>,
    /// The number of processes on this host.
    pub(super) processes_on_host: Option<usize>,
}

/// The environment: the value of a variable, if it is set and not empty.
pub(super) type Environment<'a> = dyn Fn(&str) -> Option<String> + 'a;

/// The variables that one launcher sets.
struct Variables {
    process: &'static [&'static str],
    processes: &'static [&'static str],
    local: &'static [&'static str],
    processes_on_host: &'static [&'static str],
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
    /// [`InvalidValue`] with all names, if it is none of them.
    pub fn named(name: &str) -> Result<Self, InvalidValue> {
        let all = || [Self::None].into_iter().chain(Self::ALL);
        let names = || all().map(Self::name).collect::<Vec<_>>().join(", ");
        let invalid = || InvalidValue::expected(name, format!("one of {}", names()));
        all().find(|launcher| launcher.name() == name).ok_or_else(invalid)
    }

    /// The variable with the job's id, which is the same for all its processes.
    pub(super) fn job_id(self) -> Option<&'static str> {
        match self {
            Self::Torchrun => Some("TORCHELASTIC_RUN_ID"),
            Self::Slurm => Some("SLURM_JOB_ID"),
            Self::None | Self::Kubernetes | Self::OpenMpi | Self::Pmi => None,
        }
    }

    /// The variables with the number of this process, and with the number of processes.
    pub fn variables(self) -> String {
        match self {
            Self::None => "--process, --processes".into(),
            _ => {
                let Variables { process, processes, .. } = self.of();
                format!("{}, {}", process[0], processes[0])
            }
        }
    }

    fn of(self) -> Variables {
        match self {
            Self::None => Variables { process: &[], processes: &[], local: &[], processes_on_host: &[] },
            Self::Torchrun => Variables {
                process: &["RANK"],
                processes: &["WORLD_SIZE"],
                local: &["LOCAL_RANK"],
                processes_on_host: &["LOCAL_WORLD_SIZE"],
            },
            Self::Kubernetes => Variables {
                process: &["PET_NODE_RANK", "JOB_COMPLETION_INDEX"],
                processes: &["PET_NNODES"],
                local: &[],
                processes_on_host: &[],
            },
            Self::OpenMpi => Variables {
                process: &["OMPI_COMM_WORLD_RANK"],
                processes: &["OMPI_COMM_WORLD_SIZE"],
                local: &["OMPI_COMM_WORLD_LOCAL_RANK"],
                processes_on_host: &["OMPI_COMM_WORLD_LOCAL_SIZE"],
            },
            Self::Pmi => Variables {
                process: &["PMI_RANK"],
                processes: &["PMI_SIZE"],
                local: &["MPI_LOCALRANKID"],
                processes_on_host: &["MPI_LOCALNRANKS"],
            },
            // The shell of an sbatch script has SLURM_PROCID, too, but only tasks that srun started have the second.
            Self::Slurm => Variables {
                process: &["SLURM_PROCID"],
                processes: &["SLURM_STEP_NUM_TASKS"],
                local: &["SLURM_LOCALID"],
                processes_on_host: &[],
            },
        }
    }

    /// What it sets, if it started this process.
    pub(super) fn reported_place(
        self,
        environment: &Environment<'_>,
    ) -> Result<Option<ReportedPlace>, LaunchError> {
        let Variables { process, processes, local, processes_on_host } = self.of();
        let half = |there: &str, missing: &str| {
            Err(LaunchError::Half { there: there.into(), missing: missing.into() })
        };
        let (process, processes) = match (first(environment, process)?, first(environment, processes)?) {
            (Some(process), Some(processes)) => (process, processes),
            // Slurm sets one of them in shells; a job index by itself says nothing about processes.
            (Some(process), None) if self == Self::Slurm || process.name == "JOB_COMPLETION_INDEX" => {
                return Ok(None);
            }
            (Some(process), None) => return half(process.name, processes[0]),
            (None, Some(_)) if self == Self::Slurm => return Ok(None),
            (None, Some(processes)) => return half(processes.name, process[0]),
            (None, None) => return Ok(None),
        };
        check_below(process, processes)?;
        check_count(processes.name, processes.value)?;
        let local = first(environment, local)?;
        let processes_on_host = first(environment, processes_on_host)?;
        if let (Some(local), Some(processes_on_host)) = (local, processes_on_host) {
            check_below(local, processes_on_host)?;
        }
        // A launcher that counts nodes instead of processes has one process on each.
        let counts_nodes = self == Self::Kubernetes || self == Self::Torchrun && local.is_none();
        let number = |given: Option<Number>, of_node: usize| {
            given.map(|number| number.value).or(counts_nodes.then_some(of_node))
        };
        let (local, processes_on_host) = (number(local, 0), number(processes_on_host, 1));
        let (process, local) = (Process(process.value), local.map(LocalProcess));
        Ok(Some(ReportedPlace { process, processes: processes.value, local, processes_on_host }))
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
pub(super) fn check_count(name: &str, processes: usize) -> Result<(), LaunchError> {
    if processes <= RANKS_MAX {
        return Ok(());
    }
    let why = format!("there can be {} processes at most", RANKS_MAX);
    Err(LaunchError::Invalid { name: name.into(), value: processes.to_string(), why })
}

fn check_below(number: Number, limit: Number) -> Result<(), LaunchError> {
    let (Number { name, value }, Number { name: of, value: count }) = (number, limit);
    if value < count {
        return Ok(());
    }
    let why = format!("it must be less than {of} ({count})");
    Err(LaunchError::Invalid { name: name.into(), value: value.to_string(), why })
}
