// Updates rows stored on this GPU: a row, by its table's rule, from the sum of its gradients, with the state stored
// behind its weights.
#pragma once

#include "shard.cuh"
#include "team.cuh"

// What an update needs apart from the sums.
struct UpdateContext {
    const Shard* shards;
    // One per table.
    const Rate* rates;
    // Null, or the factor of the gradients.
    const float* scale;
    // If this is not 0, nothing is written.
    const u32* stop;
    // Stochastic rounding depends on the step's number and the seed.
    const Step* step;
    u64 seed;
    float* storage;
};

__device__ inline float* row_at(const UpdateContext& context, const Shard& shard, u32 row) {
    return context.storage + shard.words + u64(row - shard.base) * shard.row_words;
}

// The first `count` of four elements, then zeros.
__device__ inline float4 first_of(float4 values, u32 count) {
    return make_float4(count > 0 ? values.x : 0, count > 1 ? values.y : 0, count > 2 ? values.z : 0,
                       count > 3 ? values.w : 0);
}

__device__ inline float4 scaled(float4 values, float by) {
    return make_float4(values.x * by, values.y * by, values.z * by, values.w * by);
}

// The square of a gradient, including weight decay.
__device__ inline float squared(const Rule& rule, float gradient, float weight) {
    const Exact g = decayed(rule, {gradient}, {weight});
    return (g * g).value;
}

// The sum over a row: sixteen partial sums over every sixteenth element, then these in order, as on the CPU.
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

// What row-wise Adagrad needs if other ranks have more columns of a row: the sum of the squares over all columns, and
// the number of columns; 0 if the whole row is here.
struct WholeRow {
    float squares;
    u32 dim;
};

// The sum of the squares of a row's gradients.
template <class TEAM>
__device__ inline float squares_of_row(const TEAM& team, const Rule& rule, const float4 (&gradients)[TEAM::VECTORS],
                                       const float4 (&weights)[TEAM::VECTORS]) {
    float4 squares[TEAM::VECTORS];
#pragma unroll
    for (u32 vector = 0; vector < TEAM::VECTORS; vector++) {
        const float4 g = gradients[vector], weight = weights[vector];
        squares[vector] = make_float4(squared(rule, g.x, weight.x), squared(rule, g.y, weight.y),
                                      squared(rule, g.z, weight.z), squared(rule, g.w, weight.w));
    }
    return sum_over_row(team, squares);
}

// Updates a row from its sum, which is stored in shared memory as `sums` says. `F32` removes the code for other types
// at compile time.
template <u32 KIND, bool F32 = false, class TEAM>
__device__ inline void learn(const UpdateContext& context, const TEAM& team, const Shard& shard, u32 row,
                             const float4 (&sums)[TEAM::VECTORS][TEAM::LANES], WholeRow whole = {}) {
    constexpr u32 VECTORS = TEAM::VECTORS;
    const u32 dtype = F32 ? u32(FP32) : shard.dtype;
    Rate rate = context.rates[shard.table];
    float* const at = row_at(context, shard, row);
    float* const first_at = at + shard.first;
    float* const second_at = at + shard.second;
    float4 sum[VECTORS], weights[VECTORS], first[VECTORS], second[VECTORS];
#pragma unroll
    for (u32 vector = 0; vector < VECTORS; vector++) {
        const u32 column = (vector * TEAM::LANES + team.lane) * VECTOR;
        sum[vector] = weights[vector] = first[vector] = second[vector] = zeros();
        if (column >= shard.dim) continue;
        weights[vector] = load_weights(at, column, dtype);
        if (STATES<KIND> > 0) first[vector] = load_weights(first_at, column, FP32);
        if (STATES<KIND> > 1) second[vector] = load_weights(second_at, column, FP32);
        sum[vector] = first_of(sums[vector][team.lane], shard.dim - column);
        if (context.scale != nullptr) sum[vector] = scaled(sum[vector], *context.scale);
    }
    constexpr u32 BY = KIND == ROWWISE_ADAGRAD ? SGD : KIND;
    if constexpr (KIND == ROWWISE_ADAGRAD) {
        if (whole.dim == 0) whole = {squares_of_row(team, shard.rule, sum, weights), shard.dim};
        const Exact mean = Exact{whole.squares} / Exact{float(whole.dim)};
        const Exact accumulator = Exact{*first_at} + mean;
        const Exact step = Exact{rate.rate} / (root(accumulator) + Exact{shard.rule.damping});
        rate.rate = mean.value == 0 ? 0 : step.value;
        __syncwarp(team.mask);
        if (team.lane == 0) *first_at = accumulator.value;
    }
#pragma unroll
    for (u32 vector = 0; vector < VECTORS; vector++) {
        const u32 column = (vector * TEAM::LANES + team.lane) * VECTOR;
        if (column >= shard.dim) continue;
        apply4<BY>(shard.rule, rate, sum[vector], weights[vector], first[vector], second[vector]);
        if (dtype != FP32) {
            const uint2 key = rounding_key(context.seed, context.step->number);
            weights[vector] = rounded_at_random(dtype, key, shard.table, row_of_table(shard, row),
                                                shard.column + column, weights[vector]);
        }
        store_weights(at, column, dtype, weights[vector]);
        if (STATES<KIND> > 0) store_weights(first_at, column, FP32, first[vector]);
        if (STATES<KIND> > 1) store_weights(second_at, column, FP32, second[vector]);
    }
}

// Updates a row by its table's rule.
template <class TEAM>
__device__ inline void learn_by_rule(const UpdateContext& context, const TEAM& team, const Shard& shard, u32 row,
                                     const float4 (&sums)[TEAM::VECTORS][TEAM::LANES], WholeRow whole = {}) {
    switch (shard.rule.kind) {
#define LEARN(KIND) \
    case KIND: learn<KIND>(context, team, shard, row, sums, whole); break;
        RULES(LEARN)
#undef LEARN
    }
}

// The same for a lean table: f32 weights, with SGD or element-wise Adagrad. Other rules and stochastic rounding need
// so many registers that some would spill to memory, even if no table uses them.
template <class TEAM>
__device__ inline void learn_lean(const UpdateContext& context, const TEAM& team, const Shard& shard, u32 row,
                                  const float4 (&sums)[TEAM::VECTORS][TEAM::LANES]) {
    if (shard.rule.kind == ADAGRAD) {
        learn<ADAGRAD, true>(context, team, shard, row, sums);
    } else {
        learn<SGD, true>(context, team, shard, row, sums);
    }
}

// The same as `learn_by_rule`, but one function for all its callers: for wide rows it is long, and took minutes to
// compile when inlined.
template <class TEAM>
__device__ __noinline__ void learn_apart(const UpdateContext& context, const TEAM& team, const Shard& shard, u32 row,
                                         const float4 (&sums)[TEAM::VECTORS][TEAM::LANES]) {
    learn_by_rule(context, team, shard, row, sums);
}
