// What every update looks at before it writes.
#pragma once

#include "element.cuh"

struct Guard {
    // Nothing is updated where this is not 0: WRONG_GRADIENT, WRONG_LOSS.
    u32 stop;
    // What the loss is multiplied by on the way back.
    float loss_scale;
    // What gradients are multiplied by before the rules see them: those of tables, and those of dense parameters, which
    // are clipped, too.
    float table_scale;
    float dense_scale;
    // Steps since the loss's scale changed last.
    u32 steady;
    u32 reserved;
    // Steps that were left out since their gradients were beyond the elements' range.
    u64 skipped;
};
static_assert(sizeof(Guard) == 32);

constexpr u32 WRONG_GRADIENT = 1;
constexpr u32 WRONG_LOSS = 2;
