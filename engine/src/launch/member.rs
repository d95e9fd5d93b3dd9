//! Who the processes are, and which of them share a node.

use serde::{Deserialize, Serialize};

use super::error::MeetError;
use super::meeting::Meeting;
use super::seat::Seat;

/// What a process tells the others of itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    /// Among all.
    pub rank: usize,
    /// The host's name.
    pub host: String,
    /// What this start of the host's system is known by: containers of one host have it in common.
    pub boot: String,
    /// The process's number.
    pub process: u32,
    /// Its place among those of its node, where its launcher says it.
    pub local: Option<usize>,
    /// How many GPUs it sees.
    pub gpus: usize,
    /// What these are known by, on any process of the host.
    pub gpu_ids: Vec<String>,
    /// The version of Rankine.
    pub version: String,
}

/// A node, with its processes in the order of ranks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Node {
    /// Its name.
    pub host: String,
    /// Its processes.
    pub ranks: Vec<usize>,
}

impl Member {
    /// This process, which sees some GPUs.
    pub fn here(seat: &Seat, gpu_ids: Vec<String>) -> Self {
        let read =
            |path: &str| std::fs::read_to_string(path).map(|text| text.trim().to_owned()).unwrap_or_default();
        Self {
            rank: seat.rank,
            host: read("/proc/sys/kernel/hostname"),
            boot: read("/proc/sys/kernel/random/boot_id"),
            process: std::process::id(),
            local: seat.local,
            gpus: gpu_ids.len(),
            gpu_ids,
            version: env!("CARGO_PKG_VERSION").into(),
        }
    }

    /// Tells all others of this process, and returns all, in the order of ranks.
    ///
    /// # Errors
    /// Those of [`Meeting::gather`]; and where a process is of another version.
    pub fn introduce(self, meeting: &mut Meeting) -> Result<Vec<Self>, MeetError> {
        let own = serde_json::to_vec(&self).map_err(|error| MeetError::Stray(error.to_string()))?;
        let all = meeting.gather(&own)?;
        let read = |(rank, bytes): (usize, &Vec<u8>)| {
            let member: Self = serde_json::from_slice(bytes).map_err(|error| {
                MeetError::Stray(format!(
                    "rank {rank} does not tell who it is: {error}; is it the same Rankine?"
                ))
            })?;
            if member.version != self.version || member.rank != rank {
                let words = format!(
                    "rank {rank} on {} runs Rankine {}, and rank {} runs {}: processes must be of one version",
                    member.host, member.version, self.rank, self.version
                );
                return Err(MeetError::Stray(words));
            }
            Ok(member)
        };
        all.iter().enumerate().map(read).collect()
    }
}

/// The nodes, in the order of their first ranks.
pub fn nodes(members: &[Member]) -> Vec<Node> {
    let mut found: Vec<(&Member, Node)> = Vec::new();
    for member in members {
        match found.iter_mut().find(|(first, _)| (&first.host, &first.boot) == (&member.host, &member.boot)) {
            Some((_, node)) => node.ranks.push(member.rank),
            None => found.push((member, Node { host: member.host.clone(), ranks: vec![member.rank] })),
        }
    }
    found.into_iter().map(|(_, node)| node).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_of_one_host_are_one_node() {
        let member = |rank, host: &str, boot: &str| Member {
            rank,
            host: host.into(),
            boot: boot.into(),
            process: 1,
            local: None,
            gpus: 0,
            gpu_ids: Vec::new(),
            version: "1".into(),
        };
        let members = [member(0, "a", "x"), member(1, "b", "y"), member(2, "a", "x"), member(3, "a", "z")];
        let found: Vec<_> = nodes(&members).into_iter().map(|node| (node.host, node.ranks)).collect();
        // Two pods of one name are not one.
        assert_eq!(found, [("a".into(), vec![0, 2]), ("b".into(), vec![1]), ("a".into(), vec![3])]);
    }
}
