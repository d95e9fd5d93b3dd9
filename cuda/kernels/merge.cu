// An owner reads the lists of rows that its peers want of it, and finds the union of them.
//
// Reads 4 bytes an entry over the link; the rest stays in the cache.
#include "common.cuh"

struct Merge {
    // Of each rank: the rows that it looks up, and where those of each owner begin.
    const u32* lists[RANKS_MAX];
    const u32* starts[RANKS_MAX];
    // [rank][capacity]: the rows, of this owner.
    u32* entries;
    // [rank]: the first slot of this owner's rows there, and their number.
    u32* firsts;
    u32* counts;
    KeySet set;
    u32 capacity;
    u32 rank;
};
static_assert(sizeof(Merge) == 184);

// Copies the lists and marks their rows. Grid: x over entries, y over ranks.
extern "C" __global__ void __launch_bounds__(256) merge_mark(const __grid_constant__ Merge p) {
    const u32 peer = blockIdx.y;
    const u32 first = p.starts[peer][p.rank], count = p.starts[peer][p.rank + 1] - first;
    if (blockIdx.x == 0 && threadIdx.x == 0) {
        p.firsts[peer] = first;
        p.counts[peer] = count;
    }
    for (u32 entry = blockIdx.x * blockDim.x + threadIdx.x; entry < count; entry += gridDim.x * blockDim.x) {
        const u32 row = p.lists[peer][first + entry];
        p.entries[peer * p.capacity + entry] = row;
        insert(p.set, row);
    }
}

struct Link {
    const u32* entries;
    const u32* counts;
    KeySet set;
    // [union row][rank]: 1 + the place of the row's entry, where its gradients will lie, or 0 where the rank does not
    // look it up.
    u32* sources;
    u32 capacity;
    u32 ranks;
};
static_assert(sizeof(Link) == 56);

// Says of each row of the union where its gradients will lie. Grid: x over entries, y over ranks.
extern "C" __global__ void __launch_bounds__(256) merge_link(const __grid_constant__ Link p) {
    const u32 peer = blockIdx.y;
    const u32 count = p.counts[peer];
    for (u32 entry = blockIdx.x * blockDim.x + threadIdx.x; entry < count; entry += gridDim.x * blockDim.x) {
        const u32 place = peer * p.capacity + entry;
        const u32 row = number_of(p.set, p.entries[place]);
        p.sources[row * p.ranks + peer] = place + 1;
    }
}
