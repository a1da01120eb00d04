// Attention of many tokens of a sequence to everything before them and to themselves.
//
//   grid   x: items, a few tokens of one segment and a range of positions; y: heads of keys and values
//   block  four warps of 32 rows. Keys of a block and values of a block come in turn, each while the other is computed with:
//
//     copies    K0 │ V0          │ K1                    │ V1 …
//     compute      │ Q·K0        │ softmax, P·V0         │ Q·K1 …
//
// An item whose range ends before its tokens, or begins behind position 0, is one of several for the same tokens: it
// writes partial results, which `combine` puts together.
#include "attention.cuh"

// Some tokens of a segment, with some of the positions that they see.
struct Item {
    // Its first row of queries, and of the output.
    u32 query;
    u32 output;
    u32 tokens;
    // Position of the first token.
    u32 position;
    // Where the sequence's page table begins in `tables`.
    u32 table;
    // Positions [begin, end); begin is not behind `position`, so that every row sees a key.
    u32 begin;
    u32 end;
    // The split's number, and of how many; 1: the result is final.
    u32 split;
    u32 splits;
    // Where the first token's partial results begin.
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

constexpr u32 PREFILL_THREADS = 128;
constexpr int PREFILL_TILES = 2;
constexpr int PREFILL_KEYS = 64;
constexpr u32 PREFILL_ROWS = PREFILL_THREADS / WARP * PREFILL_TILES * 16;

template <int DIM>
DEVICE void prefill(const Prefill& args) {
    const Item item = args.items[block_x()];
    const u32 head = block_y(), group = args.heads / args.kv_heads, rows_used = item.tokens * group;
    const Pages pages{args.pool, args.tables + item.table, args.page_shift, args.kv_heads, args.head_dim};
    bf16* queries = reinterpret_cast<bf16*>(shared_memory());
    bf16* keys = queries + PREFILL_ROWS * DIM;
    bf16* values = keys + PREFILL_KEYS * DIM;

    constexpr u32 CHUNKS = DIM / 8;
#pragma unroll 1
    for (u32 row = thread() / CHUNKS; row < PREFILL_ROWS; row += PREFILL_THREADS / CHUNKS) {
        u32 chunk = thread() % CHUNKS;
        bool wanted = row < rows_used && chunk * 8 < args.head_dim;
        u64 at_row = static_cast<u64>(item.query + row / group) * args.heads + head * group + row % group;
        copy_async(at<DIM>(queries, row, chunk), wanted ? args.queries + at_row * args.head_dim + chunk * 8 : args.queries,
                   wanted);
    }
    bring<DIM, PREFILL_KEYS, PREFILL_THREADS>(keys, pages, head, item.begin, item.end, 0, thread());
    copy_async_commit();

    // Behind the last position that this lane's rows see of the range; rows beyond the last token see
    // what that one sees, and are not stored.
    const u32 first_row = warp() * PREFILL_TILES * 16;
    int seen[PREFILL_TILES][2];
#pragma unroll
    for (int m = 0; m < PREFILL_TILES; m++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            u32 token = (first_row + m * 16 + h * 8 + lane() / 4) / group;
            u32 position = item.position + (token < item.tokens ? token : item.tokens - 1);
            seen[m][h] = static_cast<int>(position < item.end ? position + 1 : item.end);
        }
    Rows<DIM, PREFILL_TILES> rows;
    rows.open();
    for (u32 begin = item.begin; begin < item.end; begin += PREFILL_KEYS) {
        copy_async_wait<0>();
        barrier();
        bring<DIM, PREFILL_KEYS, PREFILL_THREADS>(values, pages, head, begin, item.end, pages.values_after(), thread());
        copy_async_commit();
        Scores<PREFILL_TILES, PREFILL_KEYS> scores;
        score<DIM>(scores, queries + first_row * DIM, keys);
        copy_async_wait<0>();
        barrier();
        if (begin + PREFILL_KEYS < item.end)
            bring<DIM, PREFILL_KEYS, PREFILL_THREADS>(keys, pages, head, begin + PREFILL_KEYS, item.end, 0, thread());
        copy_async_commit();
        // Every row sees all of a block that ends at the first token's position or before.
        bool all_seen = begin + PREFILL_KEYS <= item.position + 1 && begin + PREFILL_KEYS <= item.end;
        weigh<DIM>(scores, rows, args.scale, all_seen,
                   [&](int m, int h) { return seen[m][h] - static_cast<int>(begin); });
        gather<DIM>(rows, scores, values);
    }
    rows.close();

#pragma unroll
    for (int m = 0; m < PREFILL_TILES; m++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            u32 row = first_row + m * 16 + h * 8 + lane() / 4;
            if (row >= rows_used) continue;
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

KERNEL(prefill_64, Prefill, PREFILL_THREADS, 2) { prefill<64>(args); }
KERNEL(prefill_128, Prefill, PREFILL_THREADS, 2) { prefill<128>(args); }
