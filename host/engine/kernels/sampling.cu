// Samples a token from a row of logits, as the host's sampler does (`sampling/mod.rs`): top-k, then top-p over what is
// left, then min-p. Among equal logits the lower id is the likelier.
//
//   grid  x: rows, a block each
//
// Tokens are ordered by logit and id, likeliest first, or by id alone where nothing is cut. Each cut, and the choice
// itself, is the same search: the first token in that order up to which a measure (a count, or weights) sums to more
// than a target. Weights are integers, so their sums do not depend on which thread adds first.
//
// By id, each warp sums a part of the row, and the part that holds the target is divided again. By logit, the search
// goes digit by digit through the bits of a key that falls along the order, with a histogram for each digit:
//
//   key   [ spread 8 | logit, as a rising integer 32 | id, complemented 24 ]
//
// The spread is the distance to the top logit in equal steps: by the upper byte of logits, most tokens would wait for
// the same few bins. While the row is read for the second digit, the tokens that still matter are listed, and later
// digits and searches read the list. A row is thus read three times: for its top, for the first digit, for the list. If
// they are more than a list holds, further digits read the row, up to eight times a search.
#include "device.cuh"

struct Choice {
    // Random point in [0, 1).
    double point;
    // Temperature; 0 for greedy sampling.
    float temperature;
    float top_p;
    // Most tokens to consider; 0 for no limit.
    u32 top_k;
    float min_p;
};

struct Sample {
    // [rows][vocabulary]
    const float* logits;
    // [rows]
    const Choice* choices;
    // [rows][kind, token]
    u32* chosen;
    u32 vocabulary;
    u32 unused;
};

// Outcome of a row in `chosen`: a token was chosen, this token's logit is NaN or infinite, or no token is left.
enum Kind : u32 { CHOSEN, NOT_FINITE, NOTHING_LEFT };

constexpr u32 SAMPLE_THREADS = 1024;
constexpr u32 SAMPLE_WARPS = SAMPLE_THREADS / WARP;
// Logits that a thread loads before it uses the first of them.
constexpr u32 AHEAD = 4;
constexpr u32 BINS = 256;
// Lanes add to different copies of a histogram, so that fewer wait for each other. Copies begin in different banks.
constexpr u32 COPIES = 4, COPY = BINS + WARP / COPIES;
constexpr u32 LISTED = 8192;
constexpr u32 ID_BITS = 24;
constexpr u32 ID_MASK = (1u << ID_BITS) - 1;
// The weight 1.0 in fixed point. 2^24 of them fit into 64 bits. The weight 1 / ONE is that of a logit 27.7 temperatures
// below the top one: the 255 steps of the spread cover 28, and tokens below them have no weight.
constexpr float ONE = 1099511627776.0f;
constexpr float STEPS = 255.0f, STEPS_PER_TEMPERATURE = STEPS / 28.0f;
constexpr u64 FIRST_STEP = 1ull << 56;

struct Scratch {
    u64 best[SAMPLE_WARPS];
    u64 sums[SAMPLE_WARPS];
    // Rest of a search's target, within the bin.
    u64 rest;
    u32 bin;
    // Number of tokens that were to be listed.
    u32 count;
    u32 bad[SAMPLE_WARPS];
    // 64-bit sums in two words, because shared memory adds 32 bits at once.
    u32 low[COPIES * COPY];
    u32 high[COPIES * COPY];
    // Ids, in any order.
    u32 list[LISTED];

    // The order of additions does not count: each wrap of the low word is carried once.
    DEVICE void add(u32 bin, u64 measure) {
        const u32 at = lane() % COPIES * COPY + bin, word = static_cast<u32>(measure);
        const u32 carry = add_shared(&low[at], word) > ~word;
        const u32 upper = static_cast<u32>(measure >> 32) + carry;
        if (upper) add_shared(&high[at], upper);
    }

    // Returns the sum in a bin and empties it.
    DEVICE u64 take(u32 bin) {
        u64 sum = 0;
        for (u32 at = bin; at < COPIES * COPY; at += COPY) {
            sum += static_cast<u64>(high[at]) << 32 | low[at];
            low[at] = high[at] = 0;
        }
        return sum;
    }
};

// Maps a float to an integer that sorts as the float does.
DEVICE u32 rising(float x) {
    u32 bits = bits_of(x);
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

// The sum up to which a search goes, by a share of all and a further offset.
DEVICE u64 target_of(u64 total, double share, u64 offset) {
    u64 target = static_cast<u64>(share * static_cast<double>(total)) + offset;
    return target < total ? target : total - 1;
}

struct Row {
    const float* logits;
    u32 vocabulary;
    Scratch* scratch;
    float temperature;
    float top;
    // Steps of the spread in a unit of logits.
    float steps;
    // Length of the list in use, 0 for none.
    u32 listed;

    DEVICE float logit(u32 id) const { return float_of(load_unchanged(reinterpret_cast<const u32*>(logits) + id)); }
    DEVICE u64 order(u32 id, float x) const { return static_cast<u64>(rising(x)) << ID_BITS | (ID_MASK - id); }
    // Returns less than FIRST_STEP for a token without weight.
    DEVICE u64 key(u32 id, float x) const {
        const float below = (top - x) * steps;
        return (below < STEPS ? static_cast<u64>(255 - static_cast<u32>(below)) << 56 : 0) | order(id, x);
    }
    DEVICE float weight(float x) const { return exp_exact((x - top) / temperature); }

    // Calls `visit` with id and logit of each token of the list, or of the row if there is none.
    template <class Visit>
    DEVICE void each(Visit visit) const {
        const u32 count = listed ? listed : vocabulary;
        for (u32 first = thread(); first < count; first += AHEAD * SAMPLE_THREADS) {
            u32 ids[AHEAD];
            float ahead[AHEAD];
#pragma unroll
            for (u32 i = 0; i < AHEAD; i++) {
                const u32 at = first + i * SAMPLE_THREADS;
                ids[i] = at >= count ? vocabulary : listed ? scratch->list[at] : at;
                ahead[i] = ids[i] < vocabulary ? logit(ids[i]) : 0.0f;
            }
#pragma unroll
            for (u32 i = 0; i < AHEAD; i++)
                if (ids[i] < vocabulary) visit(ids[i], ahead[i]);
        }
    }

    // Returns the key up to which the tokens with keys of at least `cut` measure more than `share` of all of them, plus
    // `offset`. The measure of a token is one or, `by_weight`, its weight if that is at least `least`. No later search
    // follows the `last` one.
    DEVICE u64 find(u64 cut, float least, bool by_weight, double share, u64 offset, bool last) {
        u64 found = 0, target = 0;
        // The list is for later searches too, and contains all tokens up to the bin.
        bool keep = !last;
#pragma unroll 1
        for (int digit = 7; digit >= 0; digit--) {
            const u32 shift = digit * 8;
            const bool lists = !listed && digit < 7;
            each([&](u32 id, float x) {
                const u64 k = key(id, x), prefix = k >> shift >> 8;
                if (k < cut || prefix < found || (prefix > found && !(lists && keep))) return;
                if (lists && scratch->count <= LISTED) {
                    const u32 at = add_shared(&scratch->count, 1);
                    if (at < LISTED) scratch->list[at] = id;
                }
                if (prefix > found) return;
                u64 measure = 1;
                if (by_weight) {
                    const float w = weight(x);
                    measure = w < least ? 0 : static_cast<u64>(w * ONE);
                }
                if (measure) scratch->add(k >> shift & (BINS - 1), measure);
            });
            barrier();
            if (lists && scratch->count <= LISTED) listed = scratch->count;
            if (lists && !listed) keep = false;
            // Sums of each bin and those above it.
            u64 own = 0, sum = 0;
            if (thread() < BINS) {
                own = sum = scratch->take(thread());
                u64 all = own;
                for (u32 mask = 1; mask < WARP; mask *= 2) {
                    const u64 other = exchange(all, mask);
                    if (!(lane() & mask)) sum += other;
                    all += other;
                }
                if (lane() == 0) scratch->sums[warp()] = all;
            }
            barrier();
            if (thread() == 0) scratch->count = 0;
            if (thread() < BINS) {
                u64 total = 0;
                for (u32 w = 0; w < BINS / WARP; w++) {
                    total += scratch->sums[w];
                    if (w > warp()) sum += scratch->sums[w];
                }
                if (digit == 7) target = target_of(total, share, offset);
                if (sum > target && sum - own <= target) scratch->bin = thread(), scratch->rest = target - (sum - own);
            }
            barrier();
            found = found << 8 | scratch->bin;
            target = scratch->rest;
        }
        if (!keep) listed = 0;
        return found;
    }

    // Returns the first token up to which weights sum to more than `share` of all weights, in the order of ids.
    DEVICE u32 find_by_id(double share) {
        u32 first = 0, end = vocabulary;
        u64 target = 0;
        while (end - first > 1) {
            const u32 part = (end - first + SAMPLE_WARPS - 1) / SAMPLE_WARPS, begin = first + warp() * part;
            const u32 stop = begin + part < end ? begin + part : end;
            u64 sum = 0;
#pragma unroll 8
            for (u32 id = begin + lane(); id < stop; id += WARP) sum += static_cast<u64>(weight(logit(id)) * ONE);
            for (u32 mask = WARP / 2; mask > 0; mask /= 2) sum += exchange(sum, mask);
            if (lane() == 0) scratch->sums[warp()] = sum;
            barrier();
            if (end - first == vocabulary) {
                u64 total = 0;
                for (u32 w = 0; w < SAMPLE_WARPS; w++) total += scratch->sums[w];
                target = target_of(total, share, 0);
            }
            u32 w = 0;
            while (target >= scratch->sums[w]) target -= scratch->sums[w++];
            barrier();
            first += w * part;
            end = first + part < end ? first + part : end;
        }
        return first;
    }
};

KERNEL(sample_rows, Sample, SAMPLE_THREADS, 1) {
    Scratch* scratch = reinterpret_cast<Scratch*>(shared_memory());
    const Choice choice = args.choices[block_x()];
    const float* logits = args.logits + static_cast<u64>(block_x()) * args.vocabulary;
    Row row{logits, args.vocabulary, scratch, choice.temperature, 0.0f, 0.0f, 0};

    u64 best = 0;
    u32 bad = 0xffffffffu;
    row.each([&](u32 id, float x) {
        // The comparison is false for NaN too.
        if (!(x < infinity())) {
            bad = id < bad ? id : bad;
        } else {
            const u64 order = row.order(id, x);
            best = order > best ? order : best;
        }
    });
    for (u32 mask = WARP / 2; mask > 0; mask /= 2) {
        u64 other = exchange(best, mask);
        best = other > best ? other : best;
        u32 worse = exchange(bad, mask);
        bad = worse < bad ? worse : bad;
    }
    if (lane() == 0) scratch->best[warp()] = best, scratch->bad[warp()] = bad;
    if (thread() == 0) scratch->count = 0;
    for (u32 at = thread(); at < COPIES * COPY; at += SAMPLE_THREADS) scratch->low[at] = scratch->high[at] = 0;
    barrier();
    for (u32 w = 0; w < SAMPLE_WARPS; w++) {
        best = scratch->best[w] > best ? scratch->best[w] : best;
        bad = scratch->bad[w] < bad ? scratch->bad[w] : bad;
    }
    u32 token = ID_MASK - static_cast<u32>(best & ID_MASK);
    u32 kind = CHOSEN;
    if (bad != 0xffffffffu) {
        kind = NOT_FINITE, token = bad;
    } else if (row.logits[token] == -infinity()) {
        kind = NOTHING_LEFT;
    } else if (choice.temperature > 0.0f && choice.top_k != 1) {
        row.top = row.logits[token];
        // Bounded, so that no distance to the top is infinity times zero.
        row.steps = STEPS_PER_TEMPERATURE / larger(choice.temperature, 1e-30f);
        if (choice.top_k == 0 && choice.top_p >= 1.0f && choice.min_p <= 0.0f) {
            token = row.find_by_id(choice.point);
        } else {
            u64 cut = FIRST_STEP;
            if (choice.top_k > 0 && choice.top_k < args.vocabulary)
                cut = row.find(cut, 0.0f, false, 0.0, choice.top_k - 1, false);
            if (choice.top_p < 1.0f) cut = row.find(cut, 0.0f, true, choice.top_p, 0, false);
            token = ID_MASK - static_cast<u32>(row.find(cut, choice.min_p, true, choice.point, 0, true) & ID_MASK);
        }
    }
    if (thread() == 0) {
        args.chosen[block_x() * 2] = kind;
        args.chosen[block_x() * 2 + 1] = token;
    }
}
