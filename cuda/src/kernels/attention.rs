//! `attention.cu` and `attention_tiles.cu`.

use bytemuck::{Pod, Zeroable};

use super::limits::SHARED_BYTES_MAX;
use super::names::Family;
use super::{Element, ElementKind, Guard, Id, Kernel};
use crate::runtime::{Lane, Pointer, Result};

/// Positions whose activations are in memory at a time.
const CHUNK: usize = 32;
const THREADS: u32 = 128;
const H200_MULTIPROCESSORS: usize = 132;

/// How attention weighs positions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AttentionKind {
    /// By an activation unit.
    Din,
    /// By the softmax of dot products of query and key.
    Dot,
    /// All alike.
    Mean,
}

/// A layer of an activation unit.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
pub struct UnitLayer {
    /// Its inputs, a multiple of 4.
    pub inputs: u32,
    /// Its outputs: a multiple of 4, or 1 for the last layer.
    pub outputs: u32,
    /// Where its W, `[outputs][inputs]`, starts among the unit's parameters.
    pub weights: u32,
    /// Where its b starts there.
    pub bias: u32,
}

/// Where a sample's vectors have what corresponds to four elements of a key.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
pub struct KeyPlace {
    /// Elements of the query.
    pub query: u32,
    /// Elements of the sum.
    pub sum: u32,
    /// 1 + the next place with the same elements of the query; 0 if there is none.
    pub next: u32,
    /// 1 if no earlier place has the same elements of the query, else 0.
    pub leads: u32,
}

impl KeyPlace {
    /// Returns the places of the parts of a key; each is given by where query and sum have it, and its elements, a
    /// multiple of 4.
    pub fn all(parts: impl IntoIterator<Item = ([usize; 2], usize)>) -> Vec<Self> {
        let of_part = |([query, sum], elements): ([usize; 2], usize)| {
            let step = move |at: usize| Self {
                query: (query + at) as u32,
                sum: (sum + at) as u32,
                next: 0,
                leads: 1,
            };
            (0..elements).step_by(4).map(step)
        };
        let mut places: Vec<_> = parts.into_iter().flat_map(of_part).collect();
        for number in 0..places.len() {
            let (before, query) = (&places[..number], places[number].query);
            if let Some(last) = before.iter().rposition(|place| place.query == query) {
                places[last].next = number as u32 + 1;
                places[number].leads = 0;
            }
        }
        places
    }
}

/// The sizes of attention, from which its memory follows.
#[derive(Debug, Clone, Copy)]
pub struct AttentionSizes<'a> {
    /// How it weighs positions.
    pub kind: AttentionKind,
    /// Elements of a key.
    pub width: usize,
    /// The most positions of a sample.
    pub length_max: usize,
    /// The layers of its unit, if it has one.
    pub layers: &'a [UnitLayer],
    /// The parameters of its unit.
    pub parameters: usize,
}

impl AttentionSizes<'_> {
    /// Returns the most outputs of a layer, and the outputs of all layers, each rounded up to a multiple of 4.
    pub fn outputs(&self) -> [usize; 2] {
        let outputs = || self.layers.iter().map(|layer| layer.outputs.next_multiple_of(4) as usize);
        [outputs().max().unwrap_or(0), outputs().sum()]
    }

    /// Returns the floats that a block keeps, as `AttentionMemory` divides them.
    pub fn memory_floats(&self, backward: bool) -> usize {
        let by_four = |count: usize| count.next_multiple_of(4);
        let slices = (4 * THREADS as usize).max(self.width);
        let common = 2 * by_four(self.width) + 2 * by_four(self.length_max) + slices;
        let Some(first) = self.layers.first() else { return common };
        let rows = by_four(first.outputs as usize);
        let padded = if self.width.is_multiple_of(8) { self.width + 4 } else { self.width };
        let (matrix, [most, all]) = (rows * padded, self.outputs());
        let forward = common + CHUNK * self.width + matrix + rows + CHUNK * all;
        if !backward {
            return forward;
        }
        let others = by_four(self.parameters - first.bias as usize);
        forward + 2 * CHUNK * most + 4 * matrix + rows + others
    }
}

/// How `attention_tiles.cu` divides the work of a block, and the sizes that it takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AttentionTiling {
    /// The most elements of a key.
    columns: usize,
    /// Hidden outputs of a warp, in eights.
    eighths: usize,
    /// Warps that share columns: the most hidden outputs are as many times `8 * eighths`.
    parts: usize,
    /// Blocks that a multiprocessor of an H200 runs at a time, forward and backward.
    each: [usize; 2],
}

impl AttentionTiling {
    /// All tilings, in the order of their kernels in `names.rs`. The first that fits is used.
    const ALL: [Self; 4] = [
        Self { columns: 64, eighths: 5, parts: 1, each: [5, 3] },
        Self { columns: 64, eighths: 6, parts: 1, each: [4, 2] },
        Self { columns: 64, eighths: 6, parts: 2, each: [2, 1] },
        Self { columns: 128, eighths: 6, parts: 1, each: [1, 1] },
    ];

    /// Returns the tiling for attention with activations of type `T`; `None` if it has other sizes, or if products of
    /// its elements are not for tensor cores.
    pub fn of<T: Element>(sizes: &AttentionSizes<'_>) -> Option<Self> {
        let &[hidden, _] = sizes.layers else { return None };
        let fits =
            |tiling: &Self| hidden.outputs as usize <= tiling.outputs() && sizes.width <= tiling.columns;
        let has_products = T::KIND == ElementKind::Bf16 && sizes.kind == AttentionKind::Din;
        (has_products && sizes.width.is_multiple_of(16)).then(|| Self::ALL.into_iter().find(fits)).flatten()
    }

    fn number(self) -> usize {
        Self::ALL.into_iter().position(|tiling| tiling == self).expect("one of all tilings")
    }

    const fn outputs(self) -> usize {
        8 * self.eighths * self.parts
    }

    const fn warps(self) -> usize {
        self.columns / 16 * self.parts
    }

    const fn threads(self) -> usize {
        32 * self.warps()
    }

    /// Bytes of shared memory, as `AttentionTiles` divides them.
    const fn shared_bytes(self, backward: bool) -> u32 {
        let Self { columns, .. } = self;
        let (outputs, warps, chunk) = (self.outputs(), self.warps(), 16 * self.warps());
        let stride = outputs + if outputs.is_multiple_of(16) { 8 } else { 0 };
        let matrix = columns * stride + columns / 8 * 16;
        let deltas = if backward { chunk * stride } else { 0 };
        let halves = 4 * matrix + 2 * chunk * (columns + 8) + 3 * columns + deltas;
        let sums = warps * if backward { outputs + 1 } else { columns };
        (2 * halves + 4 * (4 * outputs + sums.next_multiple_of(4))) as u32
    }
}

/// Attention over a sequence.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Attention<T> {
    /// `[sample][stride]`: queries are read, sums are written.
    pub vectors: Pointer<T>,
    /// `[position][width]`
    pub keys: Pointer<T>,
    /// `[sample][stride]`: with respect to the sums; those with respect to the queries are added.
    pub gradients: Pointer<T>,
    /// `[position][width]`
    pub key_gradients: Pointer<T>,
    /// Where the positions of each sample start, then the end.
    pub offsets: Pointer<u32>,
    /// The number of samples; later ones have no positions.
    pub samples_count: Pointer<u32>,
    /// `[width / 4]`: [`KeyPlace::all`].
    pub places: Pointer<KeyPlace>,
    /// The first reads query, key, query - key and query * key; the last has one output.
    pub layers: Pointer<UnitLayer>,
    /// The unit's parameters.
    pub weights: Pointer<T>,
    /// `[block][parameters]`: sums of the gradients with respect to them; padding is not written.
    pub parts: Pointer<f32>,
    /// `[block][memory_floats]`, unless [`Attention::fits_shared`].
    pub memory: Pointer<f32>,
    /// Takes note of gradients with respect to vectors and keys that are not finite.
    pub guard: Pointer<Guard>,
    /// Samples.
    pub samples: u32,
    /// Elements from one sample to the next, a multiple of 4.
    pub stride: u32,
    /// Elements of a key, a multiple of 4.
    pub width: u32,
    /// An [`AttentionKind`].
    pub kind: u32,
    /// Number of layers.
    pub layers_count: u32,
    /// See [`AttentionSizes::outputs`].
    pub outputs_max: u32,
    /// See [`AttentionSizes::outputs`].
    pub outputs_sum: u32,
    /// The unit's parameters.
    pub parameters: u32,
    /// [`AttentionSizes::memory_floats`].
    pub memory_floats: u32,
    /// The most positions of a sample.
    pub length_max: u32,
    /// Factor of the dot products of query and key.
    pub score_scale: f32,
    /// 0.
    pub reserved: u32,
}

impl<T: Element> Attention<T> {
    /// Returns the blocks of the backward pass, each of which has a piece of the partial sums: as many as an H200 runs
    /// at a time, and the same on all GPUs.
    pub const fn blocks(tiling: Option<AttentionTiling>) -> usize {
        match tiling {
            Some(AttentionTiling { each: [_, backward], .. }) => H200_MULTIPROCESSORS * backward,
            None => H200_MULTIPROCESSORS * 2,
        }
    }

    /// Returns the blocks of the forward pass on a GPU with this many multiprocessors.
    pub const fn forward_blocks(tiling: Option<AttentionTiling>, multiprocessors: u32) -> u32 {
        match tiling {
            Some(AttentionTiling { each: [forward, _], .. }) => multiprocessors * forward as u32,
            None => multiprocessors * 8,
        }
    }

    /// Whether blocks keep this many floats in shared memory.
    pub fn fits_shared(memory_floats: usize) -> bool {
        memory_floats * size_of::<f32>() <= SHARED_BYTES_MAX as usize
    }

    fn bytes(&self) -> u32 {
        if self.memory.address() == 0 { self.memory_floats * size_of::<f32>() as u32 } else { 0 }
    }

    /// Enqueues writing the sums, by any number of blocks. With a tiling, keys and the gradients with respect to them
    /// must be aligned to 16 bytes.
    ///
    /// # Safety
    /// See [`Lane::launch`].
    ///
    /// # Errors
    /// If the driver reports an error.
    pub unsafe fn enqueue_forward(
        &self,
        lane: &Lane,
        tiling: Option<AttentionTiling>,
        blocks: (u32, u32),
    ) -> Result<()> {
        // SAFETY: the caller vouches for it.
        unsafe {
            match tiling.map(AttentionTiling::number) {
                None => lane.launch(&AttentionForward(*self), blocks),
                Some(0) => lane.launch(&TiledForward::<T, 0>(*self), blocks),
                Some(1) => lane.launch(&TiledForward::<T, 1>(*self), blocks),
                Some(2) => lane.launch(&TiledForward::<T, 2>(*self), blocks),
                Some(_) => lane.launch(&TiledForward::<T, 3>(*self), blocks),
            }
        }
    }

    /// Enqueues computing the gradients, and the [`Attention::blocks`] pieces of those with respect to the unit.
    ///
    /// # Safety
    /// See [`Lane::launch`].
    ///
    /// # Errors
    /// If the driver reports an error.
    pub unsafe fn enqueue_backward(&self, lane: &Lane, tiling: Option<AttentionTiling>) -> Result<()> {
        let blocks = (Self::blocks(tiling) as u32, 1);
        // SAFETY: the caller vouches for it.
        unsafe {
            match tiling.map(AttentionTiling::number) {
                None => lane.launch(&AttentionBackward(*self), blocks),
                Some(0) => lane.launch(&TiledBackward::<T, 0>(*self), blocks),
                Some(1) => lane.launch(&TiledBackward::<T, 1>(*self), blocks),
                Some(2) => lane.launch(&TiledBackward::<T, 2>(*self), blocks),
                Some(_) => lane.launch(&TiledBackward::<T, 3>(*self), blocks),
            }
        }
    }
}

/// Writes the sums.
#[repr(transparent)]
#[derive(Debug, Clone, Copy)]
struct AttentionForward<T>(Attention<T>);

/// Computes the gradients.
#[repr(transparent)]
#[derive(Debug, Clone, Copy)]
struct AttentionBackward<T>(Attention<T>);

/// The same with the tiling of this number; `T` is bf16.
#[repr(transparent)]
#[derive(Debug, Clone, Copy)]
struct TiledForward<T, const TILING: usize>(Attention<T>);

/// Likewise.
#[repr(transparent)]
#[derive(Debug, Clone, Copy)]
struct TiledBackward<T, const TILING: usize>(Attention<T>);

// SAFETY: `attention.cu` has the same struct, and its blocks take this much shared memory.
unsafe impl<T: Element> Kernel for AttentionForward<T> {
    const ID: Id = Family::Attention.variant([T::KIND as usize]);
    const THREADS: u32 = THREADS;

    fn shared_bytes(&self) -> u32 {
        self.0.bytes()
    }
}

// SAFETY: as for `AttentionForward`.
unsafe impl<T: Element> Kernel for AttentionBackward<T> {
    const ID: Id = Family::AttentionGradient.variant([T::KIND as usize]);
    const THREADS: u32 = THREADS;

    fn shared_bytes(&self) -> u32 {
        self.0.bytes()
    }
}

// SAFETY: `attention_tiles.cu` has the same struct, and its blocks take this much shared memory.
unsafe impl<T: Element, const TILING: usize> Kernel for TiledForward<T, TILING> {
    const ID: Id = Family::AttentionTiles.variant([TILING]);
    const THREADS: u32 = AttentionTiling::ALL[TILING].threads() as u32;

    fn shared_bytes(&self) -> u32 {
        AttentionTiling::ALL[TILING].shared_bytes(false)
    }
}

// SAFETY: as for `TiledForward`.
unsafe impl<T: Element, const TILING: usize> Kernel for TiledBackward<T, TILING> {
    const ID: Id = Family::AttentionGradientTiles.variant([TILING]);
    const THREADS: u32 = AttentionTiling::ALL[TILING].threads() as u32;

    fn shared_bytes(&self) -> u32 {
        AttentionTiling::ALL[TILING].shared_bytes(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_a_query_that_are_the_same_are_linked() {
        let places = KeyPlace::all([([8, 32], 8), ([24, 40], 4), ([8, 48], 4)]);
        let of = |field: fn(&KeyPlace) -> u32| places.iter().map(field).collect::<Vec<_>>();
        assert_eq!(of(|place| place.query), [8, 12, 24, 8]);
        assert_eq!(of(|place| place.sum), [32, 36, 40, 48]);
        assert_eq!(of(|place| place.next), [4, 0, 0, 0]);
        assert_eq!(of(|place| place.leads), [1, 1, 1, 0]);
    }

    #[test]
    fn tilings_hold_what_they_take() {
        let layers =
            |outputs: u32| [outputs, 1].map(|outputs| UnitLayer { inputs: 0, outputs, weights: 0, bias: 0 });
        let of = |outputs: u32, width| {
            let layers = layers(outputs);
            let kind = AttentionKind::Din;
            let sizes = AttentionSizes { kind, width, length_max: 50, layers: &layers, parameters: 0 };
            assert_eq!(AttentionTiling::of::<f32>(&sizes), None);
            AttentionTiling::of::<half::bf16>(&sizes)
        };
        let [low, middle, high, wide] = AttentionTiling::ALL;
        assert_eq!([of(40, 64), of(8, 16)], [Some(low); 2]);
        assert_eq!([of(48, 16), of(48, 64)], [Some(middle); 2]);
        assert_eq!(
            [of(56, 64), of(96, 16), of(48, 80), of(8, 128)],
            [Some(high), Some(high), Some(wide), Some(wide)]
        );
        assert_eq!([of(104, 64), of(56, 80), of(8, 144), of(8, 24)], [None; 4]);
        let room = |[forward, backward]: [usize; 2]| {
            [forward, backward].map(|blocks| 227 * 1024 / blocks as u32 - 1024)
        };
        for tiling in AttentionTiling::ALL {
            let needed = [false, true].map(|backward| tiling.shared_bytes(backward));
            assert!(needed.iter().zip(room(tiling.each)).all(|(needed, room)| *needed <= room), "{tiling:?}");
            assert!(needed[1] <= SHARED_BYTES_MAX, "{tiling:?}");
        }
    }
}
