//! The least that the phases of an iteration must move and compute, and the peak rates of a GPU: together they give
//! the shortest possible time of a phase.

use std::sync::Arc;

use half::bf16;
use rankine_cuda::blas::{Algorithms, Blas, Compute, Epilogue, Fp8Tensor, Matrix, Product};
use rankine_cuda::kernels::{Element, Fp8Scaling};
use rankine_cuda::{Buffer, Device, E4m3, Graph, Lane, Moment};
use rankine_embedding::cuda::Result;
use rankine_model::{Layer, Model};

use super::phase::Phase;

/// Rows and columns of the matrices with which the peak rate of products is measured.
const SIDE: usize = 8192;
/// The number of repetitions in a graph for each measurement. Of several graphs, the fastest counts.
const REPETITIONS: usize = 10;
const ROUNDS: usize = 3;

/// The bytes that a phase moves, and its operations.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct PhaseWork {
    /// Bytes read and written; data that stay in a cache until they are read again count once.
    pub bytes: u64,
    /// Multiplications and additions of matrix products.
    pub flops: u64,
    /// Whether the products are in fp8.
    pub fp8: bool,
}

/// The times of an iteration's phases, each run by itself, and the GPU's peak rates.
#[derive(Debug)]
pub(super) struct PhaseTimes {
    /// Each phase with its milliseconds and its work.
    pub phases: Vec<(Phase, f64, PhaseWork)>,
    pub bytes_per_s: f64,
    pub flops_per_s: f64,
    /// For products in fp8, if there are any.
    pub fp8_flops_per_s: Option<f64>,
}

/// The sizes from which the work of a phase follows.
#[derive(Debug)]
pub(super) struct IterationSizes<'a> {
    pub(super) model: &'a Model,
    pub(super) samples: u64,
    /// Bytes of an element of activations.
    pub(super) element_bytes: u64,
    /// Whether hidden layers and cross layers are in fp8.
    pub(super) fp8: bool,
    pub(super) look_ups: u64,
    pub(super) distinct_rows: u64,
    /// The positions of each sequence that attention reads.
    pub(super) positions: Vec<u64>,
    pub(super) ranks: u64,
    /// Whether the interaction looks up rows itself.
    pub(super) interaction_looks_up: bool,
}

impl IterationSizes<'_> {
    /// Returns what a phase must move and compute; nothing if the model has no such phase.
    pub(super) fn work(&self, phase: Phase) -> PhaseWork {
        let Self {
            model: Model { spec, rules },
            samples,
            element_bytes,
            fp8,
            look_ups,
            distinct_rows,
            ranks,
            interaction_looks_up,
            ..
        } = *self;
        let layout = spec.dense_layout();
        let activations = |elements: usize| samples * element_bytes * elements as u64;
        let bytes = |bytes: u64| PhaseWork { bytes, ..PhaseWork::default() };
        let in_fp8 =
            Self { element_bytes: if fp8 { 1 } else { element_bytes }, positions: Vec::new(), ..*self };
        let crossed = !layout.cross.is_empty();
        let interaction = |times| match crossed {
            true => PhaseWork { fp8, ..in_fp8.interaction(times) },
            false => self.interaction(times),
        };
        let (head, hidden) = layout.top.layers.split_last().expect("the top MLP has a layer");
        let (weights, all) = (self.mean_row_bytes(false), self.mean_row_bytes(true));
        let embeddings = activations(spec.vector_elements() - spec.bottom_outputs());
        let keys = self.keys().map(|(_, elements)| element_bytes * elements).sum::<u64>();
        let embeddings = embeddings + keys;
        let rows = 4 * look_ups + distinct_rows * weights;
        match phase {
            Phase::BottomForward => self.forward(&layout.bottom.layers),
            Phase::LookUp if interaction_looks_up => PhaseWork::default(),
            Phase::LookUp => bytes(rows + embeddings),
            // It writes the vectors instead of reading them.
            Phase::Interact if interaction_looks_up => {
                let work = interaction(1);
                PhaseWork { bytes: work.bytes + rows, ..work }
            }
            Phase::Interact => interaction(1),
            Phase::Attend => self.attention(1),
            Phase::AttendBackward => self.attention(3),
            Phase::TopForward => PhaseWork { fp8, ..in_fp8.forward(hidden) },
            Phase::Head => bytes(2 * activations(head.inputs)),
            Phase::TopBackward => PhaseWork { fp8, ..in_fp8.input_gradients(hidden, true) },
            Phase::TopWeights => PhaseWork { fp8, ..in_fp8.weight_gradients(hidden) },
            Phase::InteractBackward => interaction(2),
            Phase::InteractWeights => {
                PhaseWork { fp8: fp8 && crossed, ..in_fp8.weight_gradients(&self.cross_layers()) }
            }
            Phase::BottomBackward => self.input_gradients(&layout.bottom.layers, false),
            Phase::BottomWeights => self.weight_gradients(&layout.bottom.layers),
            Phase::TopBiases => bytes(activations(head.inputs)),
            Phase::OtherBiases => bytes(activations(spec.bottom_outputs())),
            Phase::Reduce | Phase::AllReduceTop | Phase::AllReduceInteraction | Phase::AllReduceBottom
                if ranks == 1 =>
            {
                PhaseWork::default()
            }
            Phase::Reduce => bytes(8 * look_ups + embeddings + distinct_rows * weights),
            // Each rank reads its gradients, and writes the sums.
            Phase::AllReduceTop => bytes(2 * 4 * weights_of(&layout.top.layers)),
            Phase::AllReduceInteraction => {
                bytes(2 * 4 * layout.cross.iter().map(|mlp| weights_of(&mlp.layers)).sum::<u64>())
            }
            Phase::AllReduceBottom => bytes(2 * 4 * weights_of(&layout.bottom.layers).max(1)),
            // If the gradients were already summed by row.
            Phase::UpdateTables if ranks > 1 => bytes(distinct_rows * (weights + 2 * all)),
            Phase::Verdict => bytes(4 * layout.parameters() as u64),
            // Ids, and pairs of a row and a bag.
            Phase::Route => bytes((4 + 8) * look_ups),
            Phase::UpdateTables => bytes(8 * look_ups + embeddings + 2 * distinct_rows * all),
            Phase::UpdateDense => {
                let state = rules.dense.rule.state_elements(1) as u64;
                let copies = if element_bytes < 4 { element_bytes } else { 0 };
                bytes(layout.parameters() as u64 * (4 * (3 + 2 * state) + copies))
            }
        }
    }

    /// Returns the mean bytes of a row over all rows: of its weights, or with its state.
    fn mean_row_bytes(&self, with_state: bool) -> u64 {
        let tables = self.model.all_tables();
        let rows = tables.iter().map(|(table, _)| table.rows).sum::<u64>().max(1);
        let weights = tables.iter().map(|(table, _)| table.rows * table.dim as u64 * 4).sum::<u64>();
        (if with_state { self.model.table_bytes() } else { weights }) / rows
    }

    fn forward(&self, layers: &[Layer]) -> PhaseWork {
        sum(layers.iter().map(|layer| self.layer(layer, self.element_bytes)))
    }

    /// The gradients with respect to inputs, except those of the first layer if nothing needs them.
    fn input_gradients(&self, layers: &[Layer], to_input: bool) -> PhaseWork {
        let needed = layers.iter().skip(usize::from(!to_input));
        sum(needed.map(|layer| self.layer(layer, self.element_bytes)))
    }

    /// The gradients with respect to weights.
    fn weight_gradients(&self, layers: &[Layer]) -> PhaseWork {
        sum(layers.iter().map(|layer| self.layer(layer, 4)))
    }

    /// A product with a layer's matrix, or one that gives its weight gradients; `bytes` are the bytes per element of
    /// the matrix.
    fn layer(&self, layer: &Layer, bytes: u64) -> PhaseWork {
        let weights = (layer.inputs * layer.outputs) as u64;
        let elements = (layer.inputs + layer.outputs) as u64;
        PhaseWork {
            bytes: self.samples * self.element_bytes * elements + weights * bytes,
            flops: 2 * self.samples * weights,
            fp8: false,
        }
    }

    /// Returns the number and the elements of the keys of each sequence.
    fn keys(&self) -> impl Iterator<Item = (usize, u64)> {
        let spec = &self.model.spec;
        let elements = |attention| spec.key_elements(attention) as u64;
        let keys = spec.attention.iter().zip(&self.positions);
        keys.map(move |(attention, positions)| positions * elements(attention)).enumerate()
    }

    /// The forward pass of attention reads the keys, and multiplies each by the first layer's matrix of its sample and
    /// by the other layers; the backward pass does this again and takes twice as many products for the gradients, which
    /// it writes.
    fn attention(&self, times: u64) -> PhaseWork {
        let layout = self.model.spec.dense_layout();
        let of_sequence = |(number, elements): (usize, u64)| {
            let layers = &layout.attention[number].layers;
            let first = layers.first().map_or(0, |first| first.outputs as u64);
            let others: u64 = layers.iter().skip(1).map(|layer| (layer.inputs * layer.outputs) as u64).sum();
            // The vectors of positions are added to keys in memory, and their gradients are summed from there.
            let of_positions = match (layout.positions[number], times) {
                (None, _) => 0,
                (Some(_), 1) => 2,
                (Some(_), _) => 1,
            };
            let bytes = elements * self.element_bytes * (of_positions + if times > 1 { 2 } else { 1 });
            let flops = 2 * times * (elements * first + self.positions[number] * others);
            PhaseWork { bytes, flops, fp8: false }
        };
        sum(self.keys().map(of_sequence))
    }

    /// Returns the layers of the interaction.
    fn cross_layers(&self) -> Vec<Layer> {
        self.model.spec.dense_layout().cross.into_iter().flat_map(|mlp| mlp.layers).collect()
    }

    /// The interaction's forward pass reads the vectors once, the backward pass twice. Weight gradients are counted
    /// elsewhere.
    fn interaction(&self, times: u64) -> PhaseWork {
        let Self { model: Model { spec, .. }, samples, element_bytes, .. } = *self;
        let own = spec.interaction.work(spec.vector_sizes(), times as usize);
        // In addition to what its products read.
        let products = self.forward(&self.cross_layers());
        PhaseWork {
            bytes: products.bytes + samples * element_bytes * own.elements as u64,
            flops: products.flops + samples * own.flops as u64,
            fp8: false,
        }
    }
}

/// Returns the number of parameters of layers.
fn weights_of(layers: &[Layer]) -> u64 {
    layers.iter().map(|layer| (layer.end() - layer.offset) as u64).sum()
}

fn sum(work: impl Iterator<Item = PhaseWork>) -> PhaseWork {
    work.fold(PhaseWork::default(), |a, b| PhaseWork {
        bytes: a.bytes + b.bytes,
        flops: a.flops + b.flops,
        ..a
    })
}

/// Returns how long some work takes on the GPU, in milliseconds, as the least of several measurements: `enqueue` is
/// captured in a graph several times, so that the host does not matter.
pub(super) fn time(lane: &Lane, enqueue: impl Fn() -> Result<()>) -> Result<f64> {
    let device = lane.device();
    let mut graph = Graph::capture(lane, || (0..REPETITIONS).try_for_each(|_| enqueue()))?;
    let (begin, end) = (Moment::new(device)?, Moment::new(device)?);
    let mut least = f64::INFINITY;
    for round in 0..=ROUNDS {
        lane.record(&begin)?;
        // SAFETY: callers' buffers live until this returns.
        unsafe { graph.replay(lane) }?;
        lane.record(&end)?;
        lane.synchronize()?;
        if round > 0 {
            least = least.min(end.ms_since(&begin)? / REPETITIONS as f64);
        }
    }
    Ok(least)
}

/// Returns the bytes per second that a memory copy reads and writes, and the operations per second of a large product
/// of random numbers.
pub(super) fn ceilings<T: Element>(
    device: &Arc<Device>,
    lane: &Lane,
    compute: Compute,
) -> Result<(f64, f64)> {
    let blas = Blas::new(device, Algorithms::Known)?;
    let from = Buffer::of(device, &random_numbers().map(T::of).collect::<Vec<_>>())?;
    let to = Buffer::<T>::uninitialized(device, SIDE * SIDE)?;
    let matrix =
        |buffer: &Buffer<T>| Matrix { pointer: buffer.pointer(), rows: SIDE, columns: SIDE, stride: SIDE };
    let (x, out) = (matrix(&from), matrix(&to));
    let product = Product::by_transposed(&blas, compute, x, x, out, Epilogue::None)?;
    // Once without a graph, so that the library loads what it needs.
    // SAFETY: both buffers have these many elements, and live until the lane has been waited for.
    unsafe { product.enqueue(&blas, lane) }?;
    lane.synchronize()?;
    // SAFETY: as above.
    let copy = time(lane, || Ok(unsafe { lane.copy(from.pointer(), to.pointer(), SIDE * SIDE) }?))?;
    // SAFETY: as above.
    let product = time(lane, || Ok(unsafe { product.enqueue(&blas, lane) }?))?;
    let bytes = 2.0 * (SIDE * SIDE * size_of::<T>()) as f64;
    Ok((bytes / copy * 1e3, 2.0 * (SIDE as f64).powi(3) / product * 1e3))
}

/// Returns the operations per second of the same product in fp8.
pub(super) fn fp8_ceiling(device: &Arc<Device>, lane: &Lane) -> Result<f64> {
    let blas = Blas::new(device, Algorithms::Known)?;
    let scaling = Buffer::of(device, &[Fp8Scaling::expecting(1.0)])?;
    let from =
        Buffer::of(device, &random_numbers().map(|number| E4m3::of(128.0 * number)).collect::<Vec<_>>())?;
    let to = Buffer::<bf16>::uninitialized(device, SIDE * SIDE)?;
    let rows = Matrix { pointer: from.pointer(), rows: SIDE, columns: SIDE, stride: SIDE };
    let x = Fp8Tensor { rows, turned: rows, scaling: scaling.pointer() };
    let out = Matrix { pointer: to.pointer(), rows: SIDE, columns: SIDE, stride: SIDE };
    let product = Product::fp8_square(&blas, x, out)?;
    // SAFETY: as for `ceilings`.
    unsafe { product.enqueue(&blas, lane) }?;
    lane.synchronize()?;
    // SAFETY: as above.
    let product = time(lane, || Ok(unsafe { product.enqueue(&blas, lane) }?))?;
    Ok(2.0 * (SIDE as f64).powi(3) / product * 1e3)
}

/// Random numbers from -1 to 1 for a whole matrix.
fn random_numbers() -> impl Iterator<Item = f32> {
    let mut state = 1u32;
    (0..SIDE * SIDE).map(move |_| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 23) as f32 - 1.0
    })
}
