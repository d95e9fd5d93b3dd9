// The last layer (one logit per head) and the loss: forward pass, and backward pass to the gradients of its input.
// Terms that bypass the layers are added to the logits here: first-order terms, and a term that all heads share.
//
// Reads the input twice, the second time from the cache, and writes its gradients once. Weight gradients are summed
// over each piece of the samples; `columns_total` adds up the pieces.
#include "guard.cuh"

constexpr u32 HEAD_SAMPLES = 64;
constexpr u32 HEAD_WARPS = 8;
// Per multiprocessor: as many as fit, since a block mostly waits for memory.
constexpr u32 HEAD_BLOCKS = 8;

struct Head {
    // [sample][stride]
    const void* input;
    // [head][width], then one bias per head, then [head][dense_columns].
    const float* weights;
    // [head][sample]: 0, 1, or NaN if it is missing.
    const float* labels;
    const float* sample_weights;
    // One per head.
    const double* totals;
    const double* head_weights;
    Guard* guard;
    // [sample][dense_columns]
    const float* dense;
    // [sample][wide_stride]: `wide_step` elements per feature, one per head, then zeros.
    const void* wide;
    void* wide_gradients;
    // Null, or one per sample, added to the logits of all heads; and the gradients with respect to it.
    const float* terms;
    float* term_gradients;
    // Null, or [sample][head].
    float* logits;
    // [sample][stride]; if null, only the logits are computed.
    void* gradients;
    // [piece][weights]
    float* parts;
    // [piece][head]
    double* losses;
    u32 samples;
    u32 heads;
    u32 width;
    u32 stride;
    u32 dense_columns;
    u32 wide_features;
    u32 wide_step;
    u32 wide_stride;
    // Whether the input is the output of a ReLU, which its gradients then go through.
    u32 relu;
    u32 reserved;
};
static_assert(sizeof(Head) == 168);

// Grid: one block per piece of the samples. Shared memory: a loss and a gradient per head and sample.
template <class T>
__device__ inline void head(const Head& p) {
    extern __shared__ double memory[];
    double* losses = memory;
    float* gradients = reinterpret_cast<float*>(losses + p.heads * HEAD_SAMPLES);
    // Uses the memory of the gradients.
    float* logits = gradients;
    const u32 lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    const u32 begin = blockIdx.x * HEAD_SAMPLES, count = min(HEAD_SAMPLES, p.samples - begin);
    const T* input = static_cast<const T*>(p.input) + u64(begin) * p.stride;
    const float* biases = p.weights + p.heads * p.width;
    const float* linear = biases + p.heads;
    for (u32 sample = warp; sample < count; sample += HEAD_WARPS) {
        const T* own = input + u64(sample) * p.stride;
        const T* wide = static_cast<const T*>(p.wide) + u64(begin + sample) * p.wide_stride;
        const float* dense = p.dense + u64(begin + sample) * p.dense_columns;
        for (u32 head = 0; head < p.heads; head++) {
            const float* weights = p.weights + head * p.width;
            float logit = 0;
            for (u32 column = lane * VECTOR; column < p.width; column += WARP * VECTOR) {
                const float4 x = load4(own + column), w = load4(weights + column);
                logit += x.x * w.x + x.y * w.y + x.z * w.z + x.w * w.w;
            }
            for (u32 feature = lane; feature < p.wide_features; feature += WARP) {
                logit += load(wide + feature * p.wide_step + head);
            }
            for (u32 column = lane; column < p.dense_columns; column += WARP) {
                logit += dense[column] * linear[head * p.dense_columns + column];
            }
#pragma unroll
            for (u32 distance = WARP / 2; distance > 0; distance /= 2) {
                logit += __shfl_xor_sync(ALL_LANES, logit, distance);
            }
            if (lane != 0) continue;
            logit += biases[head];
            if (p.terms != nullptr) logit += p.terms[begin + sample];
            if (p.logits != nullptr) p.logits[u64(begin + sample) * p.heads + head] = logit;
            logits[head * HEAD_SAMPLES + sample] = logit;
        }
    }
    if (p.gradients == nullptr) return;
    __syncthreads();
    // One thread per loss: a warp that computed its samples' losses one by one would mostly wait.
    for (u32 i = threadIdx.x; i < p.heads * HEAD_SAMPLES; i += blockDim.x) {
        const u32 head = i / HEAD_SAMPLES, sample = i % HEAD_SAMPLES;
        if (sample >= count) continue;
        float gradient = 0;
        double loss = 0;
        const double z = logits[i], label = p.labels[u64(head) * p.samples + begin + sample], total = p.totals[head];
        if (!isnan(label) && total != 0) {
            const double weight = p.sample_weights[begin + sample], e = exp(-fabs(z));
            loss = weight * (fmax(z, 0.0) - z * label + log1p(e));
            // `fmax` returns the other argument if one is NaN.
            if (isnan(z)) loss = z;
            const double sigmoid = z >= 0 ? 1 / (1 + e) : e / (1 + e);
            gradient = float((sigmoid - label) * (p.head_weights[head] * weight) / total * p.guard->loss_scale);
        }
        gradients[i] = gradient;
        losses[i] = loss;
    }
    __syncthreads();
    for (u32 sample = warp; sample < count; sample += HEAD_WARPS) {
        const T* own = input + u64(sample) * p.stride;
        const float* of_sample = gradients + sample;
        T* out = static_cast<T*>(p.gradients) + u64(begin + sample) * p.stride;
        for (u32 column = lane * VECTOR; column < p.width; column += WARP * VECTOR) {
            float4 values = make_float4(0, 0, 0, 0);
            for (u32 head = 0; head < p.heads; head++) {
                const float4 w = load4(p.weights + head * p.width + column);
                const float gradient = of_sample[head * HEAD_SAMPLES];
                values.x += gradient * w.x;
                values.y += gradient * w.y;
                values.z += gradient * w.z;
                values.w += gradient * w.w;
            }
            if (p.relu != 0) values = where_positive(values, load4(own + column));
            store4(out + column, values);
        }
        T* by_wide = static_cast<T*>(p.wide_gradients) + u64(begin + sample) * p.wide_stride;
        for (u32 i = lane; i < p.wide_features * p.wide_step; i += WARP) {
            const u32 head = i % p.wide_step;
            const float gradient = head < p.heads ? of_sample[head * HEAD_SAMPLES] : 0.0f;
            if (!holds(by_wide, gradient)) atomicOr(&p.guard->found, WRONG_VECTORS);
            store(by_wide + i, gradient);
        }
        if (p.terms != nullptr && lane == 0) {
            float sum = 0;
            for (u32 head = 0; head < p.heads; head++) sum += of_sample[head * HEAD_SAMPLES];
            p.term_gradients[begin + sample] = sum;
        }
    }
    float* parts = p.parts + u64(blockIdx.x) * p.heads * (p.width + 1 + p.dense_columns);
    for (u32 i = threadIdx.x; i < p.heads * p.width; i += blockDim.x) {
        const float* of_head = gradients + i / p.width * HEAD_SAMPLES;
        const T* column = input + i % p.width;
        float sum = 0;
#pragma unroll 8
        for (u32 sample = 0; sample < count; sample++) sum += of_head[sample] * load(column + u64(sample) * p.stride);
        parts[i] = sum;
    }
    parts += p.heads * p.width;
    for (u32 head = threadIdx.x; head < p.heads; head += blockDim.x) {
        float bias = 0;
        double loss = 0;
        for (u32 sample = 0; sample < count; sample++) {
            bias += gradients[head * HEAD_SAMPLES + sample];
            loss += losses[head * HEAD_SAMPLES + sample];
        }
        parts[head] = bias;
        p.losses[u64(blockIdx.x) * p.heads + head] = loss;
    }
    parts += p.heads;
    for (u32 i = threadIdx.x; i < p.heads * p.dense_columns; i += blockDim.x) {
        const float* of_head = gradients + i / p.dense_columns * HEAD_SAMPLES;
        const float* column = p.dense + u64(begin) * p.dense_columns + i % p.dense_columns;
        float sum = 0;
        for (u32 sample = 0; sample < count; sample++) sum += of_head[sample] * column[sample * p.dense_columns];
        parts[i] = sum;
    }
}

extern "C" __global__ void __launch_bounds__(HEAD_WARPS* WARP, HEAD_BLOCKS) head_f32(const __grid_constant__ Head p) {
    head<float>(p);
}

extern "C" __global__ void __launch_bounds__(HEAD_WARPS* WARP, HEAD_BLOCKS) head_bf16(const __grid_constant__ Head p) {
    head<bf16>(p);
}

extern "C" __global__ void __launch_bounds__(HEAD_WARPS* WARP, HEAD_BLOCKS) head_f16(const __grid_constant__ Head p) {
    head<f16>(p);
}
