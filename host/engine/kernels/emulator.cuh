// The emulation of a device on the CPU: the same functions as the other half of `device.cuh`, for tests only.
//
//   a block     one fibre per thread, switched by hand; a thread runs until it waits for others
//   a warp      an instruction of the warp is carried out when all 32 lanes have supplied their operands
//   shared      ends at an inaccessible page; every byte is set before a block begins, so that reading what nobody
//   wrote
//               yields NaN, or an index out of range
//   buffers     likewise, each ends at such a page: an access beyond it is reported with kernel, block and thread
//   copies      `copy_async` copies when it is waited for, not before, so a missing wait shows
//   groups      multiplications of warpgroups are carried out when they are waited for: `emulator_groups.cuh`
//   order       a warp runs as far as it can before the next one does, and a launch can begin with the last warp and
//               lane: a missing barrier shows as a wrong result, or as a different one
//
// It cannot show speed, the memory model between blocks, or whether an instruction does what its manual says.
#pragma once

#if !defined(__x86_64__)
#error "the emulator switches fibres by hand on x86-64 alone"
#endif

#include <cmath>
#include <csetjmp>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <sys/mman.h>
#include <unistd.h>
#include <vector>

#define DEVICE inline

namespace emulator {

constexpr size_t PAGE = 4096;
constexpr size_t STACK = 64 * 1024;
constexpr u32 MAX_THREADS = 1024;
constexpr u32 LANES = 32;

// A mapping whose data ends where an inaccessible page begins.
struct Guarded {
    u8* mapping = nullptr;
    size_t mapped = 0;
    u8* data = nullptr;
    size_t bytes = 0;

    static Guarded make(size_t bytes) {
        Guarded g;
        size_t whole = (bytes + 15) / 16 * 16;
        size_t pages = (whole + PAGE - 1) / PAGE * PAGE;
        g.mapped = pages + 2 * PAGE;
        void* mapping = mmap(nullptr, g.mapped, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (mapping == MAP_FAILED) std::abort();
        g.mapping = static_cast<u8*>(mapping);
        if (mprotect(g.mapping + PAGE, pages, PROT_READ | PROT_WRITE) != 0) std::abort();
        g.data = g.mapping + PAGE + pages - whole;
        g.bytes = bytes;
        memset(g.data, 0xff, whole);
        return g;
    }
    void free() { munmap(mapping, mapped); }
};

struct Copy {
    void* to;
    const void* from;
    bool wanted;
};

struct Fibre {
    void* stack_pointer = nullptr;
    bool done = false;
    // Groups of copies; the last group is open.
    std::vector<std::vector<Copy>> copies;
    size_t landed = 0;
    u32 collectives = 0;
    u32 barriers = 0;
};

// Operands that the lanes of a warp supply to an instruction, and its results. There are two sets, because a fast lane
// may be one instruction ahead of a slow one, but never two.
struct Meeting {
    u32 arrived = 0;
    u32 carried_out = 0;
    u64 in[2][LANES][8];
    u64 out[2][LANES][4];
};

using Body = void (*)(const void*);

struct Kernel {
    const char* name;
    Body body;
    u32 size;
    u32 threads;
};

inline std::vector<Kernel>& kernels() {
    static std::vector<Kernel> all;
    return all;
}

struct Registration {
    Registration(const char* name, Body body, u32 size, u32 threads) { kernels().push_back({name, body, size, threads}); }
};

struct Machine {
    std::vector<Guarded> buffers;
    u8* stacks = nullptr;
    Guarded shared;
    Fibre fibres[MAX_THREADS];
    Meeting meetings[MAX_THREADS / LANES];
    void* scheduler = nullptr;
    u32 threads = 0, current = 0, waiting = 0, barriers = 0, alive = 0;
    u32 block[3] = {0, 0, 0};
    bool progress = false;
    const Kernel* kernel = nullptr;
    const void* arguments = nullptr;
    bool running = false;
    // Numbers of a launch, for tests that count work: loads of unchanging words, and additions to shared memory.
    u64 loads = 0, adds = 0;
    sigjmp_buf escape;
    std::string message;
    void* fault = nullptr;
};

// It is never destroyed: a thread may still use it when the process exits.
inline Machine& the_machine = *new Machine;
inline Machine& machine() { return the_machine; }

// Saves the registers that a call preserves and continues on another stack.
extern "C" void foreword_switch(void** save, void* load);
asm(R"(
.text
.globl foreword_switch
.hidden foreword_switch
.type foreword_switch, @function
foreword_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
.size foreword_switch, .-foreword_switch
)");

inline void yield() {
    Machine& m = machine();
    foreword_switch(&m.fibres[m.current].stack_pointer, m.scheduler);
}

// Reports an error of the kernel and ends the launch.
[[noreturn]] inline void give_up(const std::string& what) {
    Machine& m = machine();
    m.message = what;
    siglongjmp(m.escape, 1);
}

inline void enter() {
    Machine& m = machine();
    m.kernel->body(m.arguments);
    Fibre& own = m.fibres[m.current];
    own.done = true;
    m.alive--;
    m.progress = true;
    yield();
    std::abort();
}

// A barrier of the block; threads that have ended are not waited for.
inline void barrier_of_block() {
    Machine& m = machine();
    Fibre& own = m.fibres[m.current];
    own.barriers++;
    m.waiting++;
    m.progress = true;
    while (m.barriers < own.barriers) yield();
}

// Supplies `count` words; `carry_out` computes the results of all lanes, once.
template <class F>
inline const u64* meet(const u64* words, u32 count, F carry_out) {
    Machine& m = machine();
    Fibre& own = m.fibres[m.current];
    Meeting& meeting = m.meetings[m.current / LANES];
    u32 place = own.collectives++ % 2, lane = m.current % LANES;
    for (u32 i = 0; i < count; i++) meeting.in[place][lane][i] = words[i];
    m.progress = true;
    if (++meeting.arrived == LANES) {
        carry_out(meeting.in[place], meeting.out[place]);
        meeting.arrived = 0;
        meeting.carried_out++;
    } else {
        while (meeting.carried_out < own.collectives) yield();
    }
    return meeting.out[place][lane];
}

inline std::string place_of(const Machine& m) {
    char text[160];
    snprintf(text, sizeof text, "%s, block (%u, %u, %u), thread %u", m.kernel->name, m.block[0], m.block[1], m.block[2],
             m.current);
    return text;
}

inline struct sigaction& earlier_action() {
    static struct sigaction action;
    return action;
}
inline thread_local bool is_launching = false;

inline void on_fault(int signal, siginfo_t* info, void* context) {
    if (!is_launching) {
        struct sigaction& earlier = earlier_action();
        if ((earlier.sa_flags & SA_SIGINFO) && earlier.sa_sigaction) return earlier.sa_sigaction(signal, info, context);
        ::signal(signal, SIG_DFL);
        return;
    }
    Machine& m = machine();
    m.fault = info->si_addr;
    siglongjmp(m.escape, 2);
}

// State of a block's warpgroup multiplications and copies, defined in `emulator_groups.cuh`.
void begin_groups();
void end_groups();
void copy_begins(const void* to);
void copy_lands(const void* to);

// Runs one block; if `backwards`, the last thread runs first.
inline void run_block(bool backwards) {
    Machine& m = machine();
    memset(m.shared.data, 0xff, (m.shared.bytes + 15) / 16 * 16);
    for (u32 i = 0; i < m.threads; i++) {
        Fibre& fibre = m.fibres[i];
        fibre.done = false;
        fibre.copies.assign(1, {});
        fibre.landed = 0;
        fibre.collectives = fibre.barriers = 0;
        // Sets up the stack as if `enter` had been called: it is 16-aligned before the return address.
        void** top = reinterpret_cast<void**>(m.stacks + (i + 1) * STACK - 64);
        *--top = nullptr;
        *--top = reinterpret_cast<void*>(&enter);
        for (int r = 0; r < 6; r++) *--top = nullptr;
        fibre.stack_pointer = top;
    }
    for (Meeting& meeting : m.meetings) meeting.arrived = meeting.carried_out = 0;
    m.alive = m.threads;
    m.waiting = m.barriers = 0;
    begin_groups();
    const u32 warps = (m.threads + LANES - 1) / LANES;
    while (m.alive > 0) {
        bool progress = false;
        for (u32 w = 0; w < warps; w++) {
            const u32 first = (backwards ? warps - 1 - w : w) * LANES;
            const u32 lanes = m.threads - first < LANES ? m.threads - first : LANES;
            // A warp runs alone until it waits for the block, so a dependence on another warp's progress shows.
            do {
                m.progress = false;
                for (u32 i = 0; i < lanes; i++) {
                    m.current = first + (backwards ? lanes - 1 - i : i);
                    if (!m.fibres[m.current].done) foreword_switch(&m.scheduler, m.fibres[m.current].stack_pointer);
                }
                progress |= m.progress;
            } while (m.progress);
        }
        if (m.alive > 0 && m.waiting == m.alive) {
            m.waiting = 0;
            m.barriers++;
            progress = true;
        }
        if (!progress) {
            for (u32 i = 0; i < m.threads; i++) m.current = m.fibres[i].done ? m.current : i;
            give_up(place_of(m) + ": threads wait for others that never come");
        }
    }
    end_groups();
}

inline std::string describe_fault() {
    Machine& m = machine();
    std::string text = place_of(m) + ": ";
    u8* at = static_cast<u8*>(m.fault);
    const char* kinds[2] = {"shared memory", "a buffer"};
    auto beyond = [&](const Guarded& g, const char* kind) {
        if (at < g.mapping || at >= g.mapping + g.mapped) return false;
        char more[120];
        long long behind = at - (g.data + g.bytes);
        snprintf(more, sizeof more, "touched byte %lld %s %s of %zu bytes", behind >= 0 ? behind : (long long)(g.data - at),
                 behind >= 0 ? "behind" : "before", kind, g.bytes);
        text += more;
        return true;
    };
    if (beyond(m.shared, kinds[0])) return text;
    for (const Guarded& g : m.buffers)
        if (beyond(g, kinds[1])) return text;
    char more[64];
    snprintf(more, sizeof more, "touched %p, which is in no buffer", m.fault);
    return text + more;
}

inline std::mutex& only_one() {
    static std::mutex mutex;
    return mutex;
}

inline void* allocate(size_t bytes) {
    std::lock_guard<std::mutex> lock(only_one());
    machine().buffers.push_back(Guarded::make(bytes));
    return machine().buffers.back().data;
}

inline void release(const void* data) {
    std::lock_guard<std::mutex> lock(only_one());
    auto& buffers = machine().buffers;
    for (size_t i = 0; i < buffers.size(); i++)
        if (buffers[i].data == data) {
            buffers[i].free();
            buffers.erase(buffers.begin() + i);
            return;
        }
}

// Returns the kernel of this name, or null if there is none.
inline const Kernel* kernel_of(const char* name) {
    for (const Kernel& kernel : kernels())
        if (!strcmp(kernel.name, name)) return &kernel;
    return nullptr;
}

inline void launch(const Kernel& kernel, const u32* grid, u32 threads, u32 shared, const void* arguments, bool backwards) {
    Machine& m = machine();
    if (!m.stacks) {
        void* stacks = mmap(nullptr, MAX_THREADS * STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (stacks == MAP_FAILED) std::abort();
        m.stacks = static_cast<u8*>(stacks);
        struct sigaction action = {};
        action.sa_sigaction = on_fault;
        action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
        sigaction(SIGSEGV, &action, &earlier_action());
    }
    stack_t alternate = {};
    static u8* signal_stack = static_cast<u8*>(malloc(STACK));
    alternate.ss_sp = signal_stack;
    alternate.ss_size = STACK;
    stack_t before;
    sigaltstack(&alternate, &before);
    m.message.clear();
    m.kernel = &kernel;
    m.arguments = arguments;
    m.threads = threads;
    m.loads = m.adds = 0;
    m.shared = Guarded::make(shared);
    is_launching = true;
    int escaped = sigsetjmp(m.escape, 1);
    if (escaped == 0) {
        for (u32 z = 0; z < grid[2]; z++)
            for (u32 y = 0; y < grid[1]; y++)
                for (u32 x = 0; x < grid[0]; x++) {
                    m.block[0] = x, m.block[1] = y, m.block[2] = z;
                    run_block(backwards);
                }
    } else if (escaped == 2) {
        m.message = describe_fault();
    }
    is_launching = false;
    m.shared.free();
    sigaltstack(&before, nullptr);
}

inline float value(u16 bits) {
    u32 wide = static_cast<u32>(bits) << 16;
    float x;
    memcpy(&x, &wide, 4);
    return x;
}

}  // namespace emulator

#define KERNEL(name, Arguments, threads_, blocks_)                                                             \
    static void name(const Arguments args);                                                                    \
    static emulator::Registration registered_##name(                                                           \
        #name, [](const void* a) { name(*static_cast<const Arguments*>(a)); }, sizeof(Arguments), threads_);   \
    static void name(const Arguments args)

DEVICE u32 thread() { return emulator::machine().current; }
DEVICE u32 block_x() { return emulator::machine().block[0]; }
DEVICE u32 block_y() { return emulator::machine().block[1]; }
DEVICE u32 block_z() { return emulator::machine().block[2]; }
template <class T>
DEVICE T forget(T value) {
    return value;
}
DEVICE u8* shared_memory() { return emulator::machine().shared.data; }

DEVICE void barrier() { emulator::barrier_of_block(); }
DEVICE void warp_barrier() {
    emulator::meet(nullptr, 0, [](auto&, auto&) {});
}

template <class T>
DEVICE T exchange(T value, u32 mask) {
    u64 word = 0;
    memcpy(&word, &value, sizeof value);
    u64 both[2] = {word, mask};
    const u64* got = emulator::meet(both, 2, [](auto& in, auto& out) {
        for (u32 i = 0; i < emulator::LANES; i++) out[i][0] = in[i ^ in[i][1]][0];
    });
    memcpy(&value, got, sizeof value);
    return value;
}

DEVICE float exp2_fast(float x) { return std::exp2(x); }
DEVICE float exp_exact(float x) { return std::exp(x); }
DEVICE float inverse_root(float x) { return 1.0f / std::sqrt(x); }
DEVICE float larger(float x, float y) { return std::fmax(x, y); }
DEVICE u32 bits_of(float x) {
    u32 bits;
    memcpy(&bits, &x, 4);
    return bits;
}
DEVICE float float_of(u32 bits) {
    float x;
    memcpy(&x, &bits, 4);
    return x;
}

DEVICE u32 round_to_bf16(float x) {
    u32 bits = bits_of(x);
    if (x != x) return 0x7fff;
    return (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
}
DEVICE u32 pack(float low, float high) { return round_to_bf16(low) | round_to_bf16(high) << 16; }

DEVICE void load_matrices_as(u32 (&to)[4], const bf16* row, bool transposed) {
    u64 words[2] = {reinterpret_cast<u64>(row), transposed};
    const u64* got = emulator::meet(words, 2, [](auto& in, auto& out) {
        for (u32 matrix = 0; matrix < 4; matrix++) {
            u16 m[8][8];
            for (u32 r = 0; r < 8; r++) memcpy(m[r], reinterpret_cast<const void*>(in[matrix * 8 + r][0]), 16);
            for (u32 i = 0; i < emulator::LANES; i++) {
                u32 r = i / 4, c = i % 4 * 2;
                u16 low = in[0][1] ? m[c][r] : m[r][c], high = in[0][1] ? m[c + 1][r] : m[r][c + 1];
                out[i][matrix] = low | static_cast<u32>(high) << 16;
            }
        }
    });
    for (u32 i = 0; i < 4; i++) to[i] = static_cast<u32>(got[i]);
}
DEVICE void load_matrices(u32 (&to)[4], const bf16* row) { load_matrices_as(to, row, false); }
DEVICE void load_matrices_transposed(u32 (&to)[4], const bf16* row) { load_matrices_as(to, row, true); }

DEVICE void multiply_add(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    u64 words[8] = {a[0], a[1], a[2], a[3], b0, b1, 0, 0};
    memcpy(&words[6], c, 16);
    const u64* got = emulator::meet(words, 8, [](auto& in, auto& out) {
        float left[16][16], right[16][8];
        for (u32 i = 0; i < emulator::LANES; i++) {
            u32 g = i / 4, t = i % 4 * 2;
            for (u32 h = 0; h < 2; h++) {
                for (u32 w = 0; w < 4; w++) left[g + w % 2 * 8][t + w / 2 * 8 + h] = emulator::value(in[i][w] >> 16 * h);
                for (u32 w = 0; w < 2; w++) right[t + w * 8 + h][g] = emulator::value(in[i][4 + w] >> 16 * h);
            }
        }
        for (u32 i = 0; i < emulator::LANES; i++) {
            float sums[4];
            memcpy(sums, &in[i][6], 16);
            for (u32 w = 0; w < 4; w++)
                for (u32 k = 0; k < 16; k++) sums[w] += left[i / 4 + w / 2 * 8][k] * right[k][i % 4 * 2 + w % 2];
            memcpy(out[i], sums, 16);
        }
    });
    memcpy(c, got, 16);
}

DEVICE void copy_async(void* shared, const void* global, bool wanted) {
    emulator::Machine& m = emulator::machine();
    if (reinterpret_cast<u64>(shared) % 16 || (wanted && reinterpret_cast<u64>(global) % 16))
        emulator::give_up(emulator::place_of(m) + ": an asynchronous copy is not aligned to 16 bytes");
    emulator::copy_begins(shared);
    m.fibres[m.current].copies.back().push_back({shared, global, wanted});
}
DEVICE void copy_async_commit() {
    emulator::Machine& m = emulator::machine();
    m.fibres[m.current].copies.emplace_back();
}
template <int PENDING>
DEVICE void copy_async_wait() {
    emulator::Machine& m = emulator::machine();
    emulator::Fibre& own = m.fibres[m.current];
    size_t closed = own.copies.size() - 1;
    for (; own.landed + PENDING < closed; own.landed++)
        for (const emulator::Copy& copy : own.copies[own.landed]) {
            if (copy.wanted) memcpy(copy.to, copy.from, 16);
            else memset(copy.to, 0, 16);
            emulator::copy_lands(copy.to);
        }
}

DEVICE u32 load_unchanged(const u32* from) {
    emulator::machine().loads++;
    return *from;
}
DEVICE Vector load_vector(const void* from) {
    if (reinterpret_cast<u64>(from) % 16)
        emulator::give_up(emulator::place_of(emulator::machine()) + ": a vector is not aligned to 16 bytes");
    Vector v;
    memcpy(&v, from, 16);
    return v;
}
DEVICE Vector load_vector_once(const void* from) { return load_vector(from); }
DEVICE void store_vector(void* to, const Vector& v) {
    if (reinterpret_cast<u64>(to) % 16)
        emulator::give_up(emulator::place_of(emulator::machine()) + ": a vector is not aligned to 16 bytes");
    memcpy(to, &v, 16);
}

DEVICE u32 add_shared(u32* to, u32 value) {
    emulator::machine().adds++;
    u32 before = *to;
    *to = before + value;
    return before;
}

#include "emulator_groups.cuh"
