// The emulator as a library that tests load: memory, and launches by name.
#define EMULATED
#include "kernels.cu"

using namespace emulator;

extern "C" void* foreword_allocate(size_t bytes) { return allocate(bytes); }

extern "C" void foreword_free(void* data) { release(data); }

// Launches a kernel and writes an error message, or an empty string, to `message`, and to `work` the launch's loads of
// unchanging words and additions to shared memory.
extern "C" void foreword_launch(const char* name, const u32* grid, u32 threads, u32 shared, const void* argument, u64 size,
                                bool backwards, char* message, u64 room, u64* work) {
    std::lock_guard<std::mutex> lock(only_one());
    const Kernel* kernel = kernel_of(name);
    if (!kernel) {
        snprintf(message, room, "there is no kernel %s", name);
    } else if (kernel->size != size) {
        snprintf(message, room, "%s takes %u bytes, %llu were given", name, kernel->size, size);
    } else if (kernel->threads != threads) {
        snprintf(message, room, "%s is for %u threads, launched with %u", name, kernel->threads, threads);
    } else {
        launch(*kernel, grid, threads, shared, argument, backwards);
        snprintf(message, room, "%s", machine().message.c_str());
        work[0] = machine().loads, work[1] = machine().adds;
    }
}

// Kernels with one mistake each, for the emulator's own tests.
struct Mistake {
    float* values;
    u32 count;
    u32 unused;
};

KERNEL(mistake_beyond_a_buffer, Mistake, 64, 1) { args.values[thread()] = 1.0f; }

KERNEL(mistake_beyond_shared_memory, Mistake, 64, 1) {
    reinterpret_cast<float*>(shared_memory())[thread()] = 1.0f;
}

KERNEL(mistake_no_barrier, Mistake, 64, 1) {
    float* shared = reinterpret_cast<float*>(shared_memory());
    shared[thread()] = static_cast<float>(thread());
    args.values[thread()] = shared[63 - thread()];
}

KERNEL(mistake_no_wait, Mistake, 64, 1) {
    float* shared = reinterpret_cast<float*>(shared_memory());
    copy_async(shared + thread() * 4, args.values, true);
    copy_async_commit();
    barrier();
    args.values[thread()] = shared[thread() * 4];
    copy_async_wait<0>();
}

KERNEL(mistake_lonely_lane, Mistake, 64, 1) {
    if (thread() != 5) warp_barrier();
}

KERNEL(mistake_unset_shared_memory, Mistake, 64, 1) {
    args.values[thread()] = reinterpret_cast<float*>(shared_memory())[thread()];
}

// One multiplication of a warpgroup by copied operands, with one step wrong. The first four values are threes; the
// result is 72 if nothing is wrong.
enum class Wrong {
    Nothing, CopyWait, SharedFence, GroupFence, EarlyFence, Commit, Wait, EarlyRead, Accumulators, Registers, Operand,
    Swizzle, Disagree
};

template <Wrong WRONG>
static void multiply_once(const Mistake& args) {
    u8* memory = shared_memory();
    float& result = args.values[4 + thread()];
    for (u32 i = thread(); i < 1024; i += GROUP) copy_async(memory + i * 16, args.values, true);
    copy_async_commit();
    if (WRONG != Wrong::CopyWait) copy_async_wait<0>();
    if (WRONG != Wrong::SharedFence) shared_fence();
    barrier();
    float c[16][4] = {};
    // Each word is two bf16, zero and three.
    u32 a[4] = {0x40400000, 0x40400000, 0x40400000, 0x40400000};
    u64 matrix = matrix_at(memory, 16, 1024);
    if (WRONG == Wrong::Swizzle) matrix ^= 3ull << 62;
    if (WRONG == Wrong::Disagree && warp() == 2) matrix = matrix_behind(matrix, 32);
    if (WRONG != Wrong::GroupFence) group_fence();
    if (WRONG == Wrong::Registers) group_multiply(c, a, matrix_at(memory, 8192, 1024));
    else group_multiply(c, matrix, matrix, true);
    if (WRONG == Wrong::Registers) a[2] = 0;
    if (WRONG == Wrong::Accumulators) c[7][1] += 1.0f;
    if (WRONG == Wrong::Operand) copy_async(memory + thread() * 16, args.values, true);
    if (WRONG != Wrong::Commit) group_commit();
    if (WRONG == Wrong::EarlyRead) result = c[0][0];
    if (WRONG != Wrong::Wait) group_wait<0>();
    if (WRONG == Wrong::EarlyFence) {
        group_fence();
        c[15][3] = 0.0f;
        group_multiply(c, matrix, matrix, true);
    }
    if (WRONG != Wrong::EarlyRead) result = c[0][0];
}

KERNEL(multiply_right, Mistake, GROUP, 1) { multiply_once<Wrong::Nothing>(args); }
KERNEL(multiply_before_copies, Mistake, GROUP, 1) { multiply_once<Wrong::CopyWait>(args); }
KERNEL(multiply_unfenced_copies, Mistake, GROUP, 1) { multiply_once<Wrong::SharedFence>(args); }
KERNEL(multiply_unfenced_registers, Mistake, GROUP, 1) { multiply_once<Wrong::GroupFence>(args); }
KERNEL(multiply_fenced_too_early, Mistake, GROUP, 1) { multiply_once<Wrong::EarlyFence>(args); }
KERNEL(multiply_uncommitted, Mistake, GROUP, 1) { multiply_once<Wrong::Commit>(args); }
KERNEL(multiply_unawaited, Mistake, GROUP, 1) { multiply_once<Wrong::Wait>(args); }
KERNEL(multiply_read_early, Mistake, GROUP, 1) { multiply_once<Wrong::EarlyRead>(args); }
KERNEL(multiply_touch_accumulators, Mistake, GROUP, 1) { multiply_once<Wrong::Accumulators>(args); }
KERNEL(multiply_touch_registers, Mistake, GROUP, 1) { multiply_once<Wrong::Registers>(args); }
KERNEL(multiply_overwrite_operand, Mistake, GROUP, 1) { multiply_once<Wrong::Operand>(args); }
KERNEL(multiply_other_swizzle, Mistake, GROUP, 1) { multiply_once<Wrong::Swizzle>(args); }
KERNEL(multiply_disagree, Mistake, GROUP, 1) { multiply_once<Wrong::Disagree>(args); }
