// The initial weights of an owner's rows: zeros, or uniform numbers that depend only on seed, table, row and column;
// and rows that begin anew because another id got them.
//
// Writes one element of the table's type per weight, and of a new row its state. The numbers are those of `random.rs`.
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

// Sets the weights of a row, whose place in the counter is `low` and `high`. All lanes of the warp call this.
__device__ inline void begin_weights(float* weights, const Shard& own, uint2 place, u32 stream, float bound, u64 seed) {
    for (u32 column = threadIdx.x % WARP * VECTOR; column < own.dim; column += WARP * VECTOR) {
        const uint4 words = philox(make_uint4(place.x, place.y, (own.column + column) / VECTOR, stream),
                                   make_uint2(u32(seed), u32(seed >> 32)));
        const u32 here = bound == 0 ? 0 : own.dim - column;
        const auto number = [&](u32 word, u32 index) {
            return here > index ? nearest(own.dtype, uniform(word, bound)) : 0.0f;
        };
        store_weights(weights, column, own.dtype,
                      make_float4(number(words.x, 0), number(words.y, 1), number(words.z, 2), number(words.w, 3)));
    }
}

// Grid: any; a warp handles one row at a time.
extern "C" __global__ void __launch_bounds__(256) initialize(const __grid_constant__ Initialize p) {
    const u32 warps = gridDim.x * blockDim.x / WARP;
    for (u32 local = (blockIdx.x * blockDim.x + threadIdx.x) / WARP; local < p.rows_count; local += warps) {
        const u32 number = shard_of(p.shards, p.shards_count, local);
        const Shard own = p.shards[number];
        const float bound = p.bounds[number];
        if (local - own.base >= own.rows) continue;
        float* weights = p.rows + own.words + u64(local - own.base) * own.row_words;
        begin_weights(weights, own, make_uint2(row_of_table(own, local), 0), own.table, bound, p.seed);
    }
}

// A shard of a table whose rows begin anew with a dynamic table's rows: of that one, or of first-order terms.
struct NewRowsOf {
    u32 shard;
    u32 stream;
    float bound;
    u32 reserved;
};

struct NewRows {
    float* rows;
    const Shard* shards;
    // By dynamic table; and per dynamic table, where its tables begin, and where the last one's end.
    const NewRowsOf* tables;
    const u32* begins;
    const NewRow* new_rows;
    const u32* count;
    // Null, or one bit per row of all tables that was changed.
    u32* touched;
    u64 seed;
};

// Sets weights and state of rows that begin anew. Grid: any; a warp handles one row at a time.
extern "C" __global__ void __launch_bounds__(256) begin_new_rows(const __grid_constant__ NewRows p) {
    const u32 lane = threadIdx.x % WARP, warps = gridDim.x * blockDim.x / WARP, count = *p.count;
    for (u32 i = (blockIdx.x * blockDim.x + threadIdx.x) / WARP; i < count; i += warps) {
        const NewRow row = p.new_rows[i];
        for (u32 at = p.begins[row.table]; at < p.begins[row.table + 1]; at++) {
            const NewRowsOf of = p.tables[at];
            const Shard own = p.shards[of.shard];
            // Other ranks may have the row.
            const u32 local = (row.row - own.row) / own.step;
            if (row.row < own.row || own.row + local * own.step != row.row || local >= own.rows) continue;
            float* weights = p.rows + own.words + u64(local) * own.row_words;
            const uint2 place = make_uint2(u32(row.key), u32(row.key >> 32));
            begin_weights(weights, own, place, of.stream, of.bound, p.seed);
            __syncwarp();
            for (u32 number = lane; number < own.row_words - own.first; number += WARP) {
                weights[own.first + number] = begun_state(own.rule, weights, number, own.second - own.first, own.dtype);
            }
            const u32 number = own.base + local;
            if (p.touched != nullptr && lane == 0) atomicOr(p.touched + number / 32, 1u << number % 32);
        }
    }
}
