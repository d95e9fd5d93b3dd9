// Counts the look-ups of each feature in a routed batch, and the rows that it is the first to look up: their sum over
// the features of a table is the number of distinct rows of the table.
//
// Reads 8 bytes per look-up, and runs only when somebody asks.
#include "common.cuh"

struct FeatureCounts {
    // Slot and bag of each look-up, ascending; a bag is the feature's number above `sample_bits`.
    const uint2* sorted;
    // Number of look-ups.
    const u32* count;
    // Per feature two numbers: look-ups, and rows. Zero at the start.
    u32* counts;
    u32 features;
    u32 sample_bits;
};

constexpr u32 COUNT_THREADS = 512;

// Grid: any number of blocks, which share the look-ups.
extern "C" __global__ void __launch_bounds__(COUNT_THREADS) feature_counts(const __grid_constant__ FeatureCounts p) {
    __shared__ u32 counts[2 * FEATURES_MAX];
    for (u32 i = threadIdx.x; i < 2 * p.features; i += COUNT_THREADS) counts[i] = 0;
    __syncthreads();
    const u32 count = *p.count;
    for (u32 i = blockIdx.x * COUNT_THREADS + threadIdx.x; i < count; i += gridDim.x * COUNT_THREADS) {
        const uint2 pair = p.sorted[i];
        u32* of_feature = counts + 2 * (pair.y >> p.sample_bits);
        atomicAdd(of_feature, 1);
        if (i == 0 || p.sorted[i - 1].x != pair.x) atomicAdd(of_feature + 1, 1);
    }
    __syncthreads();
    for (u32 i = threadIdx.x; i < 2 * p.features; i += COUNT_THREADS) {
        if (counts[i] > 0) atomicAdd(p.counts + i, counts[i]);
    }
}
