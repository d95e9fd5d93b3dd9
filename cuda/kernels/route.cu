// The route of a GPU's batch: its look-ups sorted by key, stably, and the distinct keys.
//
// Look-ups are numbered by table, feature, sample and position in the bag. If all rows are on one GPU, each table's
// look-ups are a segment, sorted only by row, in as many passes as row numbers have digits of at most DIGIT_BITS
// bits. Keys of several owners are one segment, ordered by owner; rows that every rank stores are given to an extra
// owner after the last rank. Only the GPU knows how many look-ups there are: grids cover the maximum, and blocks of
// tiles after the end return.
//
// Each pass reads 8 bytes per look-up and writes 8; so does numbering. The first pass reads only 4, the ids, which
// another kernel has read before to count digits. How many pairs of a digit are in earlier tiles, a tile learns from
// what these publish as soon as they can ("decoupled look-back", Adinets and Merrill, "Onesweep", 2022). Blocks take
// tiles in the order in which they start, so every tile that is waited for is already running. Timing affects only
// the waiting, never the result.
#include "common.cuh"

constexpr u32 DIGIT_BITS = 9;
constexpr u32 BINS = 1 << DIGIT_BITS;
constexpr u32 ROUTE_THREADS = 256;
constexpr u32 ROUTE_WARPS = ROUTE_THREADS / WARP;
constexpr u32 ROUNDS = 16;
// Look-ups per tile.
constexpr u32 ROUTE_TILE = ROUTE_THREADS * ROUNDS;
constexpr u32 THREAD_BINS = BINS / ROUTE_THREADS;
// Tiles whose digits one block counts.
constexpr u32 COUNT_TILES = 2;
// The most passes of a table.
constexpr u32 PASSES_MAX = 4;

// Look-ups that are sorted together.
struct Segment {
    // Their features, in the order of segments.
    u32 first;
    u32 features;
    // The smallest key.
    u32 base;
    // Their first tile.
    u32 tile;
    u32 passes;
    u32 digit_bits;
};

struct Route {
    const Feature* features;
    // The numbers of the features, in the order of segments.
    const u32* order;
    const Segment* segments;
    // Segment of each tile.
    const u32* tile_segments;
    const u32* ids;
    // Of ids in columns that are pooled by factors.
    const float* factors;
    const u32* offsets;
    const u32* samples_count;
    // Where each feature's look-ups start, in the order of segments, and where the last one's end.
    u32* begins;
    // [segment][digit][bin]. Zero at the start, like all that follows up to `faults`.
    u32* histograms;
    // [pass][tile][bin], and one per tile.
    u32* states;
    u32* tile_states;
    // One per pass and one more: tiles taken so far.
    u32* tickets;
    // Counts ids that are out of range for their table.
    u32* faults;
    // Keys, each with a bag: the feature's number above `sample_bits`, below the sample's, or the position's if rows are
    // separate. Passes write alternately to the two arrays, the last pass to this one.
    uint2* pairs;
    // In the end slots, each with a bag.
    uint2* sorted;
    // Per sorted look-up whose feature is pooled by factors: its factor.
    float* sorted_factors;
    // Per slot: its row at its owner.
    u32* rows;
    // Unless null, per slot: where its bags start; then the end of the last one.
    u32* starts;
    // Unless null, per owner: its first slot; then the number of slots.
    u32* owner_starts;
    // Unless null, per look-up: its slot, at the feature's first look-up plus the position within the feature, as ids
    // are stored in a column.
    u32* slots;
    // Number of look-ups, and of distinct rows.
    u32* counts;
    u32 features_count;
    u32 tiles;
    u32 passes;
    u32 pass;
    u32 sample_bits;
    // Bits of a look-up's position in its feature.
    u32 position_bits;
    // Ranks of a node.
    u32 ranks;
    // Keys per owner; over several nodes, keys of all ranks of its rail.
    u32 span;
    // The rows that every rank stores, of tables of which it does not store all, by the features' keys; numbered.
    KeySet frequent;
    // Number of the first of them among the rows of each rank.
    u32 frequent_base;
    // The number of ranks, plus one if there are rows that every rank stores.
    u32 owners;
    u32 nodes;
    // Whether the position is sorted instead of the sample, because slots or factors are needed.
    u32 by_position;
};

// Computes where each feature's look-ups start. Grid: one block.
extern "C" __global__ void __launch_bounds__(FEATURES_MAX) route_begin(const __grid_constant__ Route p) {
    __shared__ u32 warps[FEATURES_MAX / WARP + 1];
    u32 count = 0;
    if (threadIdx.x < p.features_count) {
        const Feature feature = p.features[p.order[threadIdx.x]];
        const u32 samples = *p.samples_count;
        if (feature.offsets == FIXED) {
            count = samples * feature.hotness;
        } else {
            count = p.offsets[feature.offsets + samples] - p.offsets[feature.offsets];
        }
    }
    u32 all;
    const u32 begin = exclusive_sum<FEATURES_MAX>(count, warps, all);
    if (threadIdx.x < p.features_count) p.begins[threadIdx.x] = begin;
    if (threadIdx.x > 0) return;
    p.begins[p.features_count] = p.counts[0] = all;
    if (all > 0) return;
    // Nothing to number.
    p.counts[1] = 0;
    if (p.starts != nullptr) p.starts[0] = 0;
    if (p.owner_starts != nullptr) {
        for (u32 owner = 0; owner <= p.owners; owner++) p.owner_starts[owner] = 0;
    }
}

// The look-ups of a tile: `count` from `first` on.
struct Tile {
    Segment segment;
    // Where those of the segment start.
    u32 begin;
    u32 first;
    u32 count;
};

__device__ inline Tile tile_of(const Route& p, u32 tile) {
    const Segment segment = p.segments[p.tile_segments[tile]];
    const u32 begin = p.begins[segment.first], end = p.begins[segment.first + segment.features];
    const u32 first = begin + (tile - segment.tile) * ROUTE_TILE;
    return {segment, begin, first, first < end ? min(ROUTE_TILE, end - first) : 0};
}

// The last sample whose ids start at `wanted` or before; `sample` is such a sample, and the search is faster the
// nearer it is.
__device__ __noinline__ u32 sample_of(const u32* offsets, u32 samples, u32 wanted, u32 sample) {
    u32 step = 1, behind = sample + 1;
    while (behind < samples && offsets[behind] <= wanted) {
        sample = behind;
        behind += step;
        step *= 2;
    }
    behind = min(behind, samples);
    while (behind - sample > 1) {
        const u32 middle = sample + (behind - sample) / 2;
        if (offsets[middle] <= wanted) {
            sample = middle;
        } else {
            behind = middle;
        }
    }
    return sample;
}

// The keys and bags of a segment's look-ups; must be asked for in ascending order.
struct Source {
    // The current feature, by its position in the order of segments, and where its look-ups start and end.
    u32 index;
    u32 begin = 0;
    u32 end = 0;
    u32 number;
    // Its ids, and its offsets or null.
    const u32* ids;
    const u32* offsets;
    u32 hotness;
    u32 base;
    u32 rows;
    u32 owner;
    u32 frequent;
    bool separate;
    u32 sample;

    __device__ explicit Source(const Segment& segment) : index(segment.first - 1) {}

    // The key of a look-up's row. An id out of range is counted, and the last row is taken.
    __device__ u32 key(const Route& p, u32 look_up, u32& faults) {
        if (look_up >= end) {
            do {
                index++;
                begin = p.begins[index];
                end = p.begins[index + 1];
            } while (look_up >= end);
            number = p.order[index];
            const Feature& feature = p.features[number];
            hotness = feature.hotness;
            base = feature.base;
            rows = feature.rows;
            owner = feature.owner;
            frequent = feature.frequent;
            separate = feature.pooling == SEPARATE;
            offsets = feature.offsets == FIXED ? nullptr : p.offsets + feature.offsets;
            ids = p.ids + feature.ids + (offsets == nullptr ? 0 : *offsets);
            sample = 0;
        }
        u32 id = ids[look_up - begin];
        if (id >= rows) {
            faults++;
            id = rows - 1;
        }
        if (p.owners * p.nodes == 1) return base + id;
        if (frequent != UNLISTED && contains(p.frequent, frequent + id)) {
            return p.ranks * p.span + p.frequent_base + number_of(p.frequent, frequent + id);
        }
        if (p.nodes == 1) {
            return owner == TURNS ? id % p.ranks * p.span + base + id / p.ranks : owner * p.span + base + id;
        }
        // Ranks are numbered node by node, but keys are ordered by local rank first.
        const u32 span = p.span / p.nodes, ranks = p.ranks * p.nodes, rank = id % ranks;
        if (owner != TURNS) return owner * span + base + id;
        return (rank % p.ranks * p.nodes + rank / p.ranks) * span + base + id / ranks;
    }

    // Call after `key`.
    __device__ u32 bag(const Route& p, u32 look_up) {
        const u32 at = look_up - begin;
        if (p.by_position != 0) return number << p.position_bits | at;
        if (separate) {
            sample = offsets != nullptr ? *offsets + at : at;
        } else if (offsets != nullptr) {
            sample = sample_of(offsets, *p.samples_count, *offsets + at, sample);
        } else {
            sample = hotness == 1 ? at : at / hotness;
        }
        return number << p.sample_bits | sample;
    }
};

// Counts the digits of all passes. Grid: one block per COUNT_TILES tiles.
extern "C" __global__ void __launch_bounds__(ROUTE_THREADS) route_count(const __grid_constant__ Route p) {
    __shared__ u32 histograms[PASSES_MAX][BINS];
    u32 faults = 0;
    for (u32 i = threadIdx.x; i < PASSES_MAX * BINS; i += ROUTE_THREADS) histograms[i / BINS][i % BINS] = 0;
    const u32 end = min((blockIdx.x + 1) * COUNT_TILES, p.tiles);
    for (u32 number = blockIdx.x * COUNT_TILES; number < end; number++) {
        const Tile tile = tile_of(p, number);
        const Segment& segment = tile.segment;
        const u32 mask = (1u << segment.digit_bits) - 1;
        __syncthreads();
        Source source(segment);
#pragma unroll 4
        for (u32 i = threadIdx.x; i < tile.count; i += ROUTE_THREADS) {
            const u32 key = source.key(p, tile.first + i, faults) - segment.base;
            for (u32 pass = 0; pass < segment.passes; pass++) {
                atomicAdd(&histograms[pass][key >> pass * segment.digit_bits & mask], 1u);
            }
        }
        const bool last = number + 1 == end || p.tile_segments[number + 1] != p.tile_segments[number];
        if (!last) continue;
        __syncthreads();
        u32* all = p.histograms + p.tile_segments[number] * PASSES_MAX * BINS;
        for (u32 i = threadIdx.x; i < PASSES_MAX * BINS; i += ROUTE_THREADS) {
            u32& own = histograms[i / BINS][i % BINS];
            if (own != 0) atomicAdd(all + i, own);
            own = 0;
        }
    }
    if (faults != 0) atomicAdd(p.faults, faults);
}

// A tile's state: 0 (nothing published yet), its own count, or the sum over it and all tiles before it.
constexpr u32 OWN = 1u << 30;
constexpr u32 SUMMED = 2u << 30;
constexpr u32 NUMBER = OWN - 1;
// States read at once.
constexpr u32 STATES_AT_ONCE = 8;

// The state is all that is published, so no other access needs ordering.
__device__ inline void tell(u32* state, u32 value) {
    asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(state), "r"(value) : "memory");
}

__device__ inline u32 told(const u32* state) {
    u32 value;
    asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(state) : "memory");
    return value;
}

// The sum over the `tiles` tiles before; the first of them has published its sum.
__device__ inline u32 sum_before(const u32* state, u32 tiles) {
    u32 sum = 0;
    while (tiles > 0) {
        u32 values[STATES_AT_ONCE], taken = 0;
#pragma unroll
        for (u32 i = 0; i < STATES_AT_ONCE; i++) values[i] = i < tiles ? told(state - u64(i + 1) * BINS) : 0;
#pragma unroll
        for (u32 i = 0; i < STATES_AT_ONCE; i++) {
            if (taken != i || values[i] == 0) continue;
            sum += values[i] & NUMBER;
            if (values[i] & SUMMED) return sum;
            taken++;
        }
        state -= u64(taken) * BINS;
        tiles -= taken;
    }
    return sum;
}

// Takes the next tile. All threads of a block must call this.
__device__ inline u32 next_tile(u32* ticket) {
    __shared__ u32 tile;
    if (threadIdx.x == 0) tile = atomicAdd(ticket, 1u);
    __syncthreads();
    return tile;
}

// Sorts the pairs of tiles by a digit. Grid: one block per tile.
extern "C" __global__ void __launch_bounds__(ROUTE_THREADS, 3) route_sort(const __grid_constant__ Route p) {
    __shared__ uint2 staged[ROUTE_TILE];
    // [warp][digit]: number of pairs of the warp, then where they go in the tile.
    __shared__ u16 starts[ROUTE_WARPS][BINS];
    // Where a digit's pairs go, minus their position in the tile.
    __shared__ u32 targets[BINS];
    __shared__ u32 warps[ROUTE_WARPS + 1];
    const u32 number = next_tile(p.tickets + p.pass);
    const Tile tile = tile_of(p, number);
    const Segment& segment = tile.segment;
    const u32 skipped = p.passes - segment.passes;
    if (p.pass < skipped || tile.count == 0) return;
    const u32 pass = p.pass - skipped, shift = pass * segment.digit_bits, bins = 1u << segment.digit_bits;
    const bool odd = (p.passes - p.pass) % 2 != 0;
    const uint2* from = odd ? p.sorted : p.pairs;
    uint2* to = odd ? p.pairs : p.sorted;
    const u32 lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    for (u32 i = threadIdx.x; i < ROUTE_WARPS * bins; i += ROUTE_THREADS) starts[i >> segment.digit_bits][i & (bins - 1)] = 0;

    // A warp takes consecutive pairs, round by round.
    const u32 own = warp * (ROUTE_TILE / ROUTE_WARPS) + lane;
    uint2 pairs[ROUNDS];
    if (pass > 0) {
#pragma unroll
        for (u32 round = 0; round < ROUNDS; round++) {
            const u32 i = own + round * WARP;
            pairs[round] = i < tile.count ? __ldcs(from + tile.first + i) : make_uint2(segment.base, 0);
        }
    } else {
        Source source(segment);
        u32 counted_before = 0;
#pragma unroll
        for (u32 round = 0; round < ROUNDS; round++) {
            const u32 i = own + round * WARP;
            pairs[round] = make_uint2(segment.base, 0);
            if (i >= tile.count) continue;
            pairs[round].x = source.key(p, tile.first + i, counted_before);
            pairs[round].y = source.bag(p, tile.first + i);
        }
    }
    __syncthreads();

    // A pair's rank among the warp's pairs with the same digit, two per word.
    u32 ranks[ROUNDS / 2] = {};
#pragma unroll
    for (u32 round = 0; round < ROUNDS; round++) {
        const bool here = own + round * WARP < tile.count;
        const u32 digit = (pairs[round].x - segment.base) >> shift & (bins - 1);
        u32 equal = __ballot_sync(ALL_LANES, here);
#pragma unroll
        for (u32 bit = 0; bit < DIGIT_BITS; bit++) {
            const bool set = digit >> bit & 1;
            const u32 others = __ballot_sync(ALL_LANES, set);
            equal &= set ? others : ~others;
        }
        const u32 below = equal & ((1u << lane) - 1);
        if (here) ranks[round / 2] |= (starts[warp][digit] + __popc(below)) << round % 2 * 16;
        __syncwarp();
        if (here && below == 0) starts[warp][digit] += __popc(equal);
        __syncwarp();
    }
    __syncthreads();

    // A thread has one or two bins, or none.
    const u32 of_thread = bins > ROUTE_THREADS ? THREAD_BINS : 1, first_bin = threadIdx.x * of_thread;
    const u32 own_bins = first_bin < bins ? of_thread : 0, in_segment = number - segment.tile;
    u32* states = p.states + (u64(p.pass) * p.tiles + number) * BINS + first_bin;
    const u32* histogram = p.histograms + (p.tile_segments[number] * PASSES_MAX + pass) * BINS + first_bin;
    u32 counts[THREAD_BINS], totals[THREAD_BINS], count = 0, total = 0, all;
#pragma unroll
    for (u32 i = 0; i < THREAD_BINS; i++) {
        counts[i] = totals[i] = 0;
        if (i >= own_bins) continue;
#pragma unroll
        for (u32 other = 0; other < ROUTE_WARPS; other++) counts[i] += starts[other][first_bin + i];
        tell(states + i, (in_segment == 0 ? SUMMED : OWN) | counts[i]);
        count += counts[i];
        totals[i] = histogram[i];
        total += totals[i];
    }
    u32 local = exclusive_sum<ROUTE_THREADS>(count, warps, all);
    u32 global = tile.begin + exclusive_sum<ROUTE_THREADS>(total, warps, all);
#pragma unroll
    for (u32 i = 0; i < THREAD_BINS; i++) {
        if (i >= own_bins) continue;
        u32 before = 0;
        if (in_segment > 0) {
            before = sum_before(states + i, in_segment);
            tell(states + i, SUMMED | (before + counts[i]));
        }
        targets[first_bin + i] = global + before - local;
        u32 start = local;
#pragma unroll
        for (u32 other = 0; other < ROUTE_WARPS; other++) {
            const u32 of_warp = starts[other][first_bin + i];
            starts[other][first_bin + i] = start;
            start += of_warp;
        }
        local += counts[i];
        global += totals[i];
    }
    __syncthreads();
    // Staged in shared memory, so that neighbouring threads write neighbouring pairs.
#pragma unroll
    for (u32 round = 0; round < ROUNDS; round++) {
        if (own + round * WARP >= tile.count) continue;
        const u32 digit = (pairs[round].x - segment.base) >> shift & (bins - 1);
        staged[starts[warp][digit] + (ranks[round / 2] >> round % 2 * 16 & 0xffff)] = pairs[round];
    }
    __syncthreads();
    for (u32 i = threadIdx.x; i < tile.count; i += ROUTE_THREADS) {
        const uint2 pair = staged[i];
        to[targets[(pair.x - segment.base) >> shift & (bins - 1)] + i] = pair;
    }
}

// Stores a look-up's slot at its position, and its factor where it was sorted to; returns its bag.
template <bool FACTORS>
__device__ inline u32 leave_slot(const Route& p, u32 look_up, u32 slot, u32 sorted) {
    const u32 number = look_up >> p.position_bits, at = look_up & ((1u << p.position_bits) - 1);
    const Feature& feature = p.features[number];
    u32 sample = at, position = at;
    if (feature.offsets != FIXED) {
        const u32* offsets = p.offsets + feature.offsets;
        position += *offsets;
        sample = feature.pooling == SEPARATE ? position : sample_of(offsets, *p.samples_count, position, 0);
    } else if (feature.hotness != 1 && feature.pooling != SEPARATE) {
        sample = at / feature.hotness;
    }
    if (!FACTORS || p.slots != nullptr) p.slots[feature.slots + position] = slot;
    if (FACTORS && feature.pooling == BY_FACTORS) {
        p.sorted_factors[sorted] = p.factors[feature.factors + position];
    }
    return number << p.sample_bits | sample;
}

// Numbers the distinct keys and lists their rows.
template <bool FACTORS>
__device__ inline void number_rows(const Route& p) {
    __shared__ u32 heads_of[ROUTE_WARPS + 1];
    __shared__ u32 before_tile;
    const u32 number = next_tile(p.tickets + p.passes), look_ups = p.counts[0], begin = number * ROUTE_TILE;
    if (begin >= look_ups) return;
    const u32 count = min(ROUTE_TILE, look_ups - begin);
    const u32 lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    const u32 own = warp * (ROUTE_TILE / ROUTE_WARPS) + lane;
    const uint2* from = p.pairs + begin;
    uint2 pairs[ROUNDS];
#pragma unroll
    for (u32 round = 0; round < ROUNDS; round++) {
        const u32 i = own + round * WARP;
        pairs[round] = i < count ? from[i] : make_uint2(0, 0);
    }
    // The row before the warp's first.
    u32 last = ~0u, heads[ROUNDS], sum = 0;
    if (begin + own - lane > 0 && own - lane < count) last = (from + (own - lane))[-1].x;
#pragma unroll
    for (u32 round = 0; round < ROUNDS; round++) {
        const u32 before = __shfl_up_sync(ALL_LANES, pairs[round].x, 1);
        const bool head = own + round * WARP < count && pairs[round].x != (lane == 0 ? last : before);
        heads[round] = __ballot_sync(ALL_LANES, head);
        last = __shfl_sync(ALL_LANES, pairs[round].x, WARP - 1);
        sum += __popc(heads[round]);
    }
    if (lane == 0) heads_of[warp] = sum;
    __syncthreads();
    u32 before_warp = 0, in_tile = 0;
#pragma unroll
    for (u32 other = 0; other < ROUTE_WARPS; other++) {
        if (other < warp) before_warp += heads_of[other];
        in_tile += heads_of[other];
    }
    if (warp == 0) {
        u32* state = p.tile_states + number;
        u32 before = 0;
        if (lane == 0) tell(state, (number == 0 ? SUMMED : OWN) | in_tile);
        for (u32 tiles = number; tiles > 0;) {
            // One lane per tile, the nearest first; lanes before the first tile use a sum of zero.
            const u32 value = lane < tiles ? told(p.tile_states + (tiles - 1 - lane)) : SUMMED;
            if (__any_sync(ALL_LANES, value == 0)) continue;
            const u32 summed = __ballot_sync(ALL_LANES, (value & SUMMED) != 0);
            const u32 wanted = summed == 0 ? WARP : __ffs(summed);
            before += __reduce_add_sync(ALL_LANES, lane < wanted ? value & NUMBER : 0);
            tiles = summed == 0 ? tiles - WARP : 0;
        }
        if (lane == 0) {
            if (number > 0) tell(state, SUMMED | (before + in_tile));
            before_tile = before;
        }
    }
    __syncthreads();
    u32 next = before_tile + before_warp;
#pragma unroll
    for (u32 round = 0; round < ROUNDS; round++) {
        const u32 i = own + round * WARP;
        const u32 slot = next + __popc(heads[round] & (~0u >> (WARP - 1 - lane))) - 1;
        next += __popc(heads[round]);
        if (i >= count) continue;
        const bool by_position = FACTORS || p.slots != nullptr;
        const u32 bag = by_position ? leave_slot<FACTORS>(p, pairs[round].y, slot, begin + i) : pairs[round].y;
        __stcs(p.sorted + begin + i, make_uint2(slot, bag));
        if (heads[round] >> lane & 1) {
            const u32 key = pairs[round].x, owner = p.owners == 1 ? 0 : key / p.span;
            p.rows[slot] = key - owner * p.span;
            if (p.starts != nullptr) p.starts[slot] = begin + i;
            if (p.owner_starts != nullptr) {
                // Owners between the previous row's and this one have no rows.
                u32 other = begin + i == 0 ? 0 : (from + i)[-1].x / p.span + 1;
                for (; other <= owner; other++) p.owner_starts[other] = slot;
            }
        }
    }
    if (begin + count == look_ups && threadIdx.x == 0) {
        const u32 slots = before_tile + in_tile;
        p.counts[1] = slots;
        if (p.starts != nullptr) p.starts[slots] = look_ups;
        if (p.owner_starts != nullptr) {
            for (u32 other = from[count - 1].x / p.span + 1; other <= p.owners; other++) p.owner_starts[other] = slots;
        }
    }
}

// Grid: one block per tile of all look-ups, across tables.
extern "C" __global__ void __launch_bounds__(ROUTE_THREADS) route_number(const __grid_constant__ Route p) {
    number_rows<false>(p);
}

// The same if some features are pooled by factors.
extern "C" __global__ void __launch_bounds__(ROUTE_THREADS) route_number_factors(const __grid_constant__ Route p) {
    number_rows<true>(p);
}
