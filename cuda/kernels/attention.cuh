// The parameters of attention over a sequence.
#pragma once

#include "guard.cuh"

enum AttentionKind : u32 { DIN, DOT, MEAN_OF_KEYS };

// A layer of the activation unit.
struct UnitLayer {
    u32 inputs;
    u32 outputs;
    // Where W, `[outputs][inputs]`, and b start among the unit's parameters.
    u32 weights;
    u32 bias;
};

// Four elements of a key.
struct KeyPlace {
    // Where the query has the corresponding ones within a sample's vectors.
    u32 query;
    // Where the sum has them.
    u32 sum;
    // 1 + the next place with the same elements of the query; 0 if there is none.
    u32 next;
    // Whether there is no earlier one.
    u32 leads;
};

struct Attention {
    // [sample][stride]: queries are read, sums are written.
    void* vectors;
    // [position][width]
    const void* keys;
    // [sample][stride]: with respect to the sums; those with respect to the queries are added.
    void* gradients;
    // [position][width]
    void* key_gradients;
    // Where each sample's positions start; where the last one's end.
    const u32* offsets;
    // The number of samples; later ones have no positions.
    const u32* samples_count;
    // [width / 4]
    const KeyPlace* places;
    // The first reads the pieces of the input; the last has one output.
    const UnitLayer* layers;
    // The parameters.
    const void* weights;
    // [block][parameters]: sums of their gradients. The kernel writes all but padding.
    float* parts;
    // [block][memory_floats], if that does not fit into shared memory; else null.
    float* memory;
    Guard* guard;
    u32 samples;
    u32 stride;
    u32 width;
    // An `AttentionKind`.
    u32 kind;
    u32 layers_count;
    // The most outputs of a layer, rounded up to a multiple of four.
    u32 outputs_max;
    // Outputs of all layers, each rounded up to a multiple of four.
    u32 outputs_sum;
    u32 parameters;
    u32 memory_floats;
    u32 length_max;
    // Factor of the scores of `DOT`.
    float score_scale;
    u32 reserved;
};
