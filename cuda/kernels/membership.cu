// Gives rows of dynamic tables to ids as they come, as `membership` in `embedding` does: which id has which row after a
// batch is the same, and so are scores and counts.
//
// Finding ids that have a row depends on no order, nor does the order in which others are noted: equal ids share an
// entry, which has the first of their positions. Then one thread block per virtual shard decides about its entries in
// the order of positions. Where the index has a row's slot depends on timing, and nothing depends on that.
//
// A look-up of an id that has a row reads 8 bytes of the id, about 5 places in one or two sectors of the index, a row's
// key and its score; it writes the row's number, and the score once per row and step.
#include "common.cuh"

constexpr u32 THREADS = 256;
// Ids that a thread of the kernels over look-ups takes.
constexpr u32 LOOK_UPS = 4;
// The most entries of a shard that are sorted in shared memory, and the most rows that lose their id at a time.
constexpr u32 SORTED_MAX = 1024;
constexpr u32 BINS = 256;
constexpr u32 DEPTH = 4;
constexpr u32 AGE_LOOK_UPS = 8;
constexpr u32 SHARED_ROW = 0;
constexpr u32 NONE = ~0u;

enum Eviction : u32 { KEEP, LRU, LFU, TTL };

struct Members {
    // Per row of an id, shard by shard.
    u64* keys;
    u32* scores;
    // Per shard, a bit per slot: whether an id has it.
    u32* occupancy;
    // Per shard: slot + 1 and some bits of the hash; 0 where nothing is, and only ones for a slot where something was.
    u32* places;
    // Per shard: [line][counter].
    u8* counters;
    u64* added;
    // Per shard: slots that ids have, and places where something was.
    u32* occupied;
    u32* vacated;
    // Per shard: no score of a slot is below, unless scores count look-ups.
    u32* floors;
    // Only with LFU: per shard, a bit per slot that the batch looks up.
    u32* current;
    // Null, or the changes since tracking began: per shard, a bit per slot; and whether the counters changed.
    u32* touched;
    u32* touched_counters;
    // Ids that got a row, ids that lost it, look-ups of ids without a row.
    u64* counts;
    u64 ttl_steps;
    // Its first shard among the shards of all tables.
    u32 first_shard;
    u32 shards;
    u32 slots;
    u32 places_count;
    // Counters per line; 0 if ids get a row at once.
    u32 width;
    u32 admit_after;
    u32 eviction;
    // Whether a batch fails that has an id without a row because all rows are taken.
    u32 fails;
};

// A column whose ids are given rows.
struct MemberColumn {
    u32 table;
    // Where its ids start in a batch, of 64 bits and as rows, and its offsets if it is ragged.
    u32 long_ids;
    u32 ids;
    u32 offsets;
    // Ids per bag; the most for a ragged column.
    u32 hotness;
    u32 ragged;
    // Its first position in a sample, and positions of a sample, over the columns of the table.
    u32 position;
    u32 positions;
};

// What is known of an id that has no row when the batch comes.
struct Entry {
    // The table + 1, and a look-up; 0 where there is none.
    u64 owner;
    // The first position, and the number of look-ups.
    u32 first;
    u32 count;
};

struct Membership {
    const Members* tables;
    const MemberColumn* columns;
    const u64* long_ids;
    u32* ids;
    const u32* offsets;
    // Samples of the batch, per rank.
    const u32* samples;
    // By a hash of the id.
    Entry* entries;
    // Per entry: first the look-ups so far, then the row.
    u32* rows;
    // The entries in use, then by shard with their first positions.
    u32* created;
    u64* by_shard;
    // Where look-ups without a row have their ids.
    u32* absent;
    // Per shard of all tables: entries, and where they begin and end in `by_shard`.
    u32* shard_entries;
    uint2* ranges;
    // The shards with entries.
    u32* active;
    u32* totals;
    // Rows that begin anew, and their number.
    NewRow* new_rows;
    u32* new_count;
    // Per table: the position and the entry of the first id that makes the batch fail; all ones if there is none.
    u64* refused;
    // In page-locked memory, per table: whether there is such an id, and the id.
    ulonglong2* full;
    u64 step;
    u32 mask;
    u32 tables_count;
    // Samples that a batch has room for.
    u32 room;
    // Whether ids get rows; otherwise they are only looked up.
    u32 admits;
    // The batch has the ids and offsets of all ranks, this many apart, but only this rank's receive their rows.
    u32 ranks;
    u32 rank;
    u32 long_ids_stride;
    u32 offsets_stride;
    u32 columns_count;
    u32 reserved;
};

enum Total : u32 { CREATED, ABSENT, ACTIVE, LISTED };

__device__ inline u64 mix(u64 key) {
    u64 hash = key + 0x9E3779B97F4A7C15;
    hash = (hash ^ hash >> 30) * 0xBF58476D1CE4E5B9;
    hash = (hash ^ hash >> 27) * 0x94D049BB133111EB;
    return hash ^ hash >> 31;
}

__device__ inline u32 stamp(u64 step) { return u32(min(step, u64(~0u))); }

__device__ inline u32 oldest(const Members& table, u64 step) {
    return table.eviction == TTL ? stamp(step - min(step, table.ttl_steps)) : 0;
}

__device__ inline u32 words(const Members& table) { return (table.slots + 31) / 32; }

__device__ inline void mark(const Members& table, u32 shard, u32 slot) {
    if (table.touched == nullptr) return;
    u32* word = table.touched + shard * words(table) + slot / 32;
    if ((*word >> slot % 32 & 1) == 0) atomicOr(word, 1u << slot % 32);
}

// The index of a shard: an open-addressing table of slots.
struct Index {
    u32* places;
    const u64* keys;
    u32 count;
    // The bits of a place that have slot + 1.
    u32 slot_mask;

    __device__ Index(const Members& table, u32 shard)
        : places(table.places + u64(shard) * table.places_count),
          keys(table.keys + u64(shard) * table.slots),
          count(table.places_count),
          slot_mask(mask_of(table.slots)) {}

    __device__ static u32 mask_of(u32 slots) { return NONE >> __clz(slots + 1); }

    // Where something was. No slot has this number.
    __device__ u32 vacated() const { return slot_mask; }
    __device__ u32 home(u64 hash) const { return u32((hash & NONE) * count >> 32); }
    __device__ u32 next(u32 place) const { return place + 1 == count ? 0 : place + 1; }
    // Bits of the hash that neither choose the shard nor the home.
    __device__ u32 tag(u64 hash) const { return u32(hash >> 20) & ~slot_mask; }
    __device__ u32 entry(u32 slot, u64 hash) const { return tag(hash) | (slot + 1); }

    // The slot of a key; NONE if it has none.
    __device__ u32 find(u64 key, u64 hash) const {
        const u32 tag = this->tag(hash);
        u32 place = home(hash);
        for (u32 i = 0; i < count; i++, place = next(place)) {
            const u32 there = places[place];
            if (there == 0) return NONE;
            if (there != vacated() && (there & ~slot_mask) == tag && keys[(there & slot_mask) - 1] == key) {
                return (there & slot_mask) - 1;
            }
        }
        return NONE;
    }

    // Removes a slot.
    __device__ void remove(u32 slot, u64 hash) const {
        const u32 entry = this->entry(slot, hash);
        u32 place = home(hash);
        while (places[place] != entry) place = next(place);
        places[place] = vacated();
    }

    // Adds a slot. Returns whether something was at its place.
    __device__ bool insert(u32 slot, u64 hash) const {
        u32 place = home(hash);
        while (true) {
            const u32 there = *const_cast<volatile u32*>(places + place);
            if (there != 0 && there != vacated()) {
                place = next(place);
            } else if (atomicCAS(places + place, there, entry(slot, hash)) == there) {
                return there != 0;
            }
        }
    }
};

// Takes the next number of a counter for each thread that calls this; a warp's threads add at once.
__device__ inline u32 next_of(u32* counter) {
    const u32 lanes = __activemask(), lane = threadIdx.x % WARP, leader = __ffs(lanes) - 1;
    u32 first = 0;
    if (lane == leader) first = atomicAdd(counter, __popc(lanes));
    return __shfl_sync(lanes, first, leader) + __popc(lanes & ((1u << lane) - 1));
}

// Adds a look-up to the entry of its id, and returns the entry.
__device__ inline u32 enter(const Membership& p, u32 number, u32 look_up, u64 key, u64 hash, u32 position) {
    const u64 own = u64(number + 1) << 32 | look_up;
    u32 at = u32(mix(hash ^ number)) & p.mask;
    bool created = false;
    while (true) {
        u64 there = *const_cast<volatile u64*>(&p.entries[at].owner);
        if (there == 0) there = atomicCAS(reinterpret_cast<unsigned long long*>(&p.entries[at].owner), 0, own);
        created = there == 0;
        if (created || (there >> 32 == number + 1 && p.long_ids[u32(there)] == key)) break;
        at = (at + 1) & p.mask;
    }
    if (created) {
        p.created[next_of(p.totals + CREATED)] = at;
        const Members& table = p.tables[number];
        const u32 shard = table.first_shard + u32(__umul64hi(hash, table.shards));
        if (atomicAdd(p.shard_entries + shard, 1) == 0) p.active[next_of(p.totals + ACTIVE)] = shard;
    }
    Entry& entry = p.entries[at];
    if (position < *const_cast<volatile u32*>(&entry.first)) atomicMin(&entry.first, position);
    atomicAdd(&entry.count, 1);
    return at;
}

// Updates the score of a row that a batch looks up.
__device__ inline void score(const Members& table, const Membership& p, u32 shard, u32 slot, u32* own) {
    if (table.eviction != LFU) {
        if (*own != stamp(p.step)) *own = stamp(p.step);
        return;
    }
    u32* word = table.current + shard * words(table) + slot / 32;
    if ((*word >> slot % 32 & 1) == 0) atomicOr(word, 1u << slot % 32);
    // A warp's look-ups of a row are added at once.
    const u32 equals = __match_any_sync(__activemask(), reinterpret_cast<u64>(own));
    if ((equals & ((1u << threadIdx.x % WARP) - 1)) != 0) return;
    const u32 look_ups = __popc(equals);
    // A batch has fewer than 2^31 look-ups.
    u32 before = *const_cast<volatile u32*>(own);
    if (before < 1u << 31) {
        atomicAdd(own, look_ups);
        return;
    }
    while (before != NONE) {
        const u32 seen = atomicCAS(own, before, before + min(look_ups, NONE - before));
        if (seen == before) return;
        before = seen;
    }
}

// Finds the rows of ids, and enters those without one. Grid: x so that all ids of a column are taken; y the columns of
// each rank.
extern "C" __global__ void __launch_bounds__(THREADS) membership_find(const __grid_constant__ Membership p) {
    const u32 rank = blockIdx.y / p.columns_count;
    const MemberColumn column = p.columns[blockIdx.y % p.columns_count];
    const Members& table = p.tables[column.table];
    const u32 samples = min(p.samples[rank], p.room);
    const u32* offsets = p.offsets + rank * p.offsets_stride + column.offsets;
    const u32 long_ids = rank * p.long_ids_stride + column.long_ids;
    const u32 count = column.ragged != 0 ? offsets[samples] : samples * column.hotness;
    const u32 first = blockIdx.x * THREADS * LOOK_UPS + threadIdx.x, step = oldest(table, p.step);
    const bool is_own = rank == p.rank;
#pragma unroll
    for (u32 i = 0; i < LOOK_UPS; i++) {
        const u32 at = first + i * THREADS;
        if (at >= count) return;
        const u64 key = p.long_ids[long_ids + at], hash = mix(key);
        const u32 shard = u32(__umul64hi(hash, table.shards));
        const u32 slot = Index(table, shard).find(key, hash);
        u32* own = table.scores + u64(shard) * table.slots + slot;
        const bool there = slot != NONE && *const_cast<volatile u32*>(own) >= step;
        u32 row = there ? 1 + shard * table.slots + slot : SHARED_ROW;
        if (p.admits != 0 && there) {
            score(table, p, shard, slot, own);
            mark(table, shard, slot);
        } else if (p.admits != 0) {
            u32 sample = at / column.hotness, place = at % column.hotness;
            if (column.ragged != 0) {
                // The last sample that starts there or before; samples with empty bags come before it.
                sample = 0;
                for (u32 high = samples; high - sample > 1;) {
                    const u32 middle = (sample + high) / 2;
                    (offsets[middle] <= at ? sample : high) = middle;
                }
                place = at - offsets[sample];
            }
            for (u32 before = 0; before < rank; before++) sample += p.samples[before];
            const u32 position = sample * column.positions + column.position + place;
            row = enter(p, column.table, long_ids + at, key, hash, position);
            if (is_own) p.absent[next_of(p.totals + ABSENT)] = column.ids + at;
        }
        if (is_own) p.ids[column.ids + at] = row;
    }
}

// Reserves the place of each shard's entries. Grid: any.
extern "C" __global__ void __launch_bounds__(THREADS) membership_reserve(const __grid_constant__ Membership p) {
    const u32 count = p.totals[ACTIVE];
    for (u32 i = blockIdx.x * THREADS + threadIdx.x; i < count; i += gridDim.x * THREADS) {
        const u32 shard = p.active[i], entries = p.shard_entries[shard];
        const u32 begin = atomicAdd(p.totals + LISTED, entries);
        p.ranges[shard] = make_uint2(begin, begin + entries);
    }
}

__device__ inline u64 key_of(const Membership& p, u32 entry) { return p.long_ids[u32(p.entries[entry].owner)]; }

// Lists the entries of each shard. Grid: any.
extern "C" __global__ void __launch_bounds__(THREADS) membership_list(const __grid_constant__ Membership p) {
    const u32 count = p.totals[CREATED];
    for (u32 i = blockIdx.x * THREADS + threadIdx.x; i < count; i += gridDim.x * THREADS) {
        const u32 entry = p.created[i];
        const Members& table = p.tables[u32(p.entries[entry].owner >> 32) - 1];
        const u32 shard = table.first_shard + u32(__umul64hi(mix(key_of(p, entry)), table.shards));
        // This leaves 0 for the next batch.
        const u32 at = p.ranges[shard].x + atomicSub(p.shard_entries + shard, 1) - 1;
        p.by_shard[at] = u64(p.entries[entry].first) << 32 | entry;
    }
}

// Sorts `count` values by the comparison of two of them, ascending: a bitonic sort that never moves what would be
// behind the last value. All threads of the block must call this.
template <class Less, class Swap>
__device__ inline void sort(u32 count, Less less, Swap swap) {
    if (count < 2) return;
    const u32 half = 1u << (31 - __clz(count - 1));
    const auto pass = [&](u32 distance, bool flips) {
        __syncthreads();
        for (u32 i = threadIdx.x; i < half; i += THREADS) {
            const u32 low = i / distance * 2 * distance + i % distance;
            const u32 end = low / (2 * distance) * 2 * distance + 2 * distance;
            const u32 high = flips ? end - 1 - i % distance : low + distance;
            if (high < count && less(high, low)) swap(low, high);
        }
    };
    for (u32 size = 1; size <= half; size *= 2) {
        pass(size, true);
        for (u32 distance = size / 2; distance > 0; distance /= 2) pass(distance, false);
    }
    __syncthreads();
}

// The smallest of some values: all below `low`, of which there are `below`, and `wanted` of the `count` values from
// `low` to `high`.
template <class Value>
struct Smallest {
    Value low;
    Value high;
    u32 wanted;
    u32 count;
    u32 below;

    // Whether all up to `high` can be sorted.
    __device__ bool fit() const { return below + count <= SORTED_MAX; }
};

// Shared memory of a block that admits the entries of a shard.
struct Scratch {
    u32 warps[THREADS / WARP + 1];
    u32 bins[BINS];
    u32 bin;
    // The first bin that is not empty.
    u32 first;
    u32 next;
    u32 admitted;
    u32 ages;
    u32 evicted;
    u32 unadmitted;
    u32 vacated;
    u32 selected;
    // Where the new rows of the entries are noted.
    u32 new_rows;
    union {
        // The entries, if they are few.
        u64 entries[SORTED_MAX];
        struct {
            u32 counts[THREADS];
            u32 places[DEPTH][THREADS];
        } counted;
    };
    // Slots that lose their id.
    u64 keys[SORTED_MAX];
    u32 scores[SORTED_MAX];
    u32 slots[SORTED_MAX];
};

// Narrows down the range of the smallest values until all up to its end can be sorted, or it is a single value. `each`
// passes all values to a function. Returns a value below which there is none.
template <class Value, class Each>
__device__ inline Value narrow(Scratch& s, Smallest<Value>& range, Each each) {
    Value least = range.low;
    while (!range.fit() && range.low != range.high) {
        const Value width = range.high - range.low;
        const u32 bits = sizeof(Value) == 8 ? 64 - __clzll(width) : 32 - __clz(u32(width));
        const u32 shift = bits > 8 ? bits - 8 : 0;
        s.bins[threadIdx.x] = 0;
        if (threadIdx.x == 0) s.first = BINS;
        __syncthreads();
        each([&](Value own) {
            if (own >= range.low && own <= range.high) atomicAdd(s.bins + u32((own - range.low) >> shift), 1);
        });
        __syncthreads();
        u32 total;
        const u32 own = s.bins[threadIdx.x], before = exclusive_sum<BINS>(own, s.warps, total);
        range.wanted = min(range.wanted, total);
        if (total == 0) {
            range.count = 0;
            break;
        }
        if (own > 0) atomicMin(&s.first, threadIdx.x);
        if (before < range.wanted && before + own >= range.wanted) {
            s.bin = threadIdx.x;
            s.next = before;
        }
        __syncthreads();
        if (range.below == 0) least = range.low + (Value(s.first) << shift);
        range.count = s.bins[s.bin];
        range.wanted -= s.next;
        range.below += s.next;
        range.low += Value(s.bin) << shift;
        range.high = range.low + min(range.high - range.low, (Value(1) << shift) - 1);
        __syncthreads();
    }
    return least;
}

// What a block needs to admit the entries of a shard.
struct Shard {
    const Membership& p;
    const Members& table;
    u32 shard;
    Index index;
    u64* keys;
    u32* scores;
    u32* occupancy;
    u32 number;

    __device__ Shard(const Membership& p, u32 number, u32 shard)
        : p(p),
          table(p.tables[number]),
          shard(shard),
          index(table, shard),
          keys(table.keys + u64(shard) * table.slots),
          scores(table.scores + u64(shard) * table.slots),
          occupancy(table.occupancy + shard * words(table)),
          number(number) {}

    __device__ bool is_occupied(u32 slot) const { return occupancy[slot / 32] >> slot % 32 & 1; }

    // Passes the slots that the batch neither looks up nor has given to an id, with their scores. All are occupied.
    template <class Visit>
    __device__ void each_other(Visit visit) const {
        // Scores that a thread loads before it looks at them, so that it waits once.
        constexpr u32 AT_ONCE = 8;
        const u32* current = table.current + shard * words(table);
        const u32 newest = stamp(p.step);
        for (u32 first = threadIdx.x; first < table.slots; first += THREADS * AT_ONCE) {
            u32 own[AT_ONCE];
            bool leaves[AT_ONCE];
#pragma unroll
            for (u32 i = 0; i < AT_ONCE; i++) {
                const u32 slot = first + i * THREADS;
                leaves[i] = slot < table.slots;
                own[i] = leaves[i] ? scores[slot] : newest;
                if (table.eviction == LFU && leaves[i]) leaves[i] = (current[slot / 32] >> slot % 32 & 1) == 0;
            }
#pragma unroll
            for (u32 i = 0; i < AT_ONCE; i++) {
                if (leaves[i] && (table.eviction == LFU || own[i] != newest)) visit(first + i * THREADS, own[i]);
            }
        }
    }

    // Reserves a place for the new rows of `count` entries of the list, from `first` on. One thread calls this.
    __device__ void reserve(Scratch& s, u32 first, u32 count) const {
        s.new_rows = atomicAdd(p.new_count, count) - first;
    }

    // Gives a slot to the id of an entry of the list.
    __device__ void give(Scratch& s, u32 slot, const u64* list, u32 at) const {
        const u32 entry = u32(list[at]);
        const u64 key = key_of(p, entry);
        keys[slot] = key;
        scores[slot] = table.eviction == LFU ? p.rows[entry] : stamp(p.step);
        if (table.eviction == LFU) atomicOr(table.current + shard * words(table) + slot / 32, 1u << slot % 32);
        if (index.insert(slot, mix(key))) atomicSub(&s.vacated, 1);
        mark(table, shard, slot);
        const u32 row = 1 + shard * table.slots + slot;
        p.rows[entry] = row;
        p.new_rows[s.new_rows + at] = {key, row, number};
    }

    // Takes the slots of expired ids, if entries have such.
    __device__ void expire(Scratch& s, const u64* list, u32 count) const {
        for (u32 i = threadIdx.x; i < count; i += THREADS) {
            const u64 key = key_of(p, u32(list[i])), hash = mix(key);
            const u32 slot = index.find(key, hash);
            if (slot == NONE) continue;
            index.remove(slot, hash);
            atomicAnd(occupancy + slot / 32, ~(1u << slot % 32));
            atomicAdd(&s.vacated, 1);
            atomicAdd(&s.evicted, 1);
            mark(table, shard, slot);
        }
        __syncthreads();
    }

    // Counts the look-ups of entries in their order, and moves those that get a row to the front of the list.
    __device__ void count(Scratch& s, u64* list, u32 count) const {
        u8* counters = table.counters + u64(shard) * DEPTH * table.width;
        u64* added = table.added + shard;
        for (u32 first = 0; first < count; first += THREADS) {
            const u32 here = min(count - first, THREADS);
            u64 own = 0;
            if (threadIdx.x < here) {
                own = list[first + threadIdx.x];
                const u64 hash = mix(mix(key_of(p, u32(own))) ^ 0xA24BAED4963EE407);
                for (u32 line = 0; line < DEPTH; line++) {
                    const u32 at = line * table.width + (u32(hash + line * (hash >> 32 | 1)) & (table.width - 1));
                    s.counted.places[line][threadIdx.x] = at;
                    asm volatile("prefetch.global.L1 [%0];" ::"l"(counters + at));
                }
                s.counted.counts[threadIdx.x] = p.entries[u32(own)].count;
            }
            if (threadIdx.x == 0) s.next = 0;
            __syncthreads();
            while (s.next < here) {
                __syncthreads();
                if (threadIdx.x == 0) {
                    u32 i = s.next;
                    u64 sum = *added;
                    bool ages = false;
                    for (; i < here && !ages; i++) {
                        u8* at[DEPTH];
                        u32 before = 255;
#pragma unroll
                        for (u32 line = 0; line < DEPTH; line++) {
                            at[line] = counters + s.counted.places[line][i];
                            before = min(before, u32(*at[line]));
                        }
                        const u32 look_ups = s.counted.counts[i];
                        const u32 all = before + min(look_ups, NONE - before);
                        const u8 stored = u8(min(all, 255u));
                        // Lines do not overlap.
#pragma unroll
                        for (u32 line = 0; line < DEPTH; line++) *at[line] = max(*at[line], stored);
                        s.counted.counts[i] = all;
                        sum += look_ups;
                        ages = sum >= u64(AGE_LOOK_UPS) * table.width;
                        if (ages) sum = 0;
                    }
                    *added = sum;
                    s.next = i;
                    s.ages = ages;
                }
                __syncthreads();
                if (s.ages != 0) {
                    // A line has at least 1024 counters.
                    u32* fours = reinterpret_cast<u32*>(counters);
                    for (u32 i = threadIdx.x; i < table.width; i += THREADS) fours[i] = fours[i] >> 1 & 0x7f7f7f7f;
                    __syncthreads();
                }
            }
            const u32 all = threadIdx.x < here ? s.counted.counts[threadIdx.x] : 0;
            const bool admitted = threadIdx.x < here && all >= table.admit_after;
            u32 total;
            const u32 before = s.admitted + exclusive_sum<THREADS>(admitted, s.warps, total);
            if (admitted) {
                list[before] = own;
                p.rows[u32(own)] = all;
            } else if (threadIdx.x < here) {
                p.rows[u32(own)] = SHARED_ROW;
                atomicAdd(&s.unadmitted, p.entries[u32(own)].count);
            }
            __syncthreads();
            if (threadIdx.x == 0) s.admitted += total;
            __syncthreads();
        }
    }

    // Gives free slots, ascending, to the first `count` entries. There are as many.
    __device__ void fill(Scratch& s, const u64* list, u32 count) const {
        u32 done = 0;
        for (u32 first = 0; first < words(table) && done < count; first += THREADS) {
            const u32 word = first + threadIdx.x, slots = table.slots - min(table.slots, word * 32);
            u32 free = word < words(table) ? ~occupancy[word] : 0;
            if (slots < 32) free &= (1u << slots) - 1;
            u32 total;
            u32 number = done + exclusive_sum<THREADS>(__popc(free), s.warps, total);
            for (; free != 0 && number < count; number++, free &= free - 1) {
                const u32 bit = __ffs(free) - 1;
                occupancy[word] |= 1u << bit;
                give(s, word * 32 + bit, list, number);
            }
            done += total;
        }
        __syncthreads();
    }

    // A range of all scores that may leave.
    __device__ Smallest<u32> others(Scratch& s, u32 most) const {
        // Scores only grow, unless they count look-ups.
        if (table.eviction != LFU) return {table.floors[shard], stamp(p.step) - 1, most, table.slots, 0};
        u32 low = NONE, high = 0;
        each_other([&](u32, u32 score) {
            low = min(low, score);
            high = max(high, score);
        });
        if (threadIdx.x == 0) {
            s.bins[0] = NONE;
            s.bins[1] = 0;
        }
        __syncthreads();
        atomicMin(s.bins, low);
        atomicMax(s.bins + 1, high);
        __syncthreads();
        const Smallest<u32> all{min(s.bins[0], s.bins[1]), s.bins[1], most, table.slots, 0};
        __syncthreads();
        return all;
    }

    // Selects the `most` slots that lose their id first, or all that can, in order. All slots are occupied.
    __device__ void select(Scratch& s, u32 most) const {
        Smallest<u32> by_score = others(s, most);
        if (threadIdx.x == 0) s.selected = 0;
        const u32 least = narrow(s, by_score, [&](auto visit) {
            each_other([&](u32, u32 score) { visit(score); });
        });
        // Ids with equal scores leave by their keys.
        Smallest<u64> by_key{0, ~u64(0), by_score.wanted, by_score.count, by_score.below};
        narrow(s, by_key, [&](auto visit) {
            each_other([&](u32 slot, u32 score) {
                if (score == by_score.low) visit(keys[slot]);
            });
        });
        __syncthreads();
        if (threadIdx.x == 0) table.floors[shard] = least;
        const bool by_keys = !by_score.fit();
        each_other([&](u32 slot, u32 score) {
            if (score > by_score.high || (by_keys && score == by_score.low && keys[slot] > by_key.high)) return;
            const u32 at = atomicAdd(&s.selected, 1);
            s.keys[at] = keys[slot];
            s.scores[at] = score;
            s.slots[at] = slot;
        });
        __syncthreads();
        sort(
            s.selected,
            [&](u32 one, u32 other) {
                return s.scores[one] != s.scores[other] ? s.scores[one] < s.scores[other] : s.keys[one] < s.keys[other];
            },
            [&](u32 one, u32 other) {
                const u64 key = s.keys[one];
                const u32 score = s.scores[one], slot = s.slots[one];
                s.keys[one] = s.keys[other], s.scores[one] = s.scores[other], s.slots[one] = s.slots[other];
                s.keys[other] = key, s.scores[other] = score, s.slots[other] = slot;
            });
    }

    // Gives the slots of other ids to entries from `first` on, as long as there are any. Returns the first without one.
    __device__ u32 evict(Scratch& s, const u64* list, u32 first, u32 count) const {
        while (first < count) {
            const u32 most = min(count - first, SORTED_MAX);
            select(s, most);
            const u32 selected = min(s.selected, most);
            for (u32 i = threadIdx.x; i < selected; i += THREADS) index.remove(s.slots[i], mix(s.keys[i]));
            if (threadIdx.x == 0) {
                s.vacated += selected;
                s.evicted += selected;
                reserve(s, first, selected);
            }
            __syncthreads();
            for (u32 i = threadIdx.x; i < selected; i += THREADS) give(s, s.slots[i], list, first + i);
            __syncthreads();
            first += selected;
            if (selected < most) break;
        }
        return first;
    }

    // Makes the index anew if there are many places where something was: probes would become long.
    __device__ void tidy(Scratch& s) const {
        if (s.vacated <= table.places_count / 16) return;
        for (u32 place = threadIdx.x; place < table.places_count; place += THREADS) index.places[place] = 0;
        __syncthreads();
        for (u32 slot = threadIdx.x; slot < table.slots; slot += THREADS) {
            if (is_occupied(slot)) index.insert(slot, mix(keys[slot]));
        }
        if (threadIdx.x == 0) s.vacated = 0;
        __syncthreads();
    }

    // Decides about `count` entries.
    __device__ void admit(Scratch& s, u64* list, u32 count) const {
        if (threadIdx.x == 0) {
            s.admitted = s.evicted = s.unadmitted = 0;
            s.vacated = table.vacated[shard];
        }
        __syncthreads();
        if (table.eviction == TTL) expire(s, list, count);
        if (count <= SORTED_MAX) {
            for (u32 i = threadIdx.x; i < count; i += THREADS) s.entries[i] = list[i];
            sort_entries(s.entries, count);
            for (u32 i = threadIdx.x; i < count; i += THREADS) list[i] = s.entries[i];
            __syncthreads();
        } else {
            sort_entries(list, count);
        }
        if (table.width > 0) {
            this->count(s, list, count);
            if (threadIdx.x == 0 && table.touched_counters != nullptr) table.touched_counters[shard] = 1;
        } else {
            if (threadIdx.x == 0) s.admitted = count;
            for (u32 i = threadIdx.x; i < count; i += THREADS) p.rows[u32(list[i])] = p.entries[u32(list[i])].count;
            __syncthreads();
        }
        const u32 admitted = s.admitted, occupied = table.occupied[shard] - (table.eviction == TTL ? s.evicted : 0);
        const u32 filled = min(admitted, table.slots - occupied);
        if (threadIdx.x == 0) reserve(s, 0, filled);
        __syncthreads();
        fill(s, list, filled);
        const u32 given = table.eviction == KEEP ? filled : evict(s, list, filled, admitted);
        for (u32 i = given + threadIdx.x; i < admitted; i += THREADS) {
            const u32 entry = u32(list[i]);
            p.rows[entry] = SHARED_ROW;
            atomicAdd(&s.unadmitted, p.entries[entry].count);
            if (table.fails != 0) atomicMin(reinterpret_cast<unsigned long long*>(p.refused + number), list[i]);
        }
        __syncthreads();
        tidy(s);
        if (threadIdx.x == 0) {
            table.occupied[shard] = occupied + filled;
            table.vacated[shard] = s.vacated;
            auto* counts = reinterpret_cast<unsigned long long*>(table.counts);
            if (given > 0) atomicAdd(counts, given);
            if (s.evicted > 0) atomicAdd(counts + 1, s.evicted);
            if (s.unadmitted > 0) atomicAdd(counts + 2, s.unadmitted);
        }
        __syncthreads();
    }

    __device__ static void sort_entries(u64* entries, u32 count) {
        sort(
            count, [&](u32 one, u32 other) { return entries[one] < entries[other]; },
            [&](u32 one, u32 other) {
                const u64 entry = entries[one];
                entries[one] = entries[other];
                entries[other] = entry;
            });
    }
};

// Admits the entries, shard by shard. Grid: any.
extern "C" __global__ void __launch_bounds__(THREADS) membership_admit(const __grid_constant__ Membership p) {
    static_assert(THREADS == BINS);
    __shared__ Scratch s;
    const u32 active = p.totals[ACTIVE];
    for (u32 i = blockIdx.x; i < active; i += gridDim.x) {
        const u32 shard = p.active[i];
        u32 number = 0;
        for (u32 high = p.tables_count; high - number > 1;) {
            const u32 middle = (number + high) / 2;
            (p.tables[middle].first_shard <= shard ? number : high) = middle;
        }
        const uint2 range = p.ranges[shard];
        Shard(p, number, shard - p.tables[number].first_shard).admit(s, p.by_shard + range.x, range.y - range.x);
    }
}

// Replaces entries by their rows. Grid: any.
extern "C" __global__ void __launch_bounds__(THREADS) membership_resolve(const __grid_constant__ Membership p) {
    const u32 count = p.totals[ABSENT];
    for (u32 i = blockIdx.x * THREADS + threadIdx.x; i < count; i += gridDim.x * THREADS) {
        u32* id = p.ids + p.absent[i];
        *id = p.rows[*id];
    }
    if (blockIdx.x > 0) return;
    for (u32 number = threadIdx.x; number < p.tables_count; number += THREADS) {
        const u64 refused = p.refused[number];
        if (refused != ~u64(0)) p.full[number] = make_ulonglong2(1, key_of(p, u32(refused)));
    }
}

// Forgets the entries of the batch before. Grid: any.
extern "C" __global__ void __launch_bounds__(THREADS) membership_clear(const __grid_constant__ Membership p) {
    const u32 count = p.totals[CREATED];
    for (u32 i = blockIdx.x * THREADS + threadIdx.x; i < count; i += gridDim.x * THREADS) {
        p.entries[p.created[i]] = {0, NONE, 0};
    }
}

// Makes the index of each shard from keys and occupancy. Grid: any; a block takes a shard.
extern "C" __global__ void __launch_bounds__(THREADS) membership_index(const __grid_constant__ Membership p) {
    __shared__ u32 occupied;
    for (u32 number = 0; number < p.tables_count; number++) {
        for (u32 shard = blockIdx.x; shard < p.tables[number].shards; shard += gridDim.x) {
            const Shard own(p, number, shard);
            if (threadIdx.x == 0) occupied = 0;
            for (u32 place = threadIdx.x; place < own.table.places_count; place += THREADS) own.index.places[place] = 0;
            __syncthreads();
            for (u32 slot = threadIdx.x; slot < own.table.slots; slot += THREADS) {
                if (!own.is_occupied(slot)) continue;
                own.index.insert(slot, mix(own.keys[slot]));
                atomicAdd(&occupied, 1);
            }
            __syncthreads();
            if (threadIdx.x == 0) {
                own.table.occupied[shard] = occupied;
                own.table.vacated[shard] = own.table.floors[shard] = 0;
            }
            __syncthreads();
        }
    }
}
