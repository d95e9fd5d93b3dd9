//! The dense parameters, their gradients and their optimizer's state, in the layout of [`Layers`].
//!
//! With several ranks, each has all parameters. Either all ranks update all of them, or each rank keeps the optimizer
//! state of its slices, updates these, and sends them to the others; both give the same bits.

use std::iter;
use std::ops::{Deref, Range};

use rankine_checkpoint::DenseState;
use rankine_cuda::kernels::{DenseInput, DenseUpdate, Element, ElementKind, Guard, Rate, Rule};
use rankine_cuda::{Buffer, Lane, Pointer, SharedBuffer};
use rankine_embedding::cuda::Result;
use rankine_embedding::{Optimizer, UpdateRule};

use super::layers::Layers;
use super::squares::Squares;
use crate::cuda::context::RankContext;
use crate::cuda::group::Gradients;

/// Dense parameters on a GPU.
#[derive(Debug)]
pub(super) struct Dense<T> {
    pub(super) layers: Layers,
    pub(super) parameters: Parameters,
    pub(super) gradients: Gradients,
    pub(super) squares: Squares,
    /// The parameters in the element type of activations, if that differs from their own.
    copies: Option<Buffer<T>>,
    /// The parameters that this rank updates.
    own: Vec<Range<usize>>,
    /// The first state values of all of these, then the second ones, as far as the rule keeps any.
    state: Buffer<f32>,
    rule: Rule,
    /// The same rule, from which initial state follows.
    update_rule: UpdateRule,
}

/// The parameters' memory.
#[derive(Debug)]
pub(super) enum Parameters {
    Local(Buffer<f32>),
    /// Other ranks write their slices to it.
    Sharded(SharedBuffer<f32>),
}

impl Deref for Parameters {
    type Target = Buffer<f32>;

    fn deref(&self) -> &Buffer<f32> {
        match self {
            Self::Local(buffer) => buffer,
            Self::Sharded(shared) => shared,
        }
    }
}

impl<T: Element> Dense<T> {
    /// Creates the parameters of the model and the optimizer's initial state; `numbers` numbers are all-reduced with
    /// the gradients. With several ranks this is a collective call.
    pub(super) fn new(
        context: &RankContext,
        layers: Layers,
        parameters: &[f32],
        optimizer: &Optimizer,
        numbers: usize,
        sharded: bool,
    ) -> Result<Self> {
        let RankContext { device, links } = context;
        let _parameters = device.purpose("dense parameters");
        let padded = layers.pad(parameters);
        let copies = (T::KIND != ElementKind::F32)
            .then(|| padded.iter().map(|&value| T::of(value)).collect::<Vec<_>>());
        let gradients = Gradients::new(context, layers.parts(), numbers, sharded)?;
        let peers = links.as_ref().map(|links| links.cluster.peers());
        let sharded = peers.zip(gradients.sums().filter(|sums| sums.are_sharded()));
        let own: Vec<_> = match sharded {
            Some((peers, sums)) => sums.parts().map(|part| part.slice_of(peers.local_rank())).collect(),
            None => iter::once(0..padded.len()).collect(),
        };
        let updated: Vec<_> = own.iter().cloned().flat_map(|range| padded[range].to_vec()).collect();
        let mut state = vec![0.0; optimizer.rule.state_elements(updated.len())];
        optimizer.rule.initialize(&updated, &mut state);
        let parameters = match sharded {
            None => Parameters::Local(Buffer::of(device, &padded)?),
            Some((peers, _)) => {
                // The same length as the gradients.
                let shared = peers.share(gradients.len(), 0)?;
                let mut extended = padded;
                extended.resize(gradients.len(), 0.0);
                shared.write(&Lane::new(device)?, &extended)?;
                Parameters::Sharded(shared)
            }
        };
        Ok(Self {
            parameters,
            squares: Squares::new(device, peers, &gradients)?,
            gradients,
            copies: copies.map(|copies| Buffer::of(device, &copies)).transpose()?,
            own,
            state: Buffer::of(device, &state)?,
            rule: optimizer.into(),
            update_rule: optimizer.rule,
            layers,
        })
    }

    /// Whether each rank keeps only the state of its slices.
    pub(super) fn is_sharded(&self) -> bool {
        matches!(self.parameters, Parameters::Sharded(_))
    }

    /// Returns the model's parameters that this rank updates, with their optimizer state, after the lane has finished
    /// all work enqueued before: all as one part, or one part per slice.
    pub(super) fn read(&self, lane: &Lane) -> Result<Vec<DenseState>> {
        let (parameters, state) = (self.parameters.read(lane)?, self.state.read(lane)?);
        // Counted from 1; padding has number 0.
        let numbers = self.layers.pad(&(1..=self.layers.parameters()).collect::<Vec<_>>());
        let updated: usize = self.own.iter().map(Range::len).sum();
        let (mut held, mut before) = (Vec::new(), 0);
        for range in &self.own {
            let real: Vec<_> = range.clone().filter(|&index| numbers[index] > 0).collect();
            let begin = before;
            before += range.len();
            let Some(&first) = real.first() else { continue };
            let of =
                |numbers: &[f32], begin: usize| real.iter().map(|index| numbers[index - begin]).collect();
            let kinds = state.chunks_exact(updated);
            held.push(DenseState {
                first: numbers[first] - 1,
                parameters: of(&parameters, 0),
                state: kinds.map(|kind| of(&kind[begin..before], range.start)).collect(),
            });
        }
        Ok(held)
    }

    /// Sets the model's parameters, and one number per parameter for each kind of state. Padding gets its initial
    /// state. Of the state only the part that this rank updates is stored.
    pub(super) fn write(&self, lane: &Lane, parameters: &[f32], kinds: &[Vec<f32>]) -> Result<()> {
        let layers = &self.layers;
        let (padded, real) = (layers.pad(parameters), layers.pad(&vec![1.0; parameters.len()]));
        let mut state = vec![0.0; self.update_rule.state_elements(padded.len())];
        self.update_rule.initialize(&padded, &mut state);
        for (own, kind) in state.chunks_exact_mut(padded.len()).zip(kinds) {
            for ((own, value), &real) in own.iter_mut().zip(layers.pad(kind)).zip(&real) {
                *own = if real == 0.0 { *own } else { value };
            }
        }
        let updated = state.chunks_exact(padded.len());
        let updated =
            updated.flat_map(|kind| self.own.iter().flat_map(move |range| kind[range.clone()].to_vec()));
        self.state.write(lane, &updated.collect::<Vec<_>>())?;
        if let Some(copies) = &self.copies {
            copies.write(lane, &padded.iter().map(|&value| T::of(value)).collect::<Vec<_>>())?;
        }
        let mut extended = padded;
        extended.resize(self.parameters.len(), 0.0);
        self.parameters.write(lane, &extended)?;
        Ok(())
    }

    /// Returns the parameters in the element type of activations.
    pub(super) fn weights(&self) -> Pointer<T> {
        self.copies.as_ref().map_or(self.parameters.pointer().cast(), Buffer::pointer)
    }

    /// Enqueues the update of the parameters, if the guard allows it.
    ///
    /// # Safety
    /// The guard must have its verdict, which is the same on all ranks; see [`Lane::launch`].
    pub(super) unsafe fn update(
        &self,
        lane: &Lane,
        rate: Pointer<Rate>,
        guard: Pointer<Guard>,
        blocks: (u32, u32),
    ) -> Result<()> {
        let updated: usize = self.own.iter().map(Range::len).sum();
        let copies = self.copies.as_ref().map_or(Pointer::NULL, Buffer::pointer);
        let sharded = match &self.parameters {
            Parameters::Local(_) => None,
            Parameters::Sharded(parameters) => self.gradients.sums().map(|sums| (sums, parameters)),
        };
        let mut before = 0;
        for range in self.own.iter().filter(|range| !range.is_empty()) {
            let kept = |number: usize| match self.state.len() > number * updated {
                true => self.state.pointer().element(number * updated + before),
                false => Pointer::NULL,
            };
            let update = DenseUpdate {
                parameters: self.parameters.pointer().element(range.start),
                gradients: self.gradients.pointer().element(range.start),
                first: kept(0),
                second: kept(1),
                copies: if sharded.is_some() { Pointer::NULL } else { copies },
                rate,
                scale: guard.dense_scale(),
                stop: guard.stop(),
                rule: self.rule,
                count: range.len() as u32,
                reserved: 0,
            };
            before += range.len();
            // SAFETY: the addresses are of this value's buffers, with as many elements; the caller vouches for the
            // rest.
            unsafe { lane.launch(&update, blocks) }?;
        }
        let Some((sums, parameters)) = sharded else { return Ok(()) };
        for part in sums.parts() {
            // SAFETY: the gradients' sums were scattered. All ranks have reached the verdict, so none reads this
            // step's parameters any more.
            unsafe { part.spread_of(lane, parameters) }?;
        }
        if let Some(copies) = &self.copies {
            let count = copies.len() as u32;
            let round = DenseInput {
                dense: parameters.pointer(),
                output: copies.pointer(),
                samples: 1,
                columns: count,
                filled: count,
                stride: count,
            };
            // SAFETY: there are as many parameters as copies.
            unsafe { lane.launch(&round, blocks) }?;
        }
        Ok(())
    }

    /// Returns an error if a rank has timed out waiting for another, as far as known now.
    pub(super) fn check_now(&self) -> Result<()> {
        self.gradients.check_now()?;
        self.squares.check_now()
    }
}
