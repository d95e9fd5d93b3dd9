// Numbers the members of a set of keys, and lists them: by owner, and by row within an owner.
//
// Reads every bit twice, 32 bytes a thread, and writes 4 bytes a line of 256 keys and 4 a member.
#include "common.cuh"

struct Number {
    KeySet set;
    // The members: rows of their owners.
    u32* rows;
    // One an owner and one more: where its members begin.
    u32* starts;
    // `sources_width` zeros are written for each member, unless null.
    u32* sources;
    u32 owners;
    u32 span;
    u32 sources_width;
    u32 reserved;
};
static_assert(sizeof(Number) == 64);

__device__ inline void load_line(const KeySet& set, u32 line, u32 (&words)[LINE_WORDS]) {
    const uint4* source = reinterpret_cast<const uint4*>(set.bits) + line * 2;
    const uint4 low = source[0], high = source[1];
    words[0] = low.x, words[1] = low.y, words[2] = low.z, words[3] = low.w;
    words[4] = high.x, words[5] = high.y, words[6] = high.z, words[7] = high.w;
}

// Counts the members of each group. Grid: one block a group of keys.
extern "C" __global__ void __launch_bounds__(GROUP_LINES) number_groups(const __grid_constant__ Number p) {
    __shared__ u32 warps[GROUP_LINES / WARP + 1];
    u32 words[LINE_WORDS], members = 0, all;
    load_line(p.set, blockIdx.x * GROUP_LINES + threadIdx.x, words);
#pragma unroll
    for (u32 i = 0; i < LINE_WORDS; i++) members += __popc(words[i]);
    exclusive_sum<GROUP_LINES>(members, warps, all);
    if (threadIdx.x == 0) p.set.groups[blockIdx.x] = all;
}

// Grid: one block a group of keys.
extern "C" __global__ void __launch_bounds__(GROUP_LINES) number(const __grid_constant__ Number p) {
    __shared__ u32 warps[GROUP_LINES / WARP + 1];
    const u32 group = blockIdx.x;
    u32 own = 0, before_group;
    for (u32 other = threadIdx.x; other < group; other += GROUP_LINES) own += p.set.groups[other];
    exclusive_sum<GROUP_LINES>(own, warps, before_group);

    const u32 line = group * GROUP_LINES + threadIdx.x;
    u32 words[LINE_WORDS], members = 0, in_group;
    load_line(p.set, line, words);
#pragma unroll
    for (u32 i = 0; i < LINE_WORDS; i++) members += __popc(words[i]);
    u32 next = before_group + exclusive_sum<GROUP_LINES>(members, warps, in_group);
    p.set.lines[line] = next;

    const u32 owner = group * GROUP_KEYS / p.span;
    const u32 line_row = line * LINE_KEYS - owner * p.span;
    // A warp lists a word at a time, a lane a bit: where keys lie dense, a lane for each line would write far from its
    // neighbours.
    const u32 lane = threadIdx.x % WARP, below = (1u << lane) - 1;
#pragma unroll
    for (u32 i = 0; i < LINE_WORDS; i++) {
        for (u32 filled = __ballot_sync(ALL_LANES, words[i] != 0); filled != 0; filled &= filled - 1) {
            const u32 source = __ffs(filled) - 1;
            const u32 word = __shfl_sync(ALL_LANES, words[i], source);
            const u32 first = __shfl_sync(ALL_LANES, next, source);
            const u32 row = __shfl_sync(ALL_LANES, line_row, source) + i * 32 + lane;
            if (word >> lane & 1) p.rows[first + __popc(word & below)] = row;
        }
        next += __popc(words[i]);
    }
    if (p.sources != nullptr) {
        u32* sources = p.sources + before_group * p.sources_width;
        for (u32 i = threadIdx.x; i < in_group * p.sources_width; i += GROUP_LINES) sources[i] = 0;
    }
    if (threadIdx.x == 0 && group * GROUP_KEYS == owner * p.span) p.starts[owner] = before_group;
    if (threadIdx.x == 0 && group + 1 == gridDim.x) p.starts[p.owners] = before_group + in_group;
}
