// Attention of some rows to a block of keys and values: the common part of prefill and decode.
//
// A row is one query head of one token. Rows that share a key and value head are adjacent, so that every key and value
// that is read serves them all. Online softmax (Milakov and Gimelshein, arXiv 1805.02867, section 3), with tiles in the
// registers of a warp as in FlashAttention-2 (arXiv 2307.08691, section 3.3): scores never leave them.
//
//   pool, one layer   [page][keys, values][kv_head][slot][head_dim] bf16
//   shared memory     rows of DIM bf16, chunks of 16 bytes swizzled by the row, so that ldmatrix meets no bank twice
#pragma once
#include "device.cuh"

// Locates the keys and values of a sequence.
struct Pages {
    const bf16* pool;
    // Page numbers of the sequence, in order.
    const u32* table;
    // log2 of the tokens in a page.
    u32 page_shift;
    u32 kv_heads;
    u32 head_dim;

    // Row of the key at `position`, in the pool as rows of a head's key or value. There are fewer than 2^32 rows.
    DEVICE u32 row(u32 position, u32 head) const {
        u32 page = load_unchanged(table + (position >> page_shift)), slot = position & ((1u << page_shift) - 1);
        return page * (2 * kv_heads << page_shift) + (head << page_shift) + slot;
    }
    // The key; its value is `values_after()` elements after it.
    DEVICE const bf16* key(u32 position, u32 head) const { return pool + static_cast<u64>(row(position, head)) * head_dim; }
    DEVICE u64 values_after() const { return (static_cast<u64>(kv_heads) << page_shift) * head_dim; }
};

// Address of a chunk of 16 bytes in a row of shared memory.
template <int DIM>
DEVICE bf16* at(bf16* rows, u32 row, u32 chunk) {
    return rows + row * DIM + ((chunk ^ (row % 8)) * 8);
}

// Copies `COUNT` keys (or values, at distance `offset`) from `position` on to `to` [COUNT][DIM], by `THREADS` threads.
// Rows at `end` and beyond are filled with zeroes. `position` is before `end`.
template <int DIM, int COUNT, int THREADS>
DEVICE void bring(bf16* to, const Pages& pages, u32 head, u32 position, u32 end, u64 offset, u32 thread_of) {
    constexpr u32 CHUNKS = DIM / 8, ROWS = THREADS / CHUNKS;
    const u32 own = forget(thread_of), chunk = own % CHUNKS;
    const bool within = chunk * 8 < pages.head_dim;
    offset += within ? chunk * 8 : 0;
#pragma unroll
    for (u32 i = 0; i < COUNT / ROWS; i++) {
        u32 row = own / CHUNKS + i * ROWS, here = position + row;
        // No branch: the last position stands in for missing ones, so that pages are looked up concurrently.
        copy_async(at<DIM>(to, row, chunk), pages.key(here < end ? here : end - 1, head) + offset, here < end && within);
    }
}

// State of a warp's `TILES` times 16 rows: maxima and sums of their scores, and their outputs so far.
template <int DIM, int TILES>
struct Rows {
    float out[TILES][DIM / 8][4];
    // For rows g and g + 8 of a tile; until `close`, the sums are only this lane's share.
    float maximum[TILES][2];
    float total[TILES][2];

    DEVICE void open() {
#pragma unroll
        for (int m = 0; m < TILES; m++) {
#pragma unroll
            for (int n = 0; n < DIM / 8; n++)
#pragma unroll
                for (int i = 0; i < 4; i++) out[m][n][i] = 0.0f;
#pragma unroll
            for (int h = 0; h < 2; h++) maximum[m][h] = -infinity(), total[m][h] = 0.0f;
        }
    }

    // Scales the outputs of rows g + 8 h of tile m for a new maximum.
    DEVICE void correct(int m, int h, float correction) {
#pragma unroll
        for (int n = 0; n < DIM / 8; n++) {
            out[m][n][h * 2] *= correction;
            out[m][n][h * 2 + 1] *= correction;
        }
    }

    DEVICE void close() {
#pragma unroll
        for (int m = 0; m < TILES; m++)
#pragma unroll
            for (int h = 0; h < 2; h++) {
                total[m][h] += exchange(total[m][h], 1);
                total[m][h] += exchange(total[m][h], 2);
            }
    }
};

// Scores of a warp's rows and a block of `KEYS` keys.
template <int TILES, int KEYS>
struct Scores {
    float of[TILES][KEYS / 8][4];
};

// scores = queries · keys. `queries` [TILES * 16][DIM] are the warp's own rows.
template <int DIM, int TILES, int KEYS>
DEVICE void score(Scores<TILES, KEYS>& scores, bf16* queries, bf16* keys) {
#pragma unroll
    for (int m = 0; m < TILES; m++)
#pragma unroll
        for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) scores.of[m][n][i] = 0.0f;
    const u32 own = forget(lane());
// Two tiles leave registers for only one step at a time.
#pragma unroll(TILES == 1 ? 8 : 1)
    for (int k = 0; k < DIM / 16; k++) {
        u32 left[TILES][4];
#pragma unroll
        for (int m = 0; m < TILES; m++)
            load_matrices(left[m], at<DIM>(queries, m * 16 + own % 16, k * 2 + own / 16));
#pragma unroll
        for (int n = 0; n < KEYS / 16; n++) {
            u32 right[4];
            load_matrices(right, at<DIM>(keys, n * 16 + own / 16 * 8 + own % 8, k * 2 + own / 8 % 2));
#pragma unroll
            for (int m = 0; m < TILES; m++) {
                multiply_add(scores.of[m][n * 2], left[m], right[0], right[1]);
                multiply_add(scores.of[m][n * 2 + 1], left[m], right[2], right[3]);
            }
        }
    }
}

// Turns scores into weights relative to the new maximum. Totals are corrected for it here, and outputs by `correct(m,
// h, correction)`. `seen(m, h)` says how many of the block's keys row g + 8 h of tile m sees; a negative number means
// none. Every row sees at least one key of the first block.
template <int DIM, int TILES, int KEYS, class Seen, class Correct>
DEVICE void weigh(Scores<TILES, KEYS>& scores, Rows<DIM, TILES>& rows, float scale, bool all_seen, Seen seen,
                  Correct correct) {
#pragma unroll
    for (int m = 0; m < TILES; m++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const int limit = seen(m, h);
            float top = rows.maximum[m][h];
#pragma unroll
            for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    float& s = scores.of[m][n][h * 2 + i];
                    if (!all_seen && n * 8 + static_cast<int>(lane() % 4 * 2) + i >= limit) s = -infinity();
                    top = larger(s, top);
                }
            top = larger(top, exchange(top, 1));
            top = larger(top, exchange(top, 2));
            // In the first block the old maximum is minus infinity, and everything to be corrected is zero.
            float correction = exp2_fast((rows.maximum[m][h] - top) * scale);
            rows.maximum[m][h] = top;
            float offset = top * scale, sum = 0.0f;
#pragma unroll
            for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    float& s = scores.of[m][n][h * 2 + i];
                    s = exp2_fast(s * scale - offset);
                    sum += s;
                }
            rows.total[m][h] = rows.total[m][h] * correction + sum;
            correct(m, h, correction);
        }
}

// outputs += weights · values.
template <int DIM, int TILES, int KEYS>
DEVICE void gather(Rows<DIM, TILES>& rows, const Scores<TILES, KEYS>& weights, bf16* values) {
    const u32 own = forget(lane());
#pragma unroll
    for (int k = 0; k < KEYS / 16; k++) {
        u32 left[TILES][4];
#pragma unroll
        for (int m = 0; m < TILES; m++) {
            const float(&low)[4] = weights.of[m][k * 2];
            const float(&high)[4] = weights.of[m][k * 2 + 1];
            left[m][0] = pack(low[0], low[1]);
            left[m][1] = pack(low[2], low[3]);
            left[m][2] = pack(high[0], high[1]);
            left[m][3] = pack(high[2], high[3]);
        }
#pragma unroll
        for (int n = 0; n < DIM / 16; n++) {
            u32 right[4];
            load_matrices_transposed(right, at<DIM>(values, k * 16 + own % 16, n * 2 + own / 16));
#pragma unroll
            for (int m = 0; m < TILES; m++) {
                multiply_add(rows.out[m][n * 2], left[m], right[0], right[1]);
                multiply_add(rows.out[m][n * 2 + 1], left[m], right[2], right[3]);
            }
        }
    }
}

// Partial results, to be combined. A token with `splits` splits has heads times splits of them, from its `first` on:
//   sums   [first + head * splits + split][head_dim] f32, not divided by the total
//   stats  [first + head * splits + split][maximum as a power of two, total] f32
struct Partials {
    float* sums;
    float* stats;
};

// Most splits of a token.
constexpr u32 MAX_SPLITS = 64;
