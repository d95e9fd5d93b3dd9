// From keys to slots: the slot of an id is the number of its key among the distinct ones. Counts the low digits of the
// slots tile by tile, which the first pass of the sort starts from.
//
// Reads an id's key and, out of the cache, a line of bits and its count: 4 + 36 bytes, and writes 4.
#include "sort.cuh"

struct Locate {
    const u32* keys;
    KeySet set;
    // The number of distinct keys.
    const u32* slots_count;
    u32* slots;
    // [digit][tile]
    u32* counts;
    u32 ids;
    u32 reserved;
};
static_assert(sizeof(Locate) == 64);

// Grid: one block a tile. Shared memory: 4 bytes a digit.
extern "C" __global__ void __launch_bounds__(COUNT_THREADS) locate(const __grid_constant__ Locate p) {
    extern __shared__ u32 digits[];
    const u32 begin = blockIdx.x * TILE + threadIdx.x;
    u32 keys[COUNT_ROUNDS];
#pragma unroll
    for (u32 round = 0; round < COUNT_ROUNDS; round++) {
        keys[round] = p.keys[min(begin + round * COUNT_THREADS, p.ids - 1)];
    }
    const u32 mask = (1u << digit_bits(*p.slots_count)) - 1;
    for (u32 digit = threadIdx.x; digit <= mask; digit += COUNT_THREADS) digits[digit] = 0;
    __syncthreads();
#pragma unroll
    for (u32 round = 0; round < COUNT_ROUNDS; round++) {
        const u32 id = begin + round * COUNT_THREADS;
        // No branch around the reads, so that several are in flight.
        const u32 slot = number_of(p.set, keys[round]);
        if (id < p.ids) p.slots[id] = slot;
        count_digit(digits, id < p.ids ? slot & mask : ~0u);
    }
    __syncthreads();
    for (u32 digit = threadIdx.x; digit <= mask; digit += COUNT_THREADS) {
        p.counts[digit * gridDim.x + blockIdx.x] = digits[digit];
    }
}
