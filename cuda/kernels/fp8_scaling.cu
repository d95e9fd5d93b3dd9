// The scales of tensors in fp8, from the largest magnitudes of the last steps.
#include "fp8.cuh"
#include "guard.cuh"

struct Fp8Scalings {
    Fp8Scaling* tensors;
    Guard* guard;
    // [rank][tensor]: the largest magnitudes of a step; null where there is one rank.
    double* of_ranks;
    u32 count;
    u32 rank;
    u32 ranks;
    u32 reserved;
};
static_assert(sizeof(Fp8Scalings) == 40);

// What this rank has seen, with zeros in the other ranks' places: their sum over the ranks is what each has seen. One
// block.
extern "C" __global__ void __launch_bounds__(256) fp8_tell(const __grid_constant__ Fp8Scalings p) {
    for (u32 i = threadIdx.x; i < p.ranks * p.count; i += blockDim.x) {
        const float largest = __uint_as_float(p.tensors[i % p.count].largest);
        p.of_ranks[i] = i / p.count == p.rank ? largest : 0;
    }
}

// The largest magnitudes are held within those that fp8 has a number for: so what is infinite is known here alone. Over
// ranks, a tensor's largest magnitude is that of all. One block.
extern "C" __global__ void __launch_bounds__(256) fp8_check(const __grid_constant__ Fp8Scalings p) {
    for (u32 i = threadIdx.x; i < p.count; i += blockDim.x) {
        u32 largest = p.tensors[i].largest;
        for (u32 rank = 0; p.of_ranks != nullptr && rank < p.ranks; rank++) {
            // As numbers without a sign their bits have the same order, and what is no number comes last.
            largest = max(largest, __float_as_uint(float(p.of_ranks[rank * p.count + i])) & 0x7fffffff);
        }
        p.tensors[i].largest = largest;
        if (!isfinite(__uint_as_float(largest))) atomicOr(&p.guard->found, WRONG_VECTORS);
    }
}

// The binary exponent of a number above 0, as frexp has it.
__device__ inline int exponent(float value) {
    int exponent;
    frexpf(value, &exponent);
    return exponent;
}

// Ends a step: scales follow from what was seen, if the step was written. The largest magnitude of the last steps comes
// between 112 and 224, so that it may double before anything is held within 448. One block.
extern "C" __global__ void __launch_bounds__(256) fp8_rescale(const __grid_constant__ Fp8Scalings p) {
    const bool written = p.guard->stop == 0;
    for (u32 i = threadIdx.x; i < p.count; i += blockDim.x) {
        Fp8Scaling& tensor = p.tensors[i];
        if (written) {
            tensor.history[tensor.steps++ % FP8_HISTORY] = __uint_as_float(tensor.largest) * tensor.inverse;
            float largest = 0;
            for (u32 step = 0; step < FP8_HISTORY; step++) largest = fmaxf(largest, tensor.history[step]);
            // Where all was 0, or nothing is near 1 by any scale that both have, the scale stays.
            if (largest >= 1e-30f && largest <= 1e30f) {
                const int power = 8 - exponent(largest / 0.875f);
                tensor.scale = ldexpf(1, power);
                tensor.inverse = ldexpf(1, -power);
            }
        }
        tensor.largest = 0;
    }
}
