//! The dense parameters, their gradients and their optimizer's state, as [`Layers`] lays them out.
//!
//! Over ranks each has all parameters. They learn alike everywhere, or each rank has the state of its slices, updates
//! these, and hands them to the others: either way with the same bits.

use std::iter;
use std::ops::{Deref, Range};
use std::sync::Arc;

use rankine_cuda::kernels::{DenseInput, DenseUpdate, Element, ElementKind, Guard, Rate, Rule};
use rankine_cuda::{Buffer, Device, Lane, Pointer, Shared};
use rankine_embedding::cuda::Result;
use rankine_embedding::{Optimizer, UpdateRule};

use super::super::together::{Gradients, RankLinks};
use super::layers::Layers;
use super::squares::Squares;
use crate::checkpoint::DenseState;

/// Dense parameters on a GPU.
#[derive(Debug)]
pub(super) struct Dense<T> {
    pub(super) layers: Layers,
    pub(super) parameters: Parameters,
    pub(super) gradients: Gradients,
    pub(super) squares: Squares,
    /// The parameters in the elements of activations, where those are not the parameters' own.
    copies: Option<Buffer<T>>,
    /// The parameters that are updated here.
    own: Vec<Range<usize>>,
    /// The first numbers of all of these, then the second ones, as far as the rule keeps any.
    state: Buffer<f32>,
    rule: Rule,
    /// The same, as it begins.
    kept: UpdateRule,
}

/// The parameters' memory.
#[derive(Debug)]
pub(super) enum Parameters {
    Own(Buffer<f32>),
    /// Others write their slices there.
    Sharded(Shared<f32>),
}

impl Deref for Parameters {
    type Target = Buffer<f32>;

    fn deref(&self) -> &Buffer<f32> {
        match self {
            Self::Own(buffer) => buffer,
            Self::Sharded(shared) => shared,
        }
    }
}

impl<T: Element> Dense<T> {
    /// Parameters of the model, and the state that learning starts with; so many numbers are added up with the
    /// gradients. With other ranks this is a collective call.
    pub(super) fn new(
        device: &Arc<Device>,
        (links, numbers, sharded): (Option<&RankLinks>, usize, bool),
        layers: Layers,
        parameters: &[f32],
        optimizer: &Optimizer,
    ) -> Result<Self> {
        let _parameters = device.purpose("dense parameters");
        let filled = layers.fill_up(parameters);
        let copies = (T::KIND != ElementKind::F32)
            .then(|| filled.iter().map(|&value| T::of(value)).collect::<Vec<_>>());
        let gradients = Gradients::new(device, links, layers.parts(), numbers, sharded)?;
        let peers = links.map(|links| links.cluster.peers());
        let sharded = peers.zip(gradients.sums().filter(|sums| sums.are_sharded()));
        let own: Vec<_> = match sharded {
            Some((peers, sums)) => sums.parts().map(|part| part.slice_of(peers.rank())).collect(),
            None => iter::once(0..filled.len()).collect(),
        };
        let learns: Vec<_> = own.iter().cloned().flat_map(|range| filled[range].to_vec()).collect();
        let mut state = vec![0.0; optimizer.rule.state_elements(learns.len())];
        optimizer.rule.initialize(&learns, &mut state);
        let parameters = match sharded {
            None => Parameters::Own(Buffer::of(device, &filled)?),
            Some((peers, _)) => {
                // As many as there are gradients.
                let shared = peers.share(gradients.len(), 0)?;
                let mut with_zeros = filled;
                with_zeros.resize(gradients.len(), 0.0);
                shared.write(&Lane::new(device)?, &with_zeros)?;
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
            kept: optimizer.rule,
            layers,
        })
    }

    /// Whether each rank has the state of its slices alone.
    pub(super) fn is_sharded(&self) -> bool {
        matches!(self.parameters, Parameters::Sharded(_))
    }

    /// The model's parameters that are updated here, with what is kept of them, once the lane has done all that was
    /// enqueued on it: all as one, or those of each slice.
    pub(super) fn read(&self, lane: &Lane) -> Result<Vec<DenseState>> {
        let (parameters, state) = (self.parameters.read(lane)?, self.state.read(lane)?);
        // Counted from 1; what fills them up has number 0.
        let numbers = self.layers.fill_up(&(1..=self.layers.parameters()).collect::<Vec<_>>());
        let learns: usize = self.own.iter().map(Range::len).sum();
        let (mut held, mut before) = (Vec::new(), 0);
        for range in &self.own {
            let ours: Vec<_> = range.clone().filter(|&place| numbers[place] > 0).collect();
            let begin = before;
            before += range.len();
            let Some(&first) = ours.first() else { continue };
            let of =
                |numbers: &[f32], begin: usize| ours.iter().map(|place| numbers[place - begin]).collect();
            let kinds = state.chunks_exact(learns);
            held.push(DenseState {
                first: numbers[first] - 1,
                parameters: of(&parameters, 0),
                state: kinds.map(|kind| of(&kind[begin..before], range.start)).collect(),
            });
        }
        Ok(held)
    }

    /// Sets the model's parameters, and of each kind of state one number a parameter. What fills them up is as it
    /// begins. Of the state this takes what is updated here.
    pub(super) fn write(&self, lane: &Lane, parameters: &[f32], kinds: &[Vec<f32>]) -> Result<()> {
        let layers = &self.layers;
        let (filled, ours) = (layers.fill_up(parameters), layers.fill_up(&vec![1.0; parameters.len()]));
        let mut state = vec![0.0; self.kept.state_elements(filled.len())];
        self.kept.initialize(&filled, &mut state);
        for (own, kind) in state.chunks_exact_mut(filled.len()).zip(kinds) {
            for ((own, value), &ours) in own.iter_mut().zip(layers.fill_up(kind)).zip(&ours) {
                *own = if ours == 0.0 { *own } else { value };
            }
        }
        let learnt = state.chunks_exact(filled.len());
        let learnt =
            learnt.flat_map(|kind| self.own.iter().flat_map(move |range| kind[range.clone()].to_vec()));
        self.state.write(lane, &learnt.collect::<Vec<_>>())?;
        if let Some(copies) = &self.copies {
            copies.write(lane, &filled.iter().map(|&value| T::of(value)).collect::<Vec<_>>())?;
        }
        let mut with_zeros = filled;
        with_zeros.resize(self.parameters.len(), 0.0);
        self.parameters.write(lane, &with_zeros)?;
        Ok(())
    }

    /// The parameters in the elements of activations.
    pub(super) fn weights(&self) -> Pointer<T> {
        self.copies.as_ref().map_or(self.parameters.pointer().cast(), Buffer::pointer)
    }

    /// Enqueues the update of the parameters, as the guard allows it.
    ///
    /// # Safety
    /// The guard must have its verdict, which is the same at all ranks; see [`Lane::launch`].
    pub(super) unsafe fn update(
        &self,
        lane: &Lane,
        rate: Pointer<Rate>,
        guard: Pointer<Guard>,
        blocks: (u32, u32),
    ) -> Result<()> {
        let learns: usize = self.own.iter().map(Range::len).sum();
        let copies = self.copies.as_ref().map_or(Pointer::NULL, Buffer::pointer);
        let sharded = match &self.parameters {
            Parameters::Own(_) => None,
            Parameters::Sharded(parameters) => self.gradients.sums().map(|sums| (sums, parameters)),
        };
        let mut before = 0;
        for range in self.own.iter().filter(|range| !range.is_empty()) {
            let kept = |number: usize| match self.state.len() > number * learns {
                true => self.state.pointer().element(number * learns + before),
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
            // SAFETY: the gradients' sums were scattered; all ranks have come to a verdict, so none reads parameters of
            // this step any more.
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

    /// Tells whether a rank waited in vain for another, as far as is known now.
    pub(super) fn check_now(&self) -> Result<()> {
        self.gradients.check_now()?;
        self.squares.check_now()
    }
}
