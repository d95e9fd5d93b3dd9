// From a rank's ids to keys, and the set of them.
//
// Reads 4 bytes an id and writes 4; the bits (one a row of all tables) stay in the second-level cache up to some
// hundred million rows.
#include "common.cuh"

struct Mark {
    const u32* ids;
    const Feature* features;
    u32* keys;
    KeySet set;
    // Counts the ids that are not below their table's rows; they are taken as the last row, so that nothing is read or
    // written elsewhere.
    u32* faults;
    u32 samples;
    u32 ranks;
    u32 span;
    u32 reserved;
};
static_assert(sizeof(Mark) == 72);

// Rows of a table whose keys share few words.
constexpr u32 SMALL_ROWS = 1024;

// Grid: x over samples, y over features.
extern "C" __global__ void __launch_bounds__(256) mark(const __grid_constant__ Mark p) {
    const Feature feature = p.features[blockIdx.y];
    for (u32 begin = blockIdx.x * blockDim.x; begin < p.samples; begin += gridDim.x * blockDim.x) {
        const u32 sample = begin + threadIdx.x;
        const bool valid = sample < p.samples;
        u32 id = valid ? p.ids[feature.ids + sample] : 0;
        if (id >= feature.rows) {
            atomicAdd(p.faults, 1u);
            id = feature.rows - 1;
        }
        const u32 key = id % p.ranks * p.span + feature.base + id / p.ranks;
        if (valid) p.keys[feature.ids + sample] = key;
        // Most ids of a batch name a few rows, and thousands of atomics on one word would take as many turns: so a warp
        // names each row once, and each word of a small table, and looks first whether it is there.
        u32* word = p.set.bits + key / 32;
        u32 bits = 1u << (key % 32), equals;
        const bool small = feature.rows <= SMALL_ROWS;
        const bool first = first_of_equals(!valid ? ~0u : small ? key / 32 : key, equals);
        if (small) bits = __reduce_or_sync(equals, bits);
        if (first && valid && (bits & ~__ldcg(word)) != 0) atomicOr(word, bits);
    }
}
