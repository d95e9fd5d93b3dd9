//! Communication between ranks: within a node by access to each other's memory, between nodes through NCCL.

mod cluster;
pub mod nccl;
mod peers;
mod rendezvous;

pub use cluster::{Cluster, ClusterSum, CopyGate, GatherNodes, Rail};
pub use peers::{AllReduce, AllReduceWay, Gather, GatherError, GiveUpFlag, PeerBarrier, Peers, SharedBuffer};
