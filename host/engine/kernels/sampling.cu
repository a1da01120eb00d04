// Samples a token from a row of logits, as the host's sampler does (`sampling/mod.rs`): top-k, then top-p over what is
// left, then min-p. Among equal logits the lower id is the likelier.
//
//   grid  x: rows, a block each
//
// Tokens are ordered by logit and id, likeliest first, or by id alone where nothing is cut. Each cut, and the choice
// itself, is the same search: the first token in that order up to which a measure (a count, or weights) sums to more
// than
// a target. The search goes digit by digit through the bits of a key that falls along the order, with a histogram for
// each
// digit. Weights are integers, so their sums do not depend on which thread adds first.
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
constexpr u32 BINS = 256;
constexpr u32 ID_BITS = 24;
constexpr u32 ID_MASK = (1u << ID_BITS) - 1;
// The weight 1.0 in fixed point. 2^24 of them fit into 64 bits.
constexpr float ONE = 1099511627776.0f;

struct Scratch {
    u64 bins[BINS];
    u64 best[SAMPLE_THREADS / WARP];
    u32 bad[SAMPLE_THREADS / WARP];
    // State of a search: the rest of its target, and the bin.
    u64 target;
    u32 bin;
};

// Maps a float to an integer that sorts as the float does.
DEVICE u32 rising(float x) {
    u32 bits = bits_of(x);
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

struct Row {
    const float* logits;
    u32 vocabulary;
    float top;
    float temperature;
    Scratch* scratch;

    DEVICE u64 key(u32 id, bool by_id) const {
        u64 low = ID_MASK - id;
        return by_id ? low : static_cast<u64>(rising(logits[id])) << ID_BITS | low;
    }
    DEVICE float weight(u32 id) const { return exp_exact((logits[id] - top) / temperature); }

    // Returns the key up to which the tokens with keys of at least `cut` and weights of at least `least` measure more
    // than `share` of all of them, plus `offset`. The measure of a token is one, or its weight.
    DEVICE u64 find(u64 cut, float least, bool by_id, bool by_weight, double share, u64 offset) const {
        u64 prefix = 0, target = 0;
        for (int digit = by_id ? 2 : 6; digit >= 0; digit--) {
            u32 shift = digit * 8;
            if (thread() < BINS) scratch->bins[thread()] = 0;
            barrier();
            for (u32 id = thread(); id < vocabulary; id += SAMPLE_THREADS) {
                u64 k = key(id, by_id);
                if (k < cut || k >> (shift + 8) != prefix) continue;
                u64 measure = 1;
                if (by_weight || least > 0.0f) {
                    float w = weight(id);
                    if (w < least) continue;
                    if (by_weight) measure = static_cast<u64>(w * ONE);
                }
                if (measure) add_shared(&scratch->bins[k >> shift & (BINS - 1)], measure);
            }
            barrier();
            if (thread() == 0) {
                if (shift == (by_id ? 16u : 48u)) {
                    u64 total = 0;
                    for (u32 bin = 0; bin < BINS; bin++) total += scratch->bins[bin];
                    target = static_cast<u64>(share * static_cast<double>(total)) + offset;
                    if (target >= total) target = total - 1;
                }
                u32 bin = BINS - 1;
                while (bin > 0 && target >= scratch->bins[bin]) target -= scratch->bins[bin--];
                scratch->bin = bin;
                scratch->target = target;
            }
            barrier();
            target = scratch->target;
            prefix = prefix << 8 | scratch->bin;
            barrier();
        }
        return prefix;
    }
};

KERNEL(sample_rows, Sample, SAMPLE_THREADS, 1) {
    Scratch* scratch = reinterpret_cast<Scratch*>(shared_memory());
    const Choice choice = args.choices[block_x()];
    Row row{args.logits + static_cast<u64>(block_x()) * args.vocabulary, args.vocabulary, 0.0f, choice.temperature, scratch};

    u64 best = 0;
    u32 bad = 0xffffffffu;
    for (u32 id = thread(); id < args.vocabulary; id += SAMPLE_THREADS) {
        float x = row.logits[id];
        // The comparison is false for NaN too.
        if (!(x < infinity())) {
            bad = id < bad ? id : bad;
        } else {
            u64 k = row.key(id, false);
            best = k > best ? k : best;
        }
    }
    for (u32 mask = WARP / 2; mask > 0; mask /= 2) {
        u64 other = exchange(best, mask);
        best = other > best ? other : best;
        u32 worse = exchange(bad, mask);
        bad = worse < bad ? worse : bad;
    }
    if (lane() == 0) scratch->best[warp()] = best, scratch->bad[warp()] = bad;
    barrier();
    for (u32 w = 0; w < SAMPLE_THREADS / WARP; w++) {
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
        u64 key;
        if (choice.top_k == 0 && choice.top_p >= 1.0f && choice.min_p <= 0.0f) {
            key = row.find(0, 0.0f, true, true, choice.point, 0);
        } else {
            u64 cut = 0;
            if (choice.top_k > 0 && choice.top_k < args.vocabulary) cut = row.find(0, 0.0f, false, false, 0.0, choice.top_k - 1);
            if (choice.top_p < 1.0f) cut = row.find(cut, 0.0f, false, true, choice.top_p, 0);
            key = row.find(cut, choice.min_p, false, true, choice.point, 0);
        }
        token = ID_MASK - static_cast<u32>(key & ID_MASK);
    }
    if (thread() == 0) {
        args.chosen[block_x() * 2] = kind;
        args.chosen[block_x() * 2 + 1] = token;
    }
}
