// cuBLASLt's products as its manual describes them: column-major, shapes and types by descriptors, computed plainly.
#pragma once
#include "queues.h"

namespace standin {

enum Status { DONE = 0, INVALID = 7, UNSUPPORTED = 15 };
constexpr int F32 = 0, BF16 = 14, FP8 = 28, COMPUTE_F32 = 68;
// A scale for each row of op(A), or for each column of op(B).
constexpr int OUTER_VECTOR = 3;

struct Layout {
    int type;
    u64 rows, columns;
    long long stride;
};

struct Description {
    int transposed[2] = {0, 0};
    int scale_modes[2] = {0, 0};
    const float* scales[2] = {nullptr, nullptr};
};

struct Preference {
    u64 workspace = 0;
};

// What a heuristic proposes: the shapes that it was asked for, so that a product of other shapes is noticed.
struct Algorithm {
    u64 rows, columns, inputs, type, workspace, unused[3];
};

struct Proposal {
    Algorithm algorithm;
    size_t workspace;
    int state;
    float waves;
    int reserved[4];
};

// Computes the shape of a product and returns whether the descriptors agree with each other.
inline bool shape_of(const Description* d, const Layout* a, const Layout* b, const Layout* c, const Layout* out, Algorithm& shape) {
    u64 m = d->transposed[0] ? a->columns : a->rows, k = d->transposed[0] ? a->rows : a->columns;
    u64 n = d->transposed[1] ? b->rows : b->columns, other = d->transposed[1] ? b->columns : b->rows;
    shape = {m, n, k, static_cast<u64>(out->type), 0, {}};
    auto fits = [](const Layout* l) { return l->stride >= static_cast<long long>(l->rows); };
    // Products of FP8 need A transposed and B not, dimensions divisible by 16, and here scales by vectors.
    const bool narrow = a->type == FP8;
    if (narrow && !(d->transposed[0] && !d->transposed[1] && m % 16 == 0 && k % 16 == 0)) return false;
    for (int i = 0; i < 2; i++)
        if (narrow && (d->scale_modes[i] != OUTER_VECTOR || !d->scales[i] || reinterpret_cast<u64>(d->scales[i]) % 16)) return false;
    return k == other && out->rows == m && out->columns == n && c->rows == m && c->columns == n && c->type == out->type &&
           (a->type == BF16 || narrow) && b->type == a->type && (out->type == BF16 || out->type == F32) && fits(a) && fits(b) && fits(c) &&
           fits(out);
}

inline float element(const void* data, int type, u64 at) {
    if (type == FP8) {
        const u8 bits = static_cast<const u8*>(data)[at];
        const int exponent = bits >> 3 & 15, mantissa = bits & 7;
        float size = exponent ? std::ldexp(8.0f + mantissa, exponent - 10) : std::ldexp(1.0f * mantissa, -9);
        if (exponent == 15 && mantissa == 7) size = NAN;
        return bits & 0x80 ? -size : size;
    }
    return type == BF16 ? emulator::value(static_cast<const u16*>(data)[at]) : static_cast<const float*>(data)[at];
}

// Returns vectors of `inputs` elements, one after another: rows of op(A), columns of op(B).
inline std::vector<float> vectors(const void* data, const Layout& l, u64 count, u64 inputs, bool stand) {
    std::vector<float> all(count * inputs);
    for (u64 i = 0; i < count; i++)
        for (u64 k = 0; k < inputs; k++)
            all[i * inputs + k] = element(data, l.type, stand ? i * l.stride + k : k * l.stride + i);
    return all;
}

inline void multiply(const Description& d, float alpha, const void* a, const Layout& la, const void* b, const Layout& lb,
                     float beta, const void* c, const Layout& lc, void* out, const Layout& lo, u64 inputs) {
    constexpr u64 LANES = 8;
    const std::vector<float> left = vectors(a, la, lo.rows, inputs, d.transposed[0]);
    const std::vector<float> right = vectors(b, lb, lo.columns, inputs, !d.transposed[1]);
    for (u64 column = 0; column < lo.columns; column++)
        for (u64 row = 0; row < lo.rows; row++) {
            const float* x = left.data() + row * inputs;
            const float* y = right.data() + column * inputs;
            float sums[LANES] = {}, sum = 0.0f;
            u64 k = 0;
            for (; k + LANES <= inputs; k += LANES)
                for (u64 i = 0; i < LANES; i++) sums[i] += x[k + i] * y[k + i];
            for (; k < inputs; k++) sum += x[k] * y[k];
            for (float one : sums) sum += one;
            if (la.type == FP8) sum = sum * d.scales[1][column] * d.scales[0][row];
            float value = alpha * sum;
            // An output that is not added to is not read either: it may be NaN.
            if (beta != 0.0f) value += beta * element(c, lc.type, column * lc.stride + row);
            u64 at = column * lo.stride + row;
            if (lo.type == BF16) static_cast<u16*>(out)[at] = static_cast<u16>(round_to_bf16(value));
            else static_cast<float*>(out)[at] = value;
        }
}

}  // namespace standin

using standin::Algorithm;
using standin::Description;
using standin::Layout;
using standin::Preference;
using standin::Proposal;

extern "C" {

size_t cublasLtGetVersion() { return 130100; }
int cublasLtCreate(void** handle) {
    *handle = new int(0);
    return standin::DONE;
}
int cublasLtDestroy(void* handle) {
    delete static_cast<int*>(handle);
    return standin::DONE;
}
int cublasLtMatmulDescCreate(Description** made, int compute, int scale) {
    if (compute != standin::COMPUTE_F32 || scale != standin::F32) return standin::UNSUPPORTED;
    *made = new Description;
    return standin::DONE;
}
int cublasLtMatmulDescSetAttribute(Description* of, int attribute, const void* value, size_t bytes) {
    // Each is followed by the same attribute of B.
    constexpr int TRANSPOSED_A = 3, SCALES_A = 17, SCALE_MODE_A = 31;
    for (int i = 0; i < 2; i++) {
        void* to = nullptr;
        size_t size = sizeof(int);
        if (attribute == TRANSPOSED_A + i) to = &of->transposed[i];
        if (attribute == SCALE_MODE_A + i) to = &of->scale_modes[i];
        if (attribute == SCALES_A + i) to = &of->scales[i], size = sizeof(float*);
        if (!to) continue;
        if (bytes != size) return standin::INVALID;
        memcpy(to, value, bytes);
        return standin::DONE;
    }
    return standin::INVALID;
}
int cublasLtMatmulDescDestroy(Description* one) {
    delete one;
    return standin::DONE;
}
int cublasLtMatrixLayoutCreate(Layout** made, int type, u64 rows, u64 columns, long long stride) {
    *made = new Layout{type, rows, columns, stride};
    return standin::DONE;
}
int cublasLtMatrixLayoutDestroy(Layout* one) {
    delete one;
    return standin::DONE;
}
int cublasLtMatmulPreferenceCreate(Preference** made) {
    *made = new Preference;
    return standin::DONE;
}
int cublasLtMatmulPreferenceSetAttribute(Preference* of, int attribute, const void* value, size_t bytes) {
    constexpr int MAX_WORKSPACE = 1;
    if (attribute != MAX_WORKSPACE || bytes != sizeof(u64)) return standin::INVALID;
    memcpy(&of->workspace, value, bytes);
    return standin::DONE;
}
int cublasLtMatmulPreferenceDestroy(Preference* one) {
    delete one;
    return standin::DONE;
}
int cublasLtMatmulAlgoGetHeuristic(void*, const Description* of, const Layout* a, const Layout* b, const Layout* c,
                                   const Layout* out, const Preference* preference, int wanted, Proposal* proposals, int* found) {
    *found = 0;
    Proposal proposal = {};
    if (wanted < 1 || !standin::shape_of(of, a, b, c, out, proposal.algorithm)) return standin::INVALID;
    // The proposal uses all of the workspace that it may have.
    proposal.workspace = proposal.algorithm.workspace = preference->workspace;
    proposals[0] = proposal;
    *found = 1;
    return standin::DONE;
}
int cublasLtMatmul(void*, const Description* of, const float* alpha, const void* a, const Layout* la, const void* b,
                   const Layout* lb, const float* beta, const void* c, const Layout* lc, void* out, const Layout* lo,
                   const Algorithm* algorithm, void* workspace, size_t bytes, standin::Stream* stream) {
    Algorithm shape;
    if (!standin::shape_of(of, la, lb, lc, lo, shape)) return standin::INVALID;
    shape.workspace = algorithm->workspace;
    // The heuristic assumes operands aligned to 256 bytes unless it is told otherwise.
    for (const void* operand : {a, b, c, static_cast<const void*>(out), static_cast<const void*>(workspace)})
        if (reinterpret_cast<u64>(operand) % 256) return standin::INVALID;
    if (memcmp(&shape, algorithm, sizeof shape) || bytes < shape.workspace) return standin::INVALID;
    // Descriptors and factors are read now; operands when the stream reaches the product, in a workspace that nobody
    // else uses.
    standin::put(*stream, [=, of = *of, la = *la, lb = *lb, lc = *lc, lo = *lo, alpha = *alpha, beta = *beta] {
        memset(workspace, 0xff, bytes < 4096 ? bytes : 4096);
        standin::multiply(of, alpha, a, la, b, lb, beta, c, lc, out, lo, shape.inputs);
    });
    return standin::DONE;
}
}
