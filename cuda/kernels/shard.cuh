// What a GPU has of tables.
#pragma once

#include "dtype.cuh"
#include "optimizer.cuh"

// Columns of a table whose rows a GPU has, all or some, and how they learn.
struct Shard {
    // Where its first row lies, in words.
    u64 words;
    Rule rule;
    // The number of its first row among those of all shards, and how many there are.
    u32 base;
    u32 rows;
    // Words from one row to the next.
    u32 row_words;
    // Elements of a row, without those that fill it up.
    u32 dim;
    // Where a row's state begins, in words, and where the second of two begins.
    u32 first;
    u32 second;
    // What the weights are stored as: a `Dtype`.
    u32 dtype;
    // Of which table it is, from which column on.
    u32 table;
    u32 column;
    // Which row of the table its first one is, and how many further on the next is; unless they are listed.
    u32 row;
    u32 step;
    // 1 where others have further columns of the rows, and a row's rule takes what follows from all; else 0.
    u32 shares_squares;
    // Null, or of each of its rows: which one of the table it is.
    const u32* listed;
};
static_assert(sizeof(Shard) == 96);

// Elements of a row, with those that fill it up.
__device__ inline u32 filled_dim(const Shard& shard) { return (shard.dim + VECTOR - 1) / VECTOR * VECTOR; }

// The shard that has a row, of `count` in the order of their bases.
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

// The table's number of a row that has a number among those of all shards.
__device__ inline u32 row_of_table(const Shard& shard, u32 row) {
    const u32 number = row - shard.base;
    return shard.listed != nullptr ? shard.listed[number] : shard.row + number * shard.step;
}
