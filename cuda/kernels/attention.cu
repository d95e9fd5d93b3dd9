// Attention over sequences: each sample's sum of keys, every key times the weight of its position, and the gradients
// with respect to keys, queries and the activation unit. Positions are jagged: a sample has as many as its sequence.
//
// The unit's first layer reads query q, key k, q - k and q * k. This is one matrix per sample times the key, plus a
// constant: W [q, k, q - k, q * k] = (Wq + Wd) q + (Wk - Wd + Wp diag(q)) k. So a position costs a quarter
// of the multiplications, and the weight gradients follow from three sums over samples: of dM, of dc q, and of
// dM diag(q), where dM and dc are the gradients with respect to a sample's matrix and constant. Activations are
// computed again in the backward pass rather than stored.
//
// Forward: reads the keys once, queries and offsets; writes the sums. Backward: reads keys, queries and gradients with
// respect to sums, adds those with respect to queries, writes those with respect to keys. For 16384 samples of 50
// positions with keys of 64 bf16 that is 105 MB and 210 MB, 66 us at 4.8 TB/s. With 40 hidden outputs these kernels
// take 2.0 and 2.8 ms (H200): they multiply without tensor cores, which `attention_tiles.cu` uses.
//
// These kernels take any sizes and element types. A block takes a sample at a time, every gridDim.x-th, and keeps its
// sums of weight gradients until its last sample; the host adds up the blocks' in order. So the bits are the same each
// time. What does not fit into shared memory is in `memory`.
#include "attention.cuh"

constexpr u32 ATTENTION_THREADS = 128;
constexpr u32 ATTENTION_WARPS = ATTENTION_THREADS / WARP;
// Positions whose activations are in memory at a time.
constexpr u32 CHUNK = 32;
// Positions, and outputs, that a thread takes at a time.
constexpr u32 EACH = 4;

__device__ inline u32 by_four(u32 count) { return (count + 3) / 4 * 4; }

// Elements from one row of `width` to the next, so that eight threads reading four of eight rows use all banks.
__device__ inline u32 padded_width(u32 width) { return width / 4 % 2 == 0 ? width + 4 : width; }

__device__ inline float dot4(float4 a, float4 b, float sum) {
    return fmaf(a.x, b.x, fmaf(a.y, b.y, fmaf(a.z, b.z, fmaf(a.w, b.w, sum))));
}

__device__ inline float4 fma4(float a, float4 b, float4 c) {
    return make_float4(fmaf(a, b.x, c.x), fmaf(a, b.y, c.y), fmaf(a, b.z, c.z), fmaf(a, b.w, c.w));
}

// What a block keeps; `forward` is what both passes need.
struct AttentionMemory {
    float* query;
    // With respect to the sum.
    float* gradient;
    // [position]: weights, and the gradients with respect to them.
    float* weights;
    float* weight_gradients;
    // [slice of positions][width]: partial sums.
    float* slices;
    // [CHUNK][width]
    float* keys;
    // A sample's matrix, [outputs][padded width], and its constant, of the first layer.
    float* matrix;
    float* constant;
    // [layer][CHUNK][outputs]
    float* outputs;
    // The gradients with respect to the outputs of a layer, and of the one before: [CHUNK][outputs_max].
    float* deltas[2];
    // Gradients with respect to matrix and constant.
    float* matrix_gradient;
    float* constant_gradient;
    // Sums over samples: of the matrix gradient, of that times the query, and of the constant's times the query.
    float* sums[3];
    // Sums of the other gradients, as the parameters are stored, without the first layer's W.
    float* others;

    __device__ AttentionMemory(const Attention& p, float* memory) {
        const auto take = [&](u32 count) {
            float* const taken = memory;
            memory += by_four(count);
            return taken;
        };
        const u32 width = p.width;
        query = take(width);
        gradient = take(width);
        weights = take(p.length_max);
        weight_gradients = take(p.length_max);
        slices = take(max(ATTENTION_THREADS * 4, width));
        if (p.kind != DIN) return;
        const UnitLayer first = p.layers[0];
        const u32 rows = by_four(first.outputs), of_matrix = rows * padded_width(width);
        keys = take(CHUNK * width);
        matrix = take(of_matrix);
        constant = take(rows);
        outputs = take(CHUNK * p.outputs_sum);
        deltas[0] = take(CHUNK * p.outputs_max);
        deltas[1] = take(CHUNK * p.outputs_max);
        matrix_gradient = take(of_matrix);
        constant_gradient = take(rows);
        for (u32 i = 0; i < 3; i++) sums[i] = take(of_matrix);
        others = take(p.parameters - first.bias);
    }
};

template <class T>
struct Attending {
    const Attention& p;
    const T* weights;
    AttentionMemory memory;
    u32 sample = 0;
    // The sample's first position, and their number.
    u32 begin = 0;
    u32 length = 0;
    bool wrong = false;

    __device__ Attending(const Attention& parameters, float* of_block)
        : p(parameters), weights(static_cast<const T*>(parameters.weights)), memory(parameters, of_block) {}

    __device__ T* row(void* rows) const { return static_cast<T*>(rows) + u64(sample) * p.stride; }
    __device__ const T* key(u32 position) const {
        return static_cast<const T*>(p.keys) + u64(begin + position) * p.width;
    }
    __device__ void put_key_gradient(u32 position, u32 d, float4 gradient) {
        T* const to = static_cast<T*>(p.key_gradients) + u64(begin + position) * p.width + d;
        wrong |= !holds4(to, gradient);
        store4(to, gradient);
    }

    // Goes to a sample, and reads its query and, in the backward pass, the gradient with respect to its sum.
    __device__ void enter(u32 number, bool backward) {
        __syncthreads();
        sample = number;
        const bool there = sample < *p.samples_count;
        begin = there ? p.offsets[sample] : 0;
        length = there ? p.offsets[sample + 1] - begin : 0;
        for (u32 i = threadIdx.x; i < p.width / VECTOR; i += ATTENTION_THREADS) {
            const KeyPlace place = p.places[i];
            if (p.kind != MEAN_OF_KEYS) store4(memory.query + i * VECTOR, load4(row(p.vectors) + place.query));
            if (backward) store4(memory.gradient + i * VECTOR, load4(row(p.gradients) + place.sum));
        }
        __syncthreads();
    }

    // Dot products of keys with a vector in memory, times a factor. A warp takes a position.
    __device__ void dots(const float* vector, float factor, float* results) const {
        const u32 lane = threadIdx.x % WARP;
        for (u32 position = threadIdx.x / WARP; position < length; position += ATTENTION_WARPS) {
            float sum = 0;
            for (u32 d = lane * VECTOR; d < p.width; d += WARP * VECTOR) {
                sum = dot4(load4(key(position) + d), load4(vector + d), sum);
            }
#pragma unroll
            for (u32 distance = WARP / 2; distance > 0; distance /= 2) {
                sum += __shfl_xor_sync(ALL_LANES, sum, distance);
            }
            if (lane == 0) results[position] = factor * sum;
        }
        __syncthreads();
    }

    // What `combine` makes of a value per position, in a fixed order. Each warp computes it.
    template <class V, class F>
    __device__ float over_positions(float start, V value, F combine) const {
        float all = start;
        for (u32 position = threadIdx.x % WARP; position < length; position += WARP) {
            all = combine(all, value(position));
        }
#pragma unroll
        for (u32 distance = WARP / 2; distance > 0; distance /= 2) {
            all = combine(all, __shfl_xor_sync(ALL_LANES, all, distance));
        }
        return all;
    }

    // The weights of the kinds without an activation unit.
    __device__ void plain_weights() const {
        if (p.kind == MEAN_OF_KEYS) {
            for (u32 i = threadIdx.x; i < length; i += ATTENTION_THREADS) memory.weights[i] = 1 / float(length);
            __syncthreads();
            return;
        }
        float* const scores = memory.weights;
        dots(memory.query, p.score_scale, scores);
        const auto plus = [](float a, float b) { return a + b; };
        const auto larger = [](float a, float b) { return fmaxf(a, b); };
        const float most = over_positions(-INFINITY, [&](u32 i) { return scores[i]; }, larger);
        const float sum = over_positions(0, [&](u32 i) { return expf(scores[i] - most); }, plus);
        __syncthreads();
        for (u32 i = threadIdx.x; i < length; i += ATTENTION_THREADS) scores[i] = expf(scores[i] - most) / sum;
        __syncthreads();
    }

    // Sums the keys times a factor each: slices of the positions first, then these, both in order. `put` takes the
    // sums, four elements at a time.
    template <class F>
    __device__ void sum_keys(const float* factors, F put) const {
        const u32 vectors = p.width / VECTOR, slices = max(ATTENTION_THREADS / vectors, 1u);
        for (u32 i = threadIdx.x; i < slices * vectors; i += ATTENTION_THREADS) {
            float4 sum = make_float4(0, 0, 0, 0);
            for (u32 position = i / vectors; position < length; position += slices) {
                sum = fma4(factors[position], load4(key(position) + i % vectors * VECTOR), sum);
            }
            store4(memory.slices + i * VECTOR, sum);
        }
        __syncthreads();
        for (u32 i = threadIdx.x; i < vectors; i += ATTENTION_THREADS) {
            float4 sum = make_float4(0, 0, 0, 0);
            for (u32 slice = 0; slice < slices; slice++) {
                add(sum, load4(memory.slices + (slice * vectors + i) * VECTOR));
            }
            put(i, sum);
        }
        __syncthreads();
    }

    // Adds gradients in memory to those with respect to the query's vectors. Several parts of the query may be the
    // same.
    __device__ void add_to_query(const float* gradients) {
        for (u32 i = threadIdx.x; i < p.width / VECTOR; i += ATTENTION_THREADS) {
            const KeyPlace place = p.places[i];
            if (place.leads == 0) continue;
            T* const to = row(p.gradients) + place.query;
            float4 sum = load4(to);
            for (u32 next = i + 1; next > 0; next = p.places[next - 1].next) {
                add(sum, load4(gradients + (next - 1) * VECTOR));
            }
            wrong |= !holds4(to, sum);
            store4(to, sum);
        }
    }

    // Computes the first layer's matrix and constant for the sample.
    __device__ void make_matrix() const {
        const UnitLayer layer = p.layers[0];
        const u32 width = p.width, stride = padded_width(width), rows = by_four(layer.outputs);
        for (u32 i = threadIdx.x; i < rows * width / VECTOR; i += ATTENTION_THREADS) {
            const u32 output = i / (width / VECTOR), d = i % (width / VECTOR) * VECTOR;
            float4 of_key = make_float4(0, 0, 0, 0);
            if (output < layer.outputs) {
                const T* const row = weights + layer.weights + output * layer.inputs + d;
                of_key = load4(row + width);
                const float4 difference = load4(row + 2 * width), product = load4(row + 3 * width);
                const float4 query = load4(memory.query + d);
                of_key.x = fmaf(product.x, query.x, of_key.x - difference.x);
                of_key.y = fmaf(product.y, query.y, of_key.y - difference.y);
                of_key.z = fmaf(product.z, query.z, of_key.z - difference.z);
                of_key.w = fmaf(product.w, query.w, of_key.w - difference.w);
            }
            store4(memory.matrix + output * stride + d, of_key);
        }
        for (u32 output = threadIdx.x / WARP; output < rows; output += ATTENTION_WARPS) {
            float sum = 0;
            if (output < layer.outputs) {
                const T* const row = weights + layer.weights + output * layer.inputs;
                for (u32 d = threadIdx.x % WARP; d < width; d += WARP) {
                    sum = fmaf(load(row + d) + load(row + 2 * width + d), memory.query[d], sum);
                }
            }
#pragma unroll
            for (u32 distance = WARP / 2; distance > 0; distance /= 2) {
                sum += __shfl_xor_sync(ALL_LANES, sum, distance);
            }
            if (threadIdx.x % WARP == 0) {
                memory.constant[output] = output < layer.outputs ? sum + load(weights + layer.bias + output) : 0;
            }
        }
        __syncthreads();
    }

    // Computes the outputs of all layers for `count` positions from `first` on, and their weights.
    __device__ void forward_chunk(u32 first, u32 count) const {
        const u32 width = p.width, filled = by_four(count);
        for (u32 i = threadIdx.x; i < filled * width / VECTOR; i += ATTENTION_THREADS) {
            const u32 position = i / (width / VECTOR), d = i % (width / VECTOR) * VECTOR;
            const float4 values = position < count ? load4(key(first + position) + d) : make_float4(0, 0, 0, 0);
            store4(memory.keys + position * width + d, values);
        }
        __syncthreads();
        const float* before = memory.keys;
        u32 before_stride = width;
        float* outputs = memory.outputs;
        for (u32 number = 0; number < p.layers_count; number++) {
            const UnitLayer layer = p.layers[number];
            const bool last = number + 1 == p.layers_count;
            const u32 stride = by_four(layer.outputs), inputs = number == 0 ? width : layer.inputs;
            for (u32 i = threadIdx.x; i < filled / EACH * layer.outputs; i += ATTENTION_THREADS) {
                const u32 output = i % layer.outputs, position = i / layer.outputs * EACH;
                float sums[EACH];
                const float start =
                    number == 0 ? memory.constant[output] : load(weights + layer.bias + output);
#pragma unroll
                for (u32 e = 0; e < EACH; e++) sums[e] = start;
                const T* const row = weights + layer.weights + output * layer.inputs;
                for (u32 d = 0; d < inputs; d += VECTOR) {
                    const float4 by =
                        number == 0 ? load4(memory.matrix + output * padded_width(width) + d) : load4(row + d);
#pragma unroll
                    for (u32 e = 0; e < EACH; e++) {
                        sums[e] = dot4(by, load4(before + (position + e) * before_stride + d), sums[e]);
                    }
                }
#pragma unroll
                for (u32 e = 0; e < EACH; e++) {
                    outputs[(position + e) * stride + output] = last ? sums[e] : fmaxf(sums[e], 0);
                    if (last && position + e < count) memory.weights[first + position + e] = sums[e];
                }
            }
            before = outputs;
            before_stride = stride;
            outputs += CHUNK * stride;
            __syncthreads();
        }
    }

    // From the outputs of a chunk to the gradients with respect to its keys; adds those with respect to matrix,
    // constant and the other parameters.
    __device__ void backward_chunk(u32 first, u32 count) {
        const u32 width = p.width, filled = by_four(count);
        float *delta = memory.deltas[0], *next = memory.deltas[1];
        // The output's gradient is the key times the gradient with respect to the sum.
        for (u32 position = threadIdx.x; position < filled; position += ATTENTION_THREADS) {
            float sum = 0;
            if (position < count) {
                for (u32 d = 0; d < width; d += VECTOR) {
                    // Threads start at different elements, and so at different banks.
                    const u32 at = (d + position * VECTOR) % width;
                    sum = dot4(load4(memory.keys + position * width + at), load4(memory.gradient + at), sum);
                }
            }
            store4(delta + position * VECTOR, make_float4(sum, 0, 0, 0));
        }
        __syncthreads();
        const u32 bias_of_first = p.layers[0].bias;
        const float* outputs = memory.outputs + CHUNK * (p.outputs_sum - by_four(1));
        for (u32 number = p.layers_count - 1; number > 0; number--) {
            const UnitLayer layer = p.layers[number];
            const u32 stride = by_four(layer.outputs), before_stride = by_four(layer.inputs);
            outputs -= CHUNK * before_stride;
            float* const of_weights = memory.others + (layer.weights - bias_of_first);
            for (u32 i = threadIdx.x; i < layer.outputs * layer.inputs; i += ATTENTION_THREADS) {
                const u32 output = i / layer.inputs, input = i % layer.inputs;
                float sum = of_weights[i];
                for (u32 position = 0; position < filled; position++) {
                    sum = fmaf(delta[position * stride + output], outputs[position * before_stride + input], sum);
                }
                of_weights[i] = sum;
            }
            for (u32 output = threadIdx.x; output < layer.outputs; output += ATTENTION_THREADS) {
                float sum = 0;
                for (u32 position = 0; position < filled; position++) sum += delta[position * stride + output];
                memory.others[layer.bias - bias_of_first + output] += sum;
            }
            for (u32 i = threadIdx.x; i < filled * layer.inputs; i += ATTENTION_THREADS) {
                const u32 position = i / layer.inputs, input = i % layer.inputs;
                float sum = 0;
                for (u32 output = 0; output < layer.outputs; output++) {
                    const float by = load(weights + layer.weights + output * layer.inputs + input);
                    sum = fmaf(delta[position * stride + output], by, sum);
                }
                const bool on = outputs[position * before_stride + input] > 0;
                next[position * before_stride + input] = on ? sum : 0;
            }
            float* const done = delta;
            delta = next;
            next = done;
            __syncthreads();
        }
        const u32 rows = by_four(p.layers[0].outputs), stride = padded_width(width), vectors = width / VECTOR;
        for (u32 output = threadIdx.x; output < rows; output += ATTENTION_THREADS) {
            float sum = 0;
            for (u32 position = 0; position < filled; position++) sum += delta[position * rows + output];
            memory.constant_gradient[output] += sum;
        }
        for (u32 i = threadIdx.x; i < rows / EACH * vectors; i += ATTENTION_THREADS) {
            const u32 output = i / vectors * EACH, d = i % vectors * VECTOR;
            float4 sums[EACH];
#pragma unroll
            for (u32 e = 0; e < EACH; e++) sums[e] = load4(memory.matrix_gradient + (output + e) * stride + d);
            for (u32 position = 0; position < filled; position++) {
                const float4 key = load4(memory.keys + position * width + d);
                const float4 by = load4(delta + position * rows + output);
                sums[0] = fma4(by.x, key, sums[0]);
                sums[1] = fma4(by.y, key, sums[1]);
                sums[2] = fma4(by.z, key, sums[2]);
                sums[3] = fma4(by.w, key, sums[3]);
            }
#pragma unroll
            for (u32 e = 0; e < EACH; e++) store4(memory.matrix_gradient + (output + e) * stride + d, sums[e]);
        }
        for (u32 i = threadIdx.x; i < filled / EACH * vectors; i += ATTENTION_THREADS) {
            const u32 position = i / vectors * EACH, d = i % vectors * VECTOR;
            float4 sums[EACH];
#pragma unroll
            for (u32 e = 0; e < EACH; e++) sums[e] = make_float4(0, 0, 0, 0);
            for (u32 output = 0; output < rows; output++) {
                const float4 by = load4(memory.matrix + output * stride + d);
#pragma unroll
                for (u32 e = 0; e < EACH; e++) sums[e] = fma4(delta[(position + e) * rows + output], by, sums[e]);
            }
            const float4 gradient = load4(memory.gradient + d);
#pragma unroll
            for (u32 e = 0; e < EACH; e++) {
                if (position + e >= count) break;
                const float weight = memory.weights[first + position + e];
                put_key_gradient(first + position + e, d, fma4(weight, gradient, sums[e]));
            }
        }
        __syncthreads();
    }

    // Adds a sample's gradients with respect to matrix and constant to the sums, and to those with respect to the
    // query.
    __device__ void leave() {
        const UnitLayer layer = p.layers[0];
        const u32 width = p.width, stride = padded_width(width);
        for (u32 d = threadIdx.x; d < width; d += ATTENTION_THREADS) {
            float sum = 0;
            const float query = memory.query[d];
            for (u32 output = 0; output < layer.outputs; output++) {
                const T* const row = weights + layer.weights + output * layer.inputs + d;
                const float of_constant = memory.constant_gradient[output];
                const float of_matrix = memory.matrix_gradient[output * stride + d];
                sum = fmaf(load(row) + load(row + 2 * width), of_constant, sum);
                sum = fmaf(load(row + 3 * width), of_matrix, sum);
                const u32 at = output * stride + d;
                memory.sums[0][at] += of_matrix;
                memory.sums[1][at] = fmaf(of_matrix, query, memory.sums[1][at]);
                memory.sums[2][at] = fmaf(of_constant, query, memory.sums[2][at]);
            }
            memory.slices[d] = sum;
        }
        for (u32 output = threadIdx.x; output < layer.outputs; output += ATTENTION_THREADS) {
            memory.others[output] += memory.constant_gradient[output];
        }
        __syncthreads();
        add_to_query(memory.slices);
    }

    __device__ void backward_unit() {
        const u32 rows = by_four(p.layers[0].outputs);
        for (u32 i = threadIdx.x; i < rows * padded_width(p.width); i += ATTENTION_THREADS) {
            memory.matrix_gradient[i] = 0;
        }
        for (u32 i = threadIdx.x; i < rows; i += ATTENTION_THREADS) memory.constant_gradient[i] = 0;
        make_matrix();
        for (u32 first = 0; first < length; first += CHUNK) {
            const u32 count = min(CHUNK, length - first);
            forward_chunk(first, count);
            backward_chunk(first, count);
        }
        leave();
    }

    // The backward pass of the kinds without an activation unit.
    __device__ void backward_plain() {
        plain_weights();
        if (p.kind == DOT) {
            dots(memory.gradient, 1, memory.weight_gradients);
            const auto plus = [](float a, float b) { return a + b; };
            const auto share = [&](u32 i) { return memory.weights[i] * memory.weight_gradients[i]; };
            const float mean = over_positions(0, share, plus);
            __syncthreads();
            for (u32 i = threadIdx.x; i < length; i += ATTENTION_THREADS) {
                memory.weight_gradients[i] = p.score_scale * memory.weights[i] * (memory.weight_gradients[i] - mean);
            }
            __syncthreads();
        }
        const u32 vectors = p.width / VECTOR;
        for (u32 i = threadIdx.x; i < length * vectors; i += ATTENTION_THREADS) {
            const u32 position = i / vectors, d = i % vectors * VECTOR;
            float4 sum = fma4(memory.weights[position], load4(memory.gradient + d), make_float4(0, 0, 0, 0));
            if (p.kind == DOT) sum = fma4(memory.weight_gradients[position], load4(memory.query + d), sum);
            put_key_gradient(position, d, sum);
        }
        if (p.kind != DOT) return;
        // The query was read by all threads before it is overwritten.
        __syncthreads();
        sum_keys(memory.weight_gradients, [&](u32 i, float4 sum) { store4(memory.query + i * VECTOR, sum); });
        add_to_query(memory.query);
    }

    // Clears the sums of weight gradients.
    __device__ void clear_sums() const {
        if (p.kind != DIN) return;
        const u32 of_matrix = by_four(p.layers[0].outputs) * padded_width(p.width);
        for (u32 i = threadIdx.x; i < of_matrix; i += ATTENTION_THREADS) {
            memory.sums[0][i] = memory.sums[1][i] = memory.sums[2][i] = 0;
        }
        for (u32 i = threadIdx.x; i < p.parameters - p.layers[0].bias; i += ATTENTION_THREADS) memory.others[i] = 0;
    }

    __device__ void write_sums() const {
        if (p.kind != DIN) return;
        __syncthreads();
        const UnitLayer layer = p.layers[0];
        const u32 width = p.width;
        float* const parts = p.parts + u64(blockIdx.x) * p.parameters;
        for (u32 i = threadIdx.x; i < layer.outputs * width; i += ATTENTION_THREADS) {
            const u32 output = i / width, d = i % width, at = output * padded_width(width) + d;
            float* const row = parts + layer.weights + output * layer.inputs + d;
            row[0] = memory.sums[2][at];
            row[width] = memory.sums[0][at];
            row[2 * width] = memory.sums[2][at] - memory.sums[0][at];
            row[3 * width] = memory.sums[1][at];
        }
        for (u32 i = threadIdx.x; i < p.parameters - layer.bias; i += ATTENTION_THREADS) {
            parts[layer.bias + i] = memory.others[i];
        }
    }
};

__device__ inline float* memory_of_block(const Attention& p) {
    extern __shared__ float4 shared[];
    return p.memory != nullptr ? p.memory + u64(blockIdx.x) * p.memory_floats : reinterpret_cast<float*>(shared);
}

// Grid: any number of blocks.
template <class T>
__device__ inline void attend(const Attention& p) {
    Attending<T> at(p, memory_of_block(p));
    for (u32 sample = blockIdx.x; sample < p.samples; sample += gridDim.x) {
        at.enter(sample, false);
        if (p.kind == DIN && at.length > 0) {
            at.make_matrix();
            for (u32 first = 0; first < at.length; first += CHUNK) {
                at.forward_chunk(first, min(CHUNK, at.length - first));
            }
        } else {
            at.plain_weights();
        }
        const auto put = [&](u32 i, float4 sum) { store4(at.row(p.vectors) + p.places[i].sum, sum); };
        at.sum_keys(at.memory.weights, put);
    }
}

// Grid: one block per piece of the partial sums.
template <class T>
__device__ inline void attend_backward(const Attention& p) {
    Attending<T> at(p, memory_of_block(p));
    at.clear_sums();
    for (u32 sample = blockIdx.x; sample < p.samples; sample += gridDim.x) {
        at.enter(sample, true);
        if (at.length == 0) continue;
        if (p.kind == DIN) {
            at.backward_unit();
        } else {
            at.backward_plain();
        }
    }
    at.write_sums();
    if (at.wrong) atomicOr(&p.guard->found, WRONG_VECTORS);
}

#define KERNELS(NAME, T)                                                                  \
    extern "C" __global__ void __launch_bounds__(ATTENTION_THREADS)                       \
        attention_##NAME(const __grid_constant__ Attention p) {                           \
        attend<T>(p);                                                                     \
    }                                                                                     \
    extern "C" __global__ void __launch_bounds__(ATTENTION_THREADS)                       \
        attention_gradient_##NAME(const __grid_constant__ Attention p) {                  \
        attend_backward<T>(p);                                                            \
    }

KERNELS(f32, float)
KERNELS(bf16, bf16)
KERNELS(f16, f16)
