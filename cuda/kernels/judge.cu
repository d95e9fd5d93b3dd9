// What an evaluation keeps of a scored batch: ranking keys per head and sample (sorted and counted by `auc.cu`), and
// counts. Reads 12 bytes per sample and head and writes 8. Once all batches are scored, sums are taken over the keys
// (8 bytes per sample and head), so that their order does not depend on the batches.
#include "common.cuh"

// Over the samples that have a label for the head.
struct Sums {
    double weights;
    // Each multiplied by the sample's weight.
    double losses;
    double predictions;
    double positives;
    u64 samples;
    // Samples, with or without a label, whose logit is NaN.
    u64 not_numbers;

    __device__ void add(const Sums& other) {
        weights += other.weights;
        losses += other.losses;
        predictions += other.predictions;
        positives += other.positives;
        samples += other.samples;
        not_numbers += other.not_numbers;
    }
};

struct Judge {
    // [sample][head]
    const float* logits;
    // [head][labels_stride]: 0, 1, or NaN if it is missing.
    const float* labels;
    // [sample]
    const float* weights;
    // Samples in the batch.
    const u32* samples;
    // Samples judged before.
    u64* judged;
    // [head][capacity]
    u64* keys;
    // [head][block]
    Sums* parts;
    // [head]
    Sums* sums;
    u64 capacity;
    u32 heads;
    u32 labels_stride;
    u32 blocks;
    // Whether keys include the samples' weights.
    u32 weighted;
};

constexpr u32 JUDGE_THREADS = 256;

// A weight in 31 bits. -0 becomes 0; a negative number becomes NaN, for which AUC is undefined.
__device__ inline u32 weight_bits(float weight) {
    return weight >= 0 ? __float_as_uint(weight) & 0x7fffffffu : 0x7fc00000u;
}

// Adds up the sums of a block's threads.
__device__ inline void judge_block(Sums* threads, Sums* part) {
    for (u32 half = JUDGE_THREADS / 2; half > 0; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half) threads[threadIdx.x].add(threads[threadIdx.x + half]);
    }
    if (threadIdx.x == 0) *part = threads[0];
}

// Writes a batch's keys and counts its samples. Keys beyond the capacity are dropped; `judged` counts them, so the host
// can tell. Grid: blocks, heads.
extern "C" __global__ void __launch_bounds__(JUDGE_THREADS) judge(const __grid_constant__ Judge p) {
    __shared__ Sums threads[JUDGE_THREADS];
    const u32 head = blockIdx.y, samples = *p.samples;
    const u64 before = *p.judged;
    Sums sums = {};
    for (u32 sample = blockIdx.x * JUDGE_THREADS + threadIdx.x; sample < samples; sample += gridDim.x * JUDGE_THREADS) {
        if (before + sample >= p.capacity) break;
        // -0 and 0 are one score.
        const float logit = __fadd_rn(p.logits[u64(sample) * p.heads + head], 0.0f);
        const float label = p.labels[u64(head) * p.labels_stride + sample];
        const u32 bits = __float_as_uint(logit), ascending = bits >> 31 ? ~bits : bits | 1u << 31;
        const u32 kind = isnan(label) ? 2 : label != 0 ? 1 : 0;
        const float own_weight = p.weights[sample];
        // See `auc.cu`.
        const u32 low = p.weighted == 0 ? kind : kind == 2 ? 0 : kind << 31 | weight_bits(own_weight);
        p.keys[head * p.capacity + before + sample] = u64(ascending) << 32 | low;
        sums.not_numbers += isnan(logit);
        sums.samples += kind != 2;
    }
    threads[threadIdx.x] = sums;
    judge_block(threads, p.parts + head * gridDim.x + blockIdx.x);
}

struct JudgeKeys {
    const u64* keys;
    // [block]
    Sums* parts;
    u32 count;
    // Whether keys include the samples' weights.
    u32 weighted;
};

// Writes partial sums over a head's keys, without the numbers of samples. Grid: blocks.
extern "C" __global__ void __launch_bounds__(JUDGE_THREADS) judge_keys(const __grid_constant__ JudgeKeys p) {
    __shared__ Sums threads[JUDGE_THREADS];
    Sums sums = {};
    for (u64 at = blockIdx.x * JUDGE_THREADS + threadIdx.x; at < p.count; at += gridDim.x * JUDGE_THREADS) {
        const u64 key = p.keys[at];
        const u32 score = u32(key >> 32), low = u32(key);
        // A sample without a label, or one that weighs nothing.
        if (p.weighted != 0 ? low == 0 : low == 2) continue;
        const double z = __uint_as_float(score >> 31 ? score ^ 1u << 31 : ~score), e = exp(-fabs(z));
        const double label = p.weighted != 0 ? low >> 31 : low;
        const double weight = p.weighted != 0 ? __uint_as_float(low & 0x7fffffffu) : 1.0f;
        sums.weights += weight;
        sums.losses += weight * (fmax(z, 0.0) - z * label + log1p(e));
        sums.predictions += weight * (z >= 0 ? 1 / (1 + e) : e / (1 + e));
        sums.positives += weight * label;
    }
    threads[threadIdx.x] = sums;
    judge_block(threads, p.parts + blockIdx.x);
}

struct JudgeKeysTotal {
    // [block]
    const Sums* parts;
    Sums* sums;
    u32 blocks;
    u32 reserved;
};

// Adds partial sums to a head's. Grid: one block.
extern "C" __global__ void __launch_bounds__(WARP) judge_keys_total(const __grid_constant__ JudgeKeysTotal p) {
    if (threadIdx.x > 0) return;
    Sums sums = *p.sums;
    for (u32 block = 0; block < p.blocks; block++) sums.add(p.parts[block]);
    *p.sums = sums;
}

// Adds the counts to those of earlier batches. Grid: one block, one thread per head.
extern "C" __global__ void __launch_bounds__(JUDGE_THREADS) judge_total(const __grid_constant__ Judge p) {
    for (u32 head = threadIdx.x; head < p.heads; head += JUDGE_THREADS) {
        Sums sums = p.sums[head];
        for (u32 block = 0; block < p.blocks; block++) sums.add(p.parts[head * p.blocks + block]);
        p.sums[head] = sums;
    }
    if (threadIdx.x == 0) *p.judged += *p.samples;
}
