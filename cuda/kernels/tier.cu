// Rows of tables of which this GPU stores only the hottest ones: where the rows of a batch are, and copies of rows from the
// landing region of the batch before.
//
// The stored rows of a part are its hot rows, ascending, and then its landing regions, one after another. Finding a
// row takes 1.125 bits per row of the part, most of which stay in the L2 cache. Per distinct row, 4 bytes are read
// and 8 written, and per look-up, or entry of an owner's lists, 4 bytes are read and written.
#include "common.cuh"

// Where the rows of a part of a table are.
struct TierPart {
    // The first word of its first stored row.
    u64 words;
    // The number of its first row among the rows of all tables, and the number of its rows.
    u32 first;
    u32 rows;
    // The number of its first stored row among all stored rows.
    u32 stored;
    // Its hot rows.
    u32 hot;
    // The key of its first row in the set of hot rows, or `UNLISTED` if all of its rows are stored.
    u32 key;
    // Members of the set before that key.
    u32 members_before;
    // Rows of a landing region.
    u32 landing;
    // Where its cold rows start in a region's lists.
    u32 list;
    // Words from one row to the next.
    u32 row_words;
    // Its first row's number in the table, and the distance to the next row.
    u32 row;
    u32 step;
    u32 reserved;
};

struct Tier {
    const TierPart* parts;
    KeySet hot;
    // The distinct rows of a batch, ascending, and their number.
    const u32* rows;
    const u32* count;
    // Per distinct row: its number among all stored rows, and among the stored rows of its part.
    u32* stored_rows;
    u32* stored_ids;
    // Per stored row: its number in the part. Set for rows of the region.
    u32* listed;
    // By their numbers in the set: the stored row of each hot row of a part, and how many batches have looked it up. Null
    // if the hot rows are stored in order, and never change.
    const u32* places;
    u16* counts;
    // [region][list]: the cold rows of each part, ascending, and for each the number of the stored row that has it
    // already, or `ABSENT`.
    u32* cold;
    u32* sources;
    // [region][part]: how many there are.
    u32* cold_counts;
    // The same for the host: the number of each row among the part's cold rows, and whether it is absent.
    u32* host_numbers;
    u32* host_absent;
    u32* host_counts;
    float* storage;
    u32 parts_count;
    u32 lists;
    // The region of the batch, and the one of the batch before.
    u32 region;
    u32 previous;
};

// Look-ups of a batch: per look-up the number of its distinct row, which becomes its number among the stored rows of
// its part.
struct TierIds {
    u32* ids;
    const u32* stored_ids;
    // The number of distinct rows.
    const u32* count;
    // Room for look-ups.
    u32 ids_max;
    u32 reserved;
};

// What ranks look up at this owner, as in `merge.cu`: rows, which become numbers of stored rows.
struct TierEntries {
    u32* entries;
    const u32* counts;
    // The distinct rows.
    KeySet set;
    const u32* stored_rows;
    u32 capacity;
    u32 owned;
    u32 ranks;
    u32 reserved;
};

// Rows of a part that change places with rows of a landing region.
struct TierSwap {
    // The first stored row of the part, and its row of the region.
    float* rows;
    float* landed;
    // Per row of the region: the stored row of the part with which it changes places, and its number in the table.
    const u32* places;
    const u32* numbers;
    // Per stored row of the part, its number in the table.
    u32* listed;
    u32 count;
    u32 row_words;
};

constexpr u32 ABSENT = ~0u;
constexpr u16 COUNT_MAX = 0xffff;
constexpr u32 LOCATE_THREADS = 1024;
// Consecutive rows that a thread takes.
constexpr u32 LOCATE_ROWS = 4;

// The number of values below `value` in an ascending list.
__device__ inline u32 below(const u32* values, u32 count, u32 value) {
    u32 begin = 0, end = count;
    while (begin < end) {
        const u32 middle = (begin + end) / 2;
        if (values[middle] < value) {
            begin = middle + 1;
        } else {
            end = middle;
        }
    }
    return begin;
}

// Finds the stored row of each distinct row, and lists the cold ones. Grid: one block per part.
extern "C" __global__ void __launch_bounds__(LOCATE_THREADS) tier_locate(const __grid_constant__ Tier p) {
    __shared__ u32 warps[LOCATE_THREADS / WARP + 1];
    const TierPart part = p.parts[blockIdx.x];
    const u32 count = *p.count;
    const u32 begin = below(p.rows, count, part.first), end = below(p.rows, count, part.first + part.rows);
    const u32 region = part.hot + p.region * part.landing;
    u32* const cold = p.cold + u64(p.region) * p.lists + part.list;
    u32 cold_count = 0;
    for (u32 first = begin; first < end; first += LOCATE_THREADS * LOCATE_ROWS) {
        const u32 own = first + threadIdx.x * LOCATE_ROWS;
        u32 rows[LOCATE_ROWS], before[LOCATE_ROWS], cold_bits = 0;
#pragma unroll
        for (u32 i = 0; i < LOCATE_ROWS; i++) {
            if (own + i >= end) continue;
            rows[i] = p.rows[own + i] - part.first;
            before[i] = rows[i];
            if (part.key == UNLISTED) continue;
            const u32 member = number_of(p.hot, part.key + rows[i]);
            before[i] = member - part.members_before;
            if (!contains(p.hot, part.key + rows[i])) {
                cold_bits |= 1u << i;
            } else if (p.places != nullptr) {
                before[i] = p.places[member];
                // A batch has a row once, so no other thread changes the count.
                const u16 count = p.counts[member];
                if (count != COUNT_MAX) p.counts[member] = count + 1;
            }
        }
        u32 all, next = cold_count;
        if (part.key != UNLISTED) {
            next += exclusive_sum<LOCATE_THREADS>(__popc(cold_bits), warps, all);
            cold_count += all;
        }
#pragma unroll
        for (u32 i = 0; i < LOCATE_ROWS; i++) {
            if (own + i >= end) continue;
            u32 stored = before[i];
            if (cold_bits >> i & 1) {
                // The host does not start a step that has more cold rows than fit.
                const u32 number = min(next++, part.landing - 1);
                stored = region + number;
                cold[number] = rows[i];
                p.listed[part.stored + stored] = part.row + rows[i] * part.step;
                p.host_numbers[part.list + number] = rows[i] - before[i];
            }
            p.stored_ids[own + i] = stored;
            p.stored_rows[own + i] = part.stored + stored;
        }
    }
    if (threadIdx.x == 0) {
        p.cold_counts[p.region * p.parts_count + blockIdx.x] = min(cold_count, part.landing);
        p.host_counts[blockIdx.x] = cold_count;
    }
}

// Finds the cold rows that the region of the batch before has. Grid: x any, y the parts.
extern "C" __global__ void __launch_bounds__(256) tier_find(const __grid_constant__ Tier p) {
    const TierPart part = p.parts[blockIdx.y];
    const u32 count = p.cold_counts[p.region * p.parts_count + blockIdx.y];
    const u32 others = p.cold_counts[p.previous * p.parts_count + blockIdx.y];
    const u32* const cold = p.cold + u64(p.region) * p.lists + part.list;
    const u32* const other = p.cold + u64(p.previous) * p.lists + part.list;
    u32* const sources = p.sources + u64(p.region) * p.lists + part.list;
    for (u32 i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x) {
        const u32 row = cold[i], at = below(other, others, row);
        const bool there = at < others && other[at] == row;
        sources[i] = there ? part.stored + part.hot + p.previous * part.landing + at : ABSENT;
        p.host_absent[part.list + i] = u32(!there);
    }
}

// Makes look-ups refer to stored rows. Grid: any.
extern "C" __global__ void __launch_bounds__(256) tier_ids(const __grid_constant__ TierIds p) {
    const u32 count = *p.count;
    for (u32 i = blockIdx.x * blockDim.x + threadIdx.x; i < p.ids_max; i += gridDim.x * blockDim.x) {
        // Where a sample has fewer ids than there is room for, nothing reads the number.
        const u32 slot = p.ids[i];
        p.ids[i] = slot < count ? p.stored_ids[slot] : 0;
    }
}

// Makes the entries of an owner's lists refer to stored rows. Grid: x over entries, y over lists.
extern "C" __global__ void __launch_bounds__(256) tier_entries(const __grid_constant__ TierEntries p) {
    const u32 list = blockIdx.y, count = p.counts[list];
    u32* const entries = p.entries + list % p.ranks * p.capacity + (list < p.ranks ? 0 : p.owned);
    for (u32 i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x) {
        entries[i] = p.stored_rows[number_of(p.set, entries[i])];
    }
}

// Copies the cold rows that the region of the batch before has: these have learned since host memory was read. A warp
// copies a row at a time. Grid: x any, y the parts.
extern "C" __global__ void __launch_bounds__(256) tier_forward(const __grid_constant__ Tier p) {
    const TierPart part = p.parts[blockIdx.y];
    const u32 count = p.cold_counts[p.region * p.parts_count + blockIdx.y];
    const u32* const sources = p.sources + u64(p.region) * p.lists + part.list;
    const u32 lane = threadIdx.x % WARP, warps = gridDim.x * blockDim.x / WARP;
    float4* const rows = reinterpret_cast<float4*>(p.storage + part.words);
    const u32 vectors = part.row_words / VECTOR, region = part.hot + p.region * part.landing;
    for (u32 first = (blockIdx.x * blockDim.x + threadIdx.x) / WARP * WARP; first < count; first += warps * WARP) {
        const u32 own = first + lane < count ? sources[first + lane] : ABSENT;
        for (u32 left = __ballot_sync(ALL_LANES, own != ABSENT); left != 0; left &= left - 1) {
            const u32 at = __ffs(left) - 1;
            const u64 from = u64(__shfl_sync(ALL_LANES, own, at) - part.stored) * vectors;
            const u64 to = u64(region + first + at) * vectors;
            for (u32 vector = lane; vector < vectors; vector += WARP) rows[to + vector] = rows[from + vector];
        }
    }
}

// Makes rows change places with rows of a landing region. A warp takes a row at a time. Grid: any.
extern "C" __global__ void __launch_bounds__(256) tier_swap(const __grid_constant__ TierSwap p) {
    const u32 lane = threadIdx.x % WARP, warps = gridDim.x * blockDim.x / WARP, vectors = p.row_words / VECTOR;
    for (u32 i = (blockIdx.x * blockDim.x + threadIdx.x) / WARP; i < p.count; i += warps) {
        float4* const row = reinterpret_cast<float4*>(p.rows) + u64(p.places[i]) * vectors;
        float4* const landed = reinterpret_cast<float4*>(p.landed) + u64(i) * vectors;
        for (u32 vector = lane; vector < vectors; vector += WARP) {
            const float4 leaving = row[vector];
            row[vector] = landed[vector];
            landed[vector] = leaving;
        }
        if (lane == 0) p.listed[p.places[i]] = p.numbers[i];
    }
}
