// The last layer, to one logit, with the loss behind it: forward, and back to the gradients of its input.
//
// Reads the input twice, the second time out of the cache, and writes its gradients once. The weights' gradients are
// summed piece by piece of the samples; `columns_total` adds them up.
#include "element.cuh"

constexpr u32 HEAD_SAMPLES = 64;
constexpr u32 HEAD_WARPS = 8;

struct Head {
    // [sample][width]
    const void* input;
    // [width], and the bias behind them.
    const float* weights;
    // 0, 1, or NaN where it is missing.
    const float* labels;
    const float* sample_weights;
    // The sum of the weights of the samples with labels.
    const double* total;
    // What the loss is multiplied by.
    double head_weight;
    // Null, or one a sample.
    float* logits;
    // [sample][width]; nothing behind the logits is computed where it is null.
    void* gradients;
    // [piece][width + 1]
    float* parts;
    // One a piece.
    double* losses;
    u32 samples;
    u32 width;
    // Whether there is a ReLU before the input, which its gradients are taken through.
    u32 relu;
    u32 reserved;
};
static_assert(sizeof(Head) == 96);

// Grid: one block a piece of the samples.
template <class T>
__device__ inline void head(const Head& p) {
    __shared__ float gradients[HEAD_SAMPLES];
    __shared__ double losses[HEAD_SAMPLES];
    const u32 lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    const u32 begin = blockIdx.x * HEAD_SAMPLES, count = min(HEAD_SAMPLES, p.samples - begin);
    const T* input = static_cast<const T*>(p.input) + u64(begin) * p.width;
    for (u32 sample = warp; sample < count; sample += HEAD_WARPS) {
        const T* own = input + u64(sample) * p.width;
        float logit = 0;
        for (u32 column = lane * VECTOR; column < p.width; column += WARP * VECTOR) {
            const float4 x = load4(own + column);
            // The weights' place need not be a multiple of four: a layer lies behind another one's bias.
            const float* w = p.weights + column;
            logit += x.x * w[0] + x.y * w[1] + x.z * w[2] + x.w * w[3];
        }
#pragma unroll
        for (u32 distance = WARP / 2; distance > 0; distance /= 2) {
            logit += __shfl_xor_sync(ALL_LANES, logit, distance);
        }
        logit += p.weights[p.width];
        if (p.logits != nullptr && lane == 0) p.logits[begin + sample] = logit;
        if (p.gradients == nullptr) continue;
        float gradient = 0;
        double loss = 0;
        if (lane == 0) {
            const double z = logit, label = p.labels[begin + sample], total = *p.total;
            if (!isnan(label) && total != 0) {
                const double weight = p.sample_weights[begin + sample], e = exp(-fabs(z));
                loss = weight * (fmax(z, 0.0) - z * label + log1p(e));
                // `fmax` takes the number where the other is none.
                if (isnan(z)) loss = z;
                const double sigmoid = z >= 0 ? 1 / (1 + e) : e / (1 + e);
                gradient = float((sigmoid - label) * (p.head_weight * weight) / total);
            }
            gradients[sample] = gradient;
            losses[sample] = loss;
        }
        gradient = __shfl_sync(ALL_LANES, gradient, 0);
        T* out = static_cast<T*>(p.gradients) + u64(begin + sample) * p.width;
        for (u32 column = lane * VECTOR; column < p.width; column += WARP * VECTOR) {
            const float* w = p.weights + column;
            float4 values =
                make_float4(gradient * w[0], gradient * w[1], gradient * w[2], gradient * w[3]);
            if (p.relu != 0) values = where_positive(values, load4(own + column));
            store4(out + column, values);
        }
    }
    if (p.gradients == nullptr) return;
    __syncthreads();
    float* parts = p.parts + u64(blockIdx.x) * (p.width + 1);
    for (u32 column = threadIdx.x; column < p.width; column += blockDim.x) {
        float sum = 0;
#pragma unroll 8
        for (u32 sample = 0; sample < count; sample++) {
            sum += gradients[sample] * load(input + u64(sample) * p.width + column);
        }
        parts[column] = sum;
    }
    if (threadIdx.x == 0) {
        float bias = 0;
        double loss = 0;
        for (u32 sample = 0; sample < count; sample++) {
            bias += gradients[sample];
            loss += losses[sample];
        }
        parts[p.width] = bias;
        p.losses[blockIdx.x] = loss;
    }
}

extern "C" __global__ void __launch_bounds__(HEAD_WARPS* WARP) head_f32(const __grid_constant__ Head p) {
    head<float>(p);
}

extern "C" __global__ void __launch_bounds__(HEAD_WARPS* WARP) head_bf16(const __grid_constant__ Head p) {
    head<bf16>(p);
}

struct Loss {
    // One a piece.
    const double* losses;
    // Says where the loss goes.
    const Step* step;
    // What the sum is divided by, and then multiplied by.
    const double* total;
    double head_weight;
    // Losses, in the host's memory.
    double* sums;
    // Becomes 1 where the sum is not a finite number, and stays so.
    u32* stop;
    u32 pieces;
    u32 reserved;
};
static_assert(sizeof(Loss) == 56);

// One block.
extern "C" __global__ void __launch_bounds__(256) loss(const __grid_constant__ Loss p) {
    __shared__ double sums[256];
    double sum = 0;
    for (u32 piece = threadIdx.x; piece < p.pieces; piece += blockDim.x) sum += p.losses[piece];
    sums[threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.x == 0) {
        for (u32 other = 1; other < blockDim.x; other++) sum += sums[other];
        const double total = *p.total, loss = total == 0 ? 0 : p.head_weight * (sum / total);
        p.sums[p.step->loss_place] = loss;
        if (!isfinite(loss)) *p.stop = 1;
    }
}
