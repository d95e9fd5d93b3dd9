//! The values on which the ranks of a model agree in each step: the weights of a batch's samples, the loss, the
//! verdict, and the dense gradients. All are summed in the order of ranks, so that all ranks have the same bits.

use std::ops::Deref;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

#[cfg(doc)]
use rankine_cuda::kernels::Tally;
use rankine_cuda::{AllReduce, Buffer, ClusterSum, Lane, Moment, Pointer, Rail, SharedBuffer};
use rankine_embedding::cuda::Result;
use rankine_embedding::{LinkTraffic, Traffic};

use super::context::{RankContext, RankLinks};

/// How long the host polls a moment continuously, and how long it sleeps between polls after that.
const ATTENTION: Duration = Duration::from_micros(200);
const NAP: Duration = Duration::from_micros(50);

/// The values that one rank sums with the others outside of the gradients.
#[derive(Debug)]
pub(super) struct RankGroup {
    links: RankLinks,
    /// For each head: the sum of the weights of a batch's samples with its label.
    weights: ClusterSum,
}

impl RankGroup {
    /// A collective call.
    pub(super) fn new(links: &RankLinks, heads: usize) -> Result<Self> {
        let rail = links.rails.as_ref().map(|rails| &rails.routes);
        let weights = ClusterSum::new(&links.cluster, rail, 0, heads)?;
        let weights = weights.named("the sum of the weights of samples");
        links.warm_up(&[&weights])?;
        Ok(Self { links: links.clone(), weights })
    }

    /// Enqueues all-reducing the weights of a batch's samples, for each head.
    ///
    /// # Safety
    /// Both addresses must have one weight per head; all ranks must enqueue their calls in the same order, and this
    /// value must live until the lane has done it; see [`Lane::launch`].
    pub(super) unsafe fn add_weights(
        &self,
        lane: &Lane,
        own: Pointer<f64>,
        of_all: Pointer<f64>,
    ) -> Result<()> {
        let numbers = self.weights.numbers();
        // SAFETY: there is one number per head; the caller vouches for the rest.
        unsafe {
            lane.copy(own, numbers.pointer(), numbers.len())?;
            self.weights.enqueue(lane)?;
            lane.copy(numbers.pointer(), of_all, numbers.len())?;
        }
        Ok(())
    }

    /// Returns an error if a rank has timed out waiting for another, as far as known now.
    pub(super) fn check_now(&self) -> Result<()> {
        Ok(self.weights.check_now()?)
    }

    /// Waits until a moment has passed that follows collective work, or until `check` reports that a rank timed out.
    /// Then the GPU stops waiting for other ranks, and no later work needs to be waited for.
    pub(super) fn wait_for(&self, moment: &Moment, check: impl Fn() -> Result<()>) -> Result<()> {
        let (begun, rails) = (Instant::now(), self.links.rails());
        let giving_up = self.links.cluster.peers().give_up_flag();
        loop {
            let has_passed = moment.has_passed()?;
            if let Err(error) = check() {
                giving_up.give_up();
                rails.iter().for_each(|rail| rail.abort());
                return Err(error);
            }
            match begun.elapsed() {
                _ if has_passed => return Ok(()),
                waited if waited < ATTENTION => thread::yield_now(),
                _ => {
                    // If a rank is lost, no collective of its rail ends.
                    let checked = Rail::check(&rails, begun, giving_up.is_given_up());
                    checked.inspect_err(|_| giving_up.give_up())?;
                    thread::sleep(NAP);
                }
            }
        }
    }
}

/// The gradients with respect to all dense parameters.
#[derive(Debug)]
pub(super) enum Gradients {
    /// Those of the only rank.
    Local(Buffer<f32>),
    /// First those of this rank's samples, then those of all ranks.
    AllReduced { values: Arc<SharedBuffer<f32>>, sums: Box<GradientSums> },
}

/// The all-reduces of dense gradients: each part starts as soon as the backward pass has computed it.
#[derive(Debug)]
pub(super) struct GradientSums {
    pub(super) top: ClusterSum,
    /// If the interaction has parameters.
    pub(super) interaction: Option<ClusterSum>,
    /// With the values of [`Tally`] of each rank, followed by more numbers, unless those are separate.
    pub(super) bottom: ClusterSum,
    /// Those numbers, if slices stay with their ranks across nodes: numbers that all ranks need are then summed
    /// separately.
    tallies: Option<ClusterSum>,
    /// Whether a rank receives only the sums of its slices, updates these parameters in place, and does so for its
    /// whole node.
    sharded: bool,
}

impl GradientSums {
    /// Returns the all-reduces of the parts within a node, in the order of the parameters.
    pub(super) fn parts(&self) -> impl Iterator<Item = &AllReduce> {
        let parts = [Some(&self.bottom), self.interaction.as_ref(), Some(&self.top)];
        parts.into_iter().flatten().map(ClusterSum::of_node)
    }

    pub(super) fn are_sharded(&self) -> bool {
        self.sharded
    }

    /// Returns the values of [`Tally`] of each rank, followed by more numbers.
    pub(super) fn numbers(&self) -> &Buffer<f64> {
        self.tallies.as_ref().unwrap_or(&self.bottom).numbers()
    }

    /// Enqueues the all-reduce of a part.
    ///
    /// # Safety
    /// As for [`AllReduce::enqueue`]; sharded, [`AllReduce::spread_of`] must follow.
    pub(super) unsafe fn enqueue(&self, part: &ClusterSum, lane: &Lane) -> Result<()> {
        // SAFETY: the caller vouches for it.
        unsafe { if self.sharded { part.scatter(lane) } else { part.enqueue(lane) } }?;
        Ok(())
    }

    /// Enqueues the all-reduce of the bottom MLP's part, and of all numbers.
    ///
    /// # Safety
    /// As for [`GradientSums::enqueue`].
    pub(super) unsafe fn enqueue_bottom(&self, lane: &Lane) -> Result<()> {
        // SAFETY: the caller vouches for it.
        unsafe {
            self.enqueue(&self.bottom, lane)?;
            Ok(self.tallies.iter().try_for_each(|tallies| tallies.enqueue(lane))?)
        }
    }

    fn all(&self) -> impl Iterator<Item = &ClusterSum> {
        let all = [Some(&self.top), self.interaction.as_ref(), Some(&self.bottom), self.tallies.as_ref()];
        all.into_iter().flatten()
    }
}

impl Gradients {
    /// Creates gradients of zero: those of the bottom MLP end at the first offset, of the interaction at the second,
    /// and of the top MLP at the third; `numbers` numbers are all-reduced with them. With several ranks this is a
    /// collective call.
    pub(super) fn new(
        context: &RankContext,
        [bottom, interaction, len]: [usize; 3],
        numbers: usize,
        sharded: bool,
    ) -> Result<Self> {
        let RankContext { device, links } = context;
        let Some(links) = links else { return Ok(Self::Local(Buffer::filled(device, len, 0)?)) };
        // Sums read vectors of four elements.
        let (cluster, rail) = (&links.cluster, links.rails.as_ref().map(|rails| &rails.sums));
        let values = Arc::new(cluster.peers().share(len.next_multiple_of(4), 0)?);
        let sum = |part, numbers| match sharded {
            true => ClusterSum::by_slices(cluster, rail, &values, part, numbers),
            false => ClusterSum::of_part(cluster, rail, &values, part, numbers),
        };
        let separate = sharded && rail.is_some();
        let sums = Box::new(GradientSums {
            top: sum(interaction..len, 0)?.named("the sum of the top MLP's gradients"),
            interaction: (interaction > bottom)
                .then(|| sum(bottom..interaction, 0))
                .transpose()?
                .map(|sum| sum.named("the sum of the interaction's gradients")),
            bottom: sum(0..bottom, if separate { 0 } else { numbers })?
                .named("the sum of the bottom MLP's gradients"),
            tallies: separate
                .then(|| ClusterSum::new(cluster, rail, 0, numbers))
                .transpose()?
                .map(|sum| sum.named("the sum of the ranks' findings")),
            sharded,
        });
        links.warm_up(&sums.all().collect::<Vec<_>>())?;
        Ok(Self::AllReduced { values, sums })
    }

    /// Returns their all-reduces, if there are several ranks.
    pub(super) fn sums(&self) -> Option<&GradientSums> {
        match self {
            Self::Local(_) => None,
            Self::AllReduced { sums, .. } => Some(sums),
        }
    }

    /// Returns what this rank sends in each step for their sums, and for the parameters if their update is sharded.
    pub(super) fn traffic(&self) -> Traffic {
        let link = |bytes_of: fn(&ClusterSum) -> u64| {
            let sums = self.sums().into_iter().flat_map(GradientSums::all);
            LinkTraffic { bytes: sums.map(bytes_of).sum(), ..LinkTraffic::default() }
        };
        Traffic {
            within_nodes: link(|sum| sum.of_node().bytes_sent()),
            between_nodes: link(ClusterSum::bytes_between_nodes),
        }
    }

    /// Returns an error if a rank has timed out waiting for another, as far as known now.
    pub(super) fn check_now(&self) -> Result<()> {
        if let Some(sums) = self.sums() {
            sums.all().try_for_each(ClusterSum::check_now)?;
        }
        Ok(())
    }
}

impl Deref for Gradients {
    type Target = Buffer<f32>;

    fn deref(&self) -> &Buffer<f32> {
        match self {
            Self::Local(buffer) => buffer,
            Self::AllReduced { values, .. } => values,
        }
    }
}
