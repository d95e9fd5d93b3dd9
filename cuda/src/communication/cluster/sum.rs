//! All-reduces over the ranks of all nodes.

use std::ops::Range;
use std::sync::Arc;

use super::{Cluster, Rail};
use crate::communication::peers::{AllReduce, SharedBuffer};
use crate::runtime::{Buffer, Lane, Result};

/// The collective's name in errors.
const NAME: &str = "a sum over the nodes";

/// Values that are all-reduced over all ranks: f32 values, and with them a few f64 numbers. All ranks get the same
/// bits.
///
/// Over several nodes each rank sums a slice for its node, the ranks of a rail all-reduce their slices, and the
/// results are spread within the node: each value leaves a node once and enters it once.
#[derive(Debug)]
pub struct ClusterSum {
    of_node: AllReduce,
    /// Set if there are several nodes.
    rail: Option<Rail>,
    what: &'static str,
}

impl ClusterSum {
    /// Creates zeros: `len` values and `numbers` numbers, the same lengths at all ranks. With several nodes, `rail`
    /// is the rail of the lane that will run the sums. A collective call; the device must be current on this thread.
    ///
    /// # Panics
    /// If there are several nodes and no rail.
    ///
    /// # Errors
    /// Those of [`crate::Peers::share`].
    pub fn new(cluster: &Cluster, rail: Option<&Rail>, len: usize, numbers: usize) -> Result<Self> {
        if cluster.nodes() == 1 {
            return Ok(Self {
                of_node: AllReduce::new(cluster.peers(), len, numbers)?,
                rail: None,
                what: NAME,
            });
        }
        let values = Arc::new(cluster.peers().share(len.next_multiple_of(4), 0)?);
        Self::of_part(cluster, rail, &values, 0..len, numbers)
    }

    /// The same for a part of existing values.
    ///
    /// # Panics
    /// As [`AllReduce::of_part`] and [`ClusterSum::new`].
    ///
    /// # Errors
    /// As [`ClusterSum::new`].
    pub fn of_part(
        cluster: &Cluster,
        rail: Option<&Rail>,
        values: &Arc<SharedBuffer<f32>>,
        part: Range<usize>,
        numbers: usize,
    ) -> Result<Self> {
        assert_eq!(rail.map_or(1, Rail::nodes), cluster.nodes(), "several nodes need a rail");
        if rail.is_some() {
            return Self::by_slices(cluster, rail, values, part, numbers);
        }
        let of_node = AllReduce::of_part(cluster.peers(), values, part, numbers)?;
        Ok(Self { of_node, rail: None, what: NAME })
    }

    /// The same, by slices on one node too: for callers that use only their own slice's sums, through
    /// [`ClusterSum::scatter`].
    ///
    /// # Panics
    /// As [`ClusterSum::of_part`].
    ///
    /// # Errors
    /// As [`ClusterSum::new`].
    pub fn by_slices(
        cluster: &Cluster,
        rail: Option<&Rail>,
        values: &Arc<SharedBuffer<f32>>,
        part: Range<usize>,
        numbers: usize,
    ) -> Result<Self> {
        assert_eq!(rail.map_or(1, Rail::nodes), cluster.nodes(), "several nodes need a rail");
        let of_node = AllReduce::by_slices(cluster.peers(), values, part, numbers)?;
        Ok(Self { of_node, rail: rail.cloned(), what: NAME })
    }

    /// The sum within the node.
    pub fn of_node(&self) -> &AllReduce {
        &self.of_node
    }

    /// As [`AllReduce::named`].
    #[must_use]
    pub fn named(self, what: &'static str) -> Self {
        Self { of_node: self.of_node.named(what), what, ..self }
    }

    /// As [`AllReduce::values`].
    pub fn values(&self) -> &Buffer<f32> {
        self.of_node.values()
    }

    /// This rank's numbers, which are replaced by their sums.
    pub fn numbers(&self) -> &Buffer<f64> {
        self.of_node.numbers()
    }

    /// Bytes of values that this rank sends to other nodes in each sum; those within the node are
    /// [`AllReduce::bytes_sent`] of [`ClusterSum::of_node`].
    pub fn bytes_between_nodes(&self) -> u64 {
        self.rail.as_ref().map_or(0, |rail| rail.bytes_of_sum(self.of_node.slice().len()))
    }

    /// Replaces values and numbers by their sums over all ranks; see [`AllReduce::enqueue`].
    ///
    /// # Safety
    /// As there; the lane must be that of the rail.
    ///
    /// # Errors
    /// As there, and if NCCL reports an error.
    pub unsafe fn enqueue(&self, lane: &Lane) -> Result<()> {
        // SAFETY: the caller vouches for it.
        unsafe {
            if self.rail.is_none() {
                return self.of_node.enqueue(lane);
            }
            self.scatter(lane)?;
            self.of_node.spread(lane)
        }
    }

    /// The first part of [`ClusterSum::enqueue`] by slices: sums this rank's slice over all ranks; the ranks of its
    /// rail get the same. All numbers are summed too; over more than two nodes, two rails may round them differently.
    ///
    /// # Safety
    /// As there; [`AllReduce::spread`] of the node's sum, or [`AllReduce::spread_of`], must follow.
    ///
    /// # Errors
    /// As there.
    pub unsafe fn scatter(&self, lane: &Lane) -> Result<()> {
        let slice = self.of_node.slice();
        let values = (self.values().pointer().element(slice.start), slice.len());
        let numbers = (self.numbers().pointer(), self.numbers().len());
        // SAFETY: the slice and the numbers are this value's, and as long at each rank of the rail; the caller
        // vouches for the rest.
        unsafe {
            self.of_node.scatter(lane)?;
            self.rail.iter().try_for_each(|rail| rail.sum(lane, self.what, values, numbers))
        }
    }

    /// Checks, without waiting, whether a rank timed out waiting for another one of its node.
    ///
    /// # Errors
    /// If it did.
    pub fn check_now(&self) -> Result<()> {
        self.of_node.check_now()
    }
}
