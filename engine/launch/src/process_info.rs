//! Who the processes are, and which of them share a host.

use rankine_base::build::Build;
use rankine_base::system;
use rankine_topology::{LocalRank, Process};
use serde::{Deserialize, Serialize};

use super::error::MeetError;
use super::meeting::Meeting;
use super::process_rank::ProcessRank;

/// What a process tells the others about itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessInfo {
    /// Its rank.
    pub rank: Process,
    /// The host's name.
    pub host: String,
    /// The boot id of the host's system: containers of one host share it.
    pub boot: String,
    /// The process id.
    pub process: u32,
    /// Its local rank, if the launcher sets it.
    #[serde(rename = "local")]
    pub local_rank: Option<LocalRank>,
    /// How many GPUs it sees.
    pub gpus: usize,
    /// The ids of these GPUs, the same for all processes of the host.
    pub gpu_ids: Vec<String>,
    /// The build of Rankine.
    pub build: Build,
}

/// A host, with its processes in the order of ranks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Host {
    /// Its name.
    #[serde(rename = "host")]
    pub name: String,
    /// The ranks of its processes.
    pub ranks: Vec<Process>,
}

impl ProcessInfo {
    /// This process, which sees some GPUs.
    pub fn here(process: &ProcessRank, gpu_ids: Vec<String>, build: &Build) -> Self {
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        Self {
            rank: process.rank,
            host: system::host_name(),
            boot: boot.trim().to_owned(),
            process: std::process::id(),
            local_rank: process.local_rank,
            gpus: gpu_ids.len(),
            gpu_ids,
            build: build.clone(),
        }
    }

    /// Sends this to all others, and returns all, in the order of ranks.
    ///
    /// # Errors
    /// Those of [`Meeting::gather`]; and if a process is of another build, or its build is not known exactly.
    pub fn introduce(self, meeting: &mut Meeting) -> Result<Vec<Self>, MeetError> {
        let own = serde_json::to_vec(&self).map_err(|error| MeetError::Stray(error.to_string()))?;
        let all = meeting.gather(&own)?;
        let read = |(index, bytes): (usize, &Vec<u8>)| {
            let rank = Process(index);
            let member: Self = serde_json::from_slice(bytes).map_err(|error| {
                MeetError::Stray(format!(
                    "rank {rank} sent an invalid description of itself: {error}; does it run the same build of \
                     Rankine?"
                ))
            })?;
            if member.rank != rank {
                let words =
                    format!("rank {rank} on {} describes itself as rank {}", member.host, member.rank);
                return Err(MeetError::Stray(words));
            }
            if rank != self.rank && !member.build.is_same(&self.build) {
                let words = format!(
                    "rank {rank} on {} runs Rankine {}, and rank {} on {} runs Rankine {}: all processes of a job must \
                     run the same build. Install one build on all hosts",
                    member.host,
                    member.build.unlike(&self.build),
                    self.rank,
                    self.host,
                    self.build.unlike(&member.build)
                );
                return Err(MeetError::Stray(words));
            }
            Ok(member)
        };
        all.iter().enumerate().map(read).collect()
    }
}

/// The hosts, in the order of their first ranks.
pub fn hosts(members: &[ProcessInfo]) -> Vec<Host> {
    let mut found: Vec<(&ProcessInfo, Host)> = Vec::new();
    for member in members {
        match found.iter_mut().find(|(first, _)| (&first.host, &first.boot) == (&member.host, &member.boot)) {
            Some((_, host)) => host.ranks.push(member.rank),
            None => found.push((member, Host { name: member.host.clone(), ranks: vec![member.rank] })),
        }
    }
    found.into_iter().map(|(_, host)| host).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::groups::build;

    #[test]
    fn processes_of_one_host_are_found_together() {
        let member = |rank, host: &str, boot: &str| ProcessInfo {
            rank: Process(rank),
            host: host.into(),
            boot: boot.into(),
            process: 1,
            local_rank: None,
            gpus: 0,
            gpu_ids: Vec::new(),
            build: build(),
        };
        let members = [member(0, "a", "x"), member(1, "b", "y"), member(2, "a", "x"), member(3, "a", "z")];
        let found: Vec<_> = hosts(&members).into_iter().map(|host| (host.name, host.ranks)).collect();
        // Two pods of one name are not one.
        let [a, b, other] =
            [&[0, 2][..], &[1], &[3]].map(|ranks| ranks.iter().copied().map(Process).collect());
        assert_eq!(found, [("a".into(), a), ("b".into(), b), ("a".into(), other)]);
    }
}
