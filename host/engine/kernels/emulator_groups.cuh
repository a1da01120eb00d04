// The emulation of warpgroup multiplications: issued at once, and carried out as late as the manual allows.
//
//   issued       by a warp's 32 lanes: accumulators become NaN, operands are noted
//   carried out  when the warp waits for their group and its three neighbours have issued the same; shared memory and
//   the
//                registers of A are read only then
//   errors       accumulators, registers of A or operands that were touched in between; operands that a copy is still
//                to write, or writes while in use, or wrote with no `shared_fence` since; a multiplication with no
//                `group_fence` since the last wait, or with registers written since that fence (only for registers that
//                were multiplied before: the location of others is unknown); warps of a group with different operands;
//                ending with a multiplication that was never waited for
//
// After PTX ISA 9.0, "Asynchronous Warpgroup Level Matrix Multiply-Accumulate Instructions": the layout of fragments of
// m64nNk16, the descriptor's bits, the canonical layouts of the 128-byte swizzle, and where fences are required. What
// the
// manual shows only in figures was compared with CUTLASS (cute/arch/mma_sm90_desc.hpp,
// cute/atom/mma_traits_sm90_gmma.hpp) and ThunderKittens (st_descriptor.cuh). Only copies to shared memory are tracked,
// not ordinary stores.
#pragma once

namespace emulator {

constexpr u32 GROUP_WARPS = 4;
// Offset of a block's shared memory in its address window.
constexpr u32 SHARED_BASE = 1024;
// Content of accumulators in flight: a signalling NaN, which any arithmetic turns into a different one.
constexpr u32 IN_FLIGHT = 0x7fa0f11e;

// An operand in shared memory, by its descriptor.
struct Operand {
    u64 bits;
    // Whether columns are adjacent, rather than k.
    bool columns;

    // Offset of 16 bytes in shared memory: those of row (or column) `i` with k from 8 j on or, where columns are
    // adjacent, those of k = `i` with columns from 8 j on.
    u32 offset(u32 i, u32 j) const {
        u32 start = (bits & 0x3fff) << 4, leading = (bits >> 16 & 0x3fff) << 4, stride = (bits >> 32 & 0x3fff) << 4;
        if (bits >> 62 != 1 || bits >> 49 & 7)
            give_up(place_of(machine()) + ": a descriptor with another swizzle than 128 bytes, or with a base offset");
        u32 place = start + i / 8 * stride + i % 8 * 128 + (columns ? j / 8 * leading + j % 8 * 16 : j * 16);
        u32 offset = (place ^ (place >> 7 & 7) << 4) - SHARED_BASE;
        if (static_cast<u64>(offset) + 16 > machine().shared.bytes)
            give_up(place_of(machine()) + ": a multiplication reads beyond shared memory, from byte " + std::to_string(offset));
        return offset;
    }
};

struct Multiplication {
    Operand a, b;
    bool a_in_registers, add;
    // Number of columns of B.
    u32 columns;
    float* c[LANES];
    const u32* a_registers[LANES];
    // The operands at the time of issue.
    std::vector<u32> offsets;
    std::vector<u8> bytes;
    std::vector<u32> registers;
};

// Registers of all lanes that multiplications in flight add to, with their values before the first.
struct Accumulators {
    Multiplication* first;
    u32 pending;
    std::vector<float> values;
};

// Registers of all lanes, with their content at the last fence.
struct Registers {
    const void* at[LANES];
    u32 bytes;
    std::vector<u8> fenced;

    std::vector<u8> held() const {
        std::vector<u8> all;
        for (const void* one : at) all.insert(all.end(), static_cast<const u8*>(one), static_cast<const u8*>(one) + bytes);
        return all;
    }
};

// The multiplications of a warp, in order.
struct Issued {
    std::vector<std::unique_ptr<Multiplication>> all;
    std::vector<Accumulators> accumulators;
    // Registers by their address in the first lane.
    std::map<const void*, Registers> known;
    // Number of multiplications up to the end of each committed group.
    std::vector<size_t> groups;
    size_t done = 0;
    bool fenced = false;
};

// Sixteen bytes of shared memory.
struct Chunk {
    u32 copies_under_way = 0;
    u32 readers = 0;
    // One more than the number of the thread whose copy landed here with no fence since, or 0.
    u32 unfenced = 0;
};

struct Groups {
    Issued warps[MAX_THREADS / LANES];
    std::vector<Chunk> chunks;
    // Chunks that each thread has to fence.
    std::vector<u32> landed[MAX_THREADS];
};

inline Groups& the_groups = *new Groups;
inline Groups& groups() { return the_groups; }

inline Chunk* chunk_at(const void* shared) {
    u64 offset = static_cast<const u8*>(shared) - machine().shared.data;
    return offset / 16 < groups().chunks.size() ? &groups().chunks[offset / 16] : nullptr;
}

inline void begin_groups() {
    for (Issued& warp : groups().warps) warp = Issued();
    for (auto& landed : groups().landed) landed.clear();
    groups().chunks.assign(machine().shared.bytes / 16, Chunk());
}

inline void end_groups() {
    for (Issued& warp : groups().warps)
        if (warp.done < warp.all.size())
            give_up(place_of(machine()) + ": ended with a multiplication that nobody waited for");
}

inline void copy_begins(const void* to) {
    Chunk* chunk = chunk_at(to);
    if (!chunk) return;
    if (chunk->readers) give_up(place_of(machine()) + ": a copy to what a multiplication under way reads");
    chunk->copies_under_way++;
}

inline void copy_lands(const void* to) {
    Chunk* chunk = chunk_at(to);
    if (!chunk) return;
    chunk->copies_under_way--;
    chunk->unfenced = machine().current + 1;
    groups().landed[machine().current].push_back(static_cast<u32>(chunk - groups().chunks.data()));
}

inline void fence_copies() {
    const u32 own = machine().current;
    for (u32 at : groups().landed[own])
        if (groups().chunks[at].unfenced == own + 1) groups().chunks[at].unfenced = 0;
    groups().landed[own].clear();
}

// Row of a lane's fragment among a warp's 16: its first row, or the one 8 below.
inline u32 row_of(u32 lane, u32 high) { return lane / 4 + high * 8; }

inline void note_operands(Multiplication& m, u32 warp) {
    if (m.a_in_registers)
        for (u32 i = 0; i < LANES; i++) m.registers.insert(m.registers.end(), m.a_registers[i], m.a_registers[i] + 4);
    else
        for (u32 row = 0; row < 16; row++)
            for (u32 j = 0; j < 2; j++) m.offsets.push_back(m.a.offset(warp % GROUP_WARPS * 16 + row, j));
    for (u32 i = 0; i < (m.b.columns ? 16 : m.columns); i++)
        for (u32 j = 0; j < (m.b.columns ? m.columns / 8 : 2); j++) m.offsets.push_back(m.b.offset(i, j));
    for (u32 offset : m.offsets) {
        Chunk& chunk = groups().chunks[offset / 16];
        if (chunk.copies_under_way || chunk.unfenced) {
            std::string where = place_of(machine()) + ": a multiplication reads byte " + std::to_string(offset) +
                                " of shared memory, which a copy ";
            if (chunk.copies_under_way) give_up(where + "is still to write");
            give_up(where + "of thread " + std::to_string(chunk.unfenced - 1) + " wrote with no fence since");
        }
        chunk.readers++;
        const u8* bytes = machine().shared.data + offset;
        m.bytes.insert(m.bytes.end(), bytes, bytes + 16);
    }
}

inline void fence_registers(Issued& own) {
    own.fenced = true;
    for (auto& [_, registers] : own.known) registers.fenced = registers.held();
}

// Checks that registers are unchanged since the last fence.
template <class T>
void check_fenced(Issued& own, T* const* at, u32 bytes) {
    auto [found, is_new] = own.known.try_emplace(at[0]);
    Registers& registers = found->second;
    if (!is_new && registers.fenced != registers.held())
        give_up(place_of(machine()) + ": a multiplication with registers that were written after the fence");
    for (u32 i = 0; i < LANES; i++) registers.at[i] = at[i];
    registers.bytes = bytes;
    registers.fenced = registers.held();
}

inline void issue(std::unique_ptr<Multiplication> issued, u32 warp) {
    Issued& own = groups().warps[warp];
    if ((warp / GROUP_WARPS + 1) * GROUP_WARPS * LANES > machine().threads)
        give_up(place_of(machine()) + ": a warpgroup has four warps");
    if (!own.fenced) give_up(place_of(machine()) + ": a multiplication with no fence of registers before it");
    Multiplication& m = *issued;
    note_operands(m, warp);
    own.all.push_back(std::move(issued));
    if (m.a_in_registers) check_fenced(own, m.a_registers, 16);
    for (Accumulators& known : own.accumulators)
        if (known.first->c[0] == m.c[0]) {
            known.pending++;
            return;
        }
    const u32 count = m.columns / 2;
    check_fenced(own, m.c, count * 4);
    own.accumulators.push_back({&m, 1, {}});
    for (u32 i = 0; i < LANES; i++) {
        own.accumulators.back().values.insert(own.accumulators.back().values.end(), m.c[i], m.c[i] + count);
        for (u32 r = 0; r < count; r++) memcpy(m.c[i] + r, &IN_FLIGHT, 4);
    }
}

// sums (+)= a · b, for a warp's 16 rows.
inline void multiply(const Multiplication& m, float* sums) {
    static float left[16][16], right[16][256], rows[16][256];
    const u8* bytes = m.bytes.data();
    auto take = [&](u32 at) {
        u16 bits;
        memcpy(&bits, bytes + at * 2, 2);
        return value(bits);
    };
    if (m.a_in_registers) {
        for (u32 i = 0; i < LANES; i++)
            for (u32 w = 0; w < 4; w++)
                for (u32 h = 0; h < 2; h++)
                    left[row_of(i, w % 2)][i % 4 * 2 + w / 2 * 8 + h] = value(m.registers[i * 4 + w] >> 16 * h);
    } else {
        for (u32 row = 0; row < 16; row++)
            for (u32 k = 0; k < 16; k++) left[row][k] = take(row * 16 + k);
        bytes += 16 * 16 * 2;
    }
    for (u32 k = 0; k < 16; k++)
        for (u32 n = 0; n < m.columns; n++) right[k][n] = take(m.b.columns ? k * m.columns + n : n * 16 + k);
    // Of every eight columns, a lane has two adjacent ones in each of two rows.
    auto each = [&](auto visit) {
        for (u32 i = 0; i < LANES; i++)
            for (u32 r = 0; r < m.columns / 2; r++)
                visit(sums[i * m.columns / 2 + r], rows[row_of(i, r / 2 % 2)][r / 4 * 8 + i % 4 * 2 + r % 2]);
    };
    each([&](float& sum, float& row) { row = m.add ? sum : 0.0f; });
    for (u32 row = 0; row < 16; row++)
        for (u32 k = 0; k < 16; k++)
            for (u32 n = 0; n < m.columns; n++) rows[row][n] += left[row][k] * right[k][n];
    each([&](float& sum, float& row) { sum = row; });
}

inline void carry_out(Issued& own) {
    Multiplication& m = *own.all[own.done];
    auto touched = [](const char* what) { give_up(place_of(machine()) + ": " + what + " of a multiplication under way"); };
    for (size_t i = 0; i < m.offsets.size(); i++) {
        if (memcmp(machine().shared.data + m.offsets[i], &m.bytes[i * 16], 16)) touched("somebody wrote to an operand");
        groups().chunks[m.offsets[i] / 16].readers--;
    }
    for (u32 i = 0; i < LANES && m.a_in_registers; i++)
        if (memcmp(m.a_registers[i], &m.registers[i * 4], 16)) touched("somebody wrote to registers of A");
    size_t at = 0;
    while (own.accumulators[at].first->c[0] != m.c[0]) at++;
    Accumulators& accumulators = own.accumulators[at];
    const u32 count = m.columns / 2;
    for (u32 i = 0; i < LANES; i++)
        for (u32 r = 0; r < count; r++)
            if (memcmp(m.c[i] + r, &IN_FLIGHT, 4)) touched("somebody wrote to accumulators");
    multiply(m, accumulators.values.data());
    if (--accumulators.pending == 0) {
        for (u32 i = 0; i < LANES; i++) memcpy(m.c[i], &accumulators.values[i * count], count * 4);
        own.accumulators.erase(own.accumulators.begin() + at);
    }
    m.offsets = {}, m.bytes = {}, m.registers = {};
    own.done++;
}

// Carries out all but the last `pending` committed groups of a warp.
inline void wait_for_groups(u32 warp, size_t pending) {
    Issued& own = groups().warps[warp];
    own.fenced = false;
    size_t end = own.groups.size() > pending ? own.groups[own.groups.size() - pending - 1] : 0;
    while (own.done < end) {
        for (u32 w = warp / GROUP_WARPS * GROUP_WARPS; w < (warp / GROUP_WARPS + 1) * GROUP_WARPS; w++) {
            while (groups().warps[w].all.size() <= own.done) yield();
            const Multiplication &mine = *own.all[own.done], &theirs = *groups().warps[w].all[own.done];
            if (mine.b.bits != theirs.b.bits || (!mine.a_in_registers && mine.a.bits != theirs.a.bits))
                give_up(place_of(machine()) + ": warps of a group multiply different operands");
        }
        carry_out(own);
    }
}

inline void issue_of_lane(float* c, const u32* registers, u64 a, u64 b, bool columns_of_b, u32 columns, bool add) {
    u64 words[4] = {reinterpret_cast<u64>(c), reinterpret_cast<u64>(registers), a, b};
    meet(words, 4, [&](auto& in, auto&) {
        auto m = std::make_unique<Multiplication>();
        m->a = {a, false}, m->b = {b, columns_of_b};
        m->a_in_registers = registers != nullptr, m->add = add, m->columns = columns;
        for (u32 i = 0; i < LANES; i++) {
            m->c[i] = reinterpret_cast<float*>(in[i][0]);
            m->a_registers[i] = reinterpret_cast<const u32*>(in[i][1]);
            if (in[i][2] != a || in[i][3] != b) give_up(place_of(machine()) + ": lanes of a warp multiply different operands");
        }
        issue(std::move(m), machine().current / LANES);
    });
}

}  // namespace emulator

#define WARPGROUPS

DEVICE u32 shared_address(const void* pointer) {
    return emulator::SHARED_BASE + static_cast<u32>(static_cast<const u8*>(pointer) - emulator::machine().shared.data);
}
DEVICE void shared_fence() { emulator::fence_copies(); }
DEVICE void group_fence() {
    emulator::meet(nullptr, 0, [](auto&, auto&) {
        emulator::fence_registers(emulator::groups().warps[emulator::machine().current / emulator::LANES]);
    });
}
DEVICE void group_commit() {
    emulator::meet(nullptr, 0, [](auto&, auto&) {
        emulator::Issued& own = emulator::groups().warps[emulator::machine().current / emulator::LANES];
        own.groups.push_back(own.all.size());
    });
}
template <int PENDING>
DEVICE void group_wait() {
    emulator::meet(nullptr, 0,
                   [](auto&, auto&) { emulator::wait_for_groups(emulator::machine().current / emulator::LANES, PENDING); });
}
template <int COUNT>
DEVICE void group_take(float (&)[COUNT][4]) {}

DEVICE void group_multiply(float (&c)[16][4], u64 a, u64 b, bool add) {
    emulator::issue_of_lane(c[0], nullptr, a, b, false, 128, add);
}
template <int COUNT>
DEVICE void group_multiply(float (&c)[COUNT][4], const u32 (&a)[4], u64 b) {
    emulator::issue_of_lane(c[0], a, 0, b, true, COUNT * 8, true);
}
