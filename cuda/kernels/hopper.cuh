// Hopper's own instructions: barriers in shared memory that count bytes, copies of tiles by the tensor memory
// accelerator (TMA), and products of warpgroups.
//
// Addresses in shared memory are 32-bit numbers here. Tiles have the TMA's 128-byte swizzling: rows of 128 bytes,
// with the 16-byte piece p of row r stored at position p ^ (r % 8).
#pragma once

#include "element.cuh"

// A matrix descriptor that the driver makes (`cuTensorMapEncodeTiled`). It must be a kernel parameter.
struct alignas(64) TensorMap {
    u64 words[16];
};

__device__ inline u32 shared_address(const void* pointer) { return u32(__cvta_generic_to_shared(pointer)); }

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

// --- Barriers. A phase ends when all have arrived and all announced bytes have been copied.

__device__ inline void barrier_make(u32 barrier, u32 arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

// Makes barriers visible to the TMA and to the other blocks of the cluster.
__device__ inline void barriers_made() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

__device__ inline void arrive(u32 barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

// Arrives at the barrier with this address in another block of the cluster.
__device__ inline void arrive_at(u32 barrier, u32 block) {
    asm volatile(
        "{\n.reg .b32 there;\n"
        "mapa.shared::cluster.u32 there, %0, %1;\n"
        "mbarrier.arrive.shared::cluster.b64 _, [there];\n}" ::"r"(barrier),
        "r"(block)
        : "memory");
}

__device__ inline void arrive_with_bytes(u32 barrier, u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}

// Waits for the end of the phase with this parity. No scope wider than the block is named, here and in `arrive_at`:
// only the TMA and products access the data that these barriers guard, and a wider scope empties the L1 cache each
// time.
__device__ inline void wait(u32 barrier, u32 parity) {
    asm volatile(
        "{\n.reg .pred done;\n"
        "again:\n"
        "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
        "@done bra out;\n"
        "bra again;\n"
        "out:\n}" ::"r"(barrier),
        "r"(parity)
        : "memory");
}

// Waits for other warps of the block: `threads` in all that name the same barrier number, which starts at 1.
__device__ inline void meet(u32 number, u32 threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(number), "r"(threads) : "memory");
}

__device__ inline void cluster_meet() {
    asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
}

__device__ inline u32 cluster_rank() {
    u32 rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}

// Copies consecutive bytes, a multiple of 16.
__device__ inline void fetch_bytes(u32 to, const void* from, u32 bytes, u32 barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
                 "l"(from), "r"(bytes), "r"(barrier)
                 : "memory");
}

// --- Copies of tiles. Elements outside the matrix are read as 0 and not written.

__device__ inline void prefetch(const TensorMap& map) {
    asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}

__device__ inline void fetch_tile(u32 to, const TensorMap& from, u32 barrier, u32 column, u32 row) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], [%2];" ::"r"(to),
        "l"(&from), "r"(barrier), "r"(column), "r"(row)
        : "memory");
}

// Copies to the same address in the blocks of the cluster whose bits are set, and counts at the barrier in each.
__device__ inline void fetch_tile_for(u32 to, const TensorMap& from, u32 barrier, u32 column, u32 row, u16 blocks) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster"
        " [%0], [%1, {%3, %4}], [%2], %5;" ::"r"(to),
        "l"(&from), "r"(barrier), "r"(column), "r"(row), "h"(blocks)
        : "memory");
}

__device__ inline void write_tile(const TensorMap& to, u32 from, u32 column, u32 row) {
    asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%2, %3}], [%1];" ::"l"(&to), "r"(from),
                 "r"(column), "r"(row)
                 : "memory");
}

__device__ inline void writes_begun() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
// Waits until writes have read their shared memory.
__device__ inline void writes_read() { asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory"); }
// Waits until writes are complete.
__device__ inline void writes_done() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }
// Makes this thread's stores to shared memory visible to the TMA, after a barrier of the block.
__device__ inline void stores_shown() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// --- 8 x 8 pieces of 16-bit elements, four at a time. A product's sums have its rows along the lanes; in memory they
// run along its columns.

__device__ inline void load_pieces(u32 (&pieces)[4], u32 from) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(pieces[0]), "=r"(pieces[1]), "=r"(pieces[2]), "=r"(pieces[3])
                 : "r"(from));
}

__device__ inline void store_pieces(u32 to, const u32 (&pieces)[4]) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(pieces[0]),
                 "r"(pieces[1]), "r"(pieces[2]), "r"(pieces[3])
                 : "memory");
}

// Stores pieces of 8 rows of 16 bytes in register order, four bytes per lane.
__device__ inline void store_pieces_straight(u32 to, const u32 (&pieces)[4]) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(pieces[0]),
                 "r"(pieces[1]), "r"(pieces[2]), "r"(pieces[3])
                 : "memory");
}

__device__ inline void store_word(u32 to, u32 word) {
    asm volatile("st.shared.b32 [%0], %1;" ::"r"(to), "r"(word) : "memory");
}

__device__ inline __nv_bfloat162 as_pair(u32 pair) { return reinterpret_cast<const __nv_bfloat162&>(pair); }
__device__ inline float2 unpacked_pair(u32 pair) {
    return make_float2(__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000u));
}
__device__ inline u32 packed_pair(float2 values) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(values.x, values.y);
    return reinterpret_cast<const u32&>(pair);
}

// --- Products of a warpgroup.

template <u32 REGISTERS>
__device__ inline void take_registers() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}
template <u32 REGISTERS>
__device__ inline void give_registers() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}

// Descriptor of a factor in shared memory: rows of 64 of the depth or, for a transposed left factor, of 64 of its
// rows. `far` is the distance between groups of eight rows.
__device__ inline u64 factor(u32 address, u32 far) {
    return u64(1) << 62 | u64(far >> 4) << 32 | u64(1) << 16 | u64((address & 0x3ffff) >> 4);
}

__device__ inline void products_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ inline void products_end() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <u32 LEFT>
__device__ inline void products_done() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(LEFT) : "memory");
}

// The sums of a 64 x 160 product: their names in the instruction, and their registers.
#define SUMS_NAMES                                                                                                    \
    "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, "      \
    "%23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, "       \
    "%44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, %64, "       \
    "%65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79}, "
#define SUMS(d)                                                                                                       \
    "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),                   \
    "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),             \
    "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),           \
    "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]),           \
    "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]),           \
    "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]),           \
    "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]),           \
    "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63]),           \
    "+f"(d[64]), "+f"(d[65]), "+f"(d[66]), "+f"(d[67]), "+f"(d[68]), "+f"(d[69]), "+f"(d[70]), "+f"(d[71]),           \
    "+f"(d[72]), "+f"(d[73]), "+f"(d[74]), "+f"(d[75]), "+f"(d[76]), "+f"(d[77]), "+f"(d[78]), "+f"(d[79])

// sums (64 x 160) = a (64 x 16) b (16 x 160), added to the previous sums if `add` is not 0; `TURN_A`: a is
// transposed.
template <int TURN_A>
__device__ inline void multiply(float (&d)[80], u64 a, u64 b, u32 add) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %82, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n160k16.f32.bf16.bf16 " SUMS_NAMES "%80, %81, p, 1, 1, %83, 0;\n}\n"
        : SUMS(d)
        : "l"(a), "l"(b), "r"(add), "n"(TURN_A));
}

// The same in fp8: sums (64 x 160) = a (64 x 32) b (32 x 160), both e4m3 with the depth along their rows.
__device__ inline void multiply_fp8(float (&d)[80], u64 a, u64 b, u32 add) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %82, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n160k32.f32.e4m3.e4m3 " SUMS_NAMES "%80, %81, p, 1, 1;\n}\n"
        : SUMS(d)
        : "l"(a), "l"(b), "r"(add));
}

#undef SUMS
#undef SUMS_NAMES

#endif
