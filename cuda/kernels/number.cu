// Numbers the members of a set of keys, and lists them: by owner, and by row within an owner.
//
// Reads every bit once, 32 bytes a thread, and writes 4 bytes a line of 256 keys and 4 a member.
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

// Grid: one block a group of keys.
extern "C" __global__ void __launch_bounds__(GROUP_LINES) number(const __grid_constant__ Number p) {
    __shared__ u32 warps[GROUP_LINES / WARP + 1];
    const u32 group = blockIdx.x;
    u32 own = 0, before_group;
    for (u32 other = threadIdx.x; other < group; other += GROUP_LINES) own += p.set.groups[other];
    exclusive_sum<GROUP_LINES>(own, warps, before_group);

    const u32 line = group * GROUP_LINES + threadIdx.x;
    const uint4* source = reinterpret_cast<const uint4*>(p.set.bits) + line * 2;
    const uint4 low = source[0], high = source[1];
    const u32 words[LINE_WORDS] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
    u32 members = 0, in_group;
#pragma unroll
    for (u32 i = 0; i < LINE_WORDS; i++) members += __popc(words[i]);
    u32 next = before_group + exclusive_sum<GROUP_LINES>(members, warps, in_group);
    p.set.lines[line] = next;

    const u32 owner = group * GROUP_KEYS / p.span;
    const u32 line_row = line * LINE_KEYS - owner * p.span;
#pragma unroll
    for (u32 i = 0; i < LINE_WORDS; i++) {
        for (u32 word = words[i]; word != 0; word &= word - 1) {
            p.rows[next] = line_row + i * 32 + __ffs(word) - 1;
            if (p.sources != nullptr) {
                for (u32 source = 0; source < p.sources_width; source++) p.sources[next * p.sources_width + source] = 0;
            }
            next++;
        }
    }
    if (threadIdx.x == 0 && group * GROUP_KEYS == owner * p.span) p.starts[owner] = before_group;
    if (threadIdx.x == 0 && group + 1 == gridDim.x) p.starts[p.owners] = before_group + in_group;
}
