// The first weights of an owner's rows: uniform, a function of seed, table, row and column alone, or zeros.
//
// Writes an element of the tables' type each. The numbers are those of `random.rs`.
#include "dtype.cuh"

struct Table {
    // Where its rows begin, in words of four bytes.
    u64 words;
    u32 base;
    // 0 for a table of zeros.
    float bound;
    // Zeros follow them, up to whole vectors.
    u32 dim;
    u32 row_words;
    // What rows are stored as: a `Dtype`.
    u32 dtype;
    u32 reserved;
};
static_assert(sizeof(Table) == 32);

struct Initialize {
    float* rows;
    // In the order of their bases; a table's place is its number.
    const Table* tables;
    u64 seed;
    u32 tables_count;
    u32 rows_count;
    u32 rank;
    u32 ranks;
};
static_assert(sizeof(Initialize) == 40);

__device__ inline float uniform(u32 word, float bound) {
    const float unit = float(word >> 8) * (1.0f / (1 << 24));
    return __fmul_rn(__fsub_rn(2.0f * unit, 1.0f), bound);
}

// One warp a row at a time.
extern "C" __global__ void __launch_bounds__(256) initialize(const __grid_constant__ Initialize p) {
    const u32 lane = threadIdx.x % WARP;
    const u32 warps = gridDim.x * blockDim.x / WARP;
    for (u32 local = (blockIdx.x * blockDim.x + threadIdx.x) / WARP; local < p.rows_count; local += warps) {
        u32 table = 0, end = p.tables_count;
        while (end - table > 1) {
            const u32 middle = (table + end) / 2;
            if (p.tables[middle].base <= local) {
                table = middle;
            } else {
                end = middle;
            }
        }
        const Table own = p.tables[table];
        const u32 row = (local - own.base) * p.ranks + p.rank;
        float* weights = p.rows + own.words + u64(local - own.base) * own.row_words;
        for (u32 column = lane * VECTOR; column < own.dim; column += WARP * VECTOR) {
            const uint4 words =
                philox(make_uint4(row, 0, column / VECTOR, table), make_uint2(u32(p.seed), u32(p.seed >> 32)));
            const u32 here = own.bound == 0 ? 0 : own.dim - column;
            const auto number = [&](u32 word, u32 place) {
                return here > place ? nearest(own.dtype, uniform(word, own.bound)) : 0.0f;
            };
            store_weights(weights, column, own.dtype,
                          make_float4(number(words.x, 0), number(words.y, 1), number(words.z, 2), number(words.w, 3)));
        }
    }
}
