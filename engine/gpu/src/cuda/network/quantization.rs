//! Tensors in fp8, and the scales of their values.
//!
//! Weights are rounded once per step, after their update. Every tensor has its own scale, which follows from its
//! largest magnitudes in the last steps; all scalings are stored in one array.

use std::sync::Arc;

use half::bf16;
use rankine_cuda::blas::{Fp8Matrix, Fp8Tensor, Matrix};
use rankine_cuda::kernels::{
    FP8_MULTIPLE, Fp8Check, Fp8Quantize, Fp8QuantizeWeights, Fp8RankMagnitudes, Fp8Rescale, Fp8Scaling,
    Fp8Tell, Fp8Vectors, Fp8Weights, Guard,
};
use rankine_cuda::{Buffer, Device, E4m3, Lane, Pointer};
use rankine_embedding::cuda::Result;
use rankine_model::Layer;

use super::layers::Layers;
use super::rows::NetworkRows;

/// Expected magnitudes before the first step. Nothing is known about activations: their scale is 1. Gradients of a
/// mean over a batch are of the order of one sample's share of it; their scale is 16 times the batch size, or somewhat
/// less.
pub(super) const ACTIVATIONS_AT_FIRST: f32 = 224.0;
pub(super) const GRADIENTS_AT_FIRST: f32 = 14.0;

/// Whether layers can be in fp8, given their sizes.
pub(super) fn takes(layers: &[Layer]) -> bool {
    let mut sizes = layers.iter().flat_map(|layer| [layer.inputs, layer.outputs]);
    sizes.all(|size| size.is_multiple_of(FP8_MULTIPLE))
}

/// Returns the most tensors of a network in fp8: for each layer its input, its weights, and the gradients with respect
/// to its input and output.
pub(super) fn tensors_max(layers: &Layers) -> usize {
    4 * (layers.hidden.len() + layers.cross.iter().map(Vec::len).sum::<usize>() + 1)
}

/// The scalings of all tensors, and the sources of the rounded weights.
#[derive(Debug)]
pub(super) struct Fp8 {
    scalings: Buffer<Fp8Scaling>,
    /// The buffers in which several ranks agree on the largest magnitudes.
    of_ranks: Option<Fp8RankMagnitudes>,
    weights: Buffer<Fp8Weights>,
    weights_grid: (u32, u32),
}

impl Fp8 {
    /// Returns how each tensor's values are converted to fp8.
    pub(in crate::cuda) fn scalings(&self) -> &Buffer<Fp8Scaling> {
        &self.scalings
    }

    pub(super) fn scaling(&self, number: usize) -> Pointer<Fp8Scaling> {
        self.scalings.pointer().element(number)
    }

    /// Enqueues adding the largest magnitudes of a step to the all-reduce; nothing with one rank.
    ///
    /// # Safety
    /// All of the step's tensors must be complete; see [`Lane::launch`].
    pub(super) unsafe fn add_largest(&self, lane: &Lane, guard: Pointer<Guard>) -> Result<()> {
        if let Some(of_ranks) = self.of_ranks {
            let (scalings, count) = (self.scalings.pointer(), self.scalings.len());
            let tell = Fp8Tell::over_ranks(scalings, count, guard, of_ranks);
            // SAFETY: there are as many numbers as tensors of all ranks, see `Fp8Builder::finish`.
            unsafe { lane.launch(&tell, (1, 1)) }?;
        }
        Ok(())
    }

    /// Enqueues reporting non-finite values to the guard, before a step's verdict; with several ranks, after their
    /// all-reduce.
    ///
    /// # Safety
    /// As for [`Fp8::add_largest`].
    pub(super) unsafe fn check(&self, lane: &Lane, guard: Pointer<Guard>) -> Result<()> {
        let (scalings, count) = (self.scalings.pointer(), self.scalings.len());
        let check = match self.of_ranks {
            Some(of_ranks) => Fp8Check::over_ranks(scalings, count, guard, of_ranks),
            None => Fp8Check::new(scalings, count, guard),
        };
        // SAFETY: the addresses are of this value's buffer, and of the caller's guard.
        unsafe { lane.launch(&check, (1, 1)) }?;
        Ok(())
    }

    /// Enqueues what follows the update of the parameters: computing the scales for the next step, and rounding the
    /// weights.
    ///
    /// # Safety
    /// The guard must have its verdict; see [`Lane::launch`].
    pub(super) unsafe fn update(&self, lane: &Lane, guard: Pointer<Guard>) -> Result<()> {
        let rescale = Fp8Rescale::new(self.scalings.pointer(), self.scalings.len(), guard);
        // SAFETY: as for `check`.
        unsafe {
            lane.launch(&rescale, (1, 1))?;
            self.quantize_weights(lane)
        }
    }

    /// Rounds the initial weights to fp8, and waits until this is done.
    pub(super) fn quantize_first_weights(&self, device: &Arc<Device>) -> Result<()> {
        let lane = Lane::new(device)?;
        // SAFETY: the parameters are complete, and the lane is waited for.
        unsafe { self.quantize_weights(&lane) }?;
        Ok(lane.synchronize()?)
    }

    /// Enqueues rounding the weights to fp8, in the layouts that products read.
    ///
    /// # Safety
    /// See [`Lane::launch`].
    pub(super) unsafe fn quantize_weights(&self, lane: &Lane) -> Result<()> {
        let weights = Fp8QuantizeWeights { layers: self.weights.pointer() };
        // SAFETY: the layers' addresses are of the parameters that this was made for and of buffers that live as long.
        unsafe { lane.launch(&weights, self.weights_grid) }?;
        Ok(())
    }
}

/// Collects the tensors in fp8 while a network is created.
#[derive(Debug)]
pub(super) struct Fp8Builder {
    pub(super) device: Arc<Device>,
    pub(super) rows: NetworkRows,
    /// Parameters of all layers, on the host and on the GPU.
    parameters: Vec<f32>,
    parameters_at: Pointer<f32>,
    ranks: usize,
    scalings: Vec<Fp8Scaling>,
    /// Weights with the numbers of their scalings.
    weights: Vec<(Fp8Weights, usize)>,
}

impl Fp8Builder {
    pub(super) fn new(
        (device, rows): (&Arc<Device>, NetworkRows),
        parameters: Vec<f32>,
        parameters_at: Pointer<f32>,
        ranks: usize,
    ) -> Self {
        Self {
            device: Arc::clone(device),
            rows,
            parameters,
            parameters_at,
            ranks,
            scalings: Vec::new(),
            weights: Vec::new(),
        }
    }

    /// Returns the number of a new scaling for values with magnitudes up to `expected`.
    pub(super) fn scaling(&mut self, expected: f32) -> usize {
        self.scalings.push(Fp8Scaling::expecting(expected));
        self.scalings.len() - 1
    }

    pub(super) fn activations(&mut self, columns: usize) -> Result<Fp8Buffers> {
        let scaling = self.scaling(ACTIVATIONS_AT_FIRST);
        Fp8Buffers::new(&self.device, self.rows, columns, scaling)
    }

    pub(super) fn gradients(&mut self, columns: usize) -> Result<Fp8Buffers> {
        let samples = self.rows.trained;
        let scaling = self.scaling(GRADIENTS_AT_FIRST / (samples * self.ranks) as f32);
        Fp8Buffers::new(&self.device, NetworkRows { trained: samples, scored: 0 }, columns, scaling)
    }

    pub(super) fn weights(&mut self, layer: &Layer) -> Result<Fp8Buffers> {
        let weights = &self.parameters[layer.offset..][..layer.inputs * layer.outputs];
        let largest = weights.iter().fold(0.0, |largest: f32, weight| largest.max(weight.abs()));
        let scaling = self.scaling(if largest > 0.0 { largest } else { 1.0 });
        let rows = NetworkRows { trained: layer.outputs, scored: 0 };
        let buffers = Fp8Buffers::new(&self.device, rows, layer.inputs, scaling)?;
        let weights = Fp8Weights {
            values: self.parameters_at.element(layer.offset),
            rows: buffers.rows.pointer(),
            turned: buffers.turned.pointer(),
            scaling: Pointer::NULL,
            outputs: layer.outputs as u32,
            inputs: layer.inputs as u32,
        };
        self.weights.push((weights, scaling));
        Ok(buffers)
    }

    /// Returns the shared resources; with several ranks the all-reduce must have numbers for `tensors_max` tensors.
    pub(super) fn finish(self, of_ranks: Option<Fp8RankMagnitudes>, tensors_max: usize) -> Result<Fp8> {
        assert!(self.scalings.len() <= tensors_max, "{} tensors of {tensors_max}", self.scalings.len());
        let scalings = Buffer::of(&self.device, &self.scalings)?;
        let placed =
            |(weights, number)| Fp8Weights { scaling: scalings.pointer().element(number), ..weights };
        let weights: Vec<_> = self.weights.into_iter().map(placed).collect();
        Ok(Fp8 {
            weights_grid: Fp8QuantizeWeights::grid(&weights),
            weights: Buffer::of(&self.device, &weights)?,
            scalings,
            of_ranks,
        })
    }
}

/// Buffers of a tensor, row by row and transposed. Only what is learned from is read transposed.
#[derive(Debug)]
pub(super) struct Fp8Buffers {
    rows: Buffer<E4m3>,
    turned: Buffer<E4m3>,
    columns: usize,
    turned_stride: usize,
    /// The number of its scaling.
    scaling: usize,
}

impl Fp8Buffers {
    /// Allocates zeros.
    pub(super) fn new(
        device: &Arc<Device>,
        rows: NetworkRows,
        columns: usize,
        scaling: usize,
    ) -> Result<Self> {
        let turned_stride = rows.trained.next_multiple_of(FP8_MULTIPLE);
        Ok(Self {
            rows: Buffer::filled(device, rows.values() * columns, 0)?,
            turned: Buffer::filled(device, turned_stride * columns, 0)?,
            columns,
            turned_stride,
            scaling,
        })
    }

    /// Returns the number of its columns.
    pub(super) fn columns(&self) -> usize {
        self.columns
    }

    /// Returns the first rows.
    pub(super) fn tensor(&self, fp8: &Fp8, rows: usize) -> Fp8Tensor {
        Fp8Tensor {
            rows: Matrix::contiguous(self.rows.pointer(), rows, self.columns),
            turned: Matrix::contiguous(self.turned.pointer(), self.columns, self.turned_stride),
            scaling: fp8.scaling(self.scaling),
        }
    }

    /// Returns all rows, for weights.
    pub(super) fn weights(&self, fp8: &Fp8) -> Fp8Tensor {
        self.tensor(fp8, self.rows.len() / self.columns)
    }

    /// Returns where look-ups write vectors.
    pub(super) fn vectors(&self, fp8: &Fp8, learns: bool) -> Fp8Vectors {
        Fp8Vectors {
            rows: self.rows.pointer(),
            turned: self.turned.pointer(),
            scaling: fp8.scaling(self.scaling),
            stride: self.columns as u32,
            turned_stride: self.turned_stride as u32,
            learns,
        }
    }

    /// Returns the kernel that rounds the first columns of samples to fp8: all of them, or some.
    pub(super) fn quantize(&self, fp8: &Fp8, from: Matrix<bf16>, learns: bool) -> Fp8Quantize {
        Fp8Quantize {
            values: from.pointer,
            rows: self.rows.pointer(),
            turned: self.turned.pointer(),
            scaling: fp8.scaling(self.scaling),
            samples: from.rows as u32,
            columns: from.columns as u32,
            stride: from.stride as u32,
            turned_stride: self.turned_stride as u32,
            learns: u32::from(learns),
            rows_stride: self.columns as u32,
        }
    }
}

/// The buffer of a tensor that is never read transposed.
#[derive(Debug)]
pub(super) struct Fp8RowBuffer {
    numbers: Buffer<E4m3>,
    columns: usize,
    /// The number of its scaling.
    scaling: usize,
}

impl Fp8RowBuffer {
    /// Allocates zeros.
    pub(super) fn new(device: &Arc<Device>, rows: usize, columns: usize, scaling: usize) -> Result<Self> {
        Ok(Self { numbers: Buffer::filled(device, rows * columns, 0)?, columns, scaling })
    }

    /// Returns the first rows.
    pub(super) fn matrix(&self, fp8: &Fp8, rows: usize) -> Fp8Matrix {
        let numbers = Matrix::contiguous(self.numbers.pointer(), rows, self.columns);
        Fp8Matrix { numbers, scaling: fp8.scaling(self.scaling) }
    }
}
