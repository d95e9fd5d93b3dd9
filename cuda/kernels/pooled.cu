// Bags pooled by the owners of their rows: sends each rank's ids to the owners, and bags' vectors and gradients
// between ranks.
//
// A rank splits each bag into parts, one per owner of some of its rows, in the order of the bag, and writes these
// into the owners' memory, feature by feature, as columns of ragged bags. To an owner, the parts of all ranks are
// features of its own, which it looks up and updates as it does for tables on one GPU. The parts' vectors come back
// and are added up in the order of owners; the gradient of a bag goes to each owner of a part.
//
// Reads an id three times and writes it once, with its factor if it has one; reads and writes one element per part and
// per bag.
//
// Over several nodes the same happens twice. First a rank splits its bags into one part per node, which are sent along
// its rail. Then the rank that receives the parts of all nodes splits these among the owners of its node; there, the
// nodes' samples follow each other.
#include "dtype.cuh"
#include "traffic.cuh"

// A feature of a rank's batch, for a table (or some of its columns) whose owners pool.
struct PooledFeature {
    // Where the column's ids start, and its offsets or `FIXED`.
    u32 ids;
    u32 offsets;
    u32 hotness;
    // A `BagPooling`.
    u32 pooling;
    // Rows of the table; an id that is not below is replaced by the last row.
    u32 rows;
    // The rank (or its node) that owns all rows, or `TURNS`.
    u32 owner;
    // Elements, a multiple of VECTOR, and where they start in a sample's vectors and in its parts' vectors.
    u32 dim;
    u32 vector_offset;
    u32 part_offset;
    // Where its ids start at an owner, among those of this rank.
    u32 part_ids;
    // If it is pooled by factors: where the factors of the column's ids start, here and in this rank's at an owner.
    u32 factors;
    u32 part_factors;
};

struct Pooling {
    const PooledFeature* features;
    // Per source, at distances of `ids_spacing`, `factors_spacing` and `offsets_spacing`. There are factors of ids in
    // columns that are pooled by them.
    const u32* ids;
    const float* factors;
    const u32* offsets;
    const u32* samples_count;
    // [owner][feature][source][samples], and one more per feature: where each sample's part starts, relative to the
    // feature's first id there.
    u32* starts;
    // Per owner, this rank's: starts as above, and ids, as row numbers at the owner unless the owners are nodes, with
    // their factors.
    Addresses their_starts;
    Addresses their_ids;
    Addresses their_factors;
    // [owner][source][sample][width]: vectors of parts.
    const void* parts;
    // Per owner, this rank's: `their_stride` elements per sample.
    Addresses their_gradients;
    // Per source: [sample][stride].
    Addresses vectors;
    // [source][sample][stride]
    const void* gradients;
    // Counts ids that are out of range for their table.
    u32* faults;
    // Of this rank, over the links to these owners.
    LinkCounts* counts;
    u64 ids_spacing;
    u64 factors_spacing;
    u64 offsets_spacing;
    u32 features_count;
    // Where bags come from: this rank, or the ranks of its rail, each with as many samples.
    u32 sources;
    u32 samples;
    // The owners: ranks of a node, or nodes.
    u32 owners;
    // Rows that take turns: how many follow each other at an owner, and the divisor that makes the ids to write.
    u32 owner_rows;
    u32 turns;
    u32 width;
    u32 their_stride;
    u32 stride;
    // This rank's number among the owners.
    u32 rank;
    // 1 if ids and gradients are sent in messages of fixed size, as lengths and vectors always are; else 0.
    u32 contained;
    // The first samples of each source, whose vectors are added up.
    u32 added;
};

constexpr u32 POOLED_THREADS = 256;

// The blocks that handle a feature's samples from one source: y over features, source by source.
struct PooledBlock {
    u32 feature, source;
    __device__ explicit PooledBlock(const Pooling& p)
        : feature(blockIdx.y % p.features_count), source(blockIdx.y / p.features_count) {}
    // A sample's number over all sources.
    __device__ u32 number(const Pooling& p, u32 sample) const { return source * p.samples + sample; }
    __device__ const u32* ids(const Pooling& p) const { return p.ids + source * p.ids_spacing; }
};

// A sample's ids; none for samples after the end of the batch.
__device__ inline Bag bag_of(const Pooling& p, const PooledFeature& feature, u32 source, u32 sample) {
    if (sample >= *p.samples_count) return {0, 0};
    if (feature.offsets == FIXED) return {feature.ids + sample * feature.hotness, feature.hotness};
    const u32* of_sample = p.offsets + source * p.offsets_spacing + feature.offsets + sample;
    const u32 begin = of_sample[0];
    return {feature.ids + begin, of_sample[1] - begin};
}

__device__ inline u32 row_of(const u32* ids, const PooledFeature& feature, u32 at) {
    return min(__ldg(ids + at), feature.rows - 1);
}

__device__ inline u32 owner_of(const Pooling& p, const PooledFeature& feature, u32 row) {
    if (feature.owner != TURNS) return feature.owner;
    return (p.owner_rows == 1 ? row : row / p.owner_rows) % p.owners;
}

__device__ inline u32* starts_of(const Pooling& p, u32 owner, u32 feature) {
    return p.starts + (u64(owner) * p.features_count + feature) * (p.sources * p.samples + 1);
}

// Counts each sample's ids per owner, into the element after the sample's own; of more owners than there are ranks in
// a node, some at a time. Grid: x over samples, one thread each; y as `PooledBlock` says.
extern "C" __global__ void __launch_bounds__(POOLED_THREADS) pooled_count(const __grid_constant__ Pooling p) {
    const u32 sample = blockIdx.x * POOLED_THREADS + threadIdx.x;
    if (sample >= p.samples) return;
    const PooledBlock block(p);
    const PooledFeature feature = p.features[block.feature];
    const Bag bag = bag_of(p, feature, block.source, sample);
    const u32* ids = block.ids(p);
    u32 faults = 0;
    for (u32 first = 0; first < p.owners; first += RANKS_MAX) {
        u32 counts[RANKS_MAX] = {};
        for (u32 i = 0; i < bag.size; i++) {
            faults += first == 0 && __ldg(ids + bag.begin + i) >= feature.rows;
            const u32 owner = owner_of(p, feature, row_of(ids, feature, bag.begin + i)) - first;
#pragma unroll
            for (u32 rank = 0; rank < RANKS_MAX; rank++) counts[rank] += rank == owner;
        }
#pragma unroll
        for (u32 rank = 0; rank < RANKS_MAX; rank++) {
            if (first + rank >= p.owners) continue;
            starts_of(p, first + rank, block.feature)[block.number(p, sample) + 1] = counts[rank];
        }
    }
    if (faults != 0) atomicAdd(p.faults, faults);
}

constexpr u32 SCAN_THREADS = 1024;

// Turns counts into the starts of parts, here and at the owner. Grid: x over features, y over owners.
extern "C" __global__ void __launch_bounds__(SCAN_THREADS) pooled_scan(const __grid_constant__ Pooling p) {
    __shared__ u32 warps[SCAN_THREADS / WARP + 1];
    u32* own = starts_of(p, blockIdx.y, blockIdx.x);
    const u32 samples = p.sources * p.samples;
    u32* theirs = address_of<u32>(p.their_starts, blockIdx.y) + u64(blockIdx.x) * (samples + 1);
    u32 before = 0;
    if (threadIdx.x == 0) own[0] = theirs[0] = 0;
    for (u32 first = 0; first < samples; first += SCAN_THREADS) {
        const u32 sample = first + threadIdx.x;
        const u32 count = sample < samples ? own[sample + 1] : 0;
        u32 all;
        const u32 end = before + exclusive_sum<SCAN_THREADS>(count, warps, all) + count;
        if (sample < samples) own[sample + 1] = theirs[sample + 1] = end;
        before += all;
    }
}

// Writes a bag's ids to the owners of their rows, with their factors.
template <bool FACTORS>
__device__ inline void cut(const Pooling& p, const PooledBlock& block, const PooledFeature& feature, u32 sample) {
    const Bag bag = bag_of(p, feature, block.source, sample);
    const u32* ids = block.ids(p);
    const float* factors = nullptr;
    if constexpr (FACTORS) {
        factors = p.factors + block.source * p.factors_spacing + feature.factors + (bag.begin - feature.ids);
    }
    for (u32 first = 0; first < p.owners; first += RANKS_MAX) {
        u32 next[RANKS_MAX] = {};
#pragma unroll
        for (u32 rank = 0; rank < RANKS_MAX; rank++) {
            if (first + rank >= p.owners) continue;
            next[rank] = starts_of(p, first + rank, block.feature)[block.number(p, sample)];
        }
        for (u32 i = 0; i < bag.size; i++) {
            const u32 row = row_of(ids, feature, bag.begin + i), owner = owner_of(p, feature, row);
            if (owner - first >= RANKS_MAX) continue;
            u32 index = 0;
#pragma unroll
            for (u32 rank = 0; rank < RANKS_MAX; rank++) {
                if (first + rank == owner) index = next[rank]++;
            }
            const u32 id = feature.owner == TURNS ? row / p.turns : row;
            address_of<u32>(p.their_ids, owner)[feature.part_ids + index] = id;
            if constexpr (FACTORS) {
                address_of<float>(p.their_factors, owner)[feature.part_factors + index] = factors[i];
            }
        }
    }
}

// With the same grid as for counting.
extern "C" __global__ void __launch_bounds__(POOLED_THREADS) pooled_cut(const __grid_constant__ Pooling p) {
    const u32 sample = blockIdx.x * POOLED_THREADS + threadIdx.x;
    if (sample >= p.samples) return;
    const PooledBlock block(p);
    const PooledFeature feature = p.features[block.feature];
    if (feature.pooling == BY_FACTORS) {
        cut<true>(p, block, feature, sample);
    } else {
        cut<false>(p, block, feature, sample);
    }
}

// Returns which of the owners from `first` on, as many as a warp has lanes, have a part of a sample's bag. All lanes
// must call this.
__device__ inline u32 owners_of_parts(const Pooling& p, u32 first, u32 feature, u32 number) {
    const u32 owner = first + threadIdx.x % WARP;
    bool has_part = false;
    if (owner < p.owners) {
        const u32* starts = starts_of(p, owner, feature) + number;
        has_part = starts[0] != starts[1];
    }
    return __ballot_sync(ALL_LANES, has_part);
}

// One warp per bag: x over samples, y as `PooledBlock` says.
template <class T>
__device__ inline void add_parts(const Pooling& p) {
    const u32 lane = threadIdx.x % WARP, warps = gridDim.x * POOLED_THREADS / WARP;
    const PooledBlock block(p);
    const PooledFeature feature = p.features[block.feature];
    for (u32 sample = (blockIdx.x * POOLED_THREADS + threadIdx.x) / WARP; sample < p.added; sample += warps) {
        const u32 size = bag_of(p, feature, block.source, sample).size, number = block.number(p, sample);
        const float scale = feature.pooling == MEAN ? bag_scale(MEAN, size) : 1.0f;
        for (u32 begin = 0; begin < feature.dim; begin += WARP * VECTOR) {
            const u32 column = begin + lane * VECTOR;
            float4 sum = make_float4(0, 0, 0, 0);
            for (u32 first = 0; first < p.owners; first += WARP) {
                const u32 owners = owners_of_parts(p, first, block.feature, number);
                const u32 end = min(first + WARP, p.owners);
                for (u32 owner = first; column < feature.dim && owner < end; owner++) {
                    if ((owners >> (owner - first) & 1) == 0) continue;
                    const u64 of_owner = u64(owner) * p.sources * p.samples + number;
                    const u64 at = of_owner * p.width + feature.part_offset + column;
                    add(sum, load4(static_cast<const T*>(p.parts) + at));
                }
            }
            if (column >= feature.dim) continue;
            if (scale != 1) sum = make_float4(sum.x * scale, sum.y * scale, sum.z * scale, sum.w * scale);
            T* vector = address_of<T>(p.vectors, block.source) + u64(sample) * p.stride;
            stream4(vector + feature.vector_offset + column, sum);
        }
    }
}

// Sends each bag's gradient to every owner of a part, with the same grid, and counts the parts at other owners.
template <class T>
__device__ inline void send_gradients(const Pooling& p) {
    __shared__ u32 sent;
    if (threadIdx.x == 0) sent = 0;
    __syncthreads();
    u32 parts = 0;
    const u32 lane = threadIdx.x % WARP, warps = gridDim.x * POOLED_THREADS / WARP;
    const PooledBlock block(p);
    const PooledFeature feature = p.features[block.feature];
    for (u32 sample = (blockIdx.x * POOLED_THREADS + threadIdx.x) / WARP; sample < p.samples; sample += warps) {
        const u32 size = bag_of(p, feature, block.source, sample).size, number = block.number(p, sample);
        const float scale = feature.pooling == MEAN ? bag_scale(MEAN, size) : 1.0f;
        for (u32 first = 0; first < p.owners; first += WARP) {
            const u32 owners = owners_of_parts(p, first, block.feature, number);
            if (owners == 0) continue;
            const u32 own = p.rank - first < WARP ? 1u << (p.rank - first) : 0, end = min(first + WARP, p.owners);
            parts += __popc(owners & ~own);
            for (u32 column = lane * VECTOR; column < feature.dim; column += WARP * VECTOR) {
                const T* gradients = static_cast<const T*>(p.gradients) + u64(number) * p.stride;
                float4 value = load4(gradients + feature.vector_offset + column);
                if (scale != 1) value = make_float4(value.x * scale, value.y * scale, value.z * scale, value.w * scale);
                const u64 at = u64(number) * p.their_stride + feature.part_offset + column;
                for (u32 owner = first; owner < end; owner++) {
                    if (owners >> (owner - first) & 1) store4(address_of<T>(p.their_gradients, owner) + at, value);
                }
            }
        }
    }
    if (lane == 0 && parts != 0) atomicAdd(&sent, parts);
    __syncthreads();
    if (threadIdx.x != 0) return;
    u64 ids = 0;
    for (u32 owner = 0; blockIdx.x == 0 && block.source == 0 && owner < p.owners; owner++) {
        if (owner != p.rank) ids += starts_of(p, owner, block.feature)[p.sources * p.samples];
    }
    // Lengths and vectors are sent for all bags. Those of bags without a part at an owner are padding.
    const u64 gradient = feature.dim * sizeof(T), lengths_and_vectors = sent * (sizeof(u32) + gradient);
    const u64 id = sizeof(u32) + (feature.pooling == BY_FACTORS ? sizeof(float) : 0);
    const u64 ids_and_gradients = ids * id + sent * gradient;
    add_to(p.counts->rows, sent);
    add_to(p.counts->bytes, lengths_and_vectors + ids_and_gradients);
    add_to(p.counts->padding, 0 - (lengths_and_vectors + (p.contained != 0 ? ids_and_gradients : 0)));
}

// As many resident blocks as the grid has per multiprocessor.
#define KERNEL(NAME, BODY, T)                                                                                 \
    extern "C" __global__ void __launch_bounds__(POOLED_THREADS, 8) NAME(const __grid_constant__ Pooling p) { \
        BODY<T>(p);                                                                                           \
    }
#define KERNELS(NAME, T)                    \
    KERNEL(pooled_add_##NAME, add_parts, T) \
    KERNEL(pooled_send_##NAME, send_gradients, T)

KERNELS(f32, float)
KERNELS(bf16, bf16)
KERNELS(f16, f16)
