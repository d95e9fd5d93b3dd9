//! A rank's GPU, and its connections to the other ranks of a model.

use std::sync::Arc;

use rankine_cuda::nccl::CollNet;
use rankine_cuda::{Cluster, ClusterSum, Device, Lane, Moment, Rail};
use rankine_embedding::cuda::Result;
use rankine_topology::Rank;

/// What the parts of a rank are created on.
#[derive(Debug, Clone)]
pub(super) struct RankContext {
    pub(super) device: Arc<Device>,
    /// With several ranks.
    pub(super) links: Option<RankLinks>,
}

/// A rank's connections to the other ranks of a model, on one node or several.
#[derive(Debug, Clone)]
pub(super) struct RankLinks {
    pub(super) cluster: Arc<Cluster>,
    /// With several nodes.
    pub(super) rails: Option<Rails>,
}

/// A rank's rails, one for each lane with communication between nodes.
#[derive(Debug, Clone)]
pub(super) struct Rails {
    pub(super) routes: Rail,
    /// For rows and their gradients.
    pub(super) rows: Rail,
    /// For sums of dense gradients.
    pub(super) sums: Rail,
}

impl RankContext {
    /// With several ranks this is a collective call.
    pub(super) fn new(
        device: &Arc<Device>,
        cluster: Option<&Arc<Cluster>>,
        collnet: CollNet,
    ) -> Result<Self> {
        let links = cluster.map(|cluster| RankLinks::join(cluster, collnet)).transpose()?;
        Ok(Self { device: Arc::clone(device), links })
    }

    pub(super) fn rank(&self) -> Rank {
        self.links.as_ref().map_or(Rank(0), |links| links.cluster.rank())
    }

    pub(super) fn ranks(&self) -> usize {
        self.links.as_ref().map_or(1, |links| links.cluster.ranks())
    }

    pub(super) fn nodes(&self) -> usize {
        self.links.as_ref().map_or(1, |links| links.cluster.nodes())
    }

    /// Waits, on the host, for all ranks.
    pub(super) fn barrier(&self) -> Result<()> {
        if let Some(links) = &self.links {
            links.cluster.gather(0_u8)?;
        }
        Ok(())
    }

    /// Whether any GPU has several ranks.
    pub(super) fn shares_gpu(&self) -> Result<bool> {
        let Some(links) = &self.links else { return Ok(false) };
        // Processes may number the same GPUs differently.
        let of_ranks = links.cluster.gather(self.device.uuid()?)?;
        Ok((1..of_ranks.len()).any(|rank| of_ranks[..rank].contains(&of_ranks[rank])))
    }
}

impl RankLinks {
    /// A collective call.
    fn join(cluster: &Arc<Cluster>, collnet: CollNet) -> Result<Self> {
        let (routes, rows) = (cluster.join_rail("routes"), cluster.join_rail("rows"));
        let sums = cluster.join_rail_with("dense gradients", collnet);
        let rails = match (routes?, rows?, sums?) {
            (Some(routes), Some(rows), Some(sums)) => Some(Rails { routes, rows, sums }),
            _ => None,
        };
        Ok(Self { cluster: Arc::clone(cluster), rails })
    }

    pub(super) fn rails(&self) -> Vec<&Rail> {
        self.rails.iter().flat_map(|Rails { routes, rows, sums }| [routes, rows, sums]).collect()
    }

    /// Runs each of some sums once: NCCL allocates memory for the first operation of a kind, so this must not wait for
    /// ranks that allocate.
    pub(super) fn warm_up(&self, sums: &[&ClusterSum]) -> Result<()> {
        if self.rails.is_none() {
            return Ok(());
        }
        self.cluster.gather(0_u8)?;
        let lane = Lane::new(self.cluster.device())?;
        for sum in sums {
            // SAFETY: the sums live, and the lanes of all ranks are waited for.
            unsafe { sum.enqueue(&lane) }?;
        }
        let done = Moment::new(self.cluster.device())?;
        lane.record(&done)?;
        Rail::wait_for(&done, &self.rails())?;
        self.cluster.gather(0_u8)?;
        Ok(())
    }
}
