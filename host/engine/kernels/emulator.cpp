// The emulator as a library that tests load: memory, and launches by name.
#define EMULATED
#include "kernels.cu"

using namespace emulator;

extern "C" void* foreword_allocate(size_t bytes) {
    std::lock_guard<std::mutex> lock(only_one());
    machine().buffers.push_back(Guarded::make(bytes));
    return machine().buffers.back().data;
}

extern "C" void foreword_free(void* data) {
    std::lock_guard<std::mutex> lock(only_one());
    auto& buffers = machine().buffers;
    for (size_t i = 0; i < buffers.size(); i++)
        if (buffers[i].data == data) {
            buffers[i].free();
            buffers.erase(buffers.begin() + i);
            return;
        }
}

// Writes what went wrong into `message`, or nothing.
extern "C" void foreword_launch(const char* name, const u32* grid, u32 threads, u32 shared, const void* argument, u64 size,
                                bool backwards, char* message, u64 room) {
    std::lock_guard<std::mutex> lock(only_one());
    for (const Kernel& kernel : kernels()) {
        if (strcmp(kernel.name, name)) continue;
        if (kernel.size != size) {
            snprintf(message, room, "%s takes %u bytes, %llu were given", name, kernel.size, size);
        } else if (kernel.threads != threads) {
            snprintf(message, room, "%s is for %u threads, launched with %u", name, kernel.threads, threads);
        } else {
            launch(kernel, grid, threads, shared, argument, backwards);
            snprintf(message, room, "%s", machine().message.c_str());
        }
        return;
    }
    snprintf(message, room, "there is no kernel %s", name);
}

// Kernels with one mistake each: the emulator's own tests.
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
