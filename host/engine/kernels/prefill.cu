// Attention of many tokens of a sequence to everything before them and to themselves, by the matrix instruction of a
// warp.
//
//   grid   x: items, a few tokens of one segment and a range of positions; y: heads of keys and values
//   block  four warps of 32 rows. Blocks of keys and of values alternate, each copied while the other is computed with:
//
//     copies    K0 │ V0          │ K1                    │ V1 …
//     compute      │ Q·K0        │ softmax, P·V0         │ Q·K1 …
#include "prefill.cuh"

constexpr u32 PREFILL_THREADS = 128;
constexpr int PREFILL_TILES = 2;
constexpr int PREFILL_KEYS = 64;
static_assert(PREFILL_ROWS == PREFILL_THREADS / WARP * PREFILL_TILES * 16, "warps share the rows");

template <int DIM>
DEVICE void prefill(const Prefill& args) {
    const Item item = args.items[block_x()];
    const u32 head = block_y();
    const Pages pages{args.pool, args.tables + item.table, args.page_shift, args.kv_heads, args.head_dim};
    bf16* queries = reinterpret_cast<bf16*>(shared_memory());
    bf16* keys = queries + PREFILL_ROWS * DIM;
    bf16* values = keys + PREFILL_KEYS * DIM;

    bring_queries<DIM, PREFILL_THREADS>(args, item, head, [=](u32 row, u32 chunk) { return at<DIM>(queries, row, chunk); });
    bring<DIM, PREFILL_KEYS, PREFILL_THREADS>(keys, pages, head, item.begin, item.end, 0, thread());
    copy_async_commit();

    const u32 first_row = warp() * PREFILL_TILES * 16;
    int seen[PREFILL_TILES][2];
    see(seen, item, first_row, args.heads / args.kv_heads);
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
        // Every row sees the whole of a block that ends at the first token's position or before.
        bool all_seen = begin + PREFILL_KEYS <= item.position + 1 && begin + PREFILL_KEYS <= item.end;
        weigh(
            scores, rows, args.scale, all_seen, [&](int m, int h) { return seen[m][h] - static_cast<int>(begin); },
            [&](int m, int h, float correction) { rows.correct(m, h, correction); });
        gather<DIM>(rows, scores, values);
    }
    rows.close();
    store(args, args.items[block_x()], block_y(), rows, first_row);
}

KERNEL(prefill_64, Prefill, PREFILL_THREADS, 2) { prefill<64>(args); }
KERNEL(prefill_128, Prefill, PREFILL_THREADS, 2) { prefill<128>(args); }
