// The tiles of products on Hopper, and their stages in shared memory, which are the same for elements of any size: rows
// of tiles have 128 bytes of the depth. `matmul.cu` says how a block's warps and a cluster's blocks share the work.
#pragma once

#include "hopper.cuh"

constexpr u32 MATMUL_THREADS = 384;

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

// Of a tile: its columns and samples.
constexpr u32 COLUMNS = 128;
constexpr u32 SAMPLES = 160;
constexpr u32 GROUP_THREADS = 128;
constexpr u32 ROW_BYTES = 128;
constexpr u32 WEIGHTS_BYTES = COLUMNS * ROW_BYTES;
constexpr u32 SAMPLES_BYTES = SAMPLES * ROW_BYTES;
constexpr u32 STAGE_BYTES = WEIGHTS_BYTES + SAMPLES_BYTES;
constexpr u32 STAGES = 4;
static_assert(MATMUL_THREADS == 3 * GROUP_THREADS);

// Where a pass over tiles is: in the ring of stages, and how often it went round.
struct Ring {
    u32 stage = 0;
    u32 round = 0;

    __device__ inline void advance(u32 steps) {
        stage += steps;
        round += stage / STAGES;
        stage %= STAGES;
    }
};

#endif

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
#define PAIRED __cluster_dims__(2, 1, 1)
#else
#define PAIRED
#endif
