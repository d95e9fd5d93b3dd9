// What a rank sends to other ranks, counted where it is sent or where the lists of rows are.
#pragma once

#include "common.cuh"

// Counters of the links of one kind, over all steps.
struct LinkCounts {
    // Vectors that owners send, rows or pooled bags.
    u64 rows;
    // Keys, those vectors, and their gradients.
    u64 bytes;
    // The rest of messages of fixed size. Each is added when a message is sent, and its contents are subtracted where
    // they are counted, so that the sum is right only at the end of a step.
    u64 padding;
    // Gradients of rows that every rank stores, and their keys.
    u64 reduced;
};

// Adds to a counter. Kernels on different lanes may count at the same time.
__device__ inline void add_to(u64& counter, u64 more) {
    if (more != 0) atomicAdd(reinterpret_cast<unsigned long long*>(&counter), static_cast<unsigned long long>(more));
}
