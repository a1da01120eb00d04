// A stand-in for CUDA's driver and cuBLASLt, for tests: it serves the host's own calls of both, without a device.
//
//   one library, loaded under both names     kernels run on the emulator     products are computed plainly
//
// It is strict where the real ones are. It refuses a thread without a context, a kernel that the loaded module lacks, a
// different argument size, more shared memory than was requested, waiting for a capture, an unaligned operand, and
// memory
// that was not given back. Work in a stream runs as `queues.h` says. A kernel that accesses invalid memory loses the
// device: every call fails from then on.
//
// It cannot show speed, or whether NVIDIA's own code does what its manuals say.
#define EMULATED
#include "../kernels.cu"
#include "products.h"
#include "queues.h"

#include <map>
#include <set>
#include <string>

namespace standin {

enum Result {
    OK = 0,
    INVALID_VALUE = 1,
    OUT_OF_MEMORY = 2,
    INVALID_IMAGE = 200,
    INVALID_CONTEXT = 201,
    NO_BINARY_FOR_GPU = 209,
    NOT_FOUND = 500,
    ILLEGAL_ADDRESS = 700,
    CAPTURE_UNSUPPORTED = 900,
    CAPTURE_INVALIDATED = 901,
    CAPTURE_UNMATCHED = 903,
    CAPTURE_ISOLATION = 905,
};

constexpr int PROCESSORS = 6;
constexpr u32 SHARED_UNASKED = 48 << 10, SHARED_AT_MOST = 227 << 10;
constexpr size_t MEMORY = 256 << 20;

struct Module;

struct Function {
    const emulator::Kernel* kernel;
    u32 shared = SHARED_UNASKED;
};

struct Module {
    // The module's kernels by name, with the bytes of their argument.
    std::map<std::string, u32> arguments;
    std::map<std::string, Function> functions;
};

struct Event {
    std::shared_ptr<Mark> mark;
};

struct Process {
    std::recursive_mutex mutex;
    int retained = 0, made = 0;
    std::map<u64, size_t> device, pinned;
    std::set<void*> handles;
    // The first error of a kernel.
    int lost = OK;
    // Launches so far of the kernel that is to break.
    int launches = 0;
    bool started = false;
};

inline Process& process() {
    static Process* one = new Process;
    return *one;
}

thread_local bool has_context = false;

// Why a call that needs a context must be refused, or OK.
inline int refusal() {
    if (!has_context) return INVALID_CONTEXT;
    return process().lost;
}

// Allocates memory that ends at an inaccessible page, aligned as CUDA's is.
inline u64 allocate(size_t bytes, std::map<u64, size_t>& among) {
    u64 address = reinterpret_cast<u64>(emulator::allocate((bytes + 255) / 256 * 256));
    among[address] = bytes;
    return address;
}

inline bool release(u64 address, std::map<u64, size_t>& among) {
    if (!among.erase(address)) return false;
    emulator::release(reinterpret_cast<const void*>(address));
    return true;
}

inline bool within(u64 address, size_t bytes, const std::map<u64, size_t>& among) {
    auto after = among.upper_bound(address);
    if (after == among.begin()) return false;
    auto [start, length] = *std::prev(after);
    return address + bytes <= start + length;
}

// Returns whether this launch is the one that a variable of the environment names, as KERNEL:NUMBER, or a later one.
inline bool reaches(const char* variable, const char* kernel) {
    const char* told = getenv(variable);
    const char* colon = told ? strchr(told, ':') : nullptr;
    size_t length = colon ? colon - told : 0;
    return colon && strlen(kernel) == length && !strncmp(told, kernel, length) && ++process().launches >= atoi(colon + 1);
}

// Carries out a launch when the stream reaches it.
inline void run(const emulator::Kernel& kernel, const u32* grid, u32 shared, const void* argument) {
    if (!process().lost && reaches("FOREWORD_BREAKS", kernel.name)) process().lost = ILLEGAL_ADDRESS;
    if (process().lost) return;
    std::lock_guard<std::mutex> lock(emulator::only_one());
    emulator::launch(kernel, grid, kernel.threads, shared, argument, false);
    const std::string& message = emulator::machine().message;
    if (message.empty()) return;
    fprintf(stderr, "stand-in: %s\n", message.c_str());
    process().lost = ILLEGAL_ADDRESS;
}

template <class T>
T read(const u8* at) {
    T value;
    memcpy(&value, at, sizeof value);
    return value;
}

// Reads names and arguments of the kernels in an image of machine code (ELF; NVIDIA's "EIATTR" notes are in
// .nv.info.NAME).
inline bool read_image(const u8* image, Module& module) {
    constexpr u16 CUDA = 190;
    constexpr u8 INLINE = 3, FOLLOWS = 4, ARGUMENT_BYTES = 0x19;
    if (memcmp(image, "\x7f" "ELF\x02", 5) || read<u16>(image + 18) != CUDA) return false;
    const u8* sections = image + read<u64>(image + 40);
    const u32 size = read<u16>(image + 58), count = read<u16>(image + 60), names = read<u16>(image + 62);
    const u8* text = image + read<u64>(sections + names * size + 24);
    const std::string notes = ".nv.info.";
    for (u32 i = 0; i < count; i++) {
        const u8* section = sections + i * size;
        std::string name = reinterpret_cast<const char*>(text + read<u32>(section));
        if (name.compare(0, notes.size(), notes)) continue;
        const u8* at = image + read<u64>(section + 24);
        const u8* end = at + read<u64>(section + 32);
        while (at < end) {
            u16 value = read<u16>(at + 2);
            if (at[0] == INLINE && at[1] == ARGUMENT_BYTES) module.arguments[name.substr(notes.size())] = value;
            at += at[0] == FOLLOWS ? 4 + value : 4;
        }
    }
    return true;
}

// Reads names and arguments of the kernels in PTX, which a driver compiles: `.entry NAME(` and the size of its one
// parameter, `NAME_param_0[BYTES]`.
inline bool read_ptx(const char* text, Module& module) {
    const std::string entry = ".entry ";
    for (const char* at = strstr(text, entry.c_str()); at; at = strstr(at, entry.c_str())) {
        at += entry.size();
        std::string name(at, strcspn(at, "( \n\t"));
        const char* parameter = strstr(at, (name + "_param_0[").c_str());
        if (!parameter) return false;
        module.arguments[name] = atoi(strchr(parameter, '[') + 1);
    }
    return !module.arguments.empty();
}

// Returns the device's major version: machine code for 9 runs on no other.
inline int major_version() {
    const char* told = getenv("FOREWORD_MAJOR");
    return told ? atoi(told) : 9;
}

}  // namespace standin

using namespace standin;

#define LOCKED std::lock_guard<std::recursive_mutex> locked(process().mutex)
#define IN_CONTEXT                  \
    LOCKED;                         \
    if (int no = refusal()) return no

extern "C" {

int cuInit(u32) {
    LOCKED;
    process().started = true;
    return OK;
}
int cuDriverGetVersion(int* version) {
    const char* told = getenv("FOREWORD_DRIVER");
    *version = told ? atoi(told) : 13000;
    return OK;
}
int cuGetErrorName(int error, const char** name) {
    static const std::map<int, const char*> names = {{INVALID_VALUE, "INVALID_VALUE"},
                                                     {OUT_OF_MEMORY, "OUT_OF_MEMORY"},
                                                     {INVALID_IMAGE, "INVALID_IMAGE"},
                                                     {INVALID_CONTEXT, "INVALID_CONTEXT"},
                                                     {NO_BINARY_FOR_GPU, "NO_BINARY_FOR_GPU"},
                                                     {NOT_FOUND, "NOT_FOUND"},
                                                     {ILLEGAL_ADDRESS, "ILLEGAL_ADDRESS"},
                                                     {CAPTURE_UNSUPPORTED, "CAPTURE_UNSUPPORTED"},
                                                     {CAPTURE_INVALIDATED, "CAPTURE_INVALIDATED"},
                                                     {CAPTURE_UNMATCHED, "CAPTURE_UNMATCHED"},
                                                     {CAPTURE_ISOLATION, "CAPTURE_ISOLATION"}};
    auto found = names.find(error);
    *name = found == names.end() ? "UNKNOWN" : found->second;
    return OK;
}
int cuGetErrorString(int, const char** text) {
    *text = "says the stand-in";
    return OK;
}
int cuDeviceGetCount(int* count) {
    *count = 1;
    return process().started ? OK : 3;
}
int cuDeviceGet(int* device, int ordinal) {
    *device = ordinal;
    return ordinal == 0 ? OK : 101;
}
int cuDeviceGetName(char* name, int room, int) {
    snprintf(name, room, "emulator behind a driver");
    return OK;
}
int cuDeviceGetAttribute(int* value, int attribute, int) {
    constexpr int COUNT = 16, MAJOR = 75, MINOR = 76;
    switch (attribute) {
    case COUNT: *value = PROCESSORS; return OK;
    case MAJOR: *value = major_version(); return OK;
    case MINOR: *value = 0; return OK;
    default: return INVALID_VALUE;
    }
}
int cuDevicePrimaryCtxRetain(void** context, int) {
    LOCKED;
    process().retained++;
    *context = &process();
    return OK;
}
int cuDevicePrimaryCtxRelease_v2(int) {
    LOCKED;
    Process& p = process();
    if (p.retained == 0) return INVALID_CONTEXT;
    if (--p.retained > 0) return OK;
    size_t left = p.device.size() + p.pinned.size() + p.handles.size() + streams().size();
    if (left && !p.lost) {
        fprintf(stderr, "stand-in: %zu buffers, %zu pinned ones, %zu handles and %zu streams were not given back\n",
                p.device.size(), p.pinned.size(), p.handles.size(), streams().size());
        abort();
    }
    return OK;
}
int cuCtxSetCurrent(void* context) {
    has_context = context == &process();
    return OK;
}

int cuMemGetInfo_v2(size_t* free, size_t* total) {
    IN_CONTEXT;
    size_t used = 0;
    for (auto& [_, bytes] : process().device) used += bytes;
    *free = used < MEMORY ? MEMORY - used : 0;
    *total = MEMORY;
    return OK;
}
int cuMemAlloc_v2(u64* address, size_t bytes) {
    IN_CONTEXT;
    size_t free, total;
    cuMemGetInfo_v2(&free, &total);
    if (bytes == 0) return INVALID_VALUE;
    if (bytes > free) return OUT_OF_MEMORY;
    *address = allocate(bytes, process().device);
    return OK;
}
int cuMemFree_v2(u64 address) {
    IN_CONTEXT;
    for (auto& stream : streams()) finish(*stream);
    return release(address, process().device) ? OK : INVALID_VALUE;
}
int cuMemHostAlloc(void** pointer, size_t bytes, u32) {
    IN_CONTEXT;
    *pointer = reinterpret_cast<void*>(allocate(bytes, process().pinned));
    return OK;
}
int cuMemFreeHost(void* pointer) {
    IN_CONTEXT;
    for (auto& stream : streams()) finish(*stream);
    return release(reinterpret_cast<u64>(pointer), process().pinned) ? OK : INVALID_VALUE;
}
// Asynchronous as from pinned memory: the bytes are read when the stream reaches the copy.
int cuMemcpyHtoDAsync_v2(u64 to, const void* from, size_t bytes, Stream* stream) {
    IN_CONTEXT;
    if (!within(to, bytes, process().device)) return INVALID_VALUE;
    put(*stream, [=] { memcpy(reinterpret_cast<void*>(to), from, bytes); });
    return OK;
}
int cuMemcpyDtoHAsync_v2(void* to, u64 from, size_t bytes, Stream* stream) {
    IN_CONTEXT;
    if (!within(from, bytes, process().device)) return INVALID_VALUE;
    put(*stream, [=] { memcpy(to, reinterpret_cast<const void*>(from), bytes); });
    return OK;
}

int cuStreamCreate(Stream** made, u32) {
    IN_CONTEXT;
    const char* late = getenv("FOREWORD_LATE");
    const char* own = process().made++ % 2 == 0 ? "first" : "second";
    streams().push_back(std::make_unique<Stream>());
    *made = streams().back().get();
    (*made)->late = late && (!strcmp(late, "both") || !strcmp(late, own));
    return OK;
}
int cuStreamDestroy_v2(Stream* stream) {
    LOCKED;
    finish(*stream);
    auto& all = streams();
    for (size_t i = 0; i < all.size(); i++)
        if (all[i].get() == stream) return all.erase(all.begin() + i), OK;
    return INVALID_VALUE;
}
int cuStreamSynchronize(Stream* stream) {
    IN_CONTEXT;
    if (stream->recording) {
        stream->invalid = true;
        return CAPTURE_UNSUPPORTED;
    }
    finish(*stream);
    return process().lost;
}
int cuEventCreate(Event** made, u32) {
    IN_CONTEXT;
    *made = new Event;
    process().handles.insert(*made);
    return OK;
}
int cuEventDestroy_v2(Event* event) {
    LOCKED;
    if (!process().handles.erase(event)) return INVALID_VALUE;
    delete event;
    return OK;
}
int cuEventRecord(Event* event, Stream* stream) {
    IN_CONTEXT;
    // A real capture could contain it; the host's captures have no use for it.
    if (stream->recording) return CAPTURE_UNSUPPORTED;
    event->mark = std::make_shared<Mark>(Mark{stream});
    put(*stream, Work{nullptr, event->mark, nullptr});
    return OK;
}
int cuStreamWaitEvent(Stream* stream, Event* event, u32) {
    IN_CONTEXT;
    if (stream->recording) {
        stream->invalid = true;
        return CAPTURE_ISOLATION;
    }
    // An event that marks nothing is not waited for.
    if (event->mark) put(*stream, Work{nullptr, nullptr, event->mark});
    return OK;
}

int cuStreamBeginCapture_v2(Stream* stream, int) {
    IN_CONTEXT;
    if (stream->recording) return INVALID_VALUE;
    stream->recording = std::make_unique<Graph>();
    stream->invalid = false;
    return OK;
}
int cuStreamEndCapture(Stream* stream, Graph** made) {
    IN_CONTEXT;
    if (!stream->recording) return CAPTURE_UNMATCHED;
    std::unique_ptr<Graph> graph = std::move(stream->recording);
    *made = nullptr;
    if (stream->invalid) return CAPTURE_INVALIDATED;
    *made = graph.release();
    process().handles.insert(*made);
    return OK;
}
int cuGraphInstantiateWithFlags(Graph** made, Graph* graph, u64) {
    IN_CONTEXT;
    if (!process().handles.count(graph)) return INVALID_VALUE;
    *made = new Graph(*graph);
    process().handles.insert(*made);
    return OK;
}
int cuGraphDestroy(Graph* graph) {
    LOCKED;
    if (!process().handles.erase(graph)) return INVALID_VALUE;
    delete graph;
    return OK;
}
int cuGraphExecDestroy(Graph* graph) { return cuGraphDestroy(graph); }
int cuGraphLaunch(Graph* graph, Stream* stream) {
    IN_CONTEXT;
    if (!process().handles.count(graph) || stream->recording) return INVALID_VALUE;
    for (auto& work : *graph) put(*stream, work);
    return OK;
}

int cuModuleLoadData(Module** made, const void* image) {
    IN_CONTEXT;
    auto module = std::make_unique<Module>();
    const bool is_ptx = !strncmp(static_cast<const char*>(image), "//", 2);
    if (!is_ptx && major_version() != 9) return NO_BINARY_FOR_GPU;
    if (is_ptx ? !read_ptx(static_cast<const char*>(image), *module) : !read_image(static_cast<const u8*>(image), *module))
        return INVALID_IMAGE;
    *made = module.release();
    process().handles.insert(*made);
    return OK;
}
int cuModuleUnload(Module* module) {
    LOCKED;
    if (!process().handles.erase(module)) return INVALID_VALUE;
    delete module;
    return OK;
}
int cuModuleGetFunction(Function** found, Module* module, const char* name) {
    IN_CONTEXT;
    auto argument = module->arguments.find(name);
    if (argument == module->arguments.end()) return NOT_FOUND;
    const emulator::Kernel* kernel = emulator::kernel_of(name);
    if (!kernel) return NOT_FOUND;
    if (kernel->size != argument->second) {
        fprintf(stderr, "stand-in: %s takes %u bytes in the module, %u here\n", name, argument->second, kernel->size);
        return NOT_FOUND;
    }
    *found = &module->functions.try_emplace(name, Function{kernel}).first->second;
    return OK;
}
int cuFuncSetAttribute(Function* function, int attribute, int value) {
    IN_CONTEXT;
    constexpr int SHARED = 8;
    if (attribute != SHARED || value < 0 || static_cast<u32>(value) > SHARED_AT_MOST) return INVALID_VALUE;
    function->shared = static_cast<u32>(value);
    return OK;
}
int cuLaunchKernel(Function* function, u32 x, u32 y, u32 z, u32 threads, u32 threads_y, u32 threads_z, u32 shared,
                   Stream* stream, void** arguments, void** extra) {
    IN_CONTEXT;
    const emulator::Kernel& kernel = *function->kernel;
    if (reaches("FOREWORD_REFUSES", kernel.name)) return OUT_OF_MEMORY;
    if (!x || !y || !z || y > 65535 || z > 65535 || threads_y != 1 || threads_z != 1 || extra) return INVALID_VALUE;
    // A real driver refuses more threads than `__launch_bounds__` has. Fewer are refused too: the kernels are not made
    // for them.
    if (threads != kernel.threads || shared > function->shared) return INVALID_VALUE;
    const u8* argument = static_cast<const u8*>(arguments[0]);
    std::vector<u64> words((kernel.size + 7) / 8);
    memcpy(words.data(), argument, kernel.size);
    put(*stream, [=, &kernel] {
        const u32 grid[3] = {x, y, z};
        run(kernel, grid, shared, words.data());
    });
    return OK;
}
}
