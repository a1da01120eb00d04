// Products with a few rows. The time goes into reading weights, so each is read once and used at once.
//
//   grid   x: outputs, four to a block (two of each half where a gate follows)
//   block  four warps share the inputs; a lane multiplies 16 bytes of neighbours at a time, and sums are combined at
//   the end
//
// Matrices and inputs are bf16, or both FP8 (E4M3) with a scale for each output and one for each row.
// A row's result does not depend on the rows beside it.
#include "device.cuh"

struct Matvec {
    // [outputs][inputs]; for a gate [gate: outputs, up: outputs][inputs]
    const void* weights;
    // [outputs], for a gate [gate: outputs, up: outputs]; only used with FP8
    const float* weight_scales;
    // [rows][inputs]
    const void* input;
    // [rows]; only used with FP8
    const float* input_scales;
    // [rows][outputs], bf16 or f32
    void* output;
    // [gate: outputs, up: outputs], or null; only used with a gate
    const float* bias;
    u32 inputs;
    u32 outputs;
    // Number of rows, at most as many as the kernel is for.
    u32 rows;
    u32 unused;
};

constexpr u32 MATVEC_THREADS = 128;
constexpr u32 MATVEC_WARPS = MATVEC_THREADS / WARP;
constexpr int MATVEC_COLUMNS = 4;

// Numbers in bf16: `IN_WORD` of them in a word, and their values.
struct Bf16Numbers {
    using Number = bf16;
    static constexpr int IN_WORD = 2;
    static constexpr bool SCALED = false;
    static DEVICE float weight(u32 word, int at) { return at == 0 ? widen_low(word) : widen_high(word); }
    static DEVICE float input(u32 word, int at) { return weight(word, at); }
};

// Numbers in FP8. Weights are 2^-120 of their value, which saves an instruction each. That loses nothing: products are
// multiples of 2^-18, so they and their sums are still floats.
struct Fp8Numbers {
    using Number = u8;
    static constexpr int IN_WORD = 4;
    static constexpr bool SCALED = true;
    static DEVICE float weight(u32 word, int at) { return widen_fp8_small(word, at); }
    static DEVICE float input(u32 word, int at) { return widen_fp8_small(word, at) * 0x1p120f; }
};

// What is done with the sums.
enum class Then { Bf16, F32, Add, Gate };

template <class Numbers, int ROWS, Then THEN>
DEVICE void matvec(const Matvec& args) {
    constexpr int COLUMNS = MATVEC_COLUMNS, OUTPUTS = THEN == Then::Gate ? COLUMNS / 2 : COLUMNS;
    using Number = typename Numbers::Number;
    constexpr u32 NUMBERS = 4 * Numbers::IN_WORD, STEP = WARP * NUMBERS;
    const u32 first = block_x() * OUTPUTS;
    // Columns beyond the last are computed as copies of the last one and not stored.
    const Number* weights[COLUMNS];
#pragma unroll
    for (int c = 0; c < COLUMNS; c++) {
        u32 output = first + c % OUTPUTS;
        u64 row = (output < args.outputs ? output : args.outputs - 1) + (c >= OUTPUTS ? args.outputs : 0u);
        weights[c] = static_cast<const Number*>(args.weights) + row * args.inputs;
    }
    float sums[ROWS][COLUMNS];
#pragma unroll
    for (int r = 0; r < ROWS; r++)
#pragma unroll
        for (int c = 0; c < COLUMNS; c++) sums[r][c] = 0.0f;
#pragma unroll 2
    for (u32 k = warp() * STEP + lane() * NUMBERS; k < args.inputs; k += MATVEC_WARPS * STEP) {
        Vector w[COLUMNS];
#pragma unroll
        for (int c = 0; c < COLUMNS; c++) w[c] = load_vector_once(weights[c] + k);
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            u32 row = r < args.rows ? r : 0;
            Vector x = load_vector(static_cast<const Number*>(args.input) + static_cast<u64>(row) * args.inputs + k);
#pragma unroll
            for (int i = 0; i < 4; i++)
#pragma unroll
                for (int c = 0; c < COLUMNS; c++)
#pragma unroll
                    for (int n = 0; n < Numbers::IN_WORD; n++)
                        sums[r][c] += Numbers::input(x.words[i], n) * Numbers::weight(w[c].words[i], n);
        }
    }
    float* shared = reinterpret_cast<float*>(shared_memory());
#pragma unroll
    for (int r = 0; r < ROWS; r++)
#pragma unroll
        for (int c = 0; c < COLUMNS; c++) {
            float sum = warp_sum(sums[r][c]);
            if (lane() == 0) shared[(warp() * ROWS + r) * COLUMNS + c] = sum;
        }
    barrier();
    const u32 r = thread() / OUTPUTS, c = thread() % OUTPUTS, output = first + c;
    if (r >= args.rows || output >= args.outputs) return;
    float sum = 0.0f, up = 0.0f;
    for (u32 w = 0; w < MATVEC_WARPS; w++) {
        sum += shared[(w * ROWS + r) * COLUMNS + c];
        if (THEN == Then::Gate) up += shared[(w * ROWS + r) * COLUMNS + OUTPUTS + c];
    }
    if (Numbers::SCALED) {
        const float scale = args.input_scales[r];
        sum = sum * 0x1p120f * scale * args.weight_scales[output];
        if (THEN == Then::Gate) up = up * 0x1p120f * scale * args.weight_scales[args.outputs + output];
    }
    const u64 at = static_cast<u64>(r) * args.outputs + output;
    if (THEN == Then::Bf16) {
        static_cast<bf16*>(args.output)[at] = narrow(sum);
    } else if (THEN == Then::F32) {
        static_cast<float*>(args.output)[at] = sum;
    } else if (THEN == Then::Add) {
        static_cast<float*>(args.output)[at] += sum;
    } else {
        if (args.bias) sum += args.bias[output], up += args.bias[args.outputs + output];
        static_cast<bf16*>(args.output)[at] = narrow(silu(sum) * up);
    }
}

KERNEL(matvec_bf16_1, Matvec, MATVEC_THREADS, 1) { matvec<Bf16Numbers, 1, Then::Bf16>(args); }
KERNEL(matvec_bf16_4, Matvec, MATVEC_THREADS, 1) { matvec<Bf16Numbers, 4, Then::Bf16>(args); }
KERNEL(matvec_f32_1, Matvec, MATVEC_THREADS, 1) { matvec<Bf16Numbers, 1, Then::F32>(args); }
KERNEL(matvec_f32_4, Matvec, MATVEC_THREADS, 1) { matvec<Bf16Numbers, 4, Then::F32>(args); }
KERNEL(matvec_add_1, Matvec, MATVEC_THREADS, 1) { matvec<Bf16Numbers, 1, Then::Add>(args); }
KERNEL(matvec_add_4, Matvec, MATVEC_THREADS, 1) { matvec<Bf16Numbers, 4, Then::Add>(args); }
KERNEL(matvec_gate_1, Matvec, MATVEC_THREADS, 1) { matvec<Bf16Numbers, 1, Then::Gate>(args); }
KERNEL(matvec_gate_4, Matvec, MATVEC_THREADS, 1) { matvec<Bf16Numbers, 4, Then::Gate>(args); }
KERNEL(matvec8_bf16_1, Matvec, MATVEC_THREADS, 1) { matvec<Fp8Numbers, 1, Then::Bf16>(args); }
KERNEL(matvec8_bf16_4, Matvec, MATVEC_THREADS, 1) { matvec<Fp8Numbers, 4, Then::Bf16>(args); }
KERNEL(matvec8_f32_1, Matvec, MATVEC_THREADS, 1) { matvec<Fp8Numbers, 1, Then::F32>(args); }
KERNEL(matvec8_f32_4, Matvec, MATVEC_THREADS, 1) { matvec<Fp8Numbers, 4, Then::F32>(args); }
KERNEL(matvec8_add_1, Matvec, MATVEC_THREADS, 1) { matvec<Fp8Numbers, 1, Then::Add>(args); }
KERNEL(matvec8_add_4, Matvec, MATVEC_THREADS, 1) { matvec<Fp8Numbers, 4, Then::Add>(args); }
KERNEL(matvec8_gate_1, Matvec, MATVEC_THREADS, 1) { matvec<Fp8Numbers, 1, Then::Gate>(args); }
KERNEL(matvec8_gate_4, Matvec, MATVEC_THREADS, 1) { matvec<Fp8Numbers, 4, Then::Gate>(args); }
