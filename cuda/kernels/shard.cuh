// The tables' shards on a GPU.
#pragma once

#include "dtype.cuh"
#include "optimizer.cuh"

// All or some columns of a table's rows, all or some of which this GPU stores, and how they learn.
struct Shard {
    // Where its first row is stored, in words.
    u64 words;
    Rule rule;
    // Number of its first row among those of all shards, and number of its rows.
    u32 base;
    u32 rows;
    // Words from one row to the next.
    u32 row_words;
    // Elements of a row, without padding.
    u32 dim;
    // Where a row's state starts, in words, and where the second state starts.
    u32 first;
    u32 second;
    // Type of the weights: a `Dtype`.
    u32 dtype;
    // Its table, and its first column there.
    u32 table;
    u32 column;
    // Its first row's number in the table, and the distance to the next row; unless the rows are listed.
    u32 row;
    u32 step;
    // 1 if other ranks have more columns of the rows and the rule depends on all columns; else 0.
    u32 shares_squares;
    // Null, or for each of its rows the number in the table.
    const u32* listed;
};

// Elements of a row, with padding.
__device__ inline u32 filled_dim(const Shard& shard) { return (shard.dim + VECTOR - 1) / VECTOR * VECTOR; }

// The shard that has a row, out of `count` shards ordered by base.
__device__ inline u32 shard_of(const Shard* shards, u32 count, u32 row) {
    u32 shard = 0, end = count;
    while (end - shard > 1) {
        const u32 middle = (shard + end) / 2;
        if (shards[middle].base <= row) {
            shard = middle;
        } else {
            end = middle;
        }
    }
    return shard;
}

// Converts a row's number among all shards to its number in the table.
__device__ inline u32 row_of_table(const Shard& shard, u32 row) {
    const u32 number = row - shard.base;
    return shard.listed != nullptr ? shard.listed[number] : shard.row + number * shard.step;
}

// A number of a row's initial state; `dim` is the number of its weights, with padding.
__device__ inline float begun_state(const Rule& rule, const float* weights, u32 number, u32 dim, u32 dtype) {
    if (rule.kind != FTRL || number >= dim) return rule.initial;
    // FTRL's z is chosen so that it yields the weight.
    const float4 four = load_weights(weights, number, dtype);
    return __fmul_rn(-rule.damping, (&four.x)[number % VECTOR]);
}
