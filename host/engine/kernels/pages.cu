// Copies of pages: within the pool (copy-on-write), and to and from pinned host memory (swap), which the device
// accesses directly. There is a launch for each layer, so that the first layer need not wait for the last one's pages.
#include "device.cuh"

//   grid  x: blocks of a page's bytes; y: pages
struct CopyPages {
    u8* from;
    u8* to;
    // [pages][from, to]
    const u32* pairs;
    // Bytes from page to page.
    u64 from_stride;
    u64 to_stride;
    // A page consists of `runs` runs, `pitch` bytes apart, of which the first `run` bytes are copied, a multiple of 16.
    u32 runs;
    u32 run;
    u32 pitch;
    u32 unused;
};

constexpr u32 COPY_THREADS = 256;

KERNEL(copy_pages, CopyPages, COPY_THREADS, 1) {
    const u32* pair = args.pairs + block_y() * 2;
    const u8* from = args.from + pair[0] * args.from_stride;
    u8* to = args.to + pair[1] * args.to_stride;
    u32 at = (block_x() * COPY_THREADS + thread()) * 16;
    if (at >= args.runs * args.run) return;
    u64 offset = static_cast<u64>(at / args.run) * args.pitch + at % args.run;
    store_vector(to + offset, load_vector_once(from + offset));
}
