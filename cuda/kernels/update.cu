// The update of an owner's rows by gradient descent, each distinct row of the global batch once.
//
// Of 16384 samples of dlrm on each of two GPUs an owner moves 87 MB, in 23 us: 3800 GB/s (H200), which is the memory's
// rate. Reads 2 bytes an element of every rank that looked the row up, and reads and writes 4. The gradients were
// written here by the ranks: reading them over the link was slower, by its lower rate and because nothing else went on
// meanwhile.
#include "common.cuh"

struct Update {
    float* table;
    // The union of the rows that ranks looked up, and their number.
    const u32* rows;
    const u32* rows_count;
    // [union row][rank]: 1 + the place of its gradient, or 0.
    const u32* sources;
    const uint2* gradients;
    const float* rate;
    u32 ranks;
    u32 dim;
};
static_assert(sizeof(Update) == 56);

// Rows that a warp has in flight, by ranks: what fits its registers.
template <u32 RANKS>
constexpr u32 ROWS = RANKS <= 2 ? 4 : RANKS <= 4 ? 2 : 1;

template <u32 RANKS>
__device__ inline void update_rows(const Update& p) {
    const u32 count = *p.rows_count, lane = threadIdx.x % WARP, vectors = p.dim / VECTOR;
    const float rate = *p.rate;
    const u32 warps = gridDim.x * blockDim.x / WARP;
    float4* table = reinterpret_cast<float4*>(p.table);
    for (u32 begin = (blockIdx.x * blockDim.x + threadIdx.x) / WARP * ROWS<RANKS>; begin < count;
         begin += warps * ROWS<RANKS>) {
        const u32 here = min(ROWS<RANKS>, count - begin);
        const u32 own_row = lane < here ? p.rows[begin + lane] : 0;
        const u32 own_source = lane < here * p.ranks ? p.sources[begin * p.ranks + lane] : 0;
        u32 sources[ROWS<RANKS>][RANKS];
        float4* weights[ROWS<RANKS>];
#pragma unroll
        for (u32 i = 0; i < ROWS<RANKS>; i++) {
            weights[i] = table + u64(__shfl_sync(ALL_LANES, own_row, i)) * vectors;
#pragma unroll
            for (u32 rank = 0; rank < RANKS; rank++) {
                const u32 source = __shfl_sync(ALL_LANES, own_source, i * p.ranks + rank);
                sources[i][rank] = i < here && rank < p.ranks ? source : 0;
            }
        }
        for (u32 column = lane; column < vectors; column += WARP) {
            float4 weight[ROWS<RANKS>];
            uint2 values[ROWS<RANKS>][RANKS];
#pragma unroll
            for (u32 i = 0; i < ROWS<RANKS>; i++) {
#pragma unroll
                for (u32 rank = 0; rank < RANKS; rank++) {
                    // bf16 zeros add nothing.
                    values[i][rank] = make_uint2(0, 0);
                    if (sources[i][rank] != 0) {
                        values[i][rank] = __ldcg(p.gradients + u64(sources[i][rank] - 1) * vectors + column);
                    }
                }
                if (i < here) weight[i] = __ldcs(weights[i] + column);
            }
#pragma unroll
            for (u32 i = 0; i < ROWS<RANKS>; i++) {
                float4 sum = make_float4(0, 0, 0, 0);
#pragma unroll
                for (u32 rank = 0; rank < RANKS; rank++) add(sum, unpacked(values[i][rank]));
                // No fused multiplication and subtraction: rounded as on the CPU.
                weight[i].x = __fsub_rn(weight[i].x, __fmul_rn(rate, sum.x));
                weight[i].y = __fsub_rn(weight[i].y, __fmul_rn(rate, sum.y));
                weight[i].z = __fsub_rn(weight[i].z, __fmul_rn(rate, sum.z));
                weight[i].w = __fsub_rn(weight[i].w, __fmul_rn(rate, sum.w));
                if (i < here) __stcs(weights[i] + column, weight[i]);
            }
        }
    }
}

// Grid: any.
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
