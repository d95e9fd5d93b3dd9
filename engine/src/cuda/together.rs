//! What the ranks of a model agree on in each step: the weights of a batch's samples, the loss, whether the step is
//! written, and the dense gradients. All of it is added up in the order of ranks, so that all have the same bits.

use std::ops::Deref;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

#[cfg(doc)]
use rankine_cuda::kernels::Tally;
use rankine_cuda::{AllReduce, Buffer, Device, Lane, Moment, Peers, Pointer, Shared};
use rankine_embedding::cuda::Result;

/// How long the host looks again and again whether a moment has passed, and how long it sleeps between two looks then.
const ATTENTION: Duration = Duration::from_micros(200);
const NAP: Duration = Duration::from_micros(50);

/// A rank among those of a model.
#[derive(Debug)]
pub(super) struct Together {
    peers: Arc<Peers>,
    /// Of each head: what the samples of a batch weigh that have its label.
    weights: AllReduce,
}

impl Together {
    /// A collective call.
    pub(super) fn new(peers: Arc<Peers>, heads: usize) -> Result<Self> {
        let weights = AllReduce::new(&peers, 0, heads)?.named("the sum of the weights of samples");
        Ok(Self { peers, weights })
    }

    pub(super) fn peers(&self) -> &Peers {
        &self.peers
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
        let begun = Instant::now();
        loop {
            let has_passed = moment.has_passed()?;
            if let Err(error) = check() {
                self.peers.giving_up().give_up();
                return Err(error);
            }
            match begun.elapsed() {
                _ if has_passed => return Ok(()),
                waited if waited < ATTENTION => thread::yield_now(),
                _ => thread::sleep(NAP),
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
    pub(super) top: AllReduce,
    /// Where the interaction has parameters.
    pub(super) interaction: Option<AllReduce>,
    /// With what [`Tally`] says of each rank, and more numbers behind it.
    pub(super) bottom: AllReduce,
    /// Whether a rank gets the sums of its slices alone: it updates the parameters in their places for all.
    sharded: bool,
}

impl Sums {
    /// The parts, in the order of the parameters.
    pub(super) fn parts(&self) -> impl Iterator<Item = &AllReduce> {
        [Some(&self.bottom), self.interaction.as_ref(), Some(&self.top)].into_iter().flatten()
    }

    pub(super) fn are_sharded(&self) -> bool {
        self.sharded
    }

    /// Enqueues adding up a part.
    ///
    /// # Safety
    /// As for [`AllReduce::enqueue`]; sharded, [`AllReduce::spread_of`] must follow.
    pub(super) unsafe fn enqueue(&self, part: &AllReduce, lane: &Lane) -> Result<()> {
        // SAFETY: the caller vouches for it.
        unsafe { if self.sharded { part.scatter(lane) } else { part.enqueue(lane) } }?;
        Ok(())
    }
}

impl Gradients {
    /// Zeros, of the bottom MLP up to the first place, of the interaction up to the second, and of the top MLP up to
    /// the third; so many numbers are added up with them. With peers this is a collective call.
    pub(super) fn new(
        device: &Arc<Device>,
        peers: Option<&Peers>,
        [bottom, interaction, len]: [usize; 3],
        numbers: usize,
        sharded: bool,
    ) -> Result<Self> {
        let Some(peers) = peers else { return Ok(Self::Alone(Buffer::filled(device, len, 0)?)) };
        // Sums are taken by vectors of four.
        let values = Arc::new(peers.share(len.next_multiple_of(4), 0)?);
        let sum = |part, numbers| match sharded {
            true => AllReduce::by_slices(peers, &values, part, numbers),
            false => AllReduce::of_part(peers, &values, part, numbers),
        };
        let sums = Box::new(Sums {
            top: sum(interaction..len, 0)?.named("the sum of the top MLP's gradients"),
            interaction: (interaction > bottom)
                .then(|| sum(bottom..interaction, 0))
                .transpose()?
                .map(|sum| sum.named("the sum of the interaction's gradients")),
            bottom: sum(0..bottom, numbers)?.named("the sum of the bottom MLP's gradients"),
            sharded,
        });
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
            sums.parts().try_for_each(AllReduce::check_now)?;
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
