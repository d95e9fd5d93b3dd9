// Rows at some positions of a table, one behind the other, to page-locked memory of the host: how those that have been
// updated come to a checkpoint. All words of a row as they lie, weights and state alike.
//
// Reads a row and writes it over PCIe, which is what takes time. The host's memory is written in whole lines, from the
// first to the last: so no memory of the GPU is needed in between, of which tables may leave little.
#include "common.cuh"

struct Pack {
    // The first row.
    const float4* rows;
    // In the host's memory, as `packed` is.
    const u32* positions;
    // [count][row_vectors]
    float4* packed;
    u32 count;
    u32 row_vectors;
};
static_assert(sizeof(Pack) == 32);

// Grid: any.
extern "C" __global__ void __launch_bounds__(256) pack(const __grid_constant__ Pack p) {
    const u32 lane = threadIdx.x % WARP, warps = gridDim.x * blockDim.x / WARP;
    // A warp takes as many rows as it has lanes, one of whose positions each lane has.
    for (u32 first = (blockIdx.x * blockDim.x + threadIdx.x) / WARP * WARP; first < p.count; first += warps * WARP) {
        const u32 own = first + lane < p.count ? p.positions[first + lane] : 0;
        const u32 vectors = min(WARP, p.count - first) * p.row_vectors;
        float4* packed = p.packed + u64(first) * p.row_vectors;
#pragma unroll 4
        for (u32 begin = 0; begin < vectors; begin += WARP) {
            const u32 at = begin + lane, row = min(at, vectors - 1) / p.row_vectors;
            const u32 position = __shfl_sync(ALL_LANES, own, row);
            if (at >= vectors) continue;
            packed[at] = __ldcs(p.rows + u64(position) * p.row_vectors + (at - row * p.row_vectors));
        }
    }
}
