// What every update looks at before it writes.
#pragma once

#include "element.cuh"

struct Guard {
    // The last verdict: nothing is updated where this is not 0.
    u32 stop;
    // What the loss is multiplied by on the way back.
    float loss_scale;
    // What gradients are multiplied by before the rules see them: those of tables, and those of dense parameters, which
    // are clipped, too.
    float table_scale;
    float dense_scale;
    // Steps since the loss's scale changed last.
    u32 steady;
    // What this rank has found in the step at hand, until the verdict takes it.
    u32 found;
    // Steps that were left out since their gradients were beyond the elements' range.
    u64 skipped;
    // Whether nothing is to be written, whatever is found.
    u32 held;
    u32 reserved;
};
static_assert(sizeof(Guard) == 40);

// What is no finite number: gradients by vectors, the loss, gradients of dense parameters.
constexpr u32 WRONG_VECTORS = 1;
constexpr u32 WRONG_LOSS = 2;
constexpr u32 WRONG_DENSE = 4;
