// The update of an owner's rows by gradient descent, each distinct row of the global batch once.
//
// Reads 2 bytes an element of every rank that looked the row up, over the link but for its own, and reads and writes 4.
#include "common.cuh"

struct Update {
    float* table;
    // The union of the rows that ranks looked up, and their number.
    const u32* rows;
    const u32* rows_count;
    // [union row][rank]: 1 + the slot of its gradient there, or 0.
    const u32* sources;
    const uint2* gradients[RANKS_MAX];
    const float* rate;
    u32 ranks;
    u32 dim;
};
static_assert(sizeof(Update) == 112);

// One warp a row at a time.
template <u32 RANKS>
__device__ inline void update_rows(const Update& p) {
    const u32 count = *p.rows_count, lane = threadIdx.x % WARP, vectors = p.dim / VECTOR;
    const float rate = *p.rate;
    const u32 warps = gridDim.x * blockDim.x / WARP;
    float4* table = reinterpret_cast<float4*>(p.table);
    for (u32 row = (blockIdx.x * blockDim.x + threadIdx.x) / WARP; row < count; row += warps) {
        float4* weights = table + u64(p.rows[row]) * vectors;
        u32 sources[RANKS];
#pragma unroll
        for (u32 rank = 0; rank < RANKS; rank++) {
            sources[rank] = rank < p.ranks ? p.sources[row * p.ranks + rank] : 0;
        }
        for (u32 column = lane; column < vectors; column += WARP) {
            float4 weight = __ldcs(weights + column);
            uint2 values[RANKS];
#pragma unroll
            for (u32 rank = 0; rank < RANKS; rank++) {
                // bf16 zeros add nothing.
                values[rank] = make_uint2(0, 0);
                if (sources[rank] != 0) {
                    values[rank] = __ldcg(p.gradients[rank] + u64(sources[rank] - 1) * vectors + column);
                }
            }
            float4 sum = make_float4(0, 0, 0, 0);
#pragma unroll
            for (u32 rank = 0; rank < RANKS; rank++) add(sum, unpacked(values[rank]));
            // No fused multiplication and subtraction: rounded as on the CPU.
            weight.x = __fsub_rn(weight.x, __fmul_rn(rate, sum.x));
            weight.y = __fsub_rn(weight.y, __fmul_rn(rate, sum.y));
            weight.z = __fsub_rn(weight.z, __fmul_rn(rate, sum.z));
            weight.w = __fsub_rn(weight.w, __fmul_rn(rate, sum.w));
            __stcs(weights + column, weight);
        }
    }
}

extern "C" __global__ void __launch_bounds__(256) update_sgd(const __grid_constant__ Update p) {
    if (p.ranks == 1) {
        update_rows<1>(p);
    } else if (p.ranks == 2) {
        update_rows<2>(p);
    } else if (p.ranks <= 4) {
        update_rows<4>(p);
    } else {
        update_rows<RANKS_MAX>(p);
    }
}
