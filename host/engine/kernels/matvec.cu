// Products with a few rows. The time goes into reading weights, so each is read once and used at once.
//
//   grid   x: outputs, four to a block (two of each half where a gate follows)
//   block  four warps share the inputs, 256 at a time; a lane multiplies eight neighbours, and sums are combined at the
//   end
//
// A row's result does not depend on the rows beside it.
#include "device.cuh"

struct Matvec {
    // [outputs][inputs]; for a gate [gate: outputs, up: outputs][inputs]
    const bf16* weights;
    // [rows][inputs]
    const bf16* input;
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
constexpr u32 MATVEC_STEP = WARP * 8;

// What is done with the sums.
enum class Then { Bf16, F32, Add, Gate };

template <int ROWS, Then THEN>
DEVICE void matvec(const Matvec& args) {
    constexpr int COLUMNS = MATVEC_COLUMNS, OUTPUTS = THEN == Then::Gate ? COLUMNS / 2 : COLUMNS;
    const u32 first = block_x() * OUTPUTS;
    // Columns beyond the last are computed as copies of the last one and not stored.
    const bf16* weights[COLUMNS];
#pragma unroll
    for (int c = 0; c < COLUMNS; c++) {
        u32 output = first + c % OUTPUTS;
        u64 row = (output < args.outputs ? output : args.outputs - 1) + (c >= OUTPUTS ? args.outputs : 0u);
        weights[c] = args.weights + row * args.inputs;
    }
    float sums[ROWS][COLUMNS];
#pragma unroll
    for (int r = 0; r < ROWS; r++)
#pragma unroll
        for (int c = 0; c < COLUMNS; c++) sums[r][c] = 0.0f;
#pragma unroll 2
    for (u32 k = warp() * MATVEC_STEP + lane() * 8; k < args.inputs; k += MATVEC_WARPS * MATVEC_STEP) {
        Vector w[COLUMNS];
#pragma unroll
        for (int c = 0; c < COLUMNS; c++) w[c] = load_vector_once(weights[c] + k);
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            u32 row = r < args.rows ? r : 0;
            Vector x = load_vector(args.input + static_cast<u64>(row) * args.inputs + k);
#pragma unroll
            for (int i = 0; i < 4; i++)
#pragma unroll
                for (int c = 0; c < COLUMNS; c++) {
                    sums[r][c] += widen_low(x.words[i]) * widen_low(w[c].words[i]);
                    sums[r][c] += widen_high(x.words[i]) * widen_high(w[c].words[i]);
                }
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

KERNEL(matvec_bf16_1, Matvec, MATVEC_THREADS, 1) { matvec<1, Then::Bf16>(args); }
KERNEL(matvec_bf16_4, Matvec, MATVEC_THREADS, 1) { matvec<4, Then::Bf16>(args); }
KERNEL(matvec_f32_1, Matvec, MATVEC_THREADS, 1) { matvec<1, Then::F32>(args); }
KERNEL(matvec_f32_4, Matvec, MATVEC_THREADS, 1) { matvec<4, Then::F32>(args); }
KERNEL(matvec_add_1, Matvec, MATVEC_THREADS, 1) { matvec<1, Then::Add>(args); }
KERNEL(matvec_add_4, Matvec, MATVEC_THREADS, 1) { matvec<4, Then::Add>(args); }
KERNEL(matvec_gate_1, Matvec, MATVEC_THREADS, 1) { matvec<1, Then::Gate>(args); }
KERNEL(matvec_gate_4, Matvec, MATVEC_THREADS, 1) { matvec<4, Then::Gate>(args); }
