// The exact area under the ROC curve: ranking keys (made by `judge.cu`) are sorted by score, and pairs of a positive
// and a negative are counted in integers.
//
// The high word of a key is the score, mapped so that integer order is score order. Without weights the low word is
// the label, or 2 for a sample without a label, which is not counted. With weights the low word has the label in its
// highest bit and the bits of the weight (never negative) below it; a sample without a label has weight 0.
//
// Sorting takes four passes over the high word. Each pass counts, then scatters: it reads 8 bytes per key twice and
// writes 8. Counting the pairs reads 8 bytes twice, and the histogram of scores once: 120 bytes per key in all. With
// weights, one more pass counts the weights by exponent and reads 8 bytes per key.
#include "common.cuh"

constexpr u32 KEYS_TILE = 4096;
constexpr u32 KEYS_THREADS = 256;
constexpr u32 KEYS_WARPS = KEYS_THREADS / WARP;
constexpr u32 KEYS_EACH = KEYS_TILE / KEYS_THREADS;
constexpr u32 DIGITS = 256;
static_assert(DIGITS == KEYS_THREADS, "a thread has a digit");

__device__ inline u32 digit_of(u64 key, u32 pass) { return u32(key >> (32 + 8 * pass)) % DIGITS; }

struct KeysCount {
    const u64* keys;
    // [digit][tile]
    u32* counts;
    u32 count;
    u32 pass;
};

// Counts the digits of a tile. Grid: one block per tile.
extern "C" __global__ void __launch_bounds__(KEYS_THREADS) keys_count(const __grid_constant__ KeysCount p) {
    __shared__ u32 digits[DIGITS];
    digits[threadIdx.x] = 0;
    __syncthreads();
    const u32 begin = blockIdx.x * KEYS_TILE + threadIdx.x;
#pragma unroll
    for (u32 round = 0; round < KEYS_EACH; round++) {
        const u32 index = begin + round * KEYS_THREADS;
        const u32 digit = index < p.count ? digit_of(p.keys[index], p.pass) : ~0u;
        u32 equals;
        // Neighbouring scores often share a digit, so lanes with equal digits are counted with one atomic.
        if (first_of_equals(digit, equals) && digit != ~0u) atomicAdd(digits + digit, __popc(equals));
    }
    __syncthreads();
    p.counts[threadIdx.x * gridDim.x + blockIdx.x] = digits[threadIdx.x];
}

struct KeysSum {
    u32* counts;
    // One per digit.
    u32* totals;
    u32 tiles;
    u32 reserved;
};

constexpr u32 KEYS_SUM_THREADS = 1024;

// Replaces each tile's count of a digit by the sum over the tiles before it, and writes the digit's total. Grid: one
// block per digit.
extern "C" __global__ void __launch_bounds__(KEYS_SUM_THREADS) keys_sum(const __grid_constant__ KeysSum p) {
    __shared__ u32 warps[KEYS_SUM_THREADS / WARP + 1];
    u32* counts = p.counts + blockIdx.x * p.tiles;
    u32 before = 0;
    for (u32 first = 0; first < p.tiles; first += KEYS_SUM_THREADS) {
        const u32 tile = first + threadIdx.x;
        u32 all;
        const u32 sum = exclusive_sum<KEYS_SUM_THREADS>(tile < p.tiles ? counts[tile] : 0, warps, all);
        if (tile < p.tiles) counts[tile] = before + sum;
        before += all;
    }
    if (threadIdx.x == 0) p.totals[blockIdx.x] = before;
}

struct KeysScatter {
    const u64* keys;
    const u32* counts;
    const u32* totals;
    u64* sorted;
    u32 count;
    u32 pass;
};

// Sorts a tile's keys by a digit, stably. Grid: one block per tile.
extern "C" __global__ void __launch_bounds__(KEYS_THREADS) keys_scatter(const __grid_constant__ KeysScatter p) {
    __shared__ u64 tile[KEYS_TILE];
    // Where a digit's keys go, minus their position in the tile.
    __shared__ u32 shifts[DIGITS];
    __shared__ u16 ranks[KEYS_WARPS][DIGITS];
    __shared__ u32 warps[KEYS_WARPS + 1];
    const u32 lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    const u32 begin = blockIdx.x * KEYS_TILE, count = min(KEYS_TILE, p.count - begin);
    for (u32 other = 0; other < KEYS_WARPS; other++) ranks[other][threadIdx.x] = 0;
    __syncthreads();

    // A warp takes consecutive keys, round by round; a key's rank is its position among the warp's keys with the same
    // digit.
    const u32 own = warp * (KEYS_TILE / KEYS_WARPS) + lane;
    u64 keys[KEYS_EACH];
    u16 rank[KEYS_EACH];
#pragma unroll
    for (u32 round = 0; round < KEYS_EACH; round++) {
        const u32 index = own + round * WARP;
        keys[round] = index < count ? p.keys[begin + index] : 0;
    }
#pragma unroll
    for (u32 round = 0; round < KEYS_EACH; round++) {
        const bool here = own + round * WARP < count;
        const u32 digit = here ? digit_of(keys[round], p.pass) : DIGITS;
        u32 equals;
        const bool first = first_of_equals(digit, equals);
        if (here) rank[round] = ranks[warp][digit] + __popc(equals & ((1u << lane) - 1));
        __syncwarp();
        if (here && first) ranks[warp][digit] += __popc(equals);
        __syncwarp();
    }
    __syncthreads();

    const u32 digit = threadIdx.x;
    u32 in_tile = 0;
#pragma unroll
    for (u32 other = 0; other < KEYS_WARPS; other++) {
        const u32 of_warp = ranks[other][digit];
        ranks[other][digit] = in_tile;
        in_tile += of_warp;
    }
    u32 all;
    const u32 local = exclusive_sum<KEYS_THREADS>(in_tile, warps, all);
    const u32 global = exclusive_sum<KEYS_THREADS>(p.totals[digit], warps, all);
#pragma unroll
    for (u32 other = 0; other < KEYS_WARPS; other++) ranks[other][digit] += local;
    shifts[digit] = global + p.counts[digit * gridDim.x + blockIdx.x] - local;
    __syncthreads();
#pragma unroll
    for (u32 round = 0; round < KEYS_EACH; round++) {
        if (own + round * WARP >= count) continue;
        tile[ranks[warp][digit_of(keys[round], p.pass)] + rank[round]] = keys[round];
    }
    __syncthreads();
    for (u32 index = threadIdx.x; index < count; index += KEYS_THREADS) {
        const u64 key = tile[index];
        p.sorted[shifts[digit_of(key, p.pass)] + index] = key;
    }
}

// Labels times weight exponents: the 9 highest bits of a weighted key's low word.
constexpr u32 WEIGHT_CLASSES = 512;

struct WeightsCount {
    const u64* keys;
    // [label][exponent]: must be 0 before.
    u32* classes;
    u32 count;
    u32 reserved;
};

// Counts the samples per label and weight exponent, skipping those with weight 0. Grid: one block per tile.
extern "C" __global__ void __launch_bounds__(KEYS_THREADS) weights_count(const __grid_constant__ WeightsCount p) {
    __shared__ u32 classes[WEIGHT_CLASSES];
    for (u32 i = threadIdx.x; i < WEIGHT_CLASSES; i += KEYS_THREADS) classes[i] = 0;
    __syncthreads();
    const u32 begin = blockIdx.x * KEYS_TILE + threadIdx.x;
#pragma unroll
    for (u32 round = 0; round < KEYS_EACH; round++) {
        const u32 index = begin + round * KEYS_THREADS;
        const u32 low = index < p.count ? u32(p.keys[index]) : 0;
        const u32 own = low << 1 != 0 ? low >> 23 : ~0u;
        u32 equals;
        if (first_of_equals(own, equals) && own != ~0u) atomicAdd(classes + own, __popc(equals));
    }
    __syncthreads();
    for (u32 i = threadIdx.x; i < WEIGHT_CLASSES; i += KEYS_THREADS) {
        if (classes[i] > 0) atomicAdd(p.classes + i, classes[i]);
    }
}

// Positives and negatives: numbers of samples, or sums of weights as integers, below 2^63 for each label.
struct Counts {
    u64 positives;
    u64 negatives;
};

// Counts before a tile: before its first key, and before the last key at which a new score started.
struct PrefixCounts {
    Counts keys;
    Counts score;
};

struct Ties {
    // Ascending by score.
    const u64* keys;
    // One per tile.
    PrefixCounts* tiles;
    // Twice the number of ordered pairs, as four addends where each counts 2^32 times as much as the one before it;
    // then all positives and all negatives. The addends must be 0 at the start.
    u64* result;
    // [label][bin]: counts by score. Must be 0 at the start.
    u64* bins;
    // Factors that weights are multiplied by: of negatives and of positives.
    double scales[2];
    u32 count;
    u32 tiles_count;
};
constexpr u32 PAIRS_ADDENDS = 4;

using u128 = unsigned __int128;

__device__ inline Counts operator+(Counts a, Counts b) {
    return {a.positives + b.positives, a.negatives + b.negatives};
}

__device__ inline u32 shuffled_up(u32 value, u32 distance) { return __shfl_up_sync(ALL_LANES, value, distance); }
__device__ inline Counts shuffled_up(Counts value, u32 distance) {
    return {__shfl_up_sync(ALL_LANES, value.positives, distance), __shfl_up_sync(ALL_LANES, value.negatives, distance)};
}

__device__ inline u64 shuffled_xor(u64 value, u32 mask) { return __shfl_xor_sync(ALL_LANES, value, mask); }
__device__ inline u128 shuffled_xor(u128 value, u32 mask) {
    const u64 high = __shfl_xor_sync(ALL_LANES, u64(value >> 64), mask);
    return u128(high) << 64 | __shfl_xor_sync(ALL_LANES, u64(value), mask);
}

// Counts samples. Counts within a tile fit one word, positives in the upper half.
struct OfSamples {
    using InTile = u32;
    using Pairs = u64;
    static constexpr u32 POSITIVE = 1 << 16;
    static_assert(KEYS_TILE < POSITIVE);

    __device__ explicit OfSamples(const Ties&) {}

    __device__ InTile counted(u64 key) const {
        const u32 label = u32(key);
        return label == 1 ? POSITIVE : label == 0 ? 1 : 0;
    }

    static __device__ Counts counts(InTile packed) { return {packed / POSITIVE, packed % POSITIVE}; }

    static __device__ InTile greater(InTile a, InTile b) { return max(a, b); }

    static __device__ void add_to(u64* addends, Pairs pairs) {
        atomicAdd(reinterpret_cast<unsigned long long*>(addends), static_cast<unsigned long long>(pairs));
    }
};

// Counts weights.
struct OfWeights {
    using InTile = Counts;
    using Pairs = u128;

    double negative;
    double positive;

    __device__ explicit OfWeights(const Ties& p) : negative(p.scales[0]), positive(p.scales[1]) {}

    // The same operations as on the host: an exact product, rounded to the nearest integer, ties to even.
    __device__ InTile counted(u64 key) const {
        const u32 low = u32(key);
        const double weight = __uint_as_float(low & 0x7fffffffu);
        if (low >> 31) return {__double2ull_rn(weight * positive), 0};
        return {0, __double2ull_rn(weight * negative)};
    }

    static __device__ Counts counts(InTile counts) { return counts; }

    static __device__ InTile greater(InTile a, InTile b) {
        return {max(a.positives, b.positives), max(a.negatives, b.negatives)};
    }

    static __device__ void add_to(u64* addends, Pairs pairs) {
#pragma unroll
        for (u32 i = 0; i < PAIRS_ADDENDS; i++) {
            const auto addend = static_cast<unsigned long long>(u32(pairs >> (32 * i)));
            if (addend != 0) atomicAdd(reinterpret_cast<unsigned long long*>(addends + i), addend);
        }
    }
};

// Counts with a mark (one more positive), which distinguishes the counts of a start from 0, which means "no start".
// Counts grow along the keys, so the maximum over several starts is the last one.
__device__ inline Counts marked(Counts counts) { return {counts.positives + 1, counts.negatives}; }
__device__ inline Counts unmarked(Counts counts) { return {counts.positives - 1, counts.negatives}; }
__device__ inline u32 marked(u32 packed) { return packed + OfSamples::POSITIVE; }
__device__ inline u32 unmarked(u32 packed) { return packed - OfSamples::POSITIVE; }
__device__ inline bool is_marked(Counts counts) { return counts.positives > 0; }
__device__ inline bool is_marked(u32 packed) { return packed > 0; }

// Returns the combined values of the threads before this one, or 0 for the first; `all` becomes the value over all
// threads. `warps` is shared memory for one value per warp.
template <class Value, class Combine>
__device__ Value exclusive_scan(Value value, Value* warps, Value& all, Combine combine) {
    const u32 lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    Value inclusive = value;
#pragma unroll
    for (u32 distance = 1; distance < WARP; distance *= 2) {
        const Value other = shuffled_up(inclusive, distance);
        if (lane >= distance) inclusive = combine(other, inclusive);
    }
    if (lane == WARP - 1) warps[warp] = inclusive;
    Value before = shuffled_up(inclusive, 1);
    if (lane == 0) before = {};
    __syncthreads();
    all = {};
    // Unrolled, it needs more registers, and one block less is resident.
#pragma unroll 1
    for (u32 other = 0; other < KEYS_WARPS; other++) {
        if (other == warp) before = combine(all, before);
        all = combine(all, warps[other]);
    }
    __syncthreads();
    return before;
}

// A thread's consecutive keys of a tile.
template <class Of>
struct Walk {
    using InTile = typename Of::InTile;

    Of of;
    u64 keys[KEYS_EACH];
    // Score of the key before them.
    u32 score_before;
    bool first_of_all;
    u32 here;
    // Counts in the tile before these keys, and in the whole tile.
    InTile before;
    InTile in_tile;

    __device__ Walk(const Ties& p, InTile* warps) : of(p) {
        const u32 index = blockIdx.x * KEYS_TILE + threadIdx.x * KEYS_EACH;
        here = index < p.count ? min(KEYS_EACH, p.count - index) : 0;
        InTile own = {};
#pragma unroll
        for (u32 i = 0; i < KEYS_EACH; i++) {
            keys[i] = i < here ? p.keys[index + i] : 0;
            if (i < here) own = own + of.counted(keys[i]);
        }
        first_of_all = index == 0;
        score_before = here > 0 && index > 0 ? u32(p.keys[index - 1] >> 32) : 0;
        before = exclusive_scan(own, warps, in_tile, [](InTile a, InTile b) { return a + b; });
    }

    // Passes each start of a new score, in order, to `tell`: the counts in the tile before it. Returns those of the
    // last start, marked, or 0.
    template <class Tell>
    __device__ InTile starts(Tell tell) const {
        InTile counts = before, last = {};
#pragma unroll
        for (u32 i = 0; i < KEYS_EACH; i++) {
            if (i >= here) break;
            const u32 earlier = i > 0 ? u32(keys[i > 0 ? i - 1 : 0] >> 32) : score_before;
            if ((i == 0 && first_of_all) || u32(keys[i] >> 32) != earlier) {
                last = marked(counts);
                tell(counts);
            }
            counts = counts + of.counted(keys[i]);
        }
        return last;
    }

    // The last start in the tile before the thread's keys, marked, or 0. `all` becomes the last one of the tile.
    __device__ InTile start_before(InTile* warps, InTile& all) const {
        return exclusive_scan(starts([](InTile) {}), warps, all, Of::greater);
    }
};

template <class Of>
__device__ void count_tile(const Ties& p) {
    using InTile = typename Of::InTile;
    __shared__ InTile warps[KEYS_WARPS];
    const Walk<Of> walk(p, warps);
    InTile last;
    walk.start_before(warps, last);
    const Counts start = is_marked(last) ? marked(Of::counts(unmarked(last))) : Counts{0, 0};
    if (threadIdx.x == 0) p.tiles[blockIdx.x] = {Of::counts(walk.in_tile), start};
}

// Counts each tile's keys and those before the last new score in it (marked; 0 if no score starts there). Grid: one
// block per tile.
extern "C" __global__ void __launch_bounds__(KEYS_THREADS) ties_count(const __grid_constant__ Ties p) {
    count_tile<OfSamples>(p);
}

extern "C" __global__ void __launch_bounds__(KEYS_THREADS) ties_count_weights(const __grid_constant__ Ties p) {
    count_tile<OfWeights>(p);
}

constexpr u32 TIES_THREADS = 1024;

// Replaces each tile's counts by the counts before it. Grid: one block.
extern "C" __global__ void __launch_bounds__(TIES_THREADS) ties_before(const __grid_constant__ Ties p) {
    __shared__ PrefixCounts threads[TIES_THREADS];
    const u32 each = (p.tiles_count + TIES_THREADS - 1) / TIES_THREADS;
    const u32 begin = min(threadIdx.x * each, p.tiles_count), end = min(begin + each, p.tiles_count);
    // Sums over a thread's tiles. `score` is relative to the first of them; `any` is whether a score starts in one of
    // them.
    Counts sum = {0, 0}, score = {0, 0};
    bool any = false;
    for (u32 tile = begin; tile < end; tile++) {
        const PrefixCounts own = p.tiles[tile];
        if (is_marked(own.score)) {
            score = sum + unmarked(own.score);
            any = true;
        }
        sum = sum + own.keys;
    }
    threads[threadIdx.x] = {sum, any ? score : Counts{~u64(0), 0}};
    __syncthreads();
    if (threadIdx.x == 0) {
        PrefixCounts before = {{0, 0}, {0, 0}};
        for (u32 other = 0; other < TIES_THREADS; other++) {
            const PrefixCounts own = threads[other];
            threads[other] = before;
            if (own.score.positives != ~u64(0)) before.score = before.keys + own.score;
            before.keys = before.keys + own.keys;
        }
        p.result[PAIRS_ADDENDS] = before.keys.positives;
        p.result[PAIRS_ADDENDS + 1] = before.keys.negatives;
    }
    __syncthreads();
    PrefixCounts before = threads[threadIdx.x];
    for (u32 tile = begin; tile < end; tile++) {
        const PrefixCounts own = p.tiles[tile];
        p.tiles[tile] = before;
        if (is_marked(own.score)) before.score = before.keys + unmarked(own.score);
        before.keys = before.keys + own.keys;
    }
}

template <class Of>
__device__ void count_pairs(const Ties& p) {
    using InTile = typename Of::InTile;
    using Pairs = typename Of::Pairs;
    __shared__ InTile warps[KEYS_WARPS];
    __shared__ Pairs sums[KEYS_WARPS];
    const Walk<Of> walk(p, warps);
    InTile last;
    const InTile earlier = walk.start_before(warps, last);
    const PrefixCounts before = p.tiles[blockIdx.x];
    Counts score = is_marked(earlier) ? before.keys + Of::counts(unmarked(earlier)) : before.score;
    Pairs sum = 0;
    const auto add = [&](Counts here) {
        sum += Pairs(here.positives - score.positives) * (here.negatives + score.negatives);
        score = here;
    };
    walk.starts([&](InTile start) { add(before.keys + Of::counts(start)); });
    // The last score ends with the last key.
    const u32 index = blockIdx.x * KEYS_TILE + threadIdx.x * KEYS_EACH;
    if (walk.here > 0 && index + walk.here == p.count) {
        add({p.result[PAIRS_ADDENDS], p.result[PAIRS_ADDENDS + 1]});
    }
#pragma unroll
    for (u32 distance = WARP / 2; distance > 0; distance /= 2) sum += shuffled_xor(sum, distance);
    if (threadIdx.x % WARP == 0) sums[threadIdx.x / WARP] = sum;
    __syncthreads();
    if (threadIdx.x == 0) {
        for (u32 warp = 1; warp < KEYS_WARPS; warp++) sum += sums[warp];
        // Integer sums: any order of the blocks gives the same bits.
        Of::add_to(p.result, sum);
    }
}

// Sums, over the scores, positives of the score times (twice the negatives below it + its own negatives): the
// trapezoids between the starts of scores. Grid: one block per tile.
extern "C" __global__ void __launch_bounds__(KEYS_THREADS) ties_pairs(const __grid_constant__ Ties p) {
    count_pairs<OfSamples>(p);
}

extern "C" __global__ void __launch_bounds__(KEYS_THREADS) ties_pairs_weights(const __grid_constant__ Ties p) {
    count_pairs<OfWeights>(p);
}

constexpr u32 SCORE_BINS = 512;
constexpr float SCORE_BINS_FROM = -16.0f;
constexpr float SCORE_BINS_PER_UNIT = 16.0f;

// The bin of a key's score. The product is exact, so only the sum is rounded, as on the host.
__device__ inline u32 bin_of(u64 key) {
    const u32 ordered = u32(key >> 32);
    const float score = __uint_as_float(ordered >> 31 ? ordered & 0x7fffffffu : ~ordered);
    const float bin = floorf(__fmul_rn(__fsub_rn(score, SCORE_BINS_FROM), SCORE_BINS_PER_UNIT));
    return u32(fminf(fmaxf(bin, 0.0f), float(SCORE_BINS - 1)));
}

__device__ inline void add_to_bin(u64* bins, u32 bin, Counts counts) {
    const auto add = [&](u32 label, u64 count) {
        if (count == 0) return;
        auto* sum = reinterpret_cast<unsigned long long*>(bins + label * SCORE_BINS + bin);
        atomicAdd(sum, static_cast<unsigned long long>(count));
    };
    add(0, counts.negatives);
    add(1, counts.positives);
}

template <class Of>
__device__ void count_bins(const Ties& p) {
    using InTile = typename Of::InTile;
    __shared__ u64 bins[2 * SCORE_BINS];
    for (u32 i = threadIdx.x; i < 2 * SCORE_BINS; i += KEYS_THREADS) bins[i] = 0;
    __syncthreads();
    const Of of(p);
    const u32 index = blockIdx.x * KEYS_TILE + threadIdx.x * KEYS_EACH;
    const u32 here = index < p.count ? min(KEYS_EACH, p.count - index) : 0;
    u64 keys[KEYS_EACH];
#pragma unroll
    for (u32 i = 0; i < KEYS_EACH; i++) keys[i] = i < here ? p.keys[index + i] : 0;
    // Keys ascend, so a thread's keys of a bin follow each other, and most threads have keys of one bin only.
    u32 bin = SCORE_BINS;
    InTile sum = {};
#pragma unroll
    for (u32 i = 0; i < KEYS_EACH; i++) {
        if (i >= here) break;
        const u32 own = bin_of(keys[i]);
        if (own != bin) {
            if (bin != SCORE_BINS) add_to_bin(bins, bin, Of::counts(sum));
            bin = own;
            sum = {};
        }
        sum = sum + of.counted(keys[i]);
    }
    // So have most warps, which then need one atomic per label instead of 32.
    Counts last = Of::counts(sum);
    const bool shared = __all_sync(ALL_LANES, bin == __shfl_sync(ALL_LANES, bin, 0));
    if (shared) {
#pragma unroll
        for (u32 distance = WARP / 2; distance > 0; distance /= 2) {
            last = last + Counts{shuffled_xor(last.positives, distance), shuffled_xor(last.negatives, distance)};
        }
    }
    if (bin != SCORE_BINS && (!shared || threadIdx.x % WARP == 0)) add_to_bin(bins, bin, last);
    __syncthreads();
    for (u32 i = threadIdx.x; i < SCORE_BINS; i += KEYS_THREADS) {
        // Integer sums: any order of the blocks gives the same bits.
        add_to_bin(p.bins, i, {bins[SCORE_BINS + i], bins[i]});
    }
}

// Counts the keys by label and bin of the score. Grid: one block per tile.
extern "C" __global__ void __launch_bounds__(KEYS_THREADS) ties_bins(const __grid_constant__ Ties p) {
    count_bins<OfSamples>(p);
}

extern "C" __global__ void __launch_bounds__(KEYS_THREADS) ties_bins_weights(const __grid_constant__ Ties p) {
    count_bins<OfWeights>(p);
}
