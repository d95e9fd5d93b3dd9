//! The dense parameters, their gradients and their optimizer's state, as [`Layers`] lays them out.

use std::sync::Arc;

use rankine_cuda::kernels::{DenseUpdate, Element, ElementKind, Guard, Rate, Rule, Squares};
use rankine_cuda::{Buffer, Device, Lane, Peers, Pointer};
use rankine_embedding::cuda::Result;
use rankine_embedding::{Optimizer, UpdateRule};

use super::super::together::Gradients;
use super::layers::Layers;

/// Parts that the sum of the gradients' squares is taken in: the same on any GPU.
const SQUARES_PARTS: u32 = 1024;

/// Dense parameters on a GPU.
#[derive(Debug)]
pub(super) struct Dense<T> {
    pub(super) layers: Layers,
    pub(super) parameters: Buffer<f32>,
    pub(super) gradients: Gradients,
    /// The parameters in the elements of activations, where those are not the parameters' own.
    copies: Option<Buffer<T>>,
    /// The first numbers of all parameters, then the second ones, as far as the rule keeps any.
    state: Buffer<f32>,
    rule: Rule,
    /// The same, as it begins.
    kept: UpdateRule,
    pub(super) squares: Buffer<f64>,
}

impl<T: Element> Dense<T> {
    /// Parameters of the model, and the state that learning starts with.
    pub(super) fn new(
        device: &Arc<Device>,
        (peers, heads): (Option<&Peers>, usize),
        layers: Layers,
        parameters: &[f32],
        optimizer: &Optimizer,
    ) -> Result<Self> {
        let _parameters = device.purpose("dense parameters");
        let filled = layers.fill_up(parameters);
        let copies = (T::KIND != ElementKind::F32)
            .then(|| filled.iter().map(|&value| T::of(value)).collect::<Vec<_>>());
        let mut state = vec![0.0; optimizer.rule.state_elements(filled.len())];
        optimizer.rule.initialize(&filled, &mut state);
        Ok(Self {
            parameters: Buffer::of(device, &filled)?,
            gradients: Gradients::new(device, peers, layers.parts(), heads)?,
            copies: copies.map(|copies| Buffer::of(device, &copies)).transpose()?,
            state: Buffer::of(device, &state)?,
            rule: optimizer.into(),
            kept: optimizer.rule,
            squares: Buffer::filled(device, SQUARES_PARTS as usize, 0xff)?,
            layers,
        })
    }

    /// The model's parameters, and what is kept of them: of each kind one number a parameter; once the lane has done all
    /// that was enqueued on it.
    pub(super) fn read(&self, lane: &Lane) -> Result<(Vec<f32>, Vec<Vec<f32>>)> {
        let (parameters, state) = (self.parameters.read(lane)?, self.state.read(lane)?);
        let kinds = state.chunks_exact(parameters.len()).map(|kind| self.layers.cut_out(kind));
        Ok((self.layers.cut_out(&parameters), kinds.collect()))
    }

    /// Sets them, as [`Dense::read`] has them. What fills them up is as it begins.
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
        self.parameters.write(lane, &filled)?;
        self.state.write(lane, &state)?;
        if let Some(copies) = &self.copies {
            copies.write(lane, &filled.iter().map(|&value| T::of(value)).collect::<Vec<_>>())?;
        }
        Ok(())
    }

    /// The parameters in the elements of activations.
    pub(super) fn weights(&self) -> Pointer<T> {
        self.copies.as_ref().map_or(self.parameters.pointer().cast(), Buffer::pointer)
    }

    /// Enqueues summing the gradients' squares, in parts.
    ///
    /// # Safety
    /// All gradients must be there; see [`Lane::launch`].
    pub(super) unsafe fn square(&self, lane: &Lane) -> Result<()> {
        let squares = Squares {
            gradients: self.gradients.pointer(),
            parts: self.squares.pointer(),
            count: self.gradients.len() as u32,
            reserved: 0,
        };
        // SAFETY: there are as many parts as blocks; the caller vouches for the order.
        unsafe { lane.launch(&squares, (SQUARES_PARTS, 1)) }?;
        Ok(())
    }

    /// Enqueues the update of the parameters, as the guard allows it.
    ///
    /// # Safety
    /// The guard must have its verdict; see [`Lane::launch`].
    pub(super) unsafe fn update(
        &self,
        lane: &Lane,
        rate: Pointer<Rate>,
        guard: Pointer<Guard>,
        blocks: (u32, u32),
    ) -> Result<()> {
        let (state, count) = (self.state.pointer(), self.parameters.len());
        let kept = |number: usize| {
            if self.state.len() > number * count { state.element(number * count) } else { Pointer::NULL }
        };
        let update = DenseUpdate {
            parameters: self.parameters.pointer(),
            gradients: self.gradients.pointer(),
            first: kept(0),
            second: kept(1),
            copies: self.copies.as_ref().map_or(Pointer::NULL, Buffer::pointer),
            rate,
            scale: guard.dense_scale(),
            stop: guard.stop(),
            rule: self.rule,
            count: count as u32,
            reserved: 0,
        };
        // SAFETY: the addresses are of this value's buffers, with as many elements; the caller vouches for the rest.
        unsafe { lane.launch(&update, blocks) }?;
        Ok(())
    }
}
