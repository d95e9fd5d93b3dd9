//! The one list of all kernels: the files that have them, their names and their variants.

use crate::runtime::Id;

/// An embedded fatbin. The driver reads it in words.
#[repr(C, align(16))]
pub(super) struct Image<T: ?Sized>(pub(super) T);

/// A file of kernels.
pub(super) struct File {
    pub(super) image: &'static Image<[u8]>,
    pub(super) families: &'static [Names],
}

/// The names of a family. A variant's name is the family's, followed by one ending of each kind.
pub(super) struct Names {
    name: &'static str,
    endings: &'static [&'static [&'static str]],
}

impl Names {
    /// The variants' names, in the order of their numbers.
    pub(super) fn variants(&self) -> Vec<String> {
        let with_endings = |names: Vec<String>, endings: &&[&str]| {
            let one = |name: String| endings.iter().map(move |ending| format!("{name}_{ending}"));
            names.into_iter().flat_map(one).collect()
        };
        self.endings.iter().fold(vec![self.name.into()], with_endings)
    }

    const fn count(&self) -> usize {
        let (mut count, mut kind) = (1, 0);
        while kind < self.endings.len() {
            count *= self.endings[kind].len();
            kind += 1;
        }
        count
    }
}

impl Family {
    /// The kernel with the given ending of each kind, by their indexes in the list.
    pub(super) const fn variant<const KINDS: usize>(self, endings: [usize; KINDS]) -> Id {
        let (mut index, mut family, mut file) = (0, self as usize, 0);
        while family >= FILES[file].families.len() {
            family -= FILES[file].families.len();
            let mut before = 0;
            while before < FILES[file].families.len() {
                index += FILES[file].families[before].count();
                before += 1;
            }
            file += 1;
        }
        let mut before = 0;
        while before < family {
            index += FILES[file].families[before].count();
            before += 1;
        }
        let names = &FILES[file].families[family];
        assert!(KINDS == names.endings.len(), "one ending of each kind");
        let (mut variant, mut kind) = (0, 0);
        while kind < KINDS {
            assert!(endings[kind] < names.endings[kind].len(), "no such ending");
            variant = variant * names.endings[kind].len() + endings[kind];
            kind += 1;
        }
        Id { name: names.name, index: index + variant }
    }
}

/// The index of a number of ranks in [`RANKS`].
pub(super) const fn ranks(most: usize) -> usize {
    match most {
        2 => 0,
        4 => 1,
        8 => 2,
        _ => panic!("there are kernels for 2, 4 and 8 ranks"),
    }
}

/// The index of a number of lanes in [`LANES`].
pub(super) const fn lanes(lanes: u32) -> usize {
    match lanes {
        4 => 0,
        16 => 1,
        32 => 2,
        _ => panic!("no such team"),
    }
}

/// The index of a team in [`TEAMS`].
pub(super) const fn team(lanes: u32, vectors: u32) -> usize {
    match (lanes, vectors) {
        (4, 1) => 0,
        (16, 1) => 1,
        (32, 1) => 2,
        (32, 2) => 3,
        (32, 8) => 4,
        _ => panic!("no such team"),
    }
}

/// Element types, in the order of [`super::ElementKind`] and of [`super::Dtype`].
const ELEMENTS: &[&str] = &["f32", "bf16", "f16"];
/// Those with tensor cores.
const HALVES: &[&str] = &["bf16", "f16"];
/// The most ranks.
const RANKS: &[&str] = &["2", "4", "8"];
/// Lanes that take a row together.
const LANES: &[&str] = &["4", "16", "32"];
/// The same, by vectors of a row that each lane takes.
const TEAMS: &[&str] = &["4x1", "16x1", "32x1", "32x2", "32x8"];
/// The most hidden outputs of attention by tensor cores, and the most elements of a key.
const TILINGS: &[&str] = &["40x64", "48x64", "96x64", "48x128"];
/// The teams whose lanes take one vector.
const LEAN_TEAMS: &[&str] = &["4x1", "16x1", "32x1"];

macro_rules! image {
    ($name:literal) => {{
        static IMAGE: &Image<[u8]> = &Image(*include_bytes!(concat!(env!("OUT_DIR"), "/", $name, ".fatbin")));
        IMAGE
    }};
}

macro_rules! kernels {
    ($($file:literal: $($family:ident = $name:literal $([$($endings:expr),+])?),+;)+) => {
        /// Kernels that do the same for other types or sizes.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub(super) enum Family {
            $($($family,)+)+
        }

        /// All kernels, in the order of [`Family`].
        pub(super) const FILES: &[File] = &[
            $(File {
                image: image!($file),
                families: &[$(Names { name: $name, endings: &[$($($endings),+)?] }),+],
            },)+
        ];
    };
}

kernels! {
    "all_reduce": AllReduceBySlices = "all_reduce_by_slices" [RANKS],
        AllReduceAtOnce = "all_reduce_at_once" [RANKS], AllReduceScatter = "all_reduce_scatter" [RANKS],
        AllReduceSpread = "all_reduce_spread" [RANKS];
    "attention": Attention = "attention" [ELEMENTS], AttentionGradient = "attention_gradient" [ELEMENTS];
    "attention_tiles": AttentionTiles = "attention_tiles" [TILINGS],
        AttentionGradientTiles = "attention_gradient_tiles" [TILINGS];
    "auc": KeysCount = "keys_count", KeysSum = "keys_sum", KeysScatter = "keys_scatter",
        WeightsCount = "weights_count", TiesCount = "ties_count", TiesCountWeights = "ties_count_weights",
        TiesBefore = "ties_before", TiesPairs = "ties_pairs", TiesPairsWeights = "ties_pairs_weights",
        TiesBins = "ties_bins", TiesBinsWeights = "ties_bins_weights";
    "barrier": Barrier = "barrier";
    "begin_state": BeginState = "begin_state";
    "columns": Columns = "columns" [ELEMENTS], Total = "columns_total";
    "cross": Cross = "cross" [ELEMENTS], CrossGradient = "cross_gradient" [ELEMENTS],
        CrossFirst = "cross_first" [ELEMENTS];
    "dense_input": DenseInput = "dense_input" [ELEMENTS];
    "dense_update": DenseUpdate = "dense_update" [ELEMENTS];
    "dot": DotForward = "dot_forward" [HALVES], DotForwardFp8 = "dot_forward_fp8",
        DotOfRows = "dot_of_rows" [HALVES], DotOfRowsFp8 = "dot_of_rows_fp8",
        DotBackward = "dot_backward" [HALVES],
        DotForwardByBlocks = "dot_forward_by_blocks" [ELEMENTS],
        DotBackwardByBlocks = "dot_backward_by_blocks" [ELEMENTS];
    "feature_counts": FeatureCounts = "feature_counts";
    "fp8_by_first": Fp8GradientByFirst = "fp8_by_first";
    "fp8_cross": Fp8CrossLayer = "fp8_cross_layer", Fp8CrossGradient = "fp8_cross_gradient";
    "fp8_cross_first": Fp8CrossFirst = "fp8_cross_first";
    "fp8_matmul": Fp8Relu = "fp8_relu", Fp8ReluGradient = "fp8_relu_gradient", Fp8Plain = "fp8_plain",
        Fp8ToBf16 = "fp8_to_bf16";
    "fp8_quantize": Fp8Quantize = "fp8_quantize", Fp8QuantizeWeights = "fp8_quantize_weights";
    "fp8_scaling": Fp8Tell = "fp8_tell", Fp8Check = "fp8_check", Fp8Rescale = "fp8_rescale";
    "guard": Squares = "squares", Tally = "tally", Verdict = "verdict", FiniteCheck = "finite" [ELEMENTS],
        FactorCheck = "check_factors" [ELEMENTS];
    "head": Head = "head" [ELEMENTS];
    "initialize": Initialize = "initialize", NewRows = "begin_new_rows";
    "judge": JudgeParts = "judge", JudgeTotal = "judge_total", JudgeKeys = "judge_keys",
        JudgeKeysTotal = "judge_keys_total";
    "look_up": LookUp = "look_up" [ELEMENTS, ELEMENTS], LookUpFp8 = "look_up_fp8" [ELEMENTS],
        LookUpFactors = "look_up_factors" [ELEMENTS, ELEMENTS],
        LookUpKeys = "look_up_keys" [ELEMENTS, ELEMENTS],
        LookUpFp8Factors = "look_up_fp8_factors" [ELEMENTS];
    "machine": MachineForward = "machine_forward" [ELEMENTS],
        MachineBackward = "machine_backward" [ELEMENTS];
    "mark": Mark = "mark";
    "matmul": MatmulReluGradient = "matmul_relu_gradient", MatmulCross = "matmul_cross",
        MatmulCrossGradient = "matmul_cross_gradient";
    "membership": MembershipFind = "membership_find", MembershipReserve = "membership_reserve",
        MembershipList = "membership_list", MembershipAdmit = "membership_admit",
        MembershipResolve = "membership_resolve", MembershipClear = "membership_clear",
        MembershipIndex = "membership_index";
    "merge": Merge = "merge_mark", Link = "merge_link";
    "pack": Pack = "pack";
    "pooled": PooledCount = "pooled_count", PooledScan = "pooled_scan", PooledCut = "pooled_cut",
        PooledAdd = "pooled_add" [ELEMENTS], PooledSend = "pooled_send" [ELEMENTS];
    "positions": PositionsAdd = "positions_add" [ELEMENTS],
        PositionsGradient = "positions_gradient" [ELEMENTS];
    "number": Groups = "number_groups", Number = "number";
    "rails": RailLists = "rail_lists", RailMark = "rail_mark", RailSpread = "rail_spread" [LANES],
        RailGather = "rail_gather" [LANES];
    "reduce": Reduce = "reduce" [ELEMENTS, TEAMS], ReduceParts = "reduce_parts" [TEAMS];
    "route": RouteBegin = "route_begin", RouteCount = "route_count", RouteSort = "route_sort",
        RouteNumber = "route_number", RouteNumberFactors = "route_number_factors";
    "rows": Send = "send" [ELEMENTS, LANES];
    "stamp": Stamp = "stamp";
    "tier": TierLocate = "tier_locate", TierFind = "tier_find", TierForward = "tier_forward",
        TierIds = "tier_ids", TierEntries = "tier_entries", TierSwap = "tier_swap";
    "totals": Totals = "totals";
    "traffic": RowTraffic = "row_traffic";
    "unpack": UnpackIndex = "unpack_index", UnpackValues = "unpack_values", UnpackFixed = "unpack_fixed",
        UnpackSizes = "unpack_sizes", UnpackBags = "unpack_bags",
        UnpackFactors = "unpack_factors";
    "sparse_update": SparseUpdate = "sparse_update" [ELEMENTS, TEAMS], SparseParts = "sparse_parts" [TEAMS],
        LeanUpdate = "lean_update" [ELEMENTS, LEAN_TEAMS];
    "update": Update = "update" [TEAMS], ShareSquares = "share_squares" [TEAMS];
}
