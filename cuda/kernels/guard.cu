// The verdict of a step: whether its loss and dense gradients allow it to be applied, how gradients and loss are
// scaled, and what is reported to the host.
//
// Reads each dense gradient once. All sums are in f64 and in a fixed order.
#include "guard.cuh"

constexpr u32 GUARD_THREADS = 256;

// Returns the sum over a block's threads, in every thread.
__device__ inline double sum_of_block(double value) {
    __shared__ double sums[GUARD_THREADS / WARP];
#pragma unroll
    for (u32 distance = WARP / 2; distance > 0; distance /= 2) {
        value += __shfl_xor_sync(ALL_LANES, value, distance);
    }
    __syncthreads();
    if (threadIdx.x % WARP == 0) sums[threadIdx.x / WARP] = value;
    __syncthreads();
    double sum = 0;
    for (u32 warp = 0; warp < GUARD_THREADS / WARP; warp++) sum += sums[warp];
    return sum;
}

struct Squares {
    const float* gradients;
    // First element and end of each range; first elements are multiples of 4.
    const uint2* ranges;
    // [range][block along x]
    double* parts;
    // The ranges to sum: from `first` to before `behind`. Parts of the others become 0.
    u32 first;
    u32 behind;
};

// Grid: any, times the ranges.
extern "C" __global__ void __launch_bounds__(GUARD_THREADS) squares(const __grid_constant__ Squares p) {
    double sum = 0;
    if (blockIdx.y >= p.first && blockIdx.y < p.behind) {
        const uint2 range = p.ranges[blockIdx.y];
        const float* gradients = p.gradients + range.x;
        const u32 count = range.y - range.x;
        const u32 first = blockIdx.x * GUARD_THREADS + threadIdx.x, vectors = count / VECTOR;
#pragma unroll 4
        for (u32 i = first; i < vectors; i += gridDim.x * GUARD_THREADS) {
            const float4 values = load4(gradients + i * VECTOR);
            const double x = values.x, y = values.y, z = values.z, w = values.w;
            sum += x * x + y * y + (z * z + w * w);
        }
        // Fewer than four are left.
        if (vectors * VECTOR + first < count) {
            const double value = gradients[vectors * VECTOR + first];
            sum += value * value;
        }
        sum = sum_of_block(sum);
    }
    if (threadIdx.x == 0) p.parts[blockIdx.y * gridDim.x + blockIdx.x] = sum;
}

struct Tally {
    // [piece][head]: sums of the samples' losses.
    const double* losses;
    const Guard* guard;
    // One per head: the sum of its losses. After them, this rank's marks for a wrong vector gradient and for a wrong
    // loss.
    double* numbers;
    u32 pieces;
    u32 heads;
    u32 rank;
    u32 reserved;
};

// What a rank that found something wrong adds to a sum over ranks. The sum yields how many ranks did, and the sum of
// their numbers, for fewer than 2^20 ranks.
__device__ inline double mark(u32 rank) { return 1.0 + double(rank) * 1048576.0; }

// A rank's own findings; all-reduced, they are the input of `verdict`. Grid: one block.
extern "C" __global__ void __launch_bounds__(GUARD_THREADS) tally(const __grid_constant__ Tally p) {
    bool finite = true;
    for (u32 head = 0; head < p.heads; head++) {
        double sum = 0;
        for (u32 piece = threadIdx.x; piece < p.pieces; piece += GUARD_THREADS) {
            sum += p.losses[u64(piece) * p.heads + head];
        }
        sum = sum_of_block(sum);
        finite &= bool(isfinite(sum));
        if (threadIdx.x == 0) p.numbers[head] = sum;
    }
    if (threadIdx.x != 0) return;
    p.numbers[p.heads] = (p.guard->found & WRONG_VECTORS) != 0 ? mark(p.rank) : 0;
    p.numbers[p.heads + 1] = finite ? 0 : mark(p.rank);
}

// The outcome of a step, in host memory.
struct Outcome {
    double loss;
    // The sums of the marks of ranks that found wrong vector gradients and a wrong loss.
    double vector_marks;
    double loss_marks;
    // WRONG_VECTORS, WRONG_LOSS, WRONG_DENSE; 0 if the step was applied.
    u32 wrong;
    // Whether it was skipped only because of the loss scale.
    u32 by_scale;
};

struct Verdict {
    // [piece][head]: sums of the samples' losses; or `tally`'s output, all-reduced.
    const double* losses;
    // One per head: divisor and factor of its loss.
    const double* totals;
    const double* head_weights;
    // From `squares`.
    const double* parts;
    const Step* step;
    // One per step in flight.
    Outcome* outcomes;
    Guard* guard;
    u32 pieces;
    u32 heads;
    u32 parts_count;
    // The largest norm of the dense gradients; infinity if they are not clipped.
    float norm_max;
    // If gradients may overflow their element type (fp16): the number of steps after which the loss scale is doubled.
    // Otherwise 0.
    u32 scale_interval;
    // Whether there are several ranks: then the losses are one piece, followed by the marks.
    u32 together;
};

// The largest sum of squares of the dense gradients, without the loss scale: 2^126, so that each can be squared in
// f32. `engine/model/src/guard.rs` has the same number.
constexpr double DENSE_SQUARES_MAX = 8.507059173023462e37;

// Grid: one block. The guard keeps the verdict until the next one.
extern "C" __global__ void __launch_bounds__(GUARD_THREADS) verdict(const __grid_constant__ Verdict p) {
    double loss = 0;
    for (u32 head = 0; head < p.heads; head++) {
        double sum = 0;
        for (u32 piece = threadIdx.x; piece < p.pieces; piece += GUARD_THREADS) {
            sum += p.losses[u64(piece) * p.heads + head];
        }
        sum = sum_of_block(sum);
        const double total = p.totals[head];
        if (total != 0) loss += p.head_weights[head] * (sum / total);
    }
    double squares = 0;
    for (u32 part = threadIdx.x; part < p.parts_count; part += GUARD_THREADS) squares += p.parts[part];
    squares = sum_of_block(squares);
    if (threadIdx.x != 0) return;
    Guard& guard = *p.guard;
    const double unscaled = 1 / double(guard.loss_scale);
    Outcome outcome = {};
    outcome.loss = loss;
    outcome.wrong = guard.found;
    if (p.together != 0) {
        outcome.vector_marks = p.losses[p.heads];
        outcome.loss_marks = p.losses[p.heads + 1];
        if (outcome.vector_marks != 0) outcome.wrong |= WRONG_VECTORS;
    } else {
        if ((guard.found & WRONG_VECTORS) != 0) outcome.vector_marks = mark(0);
        if (!isfinite(loss)) outcome.loss_marks = mark(0);
    }
    // NaN makes all of these comparisons false.
    if (!isfinite(loss)) outcome.wrong |= WRONG_LOSS;
    if (!(squares * unscaled * unscaled <= DENSE_SQUARES_MAX)) outcome.wrong |= WRONG_DENSE;
    // A scale of 1 cannot be the reason for an overflow.
    const bool scaled = p.scale_interval != 0;
    outcome.by_scale = scaled && outcome.wrong != 0 && (outcome.wrong & WRONG_LOSS) == 0 && guard.loss_scale > 1;
    p.outcomes[p.step->loss_index] = outcome;
    guard.stop = outcome.wrong | guard.held;
    guard.found = 0;
    const double clip = double(p.norm_max) / (sqrt(squares) * unscaled + 1e-6);
    guard.table_scale = float(unscaled);
    guard.dense_scale = (clip >= 1 ? 1.0f : float(clip)) * float(unscaled);
    if (outcome.by_scale) {
        guard.steady = 0;
        guard.skipped++;
        guard.loss_scale = fmaxf(guard.loss_scale / 2, 1.0f);
    } else if (scaled && outcome.wrong == 0 && ++guard.steady == p.scale_interval) {
        guard.steady = 0;
        guard.loss_scale = fminf(guard.loss_scale * 2, 16777216.0f);
    }
}

template <class T>
struct FiniteCheck {
    // [sample][stride]
    const T* values;
    Guard* guard;
    u32 samples;
    // A multiple of 4.
    u32 columns;
    u32 stride;
    u32 reserved;
};

template <class T>
__device__ inline void finite(const FiniteCheck<T>& p) {
    const u32 warps = gridDim.x * blockDim.x / WARP;
    bool wrong = false;
    for (u32 sample = (blockIdx.x * blockDim.x + threadIdx.x) / WARP; sample < p.samples; sample += warps) {
        const T* row = p.values + u64(sample) * p.stride;
#pragma unroll 4
        for (u32 column = threadIdx.x % WARP * VECTOR; column < p.columns; column += WARP * VECTOR) {
            wrong |= !holds4(row, load4(row + column));
        }
    }
    if (wrong) atomicOr(&p.guard->found, WRONG_VECTORS);
}

extern "C" __global__ void __launch_bounds__(GUARD_THREADS) finite_f32(const __grid_constant__ FiniteCheck<float> p) {
    finite(p);
}

extern "C" __global__ void __launch_bounds__(GUARD_THREADS) finite_bf16(const __grid_constant__ FiniteCheck<bf16> p) {
    finite(p);
}

extern "C" __global__ void __launch_bounds__(GUARD_THREADS) finite_f16(const __grid_constant__ FiniteCheck<f16> p) {
    finite(p);
}

// A feature whose rows and gradients are multiplied by factors.
struct FactorFeature {
    // Where the column's offsets and the factors of its ids start.
    u32 offsets;
    u32 factors;
    // Where its vector starts within a sample's vectors, and its elements, a multiple of 4.
    u32 vector_offset;
    u32 dim;
};

template <class T>
struct FactorCheck {
    // [sample][stride]
    const T* gradients;
    const FactorFeature* features;
    const u32* offsets;
    const float* factors;
    const u32* samples_count;
    Guard* guard;
    u32 stride;
    u32 reserved;
};

// Checks gradients with respect to vectors times the largest factor of their bag, for factors above 1: by smaller ones
// no gradient leaves its bounds. Products are exact, as on the CPU. Reads each factor, and the gradients of bags with
// such a factor. Grid: one warp per bag, x over samples, y over features.
template <class T>
__device__ inline void check_factors(const FactorCheck<T>& p) {
    const FactorFeature feature = p.features[blockIdx.y];
    const u32 lane = threadIdx.x % WARP, warps = gridDim.x * GUARD_THREADS / WARP, samples = *p.samples_count;
    bool wrong = false;
    for (u32 sample = (blockIdx.x * GUARD_THREADS + threadIdx.x) / WARP; sample < samples; sample += warps) {
        const u32* const of_sample = p.offsets + feature.offsets + sample;
        float largest = 1;
        for (u32 at = of_sample[0] + lane; at < of_sample[1]; at += WARP) {
            largest = fmaxf(largest, p.factors[feature.factors + at]);
        }
#pragma unroll
        for (u32 distance = WARP / 2; distance > 0; distance /= 2) {
            largest = fmaxf(largest, __shfl_xor_sync(ALL_LANES, largest, distance));
        }
        if (largest == 1) continue;
        const T* vector = p.gradients + u64(sample) * p.stride + feature.vector_offset;
        const auto holds = [&](float value) {
            return double(fabsf(value)) * double(largest) <= double(VECTOR_GRADIENT_MAX);
        };
        for (u32 column = lane * VECTOR; column < feature.dim; column += WARP * VECTOR) {
            const float4 values = load4(vector + column);
            wrong |= !(holds(values.x) && holds(values.y) && holds(values.z) && holds(values.w));
        }
    }
    if (wrong) atomicOr(&p.guard->found, WRONG_VECTORS);
}

#define CHECK_FACTORS(NAME, T)                                             \
    extern "C" __global__ void __launch_bounds__(GUARD_THREADS)            \
        check_factors_##NAME(const __grid_constant__ FactorCheck<T> p) {   \
        check_factors(p);                                                  \
    }

CHECK_FACTORS(f32, float)
CHECK_FACTORS(bf16, bf16)
CHECK_FACTORS(f16, f16)
