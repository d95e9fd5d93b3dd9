// The second-order term of a factorization machine: the sum of the dot products of all pairs of a sample's vectors;
// and its backward pass, which adds to gradients that the vectors already have.
//
// The forward pass reads the vectors once; the backward pass reads them twice, the second time from the cache, and
// reads and writes their gradients.
#include "guard.cuh"

struct Machine {
    // [sample][stride], one vector after another
    const void* vectors;
    // As the vectors.
    void* gradients;
    // One per sample: forward the terms, backward the gradients with respect to them.
    float* terms;
    Guard* guard;
    u32 samples;
    u32 count;
    u32 dim;
    u32 stride;
    // Whether the first vector is the output of a ReLU, which its gradients then go through.
    u32 relu;
    u32 reserved;
};

// One warp per sample; a lane takes one element of all vectors.
template <class T>
__device__ inline void machine_forward(const Machine& p) {
    const u32 warps = gridDim.x * blockDim.x / WARP, lane = threadIdx.x % WARP;
    for (u32 sample = (blockIdx.x * blockDim.x + threadIdx.x) / WARP; sample < p.samples; sample += warps) {
        const T* vectors = static_cast<const T*>(p.vectors) + u64(sample) * p.stride;
        float sum = 0;
        for (u32 d = lane; d < p.dim; d += WARP) {
            // Each vector is multiplied by the sum of those before it. The usual form, half the difference of two
            // sums of squares, subtracts two large numbers.
            float before = 0;
            for (u32 vector = 0; vector < p.count; vector++) {
                const float value = load(vectors + vector * p.dim + d);
                sum += before * value;
                before += value;
            }
        }
#pragma unroll
        for (u32 distance = WARP / 2; distance > 0; distance /= 2) sum += __shfl_xor_sync(ALL_LANES, sum, distance);
        if (lane == 0) p.terms[sample] = sum;
    }
}

template <class T>
__device__ inline void machine_backward(const Machine& p) {
    const u32 warps = gridDim.x * blockDim.x / WARP, lane = threadIdx.x % WARP;
    bool wrong = false;
    for (u32 sample = (blockIdx.x * blockDim.x + threadIdx.x) / WARP; sample < p.samples; sample += warps) {
        const T* vectors = static_cast<const T*>(p.vectors) + u64(sample) * p.stride;
        T* gradients = static_cast<T*>(p.gradients) + u64(sample) * p.stride;
        const float scale = p.terms[sample];
        for (u32 d = lane; d < p.dim; d += WARP) {
            float sum = 0;
            for (u32 vector = 0; vector < p.count; vector++) sum += load(vectors + vector * p.dim + d);
            for (u32 vector = 0; vector < p.count; vector++) {
                const float value = load(vectors + vector * p.dim + d);
                T* address = gradients + vector * p.dim + d;
                float gradient = load(address) + scale * (sum - value);
                if (vector == 0 && p.relu != 0 && !(value > 0)) gradient = 0;
                wrong |= !holds(address, gradient);
                store(address, gradient);
            }
        }
    }
    if (wrong) atomicOr(&p.guard->found, WRONG_VECTORS);
}

extern "C" __global__ void __launch_bounds__(256) machine_forward_f32(const __grid_constant__ Machine p) {
    machine_forward<float>(p);
}

extern "C" __global__ void __launch_bounds__(256) machine_forward_bf16(const __grid_constant__ Machine p) {
    machine_forward<bf16>(p);
}

extern "C" __global__ void __launch_bounds__(256) machine_forward_f16(const __grid_constant__ Machine p) {
    machine_forward<f16>(p);
}

extern "C" __global__ void __launch_bounds__(256) machine_backward_f32(const __grid_constant__ Machine p) {
    machine_backward<float>(p);
}

extern "C" __global__ void __launch_bounds__(256) machine_backward_bf16(const __grid_constant__ Machine p) {
    machine_backward<bf16>(p);
}

extern "C" __global__ void __launch_bounds__(256) machine_backward_f16(const __grid_constant__ Machine p) {
    machine_backward<f16>(p);
}
