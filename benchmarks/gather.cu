// Times the dot interaction with vectors in memory, and with rows that it gathers by slot from a landing buffer.
//
//     nvcc -arch=sm_90a -std=c++17 -O3 -o gather benchmarks/gather.cu && ./gather
#include "../cuda/kernels/dot.cu"
#include <cstdio>
#include <cstdlib>
#include <cmath>
#include <vector>
#include <algorithm>
#include <random>
struct Slots { const bf16* landing; const u32* slots; u32 ahead;
  __device__ u32 id(const Dot& p, u32 sample) const { const u32 lane = threadIdx.x % WARP;
    return lane + 1 < p.count && sample < p.samples ? __ldg(slots + u64(lane) * p.samples + sample) : 0; } };
template <class T>
__device__ inline void load_by_slot(const Dot& p, const Slots& s, u32 sample, u32 id, T* z) {
    const u32 lane = threadIdx.x % WARP, row = p.dim + PAD_HALF;
    const T* first = static_cast<const T*>(p.vectors) + u64(sample) * p.vectors_stride;
    const u32 total = p.count * p.dim / PIECE;
    for (u32 at = 0; at < total; at += WARP) {
        const u32 i = at + lane, vector = i / 16, column = i % 16 * PIECE;   // dim 128
        const u32 slot = __shfl_sync(ALL_LANES, id, vector == 0 ? 0 : min(vector - 1, 31u));
        const T* from = vector == 0 ? first + column : reinterpret_cast<const T*>(s.landing) + u64(slot) * p.dim + column;
        if (vector < p.count) load_piece(z + vector * row + column, from);
    }
}
template <class T, class ORDER>
struct SlotVectors { const Dot& p; T* z; ORDER order; const Slots& s; u32 next;
    __device__ void take(u32 n) { load_by_slot(p, s, order(n), next, z); next = s.id(p, order(n + 1)); vectors_loaded(); } };
struct BySlots { Slots s;
    __device__ static u32 bytes(const Dot&) { return 0; }
    template <class T, class ORDER>
    __device__ SlotVectors<T, ORDER> into(const Dot& p, T* z, u8*, ORDER order) const { return {p, z, order, s, s.id(p, order(0))}; } };
// One warp per sample.
template <class T, u32 TILES>
__device__ inline void dot_backward_gather(const Dot& p, const Slots& s, float4* memory) {
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
    u32 next = s.id(p, blockIdx.x * WARPS + warp);
    for (u32 sample = blockIdx.x * WARPS + warp; sample < p.samples; sample += gridDim.x * WARPS) {
        const T* by_products = static_cast<const T*>(p.products) + u64(sample) * p.stride;
        for (u32 i = lane * PIECE; i < p.stride; i += WARP * PIECE) {
            load_piece(products + i, by_products + i);
        }
        load_by_slot(p, s, sample, next, z);
        next = s.id(p, sample + gridDim.x * WARPS);
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


extern "C" __global__ void __launch_bounds__(DOT_THREADS) fwd_mem(const __grid_constant__ Dot p) { extern __shared__ float4 memory[]; dot_forward<bf16,2>(p, InMemory(), memory); }
extern "C" __global__ void __launch_bounds__(DOT_THREADS) fwd_slot(const __grid_constant__ Dot p, const __grid_constant__ BySlots s) { extern __shared__ float4 memory[]; dot_forward<bf16,2>(p, s, memory); }
extern "C" __global__ void __launch_bounds__(DOT_THREADS) bwd_mem(const __grid_constant__ Dot p) { extern __shared__ float4 memory[]; dot_backward<bf16,2>(p, memory); }
extern "C" __global__ void __launch_bounds__(DOT_THREADS) bwd_slot(const __grid_constant__ Dot p, const __grid_constant__ Slots s) { extern __shared__ float4 memory[]; dot_backward_gather<bf16,2>(p, s, memory); }
extern "C" __global__ void __launch_bounds__(DOT_THREADS) fwd_fp8_mem(const __grid_constant__ DotFp8 p) { extern __shared__ float4 memory[]; dot_forward_fp8<2>(p, InMemory(), memory); }
extern "C" __global__ void __launch_bounds__(DOT_THREADS) fwd_fp8_slot(const __grid_constant__ DotFp8 p, const __grid_constant__ BySlots s) { extern __shared__ float4 memory[]; dot_forward_fp8<2>(p, s, memory); }
// distinct rows: fp32 table rows to bf16 landing, one warp per row
__global__ void land(const float* table, const u32* rows, bf16* landing, u32 count) {
  const u32 lane = threadIdx.x % 32; const u32 warps = gridDim.x * blockDim.x / 32;
  for (u32 i = (blockIdx.x * blockDim.x + threadIdx.x) / 32; i < count; i += warps) {
    const float4 v = *reinterpret_cast<const float4*>(table + u64(rows[i]) * 128 + lane * 4);
    store4(landing + u64(i) * 128 + lane * 4, v);
  } }
// look-ups as today (rows to vectors), for the comparison: one warp per (feature, sample)
__global__ void look(const float* table, const u32* rows_of, const u32* slots, bf16* vectors, u32 samples, u32 stride) {
  const u32 lane = threadIdx.x % 32; const u32 f = blockIdx.y;
  u32 s0 = (blockIdx.x * blockDim.x + threadIdx.x) / 32 * 16;
  for (u32 k = 0; k < 16; k += 8) { float4 v[8];
   for (int i = 0; i < 8; i++) v[i] = *reinterpret_cast<const float4*>(table + u64(rows_of[slots[u64(f) * samples + s0 + k + i]]) * 128 + lane * 4);
   for (int i = 0; i < 8; i++) stream4(vectors + u64(s0 + k + i) * stride + (f + 1) * 128 + lane * 4, v[i]); } }
#define OK(x) do { cudaError_t e = (x); if (e) { printf("%s: %s\n", #x, cudaGetErrorString(e)); exit(1); } } while (0)
int main() {
  const u32 samples = 65536, count = 27, dim = 128, stride = 480; std::mt19937_64 r(7);
  const double sizes[26] = {5e6, 39043, 17289, 7420, 20263, 3, 7120, 1543, 63, 5e6, 2953546, 403346, 10, 2208, 11938, 155, 4, 976, 14, 5e6, 5e6, 5e6, 585935, 12972, 108, 36};
  std::vector<u32> slots(26ull * samples), rows; u64 base = 0;
  for (int f = 0; f < 26; f++) { std::vector<u32> id(samples); const double N = sizes[f];
    for (auto& i : id) { double u = (r() >> 11) * 0x1p-53, k = pow(1 + u * (pow(N, -0.1) - 1), -10.0); u64 row = std::min<u64>(u64(k), u64(N) - 1); i = u32((row * 2654435761ull) % u64(N)); }
    std::vector<u32> d = id; std::sort(d.begin(), d.end()); d.erase(std::unique(d.begin(), d.end()), d.end());
    const u32 first = rows.size(); for (u32 x : d) rows.push_back(u32(base + x));
    for (u32 s = 0; s < samples; s++) slots[u64(f) * samples + s] = first + u32(std::lower_bound(d.begin(), d.end(), id[s]) - d.begin());
    base += u64(N); }
  printf("distinct %zu of %zu, table rows %lu\n", rows.size(), slots.size(), base);
  float* table; OK(cudaMalloc(&table, base * 512)); std::vector<float> some(1 << 24); for (auto& x : some) x = float(int(r() % 2001) - 1000) / 5000;
  for (u64 at = 0; at < base * 128; at += some.size()) OK(cudaMemcpy(table + at, some.data(), std::min<u64>(some.size(), base * 128 - at) * 4, cudaMemcpyHostToDevice));
  bf16 *landing, *vectors, *dense, *out, *grad; u32 *s, *rw; u8 *r8, *t8; Fp8Scaling* sc; Guard* guard;
  OK(cudaMalloc(&landing, rows.size() * 256)); OK(cudaMalloc(&vectors, u64(samples) * count * 256)); OK(cudaMalloc(&dense, u64(samples) * 256)); OK(cudaMalloc(&out, u64(samples) * stride * 2)); OK(cudaMalloc(&grad, u64(samples) * count * 256));
  OK(cudaMalloc(&r8, u64(samples) * 512)); OK(cudaMalloc(&t8, u64(samples) * 512)); OK(cudaMalloc(&sc, 4096)); OK(cudaMemset(sc, 0, 4096)); OK(cudaMalloc(&guard, 4096)); OK(cudaMemset(guard, 0, 4096));
  OK(cudaMalloc(&s, slots.size() * 4)); OK(cudaMemcpy(s, slots.data(), slots.size() * 4, cudaMemcpyHostToDevice)); OK(cudaMalloc(&rw, rows.size() * 4)); OK(cudaMemcpy(rw, rows.data(), rows.size() * 4, cudaMemcpyHostToDevice));
  std::vector<u16> b(u64(samples) * 128); for (auto& x : b) { float v = float(int(r() % 2001) - 1000) / 5000; u32 w; memcpy(&w, &v, 4); x = w >> 16; }
  OK(cudaMemcpy(dense, b.data(), b.size() * 2, cudaMemcpyHostToDevice));
  OK(cudaMemcpy2D(vectors, count * 256, dense, 256, 256, samples, cudaMemcpyDeviceToDevice));
  Dot m{vectors, out, grad, guard, samples, count, dim, count * dim, 128, stride, 0, 1}, g = m; g.vectors = dense; g.vectors_stride = 128; 
  DotFp8 m8{m, r8, t8, sc, samples, 0}, g8{g, r8, t8, sc, samples, 0}; m8.dot.products = g8.dot.products = nullptr; 
  Slots sl{landing, s, 0}; BySlots bs{sl}; Dot gb = g; gb.vectors_stride = count * dim; gb.vectors = vectors;
  const u32 row = dim + 8, shf = 4 * ((2 * (32 * row + stride) + 127) / 128 * 128), shb = 2 * (4 * (count * row + stride + 32 * 40) + row) + 2 * count * (count - 1);
  const u32 sh8 = 4 * (((32 * row * 2 + 4 * stride) + 127) / 128 * 128);
  auto attr = [&](const void* k, u32 n) { OK(cudaFuncSetAttribute(k, cudaFuncAttributeMaxDynamicSharedMemorySize, n)); };
  attr((void*)fwd_mem, shf); attr((void*)fwd_slot, shf); attr((void*)bwd_mem, shb); attr((void*)bwd_slot, shb); attr((void*)fwd_fp8_mem, sh8); attr((void*)fwd_fp8_slot, sh8);
  cudaEvent_t e0, e1; cudaEventCreate(&e0); cudaEventCreate(&e1); char* flush; OK(cudaMalloc(&flush, 256 << 20));
  auto time = [&](const char* name, auto f) { std::vector<float> t; for (int i = 0; i < 60; i++) { OK(cudaMemsetAsync(flush, i, 256 << 20)); cudaEventRecord(e0); f(); cudaEventRecord(e1); OK(cudaEventSynchronize(e1)); float ms; cudaEventElapsedTime(&ms, e0, e1); t.push_back(ms); } std::sort(t.begin(), t.end()); printf("%-40s %7.1f us\n", name, t[30] * 1e3); };
  land<<<132 * 8, 256>>>(table, rw, landing, rows.size()); look<<<dim3(samples / 16 / 8, 26), 256>>>(table, rw, s, vectors, samples, count * dim); OK(cudaDeviceSynchronize());
  auto sum = [&](const void* p, u64 n) { std::vector<u8> h(n); OK(cudaMemcpy(h.data(), p, n, cudaMemcpyDeviceToHost)); u64 x = 1469598103934665603ull; for (u8 c : h) x = (x ^ c) * 1099511628211ull; return x; };
  for (int k = 0; k < 2; k++) {
  time("distinct rows to landing", [&] { land<<<132 * 8, 256>>>(table, rw, landing, rows.size()); });
  time("look-ups to vectors", [&] { look<<<dim3(samples / 16 / 8, 26), 256>>>(table, rw, s, vectors, samples, count * dim); });
  for (u32 each : {8u, 12u, 16u}) { printf("grid 132 x %u\n", each);
  time("forward from vectors", [&] { fwd_mem<<<132 * each, 128, shf>>>(m); }); u64 a = sum(out, u64(samples) * stride * 2);
  time("forward by slot", [&] { fwd_slot<<<132 * each, 128, shf>>>(g, bs); }); printf("same bits: %d\n", a == sum(out, u64(samples) * stride * 2));
  time("forward fp8 from vectors", [&] { fwd_fp8_mem<<<132 * each, 128, sh8>>>(m8); });
  time("forward fp8 by slot", [&] { fwd_fp8_slot<<<132 * each, 128, sh8>>>(g8, bs); });
  time("backward from vectors", [&] { bwd_mem<<<132 * each, 128, shb>>>(m); }); a = sum(grad, u64(samples) * count * 256);
  time("backward by slot", [&] { bwd_slot<<<132 * each, 128, shb>>>(gb, sl); }); printf("same bits: %d\n", a == sum(grad, u64(samples) * count * 256)); } }
  OK(cudaDeviceSynchronize()); }
