// The state that every update checks before it writes.
#pragma once

#include "element.cuh"

struct Guard {
    // The last verdict: if this is not 0, nothing is updated.
    u32 stop;
    // Factor of the loss in the backward pass.
    float loss_scale;
    // Factors of gradients before the update rules: for tables, and for dense parameters, which includes clipping.
    float table_scale;
    float dense_scale;
    // Steps since the loss scale last changed.
    u32 steady;
    // What this rank has found in the current step; cleared by the verdict.
    u32 found;
    // Steps skipped because gradients overflowed their element type.
    u64 skipped;
    // Whether nothing is written, whatever is found.
    u32 held;
    u32 reserved;
};

// Not finite: vector gradients, the loss, gradients of dense parameters.
constexpr u32 WRONG_VECTORS = 1;
constexpr u32 WRONG_LOSS = 2;
constexpr u32 WRONG_DENSE = 4;
