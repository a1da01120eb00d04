// The work on rows between two matrix products: embedding, norms, the gate, choosing rows, and quantising them.
#include "device.cuh"

// Residual rows from the embedding.
//   grid  x: rows
struct Embed {
    // [vocabulary][hidden]
    const bf16* table;
    const u32* tokens;
    // [rows][hidden]
    float* residual;
    u32 hidden;
    u32 unused;
};

constexpr u32 ROW_THREADS = 256;

KERNEL(embed_rows, Embed, ROW_THREADS, 1) {
    const bf16* from = args.table + static_cast<u64>(args.tokens[block_x()]) * args.hidden;
    float* to = args.residual + static_cast<u64>(block_x()) * args.hidden;
    for (u32 i = thread() * 8; i < args.hidden; i += ROW_THREADS * 8) {
        Vector v = load_vector(from + i), low, high;
        for (u32 w = 0; w < 4; w++) {
            Vector& half = w < 2 ? low : high;
            half.words[w % 2 * 2] = v.words[w] << 16;
            half.words[w % 2 * 2 + 1] = v.words[w] & 0xffff0000u;
        }
        store_vector(to + i, low);
        store_vector(to + i + 4, high);
    }
}

// Adds a bias, if there is one, to a row of the residual stream, and norms the row.
//   grid  x: rows
struct Norm {
    // [rows][hidden]
    float* residual;
    // [hidden], or null
    const float* bias;
    // [hidden]
    const float* weights;
    // [rows][hidden]
    bf16* output;
    u32 hidden;
    float eps;
};

KERNEL(norm_rows, Norm, ROW_THREADS, 1) {
    float* row = args.residual + static_cast<u64>(block_x()) * args.hidden;
    float* sums = reinterpret_cast<float*>(shared_memory());
    float sum = 0.0f;
    for (u32 i = thread() * 4; i < args.hidden; i += ROW_THREADS * 4) {
        Vector v = load_vector(row + i);
        for (u32 w = 0; w < 4; w++) {
            float x = float_of(v.words[w]);
            if (args.bias) x += args.bias[i + w];
            v.words[w] = bits_of(x);
            sum += x * x;
        }
        if (args.bias) store_vector(row + i, v);
    }
    sum = warp_sum(sum);
    if (lane() == 0) sums[warp()] = sum;
    barrier();
    sum = 0.0f;
    for (u32 w = 0; w < ROW_THREADS / WARP; w++) sum += sums[w];
    float scale = inverse_root(sum / args.hidden + args.eps);
    bf16* to = args.output + static_cast<u64>(block_x()) * args.hidden;
    for (u32 i = thread() * 4; i < args.hidden; i += ROW_THREADS * 4) {
        Vector v = load_vector(row + i);
        float x[4];
        for (u32 w = 0; w < 4; w++) x[w] = float_of(v.words[w]) * scale * args.weights[i + w];
        u32* out = reinterpret_cast<u32*>(to + i);
        out[0] = pack(x[0], x[1]);
        out[1] = pack(x[2], x[3]);
    }
}

// Copies chosen rows of the residual stream.
//   grid  x: rows of the output
struct Keep {
    // [..][hidden]
    const float* from;
    // [rows][hidden]
    float* to;
    const u32* rows;
    u32 hidden;
    u32 unused;
};

KERNEL(keep_rows, Keep, ROW_THREADS, 1) {
    const float* from = args.from + static_cast<u64>(args.rows[block_x()]) * args.hidden;
    float* to = args.to + static_cast<u64>(block_x()) * args.hidden;
    for (u32 i = thread() * 4; i < args.hidden; i += ROW_THREADS * 4) store_vector(to + i, load_vector(from + i));
}

// silu(gate) * up.
//   grid  x: blocks of columns; y: rows
struct Gate {
    // [rows][gate: width, up: width]
    const bf16* sums;
    // [gate: width, up: width], or null
    const float* bias;
    // [rows][width]
    bf16* output;
    u32 width;
    u32 unused;
};

KERNEL(gate_rows, Gate, ROW_THREADS, 1) {
    u32 column = (block_x() * ROW_THREADS + thread()) * 8;
    if (column >= args.width) return;
    const bf16* row = args.sums + static_cast<u64>(block_y()) * args.width * 2;
    Vector gates = load_vector(row + column), ups = load_vector(row + args.width + column), out;
    for (u32 w = 0; w < 4; w++) {
        float g[2] = {widen_low(gates.words[w]), widen_high(gates.words[w])};
        float u[2] = {widen_low(ups.words[w]), widen_high(ups.words[w])};
        for (u32 i = 0; i < 2; i++) {
            if (args.bias) {
                g[i] += args.bias[column + w * 2 + i];
                u[i] += args.bias[args.width + column + w * 2 + i];
            }
            g[i] = silu(g[i]) * u[i];
        }
        out.words[w] = pack(g[0], g[1]);
    }
    store_vector(args.output + static_cast<u64>(block_y()) * args.width + column, out);
}

// Quantises rows to FP8 (E4M3), each by its largest absolute value.
//   grid  x: rows
struct Quantise {
    // [rows][width]
    const bf16* input;
    // [rows][width], FP8
    u8* numbers;
    // [rows]: the largest absolute value / 448, or 1 for a row of zeroes; NaN if a value is infinite or NaN, and so
    // are then all numbers of the row
    float* scales;
    u32 width;
    u32 unused;
};

KERNEL(quantise_rows, Quantise, ROW_THREADS, 1) {
    const bf16* from = args.input + static_cast<u64>(block_x()) * args.width;
    u32* shared = reinterpret_cast<u32*>(shared_memory());
    // Absolute values are in the order of their bits, with infinity and NaN last.
    u32 largest = 0;
    for (u32 i = thread() * 8; i < args.width; i += ROW_THREADS * 8) {
        Vector v = load_vector(from + i);
        for (u32 w = 0; w < 4; w++) {
            u32 low = v.words[w] << 16 & 0x7fffffff, high = v.words[w] & 0x7fff0000;
            if (low > largest) largest = low;
            if (high > largest) largest = high;
        }
    }
    for (u32 mask = WARP / 2; mask > 0; mask /= 2) {
        u32 other = exchange(largest, mask);
        if (other > largest) largest = other;
    }
    if (lane() == 0) shared[warp()] = largest;
    barrier();
    for (u32 w = 0; w < ROW_THREADS / WARP; w++)
        if (shared[w] > largest) largest = shared[w];
    const bool is_finite = largest < bits_of(infinity());
    const float scale = !is_finite ? float_of(0x7fffffffu) : largest == 0 ? 1.0f : float_of(largest) / 448.0f;
    if (thread() == 0) args.scales[block_x()] = scale;
    u8* to = args.numbers + static_cast<u64>(block_x()) * args.width;
    for (u32 i = thread() * 8; i < args.width; i += ROW_THREADS * 8) {
        Vector v = load_vector(from + i);
        u32* out = reinterpret_cast<u32*>(to + i);
        for (u32 w = 0; w < 4; w += 2) {
            out[w / 2] = narrow_fp8(widen_low(v.words[w]) / scale) | narrow_fp8(widen_high(v.words[w]) / scale) << 8 |
                         narrow_fp8(widen_low(v.words[w + 1]) / scale) << 16 |
                         static_cast<u32>(narrow_fp8(widen_high(v.words[w + 1]) / scale)) << 24;
        }
    }
}
