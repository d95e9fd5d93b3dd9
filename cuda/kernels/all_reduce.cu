// All-reduce of f32 arrays over the ranks of a node, in place. Sums are taken in the order of the ranks, so every
// rank gets the same bits. Ranks only write to each other's memory: over NVLink that is faster than reading.
//
// For S bytes over N ranks there are two ways. "By slices": each rank writes every other rank its slice; the owner of
// a slice sums it and writes the sum to all. That moves 2 * S * (N-1)/N bytes out of each GPU and as many in, at 450
// GB/s, with 2 waits. "At once": each rank writes everything to every other rank and sums for itself. That moves S *
// (N-1) bytes with 1 wait, and the wait dominates for small arrays.
//
// Over several nodes the sum by slices takes two kernels. "scatter" leaves each rank the node's sum of its slice;
// then the ranks of a rail all-reduce their slice; then "spread" writes the result to all ranks of the node. The few
// f64 numbers that are summed along are summed by all ranks; after the exchange between nodes, those of the first
// rank are used.
//
// A block waits only for the blocks with the same number at the other ranks, which handle the same elements. The
// ranks' grids must have the same number of blocks, and few enough that all blocks of all ranks on a GPU are resident
// at once.
#include "peers.cuh"

constexpr u32 THREADS = 512;

struct AllReduce {
    // The array to sum, per rank. At once, only this rank's own is accessed.
    float4* values[RANKS_MAX];
    // Per rank, written by its peers. By slices: [rank][slice]; at once: [call % 2][rank][vector]
    float4* inbox[RANKS_MAX];
    // [call % 2][rank][number], then for sums that are spread over nodes [call % 2][number]
    double* numbers_inbox[RANKS_MAX];
    // One per block.
    Flags* flags[RANKS_MAX];
    // Only of this rank: a few f64 numbers that are summed along, at once.
    double* numbers;
    // Only of this rank, one per block: the calls so far.
    u64* calls;
    Wait wait;
    u64 vectors;
    // Vectors per rank; the last ranks may have fewer or none.
    u64 slice;
    u32 numbers_count;
    u32 reserved;
};

// Must be called by all threads of a block.
__device__ inline void meet_all(const AllReduce& p, u64 epoch) {
    __syncthreads();
    if (threadIdx.x < p.wait.ranks) meet(p.flags, blockIdx.x, epoch, threadIdx.x, p.wait);
    __syncthreads();
}

// Inboxes alternate between two halves: a rank that reuses a half after two calls has met its peers in the call
// between.
__device__ inline u64 inbox_of(const AllReduce& p, u64 call, u32 rank) { return call % 2 * p.wait.ranks + rank; }

__device__ inline void send_numbers(const AllReduce& p, u64 call) {
    if (blockIdx.x != 0) return;
    for (u32 i = threadIdx.x; i < p.numbers_count; i += THREADS) {
        const double own = p.numbers[i];
        for (u32 peer = 0; peer < p.wait.ranks; peer++) {
            p.numbers_inbox[peer][inbox_of(p, call, p.wait.rank) * p.numbers_count + i] = own;
        }
    }
}

__device__ inline void sum_numbers(const AllReduce& p, u64 call) {
    if (blockIdx.x != 0) return;
    for (u32 i = threadIdx.x; i < p.numbers_count; i += THREADS) {
        const double* of_ranks = p.numbers_inbox[p.wait.rank] + i;
        double sum = of_ranks[inbox_of(p, call, 0) * p.numbers_count];
        for (u32 rank = 1; rank < p.wait.ranks; rank++) sum += of_ranks[inbox_of(p, call, rank) * p.numbers_count];
        p.numbers[i] = sum;
    }
}

// Writes each rank its slice, into that rank's inbox. For up to `MOST` ranks: a thread has `8 / MOST` vectors for
// each in flight.
template <u32 MOST>
__device__ inline void send_slices(const AllReduce& p) {
    constexpr u32 FLIGHT = 8 / MOST;
    const u32 rank = p.wait.rank, ranks = p.wait.ranks;
    const u64 stride = u64(gridDim.x) * THREADS;
    const float4* own = p.values[rank];
    for (u64 first = u64(blockIdx.x) * THREADS + threadIdx.x; first < p.slice; first += FLIGHT * stride) {
        float4 vectors[FLIGHT][MOST - 1];
#pragma unroll
        for (u32 turn = 0; turn < FLIGHT; turn++) {
#pragma unroll
            for (u32 step = 1; step < MOST; step++) {
                const u64 index = first + turn * stride, at = (rank + step) % ranks * p.slice + index;
                if (step < ranks && index < p.slice && at < p.vectors) vectors[turn][step - 1] = own[at];
            }
        }
#pragma unroll
        for (u32 turn = 0; turn < FLIGHT; turn++) {
#pragma unroll
            for (u32 step = 1; step < MOST; step++) {
                const u32 owner = (rank + step) % ranks;
                const u64 index = first + turn * stride, at = owner * p.slice + index;
                if (step < ranks && index < p.slice && at < p.vectors) {
                    p.inbox[owner][rank * p.slice + index] = vectors[turn][step - 1];
                }
            }
        }
    }
}

// Vectors of this rank's slice, which starts at `rank * slice`.
__device__ inline u64 own_count(const AllReduce& p) {
    const u64 begin = p.wait.rank * p.slice;
    return begin < p.vectors ? min(p.slice, p.vectors - begin) : 0;
}

// Sums this rank's slice over all ranks, and passes each sum and its index to `tell`.
template <u32 MOST, class TELL>
__device__ inline void sum_slice(const AllReduce& p, const TELL& tell) {
    constexpr u32 FLIGHT = 8 / MOST;
    const u32 rank = p.wait.rank, ranks = p.wait.ranks;
    const u64 begin = rank * p.slice, count = own_count(p), stride = u64(gridDim.x) * THREADS;
    const float4 *own = p.values[rank], *inbox = p.inbox[rank];
    for (u64 first = u64(blockIdx.x) * THREADS + threadIdx.x; first < count; first += FLIGHT * stride) {
        float4 vectors[FLIGHT][MOST];
#pragma unroll
        for (u32 turn = 0; turn < FLIGHT; turn++) {
#pragma unroll
            for (u32 from = 0; from < MOST; from++) {
                const u64 index = first + turn * stride;
                if (from < ranks && index < count) {
                    vectors[turn][from] = from == rank ? own[begin + index] : inbox[from * p.slice + index];
                }
            }
        }
#pragma unroll
        for (u32 turn = 0; turn < FLIGHT; turn++) {
            const u64 index = first + turn * stride;
            if (index >= count) break;
            float4 sum = vectors[turn][0];
#pragma unroll
            for (u32 from = 1; from < MOST; from++) {
                if (from < ranks) add(sum, vectors[turn][from]);
            }
            tell(begin + index, sum);
        }
    }
}

template <u32 MOST>
__device__ inline void by_slices(const AllReduce& p) {
    const u32 rank = p.wait.rank, ranks = p.wait.ranks;
    const u64 call = p.calls[blockIdx.x];
    send_numbers(p, call);
    send_slices<MOST>(p);
    meet_all(p, 2 * call + 1);
    sum_slice<MOST>(p, [&](u64 at, float4 sum) {
#pragma unroll
        for (u32 step = 0; step < MOST; step++) {
            if (step < ranks) p.values[(rank + step) % ranks][at] = sum;
        }
    });
    sum_numbers(p, call);
    meet_all(p, 2 * call + 2);
    if (threadIdx.x == 0) p.calls[blockIdx.x] = call + 1;
}

template <u32 MOST>
__device__ inline void scatter(const AllReduce& p) {
    const u64 call = p.calls[blockIdx.x];
    float4* own = p.values[p.wait.rank];
    send_numbers(p, call);
    send_slices<MOST>(p);
    meet_all(p, 2 * call + 1);
    sum_slice<MOST>(p, [&](u64 at, float4 sum) { own[at] = sum; });
    sum_numbers(p, call);
}

template <u32 MOST>
__device__ inline void spread(const AllReduce& p) {
    const u32 rank = p.wait.rank, ranks = p.wait.ranks;
    const u64 call = p.calls[blockIdx.x], begin = rank * p.slice, count = own_count(p);
    const u64 numbers = (2 * ranks + call % 2) * p.numbers_count;
    const u32 has_numbers = blockIdx.x == 0 ? p.numbers_count : 0;
    for (u32 i = threadIdx.x; rank == 0 && i < has_numbers; i += THREADS) {
        for (u32 peer = 0; peer < ranks; peer++) p.numbers_inbox[peer][numbers + i] = p.numbers[i];
    }
    for (u64 index = u64(blockIdx.x) * THREADS + threadIdx.x; index < count; index += u64(gridDim.x) * THREADS) {
        const float4 sum = p.values[rank][begin + index];
#pragma unroll
        for (u32 step = 1; step < MOST; step++) {
            if (step < ranks) p.values[(rank + step) % ranks][begin + index] = sum;
        }
    }
    meet_all(p, 2 * call + 2);
    for (u32 i = threadIdx.x; i < has_numbers; i += THREADS) p.numbers[i] = p.numbers_inbox[rank][numbers + i];
    if (threadIdx.x == 0) p.calls[blockIdx.x] = call + 1;
}

template <u32 MOST>
__device__ inline void at_once(const AllReduce& p) {
    const u32 rank = p.wait.rank, ranks = p.wait.ranks;
    const u64 call = p.calls[blockIdx.x], stride = u64(gridDim.x) * THREADS;
    float4* own = p.values[rank];
    send_numbers(p, call);
    for (u64 index = u64(blockIdx.x) * THREADS + threadIdx.x; index < p.vectors; index += stride) {
        const float4 vector = own[index];
#pragma unroll
        for (u32 step = 1; step < MOST; step++) {
            if (step < ranks) p.inbox[(rank + step) % ranks][inbox_of(p, call, rank) * p.vectors + index] = vector;
        }
    }
    meet_all(p, 2 * call + 1);
    const float4* inbox = p.inbox[rank];
    for (u64 index = u64(blockIdx.x) * THREADS + threadIdx.x; index < p.vectors; index += stride) {
        float4 vectors[MOST];
#pragma unroll
        for (u32 from = 0; from < MOST; from++) {
            if (from >= ranks) continue;
            vectors[from] = from == rank ? own[index] : inbox[inbox_of(p, call, from) * p.vectors + index];
        }
        float4 sum = vectors[0];
#pragma unroll
        for (u32 from = 1; from < MOST; from++) {
            if (from < ranks) add(sum, vectors[from]);
        }
        own[index] = sum;
    }
    sum_numbers(p, call);
    if (threadIdx.x == 0) p.calls[blockIdx.x] = call + 1;
}

// One kernel for up to 2, 4 or 8 ranks.
#define ALL_REDUCE(MOST)                                                                                              \
    extern "C" __global__ void __launch_bounds__(THREADS, 2)                                                          \
        all_reduce_by_slices_##MOST(const __grid_constant__ AllReduce p) {                                            \
        by_slices<MOST>(p);                                                                                           \
    }                                                                                                                 \
    extern "C" __global__ void __launch_bounds__(THREADS, 2)                                                          \
        all_reduce_at_once_##MOST(const __grid_constant__ AllReduce p) {                                              \
        at_once<MOST>(p);                                                                                             \
    }                                                                                                                 \
    extern "C" __global__ void __launch_bounds__(THREADS, 2)                                                          \
        all_reduce_scatter_##MOST(const __grid_constant__ AllReduce p) {                                              \
        scatter<MOST>(p);                                                                                             \
    }                                                                                                                 \
    extern "C" __global__ void __launch_bounds__(THREADS, 2)                                                          \
        all_reduce_spread_##MOST(const __grid_constant__ AllReduce p) {                                               \
        spread<MOST>(p);                                                                                              \
    }

ALL_REDUCE(2)
ALL_REDUCE(4)
ALL_REDUCE(8)
