// The last layer (one logit per head) and the loss: forward pass, and backward pass to the gradients of its input.
// Terms that bypass the layers are added to the logits here: first-order terms, and a term that all heads share.
//
// Reads the input twice, the second time from the cache, and writes its gradients once. A warp has four samples at a
// time, so that their loads overlap. Weight gradients are summed over each piece of the samples; `columns_total` adds up
// the pieces.
#include "guard.cuh"

constexpr u32 HEAD_SAMPLES = 32;
constexpr u32 HEAD_WARPS = 8;
// Samples of a warp.
constexpr u32 HEAD_EACH = HEAD_SAMPLES / HEAD_WARPS;
// Columns that a warp reads at a time.
constexpr u32 HEAD_COLUMNS = WARP * VECTOR;
// Per multiprocessor.
constexpr u32 HEAD_BLOCKS = 4;

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

// Writes the logits of a block's samples to shared memory, [head][sample], and to `logits`.
template <class T>
__device__ inline void head_logits(const Head& p, u32 begin, u32 count, float* logits) {
    const u32 lane = threadIdx.x % WARP, first = threadIdx.x / WARP * HEAD_EACH;
    // The last sample stands for those that do not exist; their logits are not used.
    const auto sample_of = [&](u32 i) { return u64(begin + min(first + i, count - 1)); };
    const T* input = static_cast<const T*>(p.input);
    const float* biases = p.weights + p.heads * p.width;
    const float* linear = biases + p.heads;
    for (u32 head = 0; head < p.heads; head++) {
        const float* weights = p.weights + head * p.width;
        float logit[HEAD_EACH] = {};
        for (u32 column = lane * VECTOR; column < p.width; column += HEAD_COLUMNS) {
            const float4 w = load4(weights + column);
#pragma unroll
            for (u32 i = 0; i < HEAD_EACH; i++) {
                const float4 x = load4(input + sample_of(i) * p.stride + column);
                logit[i] += x.x * w.x + x.y * w.y + x.z * w.z + x.w * w.w;
            }
        }
        for (u32 feature = lane; feature < p.wide_features; feature += WARP) {
            const T* wide = static_cast<const T*>(p.wide) + feature * p.wide_step + head;
#pragma unroll
            for (u32 i = 0; i < HEAD_EACH; i++) logit[i] += load(wide + sample_of(i) * p.wide_stride);
        }
        for (u32 column = lane; column < p.dense_columns; column += WARP) {
            const float w = linear[head * p.dense_columns + column];
#pragma unroll
            for (u32 i = 0; i < HEAD_EACH; i++) logit[i] += p.dense[sample_of(i) * p.dense_columns + column] * w;
        }
#pragma unroll
        for (u32 distance = WARP / 2; distance > 0; distance /= 2) {
#pragma unroll
            for (u32 i = 0; i < HEAD_EACH; i++) logit[i] += __shfl_xor_sync(ALL_LANES, logit[i], distance);
        }
#pragma unroll
        for (u32 i = 0; i < HEAD_EACH; i++) {
            const u32 sample = first + i;
            if (lane != i || sample >= count) continue;
            float sum = logit[i] + biases[head];
            if (p.terms != nullptr) sum += p.terms[begin + sample];
            if (p.logits != nullptr) p.logits[u64(begin + sample) * p.heads + head] = sum;
            logits[head * HEAD_SAMPLES + sample] = sum;
        }
    }
}

// Writes the losses of a block's samples, and replaces each logit by the gradient with respect to it; both are 0 for
// samples that do not exist. One thread per loss: a warp that computed its samples' losses one by one would mostly
// wait.
__device__ inline void head_losses(const Head& p, u32 begin, u32 count, float* logits, double* losses) {
    for (u32 i = threadIdx.x; i < p.heads * HEAD_SAMPLES; i += blockDim.x) {
        const u32 head = i / HEAD_SAMPLES, sample = i % HEAD_SAMPLES;
        float gradient = 0;
        double loss = 0;
        if (sample < count) {
            const double z = logits[i], label = p.labels[u64(head) * p.samples + begin + sample];
            const double total = p.totals[head];
            if (!isnan(label) && total != 0) {
                const double weight = p.sample_weights[begin + sample], e = exp(-fabs(z));
                loss = weight * (fmax(z, 0.0) - z * label + log1p(e));
                // `fmax` returns the other argument if one is NaN.
                if (isnan(z)) loss = z;
                const double sigmoid = z >= 0 ? 1 / (1 + e) : e / (1 + e);
                gradient = float((sigmoid - label) * (p.head_weights[head] * weight) / total * p.guard->loss_scale);
            }
        }
        logits[i] = gradient;
        losses[i] = loss;
    }
}

// Writes the gradients with respect to the input of a block's samples, and the sums of those with respect to the
// weights, [head][width]. `sums` has room for one per warp.
template <class T>
__device__ inline void head_back(const Head& p, u32 begin, u32 count, const float* gradients, float* parts,
                                 float (*sums)[HEAD_COLUMNS]) {
    const u32 lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, first = warp * HEAD_EACH;
    const u64 begin_at = u64(begin) * p.stride;
    const T* input = static_cast<const T*>(p.input) + begin_at;
    T* out = static_cast<T*>(p.gradients) + begin_at;
    for (u32 columns = 0; columns < p.width; columns += HEAD_COLUMNS) {
        const u32 column = columns + lane * VECTOR;
        const bool inside = column < p.width;
        float4 x[HEAD_EACH], by_x[HEAD_EACH];
#pragma unroll
        for (u32 i = 0; i < HEAD_EACH; i++) {
            x[i] = by_x[i] = make_float4(0, 0, 0, 0);
            if (inside) x[i] = load4(input + u64(min(first + i, count - 1)) * p.stride + column);
        }
        for (u32 head = 0; head < p.heads; head++) {
            const float* of_samples = gradients + head * HEAD_SAMPLES + first;
            float4 w = make_float4(0, 0, 0, 0), by_w = w;
            if (inside) w = load4(p.weights + head * p.width + column);
#pragma unroll
            for (u32 i = 0; i < HEAD_EACH; i++) {
                const float gradient = of_samples[i];
                by_x[i].x += gradient * w.x;
                by_x[i].y += gradient * w.y;
                by_x[i].z += gradient * w.z;
                by_x[i].w += gradient * w.w;
                by_w.x += gradient * x[i].x;
                by_w.y += gradient * x[i].y;
                by_w.z += gradient * x[i].z;
                by_w.w += gradient * x[i].w;
            }
            *reinterpret_cast<float4*>(&sums[warp][lane * VECTOR]) = by_w;
            __syncthreads();
            if (threadIdx.x < HEAD_COLUMNS && columns + threadIdx.x < p.width) {
                float sum = 0;
#pragma unroll
                for (u32 other = 0; other < HEAD_WARPS; other++) sum += sums[other][threadIdx.x];
                parts[head * p.width + columns + threadIdx.x] = sum;
            }
            __syncthreads();
        }
#pragma unroll
        for (u32 i = 0; i < HEAD_EACH; i++) {
            if (!inside || first + i >= count) continue;
            const float4 values = p.relu != 0 ? where_positive(by_x[i], x[i]) : by_x[i];
            store4(out + u64(first + i) * p.stride + column, values);
        }
    }
}

// Writes the gradients with respect to the terms that bypass the layers.
template <class T>
__device__ inline void terms_back(const Head& p, u32 begin, u32 count, const float* gradients) {
    const u32 lane = threadIdx.x % WARP, first = threadIdx.x / WARP * HEAD_EACH;
    for (u32 sample = first; sample < min(first + HEAD_EACH, count); sample++) {
        T* wide = static_cast<T*>(p.wide_gradients) + u64(begin + sample) * p.wide_stride;
        for (u32 i = lane; i < p.wide_features * p.wide_step; i += WARP) {
            const u32 head = i % p.wide_step;
            const float gradient = head < p.heads ? gradients[head * HEAD_SAMPLES + sample] : 0.0f;
            if (!holds(wide, gradient)) atomicOr(&p.guard->found, WRONG_VECTORS);
            store(wide + i, gradient);
        }
        if (p.terms != nullptr && lane == 0) {
            float sum = 0;
            for (u32 head = 0; head < p.heads; head++) sum += gradients[head * HEAD_SAMPLES + sample];
            p.term_gradients[begin + sample] = sum;
        }
    }
}

// Writes the sums over a block's samples of the losses and of the gradients with respect to the biases.
__device__ inline void head_sums(const Head& p, const float* gradients, const double* losses, float* biases) {
    static_assert(HEAD_SAMPLES == WARP);
    const u32 lane = threadIdx.x % WARP;
    for (u32 head = threadIdx.x / WARP; head < p.heads; head += HEAD_WARPS) {
        const u32 at = head * HEAD_SAMPLES + lane;
        float bias = gradients[at];
        double loss = losses[at];
#pragma unroll
        for (u32 distance = WARP / 2; distance > 0; distance /= 2) {
            bias += __shfl_xor_sync(ALL_LANES, bias, distance);
            loss += __shfl_xor_sync(ALL_LANES, loss, distance);
        }
        if (lane != 0) continue;
        biases[head] = bias;
        p.losses[u64(blockIdx.x) * p.heads + head] = loss;
    }
}

// Grid: one block per piece of the samples. Shared memory: a gradient per head and sample, then a loss for each, or a
// sum for each warp and column.
template <class T>
__device__ inline void head(const Head& p) {
    extern __shared__ float4 memory[];
    // The logits at first.
    float* gradients = reinterpret_cast<float*>(memory);
    double* losses = reinterpret_cast<double*>(gradients + p.heads * HEAD_SAMPLES);
    const u32 begin = blockIdx.x * HEAD_SAMPLES, count = min(HEAD_SAMPLES, p.samples - begin);
    head_logits<T>(p, begin, count, gradients);
    if (p.gradients == nullptr) return;
    __syncthreads();
    head_losses(p, begin, count, gradients, losses);
    __syncthreads();
    float* parts = p.parts + u64(blockIdx.x) * p.heads * (p.width + 1 + p.dense_columns);
    head_sums(p, gradients, losses, parts + p.heads * p.width);
    // The losses make room.
    __syncthreads();
    head_back<T>(p, begin, count, gradients, parts, reinterpret_cast<float(*)[HEAD_COLUMNS]>(losses));
    terms_back<T>(p, begin, count, gradients);
    parts += p.heads * (p.width + 1);
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
