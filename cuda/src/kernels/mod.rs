//! A typed launcher for each kernel. The sources in `kernels/*.cu` describe what the kernels do and how many bytes
//! they move.
//!
//! A launcher is the kernel's one parameter: a `repr(C)` struct with the same name and fields, whose size is asserted
//! on both sides. [`crate::Lane::launch`] launches it. The caller chooses the grid; each launcher documents its
//! meaning.

use std::ffi::CStr;

use cudarc::driver::{result, sys};

use crate::error::{Named, Result};

mod all_reduce;
mod auc;
mod barrier;
mod begin_state;
mod columns;
mod cross;
mod dense_input;
mod dense_update;
mod dot;
mod element;
mod fp8_by_first;
mod fp8_cross;
mod fp8_cross_first;
mod fp8_matmul;
mod fp8_quantize;
mod fp8_scaling;
mod guard;
mod head;
mod initialize;
mod judge;
mod look_up;
mod machine;
mod mark;
mod matmul;
mod merge;
mod number;
mod optimizer;
mod pack;
mod pooled;
mod rails;
mod reduce;
mod route;
mod rows;
mod shard;
mod sparse_update;
mod stamp;
mod team;
mod totals;
mod unpack;
mod update;

pub(crate) use all_reduce::{
    AllReduce, AllReduceAtOnce, AllReduceBySlices, AllReduceScatter, AllReduceSpread,
};
pub use auc::{
    Before, KEY_DIGITS, KeysCount, KeysScatter, KeysSum, Ties, TiesBefore, TiesCount, TiesCountWeights,
    TiesPairs, TiesPairsWeights, WeightsCount,
};
pub(crate) use barrier::{Barrier, Flags, GAVE_UP, Wait};
pub use begin_state::BeginState;
pub use columns::{Columns, Total};
pub use cross::{CROSS_LAYERS, Cross, CrossFirst, CrossGradient};
pub use dense_input::DenseInput;
pub use dense_update::DenseUpdate;
pub use dot::Dot;
pub use element::{Element, ElementKind, Rate, Step};
pub(crate) use fp8_by_first::Fp8GradientByFirst;
pub(crate) use fp8_cross::{Fp8CrossGradient, Fp8CrossLayer};
pub use fp8_cross_first::Fp8CrossFirst;
pub(crate) use fp8_matmul::{Fp8Plain, Fp8Relu, Fp8ReluGradient, Fp8ToBf16};
pub use fp8_quantize::{
    FP8_MULTIPLE, Fp8Quantize, Fp8QuantizeWeights, Fp8Weights, paired_position, transposed_position,
};
pub use fp8_scaling::{Fp8Check, Fp8RankMagnitudes, Fp8Rescale, Fp8Scaling, Fp8Tell};
pub use guard::{Finite, Guard, Outcome, Squares, Tally, Verdict};
pub use head::Head;
pub use initialize::Initialize;
pub use judge::{Judge, JudgeParts, JudgeSums, JudgeTotal};
pub use look_up::{LookUp, LookUpTask};
pub use machine::{Machine, MachineBackward, MachineForward};
pub use mark::Mark;
pub(crate) use matmul::{
    Factors, MatmulCross, MatmulCrossGradient, MatmulReluGradient, is_tiled, pieces as matmul_pieces,
};
pub use merge::{Link, Merge};
pub use number::{Groups, Number};
pub use optimizer::{Dtype, Rule, RuleKind};
pub use pack::Pack;
pub use pooled::{Pooled, PooledFeature};
pub use rails::{RAIL_HEADER, RailLists, RailMark, RailRows};
pub use reduce::Reduce;
pub use route::{Pair, Route, RouteBegin, RouteCount, RouteNumber, RouteSort, Segment};
pub use rows::Send;
pub use shard::{Learning, Shard};
pub use sparse_update::SparseUpdate;
pub(crate) use stamp::Stamp;
pub use totals::Totals;
pub use unpack::{IdColumn, Index, Ring, Unpack, UnpackBags, UnpackFixed, UnpackSizes, UnpackValues};
pub use update::{SharedSquares, Update};

use crate::buffer::Pointer;

/// The most ranks that access each other's memory.
pub const RANKS_MAX: usize = 8;
/// The most shared memory that a launcher requests, in bytes.
const SHARED_BYTES_MAX: i32 = 144 << 10;
/// Keys per group. The span of an owner is a multiple of it.
pub const GROUP_KEYS: usize = 65536;
/// Keys per line; [`KeySet::lines`] has one number per line.
pub const LINE_KEYS: usize = 256;

/// A set of keys.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct KeySet {
    /// One bit per key.
    pub bits: Pointer<u32>,
    /// Members in each group of keys.
    pub groups: Pointer<u32>,
    /// Members before each line of keys.
    pub lines: Pointer<u32>,
}

/// A column of ids and the shard of a table that it looks up.
#[repr(C)]
#[derive(Debug, Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
pub struct Feature {
    /// Where the shard starts in this GPU's memory, in words of four bytes.
    pub words: u64,
    /// Where the column's ids start.
    pub ids: u32,
    /// Where the column's offsets start, or [`Feature::FIXED`].
    pub offsets: u32,
    /// Ids per sample; with offsets, the most ids per sample.
    pub hotness: u32,
    /// 1 if a bag's vector is the mean of its rows, 0 if it is their sum.
    pub mean: u32,
    /// The number of the shard's first row at every owner.
    pub base: u32,
    /// Rows of its table.
    pub rows: u32,
    /// Words from one row of the shard to the next.
    pub row_words: u32,
    /// Elements of a row, a multiple of 4.
    pub dim: u32,
    /// Where its vector starts within a sample's vectors.
    pub place: u32,
    /// The number of the shard.
    pub shard: u32,
    /// Type of the shard's rows: a [`Dtype`].
    pub dtype: u32,
    /// Where the slots of its look-ups start.
    pub slots: u32,
    /// The rank that owns all of the shard's rows; [`Feature::TURNS`]; or the number of ranks if every rank stores
    /// them.
    pub owner: u32,
    /// The key of the table's first row in the set of rows that every rank stores, or [`Feature::UNLISTED`].
    pub frequent: u32,
}

impl Feature {
    /// Instead of an offset: every sample has the same number of ids.
    pub const FIXED: u32 = u32::MAX;
    /// Instead of an owner: row `id` of the table belongs to rank `id % ranks`.
    pub const TURNS: u32 = u32::MAX;
    /// Instead of a key: the set of rows that every rank stores has no row of the table.
    pub const UNLISTED: u32 = u32::MAX;
}

const _: () = assert!(size_of::<Feature>() == 64);

/// The parameter of a kernel.
///
/// # Safety
/// The type must be `repr(C)` with the fields of the parameter of the kernel [`Kernel::ID`], and `THREADS` and
/// `shared_bytes` must be what that kernel expects.
pub unsafe trait Kernel: Copy {
    /// The kernel.
    const ID: Id;
    /// Its name, for errors.
    const NAME: &'static str;
    /// Threads of a block.
    const THREADS: u32;

    /// Bytes of dynamic shared memory, as the parameters require.
    fn shared_bytes(&self) -> u32 {
        0
    }
}

/// An embedded fatbin. The driver reads it in words.
#[repr(C, align(16))]
struct Image<T: ?Sized>(T);

macro_rules! image {
    ($name:literal) => {{
        static IMAGE: &Image<[u8]> = &Image(*include_bytes!(concat!(env!("OUT_DIR"), "/", $name, ".fatbin")));
        IMAGE
    }};
}

macro_rules! kernels {
    ($($image:literal: $($kernel:ident = $name:literal),+;)+) => {
        /// A kernel's index among those of a device.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        #[expect(missing_docs, reason = "the launchers describe them")]
        pub enum Id {
            $($($kernel,)+)+
        }

        impl Kernels {
            /// Loads all kernels into the current context: the first launch of a kernel must not be the one that is
            /// captured.
            pub(crate) fn load() -> Result<Self> {
                let (mut modules, mut functions) = (Vec::new(), Vec::<sys::CUfunction>::new());
                $(
                    // SAFETY: the image is a fatbin that nvcc made, and lives forever.
                    let module = unsafe { result::module::load_data(image!($image).0.as_ptr().cast()) };
                    modules.push(module.named("cuModuleLoadData")?);
                    $(functions.push(function(modules[modules.len() - 1], $name)?);)+
                )+
                let all = [
                    (Id::MatmulReluGradient, matmul::SHARED_BYTES),
                    (Id::MatmulCross, matmul::SHARED_BYTES),
                    (Id::MatmulCrossGradient, matmul::SHARED_BYTES),
                    (Id::Fp8GradientByFirst, fp8_by_first::SHARED_BYTES),
                    (Id::Fp8CrossLayer, fp8_cross::SHARED_BYTES),
                    (Id::Fp8CrossGradient, fp8_cross::SHARED_BYTES),
                    (Id::Fp8Relu, fp8_matmul::SHARED_BYTES),
                    (Id::Fp8ReluGradient, fp8_matmul::SHARED_BYTES),
                    (Id::Fp8Plain, fp8_matmul::SHARED_BYTES),
                    (Id::Fp8ToBf16, fp8_matmul::SHARED_BYTES),
                ];
                let mut hopper = true;
                for (kernel, shared_bytes) in all {
                    hopper &= allow_matmul(functions[kernel as usize], shared_bytes)?;
                }
                Ok(Self { functions, hopper })
            }
        }
    };
}

/// The kernels of a device, by their [`Id`]. Modules are unloaded with the context.
#[derive(Debug)]
pub(crate) struct Kernels {
    functions: Vec<sys::CUfunction>,
    /// Whether the Hopper-only kernels are loaded.
    hopper: bool,
}

kernels! {
    "all_reduce": AllReduceBySlices2 = c"all_reduce_by_slices_2", AllReduceAtOnce2 = c"all_reduce_at_once_2",
        AllReduceBySlices4 = c"all_reduce_by_slices_4", AllReduceAtOnce4 = c"all_reduce_at_once_4",
        AllReduceBySlices8 = c"all_reduce_by_slices_8", AllReduceAtOnce8 = c"all_reduce_at_once_8",
        AllReduceScatter2 = c"all_reduce_scatter_2", AllReduceSpread2 = c"all_reduce_spread_2",
        AllReduceScatter4 = c"all_reduce_scatter_4", AllReduceSpread4 = c"all_reduce_spread_4",
        AllReduceScatter8 = c"all_reduce_scatter_8", AllReduceSpread8 = c"all_reduce_spread_8";
    "auc": KeysCount = c"keys_count", KeysSum = c"keys_sum", KeysScatter = c"keys_scatter",
        WeightsCount = c"weights_count", TiesCount = c"ties_count",
        TiesCountWeights = c"ties_count_weights", TiesBefore = c"ties_before", TiesPairs = c"ties_pairs",
        TiesPairsWeights = c"ties_pairs_weights";
    "barrier": Barrier = c"barrier";
    "begin_state": BeginState = c"begin_state";
    "columns": ColumnsF32 = c"columns_f32", ColumnsBf16 = c"columns_bf16", ColumnsF16 = c"columns_f16",
        Total = c"columns_total";
    "cross": CrossF32 = c"cross_f32", CrossBf16 = c"cross_bf16", CrossF16 = c"cross_f16",
        CrossGradientF32 = c"cross_gradient_f32", CrossGradientBf16 = c"cross_gradient_bf16",
        CrossGradientF16 = c"cross_gradient_f16",
        CrossFirstF32 = c"cross_first_f32", CrossFirstBf16 = c"cross_first_bf16",
        CrossFirstF16 = c"cross_first_f16";
    "dense_input": DenseInputF32 = c"dense_input_f32", DenseInputBf16 = c"dense_input_bf16",
        DenseInputF16 = c"dense_input_f16";
    "dense_update": DenseUpdateF32 = c"dense_update_f32", DenseUpdateBf16 = c"dense_update_bf16",
        DenseUpdateF16 = c"dense_update_f16";
    "dot": DotForwardBf16 = c"dot_forward_bf16", DotForwardF16 = c"dot_forward_f16",
        DotBackwardBf16 = c"dot_backward_bf16", DotBackwardF16 = c"dot_backward_f16",
        DotForwardByBlocksF32 = c"dot_forward_by_blocks_f32",
        DotForwardByBlocksBf16 = c"dot_forward_by_blocks_bf16",
        DotForwardByBlocksF16 = c"dot_forward_by_blocks_f16",
        DotBackwardByBlocksF32 = c"dot_backward_by_blocks_f32",
        DotBackwardByBlocksBf16 = c"dot_backward_by_blocks_bf16",
        DotBackwardByBlocksF16 = c"dot_backward_by_blocks_f16";
    "fp8_by_first": Fp8GradientByFirst = c"fp8_by_first";
    "fp8_cross": Fp8CrossLayer = c"fp8_cross_layer", Fp8CrossGradient = c"fp8_cross_gradient";
    "fp8_cross_first": Fp8CrossFirst = c"fp8_cross_first";
    "fp8_matmul": Fp8Relu = c"fp8_relu", Fp8ReluGradient = c"fp8_relu_gradient", Fp8Plain = c"fp8_plain",
        Fp8ToBf16 = c"fp8_to_bf16";
    "fp8_quantize": Fp8Quantize = c"fp8_quantize", Fp8QuantizeWeights = c"fp8_quantize_weights";
    "fp8_scaling": Fp8Tell = c"fp8_tell", Fp8Check = c"fp8_check", Fp8Rescale = c"fp8_rescale";
    "guard": Squares = c"squares", Tally = c"tally", Verdict = c"verdict",
        FiniteF32 = c"finite_f32", FiniteBf16 = c"finite_bf16", FiniteF16 = c"finite_f16";
    "head": HeadF32 = c"head_f32", HeadBf16 = c"head_bf16", HeadF16 = c"head_f16";
    "initialize": Initialize = c"initialize";
    "judge": JudgeParts = c"judge", JudgeTotal = c"judge_total";
    "look_up": LookUpF32OfF32 = c"look_up_f32_f32", LookUpF32OfBf16 = c"look_up_f32_bf16",
        LookUpF32OfF16 = c"look_up_f32_f16", LookUpBf16OfF32 = c"look_up_bf16_f32",
        LookUpBf16OfBf16 = c"look_up_bf16_bf16", LookUpBf16OfF16 = c"look_up_bf16_f16",
        LookUpF16OfF32 = c"look_up_f16_f32", LookUpF16OfBf16 = c"look_up_f16_bf16",
        LookUpF16OfF16 = c"look_up_f16_f16";
    "machine": MachineForwardF32 = c"machine_forward_f32", MachineForwardBf16 = c"machine_forward_bf16",
        MachineForwardF16 = c"machine_forward_f16",
        MachineBackwardF32 = c"machine_backward_f32", MachineBackwardBf16 = c"machine_backward_bf16",
        MachineBackwardF16 = c"machine_backward_f16";
    "mark": Mark = c"mark";
    "matmul": MatmulReluGradient = c"matmul_relu_gradient", MatmulCross = c"matmul_cross",
        MatmulCrossGradient = c"matmul_cross_gradient";
    "merge": Merge = c"merge_mark", Link = c"merge_link";
    "pack": Pack = c"pack";
    "pooled": PooledCount = c"pooled_count", PooledScan = c"pooled_scan", PooledCut = c"pooled_cut",
        PooledAddF32 = c"pooled_add_f32", PooledAddBf16 = c"pooled_add_bf16", PooledAddF16 = c"pooled_add_f16",
        PooledSendF32 = c"pooled_send_f32", PooledSendBf16 = c"pooled_send_bf16",
        PooledSendF16 = c"pooled_send_f16";
    "number": Groups = c"number_groups", Number = c"number";
    "rails": RailLists = c"rail_lists", RailMark = c"rail_mark",
        RailSpreadBy4 = c"rail_spread_4", RailSpreadBy16 = c"rail_spread_16", RailSpreadBy32 = c"rail_spread_32",
        RailGatherBy4 = c"rail_gather_4", RailGatherBy16 = c"rail_gather_16", RailGatherBy32 = c"rail_gather_32";
    "reduce":
        ReduceF32By4x1 = c"reduce_f32_4x1",
        ReduceBf16By4x1 = c"reduce_bf16_4x1",
        ReduceF16By4x1 = c"reduce_f16_4x1",
        ReducePartsBy4x1 = c"reduce_parts_4x1",
        ReduceF32By16x1 = c"reduce_f32_16x1",
        ReduceBf16By16x1 = c"reduce_bf16_16x1",
        ReduceF16By16x1 = c"reduce_f16_16x1",
        ReducePartsBy16x1 = c"reduce_parts_16x1",
        ReduceF32By32x1 = c"reduce_f32_32x1",
        ReduceBf16By32x1 = c"reduce_bf16_32x1",
        ReduceF16By32x1 = c"reduce_f16_32x1",
        ReducePartsBy32x1 = c"reduce_parts_32x1",
        ReduceF32By32x2 = c"reduce_f32_32x2",
        ReduceBf16By32x2 = c"reduce_bf16_32x2",
        ReduceF16By32x2 = c"reduce_f16_32x2",
        ReducePartsBy32x2 = c"reduce_parts_32x2",
        ReduceF32By32x8 = c"reduce_f32_32x8",
        ReduceBf16By32x8 = c"reduce_bf16_32x8",
        ReduceF16By32x8 = c"reduce_f16_32x8",
        ReducePartsBy32x8 = c"reduce_parts_32x8";
    "route": RouteBegin = c"route_begin", RouteCount = c"route_count", RouteSort = c"route_sort",
        RouteNumber = c"route_number";
    "rows":
        SendF32By4 = c"send_f32_4", SendBf16By4 = c"send_bf16_4", SendF16By4 = c"send_f16_4",
        SendF32By16 = c"send_f32_16", SendBf16By16 = c"send_bf16_16", SendF16By16 = c"send_f16_16",
        SendF32By32 = c"send_f32_32", SendBf16By32 = c"send_bf16_32", SendF16By32 = c"send_f16_32";
    "stamp": Stamp = c"stamp";
    "totals": Totals = c"totals";
    "unpack": UnpackIndex = c"unpack_index", UnpackValues = c"unpack_values", UnpackFixed = c"unpack_fixed",
        UnpackSizes = c"unpack_sizes", UnpackBags = c"unpack_bags";
    "sparse_update":
        SparseUpdateF32By4x1 = c"sparse_update_f32_4x1",
        SparseUpdateF32By16x1 = c"sparse_update_f32_16x1",
        SparseUpdateF32By32x1 = c"sparse_update_f32_32x1",
        SparseUpdateF32By32x2 = c"sparse_update_f32_32x2",
        SparseUpdateF32By32x8 = c"sparse_update_f32_32x8",
        SparseUpdateBf16By4x1 = c"sparse_update_bf16_4x1",
        SparseUpdateBf16By16x1 = c"sparse_update_bf16_16x1",
        SparseUpdateBf16By32x1 = c"sparse_update_bf16_32x1",
        SparseUpdateBf16By32x2 = c"sparse_update_bf16_32x2",
        SparseUpdateBf16By32x8 = c"sparse_update_bf16_32x8",
        SparseUpdateF16By4x1 = c"sparse_update_f16_4x1",
        SparsePartsBy4x1 = c"sparse_parts_4x1",
        SparseUpdateF16By16x1 = c"sparse_update_f16_16x1",
        SparsePartsBy16x1 = c"sparse_parts_16x1",
        SparseUpdateF16By32x1 = c"sparse_update_f16_32x1",
        SparsePartsBy32x1 = c"sparse_parts_32x1",
        SparseUpdateF16By32x2 = c"sparse_update_f16_32x2",
        SparsePartsBy32x2 = c"sparse_parts_32x2",
        SparseUpdateF16By32x8 = c"sparse_update_f16_32x8",
        SparsePartsBy32x8 = c"sparse_parts_32x8",
        LeanUpdateF32By4x1 = c"lean_update_f32_4x1",
        LeanUpdateF32By16x1 = c"lean_update_f32_16x1",
        LeanUpdateF32By32x1 = c"lean_update_f32_32x1",
        LeanUpdateBf16By4x1 = c"lean_update_bf16_4x1",
        LeanUpdateBf16By16x1 = c"lean_update_bf16_16x1",
        LeanUpdateBf16By32x1 = c"lean_update_bf16_32x1",
        LeanUpdateF16By4x1 = c"lean_update_f16_4x1",
        LeanUpdateF16By16x1 = c"lean_update_f16_16x1",
        LeanUpdateF16By32x1 = c"lean_update_f16_32x1";
    "update": UpdateBy4x1 = c"update_4x1", UpdateBy16x1 = c"update_16x1", UpdateBy32x1 = c"update_32x1",
        UpdateBy32x2 = c"update_32x2", UpdateBy32x8 = c"update_32x8",
        ShareSquaresBy4x1 = c"share_squares_4x1", ShareSquaresBy16x1 = c"share_squares_16x1",
        ShareSquaresBy32x1 = c"share_squares_32x1", ShareSquaresBy32x2 = c"share_squares_32x2",
        ShareSquaresBy32x8 = c"share_squares_32x8";
}

impl Kernels {
    pub(crate) fn function(&self, id: Id) -> sys::CUfunction {
        self.functions[id as usize]
    }

    pub(crate) fn hopper(&self) -> bool {
        self.hopper
    }
}

/// Allows a kernel of `matmul.cu` or its fp8 counterparts the shared memory that it needs; returns false if it was
/// not loaded for Hopper.
fn allow_matmul(function: sys::CUfunction, shared_bytes: u32) -> Result<bool> {
    let mut target = 0;
    let attribute = sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_PTX_VERSION;
    // SAFETY: the function was just loaded, and the pointer is to a live integer.
    unsafe { sys::cuFuncGetAttribute(&mut target, attribute, function) }
        .result()
        .named("cuFuncGetAttribute")?;
    if target != matmul::TARGET {
        return Ok(false);
    }
    let attribute = sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
    // SAFETY: the function was just loaded.
    unsafe { result::function::set_function_attribute(function, attribute, shared_bytes as i32) }
        .named("cuFuncSetAttribute")?;
    Ok(true)
}

/// A function of a module, allowed as much shared memory as any launcher requests.
fn function(module: sys::CUmodule, name: &CStr) -> Result<sys::CUfunction> {
    // SAFETY: the module was just loaded in the current context.
    let function =
        unsafe { result::module::get_function(module, name.to_owned()) }.named("cuModuleGetFunction")?;
    let attribute = sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
    // SAFETY: the function was just got from the module.
    unsafe { result::function::set_function_attribute(function, attribute, SHARED_BYTES_MAX) }
        .named("cuFuncSetAttribute")?;
    Ok(function)
}
