// The exact area under the ROC curve: ranking keys are sorted by score, and the pairs of a positive and a negative are
// counted in integers. `judge.cu` makes the keys.
//
// A key has a score's order in its high word and the label in its low one: 0, 1, or 2 for a sample that has none and
// counts for nothing. Sorting takes four passes over the high word, of counting and of scattering, each of which reads
// 8 bytes a key twice and writes 8; counting the pairs reads 8 bytes twice: 112 bytes a key in all.
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
static_assert(sizeof(KeysCount) == 24);

// Counts the digits of a tile. Grid: one block a tile.
extern "C" __global__ void __launch_bounds__(KEYS_THREADS) keys_count(const __grid_constant__ KeysCount p) {
    __shared__ u32 digits[DIGITS];
    digits[threadIdx.x] = 0;
    __syncthreads();
    const u32 begin = blockIdx.x * KEYS_TILE + threadIdx.x;
#pragma unroll
    for (u32 round = 0; round < KEYS_EACH; round++) {
        const u32 place = begin + round * KEYS_THREADS;
        const u32 digit = place < p.count ? digit_of(p.keys[place], p.pass) : ~0u;
        u32 equals;
        // Scores lie close together, so lanes with equal digits count together.
        if (first_of_equals(digit, equals) && digit != ~0u) atomicAdd(digits + digit, __popc(equals));
    }
    __syncthreads();
    p.counts[threadIdx.x * gridDim.x + blockIdx.x] = digits[threadIdx.x];
}

struct KeysSum {
    u32* counts;
    // Of each digit.
    u32* totals;
    u32 tiles;
    u32 reserved;
};
static_assert(sizeof(KeysSum) == 24);

constexpr u32 KEYS_SUM_THREADS = 1024;

// Replaces each tile's count of a digit by that of the tiles before, and writes the digit's total. Grid: a block a
// digit.
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
static_assert(sizeof(KeysScatter) == 40);

// Puts a tile's keys in the order of a digit, stably. Grid: one block a tile.
extern "C" __global__ void __launch_bounds__(KEYS_THREADS) keys_scatter(const __grid_constant__ KeysScatter p) {
    __shared__ u64 tile[KEYS_TILE];
    // Where a digit's keys go, less where they lie in the tile.
    __shared__ u32 shifts[DIGITS];
    __shared__ u16 ranks[KEYS_WARPS][DIGITS];
    __shared__ u32 warps[KEYS_WARPS + 1];
    const u32 lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    const u32 begin = blockIdx.x * KEYS_TILE, count = min(KEYS_TILE, p.count - begin);
    for (u32 other = 0; other < KEYS_WARPS; other++) ranks[other][threadIdx.x] = 0;
    __syncthreads();

    // A warp takes consecutive keys, round by round; a key's rank is that among the warp's keys of its digit.
    const u32 own = warp * (KEYS_TILE / KEYS_WARPS) + lane;
    u64 keys[KEYS_EACH];
    u16 rank[KEYS_EACH];
#pragma unroll
    for (u32 round = 0; round < KEYS_EACH; round++) {
        const u32 place = own + round * WARP;
        keys[round] = place < count ? p.keys[begin + place] : 0;
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
    for (u32 place = threadIdx.x; place < count; place += KEYS_THREADS) {
        const u64 key = tile[place];
        p.sorted[shifts[digit_of(key, p.pass)] + place] = key;
    }
}

// Positives and negatives.
struct Counts {
    u64 positives;
    u64 negatives;
};

// What lies before a tile: before its first key, and before the last key at which a new score began.
struct Before {
    Counts keys;
    Counts score;
};
static_assert(sizeof(Before) == 32);

struct Ties {
    // Ascending by score.
    const u64* keys;
    // One a tile.
    Before* tiles;
    // Twice the pairs in order, then all positives and all negatives. The first must be 0 at the beginning.
    u64* result;
    u32 count;
    u32 tiles_count;
};
static_assert(sizeof(Ties) == 32);

// Counts of a tile in one word: positives above negatives. Of two places the later one has the greater word, or the
// same.
constexpr u32 POSITIVE = 1 << 16;
static_assert(KEYS_TILE < POSITIVE);

__device__ inline u32 counted(u64 key) {
    const u32 label = u32(key);
    return label == 1 ? POSITIVE : label == 0 ? 1 : 0;
}

__device__ inline Counts counts_of(u32 packed) { return {packed / POSITIVE, packed % POSITIVE}; }

__device__ inline Counts operator+(Counts a, Counts b) {
    return {a.positives + b.positives, a.negatives + b.negatives};
}

// A thread's consecutive keys of a tile.
struct Walk {
    u64 keys[KEYS_EACH];
    // Of the key before them.
    u32 score_before;
    bool first_of_all;
    u32 here;
    // Counts in the tile before them, and in the tile as a whole.
    u32 before;
    u32 in_tile;

    __device__ Walk(const Ties& p, u32* warps) {
        const u32 place = blockIdx.x * KEYS_TILE + threadIdx.x * KEYS_EACH;
        here = place < p.count ? min(KEYS_EACH, p.count - place) : 0;
        u32 own = 0;
#pragma unroll
        for (u32 i = 0; i < KEYS_EACH; i++) {
            keys[i] = i < here ? p.keys[place + i] : 0;
            if (i < here) own += counted(keys[i]);
        }
        first_of_all = place == 0;
        score_before = here > 0 && place > 0 ? u32(p.keys[place - 1] >> 32) : 0;
        before = exclusive_sum<KEYS_THREADS>(own, warps, in_tile);
    }

    // Tells, in order, each place at which a new score begins: 1 + the counts in the tile before it. Returns the last.
    template <class Tell>
    __device__ u32 starts(Tell tell) const {
        u32 packed = before, last = 0;
#pragma unroll
        for (u32 i = 0; i < KEYS_EACH; i++) {
            if (i >= here) break;
            const u32 earlier = i > 0 ? u32(keys[i > 0 ? i - 1 : 0] >> 32) : score_before;
            if ((i == 0 && first_of_all) || u32(keys[i] >> 32) != earlier) {
                last = 1 + packed;
                tell(last);
            }
            packed += counted(keys[i]);
        }
        return last;
    }
};

// The greatest of the values of the threads before, or 0, and of all threads in `all`.
__device__ inline u32 exclusive_max(u32 value, u32* warps, u32& all) {
    const u32 lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    u32 inclusive = value;
#pragma unroll
    for (u32 distance = 1; distance < WARP; distance *= 2) {
        const u32 other = __shfl_up_sync(ALL_LANES, inclusive, distance);
        if (lane >= distance) inclusive = max(inclusive, other);
    }
    if (lane == WARP - 1) warps[warp] = inclusive;
    u32 before = __shfl_up_sync(ALL_LANES, inclusive, 1);
    if (lane == 0) before = 0;
    __syncthreads();
    all = 0;
    for (u32 other = 0; other < KEYS_WARPS; other++) {
        if (other == warp) before = max(before, all);
        all = max(all, warps[other]);
    }
    __syncthreads();
    return before;
}

// Counts each tile's keys, and those before the last new score in it: 1 + the counts, or 0 where none begins there.
// Grid: one block a tile.
extern "C" __global__ void __launch_bounds__(KEYS_THREADS) ties_count(const __grid_constant__ Ties p) {
    __shared__ u32 warps[KEYS_WARPS + 1];
    const Walk walk(p, warps);
    u32 last;
    exclusive_max(walk.starts([](u32) {}), warps, last);
    if (threadIdx.x == 0) p.tiles[blockIdx.x] = {counts_of(walk.in_tile), {last, 0}};
}

constexpr u32 TIES_THREADS = 1024;

// Replaces each tile's counts by what lies before it. Grid: one block.
extern "C" __global__ void __launch_bounds__(TIES_THREADS) ties_before(const __grid_constant__ Ties p) {
    __shared__ Before threads[TIES_THREADS];
    const u32 each = (p.tiles_count + TIES_THREADS - 1) / TIES_THREADS;
    const u32 begin = min(threadIdx.x * each, p.tiles_count), end = min(begin + each, p.tiles_count);
    // Sums of a thread's tiles; a score's place is relative to the first of them, with a mark of whether there is one.
    Counts sum = {0, 0}, score = {0, 0};
    bool any = false;
    for (u32 tile = begin; tile < end; tile++) {
        const Before own = p.tiles[tile];
        if (const u32 last = u32(own.score.positives)) {
            score = sum + counts_of(last - 1);
            any = true;
        }
        sum = sum + own.keys;
    }
    threads[threadIdx.x] = {sum, any ? score : Counts{~u64(0), 0}};
    __syncthreads();
    if (threadIdx.x == 0) {
        Before before = {{0, 0}, {0, 0}};
        for (u32 other = 0; other < TIES_THREADS; other++) {
            const Before own = threads[other];
            threads[other] = before;
            if (own.score.positives != ~u64(0)) before.score = before.keys + own.score;
            before.keys = before.keys + own.keys;
        }
        p.result[1] = before.keys.positives;
        p.result[2] = before.keys.negatives;
    }
    __syncthreads();
    Before before = threads[threadIdx.x];
    for (u32 tile = begin; tile < end; tile++) {
        const Before own = p.tiles[tile];
        p.tiles[tile] = before;
        if (const u32 last = u32(own.score.positives)) before.score = before.keys + counts_of(last - 1);
        before.keys = before.keys + own.keys;
    }
}

// Adds up, over the scores, positives of the score times (twice the negatives below it + its own): the trapezoids
// between the places at which scores begin. Grid: one block a tile.
extern "C" __global__ void __launch_bounds__(KEYS_THREADS) ties_pairs(const __grid_constant__ Ties p) {
    __shared__ u32 warps[KEYS_WARPS + 1];
    __shared__ u64 sums[KEYS_WARPS];
    const Walk walk(p, warps);
    u32 last;
    const u32 own_last = walk.starts([](u32) {});
    const u32 earlier = exclusive_max(own_last, warps, last);
    const Before before = p.tiles[blockIdx.x];
    Counts score = earlier == 0 ? before.score : before.keys + counts_of(earlier - 1);
    u64 sum = 0;
    const auto add = [&](Counts here) {
        sum += (here.positives - score.positives) * (here.negatives + score.negatives);
        score = here;
    };
    walk.starts([&](u32 start) { add(before.keys + counts_of(start - 1)); });
    // The last score ends with the last key.
    const u32 place = blockIdx.x * KEYS_TILE + threadIdx.x * KEYS_EACH;
    if (walk.here > 0 && place + walk.here == p.count) add({p.result[1], p.result[2]});
#pragma unroll
    for (u32 distance = WARP / 2; distance > 0; distance /= 2) sum += __shfl_xor_sync(ALL_LANES, sum, distance);
    if (threadIdx.x % WARP == 0) sums[threadIdx.x / WARP] = sum;
    __syncthreads();
    if (threadIdx.x == 0) {
        for (u32 warp = 1; warp < KEYS_WARPS; warp++) sum += sums[warp];
        // Integers: any order of the blocks gives the same.
        atomicAdd(reinterpret_cast<unsigned long long*>(p.result), static_cast<unsigned long long>(sum));
    }
}
