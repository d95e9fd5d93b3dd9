// The update of tables that lie on this GPU: of each distinct row the sum of its gradients over its bags, in their
// order, and at once the rule, with the state that lies behind the row's weights.
//
// Reads an element of every look-up's gradient, and reads and writes every distinct row and its state. Of 65536 samples
// of dlrm with plain gradient descent that is 640 MB, 155 us at the memory's rate; 222 were measured, 9 of them in the
// second kernel. Of dlrm-dcnv2's 14.0 million look-ups and Adagrad, element by element, 2.27 ms (H200).
//
// A team of lanes, four elements of a row each, takes a run of the sorted pairs, whatever rows they belong to: a row of
// which there are thousands is as much work as any other. Rows that begin and end within a run are updated by its team,
// and were asked for beforehand, so that they come from the cache. Of the others the block puts together what its teams
// have, and a second kernel what blocks have, which goes through `parts`. Which sums these are follows from the pairs
// alone, so the bits are the same each time.
#include "dtype.cuh"
#include "optimizer.cuh"

// Pairs of a run. With half or twice as many, rows of 128 elements take 7 and 10% longer (H200).
constexpr u32 RUN = 64;
// Pairs whose gradients are on their way at once.
constexpr u32 PAIRS_MAX = 8;
constexpr u32 UPDATE_THREADS = 256;

// How the rows of a table learn.
struct TableRule {
    Rule rule;
    // Elements of a row, without those that fill it up.
    u32 dim;
    // Where a row's state begins, in words, and where the second of two begins.
    u32 first;
    u32 second;
    // What its weights are stored as: a `Dtype`.
    u32 dtype;
};
static_assert(sizeof(TableRule) == 48);

struct SparseUpdate {
    // Slots, and beside them bags: a feature's number above `sample_bits`, a sample's below. Sorted.
    const uint2* pairs;
    // How many they are.
    const u32* count;
    // Of each slot: the row of all tables.
    const u32* rows;
    const Feature* features;
    // Of the bags of ragged columns.
    const u32* offsets;
    // One a table.
    const TableRule* tables;
    const Rate* rates;
    // [sample][stride]
    const void* gradients;
    // Null, or what gradients are multiplied by.
    const float* scale;
    // Nothing is written where this is not 0.
    const u32* stop;
    float* storage;
    // What rounding at random follows from, with the step's number.
    const Step* step;
    u64 seed;
    // [block][2][vectors of the widest row]: of the row that a block begins inside of, and of the one that it ends
    // inside of.
    float4* parts;
    u32 sample_bits;
    u32 stride;
    // Of the widest row.
    u32 vectors;
    u32 reserved;
};
static_assert(sizeof(SparseUpdate) == 128);

// Lanes that have a row together, vectors of a row that each has, and what follows from them.
template <u32 LANES_, u32 VECTORS_>
struct Team {
    static constexpr u32 LANES = LANES_, VECTORS = VECTORS_;
    static constexpr u32 COUNT = UPDATE_THREADS / LANES;
    static constexpr u32 PAIRS = (LANES < PAIRS_MAX ? LANES : PAIRS_MAX) / VECTORS;
    static constexpr u32 ALL = LANES == WARP ? ALL_LANES : (1u << LANES) - 1;

    u32 lane, number, mask;

    __device__ Team()
        : lane(threadIdx.x % LANES), number(threadIdx.x / LANES), mask(ALL << (threadIdx.x % WARP / LANES * LANES)) {}

    template <class V>
    __device__ V of(V value, u32 source) const {
        return __shfl_sync(mask, value, source, LANES);
    }
};

// A row whose sum is known.
struct Pending {
    u32 row;
    u32 feature;
};

// Rows that a block's teams have to update, so many each.
template <class TEAM, u32 ROWS>
struct Outbox {
    float4 sums[TEAM::COUNT][ROWS][TEAM::VECTORS][TEAM::LANES];
    Pending pending[TEAM::COUNT][ROWS];
};

// A sum for each team.
template <class TEAM>
using Sums = float4[TEAM::COUNT][TEAM::VECTORS][TEAM::LANES];

// What blocks have in shared memory that sum runs.
template <class TEAM>
struct OfRuns {
    Outbox<TEAM, TEAM::PAIRS> outbox;
    // Of the row that a run begins inside of, and of the one that it ends inside of.
    Sums<TEAM> begins, ends;
};

// What blocks have that sum parts.
template <class TEAM>
struct OfParts {
    Outbox<TEAM, 1> outbox;
    Sums<TEAM> sums;
    // Of each team's boundary: whether a row of many parts goes on there.
    u32 many[TEAM::COUNT];
};

static_assert(sizeof(OfRuns<Team<32, 1>>) == 41472 && sizeof(OfParts<Team<32, 1>>) == 8288);

__device__ inline float* row_at(const SparseUpdate& p, const Feature& feature, u32 row) {
    return p.storage + feature.words + u64(row - feature.base) * feature.row_words;
}

// Asks for memory that will be read soon.
__device__ inline void prefetch(const float* address, u32 words) {
#if __CUDA_ARCH__ >= 900
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(address), "r"(words * 4) : "memory");
#else
    for (u32 word = 0; word < words; word += 32) asm volatile("prefetch.global.L2 [%0];" ::"l"(address + word));
#endif
}

// Four elements as they lie in memory: bf16 zeros are zero bits.
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
// f16, which must not be taken for bf16.
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

// Loads what this multiprocessor does not need again.
__device__ inline uint2 load_once(const uint2* address) {
    uint2 value;
    asm volatile("ld.global.nc.L1::no_allocate.v2.u32 {%0, %1}, [%2];" : "=r"(value.x), "=r"(value.y) : "l"(address));
    return value;
}

__device__ inline FourHalves load_once(const FourHalves* address) { return {load_once(&address->bits)}; }

__device__ inline float4 load_once(const float4* address) {
    float4 value;
    asm volatile("ld.global.nc.L1::no_allocate.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(value.x), "=f"(value.y), "=f"(value.z), "=f"(value.w)
                 : "l"(address));
    return value;
}

__device__ inline float4 zeros() { return make_float4(0, 0, 0, 0); }

// The first `count` of four elements.
__device__ inline float4 first_of(float4 values, u32 count) {
    return make_float4(count > 0 ? values.x : 0, count > 1 ? values.y : 0, count > 2 ? values.z : 0,
                       count > 3 ? values.w : 0);
}

__device__ inline float4 scaled(float4 values, float by) {
    return make_float4(values.x * by, values.y * by, values.z * by, values.w * by);
}

// The square of a gradient, weight decay included.
__device__ inline float squared(const Rule& rule, float gradient, float weight) {
    const Exact g = decayed(rule, {gradient}, {weight});
    return (g * g).value;
}

// The sum over a row: sixteen sums, of every sixteenth element each, and then these in order, as on the CPU.
template <class TEAM>
__device__ inline float sum_over_row(const TEAM& team, const float4 (&values)[TEAM::VECTORS]) {
    float4 sums = zeros();
#pragma unroll
    for (u32 vector = 0; vector < TEAM::VECTORS; vector++) {
#pragma unroll
        for (u32 first = 0; first < TEAM::LANES; first += 4) {
            const u32 source = first + team.lane % 4;
            add(sums, make_float4(team.of(values[vector].x, source), team.of(values[vector].y, source),
                                  team.of(values[vector].z, source), team.of(values[vector].w, source)));
        }
    }
    float total = 0;
#pragma unroll
    for (u32 source = 0; source < 4; source++) {
        total += team.of(sums.x, source);
        total += team.of(sums.y, source);
        total += team.of(sums.z, source);
        total += team.of(sums.w, source);
    }
    return total;
}

// Updates a row from its sum, which lies in shared memory as `sums` says.
template <u32 KIND, class TEAM>
__device__ inline void learn(const SparseUpdate& p, const TEAM& team, const Feature& feature, const TableRule& table,
                             u32 row, const float4 (&sums)[TEAM::VECTORS][TEAM::LANES]) {
    constexpr u32 VECTORS = TEAM::VECTORS;
    Rate rate = p.rates[feature.table];
    float* const at = row_at(p, feature, row);
    float* const first_at = at + table.first;
    float* const second_at = at + table.second;
    float4 sum[VECTORS], weights[VECTORS], first[VECTORS], second[VECTORS];
#pragma unroll
    for (u32 vector = 0; vector < VECTORS; vector++) {
        const u32 column = (vector * TEAM::LANES + team.lane) * VECTOR;
        sum[vector] = weights[vector] = first[vector] = second[vector] = zeros();
        if (column >= table.dim) continue;
        weights[vector] = load_weights(at, column, table.dtype);
        if (STATES<KIND> > 0) first[vector] = load_weights(first_at, column, FP32);
        if (STATES<KIND> > 1) second[vector] = load_weights(second_at, column, FP32);
        sum[vector] = first_of(sums[vector][team.lane], table.dim - column);
        if (p.scale != nullptr) sum[vector] = scaled(sum[vector], *p.scale);
    }
    constexpr u32 BY = KIND == ROWWISE_ADAGRAD ? SGD : KIND;
    if constexpr (KIND == ROWWISE_ADAGRAD) {
        float4 squares[VECTORS];
#pragma unroll
        for (u32 vector = 0; vector < VECTORS; vector++) {
            const float4 g = sum[vector], weight = weights[vector];
            squares[vector] = make_float4(squared(table.rule, g.x, weight.x), squared(table.rule, g.y, weight.y),
                                          squared(table.rule, g.z, weight.z), squared(table.rule, g.w, weight.w));
        }
        const Exact mean = Exact{sum_over_row(team, squares)} / Exact{float(table.dim)};
        const Exact accumulator = Exact{*first_at} + mean;
        const Exact step = Exact{rate.rate} / (root(accumulator) + Exact{table.rule.damping});
        rate.rate = mean.value == 0 ? 0 : step.value;
        __syncwarp(team.mask);
        if (team.lane == 0) *first_at = accumulator.value;
    }
#pragma unroll
    for (u32 vector = 0; vector < VECTORS; vector++) {
        const u32 column = (vector * TEAM::LANES + team.lane) * VECTOR;
        if (column >= table.dim) continue;
        apply4<BY>(table.rule, rate, sum[vector], weights[vector], first[vector], second[vector]);
        if (table.dtype != FP32) {
            const uint2 key = rounding_key(p.seed, p.step->number);
            weights[vector] =
                rounded_at_random(table.dtype, key, feature.table, row - feature.base, column, weights[vector]);
        }
        store_weights(at, column, table.dtype, weights[vector]);
        if (STATES<KIND> > 0) store_weights(first_at, column, FP32, first[vector]);
        if (STATES<KIND> > 1) store_weights(second_at, column, FP32, second[vector]);
    }
}

// Updates a row by its table's rule.
template <class TEAM>
__device__ inline void learn_by_rule(const SparseUpdate& p, const TEAM& team, const Feature& feature,
                                     const TableRule& table, u32 row,
                                     const float4 (&sums)[TEAM::VECTORS][TEAM::LANES]) {
    switch (table.rule.kind) {
        case SGD: learn<SGD>(p, team, feature, table, row, sums); break;
        case MOMENTUM: learn<MOMENTUM>(p, team, feature, table, row, sums); break;
        case NESTEROV: learn<NESTEROV>(p, team, feature, table, row, sums); break;
        case ADAGRAD: learn<ADAGRAD>(p, team, feature, table, row, sums); break;
        case ROWWISE_ADAGRAD: learn<ROWWISE_ADAGRAD>(p, team, feature, table, row, sums); break;
        case ADAM: learn<ADAM>(p, team, feature, table, row, sums); break;
        case FTRL: learn<FTRL>(p, team, feature, table, row, sums); break;
    }
}

// The same, as one function for all its callers: of wide rows it is long, and was compiled for minutes at every one.
template <class TEAM>
__device__ __noinline__ void learn_apart(const SparseUpdate& p, const TEAM& team, const Feature& feature,
                                         const TableRule& table, u32 row,
                                         const float4 (&sums)[TEAM::VECTORS][TEAM::LANES]) {
    learn_by_rule(p, team, feature, table, row, sums);
}

// Updates the first `count` rows that a team has to update.
template <class TEAM, u32 ROWS>
__device__ inline void learn_all(const SparseUpdate& p, const TEAM& team, const Outbox<TEAM, ROWS>& outbox,
                                 u32 count) {
    __syncwarp(team.mask);
    for (u32 i = 0; i < count; i++) {
        const Pending of = outbox.pending[team.number][i];
        const auto& sums = outbox.sums[team.number][i];
        const Feature& feature = p.features[of.feature];
        const TableRule& table = p.tables[feature.table];
        if constexpr (TEAM::VECTORS == 1) {
            learn_by_rule(p, team, feature, table, of.row, sums);
        } else {
            learn_apart(p, team, feature, table, of.row, sums);
        }
    }
    // The outbox is overwritten next.
    __syncwarp(team.mask);
}

// Puts a row where it is updated next.
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

// The slot of a pair; none has the number that is told where there is no such pair.
__device__ inline u32 slot_of(const SparseUpdate& p, u64 pair, u32 count) { return pair < count ? p.pairs[pair].x : ~0u; }

// The row and the feature of a pair.
__device__ inline Pending row_of(const SparseUpdate& p, u64 pair) {
    const uint2 of = p.pairs[pair];
    return {p.rows[of.x], of.y >> p.sample_bits};
}

template <class T, u32 LANES, u32 VECTORS>
__device__ inline void update_runs(const SparseUpdate& p) {
    using TEAM = Team<LANES, VECTORS>;
    extern __shared__ float4 memory[];
    OfRuns<TEAM>& shared = *reinterpret_cast<OfRuns<TEAM>*>(memory);
    const TEAM team;
    const u32 count = *p.count;
    const u64 block_begin = u64(blockIdx.x) * TEAM::COUNT * RUN, block_end = block_begin + TEAM::COUNT * RUN;
    if (block_begin >= count || *p.stop != 0) return;
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
        u32 place = 0, row = 0, vectors = 0;
        float scale = 0;
        const u32 previous = __shfl_up_sync(team.mask, pair.x, 1, LANES);
        const bool head = there && pair.x != (team.lane == 0 ? current : previous);
        if (there) {
            const Feature& feature = p.features[number];
            const u32 sample = pair.y & ((1u << p.sample_bits) - 1);
            place = (sample * p.stride + feature.place) / VECTOR;
            vectors = feature.dim / VECTOR;
            scale = feature.mean == 0 ? 1 : bag_scale(feature, bag_of(feature, p.offsets, sample).size);
            if (head) {
                row = p.rows[pair.x];
                prefetch(row_at(p, feature, row), feature.row_words);
            }
        }
        const u32 heads = __ballot_sync(team.mask, head) >> (threadIdx.x % WARP / LANES * LANES);
        const u32 here = min(LANES, length - first);
        for (u32 next = 0; next < here; next += TEAM::PAIRS) {
            Four<T> values[TEAM::PAIRS][VECTORS];
#pragma unroll
            for (u32 i = 0; i < TEAM::PAIRS; i++) {
                const u32 source = team.of(place, next + i), width = team.of(vectors, next + i);
#pragma unroll
                for (u32 vector = 0; vector < VECTORS; vector++) {
                    const u32 column = vector * LANES + team.lane;
                    values[i][vector] = {};
                    if (column < width) values[i][vector] = load_once(gradients + (u64(source) + column));
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
            if (pending > 0) learn_all(p, team, shared.outbox, pending);
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
            learn_all(p, team, shared.outbox, pending);
        }
    }
    __syncthreads();

    // Of the row that the block begins inside of the first team, and of each row that begins in a run and goes on the
    // team of that run: the sum over the runs that it goes on in.
    const u32 last = length == 0 ? ~0u : slot_of(p, begin + length - 1, count);
    const bool enters = team.number == 0 && before == slot_of(p, begin, count) && begin > 0;
    for (u32 turn = 0; turn < 2; turn++) {
        // A run inside of one row has no other that begins there.
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
                if (column < p.vectors) p.parts[(u64(blockIdx.x) * 2 + turn) * p.vectors + column] = sum[vector];
            }
        } else {
            pending = 0;
            put(team, shared.outbox, pending, row_of(p, begin + length - 1), sum);
            learn_all(p, team, shared.outbox, pending);
        }
    }
}

// Adds the parts of blocks `first`, `first + step` and so on, as long as they begin inside of the slot's row.
template <class TEAM>
__device__ inline void add_parts(const SparseUpdate& p, const TEAM& team, u32 slot, u32 count, u64 first, u32 step,
                                 float4 (&sum)[TEAM::VECTORS]) {
    constexpr u32 AT_ONCE = TEAM::VECTORS == 1 ? 4 : 1, PAIRS = TEAM::COUNT * RUN;
    for (bool goes_on = true; goes_on; first += AT_ONCE * step) {
        // Parts are read before it is known whether they belong to the row, or one would wait for the other.
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

// The row that begins in a block and goes on in the next: what the block has of it.
template <class TEAM>
__device__ inline void begin_of(const SparseUpdate& p, const TEAM& team, u64 block, float4 (&sum)[TEAM::VECTORS]) {
#pragma unroll
    for (u32 vector = 0; vector < TEAM::VECTORS; vector++) {
        const u32 column = vector * TEAM::LANES + team.lane;
        sum[vector] = column < p.vectors ? p.parts[(block * 2 + 1) * p.vectors + column] : zeros();
    }
}

// The rows that go on from one block to the next. A team looks at a block whether such a row begins there, and adds the
// parts of a short one, in order. A long one is left to all teams: each adds every so many of the parts, then the first
// one what the teams have, in order.
template <u32 LANES, u32 VECTORS>
__device__ inline void update_parts(const SparseUpdate& p) {
    using TEAM = Team<LANES, VECTORS>;
    constexpr u32 PAIRS = TEAM::COUNT * RUN, FEW = 4;
    extern __shared__ float4 memory[];
    OfParts<TEAM>& shared = *reinterpret_cast<OfParts<TEAM>*>(memory);
    const TEAM team;
    const u32 count = *p.count;
    const u64 first_block = u64(blockIdx.x) * TEAM::COUNT;
    if ((first_block + 1) * PAIRS >= count || *p.stop != 0) return;
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
        put(team, shared.outbox, pending, row_of(p, end), sum);
        learn_all(p, team, shared.outbox, pending);
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
            put(team, shared.outbox, pending, row_of(p, pair), sum);
            learn_all(p, team, shared.outbox, pending);
        }
        __syncthreads();
    }
}

// Blocks of a multiprocessor: the more, the more memory is on its way. With three in place of four, rows of 128 elements
// take 10% longer, and with five, which leave too few registers, 50% (H200).
constexpr u32 blocks_of(u32 vectors) { return vectors == 1 ? 4 : 1; }

#define KERNELS(LANES, VECTORS)                                                                \
    extern "C" __global__ void __launch_bounds__(UPDATE_THREADS, blocks_of(VECTORS))           \
        sparse_update_f32_##LANES##x##VECTORS(const __grid_constant__ SparseUpdate p) {        \
        update_runs<float, LANES, VECTORS>(p);                                                 \
    }                                                                                          \
    extern "C" __global__ void __launch_bounds__(UPDATE_THREADS, blocks_of(VECTORS))           \
        sparse_update_bf16_##LANES##x##VECTORS(const __grid_constant__ SparseUpdate p) {       \
        update_runs<bf16, LANES, VECTORS>(p);                                                  \
    }                                                                                          \
    extern "C" __global__ void __launch_bounds__(UPDATE_THREADS, blocks_of(VECTORS))           \
        sparse_update_f16_##LANES##x##VECTORS(const __grid_constant__ SparseUpdate p) {        \
        update_runs<f16, LANES, VECTORS>(p);                                                   \
    }                                                                                          \
    extern "C" __global__ void __launch_bounds__(UPDATE_THREADS, blocks_of(VECTORS))           \
        sparse_parts_##LANES##x##VECTORS(const __grid_constant__ SparseUpdate p) {             \
        update_parts<LANES, VECTORS>(p);                                                       \
    }

// By the widest row: of 16, 64, 128, 256 and 1024 elements.
KERNELS(4, 1)
KERNELS(16, 1)
KERNELS(32, 1)
KERNELS(32, 2)
KERNELS(32, 8)
