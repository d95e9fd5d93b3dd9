// An owner reads which of its rows each peer looks up, and which of the rows that every rank stores, and builds their
// union.
//
// Reads 4 bytes per entry over the link; the rest stays in the cache.
#include "common.cuh"

struct Merge {
    // Per rank: the rows that it looks up, and where each owner's rows start.
    const u32* lists[RANKS_MAX];
    const u32* starts[RANKS_MAX];
    // [rank][capacity]: the rows of this owner.
    u32* entries;
    // Per list: the first slot of its rows at the rank that sent it, and the number of its rows.
    u32* firsts;
    u32* counts;
    KeySet set;
    u32 capacity;
    // Entries that a rank can have of rows that only this owner stores.
    u32 owned;
    u32 rank;
    u32 ranks;
    // The key, in the set, of the first row that every rank stores.
    u32 of_all;
    u32 reserved;
};

// Where the entries of a list start: one list per rank of this owner's own rows, then one per rank of the rows that
// every rank stores.
__device__ inline u32 entries_of(u32 list, u32 ranks, u32 capacity, u32 owned) {
    return list % ranks * capacity + (list < ranks ? 0 : owned);
}

// Copies the lists and marks their rows. Grid: x over entries, y over lists.
extern "C" __global__ void __launch_bounds__(256) merge_mark(const __grid_constant__ Merge p) {
    const u32 list = blockIdx.y, peer = list % p.ranks, owner = list < p.ranks ? p.rank : p.ranks;
    const u32 first = p.starts[peer][owner], count = p.starts[peer][owner + 1] - first;
    if (blockIdx.x == 0 && threadIdx.x == 0) {
        p.firsts[list] = first;
        p.counts[list] = count;
    }
    u32* entries = p.entries + entries_of(list, p.ranks, p.capacity, p.owned);
    const u32 base = list < p.ranks ? 0 : p.of_all;
    for (u32 entry = blockIdx.x * blockDim.x + threadIdx.x; entry < count; entry += gridDim.x * blockDim.x) {
        const u32 row = p.lists[peer][first + entry];
        entries[entry] = row;
        insert(p.set, base + row);
    }
}

struct Link {
    const u32* entries;
    const u32* counts;
    KeySet set;
    // [union row][rank]: 1 + the index of the row's entry, where its gradients will be stored, or 0 if the rank does
    // not look it up.
    u32* sources;
    u32 capacity;
    u32 owned;
    u32 ranks;
    u32 of_all;
};

// Records for each row of the union where its gradients will be stored. Grid: x over entries, y over lists.
extern "C" __global__ void __launch_bounds__(256) merge_link(const __grid_constant__ Link p) {
    const u32 list = blockIdx.y, peer = list % p.ranks, count = p.counts[list];
    const u32 first = entries_of(list, p.ranks, p.capacity, p.owned), base = list < p.ranks ? 0 : p.of_all;
    for (u32 entry = blockIdx.x * blockDim.x + threadIdx.x; entry < count; entry += gridDim.x * blockDim.x) {
        const u32 row = number_of(p.set, base + p.entries[first + entry]);
        p.sources[row * p.ranks + peer] = first + entry + 1;
    }
}
