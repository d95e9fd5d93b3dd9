// Counts what a rank sends and receives for the rows of its lists, over links of one kind.
//
// Lists are sorted, and rows that cost as many bytes are contiguous, so two binary searches count them. A search makes
// about 20 dependent reads, which hit the cache. All ranges are searched in parallel. docs/measurements/monitoring.md
// has the cost.
#include "traffic.cuh"

// The rows of a part of a table at an owner.
struct RowRange {
    // The list that has them.
    u32 list;
    // Their numbers: from 0 if no other rows precede them in the list, to NO_END if none follow.
    u32 begin;
    u32 end;
    // Bytes that cross links for each row.
    u32 bytes;
    // 1 if every rank stores the rows, so that only their gradients are sent; else 0.
    u32 of_all;
};

struct RowTraffic {
    // List by list, ascending within each, and where each list starts.
    const u32* rows;
    const u32* starts;
    const RowRange* ranges;
    LinkCounts* counts;
    // Bytes of the messages of fixed size that are sent in a step.
    u64 messages;
    u32 ranges_count;
    // 1 if these messages contain what is counted here; else 0.
    u32 contained;
};

constexpr u32 TRAFFIC_THREADS = 256;
// Greater than the number of any row.
constexpr u32 NO_END = 0xffffffff;

// How many rows of a part of a list come before a number, plus `first`.
__device__ inline u32 rows_below(const u32* rows, u32 first, u32 end, u32 number) {
    if (number == 0) return first;
    if (number == NO_END) return end;
    while (first < end) {
        const u32 middle = first + (end - first) / 2;
        if (rows[middle] < number) {
            first = middle + 1;
        } else {
            end = middle;
        }
    }
    return first;
}

// Grid: one block.
extern "C" __global__ void __launch_bounds__(TRAFFIC_THREADS) row_traffic(const __grid_constant__ RowTraffic p) {
    __shared__ LinkCounts sums;
    if (threadIdx.x == 0) sums = {};
    __syncthreads();
    u64 rows = 0, bytes = 0, reduced = 0;
    for (u32 i = threadIdx.x; i < p.ranges_count; i += TRAFFIC_THREADS) {
        const RowRange range = p.ranges[i];
        const u32 first = p.starts[range.list], end = p.starts[range.list + 1];
        const u32 begin = rows_below(p.rows, first, end, range.begin);
        const u64 found = rows_below(p.rows, begin, end, range.end) - begin;
        if (range.of_all != 0) {
            reduced += found * range.bytes;
        } else {
            rows += found;
            bytes += found * range.bytes;
        }
    }
    add_to(sums.rows, rows);
    add_to(sums.bytes, bytes);
    add_to(sums.reduced, reduced);
    __syncthreads();
    if (threadIdx.x != 0) return;
    add_to(p.counts->rows, sums.rows);
    add_to(p.counts->bytes, sums.bytes);
    add_to(p.counts->reduced, sums.reduced);
    add_to(p.counts->padding, p.messages - (p.contained != 0 ? sums.bytes + sums.reduced : 0));
}
