// Sums the gradients of distinct rows, each over its bags, in their order.
//
// A team of lanes (four elements of a row each) takes a run of the sorted pairs, whatever rows they belong to, so a
// row with thousands of pairs is as much work as any other. A row that begins and ends within a run is finished by
// its team. For the others, the block combines the sums of its teams, and a second kernel those of blocks, through
// `parts`. Which sums these are depends only on the pairs, so the bits are the same each time.
//
// The parameter `P` decides what is done with the sums. `stopped` returns whether to do nothing; `target` converts a
// slot to what is handed over; `finish` takes a row with its sum, and `expect` is called for the next row just
// before. `turned` returns whose runs a block takes.
#pragma once

#include "element.cuh"
#include "team.cuh"

// Pairs per run. With half or twice as many, rows of 128 elements take 7 and 10% longer (H200).
constexpr u32 RUN = 64;

// A row whose sum is known: what `target` returned for its slot, and a feature that looks it up.
struct Pending {
    u32 target;
    u32 feature;
};

// Rows that a block's teams have to hand over, up to ROWS each.
template <class TEAM, u32 ROWS>
struct Outbox {
    float4 sums[TEAM::COUNT][ROWS][TEAM::VECTORS][TEAM::LANES];
    Pending pending[TEAM::COUNT][ROWS];
};

// One sum per team.
template <class TEAM>
using Sums = float4[TEAM::COUNT][TEAM::VECTORS][TEAM::LANES];

// Shared memory of blocks that sum runs.
template <class TEAM>
struct OfRuns {
    Outbox<TEAM, TEAM::PAIRS> outbox;
    // Sums for the row in which a run begins, and for the row in which it ends.
    Sums<TEAM> begins, ends;
};

// Shared memory of blocks that sum parts.
template <class TEAM>
struct OfParts {
    Outbox<TEAM, 1> outbox;
    Sums<TEAM> sums;
    // For each team's boundary: whether a row of many parts continues there.
    u32 many[TEAM::COUNT];
};

static_assert(sizeof(OfRuns<Team<32, 1>>) == 41472 && sizeof(OfParts<Team<32, 1>>) == 8288);

// Four elements as stored. All-zero bits of bf16 are zeros.
template <class T>
struct FourOf;
template <>
struct FourOf<float> {
    using Type = float4;
};
template <>
struct FourOf<bf16> {
    using Type = uint2;
};
// f16, as a type distinct from bf16's.
struct FourHalves {
    uint2 bits;
};
template <>
struct FourOf<f16> {
    using Type = FourHalves;
};
template <class T>
using Four = typename FourOf<T>::Type;

__device__ inline float4 unpacked(float4 values) { return values; }
__device__ inline float4 unpacked(FourHalves values) { return unpacked_f16(values.bits); }

// The gradients of a feature are read again for each look-up of a bag, by all multiprocessors, so the L2 cache keeps
// them rather than rows.
__device__ inline u64 keeping() {
    u64 policy;
    asm volatile("createpolicy.fractional.L2::evict_last.b64 %0;" : "=l"(policy));
    return policy;
}

__device__ inline uint2 load_gradients(const uint2* address) {
    uint2 value;
    asm volatile("ld.global.nc.L1::no_allocate.L2::cache_hint.v2.u32 {%0, %1}, [%2], %3;"
                 : "=r"(value.x), "=r"(value.y)
                 : "l"(address), "l"(keeping()));
    return value;
}

__device__ inline FourHalves load_gradients(const FourHalves* address) { return {load_gradients(&address->bits)}; }

__device__ inline float4 load_gradients(const float4* address) {
    float4 value;
    asm volatile("ld.global.nc.L1::no_allocate.L2::cache_hint.v4.f32 {%0, %1, %2, %3}, [%4], %5;"
                 : "=f"(value.x), "=f"(value.y), "=f"(value.z), "=f"(value.w)
                 : "l"(address), "l"(keeping()));
    return value;
}

// Adds a row to those that are handed over next.
template <class TEAM, u32 ROWS>
__device__ inline void put(const TEAM& team, Outbox<TEAM, ROWS>& outbox, u32& count, Pending of,
                           const float4 (&sum)[TEAM::VECTORS]) {
#pragma unroll
    for (u32 vector = 0; vector < TEAM::VECTORS; vector++) {
        outbox.sums[team.number][count][vector][team.lane] = sum[vector];
    }
    if (team.lane == 0) outbox.pending[team.number][count] = of;
    count++;
}

// Hands over the first `count` rows whose sums a team has.
template <class P, class TEAM, u32 ROWS>
__device__ inline void finish_all(const P& p, const TEAM& team, const Outbox<TEAM, ROWS>& outbox, u32 count) {
    __syncwarp(team.mask);
    const Pending* pending = outbox.pending[team.number];
    for (u32 i = 0; i < count; i++) {
        if (team.lane == 0 && i + 1 < count) expect(p, pending[i + 1]);
        finish(p, team, pending[i], outbox.sums[team.number][i]);
    }
    // The outbox is overwritten next.
    __syncwarp(team.mask);
}

// The slot of a pair; for no pair, a number that no slot has.
template <class P>
__device__ inline u32 slot_of(const P& p, u64 pair, u32 count) { return pair < count ? p.pairs[pair].x : ~0u; }

template <class P>
__device__ inline Pending pending_of(const P& p, u64 pair) {
    const uint2 of = p.pairs[pair];
    return {target(p, of.x), of.y >> p.sample_bits};
}

template <class T, u32 LANES, u32 VECTORS, class P>
__device__ inline void sum_runs(const P& p) {
    using TEAM = Team<LANES, VECTORS>;
    extern __shared__ float4 memory[];
    OfRuns<TEAM>& shared = *reinterpret_cast<OfRuns<TEAM>*>(memory);
    const TEAM team;
    const u32 count = *p.count;
    const u32 blocks = (count + TEAM::COUNT * RUN - 1) / (TEAM::COUNT * RUN);
    if (blockIdx.x >= blocks || stopped(p)) return;
    const u32 block = turned(p, blockIdx.x, blocks);
    const u64 block_begin = u64(block) * TEAM::COUNT * RUN, block_end = block_begin + TEAM::COUNT * RUN;
    const Four<T>* gradients = static_cast<const Four<T>*>(p.gradients);
    const u64 begin = block_begin + team.number * RUN;
    const u32 length = begin < count ? u32(min(u64(RUN), count - begin)) : 0;
    const u32 before = begin > 0 ? slot_of(p, begin - 1, count) : ~0u, after = slot_of(p, begin + RUN, count);

    float4 sum[VECTORS];
    Pending of = {};
    u32 current = ~0u, pending = 0;
    uint2 next_pair = make_uint2(~0u, 0);
    if (team.lane < length) next_pair = p.pairs[begin + team.lane];
    for (u32 first = 0; first < length; first += LANES) {
        const bool there = first + team.lane < length;
        const uint2 pair = next_pair;
        next_pair.x = ~0u;
        if (first + LANES + team.lane < length) next_pair = p.pairs[begin + first + LANES + team.lane];
        const u32 number = pair.y >> p.sample_bits;
        u32 offset = 0, row = 0, vectors = 0;
        float scale = 0;
        const u32 previous = __shfl_up_sync(team.mask, pair.x, 1, LANES);
        const bool head = there && pair.x != (team.lane == 0 ? current : previous);
        if (there) {
            const Feature& feature = p.features[number];
            // Or the position.
            const u32 sample = pair.y & ((1u << p.sample_bits) - 1);
            const bool separate = feature.pooling == SEPARATE;
            const u32 begin_of_bag = separate ? p.keys + sample * feature.key_stride : sample * p.stride;
            offset = (begin_of_bag + feature.vector_offset) / VECTOR;
            vectors = feature.dim / VECTOR;
            if (feature.pooling == SUM || separate) {
                scale = 1;
            } else if (feature.pooling == MEAN) {
                scale = bag_scale(MEAN, bag_of(feature, p.offsets, sample).size);
            } else {
                scale = p.factors[begin + first + team.lane];
            }
            if (head) row = target(p, pair.x);
        }
        const u32 heads = __ballot_sync(team.mask, head) >> (threadIdx.x % WARP / LANES * LANES);
        const u32 here = min(LANES, length - first);
        for (u32 next = 0; next < here; next += TEAM::PAIRS) {
            Four<T> values[TEAM::PAIRS][VECTORS];
#pragma unroll
            for (u32 i = 0; i < TEAM::PAIRS; i++) {
                const u32 source = team.of(offset, next + i), width = team.of(vectors, next + i);
#pragma unroll
                for (u32 vector = 0; vector < VECTORS; vector++) {
                    const u32 column = vector * LANES + team.lane;
                    values[i][vector] = {};
                    if (column < width) values[i][vector] = load_gradients(gradients + (u64(source) + column));
                }
            }
#pragma unroll
            for (u32 i = 0; i < TEAM::PAIRS; i++) {
                if (next + i >= here) break;
                if (heads >> (next + i) & 1) {
                    if (current != ~0u) {
                        if (current == before) {
#pragma unroll
                            for (u32 vector = 0; vector < VECTORS; vector++) {
                                shared.begins[team.number][vector][team.lane] = sum[vector];
                            }
                        } else {
                            put(team, shared.outbox, pending, of, sum);
                        }
                    }
#pragma unroll
                    for (u32 vector = 0; vector < VECTORS; vector++) sum[vector] = zeros();
                    current = team.of(pair.x, next + i);
                    of = {team.of(row, next + i), team.of(number, next + i)};
                }
                const float by = team.of(scale, next + i);
#pragma unroll
                for (u32 vector = 0; vector < VECTORS; vector++) {
                    const float4 value = unpacked(values[i][vector]);
                    float4& to = sum[vector];
                    to = make_float4(fmaf(value.x, by, to.x), fmaf(value.y, by, to.y), fmaf(value.z, by, to.z),
                                     fmaf(value.w, by, to.w));
                }
            }
            if (pending > 0) finish_all(p, team, shared.outbox, pending);
            pending = 0;
        }
    }
    if (length > 0) {
        if (current == before || current == after) {
            auto& to = current == before ? shared.begins : shared.ends;
#pragma unroll
            for (u32 vector = 0; vector < VECTORS; vector++) to[team.number][vector][team.lane] = sum[vector];
        } else {
            put(team, shared.outbox, pending, of, sum);
            finish_all(p, team, shared.outbox, pending);
        }
    }
    __syncthreads();

    // The sum over the runs in which a row continues: for the first team, the row that began before the block; for
    // the team of each run, the row that begins in it and continues.
    const u32 last = length == 0 ? ~0u : slot_of(p, begin + length - 1, count);
    const bool enters = team.number == 0 && before == slot_of(p, begin, count) && begin > 0;
    for (u32 turn = 0; turn < 2; turn++) {
        // A run that lies within one row has no other row that begins there.
        const bool own = turn == 0 ? enters : length > 0 && last == after && (last != before || begin == 0);
        if (!own) continue;
        const u32 slot = turn == 0 ? before : last;
#pragma unroll
        for (u32 vector = 0; vector < VECTORS; vector++) {
            sum[vector] = turn == 0 ? zeros() : shared.ends[team.number][vector][team.lane];
        }
        for (u32 other = turn == 0 ? 0 : team.number + 1;
             other < TEAM::COUNT && slot_of(p, block_begin + other * RUN, count) == slot; other++) {
#pragma unroll
            for (u32 vector = 0; vector < VECTORS; vector++) add(sum[vector], shared.begins[other][vector][team.lane]);
        }
        if (turn == 0 || slot_of(p, block_end, count) == slot) {
#pragma unroll
            for (u32 vector = 0; vector < VECTORS; vector++) {
                const u32 column = vector * LANES + team.lane;
                if (column < p.vectors) p.parts[(u64(block) * 2 + turn) * p.vectors + column] = sum[vector];
            }
        } else {
            pending = 0;
            put(team, shared.outbox, pending, pending_of(p, begin + length - 1), sum);
            finish_all(p, team, shared.outbox, pending);
        }
    }
}

// Adds the parts of blocks `first`, `first + step` and so on, as long as they begin within the slot's row.
template <class P, class TEAM>
__device__ inline void add_parts(const P& p, const TEAM& team, u32 slot, u32 count, u64 first, u32 step,
                                 float4 (&sum)[TEAM::VECTORS]) {
    constexpr u32 AT_ONCE = TEAM::VECTORS == 1 ? 4 : 1, PAIRS = TEAM::COUNT * RUN;
    for (bool goes_on = true; goes_on; first += AT_ONCE * step) {
        // Parts are loaded before it is known whether they belong to the row, or the two loads would wait for each
        // other.
        float4 values[AT_ONCE][TEAM::VECTORS];
        u32 slots[AT_ONCE];
#pragma unroll
        for (u32 i = 0; i < AT_ONCE; i++) {
            const u64 block = first + i * step;
            slots[i] = slot_of(p, block * PAIRS, count);
#pragma unroll
            for (u32 vector = 0; vector < TEAM::VECTORS; vector++) {
                const u32 column = vector * TEAM::LANES + team.lane;
                values[i][vector] = zeros();
                if (block * PAIRS < count && column < p.vectors) {
                    values[i][vector] = p.parts[block * 2 * p.vectors + column];
                }
            }
        }
#pragma unroll
        for (u32 i = 0; i < AT_ONCE; i++) {
            goes_on = goes_on && slots[i] == slot;
            if (!goes_on) break;
#pragma unroll
            for (u32 vector = 0; vector < TEAM::VECTORS; vector++) add(sum[vector], values[i][vector]);
        }
    }
}

// The block's share of the row that begins in it and continues in the next.
template <class P, class TEAM>
__device__ inline void begin_of(const P& p, const TEAM& team, u64 block, float4 (&sum)[TEAM::VECTORS]) {
#pragma unroll
    for (u32 vector = 0; vector < TEAM::VECTORS; vector++) {
        const u32 column = vector * TEAM::LANES + team.lane;
        sum[vector] = column < p.vectors ? p.parts[(block * 2 + 1) * p.vectors + column] : zeros();
    }
}

// Rows that continue from one block to the next. A team checks whether such a row begins in its block, and adds the
// parts of a short one, in order. A long one is shared by all teams: each adds every n-th part, then the first team
// adds the teams' sums, in order.
template <u32 LANES, u32 VECTORS, class P>
__device__ inline void sum_parts(const P& p) {
    using TEAM = Team<LANES, VECTORS>;
    constexpr u32 PAIRS = TEAM::COUNT * RUN, FEW = 4;
    extern __shared__ float4 memory[];
    OfParts<TEAM>& shared = *reinterpret_cast<OfParts<TEAM>*>(memory);
    const TEAM team;
    const u32 count = *p.count;
    const u64 first_block = u64(blockIdx.x) * TEAM::COUNT;
    if ((first_block + 1) * PAIRS >= count || stopped(p)) return;
    float4 sum[VECTORS];
    u32 pending = 0;
    const u64 block = first_block + team.number, begin = block * PAIRS, end = begin + PAIRS;
    const u32 slot = slot_of(p, end, count);
    const bool begins = end < count && slot_of(p, end - 1, count) == slot &&
                        (begin == 0 || slot_of(p, begin - 1, count) != slot);
    const bool is_long = begins && slot_of(p, end + FEW * PAIRS, count) == slot;
    if (begins && !is_long) {
        begin_of(p, team, block, sum);
        add_parts(p, team, slot, count, block + 1, 1, sum);
        put(team, shared.outbox, pending, pending_of(p, end), sum);
        finish_all(p, team, shared.outbox, pending);
    }
    if (team.lane == 0) shared.many[team.number] = is_long;
    __syncthreads();
    for (u32 other = 0; other < TEAM::COUNT; other++) {
        if (shared.many[other] == 0) continue;
        const u64 of = first_block + other, pair = (of + 1) * PAIRS;
#pragma unroll
        for (u32 vector = 0; vector < VECTORS; vector++) sum[vector] = zeros();
        add_parts(p, team, slot_of(p, pair, count), count, of + 1 + team.number, TEAM::COUNT, sum);
#pragma unroll
        for (u32 vector = 0; vector < VECTORS; vector++) shared.sums[team.number][vector][team.lane] = sum[vector];
        __syncthreads();
        if (team.number == 0) {
            begin_of(p, team, of, sum);
#pragma unroll
            for (u32 vector = 0; vector < VECTORS; vector++) {
                for (u32 from = 0; from < TEAM::COUNT; from++) add(sum[vector], shared.sums[from][vector][team.lane]);
            }
            pending = 0;
            put(team, shared.outbox, pending, pending_of(p, pair), sum);
            finish_all(p, team, shared.outbox, pending);
        }
        __syncthreads();
    }
}

// Blocks per multiprocessor: more blocks keep more loads in flight. With three instead of four, rows of 128 elements
// take 10% longer, and with five, which leave too few registers, 50% (H200).
constexpr u32 blocks_of(u32 vectors) { return vectors == 1 ? 4 : 1; }
