// Copies chosen rows of a table, one after another, to page-locked host memory: this is how updated rows get into a
// checkpoint. Rows are copied with all their words, weights and state.
//
// Reads a row and writes it over PCIe, which dominates the time. Host memory is written in whole lines from first to
// last, so no GPU memory is needed as a buffer; the tables may leave little.
#include "common.cuh"

struct Pack {
    // The table's first row.
    const float4* rows;
    // In host memory, as is `packed`.
    const u32* positions;
    // [count][row_vectors]
    float4* packed;
    u32 count;
    u32 row_vectors;
};

// Grid: any.
extern "C" __global__ void __launch_bounds__(256) pack(const __grid_constant__ Pack p) {
    const u32 lane = threadIdx.x % WARP, warps = gridDim.x * blockDim.x / WARP;
    // A warp takes 32 rows; each lane loads the position of one.
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
