// Bags pooled by the owners of their rows: sends each rank's ids to the owners, and bags' vectors and gradients
// between ranks.
//
// A rank splits each bag into parts, one per owner of some of its rows, in the order of the bag, and writes these
// into the owners' memory, feature by feature, as columns of ragged bags. To an owner, the parts of all ranks are
// features of its own, which it looks up and updates as it does for tables on one GPU. The parts' vectors come back
// and are added up in the order of owners; the gradient of a bag goes to each owner of a part.
//
// Reads an id three times and writes it once; reads and writes one element per part and per bag.
#include "dtype.cuh"
#include "traffic.cuh"

// A feature of a rank's batch, for a table (or some of its columns) whose owners pool.
struct PooledFeature {
    // Where the column's ids start, and its offsets or `FIXED`.
    u32 ids;
    u32 offsets;
    u32 hotness;
    u32 mean;
    // Rows of the table; an id that is not below is replaced by the last row.
    u32 rows;
    // The rank that owns all rows, or `TURNS`.
    u32 owner;
    // Elements, a multiple of VECTOR, and where they start in a sample's vectors and in its parts' vectors.
    u32 dim;
    u32 vector_offset;
    u32 part_offset;
    // Where its ids start at an owner, among those of this rank.
    u32 part_ids;
};

struct Pooling {
    const PooledFeature* features;
    const u32* ids;
    const u32* offsets;
    const u32* samples_count;
    // [owner][feature][samples + 1]: where each sample's part starts, relative to the feature's first id there.
    u32* starts;
    // Per owner, this rank's: [feature][samples + 1], and ids as row numbers at the owner.
    u32* their_starts[RANKS_MAX];
    u32* their_ids[RANKS_MAX];
    // [owner][sample][width]: vectors of parts.
    const void* parts;
    // Per owner, this rank's: `their_stride` elements per sample.
    void* their_gradients[RANKS_MAX];
    // [sample][stride]
    void* vectors;
    const void* gradients;
    // Counts ids that are out of range for their table.
    u32* faults;
    // Of this rank, within its node.
    LinkCounts* counts;
    u32 features_count;
    u32 samples;
    u32 ranks;
    u32 width;
    u32 their_stride;
    u32 stride;
    u32 rank;
    u32 reserved;
};

constexpr u32 POOLED_THREADS = 256;

// A sample's ids; none for samples after the end of the batch.
__device__ inline Bag bag_of(const Pooling& p, const PooledFeature& feature, u32 sample) {
    if (sample >= *p.samples_count) return {0, 0};
    if (feature.offsets == FIXED) return {feature.ids + sample * feature.hotness, feature.hotness};
    const u32 *of_sample = p.offsets + feature.offsets + sample, begin = of_sample[0];
    return {feature.ids + begin, of_sample[1] - begin};
}

__device__ inline u32 row_of(const Pooling& p, const PooledFeature& feature, u32 at) {
    return min(__ldg(p.ids + at), feature.rows - 1);
}

__device__ inline u32 owner_of(const Pooling& p, const PooledFeature& feature, u32 row) {
    return feature.owner == TURNS ? row % p.ranks : feature.owner;
}

__device__ inline u32* starts_of(const Pooling& p, u32 owner, u32 feature) {
    return p.starts + (u64(owner) * p.features_count + feature) * (p.samples + 1);
}

// Counts each sample's ids per owner, into the element after the sample's own. Grid: x over samples, one thread each;
// y over features.
extern "C" __global__ void __launch_bounds__(POOLED_THREADS) pooled_count(const __grid_constant__ Pooling p) {
    const u32 sample = blockIdx.x * POOLED_THREADS + threadIdx.x;
    if (sample >= p.samples) return;
    const PooledFeature feature = p.features[blockIdx.y];
    const Bag bag = bag_of(p, feature, sample);
    u32 counts[RANKS_MAX] = {}, faults = 0;
    for (u32 i = 0; i < bag.size; i++) {
        faults += __ldg(p.ids + bag.begin + i) >= feature.rows;
        const u32 owner = owner_of(p, feature, row_of(p, feature, bag.begin + i));
#pragma unroll
        for (u32 rank = 0; rank < RANKS_MAX; rank++) counts[rank] += rank == owner;
    }
#pragma unroll
    for (u32 rank = 0; rank < RANKS_MAX; rank++) {
        if (rank < p.ranks) starts_of(p, rank, blockIdx.y)[sample + 1] = counts[rank];
    }
    if (faults != 0) atomicAdd(p.faults, faults);
}

constexpr u32 SCAN_THREADS = 1024;

// Turns counts into the starts of parts, here and at the owner. Grid: x over features, y over owners.
extern "C" __global__ void __launch_bounds__(SCAN_THREADS) pooled_scan(const __grid_constant__ Pooling p) {
    __shared__ u32 warps[SCAN_THREADS / WARP + 1];
    u32* own = starts_of(p, blockIdx.y, blockIdx.x);
    u32* theirs = p.their_starts[blockIdx.y] + u64(blockIdx.x) * (p.samples + 1);
    u32 before = 0;
    if (threadIdx.x == 0) own[0] = theirs[0] = 0;
    for (u32 first = 0; first < p.samples; first += SCAN_THREADS) {
        const u32 sample = first + threadIdx.x;
        const u32 count = sample < p.samples ? own[sample + 1] : 0;
        u32 all;
        const u32 end = before + exclusive_sum<SCAN_THREADS>(count, warps, all) + count;
        if (sample < p.samples) own[sample + 1] = theirs[sample + 1] = end;
        before += all;
    }
}

// Writes ids to the owners of their rows, as row numbers there. Grid: x over samples, one thread each; y over
// features.
extern "C" __global__ void __launch_bounds__(POOLED_THREADS) pooled_cut(const __grid_constant__ Pooling p) {
    const u32 sample = blockIdx.x * POOLED_THREADS + threadIdx.x;
    if (sample >= p.samples) return;
    const PooledFeature feature = p.features[blockIdx.y];
    const Bag bag = bag_of(p, feature, sample);
    u32 next[RANKS_MAX] = {};
#pragma unroll
    for (u32 rank = 0; rank < RANKS_MAX; rank++) {
        if (rank < p.ranks) next[rank] = starts_of(p, rank, blockIdx.y)[sample];
    }
    for (u32 i = 0; i < bag.size; i++) {
        const u32 row = row_of(p, feature, bag.begin + i), owner = owner_of(p, feature, row);
        u32 index = 0;
#pragma unroll
        for (u32 rank = 0; rank < RANKS_MAX; rank++) {
            if (rank == owner) index = next[rank]++;
        }
        p.their_ids[owner][feature.part_ids + index] = feature.owner == TURNS ? row / p.ranks : row;
    }
}

// Returns whether an owner has a part of a sample's bag.
__device__ inline bool has_part(const Pooling& p, u32 owner, u32 feature, u32 sample) {
    const u32* starts = starts_of(p, owner, feature) + sample;
    return starts[0] != starts[1];
}

// One warp per bag: x over samples, y over features.
template <class T>
__device__ inline void add_parts(const Pooling& p) {
    const u32 lane = threadIdx.x % WARP, warps = gridDim.x * POOLED_THREADS / WARP;
    const PooledFeature feature = p.features[blockIdx.y];
    for (u32 sample = (blockIdx.x * POOLED_THREADS + threadIdx.x) / WARP; sample < p.samples; sample += warps) {
        const u32 size = bag_of(p, feature, sample).size;
        const float scale = feature.mean != 0 ? __frcp_rn(float(max(size, 1u))) : 1.0f;
        u32 owners = 0;
        for (u32 owner = 0; owner < p.ranks; owner++) owners |= u32(has_part(p, owner, blockIdx.y, sample)) << owner;
        for (u32 column = lane * VECTOR; column < feature.dim; column += WARP * VECTOR) {
            float4 sum = make_float4(0, 0, 0, 0);
            for (u32 owner = 0; owner < p.ranks; owner++) {
                if ((owners >> owner & 1) == 0) continue;
                const u64 at = (u64(owner) * p.samples + sample) * p.width + feature.part_offset + column;
                add(sum, load4(static_cast<const T*>(p.parts) + at));
            }
            if (scale != 1) sum = make_float4(sum.x * scale, sum.y * scale, sum.z * scale, sum.w * scale);
            stream4(static_cast<T*>(p.vectors) + u64(sample) * p.stride + feature.vector_offset + column, sum);
        }
    }
}

// Sends each bag's gradient to every owner of a part, with the same grid, and counts the parts at other ranks.
template <class T>
__device__ inline void send_gradients(const Pooling& p) {
    __shared__ u32 sent;
    if (threadIdx.x == 0) sent = 0;
    __syncthreads();
    u32 parts = 0;
    const u32 lane = threadIdx.x % WARP, warps = gridDim.x * POOLED_THREADS / WARP;
    const PooledFeature feature = p.features[blockIdx.y];
    for (u32 sample = (blockIdx.x * POOLED_THREADS + threadIdx.x) / WARP; sample < p.samples; sample += warps) {
        const u32 size = bag_of(p, feature, sample).size;
        const float scale = feature.mean != 0 ? __frcp_rn(float(max(size, 1u))) : 1.0f;
        u32 owners = 0;
        for (u32 owner = 0; owner < p.ranks; owner++) owners |= u32(has_part(p, owner, blockIdx.y, sample)) << owner;
        if (owners == 0) continue;
        parts += __popc(owners & ~(1u << p.rank));
        for (u32 column = lane * VECTOR; column < feature.dim; column += WARP * VECTOR) {
            const T* gradients = static_cast<const T*>(p.gradients) + u64(sample) * p.stride;
            float4 value = load4(gradients + feature.vector_offset + column);
            if (scale != 1) value = make_float4(value.x * scale, value.y * scale, value.z * scale, value.w * scale);
            const u64 at = u64(sample) * p.their_stride + feature.part_offset + column;
            for (u32 owner = 0; owner < p.ranks; owner++) {
                if (owners >> owner & 1) store4(static_cast<T*>(p.their_gradients[owner]) + at, value);
            }
        }
    }
    if (lane == 0 && parts != 0) atomicAdd(&sent, parts);
    __syncthreads();
    if (threadIdx.x != 0) return;
    u64 ids = 0;
    for (u32 owner = 0; blockIdx.x == 0 && owner < p.ranks; owner++) {
        if (owner != p.rank) ids += starts_of(p, owner, blockIdx.y)[p.samples];
    }
    // Lengths and vectors are sent for all bags. Those of bags without a part at an owner are padding.
    const u64 gradient = feature.dim * sizeof(T), contained = sent * (sizeof(u32) + gradient);
    add_to(p.counts->rows, sent);
    add_to(p.counts->bytes, contained + sent * gradient + ids * sizeof(u32));
    add_to(p.counts->padding, 0 - contained);
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
