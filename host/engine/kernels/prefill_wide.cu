// Prefill by the matrix instruction of a warpgroup (Hopper), after FlashAttention-3 (arXiv 2407.08608, section 3.2):
// the
// scores of the next block are computed while this block's weights multiply its values; softmax overlaps with the
// latter.
//
//   grid   as in `prefill.cu`
//   block  two warpgroups of 64 rows, which share blocks of 128 keys and values; two of each in shared memory
//
//     copies         K2 V1            │ K3 V2            │ …      each pair is issued after a barrier and waited for at
//     multiply       Q·K1  P0·V0      │ Q·K2  P1·V1      │ …      the next
//     softmax              of Q·K1    │       of Q·K2    │ …
//
//   shared memory  queries, then two blocks of keys, then two of values, each [DIM / 64][128][64] bf16: panels of 128
//                  bytes a row, as `matrix_at` describes
#ifdef WARPGROUPS
#include "prefill.cuh"

constexpr u32 WIDE_THREADS = 2 * GROUP;
constexpr int WIDE_KEYS = 128;
static_assert(PREFILL_ROWS == WIDE_THREADS / WARP * 16 && WIDE_KEYS == PREFILL_ROWS, "matrices of 128 rows");

// Bytes in a panel.
constexpr u32 PANEL = 128 * 128;
// Bytes from eight rows of a panel to the next eight.
constexpr u32 EIGHT_ROWS = 8 * 128;

DEVICE bf16* panel_at(bf16* panels, u32 row, u32 chunk) {
    return panels + (chunk / 8 * 128 + row) * 64 + (chunk % 8 ^ row % 8) * 8;
}

// Copies 128 keys (or values, at distance `offset`) from `position` on. Rows at `end` and beyond are filled with
// zeroes. `position` is before `end` and a multiple of 16, as page sizes are. So sixteen rows need one lookup in the
// table, and a thread's source is at the same distance from each group's first row.
template <int DIM>
DEVICE void bring_panels(bf16* to, const Pages& pages, u32 head, u32 position, u32 end, u64 offset) {
    constexpr u32 CHUNKS = DIM / 8, ROWS = WIDE_THREADS / CHUNKS;
    const u32 own = forget(thread()), chunk = own % CHUNKS, row = own / CHUNKS, within = row % 16;
    const u8* from = reinterpret_cast<const u8*>(pages.pool + offset + within * pages.head_dim);
    if (chunk * 8 < pages.head_dim) from += chunk * 16;
    else end = 0;
    to = panel_at(to, row, chunk);
    from = forget(from);
#pragma unroll
    for (u32 first = 0; first < 128; first += ROWS) {
        u32 here = position + first + row / 16 * 16;
        u64 row_of = pages.row(here < end ? here : position, head);
        copy_async(to + first * 64, from + row_of * (pages.head_dim * 2), here + within < end);
    }
}

// Masks the scores of keys that a row does not see: it sees `seen[h]` of the block's keys; a negative number means
// none.
DEVICE void hide(Scores<1, WIDE_KEYS>& scores, const int (&seen)[2], u32 begin) {
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int limit = seen[h] - static_cast<int>(begin + lane() % 4 * 2);
#pragma unroll
        for (int n = 0; n < WIDE_KEYS / 8; n++)
#pragma unroll
            for (int i = 0; i < 2; i++)
                if (n * 8 + i >= limit) scores.of[0][n][h * 2 + i] = -infinity();
    }
}

// Issues scores = queries · keys.
template <int DIM>
DEVICE void begin_scores(Scores<1, WIDE_KEYS>& scores, u64 queries, u64 keys) {
#pragma unroll
    for (int k = 0; k < DIM / 16; k++) {
        u32 bytes = k / 4 * PANEL + k % 4 * 32;
        group_multiply(scores.of[0], matrix_behind(queries, bytes), matrix_behind(keys, bytes), k > 0);
    }
    group_commit();
}

// Weights as the left operand of their product with values.
struct Weights {
    u32 of[WIDE_KEYS / 16][4];

    DEVICE void take(const Scores<1, WIDE_KEYS>& scores) {
#pragma unroll
        for (int k = 0; k < WIDE_KEYS / 16; k++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const float(&from)[4] = scores.of[0][k * 2 + i / 2];
                of[k][i] = pack(from[i % 2 * 2], from[i % 2 * 2 + 1]);
            }
    }
};

// Issues outputs += weights · values.
template <int DIM>
DEVICE void begin_outputs(Rows<DIM, 1>& rows, const Weights& weights, u64 values) {
#pragma unroll
    for (int k = 0; k < WIDE_KEYS / 16; k++)
        group_multiply(rows.out[0], weights.of[k], matrix_behind(values, k * 2 * EIGHT_ROWS));
    group_commit();
}

template <int DIM>
DEVICE void prefill_wide(const Prefill& args) {
    const Item item = args.items[block_x()];
    const u32 head = block_y();
    const Pages pages{args.pool, forget(args.tables + item.table), args.page_shift, args.kv_heads, args.head_dim};
    constexpr u32 MATRIX = DIM / 64 * PANEL;
    u8* memory = shared_memory();
    bf16* queries = reinterpret_cast<bf16*>(memory);
    auto keys = [=](u32 block) { return reinterpret_cast<bf16*>(memory + (1 + block % 2) * MATRIX); };
    auto values = [=](u32 block) { return reinterpret_cast<bf16*>(memory + (3 + block % 2) * MATRIX); };
    const u32 blocks = (item.end - item.begin + WIDE_KEYS - 1) / WIDE_KEYS;
    auto begin_of = [=](u32 block) { return item.begin + block * WIDE_KEYS; };
    auto bring_block = [=](bf16* to, u32 block, u64 offset) {
        bring_panels<DIM>(to, pages, head, begin_of(block), item.end, offset);
    };
    // Every thread's copies have landed, and every warp is done with what it multiplied before.
    auto meet = [] {
        copy_async_wait<0>();
        shared_fence();
        barrier();
        group_fence();
    };

    bring_queries<DIM, WIDE_THREADS>(args, item, head, [=](u32 row, u32 chunk) { return panel_at(queries, row, chunk); });
    bring_block(keys(0), 0, 0);
    copy_async_commit();

    const u32 first_row = warp() * 16;
    int seen[1][2];
    see(seen, item, first_row, args.heads / args.kv_heads);
    Rows<DIM, 1> rows;
    rows.open();
    Scores<1, WIDE_KEYS> scores;
    Weights weights;
    float corrections[2];
    const u64 own_queries = matrix_at(queries + thread() / GROUP * 64 * 64, 16, EIGHT_ROWS);
    auto soften = [&](u32 block) {
        const u32 begin = begin_of(block);
        // Every row sees the whole of a block that ends at the first token's position or before.
        if (begin + WIDE_KEYS > item.position + 1 || begin + WIDE_KEYS > item.end) hide(scores, seen[0], begin);
        weigh(
            scores, rows, args.scale, true, [](int, int) { return 0; },
            [&](int, int h, float correction) { corrections[h] = correction; });
    };
    // Waits until outputs are complete. Weights are packed only now, because until here their registers were being
    // multiplied.
    auto settle = [&] {
        group_wait<0>();
        group_take(rows.out[0]);
        weights.take(scores);
        meet();
    };
    // Corrects the outputs for the new maximum, then adds a block.
    auto go_on = [&](u32 block) {
        rows.correct(0, 0, corrections[0]);
        rows.correct(0, 1, corrections[1]);
        group_fence();
        begin_outputs<DIM>(rows, weights, matrix_at(values(block), PANEL, EIGHT_ROWS));
    };

    meet();
    begin_scores<DIM>(scores, own_queries, matrix_at(keys(0), 16, EIGHT_ROWS));
    bring_block(values(0), 0, pages.values_after());
    if (blocks > 1) bring_block(keys(1), 1, 0);
    copy_async_commit();
    group_wait<0>();
    group_take(scores.of[0]);
    soften(0);
    // Outputs are waited for after the loop's edge: the assembler moves no softmax across it, although it does across a
    // wait.
#pragma unroll 1
    for (u32 block = 0; block + 1 < blocks; block++) {
        settle();
        begin_scores<DIM>(scores, own_queries, matrix_at(keys(block + 1), 16, EIGHT_ROWS));
        go_on(block);
        if (block + 2 < blocks) bring_block(keys(block + 2), block + 2, 0);
        bring_block(values(block + 1), block + 1, pages.values_after());
        copy_async_commit();
        group_wait<1>();
        group_take(scores.of[0]);
        soften(block + 1);
    }
    settle();
    go_on(blocks - 1);
    group_wait<0>();
    group_take(rows.out[0]);
    rows.close();
    store(args, item, head, rows, first_row);
}

KERNEL(prefill_wide_64, Prefill, WIDE_THREADS, 1) { prefill_wide<64>(args); }
KERNEL(prefill_wide_128, Prefill, WIDE_THREADS, 1) { prefill_wide<128>(args); }
#endif
