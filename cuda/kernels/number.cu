// Numbers the members of a set of keys, and lists them by owner and row.
//
// Reads every bit twice; writes 4 bytes per line of 256 keys and 4 per member.
#include "common.cuh"

struct Number {
    KeySet set;
    // The members, as rows of their owners.
    u32* rows;
    // Where each owner's members start, then the end of the last.
    u32* starts;
    // Unless null: `sources_width` zeros are written here for each member.
    u32* sources;
    u32 owners;
    u32 span;
    u32 sources_width;
    u32 reserved;
};

// Two words per thread, four threads per line, one block per group.
constexpr u32 WORDS = 2;
constexpr u32 THREADS = GROUP_KEYS / 32 / WORDS;
static_assert(THREADS == 1024);

// Counts the members of each group. Grid: one block per group of keys.
extern "C" __global__ void __launch_bounds__(THREADS) number_groups(const __grid_constant__ Number p) {
    __shared__ u32 warps[THREADS / WARP + 1];
    const uint2 words = reinterpret_cast<const uint2*>(p.set.bits)[blockIdx.x * THREADS + threadIdx.x];
    u32 all;
    exclusive_sum<THREADS>(__popc(words.x) + __popc(words.y), warps, all);
    if (threadIdx.x == 0) p.set.groups[blockIdx.x] = all;
}

// Grid: one block per group of keys.
extern "C" __global__ void __launch_bounds__(THREADS) number(const __grid_constant__ Number p) {
    __shared__ u32 warps[THREADS / WARP + 1];
    const u32 group = blockIdx.x, thread = group * THREADS + threadIdx.x;
    const uint2 pair = reinterpret_cast<const uint2*>(p.set.bits)[thread];
    u32 own = 0, before_group, in_group;
    for (u32 other = threadIdx.x; other < group; other += THREADS) own += p.set.groups[other];
    exclusive_sum<THREADS>(own, warps, before_group);
    u32 next = before_group + exclusive_sum<THREADS>(__popc(pair.x) + __popc(pair.y), warps, in_group);
    if (threadIdx.x % (LINE_WORDS / WORDS) == 0) p.set.lines[thread / (LINE_WORDS / WORDS)] = next;

    const u32 owner = group * GROUP_KEYS / p.span;
    const u32 thread_row = thread * WORDS * 32 - owner * p.span;
    // A warp lists one word at a time, one lane per bit: if keys are dense, a thread per word would write far from
    // its neighbours.
    const u32 lane = threadIdx.x % WARP, below = (1u << lane) - 1;
    const u32 warp_row = thread_row - lane * WORDS * 32 + lane;
#pragma unroll
    for (u32 i = 0; i < WORDS; i++) {
        const u32 words = i == 0 ? pair.x : pair.y;
        const auto list = [&](u32 source) {
            const u32 word = __shfl_sync(ALL_LANES, words, source);
            const u32 first = __shfl_sync(ALL_LANES, next, source);
            if (word >> lane & 1) p.rows[first + __popc(word & below)] = warp_row + (source * WORDS + i) * 32;
        };
        u32 filled = __ballot_sync(ALL_LANES, words != 0);
        if (__popc(filled) > WARP / 4) {
            // Independent per word: a chain from one word to the next would be long here.
#pragma unroll 8
            for (u32 source = 0; source < WARP; source++) list(source);
        } else {
            for (; filled != 0; filled &= filled - 1) list(__ffs(filled) - 1);
        }
        next += __popc(words);
    }
    if (p.sources != nullptr) {
        u32* sources = p.sources + before_group * p.sources_width;
        for (u32 i = threadIdx.x; i < in_group * p.sources_width; i += THREADS) sources[i] = 0;
    }
    if (threadIdx.x == 0 && group * GROUP_KEYS == owner * p.span) p.starts[owner] = before_group;
    if (threadIdx.x == 0 && group + 1 == gridDim.x) p.starts[p.owners] = before_group + in_group;
}
