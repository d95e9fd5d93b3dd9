//! What the ranks of a model agree on in each step: the weights of a batch's samples, the loss, whether the step is
//! written, and the dense gradients. All of it is added up in the order of ranks, so that all have the same bits.

use std::ops::Deref;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

#[cfg(doc)]
use rankine_cuda::kernels::Tally;
use rankine_cuda::{AllReduce, Buffer, Cluster, ClusterSum, Device, Lane, Moment, Pointer, Rail, Shared};
use rankine_embedding::cuda::Result;

/// How long the host looks again and again whether a moment has passed, and how long it sleeps between two looks then.
const ATTENTION: Duration = Duration::from_micros(200);
const NAP: Duration = Duration::from_micros(50);

/// A rank's membership among those of a model, on one node or several.
#[derive(Debug, Clone)]
pub(super) struct Member {
    pub(super) cluster: Arc<Cluster>,
    /// Where there are several nodes.
    pub(super) rails: Option<Rails>,
}

/// A rank's rails, one for each lane on which nodes do something together.
#[derive(Debug, Clone)]
pub(super) struct Rails {
    pub(super) routes: Rail,
    /// Of rows, and of their gradients.
    pub(super) rows: Rail,
    /// Of sums of dense gradients.
    pub(super) sums: Rail,
}

impl Member {
    /// A collective call.
    pub(super) fn join(cluster: &Arc<Cluster>) -> Result<Self> {
        let [routes, rows, sums] = ["routes", "rows", "dense gradients"].map(|what| cluster.join_rail(what));
        let rails = match (routes?, rows?, sums?) {
            (Some(routes), Some(rows), Some(sums)) => Some(Rails { routes, rows, sums }),
            _ => None,
        };
        Ok(Self { cluster: Arc::clone(cluster), rails })
    }

    fn rails(&self) -> Vec<&Rail> {
        self.rails.iter().flat_map(|Rails { routes, rows, sums }| [routes, rows, sums]).collect()
    }

    /// Takes each of some sums once: what NCCL does first of a kind allocates, and so must not wait for ranks that
    /// allocate.
    fn warm_up(&self, sums: &[&ClusterSum]) -> Result<()> {
        if self.rails.is_none() {
            return Ok(());
        }
        self.cluster.gather(0_u8)?;
        let lane = Lane::new(self.cluster.device())?;
        for sum in sums {
            // SAFETY: the sums live, and all ranks' lanes are waited for.
            unsafe { sum.enqueue(&lane) }?;
        }
        let done = Moment::new(self.cluster.device())?;
        lane.record(&done)?;
        Rail::wait_for(&done, &self.rails())?;
        self.cluster.gather(0_u8)?;
        Ok(())
    }
}

/// A rank among those of a model.
#[derive(Debug)]
pub(super) struct Together {
    member: Member,
    /// Of each head: what the samples of a batch weigh that have its label.
    weights: ClusterSum,
}

impl Together {
    /// A collective call.
    pub(super) fn new(member: Member, heads: usize) -> Result<Self> {
        let rail = member.rails.as_ref().map(|rails| &rails.routes);
        let weights = ClusterSum::new(&member.cluster, rail, 0, heads)?;
        let weights = weights.named("the sum of the weights of samples");
        member.warm_up(&[&weights])?;
        Ok(Self { member, weights })
    }

    pub(super) fn member(&self) -> &Member {
        &self.member
    }

    pub(super) fn cluster(&self) -> &Cluster {
        &self.member.cluster
    }

    /// Enqueues adding up, over all ranks, what the samples of a batch weigh here, of each head.
    ///
    /// # Safety
    /// There must be a weight a head in both places; all ranks must enqueue their calls in the same order, and this
    /// value live until the lane has done it; see [`Lane::launch`].
    pub(super) unsafe fn add_weights(
        &self,
        lane: &Lane,
        own: Pointer<f64>,
        of_all: Pointer<f64>,
    ) -> Result<()> {
        let numbers = self.weights.numbers();
        // SAFETY: there is a number a head; the caller vouches for the rest.
        unsafe {
            lane.copy(own, numbers.pointer(), numbers.len())?;
            self.weights.enqueue(lane)?;
            lane.copy(numbers.pointer(), of_all, numbers.len())?;
        }
        Ok(())
    }

    /// Tells whether a rank waited in vain for another, as far as is known now.
    pub(super) fn check_now(&self) -> Result<()> {
        Ok(self.weights.check_now()?)
    }

    /// Waits until a moment has passed behind what ranks do together, or until one of them has waited in vain, as
    /// `check` tells. Then the GPU waits for nobody any more: there is nothing to wait for behind that.
    pub(super) fn wait_for(&self, moment: &Moment, check: impl Fn() -> Result<()>) -> Result<()> {
        let (begun, rails) = (Instant::now(), self.member.rails());
        let giving_up = self.cluster().peers().giving_up();
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
                    // Where a rank is lost no collective of its rail has an end.
                    let checked = Rail::check(&rails, begun, giving_up.is_given_up());
                    checked.inspect_err(|_| giving_up.give_up())?;
                    thread::sleep(NAP);
                }
            }
        }
    }
}

/// The gradients by all dense parameters.
#[derive(Debug)]
pub(super) enum Gradients {
    /// Of the only rank.
    Alone(Buffer<f32>),
    /// Of this rank's samples, and then of those of all ranks.
    Together { values: Arc<Shared<f32>>, sums: Box<Sums> },
}

/// What adds up the gradients of all ranks: each part as soon as it is there on the way back.
#[derive(Debug)]
pub(super) struct Sums {
    pub(super) top: ClusterSum,
    /// Where the interaction has parameters.
    pub(super) interaction: Option<ClusterSum>,
    /// With what [`Tally`] says of each rank, and more numbers behind it, unless these are apart.
    pub(super) bottom: ClusterSum,
    /// Those, where slices stay with their ranks over nodes: then numbers that all know take a way of their own.
    tallies: Option<ClusterSum>,
    /// Whether a rank gets the sums of its slices alone: it updates the parameters in their places for all of its node.
    sharded: bool,
}

impl Sums {
    /// What adds up the parts within a node, in the order of the parameters.
    pub(super) fn parts(&self) -> impl Iterator<Item = &AllReduce> {
        let parts = [Some(&self.bottom), self.interaction.as_ref(), Some(&self.top)];
        parts.into_iter().flatten().map(ClusterSum::of_node)
    }

    pub(super) fn are_sharded(&self) -> bool {
        self.sharded
    }

    /// What [`Tally`] says of each rank, and more numbers behind it.
    pub(super) fn numbers(&self) -> &Buffer<f64> {
        self.tallies.as_ref().unwrap_or(&self.bottom).numbers()
    }

    /// Enqueues adding up a part.
    ///
    /// # Safety
    /// As for [`AllReduce::enqueue`]; sharded, [`AllReduce::spread_of`] must follow.
    pub(super) unsafe fn enqueue(&self, part: &ClusterSum, lane: &Lane) -> Result<()> {
        // SAFETY: the caller vouches for it.
        unsafe { if self.sharded { part.scatter(lane) } else { part.enqueue(lane) } }?;
        Ok(())
    }

    /// Enqueues adding up the bottom MLP's part, and all numbers.
    ///
    /// # Safety
    /// As for [`Sums::enqueue`].
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
    /// Zeros, of the bottom MLP up to the first place, of the interaction up to the second, and of the top MLP up to
    /// the third; so many numbers are added up with them. With other ranks this is a collective call.
    pub(super) fn new(
        device: &Arc<Device>,
        member: Option<&Member>,
        [bottom, interaction, len]: [usize; 3],
        numbers: usize,
        sharded: bool,
    ) -> Result<Self> {
        let Some(member) = member else { return Ok(Self::Alone(Buffer::filled(device, len, 0)?)) };
        // Sums are taken by vectors of four.
        let (cluster, rail) = (&member.cluster, member.rails.as_ref().map(|rails| &rails.sums));
        let values = Arc::new(cluster.peers().share(len.next_multiple_of(4), 0)?);
        let sum = |part, numbers| match sharded {
            true => ClusterSum::by_slices(cluster, rail, &values, part, numbers),
            false => ClusterSum::of_part(cluster, rail, &values, part, numbers),
        };
        let apart = sharded && rail.is_some();
        let sums = Box::new(Sums {
            top: sum(interaction..len, 0)?.named("the sum of the top MLP's gradients"),
            interaction: (interaction > bottom)
                .then(|| sum(bottom..interaction, 0))
                .transpose()?
                .map(|sum| sum.named("the sum of the interaction's gradients")),
            bottom: sum(0..bottom, if apart { 0 } else { numbers })?
                .named("the sum of the bottom MLP's gradients"),
            tallies: apart
                .then(|| ClusterSum::new(cluster, rail, 0, numbers))
                .transpose()?
                .map(|sum| sum.named("the sum of what ranks have come to")),
            sharded,
        });
        member.warm_up(&sums.all().collect::<Vec<_>>())?;
        Ok(Self::Together { values, sums })
    }

    /// What adds them up, where there are several ranks.
    pub(super) fn sums(&self) -> Option<&Sums> {
        match self {
            Self::Alone(_) => None,
            Self::Together { sums, .. } => Some(sums),
        }
    }

    /// Tells whether a rank waited in vain for another, as far as is known now.
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
            Self::Alone(buffer) => buffer,
            Self::Together { values, .. } => values,
        }
    }
}
