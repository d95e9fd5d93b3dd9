// Small products by tensor cores, of any GPU that has them: sixteen rows by eight columns, sixteen deep. A warp has the
// factors in registers.
#pragma once

#include "hopper.cuh"

constexpr u32 EDGE = 16;
constexpr u32 PIECE = 8;

__device__ inline u32 rounded_up(u32 value, u32 multiple) { return (value + multiple - 1) / multiple * multiple; }

// Sixteen rows of sixteen elements, as the left factor of `multiply_add`. Registers 0 and 2 are the first eight rows
// as the right factor, read as columns; 1 and 3 are the other rows.
template <class T>
__device__ inline void load_rows(u32 (&tile)[4], const T* from, u32 row) {
    const u32 lane = threadIdx.x % WARP, address = shared_address(from + lane % EDGE * row + lane / EDGE * PIECE);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(tile[0]), "=r"(tile[1]), "=r"(tile[2]), "=r"(tile[3])
                 : "r"(address)
                 : "memory");
}

// The same as the right factor: registers 0 and 1 are the first eight columns, 2 and 3 the others. Each lane gives
// the address of eight elements of a row; the first sixteen lanes do so for the first columns.
template <class T>
__device__ inline void load_columns(u32 (&tile)[4], const T* from) {
    const u32 address = shared_address(from);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(tile[0]), "=r"(tile[1]), "=r"(tile[2]), "=r"(tile[3])
                 : "r"(address)
                 : "memory");
}

// A lane's sums belong to row `lane / 4`, columns `lane % 4 * 2` and the next, then to the row eight below.
__device__ inline void multiply_add(const bf16*, float (&sums)[4], const u32 (&left)[4], u32 right_low,
                                    u32 right_high) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "r"(right_low), "r"(right_high));
}

__device__ inline void multiply_add(const f16*, float (&sums)[4], const u32 (&left)[4], u32 right_low,
                                    u32 right_high) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "r"(right_low), "r"(right_high));
}
