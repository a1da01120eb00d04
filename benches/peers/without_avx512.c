// Hides AVX-512, AVX-VNNI and AMX from a program on Linux, so that what chooses its instructions at run time takes AVX2:
//
//     cc -O2 -shared -fPIC -o /tmp/without_avx512.so benches/peers/without_avx512.c
//     LD_PRELOAD=/tmp/without_avx512.so PROGRAM
//
// CPUID faults from the start of the program on (arch_prctl(2); the flag cpuid_fault in /proc/cpuinfo), and the handler of the fault
// executes it and clears the bits. Threads inherit the setting. A program that was compiled for AVX-512 uses it all the same.

#define _GNU_SOURCE
#include <cpuid.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

enum { ARCH_SET_CPUID = 0x1012 };

static void cpuid_is_allowed(int yes) {
    if (syscall(SYS_arch_prctl, ARCH_SET_CPUID, yes) != 0) {
        perror("without_avx512: CPUID cannot be made to fault");
        _exit(70);
    }
}

static void on_fault(int signal, siginfo_t *info, void *context) {
    (void)info;
    greg_t *registers = ((ucontext_t *)context)->uc_mcontext.gregs;
    const uint8_t *at = (const uint8_t *)registers[REG_RIP];
    if (at[0] != 0x0f || at[1] != 0xa2) {
        // Any other fault happens again, without this handler.
        struct sigaction usual = {.sa_handler = SIG_DFL};
        sigaction(signal, &usual, NULL);
        return;
    }
    uint32_t leaf = (uint32_t)registers[REG_RAX], part = (uint32_t)registers[REG_RCX];
    uint32_t a, b, c, d;
    cpuid_is_allowed(1);
    __cpuid_count(leaf, part, a, b, c, d);
    cpuid_is_allowed(0);
    if (leaf == 7 && part == 0) {
        // F, DQ, IFMA, PF, ER, CD, BW, VL.
        b &= ~(1u << 16 | 1u << 17 | 1u << 21 | 1u << 26 | 1u << 27 | 1u << 28 | 1u << 30 | 1u << 31);
        // VBMI, VBMI2, VNNI, BITALG, VPOPCNTDQ.
        c &= ~(1u << 1 | 1u << 6 | 1u << 11 | 1u << 12 | 1u << 14);
        // 4VNNIW, 4FMAPS, VP2INTERSECT, AMX-BF16, FP16, AMX-TILE, AMX-INT8.
        d &= ~(1u << 2 | 1u << 3 | 1u << 8 | 1u << 22 | 1u << 23 | 1u << 24 | 1u << 25);
    } else if (leaf == 7 && part == 1) {
        // AVX-VNNI, AVX512-BF16.
        a &= ~(1u << 4 | 1u << 5);
    }
    registers[REG_RAX] = a;
    registers[REG_RBX] = b;
    registers[REG_RCX] = c;
    registers[REG_RDX] = d;
    registers[REG_RIP] += 2;
}

__attribute__((constructor)) static void begin(void) {
    struct sigaction action = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO | SA_NODEFER};
    sigaction(SIGSEGV, &action, NULL);
    cpuid_is_allowed(0);
}
