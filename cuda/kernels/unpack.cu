// Unpacks samples from packed blocks (docs/reference/dataset-format.md). Each sample has its own block and row, so
// batches are shuffled by naming them.
//
// Reads 8 or 16 bytes per value (neighbours' from the cache if their rows are near each other) and writes 4. The headers
// of blocks are already checked; labels, ids and sizes of bags are checked here. For 65536 samples of dlrm, shuffled
// within 16 blocks, values take 9 us and ids 15 (H200), in parallel with the previous iteration.
#include <cfloat>
#include <cuda_fp16.h>

#include "element.cuh"

constexpr u32 HEADER_BYTES = 64;
constexpr u32 DESCRIPTOR_BYTES = 32;
// Samples from one start of a ragged column to the next.
constexpr u32 START_EVERY = 256;
constexpr u32 UNPACK_THREADS = 256;
// Dense columns that a thread block unpacks.
constexpr u32 UNPACK_COLUMNS = 8;
// Ids of fixed-hotness columns that a thread block unpacks.
constexpr u32 UNPACK_TILE = 2048;
constexpr u32 NO_STREAM = ~0u;
constexpr u32 NONE = ~0u;
constexpr u64 ANY_ID = ~u64(0);
constexpr u64 MISSING_LABEL = 2;

// Blocks on this GPU, one per slot, with what was computed from them on arrival.
struct Ring {
    // [slot][block_bytes]
    const u8* blocks;
    // [slot][ragged column][begins_column]: where each sample's bag starts among the column's ids, and where the last
    // one ends.
    u32* begins;
    // [slot]: not 0 if bag sizes violate the schema.
    u32* wrong;
    u64 block_bytes;
    u32 begins_slot;
    u32 begins_column;
};

struct IdColumn {
    // Ids must be below this, unless it is ANY_ID.
    u64 rows;
    // Number of the first of its streams: sizes, starts, ids, and weights if ids have some.
    u32 stream;
    // Ids per bag; for ragged columns, the most ids per bag.
    u32 hotness;
    // Where the column's ids start in a batch, and its offsets.
    u32 ids;
    u32 offsets;
    // For ragged columns: its number among them. For others: the first of its tiles.
    u32 index;
    // Where its ids of 64 bits start, if the table is dynamic; or NONE.
    u32 long_ids;
};

// A column whose ids have weights.
struct WeightedColumn {
    // Its number among the ragged columns.
    u32 ragged;
    // Where the factors of its ids start in a batch.
    u32 factors;
    // Whether a bag's vector is the mean of its rows instead of their sum.
    u32 mean;
    u32 reserved;
};

// A stream of a block.
struct Stream {
    const u8* values;
    u64 base;
    u32 count;
    u32 bits;
};

__device__ inline Stream stream_of(const u8* block, u32 number) {
    const uint4* descriptor = reinterpret_cast<const uint4*>(block + HEADER_BYTES + number * DESCRIPTOR_BYTES);
    const uint4 low = __ldg(descriptor);
    const u32 bits = __ldg(reinterpret_cast<const u32*>(descriptor + 1)) & 0xff;
    return {block + low.z, u64(low.y) << 32 | low.x, low.w, bits};
}

// Value `index` of a packed stream. May read up to 15 bytes beyond the stream, within its block.
__device__ inline u64 value(const Stream& stream, u32 index) {
    if (stream.bits == 0) return stream.base;
    const u64 bit = u64(index) * stream.bits;
    const u64* words = reinterpret_cast<const u64*>(stream.values) + bit / 64;
    const u32 shift = bit % 64;
    u64 raw = __ldg(words) >> shift;
    if (shift + stream.bits > 64) raw |= __ldg(words + 1) << (64 - shift);
    if (stream.bits < 64) raw &= (u64(1) << stream.bits) - 1;
    return stream.base + raw;
}

struct Index {
    Ring ring;
    // The ragged columns.
    const IdColumn* columns;
    u32 slot;
    // Of the block.
    u32 samples;
};

// Finds where the bags of a newly arrived block start. Grid: one block per START_EVERY samples, times ragged columns.
extern "C" __global__ void __launch_bounds__(UNPACK_THREADS) unpack_index(const __grid_constant__ Index p) {
    static_assert(UNPACK_THREADS == START_EVERY);
    __shared__ u32 warps[UNPACK_THREADS / WARP + 1];
    const IdColumn column = p.columns[blockIdx.y];
    const u8* block = p.ring.blocks + p.slot * p.ring.block_bytes;
    const Stream sizes = stream_of(block, column.stream), starts = stream_of(block, column.stream + 1);
    const u32 count = stream_of(block, column.stream + 2).count;
    const u32 group = blockIdx.x, sample = group * START_EVERY + threadIdx.x;
    const u64 size = sample < p.samples ? value(sizes, sample) : 0;
    bool wrong = size > column.hotness;
    u32 total;
    const u32 before = exclusive_sum<UNPACK_THREADS>(wrong ? 0 : u32(size), warps, total);
    const bool varied = sizes.bits > 0;
    const u64 begin = varied ? value(starts, group) : u64(group) * START_EVERY * sizes.base;
    if (threadIdx.x == 0 && varied) {
        const u64 end = group + 1 < gridDim.x ? value(starts, group + 1) : count;
        wrong |= begin + total != end || (group == 0 && begin != 0);
    }
    if (wrong) p.ring.wrong[p.slot] = 1;
    // Whatever the values are, no bag reaches beyond the stream.
    u32* begins = p.ring.begins + u64(p.slot) * p.ring.begins_slot + column.index * p.ring.begins_column;
    if (sample < p.samples) begins[sample] = u32(min(begin + before, u64(count)));
    if (sample + 1 == p.samples) begins[p.samples] = count;
}

struct Unpack {
    Ring ring;
    // Per sample: the slot of its block, and its row there.
    const uint2* rows;
    const Step* step;
    // Per head: the number of its label's stream.
    const u32* label_streams;
    const IdColumn* fixed;
    const IdColumn* ragged;
    const WeightedColumn* weighted;
    // [head][sample]
    float* labels;
    // [sample]
    float* weights;
    // [sample][column]
    float* dense;
    u32* ids;
    u64* long_ids;
    u32* offsets;
    float* factors;
    // [ragged column][tile of UNPACK_THREADS samples]: ids of the tile.
    u32* sums;
    // One per index of losses: becomes 1 if a value violates the schema.
    u32* faults;
    // Samples that the arrays have room for; those of the batch come first.
    u32 samples;
    u32 heads;
    u32 dense_columns;
    u32 fixed_columns;
    // NO_STREAM if all samples weigh 1.
    u32 weight_stream;
    // First stream of the dense columns, and whether they are f16 instead of f32.
    u32 dense_stream;
    u32 dense_f16;
    u32 reserved;
};

__device__ inline const u8* block_of(const Unpack& p, uint2 row) { return p.ring.blocks + row.x * p.ring.block_bytes; }

__device__ inline void fault(const Unpack& p) { p.faults[p.step->loss_index] = 1; }

// Dense columns from `first` on of the thread's sample, if it is there, and of its thread block's others.
__device__ inline void unpack_dense(const Unpack& p, u32 first, const u8* block, u32 row, bool there) {
    // One element more than columns, so that a warp's threads write to different banks.
    __shared__ float tile[UNPACK_THREADS][UNPACK_COLUMNS + 1];
    const u32 columns = min(UNPACK_COLUMNS, p.dense_columns - first);
    float dense[UNPACK_COLUMNS] = {};
    if (there) {
        // All streams, then all values, so that a thread waits twice instead of once per column.
        const u8* values[UNPACK_COLUMNS];
#pragma unroll
        for (u32 i = 0; i < UNPACK_COLUMNS; i++) {
            values[i] = stream_of(block, p.dense_stream + first + min(i, columns - 1)).values;
        }
#pragma unroll
        for (u32 i = 0; i < UNPACK_COLUMNS; i++) {
            dense[i] = p.dense_f16 != 0 ? __half2float(__ldg(reinterpret_cast<const __half*>(values[i]) + row))
                                        : __ldg(reinterpret_cast<const float*>(values[i]) + row);
        }
    }
#pragma unroll
    for (u32 i = 0; i < UNPACK_COLUMNS; i++) tile[threadIdx.x][i] = dense[i];
    __syncthreads();
    const u32 sample = blockIdx.x * UNPACK_THREADS, samples = min(UNPACK_THREADS, p.samples - sample);
    float* out = p.dense + u64(sample) * p.dense_columns + first;
    for (u32 at = threadIdx.x; at < samples * columns; at += UNPACK_THREADS) {
        const u32 row = at / columns, column = at % columns;
        out[u64(row) * p.dense_columns + column] = tile[row][column];
    }
}

// Labels, weights and dense columns. Grid: one block per UNPACK_THREADS samples, times heads, weight and groups of
// UNPACK_COLUMNS dense columns.
extern "C" __global__ void __launch_bounds__(UNPACK_THREADS) unpack_values(const __grid_constant__ Unpack p) {
    const u32 sample = blockIdx.x * UNPACK_THREADS + threadIdx.x;
    const bool there = sample < min(p.step->samples, p.samples);
    const uint2 row = there ? p.rows[sample] : make_uint2(0, 0);
    const u8* block = block_of(p, row);
    if (blockIdx.y > p.heads) {
        unpack_dense(p, (blockIdx.y - p.heads - 1) * UNPACK_COLUMNS, block, row.y, there);
    } else if (sample >= p.samples) {
        return;
    } else if (blockIdx.y < p.heads) {
        float label = NAN;
        if (there) {
            const u64 code = value(stream_of(block, p.label_streams[blockIdx.y]), row.y);
            if (code < MISSING_LABEL) label = float(code);
            if (code > MISSING_LABEL) fault(p);
        }
        p.labels[u64(blockIdx.y) * p.samples + sample] = label;
    } else {
        float weight = there ? 1 : 0;
        if (there && p.weight_stream != NO_STREAM) {
            weight = __ldg(reinterpret_cast<const float*>(stream_of(block, p.weight_stream).values) + row.y);
        }
        p.weights[sample] = weight;
    }
}

// Writes id `at` of a column.
__device__ inline void put_id(const Unpack& p, const IdColumn& column, u32 at, u64 id) {
    if (id >= column.rows && column.rows != ANY_ID) fault(p);
    if (column.long_ids == NONE) {
        p.ids[column.ids + at] = u32(min(id, u64(~0u)));
    } else {
        p.long_ids[column.long_ids + at] = id;
    }
}

// Ids of fixed-hotness columns. Grid: one block per tile of each column.
extern "C" __global__ void __launch_bounds__(UNPACK_THREADS) unpack_fixed(const __grid_constant__ Unpack p) {
    u32 low = 0;
    for (u32 high = p.fixed_columns; high - low > 1;) {
        const u32 middle = (low + high) / 2;
        (p.fixed[middle].index <= blockIdx.x ? low : high) = middle;
    }
    const IdColumn column = p.fixed[low];
    const u32 count = min(p.step->samples, p.samples) * column.hotness;
    const u32 first = (blockIdx.x - column.index) * UNPACK_TILE + threadIdx.x;
#pragma unroll
    for (u32 i = 0; i < UNPACK_TILE / UNPACK_THREADS; i++) {
        const u32 at = first + i * UNPACK_THREADS;
        if (at >= count) return;
        const u32 sample = at / column.hotness;
        const uint2 row = p.rows[sample];
        const Stream ids = stream_of(block_of(p, row), column.stream + 2);
        const u64 id = value(ids, row.y * column.hotness + at % column.hotness);
        put_id(p, column, at, id);
    }
}

// Where a sample's ids start in their block, and how many they are; none for samples after the end of the batch.
__device__ inline uint2 bag(const Unpack& p, const IdColumn& column, u32 sample) {
    if (sample >= min(p.step->samples, p.samples)) return make_uint2(0, 0);
    const uint2 row = p.rows[sample];
    const u32* begins =
        p.ring.begins + u64(row.x) * p.ring.begins_slot + column.index * p.ring.begins_column + row.y;
    const u32 begin = begins[0], size = begins[1] - begin;
    const bool wrong = p.ring.wrong[row.x] != 0 || size > column.hotness;
    if (wrong) fault(p);
    return make_uint2(begin, wrong ? 0 : size);
}

// Counts each tile's ids in each ragged column. Grid: tiles times ragged columns.
extern "C" __global__ void __launch_bounds__(UNPACK_THREADS) unpack_sizes(const __grid_constant__ Unpack p) {
    __shared__ u32 warps[UNPACK_THREADS / WARP + 1];
    const u32 size = bag(p, p.ragged[blockIdx.y], blockIdx.x * UNPACK_THREADS + threadIdx.x).y;
    u32 total;
    exclusive_sum<UNPACK_THREADS>(size, warps, total);
    if (threadIdx.x == 0) p.sums[blockIdx.y * gridDim.x + blockIdx.x] = total;
}

// Offsets and ids of ragged columns. Grid: tiles times ragged columns.
extern "C" __global__ void __launch_bounds__(UNPACK_THREADS) unpack_bags(const __grid_constant__ Unpack p) {
    __shared__ u32 warps[UNPACK_THREADS / WARP + 1];
    __shared__ u32 begins[UNPACK_THREADS], sources[UNPACK_THREADS];
    const IdColumn column = p.ragged[blockIdx.y];
    const u32 first = blockIdx.x * UNPACK_THREADS, sample = first + threadIdx.x;
    u32 before = 0;
    for (u32 tile = threadIdx.x; tile < blockIdx.x; tile += UNPACK_THREADS) {
        before += p.sums[blockIdx.y * gridDim.x + tile];
    }
    u32 tile_begin, total;
    exclusive_sum<UNPACK_THREADS>(before, warps, tile_begin);
    const uint2 own = bag(p, column, sample);
    const u32 begin = exclusive_sum<UNPACK_THREADS>(own.y, warps, total);
    begins[threadIdx.x] = begin;
    sources[threadIdx.x] = own.x;
    if (sample < p.samples) p.offsets[column.offsets + sample] = tile_begin + begin;
    if (sample + 1 == p.samples) p.offsets[column.offsets + p.samples] = tile_begin + total;
    __syncthreads();
    for (u32 at = threadIdx.x; at < total; at += UNPACK_THREADS) {
        // The last sample that starts there or before; samples with empty bags come before it.
        u32 low = 0;
        for (u32 high = UNPACK_THREADS; high - low > 1;) {
            const u32 middle = (low + high) / 2;
            (begins[middle] <= at ? low : high) = middle;
        }
        const Stream ids = stream_of(block_of(p, p.rows[first + low]), column.stream + 2);
        const u64 id = value(ids, sources[low] + at - begins[low]);
        put_id(p, column, tile_begin + at, id);
    }
}

// Factors of ids with weights: the weights, or for a mean their shares of the bag's weights, which are summed in f64 as
// on the CPU. One thread per bag, after `unpack_bags`. Grid: tiles times columns with weights.
extern "C" __global__ void __launch_bounds__(UNPACK_THREADS) unpack_factors(const __grid_constant__ Unpack p) {
    const WeightedColumn weighted = p.weighted[blockIdx.y];
    const IdColumn column = p.ragged[weighted.ragged];
    const u32 sample = blockIdx.x * UNPACK_THREADS + threadIdx.x;
    const uint2 own = bag(p, column, sample);
    if (own.y == 0) return;
    const Stream stream = stream_of(block_of(p, p.rows[sample]), column.stream + 3);
    const float* weights = reinterpret_cast<const float*>(stream.values) + own.x;
    float* factors = p.factors + weighted.factors + p.offsets[column.offsets + sample];
    double total = 0;
    for (u32 i = 0; weighted.mean != 0 && i < own.y; i++) total += double(__ldg(weights + i));
    bool wrong = false;
    for (u32 i = 0; i < own.y; i++) {
        const float weight = __ldg(weights + i);
        wrong |= !(weight > 0 && weight <= FLT_MAX);
        factors[i] = weighted.mean != 0 ? float(double(weight) / total) : weight;
    }
    if (wrong) fault(p);
}
