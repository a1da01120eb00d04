// Attention of one token of each of many sequences. The time goes into reading keys and values, so each is read once.
//
//   grid   x: sequences; y: heads of keys and values, times the tiles of 16 query heads; z: splits of the positions
//   block  four warps, each with its own blocks of 32 positions, combined in shared memory at the end
//
// Splits are cut by position and by the sequence's own length alone, so the other sequences of a step do not change a
// result.
#include "attention.cuh"

struct Decode {
    const bf16* queries;
    bf16* output;
    const bf16* pool;
    // [rows][table_stride]
    const u32* tables;
    // Number of positions that each row sees; 0 for padding.
    const u32* lengths;
    Partials partials;
    u32 heads;
    u32 kv_heads;
    u32 head_dim;
    u32 page_shift;
    u32 table_stride;
    float scale;
};

constexpr u32 DECODE_THREADS = 128;
constexpr u32 DECODE_WARPS = DECODE_THREADS / WARP;
constexpr int DECODE_KEYS = 32;
// Fewest positions in a split.
constexpr u32 DECODE_SPLIT = DECODE_WARPS * DECODE_KEYS * 2;

// Positions in a split of a sequence: as few as `MAX_SPLITS` allow.
DEVICE u32 split_length(u32 length) {
    u32 split = DECODE_SPLIT;
    while (split * MAX_SPLITS < length) split *= 2;
    return split;
}

// Index at which a row's partial results begin.
DEVICE u64 decode_first(u32 row, u32 heads) { return static_cast<u64>(row) * heads * MAX_SPLITS; }

template <int DIM>
DEVICE void decode(const Decode& args) {
    const u32 row = block_x(), length = args.lengths[row], split = split_length(length);
    const u32 begin = block_z() * split, end = begin + split < length ? begin + split : length;
    if (begin >= length) return;
    const u32 group = args.heads / args.kv_heads, tiles = (group + 15) / 16;
    const u32 head = block_y() / tiles, first_head = block_y() % tiles * 16;
    const u32 rows_used = group - first_head < 16 ? group - first_head : 16;
    const Pages pages{args.pool, args.tables + static_cast<u64>(row) * args.table_stride, args.page_shift, args.kv_heads,
                      args.head_dim};
    bf16* queries = reinterpret_cast<bf16*>(shared_memory());
    bf16* keys = queries + 16 * DIM + warp() * 2 * DECODE_KEYS * DIM;
    bf16* values = keys + DECODE_KEYS * DIM;
    const u64 query = static_cast<u64>(row) * args.heads + head * group + first_head;

    constexpr u32 CHUNKS = DIM / 8;
    for (u32 r = thread() / CHUNKS; r < 16; r += DECODE_THREADS / CHUNKS) {
        u32 chunk = thread() % CHUNKS;
        bool wanted = r < rows_used && chunk * 8 < args.head_dim;
        copy_async(at<DIM>(queries, r, chunk),
                   wanted ? args.queries + (query + r) * args.head_dim + chunk * 8 : args.queries, wanted);
    }
    Rows<DIM, 1> rows;
    rows.open();
    u32 here = begin + warp() * DECODE_KEYS;
    if (here < end) bring<DIM, DECODE_KEYS, WARP>(keys, pages, head, here, end, 0, lane());
    copy_async_commit();
    if (here < end) bring<DIM, DECODE_KEYS, WARP>(values, pages, head, here, end, pages.values_after(), lane());
    copy_async_commit();
    copy_async_wait<1>();
    barrier();
    while (here < end) {
        Scores<1, DECODE_KEYS> scores;
        score<DIM>(scores, queries, keys);
        u32 next = here + DECODE_WARPS * DECODE_KEYS;
        warp_barrier();
        if (next < end) bring<DIM, DECODE_KEYS, WARP>(keys, pages, head, next, end, 0, lane());
        copy_async_commit();
        copy_async_wait<1>();
        warp_barrier();
        weigh(
            scores, rows, args.scale, here + DECODE_KEYS <= end, [&](int, int) { return static_cast<int>(end - here); },
            [&](int m, int h, float correction) { rows.correct(m, h, correction); });
        gather<DIM>(rows, scores, values);
        warp_barrier();
        if (next < end) bring<DIM, DECODE_KEYS, WARP>(values, pages, head, next, end, pages.values_after(), lane());
        copy_async_commit();
        copy_async_wait<1>();
        warp_barrier();
        here = next;
    }
    copy_async_wait<0>();
    rows.close();
    barrier();

    // Every warp writes its rows, then the block combines them: [warp][16][DIM] and [warp][16][maximum, total].
    float* sums = reinterpret_cast<float*>(shared_memory());
    float* stats = sums + DECODE_WARPS * 16 * DIM;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        u32 r = h * 8 + lane() / 4;
        float* to = sums + (warp() * 16 + r) * DIM + lane() % 4 * 2;
#pragma unroll
        for (int n = 0; n < DIM / 8; n++) to[n * 8] = rows.out[0][n][h * 2], to[n * 8 + 1] = rows.out[0][n][h * 2 + 1];
        if (lane() % 4 == 0) {
            stats[(warp() * 16 + r) * 2] = rows.maximum[0][h] * args.scale;
            stats[(warp() * 16 + r) * 2 + 1] = rows.total[0][h];
        }
    }
    barrier();
    for (u32 i = thread(); i < rows_used * args.head_dim; i += DECODE_THREADS) {
        u32 r = i / args.head_dim, column = i % args.head_dim;
        float top = -infinity(), total = 0.0f, sum = 0.0f;
        for (u32 w = 0; w < DECODE_WARPS; w++) {
            float maximum = stats[(w * 16 + r) * 2];
            top = maximum > top ? maximum : top;
        }
        for (u32 w = 0; w < DECODE_WARPS; w++) {
            // A warp without positions has a maximum of minus infinity, so its share is zero.
            float share = exp2_fast(stats[(w * 16 + r) * 2] - top);
            total += stats[(w * 16 + r) * 2 + 1] * share;
            sum += sums[(w * 16 + r) * DIM + column] * share;
        }
        if (split >= length) {
            args.output[(query + r) * args.head_dim + column] = narrow(sum / total);
        } else {
            u32 splits = (length + split - 1) / split;
            u64 at_row = decode_first(row, args.heads) + (head * group + first_head + r) * splits + block_z();
            args.partials.sums[at_row * args.head_dim + column] = sum;
            if (column == 0) args.partials.stats[at_row * 2] = top, args.partials.stats[at_row * 2 + 1] = total;
        }
    }
}

KERNEL(decode_64, Decode, DECODE_THREADS, 4) { decode<64>(args); }
KERNEL(decode_128, Decode, DECODE_THREADS, 3) { decode<128>(args); }

// Combines partial results.
//   grid  x: tokens; y: heads
struct Combine {
    Partials partials;
    // [rows][heads][head_dim]
    bf16* output;
    // [tokens][row of the output, splits, first]; null for the results of `decode`.
    const u32* tokens;
    // Lengths of the sequences in `decode`.
    const u32* lengths;
    u32 heads;
    u32 head_dim;
};

constexpr u32 COMBINE_THREADS = 128;

KERNEL(combine_splits, Combine, COMBINE_THREADS, 1) {
    u32 row = block_x(), splits;
    u64 first;
    if (args.tokens) {
        const u32* token = args.tokens + block_x() * 3;
        row = token[0], splits = token[1], first = token[2];
    } else {
        u32 length = args.lengths[row], split = split_length(length);
        splits = (length + split - 1) / split;
        first = decode_first(row, args.heads);
        // Padding, or already final.
        if (splits <= 1) return;
    }
    const u32 head = block_y();
    first += head * splits;
    const float* stats = args.partials.stats + first * 2;
    const float* sums = args.partials.sums + first * args.head_dim;
    float top = -infinity();
    for (u32 s = 0; s < splits; s++) top = stats[s * 2] > top ? stats[s * 2] : top;
    for (u32 column = thread(); column < args.head_dim; column += COMBINE_THREADS) {
        float total = 0.0f, sum = 0.0f;
        for (u32 s = 0; s < splits; s++) {
            float share = exp2_fast(stats[s * 2] - top);
            total += stats[s * 2 + 1] * share;
            sum += sums[static_cast<u64>(s) * args.head_dim + column] * share;
        }
        args.output[(static_cast<u64>(row) * args.heads + head) * args.head_dim + column] = narrow(sum / total);
    }
}
