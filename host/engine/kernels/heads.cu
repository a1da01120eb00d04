// The steps between a head's projection and attention: bias, norm and rotation. Queries go to a buffer of their own,
// keys and values to their page.
//
//   grid  x: rows. A warp takes head after head; a lane holds two neighbours of each half, which rotate with each
//   other.
#include "device.cuh"

struct Heads {
    // [rows][queries: heads, keys: kv_heads, values: kv_heads][head_dim]
    const bf16* sums;
    // [queries: heads, keys: kv_heads, values: kv_heads][head_dim], or null
    const float* bias;
    // [head_dim] for queries and for keys, or null
    const float* query_norm;
    const float* key_norm;
    // [positions][cosines: head_dim / 2, sines: head_dim / 2]
    const float* rotary;
    const u32* positions;
    // Slot of the pool for each row's key and value, counted over pages; NO_SLOT marks padding.
    const u32* slots;
    // [rows][heads][head_dim]
    bf16* queries;
    // The layer's pool, as in `attention.cuh`.
    bf16* pool;
    u32 heads;
    u32 kv_heads;
    u32 head_dim;
    u32 page_shift;
    float eps;
    u32 unused;
};

constexpr u32 HEAD_THREADS = 128;
constexpr u32 NO_SLOT = 0xffffffffu;

KERNEL(place_heads, Heads, HEAD_THREADS, 1) {
    const u32 row = block_x(), half = args.head_dim / 2, all = args.heads + 2 * args.kv_heads;
    const u32 slot = args.slots[row];
    if (slot == NO_SLOT) return;
    const u64 page = slot >> args.page_shift, within = slot & ((1u << args.page_shift) - 1);
    const float* angles = args.rotary + static_cast<u64>(args.positions[row]) * args.head_dim;
    const u32 i = lane() * 2;
    const bool active = i < half;
    for (u32 head = warp(); head < all; head += HEAD_THREADS / WARP) {
        const u64 column = static_cast<u64>(head) * args.head_dim + i;
        const bf16* from = args.sums + static_cast<u64>(row) * all * args.head_dim + column;
        // Neighbours i, i + 1 of the lower half, then of the upper half.
        float x[4] = {0.0f, 0.0f, 0.0f, 0.0f};
        if (active) {
            u32 low = *reinterpret_cast<const u32*>(from), high = *reinterpret_cast<const u32*>(from + half);
            x[0] = widen_low(low), x[1] = widen_high(low), x[2] = widen_low(high), x[3] = widen_high(high);
            if (args.bias)
                for (u32 j = 0; j < 4; j++) x[j] += args.bias[column + j % 2 + j / 2 * half];
        }
        const bool is_query = head < args.heads, is_value = head >= args.heads + args.kv_heads;
        const float* norm = is_query ? args.query_norm : args.key_norm;
        if (norm && !is_value) {
            float sum = warp_sum(x[0] * x[0] + x[1] * x[1] + x[2] * x[2] + x[3] * x[3]);
            float scale = inverse_root(sum / args.head_dim + args.eps);
            if (active)
                for (u32 j = 0; j < 4; j++) x[j] *= scale * norm[i + j % 2 + j / 2 * half];
        }
        if (!active) continue;
        if (!is_value)
            for (u32 j = 0; j < 2; j++) {
                float cosine = angles[i + j], sine = angles[half + i + j], low = x[j], high = x[j + 2];
                x[j] = low * cosine - high * sine;
                x[j + 2] = high * cosine + low * sine;
            }
        u32 kv_head = (head - args.heads) % args.kv_heads;
        bf16* to = is_query ? args.queries + (static_cast<u64>(row) * args.heads + head) * args.head_dim
                            : args.pool + ((((page * 2 + is_value) * args.kv_heads + kv_head) << args.page_shift) + within) *
                                              args.head_dim;
        *reinterpret_cast<u32*>(to + i) = pack(x[0], x[1]);
        *reinterpret_cast<u32*>(to + half + i) = pack(x[2], x[3]);
    }
}
