// Whether a step may be written: its loss and the dense gradients, summed up; and how gradients and loss are scaled.
//
// Reads each dense gradient once. All sums are in f64 and in a fixed order.
#include "guard.cuh"

constexpr u32 GUARD_THREADS = 256;

// The sum over a block's threads, in every thread.
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
    // Where each begins and ends; beginnings are multiples of 4.
    const uint2* ranges;
    // [range][block along x]
    double* parts;
    // The ranges that are summed here, from one to the one behind; parts of others are 0.
    u32 first;
    u32 behind;
};
static_assert(sizeof(Squares) == 32);

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
    // One a head: the sum of its losses. Behind them whether a gradient, and whether the loss was found to be wrong.
    double* numbers;
    u32 pieces;
    u32 heads;
};
static_assert(sizeof(Tally) == 32);

// What a rank has come to by itself: added up over the ranks, it is what `verdict` reads. One block.
extern "C" __global__ void __launch_bounds__(GUARD_THREADS) tally(const __grid_constant__ Tally p) {
    for (u32 head = 0; head < p.heads; head++) {
        double sum = 0;
        for (u32 piece = threadIdx.x; piece < p.pieces; piece += GUARD_THREADS) {
            sum += p.losses[u64(piece) * p.heads + head];
        }
        sum = sum_of_block(sum);
        if (threadIdx.x == 0) p.numbers[head] = sum;
    }
    if (threadIdx.x != 0) return;
    const u32 stop = p.guard->stop;
    p.numbers[p.heads] = (stop & WRONG_GRADIENT) != 0 ? 1 : 0;
    p.numbers[p.heads + 1] = (stop & WRONG_LOSS) != 0 ? 1 : 0;
}

struct Verdict {
    // [piece][head]: sums of the samples' losses; or of `tally`, added up over the ranks.
    const double* losses;
    // One a head: what its loss is divided by, and multiplied by.
    const double* totals;
    const double* head_weights;
    // Of `squares`.
    const double* parts;
    const Step* step;
    // The losses of steps, in the host's memory.
    double* sums;
    Guard* guard;
    u32 pieces;
    u32 heads;
    u32 parts_count;
    // The longest norm of the dense gradients; infinity where they are not clipped.
    float norm_max;
    // Whether steps with gradients beyond the elements' range are left out, instead of ending the training.
    u32 scaled;
    // Whether there are several ranks: then the losses are one piece, and behind them is what was wrong.
    u32 together;
};
static_assert(sizeof(Verdict) == 80);

// One block.
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
    u32 stop = p.guard->stop;
    if (p.together != 0 && p.losses[p.heads] != 0) stop |= WRONG_GRADIENT;
    if (p.together != 0 && p.losses[p.heads + 1] != 0) stop |= WRONG_LOSS;
    if (!isfinite(squares)) stop |= WRONG_GRADIENT;
    if (!isfinite(loss)) stop |= WRONG_LOSS;
    // Whoever reads losses learns that training has come to its end.
    if (stop != 0 && p.scaled == 0 && isfinite(loss)) loss = nan("");
    p.guard->stop = stop;
    p.sums[p.step->loss_place] = loss;
    const double unscaled = 1 / double(p.guard->loss_scale);
    const double clip = double(p.norm_max) / (sqrt(squares) * unscaled + 1e-6);
    p.guard->table_scale = float(unscaled);
    p.guard->dense_scale = (clip >= 1 ? 1.0f : float(clip)) * float(unscaled);
}

struct Rescale {
    Guard* guard;
    // Steps after which the scale is doubled.
    u32 interval;
    u32 reserved;
};
static_assert(sizeof(Rescale) == 16);

// One thread, behind all updates of a step.
extern "C" __global__ void rescale(const __grid_constant__ Rescale p) {
    Guard& guard = *p.guard;
    if (guard.stop == WRONG_GRADIENT) {
        guard.stop = 0;
        guard.steady = 0;
        guard.skipped++;
        guard.loss_scale = fmaxf(guard.loss_scale / 2, 1.0f);
    } else if (guard.stop == 0 && ++guard.steady == p.interval) {
        guard.steady = 0;
        guard.loss_scale = fminf(guard.loss_scale * 2, 16777216.0f);
    }
}

template <class T>
struct Finite {
    // [sample][stride]
    const T* values;
    Guard* guard;
    u32 samples;
    // A multiple of 4.
    u32 columns;
    u32 stride;
    u32 reserved;
};
static_assert(sizeof(Finite<float>) == 32);

template <class T>
__device__ inline void finite(const Finite<T>& p) {
    const u32 warps = gridDim.x * blockDim.x / WARP;
    bool wrong = false;
    for (u32 sample = (blockIdx.x * blockDim.x + threadIdx.x) / WARP; sample < p.samples; sample += warps) {
        const T* row = p.values + u64(sample) * p.stride;
#pragma unroll 4
        for (u32 column = threadIdx.x % WARP * VECTOR; column < p.columns; column += WARP * VECTOR) {
            wrong |= !holds4(row, load4(row + column));
        }
    }
    if (wrong) atomicOr(&p.guard->stop, WRONG_GRADIENT);
}

extern "C" __global__ void __launch_bounds__(GUARD_THREADS) finite_f32(const __grid_constant__ Finite<float> p) {
    finite(p);
}

extern "C" __global__ void __launch_bounds__(GUARD_THREADS) finite_bf16(const __grid_constant__ Finite<bf16> p) {
    finite(p);
}

extern "C" __global__ void __launch_bounds__(GUARD_THREADS) finite_f16(const __grid_constant__ Finite<f16> p) {
    finite(p);
}
