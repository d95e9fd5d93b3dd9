// Attention by an activation unit with one hidden layer, in bf16: products by tensor cores. See `attention.cu` for the
// formula, whose form this has, and for the bytes that are moved.
//
// A block takes a sample at a time. It makes the sample's matrix M in bf16, in shared memory beside the keys of up to
// CHUNK positions. Each warp multiplies sixteen positions by M, keeps the outputs in registers and makes the gradients
// with respect to them, delta. For dM = delta^T keys each warp takes eight or sixteen columns of all outputs, and keeps
// the sums over samples of dM, of dM diag(q) and of dc q in registers; dc is the product of delta^T and a column of
// ones beside the keys. At last delta M gives the gradients with respect to keys. The unit's weights stay in shared
// memory, in the order in which threads use them.
//
// M and delta are rounded to bf16; all else is f32.
//
// A step of a sample waits for the one before, so what the next sample needs is fetched early: its offsets, query and
// gradient into registers, and its keys into the L2 cache; the own keys are copied while M is made.
//
// 16384 samples of 50 positions with keys of 64 elements and 40 hidden outputs take 104 us forward and 287 us backward
// (H200); 66 us in all is the time of their bytes. Registers limit the backward pass to three blocks per
// multiprocessor, whose warps wait for each other in half of the cycles: before keys were fetched early it took 423 us,
// before the width of 64 was known to the compiler 321. Four blocks, with sums in local memory, took 367, and blocks of
// eight warps 395.
#include "attention.cuh"
#include "mma.cuh"

// WARPS of a block, and the most they take: HIGH times sixteen hidden outputs, WIDE times eight columns of keys each.
// WIDTH is the elements of a key; if it is 0, the parameters say.
template <u32 WARPS, u32 HIGH, u32 WIDE, u32 WIDTH>
struct AttentionTiles {
    static constexpr u32 THREADS = WARPS * WARP;
    // Positions whose keys are in shared memory.
    static constexpr u32 CHUNK = WARPS * EDGE;
    static constexpr u32 OUTPUTS = HIGH * EDGE;
    // Elements from one position's gradients to the next.
    static constexpr u32 DELTAS = OUTPUTS + PIECE;

    const Attention& p;
    const UnitLayer first, last;
    u32 width = WIDTH;
    const u32 lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    // [part][thread]: two elements each of Wq, Wk, Wd and Wp.
    uint4* fragments;
    // [OUTPUTS], then the gradient with respect to the sum, and seven rows that do not matter.
    bf16* matrix;
    bf16* keys;
    bf16* deltas;
    // With respect to the sum.
    float* gradient;
    // [warp][OUTPUTS]
    float* constants;
    float* constant;
    float* out;
    float* constant_gradient;
    // [CHUNK]
    float* weights;
    // Gradients with respect to the query, or sums of slices of positions.
    float* sums;
    // Of this thread's elements of a query.
    u32 query_at[WIDE];
    // Of this thread's four elements of a key, if it has some.
    KeyPlace place = {};
    u32 sample = 0;
    u32 begin = 0;
    u32 length = 0;
    // Of the sample that comes next.
    struct Next {
        u32 begin = 0;
        u32 length = 0;
        u32 query[WIDE] = {};
        uint2 gradient = {};
    } next;
    bool wrong = false;

    __device__ AttentionTiles(const Attention& parameters, float4* memory)
        : p(parameters), first(parameters.layers[0]), last(parameters.layers[1]) {
        if constexpr (WIDTH == 0) width = p.width;
        fragments = reinterpret_cast<uint4*>(memory);
        matrix = reinterpret_cast<bf16*>(fragments + 2 * HIGH * WIDE * THREADS);
        keys = matrix + (OUTPUTS + PIECE) * stride();
        gradient = reinterpret_cast<float*>(keys + CHUNK * stride());
        constants = gradient + width;
        constant = constants + WARPS * OUTPUTS;
        out = constant + OUTPUTS;
        constant_gradient = out + OUTPUTS;
        weights = constant_gradient + OUTPUTS;
        sums = weights + CHUNK;
        // Only the backward pass has room for these.
        deltas = reinterpret_cast<bf16*>(sums + max(2 * THREADS, width));
        if (has_place()) place = p.places[threadIdx.x];
#pragma unroll
        for (u32 wide = 0; wide < WIDE; wide++) {
            const u32 column = column_of(wide);
            query_at[wide] = column < width ? p.places[column / VECTOR].query + column % VECTOR : 0;
        }
        const bf16* const unit = static_cast<const bf16*>(p.weights);
#pragma unroll
        for (u32 part = 0; part < 2 * HIGH * WIDE; part++) {
            const u32 output = output_of(part / 2 / WIDE, part % 2), column = column_of(part / 2 % WIDE);
            uint4 four = make_uint4(0, 0, 0, 0);
            if (output < first.outputs && column < width) {
                const bf16* const row = unit + first.weights + output * first.inputs + column;
                four.x = *reinterpret_cast<const u32*>(row);
                four.y = *reinterpret_cast<const u32*>(row + width);
                four.z = *reinterpret_cast<const u32*>(row + 2 * width);
                four.w = *reinterpret_cast<const u32*>(row + 3 * width);
            }
            fragments[fragment(part / 2 / WIDE, part / 2 % WIDE, part % 2)] = four;
        }
        for (u32 output = threadIdx.x; output < OUTPUTS; output += THREADS) {
            out[output] = output < first.outputs ? load(unit + last.weights + output) : 0;
        }
    }

    // Elements from one row of M, or key, to the next: eight more, so that reads use all banks. Behind a key is 1.
    __device__ u32 stride() const { return width + PIECE; }
    __device__ bool has_place() const { return threadIdx.x < width / VECTOR; }
    // This thread's piece of eight elements of keys: its row, of `piece_rows` at a time, and its column.
    __device__ u32 pieces() const { return width / PIECE; }
    __device__ u32 piece_rows() const { return THREADS / pieces(); }
    __device__ u32 piece_row() const { return threadIdx.x / pieces(); }
    __device__ u32 piece_column() const { return threadIdx.x % pieces() * PIECE; }

    // The output and the column of this thread's elements of a tile.
    __device__ u32 output_of(u32 tile, u32 half) const { return tile * EDGE + half * PIECE + lane / 4; }
    __device__ u32 column_of(u32 tile) const { return (warp * WIDE + tile) * PIECE + lane % 4 * 2; }
    __device__ u32 fragment(u32 high, u32 wide, u32 half) const {
        return ((high * WIDE + wide) * 2 + half) * THREADS + threadIdx.x;
    }

    __device__ static float2 two(u32 packed) {
        return __bfloat1622float2(reinterpret_cast<const __nv_bfloat162&>(packed));
    }

    __device__ bf16* row(void* rows) const { return static_cast<bf16*>(rows) + u64(sample) * p.stride; }

    // Fetches what a sample needs first.
    template <bool BACKWARD>
    __device__ void fetch(u32 number) {
        next = {};
        if (number >= min(p.samples, *p.samples_count)) return;
        next.begin = p.offsets[number];
        next.length = p.offsets[number + 1] - next.begin;
        const bf16* const vectors = static_cast<const bf16*>(p.vectors) + u64(number) * p.stride;
#pragma unroll
        for (u32 wide = 0; wide < WIDE; wide++) {
            if (column_of(wide) < width) next.query[wide] = *reinterpret_cast<const u32*>(vectors + query_at[wide]);
        }
        if constexpr (BACKWARD) {
            const bf16* const gradients = static_cast<const bf16*>(p.gradients) + u64(number) * p.stride;
            if (has_place()) {
                next.gradient = *reinterpret_cast<const uint2*>(gradients + place.sum);
                prefetch(gradients + place.query);
            }
        }
    }

    // Fetches the keys of the next sample into the L2 cache.
    __device__ void fetch_keys() const {
        constexpr u32 LINE = 128 / sizeof(bf16);
        const bf16* const from = static_cast<const bf16*>(p.keys) + u64(next.begin) * width;
        const u32 elements = min(next.length, CHUNK) * width;
        for (u32 at = threadIdx.x * LINE; at < elements; at += THREADS * LINE) prefetch(from + at);
    }

    __device__ static void prefetch(const bf16* address) {
        asm volatile("prefetch.global.L2 [%0];" ::"l"(address));
    }

    // Goes to the sample that was fetched, and returns this thread's elements of the query. Keys and matrix of the one
    // before are free.
    __device__ void enter(u32 number, float2 (&query)[WIDE]) {
        __syncthreads();
        sample = number;
        begin = next.begin;
        length = next.length;
#pragma unroll
        for (u32 wide = 0; wide < WIDE; wide++) query[wide] = two(next.query[wide]);
    }

    // Writes the sample's matrix, and what this warp's columns add to its constant.
    __device__ void make_matrix(const float2 (&query)[WIDE]) const {
#pragma unroll
        for (u32 high = 0; high < HIGH; high++) {
#pragma unroll
            for (u32 half = 0; half < 2; half++) {
                const u32 output = output_of(high, half);
                float sum = 0;
#pragma unroll
                for (u32 wide = 0; wide < WIDE; wide++) {
                    const uint4 four = fragments[fragment(high, wide, half)];
                    const float2 of_query = two(four.x), of_key = two(four.y), difference = two(four.z);
                    const float2 product = two(four.w), q = query[wide];
                    const u32 column = column_of(wide);
                    const float2 element = make_float2(fmaf(product.x, q.x, of_key.x - difference.x),
                                                       fmaf(product.y, q.y, of_key.y - difference.y));
                    if (column < width) store2(matrix + output * stride() + column, element);
                    sum = fmaf(of_query.x + difference.x, q.x, fmaf(of_query.y + difference.y, q.y, sum));
                }
                sum += __shfl_xor_sync(ALL_LANES, sum, 1);
                sum += __shfl_xor_sync(ALL_LANES, sum, 2);
                if (lane % 4 == 0) constants[warp * OUTPUTS + output] = sum;
            }
        }
    }

    // Starts to copy the keys of `count` positions from `at` on, with zeros up to a multiple of 32, and 1 behind each
    // of the former.
    __device__ void read_keys(u32 at, u32 count) const {
        const u32 filled = rounded_up(count, 2 * EDGE);
        const bf16* const from = static_cast<const bf16*>(p.keys) + u64(begin + at) * width + piece_column();
        for (u32 position = piece_row(); position < filled && piece_row() < piece_rows(); position += piece_rows()) {
            // Of rows after the last position no byte is read.
            const u32 row = min(position, count - 1), bytes = position < count ? 16 : 0;
            asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(
                             shared_address(keys + position * stride() + piece_column())),
                         "l"(from + u64(row) * width), "r"(bytes)
                         : "memory");
        }
        constexpr u32 ONE = 0x3f80;
        for (u32 position = threadIdx.x; position < filled; position += THREADS) {
            const u32 one = position < count ? ONE : 0;
            *reinterpret_cast<uint4*>(keys + position * stride() + width) = make_uint4(one, 0, 0, 0);
        }
    }

    // Waits until the keys are there, for all threads.
    __device__ static void keys_read() {
        asm volatile("cp.async.wait_all;" ::: "memory");
        __syncthreads();
    }

    // Completes the sample's constant. The next barrier must come before it is read.
    __device__ void sum_constant() const {
        for (u32 output = threadIdx.x; output < OUTPUTS; output += THREADS) {
            const bf16* const bias = static_cast<const bf16*>(p.weights) + first.bias;
            float sum = output < first.outputs ? load(bias + output) : 0;
#pragma unroll
            for (u32 other = 0; other < WARPS; other++) sum += constants[other * OUTPUTS + output];
            constant[output] = sum;
        }
    }

    // Multiplies this warp's keys by the matrix. In the backward pass, also returns the products of the lane's two
    // positions with the gradient with respect to the sum.
    template <bool BACKWARD>
    __device__ float2 multiply(float (&products)[HIGH][2][4]) const {
        float of_gradient[4] = {};
#pragma unroll 4
        for (u32 depth = 0; depth < width; depth += EDGE) {
            u32 left[4];
            load_rows(left, keys + warp * EDGE * stride() + depth, stride());
            if constexpr (BACKWARD) {
                u32 low, high;
                load_eight_rows(low, high, matrix + OUTPUTS * stride() + depth);
                multiply_add(keys, of_gradient, left, low, high);
            }
#pragma unroll
            for (u32 high = 0; high < HIGH; high++) {
                u32 right[4];
                load_rows(right, matrix + high * EDGE * stride() + depth, stride());
                multiply_add(matrix, products[high][0], left, right[0], right[2]);
                multiply_add(matrix, products[high][1], left, right[1], right[3]);
            }
        }
        // The product with the first of the rows is in the first lane of each quad.
        return make_float2(__shfl_sync(ALL_LANES, of_gradient[0], lane & ~3u),
                           __shfl_sync(ALL_LANES, of_gradient[2], lane & ~3u));
    }

    // Eight rows of sixteen elements, as the right factor, read as columns.
    __device__ void load_eight_rows(u32& low, u32& high, const bf16* from) const {
        const u32 address = shared_address(from + lane % PIECE * stride() + lane / PIECE % 2 * PIECE);
        asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
                     : "=r"(low), "=r"(high)
                     : "r"(address)
                     : "memory");
    }

    __device__ static float over_quad(float value) {
        value += __shfl_xor_sync(ALL_LANES, value, 1);
        return value + __shfl_xor_sync(ALL_LANES, value, 2);
    }

    // The weights of the two positions of which this lane has products. Adds the constant to those, and takes them
    // through the ReLU.
    __device__ float2 finish(float (&products)[HIGH][2][4]) const {
        float2 weight = make_float2(0, 0);
#pragma unroll
        for (u32 high = 0; high < HIGH; high++) {
#pragma unroll
            for (u32 half = 0; half < 2; half++) {
                const u32 output = high * EDGE + half * PIECE + lane % 4 * 2;
                const float2 add = *reinterpret_cast<const float2*>(constant + output);
                const float2 by = *reinterpret_cast<const float2*>(out + output);
                float(&four)[4] = products[high][half];
                four[0] = fmaxf(four[0] + add.x, 0), four[1] = fmaxf(four[1] + add.y, 0);
                four[2] = fmaxf(four[2] + add.x, 0), four[3] = fmaxf(four[3] + add.y, 0);
                weight.x = fmaf(four[0], by.x, fmaf(four[1], by.y, weight.x));
                weight.y = fmaf(four[2], by.x, fmaf(four[3], by.y, weight.y));
            }
        }
        const float bias = load(static_cast<const bf16*>(p.weights) + last.bias);
        return make_float2(over_quad(weight.x) + bias, over_quad(weight.y) + bias);
    }

    __device__ bool takes(u32 count) const { return warp * EDGE < rounded_up(count, 2 * EDGE); }

    __device__ void forward(u32 number) {
        float2 query[WIDE];
        enter(number, query);
        if (length > 0) {
            read_keys(0, min(CHUNK, length));
            make_matrix(query);
        }
        fetch<false>(number + gridDim.x);
        const u32 pairs = width / 2, slices = THREADS / pairs, pair = threadIdx.x % pairs, slice = threadIdx.x / pairs;
        float2 sum = make_float2(0, 0);
        for (u32 at = 0; at < length; at += CHUNK) {
            const u32 count = min(CHUNK, length - at);
            if (at > 0) {
                __syncthreads();
                read_keys(at, count);
            }
            keys_read();
            if (at == 0) {
                sum_constant();
                fetch_keys();
            }
            float products[HIGH][2][4] = {};
            if (takes(count)) multiply<false>(products);
            __syncthreads();
            if (takes(count)) {
                const float2 weight = finish(products);
                if (lane % 4 == 0) {
                    weights[warp * EDGE + lane / 4] = weight.x;
                    weights[warp * EDGE + PIECE + lane / 4] = weight.y;
                }
            }
            __syncthreads();
            for (u32 position = slice; position < count && slice < slices; position += slices) {
                const float2 key = load2(keys + position * stride() + pair * 2);
                sum.x = fmaf(weights[position], key.x, sum.x);
                sum.y = fmaf(weights[position], key.y, sum.y);
            }
        }
        if (slice < slices) *reinterpret_cast<float2*>(sums + slice * width + pair * 2) = sum;
        __syncthreads();
        if (has_place()) {
            float4 all = make_float4(0, 0, 0, 0);
            for (u32 other = 0; other < slices; other++) add(all, load4(sums + other * width + threadIdx.x * VECTOR));
            store4(row(p.vectors) + place.sum, all);
        }
    }

    // What a thread sums over the samples of its block.
    struct Sums {
        // Of dM, of dM diag(q) and of dc q.
        float matrix[HIGH][WIDE][4] = {}, by_query[HIGH][WIDE][4] = {}, of_constant[HIGH][WIDE][4] = {};
        // Of the last layer's W and b.
        float out[HIGH][2][2] = {}, out_bias = 0;
        // Of dc, of one output.
        float bias = 0;
    };

    __device__ void backward(u32 number, Sums& all) {
        float2 query[WIDE];
        enter(number, query);
        if (length == 0) {
            fetch<true>(number + gridDim.x);
            return;
        }
        read_keys(0, min(CHUNK, length));
        if (has_place()) {
            store4(gradient + threadIdx.x * VECTOR, unpacked(next.gradient));
            *reinterpret_cast<uint2*>(matrix + OUTPUTS * stride() + threadIdx.x * VECTOR) = next.gradient;
        }
        make_matrix(query);
        fetch<true>(number + gridDim.x);
        float d_matrix[HIGH][WIDE][4] = {}, d_constant[(HIGH + WARPS - 1) / WARPS][4] = {};
        for (u32 at = 0; at < length; at += CHUNK) {
            const u32 count = min(CHUNK, length - at), filled = rounded_up(count, 2 * EDGE);
            if (at > 0) {
                __syncthreads();
                read_keys(at, count);
            }
            keys_read();
            if (at == 0) {
                sum_constant();
                fetch_keys();
            }
            float products[HIGH][2][4] = {};
            float2 of_gradient = make_float2(0, 0), weight = make_float2(0, 0);
            if (takes(count)) of_gradient = multiply<true>(products);
            __syncthreads();
            if (takes(count)) {
                weight = finish(products);
                if (lane % 4 == 0) all.out_bias += of_gradient.x + of_gradient.y;
                make_deltas(products, of_gradient, all);
            }
            __syncthreads();
            multiply_keys(filled, d_matrix, d_constant);
            // The gradients with respect to keys replace the keys.
            __syncthreads();
            if (takes(count)) make_key_gradients(count, weight);
            __syncthreads();
            put_key_gradients(at, count);
        }
        leave(query, d_matrix, d_constant, all);
    }

    // From outputs and the gradients with respect to the weights of positions to those with respect to the outputs.
    __device__ void make_deltas(const float (&products)[HIGH][2][4], float2 of_gradient, Sums& all) const {
#pragma unroll
        for (u32 high = 0; high < HIGH; high++) {
#pragma unroll
            for (u32 half = 0; half < 2; half++) {
                const u32 output = high * EDGE + half * PIECE + lane % 4 * 2;
                const float2 by = *reinterpret_cast<const float2*>(out + output);
                const float(&four)[4] = products[high][half];
                float(&sum)[2] = all.out[high][half];
                sum[0] = fmaf(four[0], of_gradient.x, fmaf(four[2], of_gradient.y, sum[0]));
                sum[1] = fmaf(four[1], of_gradient.x, fmaf(four[3], of_gradient.y, sum[1]));
                bf16* const to = deltas + (warp * EDGE + lane / 4) * DELTAS + output;
                store2(to, make_float2(four[0] > 0 ? of_gradient.x * by.x : 0, four[1] > 0 ? of_gradient.x * by.y : 0));
                store2(to + PIECE * DELTAS,
                       make_float2(four[2] > 0 ? of_gradient.y * by.x : 0, four[3] > 0 ? of_gradient.y * by.y : 0));
            }
        }
    }

    // Adds delta^T times the keys, of this warp's columns, and of the ones.
    __device__ void multiply_keys(u32 filled, float (&d_matrix)[HIGH][WIDE][4],
                                  float (&d_constant)[(HIGH + WARPS - 1) / WARPS][4]) const {
        for (u32 depth = 0; depth < filled; depth += 2 * EDGE) {
            u32 right[WIDE + 1][4];
#pragma unroll
            for (u32 wide = 0; wide <= WIDE; wide++) {
                const u32 column = wide == WIDE ? width : min((warp * WIDE + wide) * PIECE, width);
                load_columns(right[wide], keys + (depth + lane) * stride() + column);
            }
#pragma unroll
            for (u32 high = 0; high < HIGH; high++) {
#pragma unroll
                for (u32 step = 0; step < 2; step++) {
                    u32 left[4];
                    const u32 position = depth + step * EDGE + lane / EDGE * PIECE + lane % PIECE;
                    load_columns(left, deltas + position * DELTAS + high * EDGE + lane / PIECE % 2 * PIECE);
#pragma unroll
                    for (u32 wide = 0; wide < WIDE; wide++) {
                        const u32(&by)[4] = right[wide];
                        multiply_add(keys, d_matrix[high][wide], left, by[2 * step], by[2 * step + 1]);
                    }
                    if (high % WARPS == warp) {
                        const u32(&ones)[4] = right[WIDE];
                        multiply_add(keys, d_constant[high / WARPS], left, ones[2 * step], ones[2 * step + 1]);
                    }
                }
            }
        }
    }

    // Multiplies this warp's deltas by the matrix, and adds what comes through the sum.
    __device__ void make_key_gradients(u32 count, float2 weight) {
        u32 left[HIGH][4];
#pragma unroll
        for (u32 high = 0; high < HIGH; high++) {
            load_rows(left[high], deltas + warp * EDGE * DELTAS + high * EDGE, DELTAS);
        }
        const u32 position = warp * EDGE + lane / 4;
        // Rows after the last position become zeros.
        if (position >= count) weight.x = 0;
        if (position + PIECE >= count) weight.y = 0;
#pragma unroll 4
        for (u32 column = 0; column < width; column += EDGE) {
            float products[2][4] = {};
#pragma unroll
            for (u32 high = 0; high < HIGH; high++) {
                u32 right[4];
                load_columns(right, matrix + (high * EDGE + lane % EDGE) * stride() + column + lane / EDGE * PIECE);
                multiply_add(keys, products[0], left[high], right[0], right[1]);
                multiply_add(keys, products[1], left[high], right[2], right[3]);
            }
#pragma unroll
            for (u32 half = 0; half < 2; half++) {
                const u32 own = column + half * PIECE + lane % 4 * 2;
                const float2 g = *reinterpret_cast<const float2*>(gradient + own);
                const float(&four)[4] = products[half];
                const float2 low = make_float2(fmaf(weight.x, g.x, four[0]), fmaf(weight.x, g.y, four[1]));
                const float2 high = make_float2(fmaf(weight.y, g.x, four[2]), fmaf(weight.y, g.y, four[3]));
                bf16* const to = keys + position * stride() + own;
                wrong |= !(holds(to, low.x) && holds(to, low.y) && holds(to, high.x) && holds(to, high.y));
                store2(to, low);
                store2(to + PIECE * stride(), high);
            }
        }
    }

    // Copies the gradients with respect to keys to where they belong.
    __device__ void put_key_gradients(u32 at, u32 count) const {
        bf16* const to = static_cast<bf16*>(p.key_gradients) + u64(begin + at) * width + piece_column();
        for (u32 position = piece_row(); position < count && piece_row() < piece_rows(); position += piece_rows()) {
            const uint4 piece = *reinterpret_cast<const uint4*>(keys + position * stride() + piece_column());
            *reinterpret_cast<uint4*>(to + u64(position) * width) = piece;
        }
    }

    // Adds a sample's gradients to the sums, and those with respect to the query to the vectors'.
    __device__ void leave(const float2 (&query)[WIDE], const float (&d_matrix)[HIGH][WIDE][4],
                          const float (&d_constant)[(HIGH + WARPS - 1) / WARPS][4], Sums& all) {
        if (lane % 4 == 0) {
#pragma unroll
            for (u32 high = 0; high < HIGH; high++) {
                if (high % WARPS != warp) continue;
                constant_gradient[output_of(high, 0)] = d_constant[high / WARPS][0];
                constant_gradient[output_of(high, 1)] = d_constant[high / WARPS][2];
            }
        }
        __syncthreads();
        if (threadIdx.x < OUTPUTS) all.bias += constant_gradient[threadIdx.x];
        float2 d_query[WIDE] = {};
#pragma unroll
        for (u32 high = 0; high < HIGH; high++) {
#pragma unroll
            for (u32 half = 0; half < 2; half++) {
                const float of_constant = constant_gradient[output_of(high, half)];
#pragma unroll
                for (u32 wide = 0; wide < WIDE; wide++) {
                    const uint4 four = fragments[fragment(high, wide, half)];
                    const float2 of_query = two(four.x), difference = two(four.z), product = two(four.w);
                    const float x = d_matrix[high][wide][2 * half], y = d_matrix[high][wide][2 * half + 1];
                    const float2 q = query[wide];
                    float2& sum = d_query[wide];
                    sum.x = fmaf(of_query.x + difference.x, of_constant, fmaf(product.x, x, sum.x));
                    sum.y = fmaf(of_query.y + difference.y, of_constant, fmaf(product.y, y, sum.y));
                    all.matrix[high][wide][2 * half] += x;
                    all.matrix[high][wide][2 * half + 1] += y;
                    float* const by_query = all.by_query[high][wide] + 2 * half;
                    by_query[0] = fmaf(x, q.x, by_query[0]), by_query[1] = fmaf(y, q.y, by_query[1]);
                    float* const of = all.of_constant[high][wide] + 2 * half;
                    of[0] = fmaf(of_constant, q.x, of[0]), of[1] = fmaf(of_constant, q.y, of[1]);
                }
            }
        }
#pragma unroll
        for (u32 wide = 0; wide < WIDE; wide++) {
            float2& sum = d_query[wide];
#pragma unroll
            for (u32 distance = 4; distance < WARP; distance *= 2) {
                sum.x += __shfl_xor_sync(ALL_LANES, sum.x, distance);
                sum.y += __shfl_xor_sync(ALL_LANES, sum.y, distance);
            }
            const u32 column = column_of(wide);
            if (lane < 4 && column < width) *reinterpret_cast<float2*>(sums + column) = sum;
        }
        __syncthreads();
        if (place.leads == 0) return;
        bf16* const to = row(p.gradients) + place.query;
        float4 sum = load4(to);
        add(sum, load4(sums + threadIdx.x * VECTOR));
        for (u32 other = place.next; other > 0; other = p.places[other - 1].next) {
            add(sum, load4(sums + (other - 1) * VECTOR));
        }
        wrong |= !holds4(to, sum);
        store4(to, sum);
    }

    // Writes the sums over the block's samples.
    __device__ void write(const Sums& all) const {
        float* const parts = p.parts + u64(blockIdx.x) * p.parameters;
#pragma unroll
        for (u32 part = 0; part < 2 * HIGH * WIDE; part++) {
            const u32 high = part / 2 / WIDE, wide = part / 2 % WIDE, half = part % 2;
            const u32 output = output_of(high, half), column = column_of(wide);
            if (output >= first.outputs || column >= width) continue;
            const float* const matrix_sums = all.matrix[high][wide] + 2 * half;
            const float* const of_constant = all.of_constant[high][wide] + 2 * half;
            const float* const by_query = all.by_query[high][wide] + 2 * half;
            float* const row = parts + first.weights + output * first.inputs + column;
#pragma unroll
            for (u32 k = 0; k < 2; k++) {
                row[k] = of_constant[k];
                row[width + k] = matrix_sums[k];
                row[2 * width + k] = of_constant[k] - matrix_sums[k];
                row[3 * width + k] = by_query[k];
            }
        }
        if (threadIdx.x < first.outputs) parts[first.bias + threadIdx.x] = all.bias;
        // [warp][OUTPUTS], then one per warp.
        __syncthreads();
#pragma unroll
        for (u32 high = 0; high < HIGH; high++) {
#pragma unroll
            for (u32 i = 0; i < 4; i++) {
                float sum = all.out[high][i / 2][i % 2];
#pragma unroll
                for (u32 distance = 4; distance < WARP; distance *= 2) sum += __shfl_xor_sync(ALL_LANES, sum, distance);
                const u32 output = high * EDGE + i / 2 * PIECE + lane % 4 * 2 + i % 2;
                if (lane < 4) constants[warp * OUTPUTS + output] = sum;
            }
        }
        float bias = all.out_bias;
#pragma unroll
        for (u32 distance = 4; distance < WARP; distance *= 2) bias += __shfl_xor_sync(ALL_LANES, bias, distance);
        if (lane == 0) weights[warp] = bias;
        __syncthreads();
        if (threadIdx.x <= first.outputs) {
            const bool of_bias = threadIdx.x == first.outputs;
            float sum = 0;
            for (u32 other = 0; other < WARPS; other++) {
                sum += of_bias ? weights[other] : constants[other * OUTPUTS + threadIdx.x];
            }
            parts[of_bias ? last.bias : last.weights + threadIdx.x] = sum;
        }
    }
};

// Grid: any number of blocks.
template <u32 WARPS, u32 HIGH, u32 WIDE, u32 WIDTH>
__device__ inline void attend_by_tiles(const Attention& p) {
    extern __shared__ float4 memory[];
    AttentionTiles<WARPS, HIGH, WIDE, WIDTH> tiles(p, memory);
    tiles.template fetch<false>(blockIdx.x);
    for (u32 sample = blockIdx.x; sample < p.samples; sample += gridDim.x) tiles.forward(sample);
}

// Grid: one block per piece of the partial sums.
template <u32 WARPS, u32 HIGH, u32 WIDE, u32 WIDTH>
__device__ inline void attend_backward_by_tiles(const Attention& p) {
    extern __shared__ float4 memory[];
    AttentionTiles<WARPS, HIGH, WIDE, WIDTH> tiles(p, memory);
    typename AttentionTiles<WARPS, HIGH, WIDE, WIDTH>::Sums all;
    tiles.template fetch<true>(blockIdx.x);
    for (u32 sample = blockIdx.x; sample < p.samples; sample += gridDim.x) tiles.backward(sample, all);
    tiles.write(all);
    if (tiles.wrong) atomicOr(&p.guard->found, WRONG_VECTORS);
}

#define KERNELS(NAME, WARPS, HIGH, WIDE, WIDTH, BLOCKS, BLOCKS_BACKWARD)                         \
    extern "C" __global__ void __launch_bounds__(WARPS* WARP, BLOCKS)                            \
        attention_tiles_##NAME(const __grid_constant__ Attention p) {                            \
        attend_by_tiles<WARPS, HIGH, WIDE, WIDTH>(p);                                            \
    }                                                                                            \
    extern "C" __global__ void __launch_bounds__(WARPS* WARP, BLOCKS_BACKWARD)                   \
        attention_gradient_tiles_##NAME(const __grid_constant__ Attention p) {                   \
        attend_backward_by_tiles<WARPS, HIGH, WIDE, WIDTH>(p);                                   \
    }

// By hidden outputs and elements of a key: up to 48 and exactly 64; up to 48 and 64, 96 and 64, 48 and 128.
KERNELS(48_of_64, 4, 3, 2, 64, 5, 3)
KERNELS(48x64, 4, 3, 2, 0, 5, 3)
KERNELS(96x64, 8, 6, 1, 0, 2, 1)
KERNELS(48x128, 8, 3, 2, 0, 2, 1)
