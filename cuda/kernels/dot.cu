// The dot interaction: for each sample, the first vector as it is, then the products of vector 1 with 0, 2 with 0, 2
// with 1, 3 with 0, ...; and its backward pass.
//
// The forward pass reads every vector once and writes the products; the backward pass reads both once and writes the
// vectors' gradients. With 16-bit types and up to 48 vectors, one warp takes a sample, on the tensor cores: Z Zᵀ
// forward, (G + Gᵀ) Z backward. With f32, or with more vectors, one block takes a sample.
//
// On Hopper, the forward pass can look up the vectors itself, if each is a row of a table on this GPU: it reads rows
// instead of vectors, and writes the vectors, which the backward pass reads. A warp fetches the rows of its next
// sample while it multiplies those of one. For 65536 samples of dlrm this takes 292 us; look-ups and products one after
// the other take 206 and 189 (H100).
#include "fp8.cuh"
#include "guard.cuh"
#include "mma.cuh"

struct Dot {
    // [sample][vectors_stride], one vector after another
    const void* vectors;
    // [sample][stride]: `passed` elements of the first vector, the products, zeros.
    void* products;
    // As the vectors; the backward pass writes them.
    void* gradients;
    // Records gradients that are not finite.
    Guard* guard;
    u32 samples;
    u32 count;
    u32 dim;
    u32 vectors_stride;
    u32 passed;
    u32 stride;
    // Whether the first vector is the output of a ReLU, which its gradients then go through.
    u32 relu;
    // Forward: whether a backward pass follows.
    u32 learns;
};

// Rows in shared memory are padded by this much, so that they do not start in the same bank.
constexpr u32 PAD_F32 = 4;
constexpr u32 PAD_HALF = 8;
constexpr u32 DOT_THREADS = 128;

struct Pair {
    u32 high;
    u32 low;
};

__device__ inline Pair pair_of(u32 number) {
    u32 high = u32((1.0f + sqrtf(1.0f + 8.0f * float(number))) / 2.0f);
    while (high * (high - 1) / 2 > number) high--;
    while ((high + 1) * high / 2 <= number) high++;
    return {high, number - high * (high - 1) / 2};
}

// One block per sample. Shared memory: the vectors.
template <class T>
__device__ inline void dot_forward_by_blocks(const Dot& p, float4* memory) {
    float* z = reinterpret_cast<float*>(memory);
    const u32 row = p.dim + PAD_F32, pairs = p.count * (p.count - 1) / 2;
    for (u32 sample = blockIdx.x; sample < p.samples; sample += gridDim.x) {
        const T* vectors = static_cast<const T*>(p.vectors) + u64(sample) * p.vectors_stride;
        T* out = static_cast<T*>(p.products) + u64(sample) * p.stride;
        for (u32 i = threadIdx.x * VECTOR; i < p.count * p.dim; i += DOT_THREADS * VECTOR) {
            store4(z + i / p.dim * row + i % p.dim, load4(vectors + i));
        }
        __syncthreads();
        for (u32 i = threadIdx.x; i < p.stride; i += DOT_THREADS) {
            float value = i < p.passed ? z[i] : 0.0f;
            if (i >= p.passed && i - p.passed < pairs) {
                const Pair pair = pair_of(i - p.passed);
                const float *high = z + pair.high * row, *low = z + pair.low * row;
                for (u32 d = 0; d < p.dim; d += VECTOR) {
                    const float4 x = load4(high + d), y = load4(low + d);
                    value += x.x * y.x;
                    value += x.y * y.y;
                    value += x.z * y.z;
                    value += x.w * y.w;
                }
            }
            store(out + i, value);
        }
        __syncthreads();
    }
}

// One block per sample. Shared memory: the vectors, and the products' gradients as a symmetric matrix.
template <class T>
__device__ inline void dot_backward_by_blocks(const Dot& p, float4* memory) {
    float* z = reinterpret_cast<float*>(memory);
    const u32 row = p.dim + PAD_F32, pairs = p.count * (p.count - 1) / 2;
    float* g = z + p.count * row;
    bool wrong = false;
    for (u32 sample = blockIdx.x; sample < p.samples; sample += gridDim.x) {
        const T* vectors = static_cast<const T*>(p.vectors) + u64(sample) * p.vectors_stride;
        const T* from = static_cast<const T*>(p.products) + u64(sample) * p.stride;
        T* gradients = static_cast<T*>(p.gradients) + u64(sample) * p.vectors_stride;
        for (u32 i = threadIdx.x * VECTOR; i < p.count * p.dim; i += DOT_THREADS * VECTOR) {
            store4(z + i / p.dim * row + i % p.dim, load4(vectors + i));
        }
        for (u32 i = threadIdx.x; i < p.count; i += DOT_THREADS) g[i * p.count + i] = 0;
        for (u32 i = threadIdx.x; i < pairs; i += DOT_THREADS) {
            const Pair pair = pair_of(i);
            g[pair.high * p.count + pair.low] = g[pair.low * p.count + pair.high] = load(from + p.passed + i);
        }
        __syncthreads();
        for (u32 i = threadIdx.x * VECTOR; i < p.count * p.dim; i += DOT_THREADS * VECTOR) {
            const u32 vector = i / p.dim, column = i % p.dim;
            float4 sum = make_float4(0, 0, 0, 0);
            for (u32 other = 0; other < p.count; other++) {
                const float scale = g[vector * p.count + other];
                const float4 x = load4(z + other * row + column);
                sum.x += scale * x.x;
                sum.y += scale * x.y;
                sum.z += scale * x.z;
                sum.w += scale * x.w;
            }
            if (i < p.passed) {
                add(sum, load4(from + i));
                if (p.relu != 0) sum = where_positive(sum, load4(z + i));
            }
            wrong |= !holds4(gradients, sum);
            store4(gradients + i, sum);
        }
        __syncthreads();
    }
    if (wrong) atomicOr(&p.guard->found, WRONG_VECTORS);
}

#define DOT_KERNEL(NAME, P, BODY)                                                                 \
    extern "C" __global__ void __launch_bounds__(DOT_THREADS) NAME(const __grid_constant__ P p) { \
        extern __shared__ float4 memory[];                                                        \
        BODY;                                                                                     \
    }

DOT_KERNEL(dot_forward_by_blocks_f32, Dot, dot_forward_by_blocks<float>(p, memory))
DOT_KERNEL(dot_forward_by_blocks_bf16, Dot, dot_forward_by_blocks<bf16>(p, memory))
DOT_KERNEL(dot_forward_by_blocks_f16, Dot, dot_forward_by_blocks<f16>(p, memory))
DOT_KERNEL(dot_backward_by_blocks_f32, Dot, dot_backward_by_blocks<float>(p, memory))
DOT_KERNEL(dot_backward_by_blocks_bf16, Dot, dot_backward_by_blocks<bf16>(p, memory))
DOT_KERNEL(dot_backward_by_blocks_f16, Dot, dot_backward_by_blocks<f16>(p, memory))

// Walks a warp through a sample's vectors, 16 bytes per lane at a time, without a division per step.
struct Walk {
    u32 vector;
    u32 column;

    __device__ explicit Walk(const Dot& p)
        : vector(threadIdx.x % WARP * PIECE / p.dim), column(threadIdx.x % WARP * PIECE % p.dim) {}

    __device__ void step(u32 vectors, u32 columns, u32 dim) {
        vector += vectors;
        column += columns;
        if (column >= dim) {
            column -= dim;
            vector++;
        }
    }
};

// Starts copying 16 bytes to shared memory.
template <class T>
__device__ inline void load_piece(T* to, const T* from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(to)), "l"(from));
}

// Loads a sample's vectors into a warp's shared memory. Rows after the last vector stay as they are.
template <class T>
__device__ inline void load_vectors(const Dot& p, u32 sample, T* z) {
    const u32 row = p.dim + PAD_HALF, vectors = WARP * PIECE / p.dim, columns = WARP * PIECE % p.dim;
    const T* from = static_cast<const T*>(p.vectors) + u64(sample) * p.vectors_stride;
    for (Walk at(p); at.vector < p.count; at.step(vectors, columns, p.dim)) {
        load_piece(z + at.vector * row + at.column, from + at.vector * p.dim + at.column);
    }
}

__device__ inline void vectors_loaded() {
    asm volatile("cp.async.wait_all;" ::: "memory");
    __syncwarp();
}

// Multiplies the vectors of a sample in a warp's shared memory, and passes each product to `take` with its number.
template <class T, u32 TILES, class TAKE>
__device__ inline void multiply_vectors(const Dot& p, const T* z, const TAKE& take) {
    const u32 lane = threadIdx.x % WARP, row = p.dim + PAD_HALF;
    float sums[TILES][TILES][2][4] = {};
    for (u32 d = 0; d < p.dim; d += EDGE) {
        u32 tiles[TILES][4];
#pragma unroll
        for (u32 i = 0; i < TILES; i++) load_rows(tiles[i], z + i * EDGE * row + d, row);
#pragma unroll
        for (u32 high = 0; high < TILES; high++) {
#pragma unroll
            for (u32 low = 0; low <= high; low++) {
                multiply_add(z, sums[high][low][0], tiles[high], tiles[low][0], tiles[low][2]);
                multiply_add(z, sums[high][low][1], tiles[high], tiles[low][1], tiles[low][3]);
            }
        }
    }
#pragma unroll
    for (u32 i = 0; i < TILES * TILES * 8; i++) {
        const u32 high_tile = i / 8 / TILES, low_tile = i / 8 % TILES, half = i / 4 % 2, e = i % 4;
        if (low_tile > high_tile) continue;
        const u32 high = high_tile * EDGE + lane / 4 + e / 2 * 8;
        const u32 low = low_tile * EDGE + half * 8 + lane % 4 * 2 + e % 2;
        if (high < p.count && low < high) take(high * (high - 1) / 2 + low, sums[high_tile][low_tile][half][e]);
    }
}

// The vectors of a warp's samples, one sample at a time: `take(n)` loads those of sample `order(n)` into shared memory.
template <class T, class ORDER>
struct LoadedVectors {
    const Dot& p;
    T* z;
    ORDER order;

    __device__ void take(u32 n) const {
        load_vectors(p, order(n), z);
        vectors_loaded();
    }
};

// Vectors that are in memory.
struct InMemory {
    __device__ static u32 bytes(const Dot&) { return 0; }

    template <class T, class ORDER>
    __device__ LoadedVectors<T, ORDER> into(const Dot& p, T* z, u8*, ORDER order) const {
        return {p, z, order};
    }
};

// The vectors after the first are rows of tables. Samples must come in ascending order.
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
template <class T, class ORDER>
struct GatheredVectors {
    const Dot& p;
    T* z;
    ORDER order;
    // The rows of the next sample.
    const float4* rows;
    u32 barrier;
    u32 parity = 0;
    // The number of samples; vectors after them become zeros.
    u32 there;
    // Per lane, for one of the vectors.
    const float* table;
    const u32* ids;
    u32 row_words;
    u32 last_row;
    u32 next_id = 0;

    __device__ bool has_row() const { return threadIdx.x % WARP + 1 < p.count; }

    __device__ u32 id_of(u32 n) const { return has_row() && order(n) < there ? __ldg(ids + order(n)) : 0; }

    // Starts copying the rows of sample `order(n)`, and loads the ids of the one after.
    __device__ void fetch(u32 n) {
        if (order(n) >= there) return;
        const u32 lane = threadIdx.x % WARP, bytes = p.dim * sizeof(float);
        if (lane == 0) arrive_with_bytes(barrier, (p.count - 1) * bytes);
        __syncwarp();
        // Ids out of range are counted when the batch is routed.
        const float* row = table + u64(min(next_id, last_row)) * row_words;
        if (has_row()) fetch_bytes(shared_address(rows) + lane * bytes, row, bytes, barrier);
        next_id = id_of(n + 1);
    }

    __device__ void take(u32 n) {
        const u32 lane = threadIdx.x % WARP, sample = order(n), fours = p.dim / VECTOR;
        T* const vectors = const_cast<T*>(static_cast<const T*>(p.vectors)) + u64(sample) * p.vectors_stride;
        for (u32 i = lane * PIECE; i < p.dim; i += WARP * PIECE) load_piece(z + i, vectors + i);
        if (sample < there) {
            wait(barrier, parity);
            parity ^= 1;
        }
        u32 vector = 1 + lane / fours, column = lane % fours * VECTOR;
        const u32 step = WARP / fours, step_columns = WARP % fours * VECTOR, stride = p.dim + PAD_HALF;
#pragma unroll 4
        for (u32 i = lane; i < (p.count - 1) * fours; i += WARP) {
            const float4 values = sample < there ? rows[i] : make_float4(0, 0, 0, 0);
            store4(z + vector * stride + column, values);
            // The backward pass reads them.
            if (p.learns != 0) stream4(vectors + vector * p.dim + column, values);
            vector += step;
            column += step_columns;
            if (column >= p.dim) {
                column -= p.dim;
                vector++;
            }
        }
        vectors_loaded();
        fetch(n + 1);
    }
};
#endif

// Tables, of which each vector of a sample but the first is a row: `features` has one per vector, in their order, with
// one id per sample and f32 rows of as many elements as a vector.
struct TableRows {
    const float* tables;
    const Feature* features;
    const u32* ids;
    const u32* samples_count;

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    __device__ static u32 bytes(const Dot& p) { return (p.count - 1) * p.dim * sizeof(float); }

    template <class T, class ORDER>
    __device__ GatheredVectors<T, ORDER> into(const Dot& p, T* z, u8* rows, ORDER order) const {
        __shared__ u64 barriers[DOT_THREADS / WARP];
        const u32 lane = threadIdx.x % WARP, barrier = shared_address(barriers + threadIdx.x / WARP);
        GatheredVectors<T, ORDER> vectors = {p, z, order, reinterpret_cast<const float4*>(rows), barrier};
        vectors.there = min(p.samples, *samples_count);
        if (vectors.has_row()) {
            const Feature& feature = features[lane];
            vectors.table = tables + feature.words;
            vectors.ids = ids + feature.ids;
            vectors.row_words = feature.row_words;
            vectors.last_row = feature.rows - 1;
        }
        if (lane == 0) {
            barrier_make(barrier, 1);
            barriers_made();
        }
        __syncwarp();
        vectors.next_id = vectors.id_of(0);
        vectors.fetch(0);
        return vectors;
    }
#endif
};

// One warp per sample. Shared memory per warp: TILES times sixteen vectors, and the products; then what `from` needs.
template <class T, u32 TILES, class FROM>
__device__ inline void dot_forward(const Dot& p, const FROM& from, float4* memory) {
    constexpr u32 ROWS = TILES * EDGE;
    const u32 lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, row = p.dim + PAD_HALF;
    const u32 own_bytes = rounded_up(ROWS * row * 2 + p.stride * 2, 128);
    u8* const own = reinterpret_cast<u8*>(memory) + warp * rounded_up(own_bytes + from.bytes(p), 128);
    T* z = reinterpret_cast<T*>(own);
    T* out = z + ROWS * row;
    const u32 warps = gridDim.x * DOT_THREADS / WARP, pairs = p.count * (p.count - 1) / 2;
    T zero;
    store(&zero, 0.0f);
    for (u32 i = p.count * row + lane; i < ROWS * row; i += WARP) z[i] = zero;
    for (u32 i = p.passed + pairs + lane; i < p.stride; i += WARP) out[i] = zero;
    const auto order = [first = blockIdx.x * DOT_THREADS / WARP + warp, warps](u32 n) { return first + n * warps; };
    auto vectors = from.into(p, z, own + own_bytes, order);
    for (u32 n = 0; order(n) < p.samples; n++) {
        vectors.take(n);
        for (u32 i = lane; i < p.passed; i += WARP) out[i] = z[i];
        multiply_vectors<T, TILES>(p, z, [&](u32 number, float product) { store(out + p.passed + number, product); });
        __syncwarp();
        uint4* to = reinterpret_cast<uint4*>(static_cast<T*>(p.products) + u64(order(n)) * p.stride);
        for (u32 i = lane; i < p.stride / PIECE; i += WARP) to[i] = reinterpret_cast<const uint4*>(out)[i];
        __syncwarp();
    }
}

// The forward pass to fp8: what is rounded to bf16 otherwise is rounded to fp8 then, and only that is written.
struct DotFp8 {
    // `products` is null, and `stride` a multiple of 16.
    Dot dot;
    // [sample][stride]
    u8* rows;
    // [column][turned_stride]
    u8* turned;
    Fp8Scaling* scaling;
    // The samples rounded up to a multiple of 16, or more.
    u32 turned_stride;
    u32 reserved;
};

// Samples that make a word of a transposed row: those of a warp. A block makes four words of each row at a time.
constexpr u32 WORD_SAMPLES = 4;
constexpr u32 TURNED_SAMPLES = DOT_THREADS / WARP * WORD_SAMPLES;

// Transposes four rows of bytes: word `c` of the result has byte `c` of each row.
__device__ inline void turn(const u8* rows, u32 stride, u32* words) {
    for (u32 column = threadIdx.x % WARP * 4; column < stride; column += WARP * 4) {
        u32 row[WORD_SAMPLES];
#pragma unroll
        for (u32 i = 0; i < WORD_SAMPLES; i++) row[i] = *reinterpret_cast<const u32*>(rows + i * stride + column);
        const u32 low_first = __byte_perm(row[0], row[1], 0x5140), low_last = __byte_perm(row[0], row[1], 0x7362);
        const u32 high_first = __byte_perm(row[2], row[3], 0x5140), high_last = __byte_perm(row[2], row[3], 0x7362);
        *reinterpret_cast<uint4*>(words + column) =
            make_uint4(__byte_perm(low_first, high_first, 0x5410), __byte_perm(low_first, high_first, 0x7632),
                       __byte_perm(low_last, high_last, 0x5410), __byte_perm(low_last, high_last, 0x7632));
    }
}

// A warp takes four samples, one after another. Shared memory per warp: TILES times sixteen vectors, and four rows of
// results; then, unless there is room where the vectors were, the words of the transposed rows; then what `from` needs.
template <u32 TILES, class FROM>
__device__ inline void dot_forward_fp8(const DotFp8& q, const FROM& from, float4* memory) {
    const Dot& p = q.dot;
    const u32 lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, row = p.dim + PAD_HALF;
    const u32 results_at = TILES * EDGE * row * sizeof(bf16), end = results_at + WORD_SAMPLES * p.stride;
    const u32 words_bytes = p.stride * sizeof(u32), words_at = words_bytes <= p.count * row * sizeof(bf16) ? 0 : end;
    const u32 own_bytes = rounded_up(words_at == 0 ? end : end + words_bytes, 128);
    const u32 bytes = rounded_up(own_bytes + from.bytes(p), 128);
    u8* const all = reinterpret_cast<u8*>(memory);
    u8* const own = all + warp * bytes;
    bf16* const z = reinterpret_cast<bf16*>(own);
    u8* const results = own + results_at;
    for (u32 i = p.count * row + lane; i < TILES * EDGE * row; i += WARP) store(z + i, 0.0f);
    const float scale = q.scaling->scale;
    float largest = 0;
    const auto scaled = [&](float value) {
        value *= scale;
        largest = fmaxf(largest, fabsf(value));
        return value;
    };
    const auto order = [warp](u32 n) {
        const u32 i = n % WORD_SAMPLES, begin = (blockIdx.x + n / WORD_SAMPLES * gridDim.x) * TURNED_SAMPLES;
        return begin + turned_sample(warp) + i / 2 * TURNED_FAR + i % 2;
    };
    auto vectors = from.into(p, z, own + own_bytes, order);
    u32 n = 0;
    for (u32 begin = blockIdx.x * TURNED_SAMPLES; begin < p.samples; begin += gridDim.x * TURNED_SAMPLES) {
        for (u32 i = 0; i < WORD_SAMPLES; i++, n++) {
            const u32 sample = order(n);
            u8* const out = results + i * p.stride;
            uint4* const pieces = reinterpret_cast<uint4*>(out);
            // Samples that do not exist are zeros, as is what follows the products.
            for (u32 k = lane; k < p.stride / sizeof(uint4); k += WARP) pieces[k] = make_uint4(0, 0, 0, 0);
            if (sample >= p.samples) continue;
            vectors.take(n);
            for (u32 column = lane * VECTOR; column < p.passed; column += WARP * VECTOR) {
                const float4 values = load4(z + column);
                *reinterpret_cast<u32*>(out + column) =
                    packed_fp8(scaled(values.x), scaled(values.y), scaled(values.z), scaled(values.w));
            }
            multiply_vectors<bf16, TILES>(p, z, [&](u32 number, float product) {
                const float rounded = __bfloat162float(__float2bfloat16_rn(product));
                out[p.passed + number] = __nv_cvt_float_to_fp8(scaled(rounded), __NV_SATFINITE, __NV_E4M3);
            });
            __syncwarp();
            uint4* to = reinterpret_cast<uint4*>(q.rows + u64(sample) * p.stride);
            for (u32 k = lane; k < p.stride / sizeof(uint4); k += WARP) to[k] = pieces[k];
        }
        if (p.learns == 0) continue;
        __syncwarp();
        turn(results, p.stride, reinterpret_cast<u32*>(own + words_at));
        __syncthreads();
        for (u32 column = threadIdx.x; column < p.stride; column += DOT_THREADS) {
            const auto word = [&](u32 of) { return reinterpret_cast<const u32*>(all + of * bytes + words_at)[column]; };
            *reinterpret_cast<uint4*>(q.turned + u64(column) * q.turned_stride + begin) =
                make_uint4(word(0), word(1), word(2), word(3));
        }
        // The next vectors may overwrite the words.
        __syncthreads();
    }
    if (p.learns != 0) observe_in_warp(q.scaling, largest);
}

// The largest absolute values; NaN if any was NaN.
__device__ inline __nv_bfloat162 larger(__nv_bfloat162 most, __nv_bfloat162 values) {
    return __hmax2_nan(most, __habs2(values));
}
__device__ inline __half2 larger(__half2 most, __half2 values) { return __hmax2_nan(most, __habs2(values)); }
__device__ inline bool hold(__nv_bfloat162 most) {
    const float2 values = __bfloat1622float2(most);
    return values.x <= VECTOR_GRADIENT_MAX && values.y <= VECTOR_GRADIENT_MAX;
}
__device__ inline bool hold(__half2 most) {
    const float2 values = __half22float2(most);
    return isfinite(values.x) && isfinite(values.y);
}
__device__ inline __nv_bfloat162 pair_of(const bf16*, float2 values) {
    return __floats2bfloat162_rn(values.x, values.y);
}
__device__ inline __half2 pair_of(const f16*, float2 values) { return __floats2half2_rn(values.x, values.y); }

// Layout of a block's shared memory in the backward pass. Per warp: a sample's vectors, which their gradients
// overwrite; its products' gradients as loaded; and those as a symmetric matrix. After all warps: a row of zeros, and
// the position of each product in the matrix. The smaller it is, the more samples are in flight.
template <u32 TILES>
struct Back {
    static constexpr u32 ROWS = TILES * EDGE, G_ROW = ROWS + PAD_HALF, WARPS = DOT_THREADS / WARP;

    // In elements.
    u32 row, products, matrix, warp, zeros, positions;

    __device__ explicit Back(const Dot& p)
        : row(p.dim + PAD_HALF), products(p.count * row), matrix(products + p.stride), warp(matrix + ROWS * G_ROW),
          zeros(WARPS * warp), positions(zeros + row) {}
};

// One warp per sample.
template <class T, u32 TILES>
__device__ inline void dot_backward(const Dot& p, float4* memory) {
    using Layout = Back<TILES>;
    constexpr u32 ROWS = Layout::ROWS, G_ROW = Layout::G_ROW, WARPS = Layout::WARPS;
    const Layout layout(p);
    const u32 lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, row = layout.row;
    T* const all = reinterpret_cast<T*>(memory);
    T* const z = all + warp * layout.warp;
    T* const products = z + layout.products;
    T* const g = z + layout.matrix;
    T* const zeros = all + layout.zeros;
    u32* const positions = reinterpret_cast<u32*>(all + layout.positions);
    const u32 pairs = p.count * (p.count - 1) / 2;
    const u32 vectors = WARP * PIECE / p.dim, columns = WARP * PIECE % p.dim;
    T zero;
    store(&zero, 0.0f);
    for (u32 i = threadIdx.x; i < pairs; i += DOT_THREADS) {
        const Pair pair = pair_of(i);
        positions[i] = (pair.high * G_ROW + pair.low) << 16 | (pair.low * G_ROW + pair.high);
    }
    for (u32 i = lane; i < ROWS * G_ROW; i += WARP) g[i] = zero;
    for (u32 i = threadIdx.x; i < row; i += DOT_THREADS) zeros[i] = zero;
    __syncthreads();
    // Zero times NaN is NaN, so rows after the last vector must read as zeros.
    const T* from[TILES];
#pragma unroll
    for (u32 k = 0; k < TILES; k++) {
        const u32 vector = k * EDGE + lane % EDGE;
        from[k] = (vector < p.count ? z + vector * row : zeros) + lane / EDGE * PIECE;
    }
    auto most = pair_of(g, make_float2(0, 0));
    for (u32 sample = blockIdx.x * WARPS + warp; sample < p.samples; sample += gridDim.x * WARPS) {
        const T* by_products = static_cast<const T*>(p.products) + u64(sample) * p.stride;
        for (u32 i = lane * PIECE; i < p.stride; i += WARP * PIECE) {
            load_piece(products + i, by_products + i);
        }
        load_vectors(p, sample, z);
        vectors_loaded();
#pragma unroll 4
        for (u32 i = lane; i < pairs; i += WARP) {
            const u32 position = positions[i];
            g[position >> 16] = g[position & 0xffff] = products[p.passed + i];
        }
        __syncwarp();
        u32 scales[TILES][TILES][4];
#pragma unroll
        for (u32 i = 0; i < TILES; i++) {
#pragma unroll
            for (u32 k = 0; k < TILES; k++) load_rows(scales[i][k], g + i * EDGE * G_ROW + k * EDGE, G_ROW);
        }
        for (u32 left = 0; left < p.dim; left += EDGE) {
            float sums[TILES][2][4] = {};
#pragma unroll
            for (u32 k = 0; k < TILES; k++) {
                u32 tile[4];
                load_columns(tile, from[k] + left);
#pragma unroll
                for (u32 i = 0; i < TILES; i++) {
                    multiply_add(z, sums[i][0], scales[i][k], tile[0], tile[1]);
                    multiply_add(z, sums[i][1], scales[i][k], tile[2], tile[3]);
                }
            }
            // All lanes have read these columns.
            __syncwarp();
#pragma unroll
            for (u32 i = 0; i < TILES * 4; i++) {
                const u32 tile = i / 4, half = i / 2 % 2, below = i % 2;
                const u32 vector = tile * EDGE + below * 8 + lane / 4, column = left + half * 8 + lane % 4 * 2;
                float2 values = make_float2(sums[tile][half][below * 2], sums[tile][half][below * 2 + 1]);
                if (vector >= p.count) continue;
                T* address = z + vector * row + column;
                if (vector == 0 && p.passed > 0) {
                    const float2 more = load2(products + column);
                    values = make_float2(values.x + more.x, values.y + more.y);
                    if (p.relu != 0) {
                        const float2 outputs = load2(address);
                        values = make_float2(outputs.x > 0 ? values.x : 0, outputs.y > 0 ? values.y : 0);
                    }
                }
                const auto pair = pair_of(z, values);
                most = larger(most, pair);
                *reinterpret_cast<decltype(most)*>(address) = pair;
            }
        }
        __syncwarp();
        T* gradients = static_cast<T*>(p.gradients) + u64(sample) * p.vectors_stride;
#pragma unroll 4
        for (Walk at(p); at.vector < p.count; at.step(vectors, columns, p.dim)) {
            *reinterpret_cast<uint4*>(gradients + at.vector * p.dim + at.column) =
                *reinterpret_cast<const uint4*>(z + at.vector * row + at.column);
        }
        __syncwarp();
    }
    if (!hold(most)) atomicOr(&p.guard->found, WRONG_VECTORS);
}

// One tile per sixteen vectors of a sample.
template <class T, class FROM>
__device__ inline void dot_forward_of(const Dot& p, const FROM& from, float4* memory) {
    if (p.count <= EDGE) {
        dot_forward<T, 1>(p, from, memory);
    } else if (p.count <= 2 * EDGE) {
        dot_forward<T, 2>(p, from, memory);
    } else {
        dot_forward<T, 3>(p, from, memory);
    }
}

template <class FROM>
__device__ inline void dot_forward_fp8_of(const DotFp8& p, const FROM& from, float4* memory) {
    if (p.dot.count <= EDGE) {
        dot_forward_fp8<1>(p, from, memory);
    } else if (p.dot.count <= 2 * EDGE) {
        dot_forward_fp8<2>(p, from, memory);
    } else {
        dot_forward_fp8<3>(p, from, memory);
    }
}

template <class T>
__device__ inline void dot_backward_of(const Dot& p, float4* memory) {
    if (p.count <= EDGE) {
        dot_backward<T, 1>(p, memory);
    } else if (p.count <= 2 * EDGE) {
        dot_backward<T, 2>(p, memory);
    } else {
        dot_backward<T, 3>(p, memory);
    }
}

DOT_KERNEL(dot_forward_bf16, Dot, dot_forward_of<bf16>(p, InMemory(), memory))
DOT_KERNEL(dot_forward_f16, Dot, dot_forward_of<f16>(p, InMemory(), memory))
DOT_KERNEL(dot_backward_bf16, Dot, dot_backward_of<bf16>(p, memory))
DOT_KERNEL(dot_backward_f16, Dot, dot_backward_of<f16>(p, memory))
// Grid: any.
DOT_KERNEL(dot_forward_fp8, DotFp8, dot_forward_fp8_of(p, InMemory(), memory))

// The same with rows of tables.
struct DotOfRows {
    Dot dot;
    TableRows rows;
};
static_assert(sizeof(DotOfRows) == 96);

struct DotOfRowsFp8 {
    DotFp8 dot;
    TableRows rows;
};
static_assert(sizeof(DotOfRowsFp8) == 128);

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
DOT_KERNEL(dot_of_rows_bf16, DotOfRows, dot_forward_of<bf16>(p.dot, p.rows, memory))
DOT_KERNEL(dot_of_rows_f16, DotOfRows, dot_forward_of<f16>(p.dot, p.rows, memory))
DOT_KERNEL(dot_of_rows_fp8, DotOfRowsFp8, dot_forward_fp8_of(p.dot, p.rows, memory))
#else
DOT_KERNEL(dot_of_rows_bf16, DotOfRows, )
DOT_KERNEL(dot_of_rows_f16, DotOfRows, )
DOT_KERNEL(dot_of_rows_fp8, DotOfRowsFp8, )
#endif
