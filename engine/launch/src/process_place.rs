//! Which process of a job this one is.

use std::fmt;
use std::num::NonZeroU16;

use rankine_topology::{LocalProcess, Process};

use super::address::{Address, first_host};
use super::source::{Environment, LaunchError, Launcher, ReportedPlace, check_count};

/// The variable of a job's id.
const JOB_ID: &str = "RANKINE_JOB_ID";

/// The arguments of the user; the launcher sets the rest.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LaunchArguments {
    /// The launcher to use. With [`Launcher::None`], the environment is ignored.
    pub launcher: Option<Launcher>,
    /// The number of this process, and how many there are.
    pub process: Option<(Process, usize)>,
    /// The address where the processes meet.
    pub meet: Option<Address>,
}

/// The place of a process among those that work together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProcessPlace {
    /// This process.
    pub process: Process,
    /// The number of processes.
    pub processes: usize,
    /// Its number among the processes of its host, if the launcher sets it.
    pub local: Option<LocalProcess>,
    /// Where process 0 listens; `None` for a single process.
    pub meet: Option<Address>,
    /// How the processes are distributed over hosts.
    pub spread: Spread,
    /// The job's id, which separates jobs that meet at the same address. Not a secret.
    pub job: Option<String>,
    /// The launcher that set the place.
    pub launcher: Launcher,
}

/// What is known about the hosts of a job's processes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Spread {
    /// Nothing.
    #[default]
    Unknown,
    /// All are on this host, according to the launcher.
    OneNode,
    /// Some are on other hosts, according to the launcher.
    SeveralNodes,
}

impl ProcessPlace {
    /// A single process, without a launcher.
    pub fn alone() -> Self {
        Self {
            process: Process(0),
            processes: 1,
            local: None,
            meet: None,
            spread: Spread::Unknown,
            job: None,
            launcher: Launcher::None,
        }
    }

    /// Determines the place of this process.
    ///
    /// # Errors
    /// If a value is invalid, if one is missing, or if launchers contradict each other.
    pub fn find(arguments: &LaunchArguments) -> Result<Self, LaunchError> {
        let environment = |name: &str| std::env::var(name).ok().filter(|value| !value.trim().is_empty());
        Self::find_in(arguments, &environment)
    }

    pub(super) fn find_in(
        arguments: &LaunchArguments,
        environment: &Environment<'_>,
    ) -> Result<Self, LaunchError> {
        let (launcher, reported) = launcher_and_place(arguments, environment)?;
        let ReportedPlace { process, processes, local, processes_on_host } = reported;
        let meet = match processes {
            1 => None,
            _ => match address(arguments, environment, launcher, processes_on_host == Some(processes))? {
                Some(address) => Some(address),
                None => return Err(LaunchError::Nowhere { launcher, processes }),
            },
        };
        let spread = match processes_on_host {
            Some(processes_on_host) if processes_on_host == processes => Spread::OneNode,
            // An address given by the user is not checked further.
            Some(_) if arguments.meet.is_none() => Spread::SeveralNodes,
            _ => Spread::Unknown,
        };
        let of_launcher = launcher.job_id().and_then(environment);
        let job = environment(JOB_ID).or(of_launcher).map(|job| job.trim().to_owned());
        Ok(Self { process, processes, local, meet, spread, job, launcher })
    }
}

/// `process 3 of 16 (slurm: SLURM_PROCID, SLURM_STEP_NUM_TASKS), rendezvous at gpu1:29500`
impl fmt::Display for ProcessPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { process, processes, meet, launcher, .. } = self;
        write!(f, "process {process} of {processes}")?;
        match (launcher, processes) {
            (Launcher::None, 1) => write!(f, " (no launcher)")?,
            (Launcher::None, _) => write!(f, " ({})", launcher.variables())?,
            _ => write!(f, " ({launcher}: {})", launcher.variables())?,
        }
        meet.as_ref().map_or(Ok(()), |address| write!(f, ", rendezvous at {address}"))
    }
}

/// The launcher that counts, and what it sets.
fn launcher_and_place(
    arguments: &LaunchArguments,
    environment: &Environment<'_>,
) -> Result<(Launcher, ReportedPlace), LaunchError> {
    let alone = ReportedPlace { process: Process(0), processes: 1, local: None, processes_on_host: None };
    let mut said = Vec::new();
    if let Some((process, processes)) = arguments.process {
        let why = match arguments.launcher {
            Some(launcher) if launcher != Launcher::None => Some(format!("--launcher {launcher} sets it")),
            _ if process.0 >= processes => Some(format!("it must be less than --processes ({processes})")),
            _ => None,
        };
        if let Some(why) = why {
            return Err(LaunchError::Invalid { name: "--process".into(), value: process.to_string(), why });
        }
        check_count("--processes", processes)?;
        said.push((Launcher::None, ReportedPlace { process, processes, ..alone }));
    }
    match arguments.launcher {
        Some(Launcher::None) => {}
        Some(launcher) => match launcher.reported_place(environment)? {
            Some(reported) => said.push((launcher, reported)),
            None => return Err(LaunchError::Absent { launcher }),
        },
        None => {
            for launcher in Launcher::ALL {
                said.extend(launcher.reported_place(environment)?.map(|reported| (launcher, reported)));
            }
            // The processes of a launcher that sets nothing else would each train by themselves.
            if said.is_empty() && environment("PMIX_RANK").is_some() {
                let missing = "OMPI_COMM_WORLD_SIZE or PMI_SIZE".into();
                return Err(LaunchError::Half { there: "PMIX_RANK".into(), missing });
            }
        }
    }
    let Some(&(first, first_place)) = said.first() else { return Ok((Launcher::None, alone)) };
    for &(second, second_place) in &said[1..] {
        let pair = |reported: ReportedPlace| (reported.process, reported.processes);
        // If another launcher's process started this one, it has as many processes for each of its own.
        let nested = first_place.processes > second_place.processes
            && first_place.processes % second_place.processes == 0;
        if pair(first_place) != pair(second_place) && !nested {
            let (first_place, second_place) = (pair(first_place), pair(second_place));
            return Err(LaunchError::Contradiction { first, first_place, second, second_place });
        }
    }
    Ok((first, first_place))
}

/// The address to meet at.
fn address(
    arguments: &LaunchArguments,
    environment: &Environment<'_>,
    launcher: Launcher,
    on_one_node: bool,
) -> Result<Option<Address>, LaunchError> {
    if let Some(address) = &arguments.meet {
        return Ok(Some(address.clone()));
    }
    let named = |host: &str, port: &str| -> Result<Option<Address>, LaunchError> {
        let Some(host) = environment(host) else { return Ok(None) };
        let port = match environment(port) {
            None => Address::PORT,
            Some(value) => {
                let why = || "it must be a TCP port, from 1 to 65535".into();
                let parsed: Result<NonZeroU16, _> = value.trim().parse();
                parsed.map_err(|_| LaunchError::Invalid { name: port.into(), value, why: why() })?.get()
            }
        };
        Ok(Some(Address { host: host.trim().into(), port }))
    };
    let of_pets = match launcher {
        Launcher::Kubernetes => named("PET_MASTER_ADDR", "PET_MASTER_PORT")?,
        _ => None,
    };
    let of_master = match of_pets {
        None if arguments.launcher != Some(Launcher::None) => named("MASTER_ADDR", "MASTER_PORT")?,
        found => found,
    };
    if let Some(mut address) = of_master {
        // Then torchrun's own store listens there.
        let taken = launcher == Launcher::Torchrun
            && environment("TORCHELASTIC_USE_AGENT_STORE")
                .is_some_and(|value| value.eq_ignore_ascii_case("true"));
        address.port = address.port.saturating_add(u16::from(taken));
        return Ok(Some(address));
    }
    if launcher == Launcher::Slurm {
        let lists = ["SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST"];
        let host = lists.iter().find_map(|list| first_host(&environment(list)?));
        // Jobs that share a node use different ports, all below the ephemeral ones.
        let job = environment("SLURM_JOB_ID").and_then(|job| job.parse::<u64>().ok());
        let port = job.map_or(Address::PORT, |job| 15000 + (job % 15000) as u16);
        if let Some(host) = host {
            return Ok(Some(Address { host, port }));
        }
    }
    Ok(on_one_node.then(|| Address { host: "127.0.0.1".into(), port: Address::PORT }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find(variables: &str, arguments: &LaunchArguments) -> Result<ProcessPlace, LaunchError> {
        let value = |name: &str| {
            let pairs = variables.split_whitespace().filter_map(|pair| pair.split_once('='));
            pairs.filter(|(own, _)| *own == name).map(|(_, value)| value.to_owned()).next()
        };
        ProcessPlace::find_in(arguments, &value)
    }

    fn told(variables: &str) -> String {
        match find(variables, &LaunchArguments::default()) {
            Ok(place) => {
                format!("{place}, local {:?}", place.local.map(|LocalProcess(number)| number))
            }
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn each_launcher_is_understood() {
        for (variables, expected) in [
            ("", "process 0 of 1 (no launcher), local None"),
            (
                "RANK=3 WORLD_SIZE=16 LOCAL_RANK=3 LOCAL_WORLD_SIZE=8 MASTER_ADDR=a MASTER_PORT=7",
                "process 3 of 16 (torchrun: RANK, WORLD_SIZE), rendezvous at a:7, local Some(3)",
            ),
            // torchrun's store listens at the port.
            (
                "RANK=1 WORLD_SIZE=2 LOCAL_RANK=1 MASTER_ADDR=a MASTER_PORT=7 TORCHELASTIC_USE_AGENT_STORE=True",
                "process 1 of 2 (torchrun: RANK, WORLD_SIZE), rendezvous at a:8, local Some(1)",
            ),
            // A PyTorchJob has a process a node.
            (
                "RANK=1 WORLD_SIZE=2 MASTER_ADDR=job-master-0",
                "process 1 of 2 (torchrun: RANK, WORLD_SIZE), rendezvous at job-master-0:29500, local Some(0)",
            ),
            (
                "PET_NNODES=4 JOB_COMPLETION_INDEX=2 PET_MASTER_ADDR=n0.job PET_MASTER_PORT=29501",
                "process 2 of 4 (kubernetes: PET_NODE_RANK, PET_NNODES), rendezvous at n0.job:29501, local Some(0)",
            ),
            (
                "OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_LOCAL_RANK=1 \
                 OMPI_COMM_WORLD_LOCAL_SIZE=2 PMIX_RANK=1",
                "process 1 of 2 (openmpi: OMPI_COMM_WORLD_RANK, OMPI_COMM_WORLD_SIZE), rendezvous at 127.0.0.1:29500, \
                 local Some(1)",
            ),
            (
                "PMI_RANK=0 PMI_SIZE=2 MPI_LOCALRANKID=0 MASTER_ADDR=b",
                "process 0 of 2 (pmi: PMI_RANK, PMI_SIZE), rendezvous at b:29500, local Some(0)",
            ),
            (
                "SLURM_PROCID=5 SLURM_STEP_NUM_TASKS=8 SLURM_LOCALID=1 SLURM_JOB_NODELIST=gpu[3-4] SLURM_JOB_ID=123",
                "process 5 of 8 (slurm: SLURM_PROCID, SLURM_STEP_NUM_TASKS), rendezvous at gpu3:15123, local Some(1)",
            ),
            // The shell of a batch script, and a pod that belongs to no job.
            ("SLURM_PROCID=0 SLURM_NTASKS=8 SLURM_JOB_ID=123", "process 0 of 1 (no launcher), local None"),
            ("JOB_COMPLETION_INDEX=3", "process 0 of 1 (no launcher), local None"),
        ] {
            assert_eq!(told(variables), expected, "{variables}");
        }
    }

    #[test]
    fn how_a_job_is_spread_and_named_is_taken_from_its_launcher() {
        let torchrun = "RANK=1 WORLD_SIZE=4 LOCAL_RANK=1 MASTER_ADDR=a TORCHELASTIC_RUN_ID=r7";
        let slurm = "SLURM_PROCID=1 SLURM_STEP_NUM_TASKS=4 SLURM_JOB_NODELIST=a,b SLURM_JOB_ID=12";
        for (variables, spread, job) in [
            (format!("{torchrun} LOCAL_WORLD_SIZE=4"), Spread::OneNode, Some("r7")),
            (format!("{torchrun} LOCAL_WORLD_SIZE=2"), Spread::SeveralNodes, Some("r7")),
            (format!("{torchrun} RANKINE_JOB_ID=mine"), Spread::Unknown, Some("mine")),
            // Kubeflow says `localhost` to process 0, and counts nodes.
            ("RANK=0 WORLD_SIZE=2 MASTER_ADDR=localhost".into(), Spread::SeveralNodes, None),
            (slurm.into(), Spread::Unknown, Some("12")),
            (String::new(), Spread::Unknown, None),
        ] {
            let place = find(&variables, &LaunchArguments::default()).unwrap();
            assert_eq!((place.spread, place.job.as_deref()), (spread, job), "{variables}");
        }
        let meet = Some("localhost:1".parse().unwrap());
        let told = LaunchArguments { meet, ..LaunchArguments::default() };
        let place = find("RANK=0 WORLD_SIZE=2 MASTER_ADDR=localhost", &told).unwrap();
        assert_eq!(place.spread, Spread::Unknown);
    }

    #[test]
    fn launchers_may_be_nested_and_may_agree_but_not_differ() {
        let slurm = "SLURM_PROCID=1 SLURM_STEP_NUM_TASKS=2 SLURM_JOB_NODELIST=a,b";
        // Slurm started a torchrun on each of two nodes, and each of these eight processes.
        let nested = told(&format!("{slurm} RANK=11 WORLD_SIZE=16 LOCAL_RANK=3 MASTER_ADDR=a"));
        assert!(nested.starts_with("process 11 of 16 (torchrun"), "{nested}");
        let same = told(&format!("{slurm} PMI_RANK=1 PMI_SIZE=2 PMIX_RANK=1 MASTER_ADDR=a"));
        assert!(same.starts_with("process 1 of 2 (pmi"), "{same}");

        let differ = format!("{slurm} RANK=0 WORLD_SIZE=2 LOCAL_RANK=0 MASTER_ADDR=c");
        assert_eq!(
            told(&differ),
            "torchrun sets process 0 of 2 (RANK, WORLD_SIZE), but slurm sets process 1 of 2 (SLURM_PROCID, \
             SLURM_STEP_NUM_TASKS): select one of the two with --launcher torchrun or --launcher slurm"
        );
        let believed = LaunchArguments { launcher: Some(Launcher::Slurm), ..LaunchArguments::default() };
        assert_eq!(find(&differ, &believed).unwrap().process, Process(1));
        // A forgotten variable would have each process train alone.
        assert!(told(&format!("{slurm} RANK=0 WORLD_SIZE=1")).contains("process 0 of 1"));
        assert!(find(&format!("{slurm} RANK=0 WORLD_SIZE=1"), &LaunchArguments::default()).is_err());
    }

    #[test]
    fn what_the_user_says_comes_first() {
        let address: Address = "here:1".parse().unwrap();
        let arguments =
            LaunchArguments { launcher: None, process: Some((Process(1), 3)), meet: Some(address) };
        assert_eq!(
            find("", &arguments).unwrap().to_string(),
            "process 1 of 3 (--process, --processes), rendezvous at here:1"
        );
        let other = "RANK=2 WORLD_SIZE=3 MASTER_ADDR=a";
        let refused = find(other, &arguments).unwrap_err().to_string();
        assert!(
            refused.contains("process 1 of 3 (--process, --processes)") && refused.contains("process 2 of 3"),
            "{refused}"
        );
        let alone = LaunchArguments { launcher: Some(Launcher::None), ..arguments.clone() };
        assert_eq!(find(other, &alone).unwrap().process, Process(1));
        let wrong = LaunchArguments { process: Some((Process(3), 3)), ..alone };
        assert!(find("", &wrong).unwrap_err().to_string().contains("less than --processes (3)"));
        let many = LaunchArguments { process: Some((Process(0), 4_000_000_000)), ..arguments.clone() };
        let refused = find("", &many).unwrap_err().to_string();
        assert!(
            refused.contains("--processes is `4000000000`: there can be 4096 processes at most"),
            "{refused}"
        );
        let most = LaunchArguments { process: Some((Process(4095), 4096)), ..arguments.clone() };
        assert_eq!(find("", &most).unwrap().processes, 4096);
        let both = LaunchArguments { launcher: Some(Launcher::Torchrun), ..arguments };
        assert!(find(other, &both).unwrap_err().to_string().contains("--launcher torchrun sets it"));
    }

    #[test]
    fn what_is_half_or_wrong_is_refused() {
        for (variables, words) in [
            ("RANK=1", "RANK is set but WORLD_SIZE is not"),
            ("WORLD_SIZE=2", "WORLD_SIZE is set but RANK is not"),
            ("PMIX_RANK=1", "PMIX_RANK is set but OMPI_COMM_WORLD_SIZE or PMI_SIZE is not"),
            ("RANK=2 WORLD_SIZE=2", "RANK is `2`: it must be less than WORLD_SIZE (2)"),
            ("RANK=x WORLD_SIZE=2", "RANK is `x`: it must be a whole number"),
            ("PET_NNODES=2:4 PET_NODE_RANK=0", "PET_NNODES is `2:4`: it must be a whole number"),
            ("RANK=0 WORLD_SIZE=2 MASTER_ADDR=a MASTER_PORT=p", "MASTER_PORT is `p`: it must be a TCP port"),
            (
                "RANK=0 WORLD_SIZE=2 MASTER_ADDR=a MASTER_PORT=0",
                "MASTER_PORT is `0`: it must be a TCP port, from 1",
            ),
            (
                "RANK=0 WORLD_SIZE=2 MASTER_ADDR=a MASTER_PORT=65536",
                "MASTER_PORT is `65536`: it must be a TCP port",
            ),
            ("RANK=0 WORLD_SIZE=4097", "WORLD_SIZE is `4097`: there can be 4096 processes at most"),
            ("RANK=0 WORLD_SIZE=99999999999 MASTER_ADDR=a", "WORLD_SIZE is `99999999999`: there can be 4096"),
            ("PMI_RANK=7 PMI_SIZE=5000", "PMI_SIZE is `5000`: there can be 4096"),
            (
                "RANK=0 WORLD_SIZE=99999999999999999999999",
                "WORLD_SIZE is `99999999999999999999999`: it must be a whole number",
            ),
            ("RANK=0 WORLD_SIZE=2 LOCAL_RANK=0", "set MASTER_ADDR (and MASTER_PORT)"),
            ("RANK=0 WORLD_SIZE=4 LOCAL_RANK=2 LOCAL_WORLD_SIZE=2", "LOCAL_RANK is `2`"),
        ] {
            let told = told(variables);
            assert!(told.contains(words), "{variables}: {told}");
        }
        let absent = LaunchArguments { launcher: Some(Launcher::Slurm), ..LaunchArguments::default() };
        let refused = find("RANK=0 WORLD_SIZE=2", &absent).unwrap_err().to_string();
        assert!(refused.contains("SLURM_PROCID, SLURM_STEP_NUM_TASKS are not set"), "{refused}");
        assert!(Launcher::named("mpi").unwrap_err().why.contains("openmpi"));
    }
}
