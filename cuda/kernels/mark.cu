// Records which rows have been updated, one bit per row: four bytes per row are read, and a word of the set is read
// and written in the L2 cache.
#include "common.cuh"

struct Mark {
    // Row numbers.
    const u32* rows;
    // How many rows.
    const u32* count;
    // If this is not 0, nothing is marked.
    const u32* stop;
    u32* bits;
};

// Grid: any.
extern "C" __global__ void __launch_bounds__(256) mark(const __grid_constant__ Mark p) {
    if (*p.stop != 0) return;
    const u32 count = *p.count;
    for (u32 i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x) {
        const u32 row = p.rows[i];
        atomicOr(p.bits + row / 32, 1u << row % 32);
    }
}
