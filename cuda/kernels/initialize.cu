// The initial weights of an owner's rows: zeros, or uniform numbers that depend only on seed, table, row and column.
//
// Writes one element of the table's type per weight. The numbers are those of `random.rs`.
#include "shard.cuh"

struct Initialize {
    float* rows;
    // Ordered by base.
    const Shard* shards;
    // One per shard; 0 for zeros.
    const float* bounds;
    u64 seed;
    u32 shards_count;
    u32 rows_count;
};

__device__ inline float uniform(u32 word, float bound) {
    const float unit = float(word >> 8) * (1.0f / (1 << 24));
    return __fmul_rn(__fsub_rn(2.0f * unit, 1.0f), bound);
}

// Grid: any; a warp handles one row at a time.
extern "C" __global__ void __launch_bounds__(256) initialize(const __grid_constant__ Initialize p) {
    const u32 lane = threadIdx.x % WARP;
    const u32 warps = gridDim.x * blockDim.x / WARP;
    for (u32 local = (blockIdx.x * blockDim.x + threadIdx.x) / WARP; local < p.rows_count; local += warps) {
        const u32 number = shard_of(p.shards, p.shards_count, local);
        const Shard own = p.shards[number];
        const float bound = p.bounds[number];
        if (local - own.base >= own.rows) continue;
        const u32 row = row_of_table(own, local);
        float* weights = p.rows + own.words + u64(local - own.base) * own.row_words;
        for (u32 column = lane * VECTOR; column < own.dim; column += WARP * VECTOR) {
            const uint4 words =
                philox(make_uint4(row, 0, (own.column + column) / VECTOR, own.table), make_uint2(u32(p.seed), u32(p.seed >> 32)));
            const u32 here = bound == 0 ? 0 : own.dim - column;
            const auto number = [&](u32 word, u32 index) {
                return here > index ? nearest(own.dtype, uniform(word, bound)) : 0.0f;
            };
            store_weights(weights, column, own.dtype,
                          make_float4(number(words.x, 0), number(words.y, 1), number(words.z, 2), number(words.w, 3)));
        }
    }
}
