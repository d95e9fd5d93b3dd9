// What fp8 products add to `tiles.cuh`: twice the depth in the same bytes, and results whose lanes hold neighbouring
// columns and which are also written transposed.
#pragma once

#include "fp8.cuh"
#include "tiles.cuh"

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

// Transposed results are written in slices of this many samples.
constexpr u32 SLICE = 32;
constexpr u32 SLICE_BYTES = SLICE * COLUMNS;

// The factors of products in fp8; see `Bf16Factors`.
struct Fp8Factors {
    static constexpr u32 DEPTH = ROW_BYTES;
    static constexpr bool TURNED = false;

    __device__ static inline void multiply(float (&sums)[SAMPLES / 2], u64 weights, u64 samples, u32 add) {
        multiply_fp8(sums, weights, samples, add);
    }
};

// Addresses of a warpgroup thread's pieces in a slice of a tile: a sample's 16 columns, or transposed a column's 16
// samples.
struct Pieces {
    u32 lane;
    u32 warp;

    __device__ inline Pieces() : lane(threadIdx.x % WARP), warp(threadIdx.x % GROUP_THREADS / WARP) {}

    __device__ inline u32 rows(u32 half) const { return lane * COLUMNS + ((half * 4 + warp) ^ (lane & 7)) * 16; }
    __device__ inline u32 turned(u32 half) const {
        const u32 column = warp * 16 + (lane & 7) * 2 + (lane >> 3 & 1);
        return (half * (COLUMNS / 2) + column) * SLICE + ((lane >> 4) ^ (column >> 2 & 1)) * 16;
    }
    // The first of the two columns of a tile whose sums the lane has, in either half.
    __device__ inline u32 column(u32 half) const { return half * (COLUMNS / 2) + warp * 16 + lane / 4 * 2; }
};

// Stores row-wise pieces transposed.
__device__ inline void store_turned(u32 to, const u32 (&pieces)[4]) {
    const u32 turned[4] = {__byte_perm(pieces[0], pieces[1], 0x6420), __byte_perm(pieces[0], pieces[1], 0x7531),
                           __byte_perm(pieces[2], pieces[3], 0x6420), __byte_perm(pieces[2], pieces[3], 0x7531)};
    store_pieces_straight(to, turned);
}

// Writes the sums of a lane's columns over a tile's samples, times `factor`.
__device__ inline void write_sums(float* parts, const float (&by_column)[2][2], u32 column, u32 columns, float factor) {
    const Pieces pieces;
#pragma unroll
    for (u32 i = 0; i < 4; i++) {
        float sum = by_column[i / 2][i % 2];
        sum += __shfl_xor_sync(ALL_LANES, sum, 1);
        sum += __shfl_xor_sync(ALL_LANES, sum, 2);
        const u32 at = column + pieces.column(i / 2) + i % 2;
        if (pieces.lane % 4 == 0 && at < columns) parts[at] = sum * factor;
    }
}

#endif
