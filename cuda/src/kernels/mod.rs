//! A typed launcher for each kernel. The sources in `kernels/*.cu` describe what the kernels do and how many bytes
//! they move.
//!
//! A launcher is the kernel's one parameter: a `repr(C)` struct with the same name and fields, whose offsets the
//! build asserts (`build/layout.rs`). [`crate::Lane::launch`] launches it. The caller chooses the grid; each launcher
//! documents its meaning. `names.rs` lists all kernels.

mod all_reduce;
mod attention;
mod auc;
mod barrier;
mod begin_state;
mod columns;
mod common;
mod cross;
mod dense_input;
mod dense_update;
mod dot;
mod e4m3;
mod element;
mod feature_counts;
mod fp8_by_first;
mod fp8_cross;
mod fp8_cross_first;
mod fp8_matmul;
mod fp8_quantize;
mod fp8_scaling;
mod fp8_tensor;
mod guard;
mod head;
mod initialize;
mod judge;
mod limits;
mod load;
mod look_up;
mod machine;
mod mark;
mod matmul;
mod membership;
mod merge;
mod names;
mod number;
mod optimizer;
mod pack;
mod pooled;
mod positions;
mod rails;
mod reduce;
mod route;
mod rows;
mod shard;
mod sparse_update;
mod stamp;
mod team;
mod tier;
mod totals;
mod traffic;
mod unpack;
mod update;

pub use crate::runtime::{Id, Kernel};

pub(crate) use all_reduce::{
    AllReduce, AllReduceAtOnce, AllReduceBySlices, AllReduceScatter, AllReduceSpread,
};
pub use attention::{Attention, AttentionKind, AttentionSizes, AttentionTiling, KeyPlace, UnitLayer};
pub use auc::{
    KEY_DIGITS, KeysCount, KeysScatter, KeysSum, PrefixCounts, Ties, TiesBefore, TiesBins, TiesBinsWeights,
    TiesCount, TiesCountWeights, TiesPairs, TiesPairsWeights, WeightsCount,
};
pub(crate) use barrier::{Barrier, Flags, GAVE_UP, Wait};
pub use begin_state::BeginState;
pub use columns::{Columns, Total};
pub use common::{Addresses, BagPooling, Feature, GROUP_KEYS, KeySet, LINE_KEYS};
pub use cross::{CROSS_LAYERS, Cross, CrossFirst, CrossGradient};
pub use dense_input::DenseInput;
pub use dense_update::DenseUpdate;
pub use dot::{Dot, DotFp8, TableRows};
pub use e4m3::E4m3;
pub use element::{Element, ElementKind, Rate, Step};
pub use feature_counts::FeatureCounts;
pub(crate) use fp8_by_first::Fp8GradientByFirst;
pub(crate) use fp8_cross::{Fp8CrossGradient, Fp8CrossLayer};
pub use fp8_cross::{Fp8CrossGradientMatrices, Fp8CrossMatrices};
pub use fp8_cross_first::Fp8CrossFirst;
pub use fp8_matmul::Fp8Outputs;
pub(crate) use fp8_matmul::{Fp8Plain, Fp8Relu, Fp8ReluGradient, Fp8ToBf16};
pub use fp8_quantize::{
    FP8_MULTIPLE, Fp8Quantize, Fp8QuantizeWeights, Fp8Weights, paired_position, transposed_position,
};
pub use fp8_scaling::{Fp8Check, Fp8RankMagnitudes, Fp8Rescale, Fp8Scaling, Fp8Tell};
pub use fp8_tensor::{Fp8CrossKept, Fp8Factors, Fp8Matrix, Fp8Tensor};
pub use guard::{FactorCheck, FactorFeature, FiniteCheck, Guard, Outcome, Squares, Tally, Verdict};
pub use head::Head;
pub use initialize::{Initialize, NewRows, NewRowsOf};
pub use judge::{Judge, JudgeKeys, JudgeKeysTotal, JudgeParts, JudgeTotal, Sums as JudgeSums};
pub use limits::RANKS_MAX;
pub use look_up::{Fp8Vectors, LookUp, LookUpFp8, LookUpTask, Vectors};
pub use machine::{Machine, MachineBackward, MachineForward};
pub use mark::Mark;
pub(crate) use matmul::{
    Factors, Inputs as MatmulInputs, MatmulCross, MatmulCrossGradient, MatmulReluGradient, is_tiled,
    pieces as matmul_pieces,
};
pub use membership::{
    Entry, Eviction, MemberColumn, Members, Membership, MembershipAdmit, MembershipClear, MembershipFind,
    MembershipIndex, MembershipList, MembershipReserve, MembershipResolve, MembershipTotal, NewRow,
};
pub use merge::{Link, Merge};
pub use number::{Groups, Number};
pub use optimizer::{Dtype, Rule};
pub use pack::Pack;
pub use pooled::{PooledFeature, Pooling};
pub use positions::Positions;
pub use rails::{RAIL_HEADER, RailLists, RailMark, RailRows};
pub use reduce::Reduce;
pub use route::{Pair, Route, RouteBegin, RouteCount, RouteNumber, RouteNumberFactors, RouteSort, Segment};
pub use rows::Send;
pub use shard::{Shard, UpdateContext};
pub use sparse_update::SparseUpdate;
pub(crate) use stamp::Stamp;
pub use tier::{Tier, TierEntries, TierFind, TierForward, TierIds, TierLocate, TierPart, TierSwap};
pub use totals::Totals;
pub use traffic::{LinkCounts, RowRange, RowTraffic};
pub use unpack::{
    IdColumn, Index, Ring, Unpack, UnpackBags, UnpackFactors, UnpackFixed, UnpackSizes, UnpackValues,
    WeightedColumn,
};
pub use update::{SharedSquares, Update};
