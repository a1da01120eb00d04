// The common part of the prefill kernels: their argument, their rows, the positions that each row sees, and their
// results.
//
// An item whose range ends before its tokens, or begins after position 0, is one of several for the same tokens. It
// writes
// partial results, which `combine_splits` combines.
#pragma once
#include "attention.cuh"

// Some tokens of a segment, with some of the positions that they see.
struct Item {
    // First row of its queries, and of its output.
    u32 query;
    u32 output;
    u32 tokens;
    // Position of the first token.
    u32 position;
    // Index in `tables` at which the sequence's page table begins.
    u32 table;
    // Positions [begin, end); begin is not after `position`, so that every row sees a key.
    u32 begin;
    u32 end;
    // Index of the split, and number of splits; with one split the result is final.
    u32 split;
    u32 splits;
    // Index at which the first token's partial results begin.
    u32 first;
};

struct Prefill {
    // [rows][heads][head_dim]
    const bf16* queries;
    // [rows][heads][head_dim]
    bf16* output;
    const bf16* pool;
    const u32* tables;
    const Item* items;
    Partials partials;
    u32 heads;
    u32 kv_heads;
    u32 head_dim;
    u32 page_shift;
    // log2(e) / sqrt(head_dim)
    float scale;
    u32 unused;
};

// Most rows in an item: the query heads of a token that share a key and value head, then those of the next token.
constexpr u32 PREFILL_ROWS = 128;

// Copies an item's queries by `THREADS` threads; `place(row, chunk)` gives the address for 16 bytes of them.
template <int DIM, int THREADS, class Place>
DEVICE void bring_queries(const Prefill& args, const Item& item, u32 head, Place place) {
    constexpr u32 CHUNKS = DIM / 8;
    const u32 group = args.heads / args.kv_heads, rows_used = item.tokens * group;
#pragma unroll 1
    for (u32 row = thread() / CHUNKS; row < PREFILL_ROWS; row += THREADS / CHUNKS) {
        u32 chunk = thread() % CHUNKS;
        bool wanted = row < rows_used && chunk * 8 < args.head_dim;
        u64 at_row = static_cast<u64>(item.query + row / group) * args.heads + head * group + row % group;
        copy_async(place(row, chunk), wanted ? args.queries + at_row * args.head_dim + chunk * 8 : args.queries, wanted);
    }
}

// One past the last position of the item's range that each of this lane's rows sees, from `first_row` of the item on.
// Rows beyond the last token see what the last token sees, and are not stored.
template <int TILES>
DEVICE void see(int (&seen)[TILES][2], const Item& item, u32 first_row, u32 group) {
#pragma unroll
    for (int m = 0; m < TILES; m++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            u32 token = (first_row + m * 16 + h * 8 + lane() / 4) / group;
            u32 position = item.position + (token < item.tokens ? token : item.tokens - 1);
            seen[m][h] = static_cast<int>(position < item.end ? position + 1 : item.end);
        }
}

// Stores a warp's rows, as final or partial results.
template <int DIM, int TILES>
DEVICE void store(const Prefill& args, const Item& item, u32 head, const Rows<DIM, TILES>& rows, u32 first_row) {
    const u32 group = args.heads / args.kv_heads;
#pragma unroll
    for (int m = 0; m < TILES; m++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            u32 row = first_row + m * 16 + h * 8 + lane() / 4;
            if (row >= item.tokens * group) continue;
            u32 token = row / group, query_head = head * group + row % group, column = lane() % 4 * 2;
            if (item.splits == 1) {
                float share = 1.0f / rows.total[m][h];
                bf16* to = args.output + (static_cast<u64>(item.output + token) * args.heads + query_head) * args.head_dim;
#pragma unroll
                for (int n = 0; n < DIM / 8; n++)
                    if (n * 8 < args.head_dim)
                        *reinterpret_cast<u32*>(to + n * 8 + column) =
                            pack(rows.out[m][n][h * 2] * share, rows.out[m][n][h * 2 + 1] * share);
            } else {
                u64 at_row = item.first + (static_cast<u64>(token) * args.heads + query_head) * item.splits + item.split;
                float* to = args.partials.sums + at_row * args.head_dim;
#pragma unroll
                for (int n = 0; n < DIM / 8; n++)
                    if (n * 8 < args.head_dim) {
                        to[n * 8 + column] = rows.out[m][n][h * 2];
                        to[n * 8 + column + 1] = rows.out[m][n][h * 2 + 1];
                    }
                if (lane() % 4 == 0) {
                    args.partials.stats[at_row * 2] = rows.maximum[m][h] * args.scale;
                    args.partials.stats[at_row * 2 + 1] = rows.total[m][h];
                }
            }
        }
}
