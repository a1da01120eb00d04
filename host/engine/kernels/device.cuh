// The vocabulary of the kernels: fixed-width numbers, bf16, and the instructions of a warp, each behind a function.
//
// Only this file contains PTX. Where the kernels are compiled for the CPU (EMULATED), `emulator.cuh` defines the same
// functions differently, and everything else is the very same source.
//
//   fragments of m16n8k16, by lane (row g = lane / 4, column pair t = lane % 4):
//     A [16][16]   a0 (g, 2t..)   a1 (g + 8, 2t..)   a2 (g, 2t + 8..)   a3 (g + 8, 2t + 8..)     a word is two values
//     B [16][8]    b0 (2t.., g)   b1 (2t + 8.., g)
//     C [16][8]    c0 c1 (g, 2t..)   c2 c3 (g + 8, 2t..)
#pragma once

using u8 = unsigned char;
using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long long;

// The upper half of a float. Rounding is defined here, so CUDA's headers are not needed.
struct bf16 {
    u16 bits;
};

// Sixteen bytes that are moved at once: eight bf16 or four floats.
struct alignas(16) Vector {
    u32 words[4];
};

#ifdef EMULATED
#include "emulator.cuh"
#else

#define DEVICE __device__ __forceinline__

// A kernel takes one argument, a struct of pointers first and then 32-bit numbers, so that its layout is the same
// everywhere.
#define KERNEL(name, Arguments, threads, blocks) \
    extern "C" __global__ void __launch_bounds__(threads, blocks) name(const __grid_constant__ Arguments args)

DEVICE u32 thread() { return threadIdx.x; }
DEVICE u32 block_x() { return blockIdx.x; }
DEVICE u32 block_y() { return blockIdx.y; }
DEVICE u32 block_z() { return blockIdx.z; }

// Returns the value while hiding its origin from the compiler. What is computed from it is then recomputed in every
// iteration of a loop, because keeping it would take registers that are worth more.
DEVICE u32 forget(u32 value) {
    asm volatile("" : "+r"(value));
    return value;
}
template <class T>
DEVICE T* forget(T* value) {
    asm volatile("" : "+l"(value));
    return value;
}

// The block's shared memory, as large as the launch says, aligned to 1,024 bytes.
DEVICE u8* shared_memory() {
    extern __shared__ __align__(1024) u8 memory[];
    return memory;
}

DEVICE void barrier() { __syncthreads(); }
DEVICE void warp_barrier() { __syncwarp(); }

DEVICE u32 exchange(u32 value, u32 mask) { return __shfl_xor_sync(0xffffffffu, value, mask); }
DEVICE u64 exchange(u64 value, u32 mask) { return __shfl_xor_sync(0xffffffffu, value, mask); }
DEVICE float exchange(float value, u32 mask) { return __shfl_xor_sync(0xffffffffu, value, mask); }

DEVICE float exp2_fast(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
DEVICE float exp_exact(float x) { return expf(x); }
DEVICE float inverse_root(float x) { return 1.0f / sqrtf(x); }
DEVICE float larger(float x, float y) { return fmaxf(x, y); }
DEVICE u32 bits_of(float x) { return __float_as_uint(x); }
DEVICE float float_of(u32 bits) { return __uint_as_float(bits); }

// Two floats as bf16, rounded to nearest even, with `low` in the lower half.
DEVICE u32 pack(float low, float high) {
    u32 word;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
    return word;
}

DEVICE u32 shared_address(const void* pointer) { return static_cast<u32>(__cvta_generic_to_shared(pointer)); }

// Loads four matrices [8][8] of bf16. Lane i gives the address of row i % 8 of matrix i / 8.
DEVICE void load_matrices(u32 (&to)[4], const bf16* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(shared_address(row))
                 : "memory");
}
DEVICE void load_matrices_transposed(u32 (&to)[4], const bf16* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(shared_address(row))
                 : "memory");
}

// c += a · b, with sums in f32.
DEVICE void multiply_add(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Copies 16 bytes into shared memory, or zeroes if they are not `wanted`. They are there once their group was waited
// for.
DEVICE void copy_async(void* shared, const void* global, bool wanted) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                 :
                 : "r"(shared_address(shared)), "l"(global), "r"(wanted ? 16u : 0u)
                 : "memory");
}
DEVICE void copy_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Waits until all but the last `PENDING` groups of this thread have landed.
template <int PENDING>
DEVICE void copy_async_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}

// Loads data that no kernel writes while this one runs.
DEVICE u32 load_unchanged(const u32* from) { return __ldg(from); }
DEVICE Vector load_vector(const void* from) { return *static_cast<const Vector*>(from); }
// Loads data that is read only once: weights pass through without displacing what is read again.
DEVICE Vector load_vector_once(const void* from) {
    Vector v;
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.words[0]), "=r"(v.words[1]), "=r"(v.words[2]), "=r"(v.words[3])
                 : "l"(from));
    return v;
}
DEVICE void store_vector(void* to, const Vector& v) { *static_cast<Vector*>(to) = v; }

// Not for 64 bits, which shared memory adds only by retrying a comparison and exchange.
DEVICE u32 add_shared(u32* to, u32 value) { return atomicAdd(to, value); }

// A warpgroup consists of four warps, the first of which has a number divisible by four. Its multiplications run
// asynchronously (wgmma, on compute capability 9.0 only). Operands in shared memory are named by descriptors, see
// `matrix_at` below. Registers are the fragments above, by warp: warp w has rows 16 w to 16 w + 15, and C continues to
// the right in steps of 8 columns. Between issue and wait, no thread may touch accumulators, registers of A, or
// operands in shared memory.
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#define WARPGROUPS

// Makes the threads' writes to shared memory visible to multiplications that follow the next barrier.
DEVICE void shared_fence() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
// Makes the threads' writes to registers visible to the multiplications that follow.
DEVICE void group_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
DEVICE void group_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// Waits until all but the last `PENDING` committed groups of multiplications are done.
template <int PENDING>
DEVICE void group_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}
// Called after a wait: the compiler regards the accumulators as new from here on, so no use of them moves before it.
template <int COUNT>
DEVICE void group_take(float (&c)[COUNT][4]) {
#pragma unroll
    for (int n = 0; n < COUNT; n++)
        asm volatile("" : "+f"(c[n][0]), "+f"(c[n][1]), "+f"(c[n][2]), "+f"(c[n][3])::"memory");
}

#define FOUR(c, n) "+f"(c[n][0]), "+f"(c[n][1]), "+f"(c[n][2]), "+f"(c[n][3])
#define SIXTEEN(c, n) FOUR(c, n), FOUR(c, n + 1), FOUR(c, n + 2), FOUR(c, n + 3)

// c = a · b, or c += a · b, with A [64][16] and B [16][128] from shared memory, each with adjacent k.
DEVICE void group_multiply(float (&c)[16][4], u64 a, u64 b, bool add) {
    asm volatile(
        "{.reg .pred p; setp.ne.b32 p, %66, 0; wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
        "}, %64, %65, p, 1, 1, 0, 0;}"
        : SIXTEEN(c, 0), SIXTEEN(c, 4), SIXTEEN(c, 8), SIXTEEN(c, 12)
        : "l"(a), "l"(b), "r"(static_cast<u32>(add)));
}

// c += a · b, with A [64][16] from registers and B [16][128] from shared memory, with adjacent columns.
DEVICE void group_multiply(float (&c)[16][4], const u32 (&a)[4], u64 b) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
        "}, {%64, %65, %66, %67}, %68, 1, 1, 1, 1;"
        : SIXTEEN(c, 0), SIXTEEN(c, 4), SIXTEEN(c, 8), SIXTEEN(c, 12)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}
// The same with B [16][64].
DEVICE void group_multiply(float (&c)[8][4], const u32 (&a)[4], u64 b) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
        "}, {%32, %33, %34, %35}, %36, 1, 1, 1, 1;"
        : SIXTEEN(c, 0), SIXTEEN(c, 4)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

#undef SIXTEEN
#undef FOUR
#endif

#endif

DEVICE float infinity() { return float_of(0x7f800000u); }
DEVICE float widen(bf16 x) { return float_of(static_cast<u32>(x.bits) << 16); }
DEVICE float widen_low(u32 word) { return float_of(word << 16); }
DEVICE float widen_high(u32 word) { return float_of(word & 0xffff0000u); }
DEVICE bf16 narrow(float x) { return bf16{static_cast<u16>(pack(x, 0.0f))}; }

// A float as FP8 (E4M3), rounded to nearest even and saturated to ±448. NaN becomes the positive NaN.
DEVICE u8 narrow_fp8(float x) {
    const u32 bits = bits_of(x), sign = bits >> 24 & 0x80, size = bits & 0x7fffffff;
    if (size > 0x7f800000) return 0x7f;
    if (size >= bits_of(448.0f)) return static_cast<u8>(sign | 0x7e);
    // Below 2^-6, numbers are multiples of 2^-9, as floats from 2^14 to 2^15 are of 2^-9.
    if (size < bits_of(0x1p-6f)) return static_cast<u8>(sign | (bits_of(float_of(size) + 0x1p14f) - bits_of(0x1p14f)));
    // Other numbers keep three of 23 bits; exponents are counted from -7 instead of -127.
    return static_cast<u8>(sign | (((size + 0x7ffff + (size >> 20 & 1)) >> 20) - (120 << 3)));
}
// Byte `at` of a word of four FP8 numbers, times 2^-120: the bits of a float, because the exponents are not counted anew.
// Exact, except that NaN becomes 480 · 2^-120.
DEVICE float widen_fp8_small(u32 word, int at) {
    return float_of(static_cast<u32>(static_cast<int>(word << (24 - 8 * at)) >> 4) & 0x87f00000u);
}

constexpr u32 WARP = 32;
DEVICE u32 lane() { return thread() % WARP; }
DEVICE u32 warp() { return thread() / WARP; }

// The sum of a value over a warp, in every lane, with the same order of additions in each.
DEVICE float warp_sum(float value) {
    for (u32 mask = WARP / 2; mask > 0; mask /= 2) value += exchange(value, mask);
    return value;
}

#ifdef WARPGROUPS
constexpr u32 GROUP = 4 * WARP;

// The descriptor of an operand in shared memory. The operand is stored in panels: rows of 128 bytes, in which each of
// the
// eight chunks of 16 bytes is at its number xor the row's number, counted from an address divisible by 1,024.
//
//   k adjacent             rows are A's rows or B's columns; `stride` bytes from eight of them to the next eight,
//                          `leading` is ignored; 16 of k take 32 bytes, and begin at any of the four places
//   columns adjacent       rows are k; `stride` bytes from eight of them to the next eight, `leading` bytes from 64
//                          columns to the next 64
//
// PTX ISA 9.0, "Matrix Descriptor Format", "Strides" and "Canonical Layouts" of the asynchronous warpgroup level matrix
// instructions (128-byte swizzle). The same as in CUTLASS's `make_gmma_desc` (cute/atom/mma_traits_sm90_gmma.hpp, B128)
// and in ThunderKittens' `st_descriptor`; neither was copied.
DEVICE u64 matrix_at(const void* start, u32 leading, u32 stride) {
    u64 address = (shared_address(start) & 0x3ffff) >> 4;
    return address | static_cast<u64>(leading >> 4) << 16 | static_cast<u64>(stride >> 4) << 32 | 1ull << 62;
}
// The descriptor of the same operand `bytes` further on.
DEVICE u64 matrix_behind(u64 matrix, u32 bytes) { return matrix + (bytes >> 4); }
#endif

DEVICE float silu(float x) { return x / (1.0f + exp_exact(-x)); }
