// The total weight of a batch's samples, per head over those that have its label.
//
// Reads 8 bytes per sample and head. Each thread sums every 1024th sample, and the threads' sums are added up
// pairwise by halves: the same order each time.
#include "common.cuh"

constexpr u32 TOTALS_THREADS = 1024;

struct Totals {
    // [head][sample]: NaN if missing.
    const float* labels;
    // One per sample.
    const float* weights;
    // One per head.
    double* totals;
    u32 samples;
    u32 reserved;
};

// Grid: one block per head.
extern "C" __global__ void __launch_bounds__(TOTALS_THREADS) totals(const __grid_constant__ Totals p) {
    __shared__ double sums[TOTALS_THREADS];
    const float* labels = p.labels + u64(blockIdx.x) * p.samples;
    double sum = 0;
    // With only one block, the number of loads in flight decides the speed: no load waits for a label.
#pragma unroll 16
    for (u32 sample = threadIdx.x; sample < p.samples; sample += TOTALS_THREADS) {
        const float label = labels[sample], weight = p.weights[sample];
        sum += isnan(label) ? 0 : double(weight);
    }
    sums[threadIdx.x] = sum;
    for (u32 half = TOTALS_THREADS / 2; half > 0; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half) sums[threadIdx.x] += sums[threadIdx.x + half];
    }
    if (threadIdx.x == 0) p.totals[blockIdx.x] = sums[0];
}
