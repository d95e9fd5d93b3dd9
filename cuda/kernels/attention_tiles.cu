// Attention by an activation unit with one hidden layer, in bf16: products by tensor cores. See `attention.cu` for the
// formula, whose form this has, and for the bytes that are moved.
//
// A block takes a sample at a time, up to CHUNK positions of it at once. Between two barriers each warp works on its
// own sixteen positions alone:
//
//     keys M + c -> outputs -> delta -> delta M^T, the gradients with respect to keys
//
// The outputs of one product are the left factor of the next, so they stay in registers. After the second barrier each
// warp takes its own sixteen columns of keys and all positions: keys^T delta is dM, and ones^T delta is dc. Then it
// adds up the gradients of the unit's weights and makes the next sample's M and c. The keys of the next chunk are
// copied meanwhile.
//
// Matrices of weights have a row for each column of keys, as M does: [column][output]. They stay in shared memory.
//
// Wk - Wd, Wq + Wd, M and delta are rounded to bf16, and the weights of positions to the sum of two bf16; all else is
// f32.
//
// 16384 samples of 50 positions with keys of 64 elements and 40 hidden outputs take 84 us forward and 187 us backward
// (H200); docs/measurements/one-gpu.md says what limits them.
#include "attention.cuh"
#include "mma.cuh"

// Four tiles of eight rows of eight elements, in the order of rows. Lane i gives the address of row i % 8 in tile
// i / 8.
__device__ inline void load_straight(u32 (&tiles)[4], const bf16* from) {
    const u32 address = shared_address(from);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(tiles[0]), "=r"(tiles[1]), "=r"(tiles[2]), "=r"(tiles[3])
                 : "r"(address)
                 : "memory");
}

// Starts to copy sixteen bytes to shared memory; without `there`, writes zeros and reads nothing.
__device__ inline void copy_piece(bf16* to, const bf16* from, bool there) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from),
                 "r"(there ? 16 : 0)
                 : "memory");
}

// Stores sixteen bytes. Left to itself, the compiler may store four times four.
__device__ inline void store_piece(bf16* to, const u32 (&piece)[4]) {
    asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(piece[0]), "r"(piece[1]), "r"(piece[2]),
                 "r"(piece[3])
                 : "memory");
}

// As `multiply_add`, with a depth of eight.
__device__ inline void multiply_add(const bf16*, float (&sums)[4], const u32 (&left)[2], u32 right) {
    asm("mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(left[0]), "r"(left[1]), "r"(right));
}

// Keys of up to COLUMNS elements. A warp takes EIGHTS times eight of the hidden outputs, and sixteen columns; there are
// PARTS times as many outputs in all. Keys, vectors and weights are filled up with zeros.
template <bool BACKWARD, u32 COLUMNS, u32 EIGHTS, u32 PARTS>
struct AttentionTiles {
    static constexpr u32 COLUMN_TILES = COLUMNS / EDGE;
    static constexpr u32 WARPS = COLUMN_TILES * PARTS;
    static constexpr u32 THREADS = WARPS * WARP;
    static constexpr u32 ALL_EIGHTS = EIGHTS * PARTS;
    static constexpr u32 OUTPUTS = ALL_EIGHTS * PIECE;
    // Positions whose keys are in shared memory.
    static constexpr u32 CHUNK = WARPS * EDGE;
    // Elements from one row to the next: an odd number of pieces, so that reads of eight rows use all banks.
    static constexpr u32 KEY_STRIDE = COLUMNS + PIECE;
    static constexpr u32 OUTPUT_STRIDE = ALL_EIGHTS % 2 == 0 ? OUTPUTS + PIECE : OUTPUTS;
    // Of a matrix [column][output].
    static constexpr u32 MATRIX = COLUMNS * OUTPUT_STRIDE + COLUMNS / PIECE * EDGE;
    static constexpr u32 SUMS = WARPS * (BACKWARD ? OUTPUTS + 1 : COLUMNS);
    static constexpr u32 NONE = 0xffffffff;

    // A sample with its positions.
    struct Positions {
        u32 sample, begin, length;
    };

    // What a thread sums over the samples of its block.
    struct Sums {
        // Of dM, of dM diag(q) and of dc q: [eight outputs][element of a tile of columns and outputs].
        float matrix[EIGHTS][4] = {}, by_query[EIGHTS][4] = {}, of_constant[EIGHTS][4] = {};
        // Of the last layer's W and b.
        float out[ALL_EIGHTS][2] = {}, out_bias = 0;
    };

    const Attention& p;
    const u32 lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    // Of keys, for copies from and to vectors.
    const u32 own_column = threadIdx.x % COLUMNS;
    const u32 samples_count;
    // Of the last layer.
    const float out_bias;
    // Where a sample's vectors have this thread's element of query and sum; as `KeyPlace::next`.
    u32 query_at = 0, sum_at = 0, next_place = 0;
    // Whether this thread adds up the gradients with respect to its element of the query.
    bool leads = false;
    // [column][output]: Wk - Wd, Wp and Wq + Wd.
    bf16* of_key;
    bf16* of_product;
    bf16* of_query;
    bf16* matrix;
    // [2][CHUNK][KEY_STRIDE]: of this chunk and the next.
    bf16* keys;
    // [2][COLUMNS]: of this sample and the next.
    bf16* query;
    // With respect to the sum.
    bf16* gradient;
    float* constant;
    // [OUTPUTS]: of the first layer.
    float* bias;
    // [OUTPUTS]: W of the last layer.
    float* out;
    // [OUTPUTS]: the sums of dc over the samples of the block.
    float* bias_gradient;
    // Forward: [warp][COLUMNS], of keys. Backward: [part][COLUMNS], gradients with respect to the query.
    float* sums;
    // [CHUNK][OUTPUT_STRIDE]
    bf16* deltas;
    // The sample of the keys that are read, and the next two with positions.
    Positions now = {}, next = {}, after = {};
    // The buffers that are in use.
    u32 key_buffer = 0, query_buffer = 0;
    // The next sample's element of query and gradient.
    bf16 next_query, next_gradient;
    // The sample whose gradients with respect to the query are in `sums`, and to what this thread adds its own.
    u32 unfinished = NONE;
    float d_query_before = 0;
    // The largest magnitudes of gradients with respect to vectors and keys.
    __nv_bfloat162 largest = __floats2bfloat162_rn(0, 0);

    __device__ AttentionTiles(const Attention& parameters, float4* memory)
        : p(parameters),
          samples_count(min(parameters.samples, *parameters.samples_count)),
          out_bias(load(static_cast<const bf16*>(parameters.weights) + parameters.layers[1].bias)) {
        of_key = reinterpret_cast<bf16*>(memory);
        of_product = of_key + MATRIX;
        of_query = of_product + MATRIX;
        matrix = of_query + MATRIX;
        keys = matrix + MATRIX;
        query = keys + 2 * CHUNK * KEY_STRIDE;
        gradient = query + 2 * COLUMNS;
        constant = reinterpret_cast<float*>(gradient + COLUMNS);
        bias = constant + OUTPUTS;
        out = bias + OUTPUTS;
        bias_gradient = out + OUTPUTS;
        sums = bias_gradient + OUTPUTS;
        deltas = reinterpret_cast<bf16*>(sums + rounded_up(SUMS, 4));
        if (own_column < p.width) {
            const KeyPlace place = p.places[own_column / VECTOR];
            query_at = place.query + own_column % VECTOR;
            sum_at = place.sum + own_column % VECTOR;
            leads = place.leads > 0 && threadIdx.x < p.width;
            next_place = place.next;
        }
        // Zeros where keys and vectors have no elements.
        for (u32 i = threadIdx.x; i < 2 * CHUNK * KEY_STRIDE / PIECE; i += THREADS) {
            reinterpret_cast<uint4*>(keys)[i] = make_uint4(0, 0, 0, 0);
        }
        after = positions_of(blockIdx.x);
        go_on();
        now = next;
        query[own_column] = next_query;
        __syncthreads();
        read_keys(0, now.begin, min(CHUNK, now.length));
        read_weights();
        __syncthreads();
        prepare();
        go_on();
    }

    __device__ void read_weights() const {
        const UnitLayer first = p.layers[0], last = p.layers[1];
        const bf16* const unit = static_cast<const bf16*>(p.weights);
        for (u32 eighth = threadIdx.x / COLUMNS; eighth < ALL_EIGHTS; eighth += THREADS / COLUMNS) {
            alignas(16) bf16 k[PIECE], product[PIECE], q[PIECE];
#pragma unroll
            for (u32 i = 0; i < PIECE; i++) {
                const u32 output = eighth * PIECE + i;
                const bool there = output < first.outputs && own_column < p.width;
                const bf16* const row = unit + first.weights + output * first.inputs + own_column;
                const float difference = there ? load(row + 2 * p.width) : 0;
                store(k + i, there ? load(row + p.width) - difference : 0);
                store(q + i, there ? load(row) + difference : 0);
                store(product + i, there ? load(row + 3 * p.width) : 0);
            }
            const u32 at = row_of(own_column) + eighth * PIECE;
            *reinterpret_cast<uint4*>(of_key + at) = *reinterpret_cast<const uint4*>(k);
            *reinterpret_cast<uint4*>(of_product + at) = *reinterpret_cast<const uint4*>(product);
            *reinterpret_cast<uint4*>(of_query + at) = *reinterpret_cast<const uint4*>(q);
        }
        for (u32 output = threadIdx.x; output < OUTPUTS; output += THREADS) {
            const bool there = output < first.outputs;
            bias[output] = there ? load(unit + first.bias + output) : 0;
            out[output] = there ? load(unit + last.weights + output) : 0;
            bias_gradient[output] = 0;
        }
    }

    // Where a row of a matrix [column][output] starts. Every eight rows there are two pieces of padding, so that both
    // eight rows in sequence and the rows that `make_key_gradients` reads use all banks.
    __device__ static u32 row_of(u32 column) { return column * OUTPUT_STRIDE + column / PIECE * EDGE; }

    __device__ static float2 two(u32 packed) {
        return __bfloat1622float2(reinterpret_cast<const __nv_bfloat162&>(packed));
    }

    __device__ static u32 pair(float x, float y) {
        const __nv_bfloat162 packed = __floats2bfloat162_rn(x, y);
        return reinterpret_cast<const u32&>(packed);
    }

    __device__ bf16* row(void* rows, u32 sample) const { return static_cast<bf16*>(rows) + u64(sample) * p.stride; }

    __device__ Positions positions_of(u32 sample) const {
        if (sample >= samples_count) return {sample, 0, 0};
        const u32 begin = p.offsets[sample];
        return {sample, begin, p.offsets[sample + 1] - begin};
    }

    // Finds the next sample of this block with positions, and fetches its vectors. There is none if its length is 0.
    __device__ void go_on() {
        next = after;
        while (next.length == 0 && next.sample < p.samples) {
            if (!BACKWARD && threadIdx.x < p.width) {
                store(row(p.vectors, next.sample) + sum_at, 0.0f);
            }
            next = positions_of(next.sample + gridDim.x);
        }
        after = positions_of(next.sample + gridDim.x);
        next_query = next_gradient = __float2bfloat16_rn(0);
        if (next.length == 0 || own_column >= p.width) return;
        next_query = row(p.vectors, next.sample)[query_at];
        if (BACKWARD) next_gradient = row(p.gradients, next.sample)[sum_at];
    }

    // Starts to copy the keys of `count` positions, with zeros up to a multiple of 32.
    __device__ void read_keys(u32 buffer, u32 begin, u32 count) const {
        constexpr u32 PIECES = COLUMNS / PIECE, ROWS = THREADS / PIECES;
        const u32 column = threadIdx.x % PIECES * PIECE;
        if (column >= p.width || count == 0) return;
        const bf16* const from = static_cast<const bf16*>(p.keys) + u64(begin) * p.width + column;
        bf16* const to = keys + buffer * CHUNK * KEY_STRIDE + column;
#pragma unroll
        for (u32 i = 0; i < CHUNK / ROWS; i++) {
            const u32 position = threadIdx.x / PIECES + i * ROWS;
            if (position >= rounded_up(count, 2 * EDGE)) return;
            // Of rows after the last position no byte is read.
            copy_piece(to + position * KEY_STRIDE, from + min(position, count - 1) * p.width, position < count);
        }
    }

    // This lane's elements of a factor all of whose rows (on the left) or columns (on the right) are these sixteen.
    __device__ uint2 row_pieces(const bf16* sixteen) const {
        const u32* const own = reinterpret_cast<const u32*>(sixteen + lane % 4 * 2);
        return make_uint2(own[0], own[PIECE / 2]);
    }

    // Makes M and c of the sample whose query is in the buffer in use.
    __device__ void prepare() const {
        const bf16* const q = query + query_buffer * COLUMNS;
        const __nv_bfloat162 both = __bfloat162bfloat162(q[own_column]);
        for (u32 eighth = threadIdx.x / COLUMNS; eighth < ALL_EIGHTS; eighth += THREADS / COLUMNS) {
            const u32 at = row_of(own_column) + eighth * PIECE;
            uint4 by_key = *reinterpret_cast<const uint4*>(of_key + at);
            const uint4 by_product = *reinterpret_cast<const uint4*>(of_product + at);
            __nv_bfloat162* const sum = reinterpret_cast<__nv_bfloat162*>(&by_key);
            const __nv_bfloat162* const factor = reinterpret_cast<const __nv_bfloat162*>(&by_product);
#pragma unroll
            for (u32 i = 0; i < 4; i++) sum[i] = __hfma2(factor[i], both, sum[i]);
            *reinterpret_cast<uint4*>(matrix + at) = by_key;
        }
        for (u32 eighth = warp; eighth < ALL_EIGHTS; eighth += WARPS) {
            float products[4] = {};
#pragma unroll
            for (u32 depth = 0; depth < COLUMNS; depth += 2 * EDGE) {
                u32 right[4];
                load_columns(right, of_query + row_of(depth + lane) + eighth * PIECE);
#pragma unroll
                for (u32 step = 0; step < 2; step++) {
                    // All rows are the query.
                    const uint2 two_pairs = row_pieces(q + depth + step * EDGE);
                    const u32 left[4] = {two_pairs.x, two_pairs.x, two_pairs.y, two_pairs.y};
                    multiply_add(q, products, left, right[2 * step], right[2 * step + 1]);
                }
            }
            const u32 output = eighth * PIECE + lane % 4 * 2;
            if (lane >= 4) continue;
            constant[output] = products[0] + bias[output];
            constant[output + 1] = products[1] + bias[output + 1];
        }
        if (BACKWARD && threadIdx.x < COLUMNS) gradient[own_column] = next_gradient;
    }

    // This warp's positions among the keys.
    __device__ const bf16* own_keys() const { return keys + (key_buffer * CHUNK + warp * EDGE) * KEY_STRIDE; }
    __device__ bool takes(u32 count) const { return warp * EDGE < rounded_up(count, 2 * EDGE); }

    // The outputs of this warp's positions. Returns the products of the lane's two positions with the gradient with
    // respect to the sum, in the backward pass.
    __device__ float2 multiply(float (&outputs)[ALL_EIGHTS][4]) const {
        float of_gradient[4] = {};
#pragma unroll
        for (u32 eighth = 0; eighth < ALL_EIGHTS; eighth++) {
            const float2 c = *reinterpret_cast<const float2*>(constant + eighth * PIECE + lane % 4 * 2);
            outputs[eighth][0] = outputs[eighth][2] = c.x;
            outputs[eighth][1] = outputs[eighth][3] = c.y;
        }
#pragma unroll
        for (u32 depth = 0; depth < COLUMNS; depth += 2 * EDGE) {
            u32 left[2][4];
#pragma unroll
            for (u32 step = 0; step < 2; step++) {
                load_rows(left[step], own_keys() + depth + step * EDGE, KEY_STRIDE);
                if constexpr (BACKWARD) {
                    // All columns are the gradient.
                    const uint2 right = row_pieces(gradient + depth + step * EDGE);
                    multiply_add(keys, of_gradient, left[step], right.x, right.y);
                }
            }
#pragma unroll
            for (u32 eighth = 0; eighth < ALL_EIGHTS; eighth++) {
                u32 right[4];
                load_columns(right, matrix + row_of(depth + lane) + eighth * PIECE);
                multiply_add(keys, outputs[eighth], left[0], right[0], right[1]);
                multiply_add(keys, outputs[eighth], left[1], right[2], right[3]);
            }
        }
#pragma unroll
        for (u32 eighth = 0; eighth < ALL_EIGHTS; eighth++) {
#pragma unroll
            for (u32 i = 0; i < 4; i++) outputs[eighth][i] = fmaxf(outputs[eighth][i], 0);
        }
        return make_float2(of_gradient[0], of_gradient[2]);
    }

    __device__ static float over_quad(float value) {
        value += __shfl_xor_sync(ALL_LANES, value, 1);
        return value + __shfl_xor_sync(ALL_LANES, value, 2);
    }

    // The weights of the lane's two positions.
    __device__ float2 weigh(const float (&outputs)[ALL_EIGHTS][4]) const {
        float2 weight = make_float2(0, 0);
#pragma unroll
        for (u32 eighth = 0; eighth < ALL_EIGHTS; eighth++) {
            const float2 by = *reinterpret_cast<const float2*>(out + eighth * PIECE + lane % 4 * 2);
            const float(&four)[4] = outputs[eighth];
            weight.x = fmaf(four[0], by.x, fmaf(four[1], by.y, weight.x));
            weight.y = fmaf(four[2], by.x, fmaf(four[3], by.y, weight.y));
        }
        return make_float2(over_quad(weight.x) + out_bias, over_quad(weight.y) + out_bias);
    }

    // Waits for the keys of a chunk, and starts to copy the next ones. Returns whether this sample has no more.
    __device__ bool enter(u32 at) const {
        asm volatile("cp.async.wait_all;" ::: "memory");
        __syncthreads();
        const bool ends = at + CHUNK >= now.length;
        const u32 begin = ends ? next.begin : now.begin + at + CHUNK;
        read_keys(1 - key_buffer, begin, min(CHUNK, ends ? next.length : now.length - at - CHUNK));
        return ends;
    }

    // Before the second barrier: shows the next sample's query to all warps.
    __device__ void show_query() const { query[(1 - query_buffer) * COLUMNS + own_column] = next_query; }

    // After a chunk: goes to the next sample if this one ends.
    __device__ void turn(bool ends) {
        key_buffer = 1 - key_buffer;
        if (!ends) return;
        query_buffer = 1 - query_buffer;
        now = next;
        prepare();
        go_on();
    }

    __device__ void forward() {
        for (u32 at = 0; now.length > 0;) {
            const u32 count = min(CHUNK, now.length - at);
            const bool ends = enter(at);
            if (takes(count)) sum_keys(at);
            else if (at == 0) {
                for (u32 column = lane; column < COLUMNS; column += WARP) sums[warp * COLUMNS + column] = 0;
            }
            if (ends) show_query();
            __syncthreads();
            if (ends && threadIdx.x < p.width) {
                float all = 0;
#pragma unroll
                for (u32 other = 0; other < WARPS; other++) all += sums[other * COLUMNS + own_column];
                store(row(p.vectors, now.sample) + sum_at, all);
            }
            turn(ends);
            at = ends ? 0 : at + CHUNK;
        }
    }

    // Adds this warp's keys times their weights to its sums.
    __device__ void sum_keys(u32 at) const {
        float outputs[ALL_EIGHTS][4];
        multiply(outputs);
        const float2 weight = weigh(outputs);
        // Of all rows of the left factor, eight have the weights in bf16, and eight what that leaves.
        u32 left[4];
#pragma unroll
        for (u32 half = 0; half < 2; half++) {
            const float own = half == 0 ? weight.x : weight.y;
            const float x = __shfl_sync(ALL_LANES, own, lane % 4 * 8);
            const float y = __shfl_sync(ALL_LANES, own, lane % 4 * 8 + 4);
            left[2 * half] = pair(x, y);
            const float2 rounded = two(left[2 * half]);
            left[2 * half + 1] = pair(x - rounded.x, y - rounded.y);
        }
#pragma unroll
        for (u32 column = 0; column < COLUMNS; column += EDGE) {
            u32 right[4];
            load_columns(right, own_keys() + lane % EDGE * KEY_STRIDE + column + lane / EDGE * PIECE);
#pragma unroll
            for (u32 half = 0; half < 2; half++) {
                float products[4] = {};
                multiply_add(keys, products, left, right[2 * half], right[2 * half + 1]);
                float2* const sum =
                    reinterpret_cast<float2*>(sums + warp * COLUMNS + column + half * PIECE + lane % 4 * 2);
                if (lane >= 4) continue;
                const float2 before = at > 0 ? *sum : make_float2(0, 0);
                *sum = make_float2(before.x + products[0] + products[2], before.y + products[1] + products[3]);
            }
        }
    }

    __device__ void backward(Sums& all) {
        for (u32 at = 0; now.length > 0;) {
            const u32 count = min(CHUNK, now.length - at);
            const bool ends = enter(at);
            if (at == 0) finish();
            if (takes(count)) {
                float outputs[ALL_EIGHTS][4];
                const float2 of_gradient = multiply(outputs);
                const float2 weight = weigh(outputs);
                u32 delta[ALL_EIGHTS][2];
                make_deltas(outputs, of_gradient, delta, all);
                make_key_gradients(at, count, weight, delta);
            }
            if (ends) show_query();
            __syncthreads();
            if (ends && leads) d_query_before = load(row(p.gradients, now.sample) + query_at);
            add_weight_gradients(at, count, all);
            if (ends) unfinished = now.sample;
            turn(ends);
            at = ends ? 0 : at + CHUNK;
        }
        __syncthreads();
        finish();
        __syncthreads();
    }

    // From outputs and the gradients with respect to the weights of positions to those with respect to the outputs, as
    // a left factor and in shared memory.
    __device__ void make_deltas(const float (&outputs)[ALL_EIGHTS][4], float2 of_gradient,
                                u32 (&delta)[ALL_EIGHTS][2], Sums& all) const {
        if (lane % 4 == 0) all.out_bias += of_gradient.x + of_gradient.y;
        bf16* const to = deltas + (warp * EDGE + lane / 4) * OUTPUT_STRIDE + lane % 4 * 2;
#pragma unroll
        for (u32 eighth = 0; eighth < ALL_EIGHTS; eighth++) {
            const float2 by = *reinterpret_cast<const float2*>(out + eighth * PIECE + lane % 4 * 2);
            const float(&four)[4] = outputs[eighth];
            float(&sum)[2] = all.out[eighth];
            sum[0] = fmaf(four[0], of_gradient.x, fmaf(four[2], of_gradient.y, sum[0]));
            sum[1] = fmaf(four[1], of_gradient.x, fmaf(four[3], of_gradient.y, sum[1]));
            delta[eighth][0] =
                pair(four[0] > 0 ? of_gradient.x * by.x : 0, four[1] > 0 ? of_gradient.x * by.y : 0);
            delta[eighth][1] =
                pair(four[2] > 0 ? of_gradient.y * by.x : 0, four[3] > 0 ? of_gradient.y * by.y : 0);
            *reinterpret_cast<u32*>(to + eighth * PIECE) = delta[eighth][0];
            *reinterpret_cast<u32*>(to + PIECE * OUTPUT_STRIDE + eighth * PIECE) = delta[eighth][1];
        }
    }

    // Multiplies this warp's deltas by M^T, and adds what comes through the sum. Of 32 columns, products are made in an
    // order in which each lane has eight in sequence: tile i of eight has the columns 2i and 2i + 1 of each eight.
    __device__ void make_key_gradients(u32 at, u32 count, float2 weight, const u32 (&delta)[ALL_EIGHTS][2]) {
        const u32 position = warp * EDGE + lane / 4, own = lane % 4 * PIECE;
        const u32 right_row = lane % PIECE / 2 * PIECE + lane % 2;
        const bf16* const pairs = matrix + row_of(right_row + lane / EDGE * 2) + lane / PIECE % 2 * PIECE;
        const bf16* const tail = matrix + row_of(right_row + lane / PIECE * 2) + (ALL_EIGHTS - 1) * PIECE;
        bf16* const to = static_cast<bf16*>(p.key_gradients) + u64(now.begin + at + position) * p.width + own;
#pragma unroll
        for (u32 base = 0; base < COLUMNS; base += 4 * PIECE) {
            float products[4][4];
            const uint4 g = *reinterpret_cast<const uint4*>(gradient + base + own);
            const u32 of_sum[4] = {g.x, g.y, g.z, g.w};
#pragma unroll
            for (u32 i = 0; i < 4; i++) {
                const float2 two_of_sum = two(of_sum[i]);
                products[i][0] = weight.x * two_of_sum.x, products[i][1] = weight.x * two_of_sum.y;
                products[i][2] = weight.y * two_of_sum.x, products[i][3] = weight.y * two_of_sum.y;
            }
#pragma unroll
            for (u32 eighth = 0; eighth + 1 < ALL_EIGHTS; eighth += 2) {
                const u32(&x)[2] = delta[eighth], (&y)[2] = delta[eighth + 1];
                const u32 left[4] = {x[0], x[1], y[0], y[1]};
#pragma unroll
                for (u32 i = 0; i < 4; i += 2) {
                    u32 right[4];
                    load_straight(right, pairs + row_of(base) + 2 * i * OUTPUT_STRIDE + eighth * PIECE);
                    multiply_add(keys, products[i], left, right[0], right[1]);
                    multiply_add(keys, products[i + 1], left, right[2], right[3]);
                }
            }
            if constexpr (ALL_EIGHTS % 2 == 1) {
                u32 right[4];
                load_straight(right, tail + row_of(base));
#pragma unroll
                for (u32 i = 0; i < 4; i++) multiply_add(keys, products[i], delta[ALL_EIGHTS - 1], right[i]);
            }
            if (base + own >= p.width) continue;
#pragma unroll
            for (u32 half = 0; half < 2; half++) {
                if (position + half * PIECE >= count) continue;
                u32 stored[4];
#pragma unroll
                for (u32 i = 0; i < 4; i++) {
                    stored[i] = pair(products[i][2 * half], products[i][2 * half + 1]);
                    note(stored[i]);
                }
                store_piece(to + half * PIECE * p.width + base, stored);
            }
        }
    }

    // Takes note of two gradients, so that ones that are too large are reported.
    __device__ void note(u32 stored) {
        largest = __hmax2_nan(largest, __habs2(reinterpret_cast<const __nv_bfloat162&>(stored)));
    }

    // Adds this chunk's gradients of the first layer to the sums, and those with respect to the query to `sums`.
    __device__ void add_weight_gradients(u32 at, u32 count, Sums& all) const {
        const u32 part = warp / COLUMN_TILES, columns = warp % COLUMN_TILES * EDGE;
        float d_matrix[EIGHTS][4] = {}, d_constant[EIGHTS][4] = {};
        const bf16* const own = keys + key_buffer * CHUNK * KEY_STRIDE + columns;
#pragma unroll 1
        for (u32 depth = 0; depth < count; depth += 2 * EDGE) {
            u32 left[2][4];
#pragma unroll
            for (u32 step = 0; step < 2; step++) {
                const u32 position = depth + step * EDGE + lane / EDGE * PIECE + lane % PIECE;
                load_columns(left[step], own + position * KEY_STRIDE + lane / PIECE % 2 * PIECE);
            }
            constexpr u32 ONES = 0x3f803f80;
            const u32 ones[4] = {ONES, ONES, ONES, ONES};
#pragma unroll
            for (u32 eighth = 0; eighth < EIGHTS; eighth++) {
                u32 right[4];
                load_columns(right, deltas + (depth + lane) * OUTPUT_STRIDE + (part * EIGHTS + eighth) * PIECE);
#pragma unroll
                for (u32 step = 0; step < 2; step++) {
                    multiply_add(keys, d_matrix[eighth], left[step], right[2 * step], right[2 * step + 1]);
                    multiply_add(keys, d_constant[eighth], ones, right[2 * step], right[2 * step + 1]);
                }
            }
        }
#pragma unroll
        for (u32 half = 0; half < 2; half++) {
            const u32 column = columns + half * PIECE + lane / 4;
            const float q = load(query + query_buffer * COLUMNS + column);
            float d_query = 0;
#pragma unroll
            for (u32 eighth = 0; eighth < EIGHTS; eighth++) {
                const u32 output = row_of(column) + (part * EIGHTS + eighth) * PIECE + lane % 4 * 2;
                const float2 by_matrix = load2(of_product + output), by_constant = load2(of_query + output);
                const float by[2][2] = {{by_matrix.x, by_matrix.y}, {by_constant.x, by_constant.y}};
#pragma unroll
                for (u32 i = 0; i < 2; i++) {
                    const float x = d_matrix[eighth][2 * half + i], c = d_constant[eighth][i];
                    d_query = fmaf(by[0][i], x, fmaf(by[1][i], c, d_query));
                    all.matrix[eighth][2 * half + i] += x;
                    all.by_query[eighth][2 * half + i] = fmaf(x, q, all.by_query[eighth][2 * half + i]);
                    all.of_constant[eighth][2 * half + i] = fmaf(c, q, all.of_constant[eighth][2 * half + i]);
                }
            }
            d_query = over_quad(d_query);
            float* const sum = sums + part * COLUMNS + column;
            if (lane % 4 == 0) *sum = at > 0 ? *sum + d_query : d_query;
        }
        if (columns > 0 || lane >= 4) return;
#pragma unroll
        for (u32 eighth = 0; eighth < EIGHTS; eighth++) {
#pragma unroll
            for (u32 i = 0; i < 2; i++) {
                bias_gradient[(part * EIGHTS + eighth) * PIECE + lane % 4 * 2 + i] += d_constant[eighth][i];
            }
        }
    }

    // After the barrier that shows the sums of the sample before: adds the gradient with respect to this thread's
    // element of the query to the one in memory.
    __device__ void finish() {
        if (unfinished == NONE || !leads) return;
        float d_query = d_query_before + of_query_element(own_column);
        for (u32 other = next_place; other > 0; other = p.places[other - 1].next) {
            d_query += of_query_element((other - 1) * VECTOR + own_column % VECTOR);
        }
        store(row(p.gradients, unfinished) + query_at, d_query);
        note(pair(d_query, 0));
        unfinished = NONE;
    }

    __device__ float of_query_element(u32 column) const {
        float sum = 0;
#pragma unroll
        for (u32 part = 0; part < PARTS; part++) sum += sums[part * COLUMNS + column];
        return sum;
    }

    // Writes the sums over the block's samples.
    __device__ void write(const Sums& all) const {
        const UnitLayer first = p.layers[0], last = p.layers[1];
        float* const parts = p.parts + u64(blockIdx.x) * p.parameters;
        const u32 part = warp / COLUMN_TILES, columns = warp % COLUMN_TILES * EDGE;
#pragma unroll
        for (u32 i = 0; i < EIGHTS * 4; i++) {
            const u32 eighth = i / 4, column = columns + i / 2 % 2 * PIECE + lane / 4;
            const u32 output = (part * EIGHTS + eighth) * PIECE + lane % 4 * 2 + i % 2;
            if (output >= first.outputs || column >= p.width) continue;
            const float d_matrix = all.matrix[eighth][i % 4], of_constant = all.of_constant[eighth][i % 4];
            float* const row = parts + first.weights + output * first.inputs + column;
            row[0] = of_constant;
            row[p.width] = d_matrix;
            row[2 * p.width] = of_constant - d_matrix;
            row[3 * p.width] = all.by_query[eighth][i % 4];
        }
        if (threadIdx.x < first.outputs) parts[first.bias + threadIdx.x] = bias_gradient[threadIdx.x];
        // [warp][OUTPUTS], then one per warp.
#pragma unroll
        for (u32 i = 0; i < ALL_EIGHTS * 2; i++) {
            float sum = all.out[i / 2][i % 2];
#pragma unroll
            for (u32 distance = 4; distance < WARP; distance *= 2) sum += __shfl_xor_sync(ALL_LANES, sum, distance);
            if (lane < 4) sums[warp * OUTPUTS + i / 2 * PIECE + lane * 2 + i % 2] = sum;
        }
        float last_bias = all.out_bias;
#pragma unroll
        for (u32 distance = 4; distance < WARP; distance *= 2) {
            last_bias += __shfl_xor_sync(ALL_LANES, last_bias, distance);
        }
        if (lane == 0) sums[WARPS * OUTPUTS + warp] = last_bias;
        __syncthreads();
        if (threadIdx.x <= first.outputs) {
            const bool of_bias = threadIdx.x == first.outputs;
            float sum = 0;
            for (u32 other = 0; other < WARPS; other++) {
                sum += sums[of_bias ? WARPS * OUTPUTS + other : other * OUTPUTS + threadIdx.x];
            }
            parts[of_bias ? last.bias : last.weights + threadIdx.x] = sum;
        }
    }

    __device__ bool wrong() const {
        const float2 both = __bfloat1622float2(largest);
        return !(holds(keys, both.x) && holds(keys, both.y));
    }
};

// Grid: any number of blocks.
template <u32 COLUMNS, u32 EIGHTS, u32 PARTS>
__device__ inline void attend_by_tiles(const Attention& p) {
    extern __shared__ float4 memory[];
    AttentionTiles<false, COLUMNS, EIGHTS, PARTS> tiles(p, memory);
    tiles.forward();
}

// Grid: one block per piece of the partial sums.
template <u32 COLUMNS, u32 EIGHTS, u32 PARTS>
__device__ inline void attend_backward_by_tiles(const Attention& p) {
    extern __shared__ float4 memory[];
    AttentionTiles<true, COLUMNS, EIGHTS, PARTS> tiles(p, memory);
    typename AttentionTiles<true, COLUMNS, EIGHTS, PARTS>::Sums all;
    tiles.backward(all);
    tiles.write(all);
    if (tiles.wrong()) atomicOr(&p.guard->found, WRONG_VECTORS);
}

#define KERNELS(NAME, COLUMNS, EIGHTS, PARTS, BLOCKS, BLOCKS_BACKWARD)                        \
    extern "C" __global__ void __launch_bounds__(2 * COLUMNS * PARTS, BLOCKS)                 \
        attention_tiles_##NAME(const __grid_constant__ Attention p) {                         \
        attend_by_tiles<COLUMNS, EIGHTS, PARTS>(p);                                           \
    }                                                                                         \
    extern "C" __global__ void __launch_bounds__(2 * COLUMNS * PARTS, BLOCKS_BACKWARD)        \
        attention_gradient_tiles_##NAME(const __grid_constant__ Attention p) {                \
        attend_backward_by_tiles<COLUMNS, EIGHTS, PARTS>(p);                                  \
    }

// By the most hidden outputs and elements of a key.
KERNELS(40x64, 64, 5, 1, 5, 3)
KERNELS(48x64, 64, 6, 1, 4, 2)
KERNELS(96x64, 64, 6, 2, 2, 1)
KERNELS(48x128, 128, 6, 1, 1, 1)
