// Keeps book of which rows have been updated, a bit a row: of each row four bytes are read, and a word of the set is
// read and written where it lies, in the second cache.
#include "common.cuh"

struct Mark {
    // Their numbers.
    const u32* rows;
    // How many they are.
    const u32* count;
    // Nothing is marked where this is not 0.
    const u32* stop;
    u32* bits;
};
static_assert(sizeof(Mark) == 32);

// Grid: any.
extern "C" __global__ void __launch_bounds__(256) mark(const __grid_constant__ Mark p) {
    if (*p.stop != 0) return;
    const u32 count = *p.count;
    for (u32 i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x) {
        const u32 row = p.rows[i];
        atomicOr(p.bits + row / 32, 1u << row % 32);
    }
}
