"""Bounds for what markers can save on a bursty trace, k = 5, where a boundary needs 1,024 tokens.

    python3 benches/boundaries/bounds.py [REQUESTS [HINT_TOKENS]]

The system text has 400 tokens, a document 200, a question 30, so a boundary lies behind four documents or five. Each line is
for one lifetime in requests (300: Anthropic's, 1,800: OpenAI's), and says what prompts cost by 1.25 times the plain price, as
the better of automatic mode and fixed markers does in benches/results/heads.md. A marked set costs .25 more of its tokens, a read one
.9 less.

- *law* knows how the generator draws, and where bursts begin. It reads a set of four that is held, if there is one, and else
  writes one in the first requests of a burst, as many as turn out best over 30 seeds. No document of a request is more likely
  to come again than another, so which four it writes makes no difference.
- *future* knows all requests: the optimum of an integer program for three seeds, with five documents that come again counted as
  read for nothing. It needs scipy.
"""

import itertools
import random
import statistics
import sys

REQUESTS = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000
HINT = int(sys.argv[2]) if len(sys.argv) > 2 else 25
PLAIN = 400 + 5 * 200 + 30
FOUR, FIVE = 1_200, 1_400
WRITE, READ = 0.25, 0.9


def bursty(seed):
    """`foreword_simulation::workload::bursty` with Python's random numbers: sets of documents."""
    rng = random.Random(seed)
    current, trace = [], []
    for at in range(REQUESTS):
        if at % 10 == 0:
            first = rng.randrange(50) * 10
            current = []
        rng.shuffle(current)
        region = list(range(first, first + 10))
        rng.shuffle(region)
        current = current[:3]
        current += [document for document in region if document not in current][: 5 - len(current)]
        trace.append(frozenset(current))
    return trace


def fours(documents):
    return [frozenset(four) for four in itertools.combinations(sorted(documents), 4)]


def ratio(saved):
    return ((PLAIN + HINT) * REQUESTS - saved) / (PLAIN * REQUESTS) / 1.25


def law(lifetime, first_requests, seed):
    rng = random.Random(seed)
    held, saved = {}, 0.0
    for at, documents in enumerate(bursty(seed)):
        live = [four for four in fours(documents) if held.get(four, -1) > at]
        if live:
            saved += READ * FOUR
            held[live[0]] = at + lifetime
        elif at % 10 < first_requests:
            saved -= WRITE * FOUR
            held[rng.choice(fours(documents))] = at + lifetime
    return ratio(saved)


def future(lifetime, seed):
    import numpy
    from scipy.optimize import Bounds, LinearConstraint, milp
    from scipy.sparse import lil_matrix

    trace = bursty(seed)
    reads, writes, users, last = {}, {}, {}, {}
    gains, free = [], 0.0
    for at, documents in enumerate(trace):
        for four in fours(documents):
            reads[at, four], writes[at, four] = len(gains), len(gains) + 1
            gains += [READ * FOUR, -WRITE * FOUR]
            users.setdefault(four, []).append(at)
        if at - last.get(documents, -lifetime) < lifetime:
            free += READ * (FIVE - FOUR)
        last[documents] = at
    rows = lil_matrix((len(trace) + len(reads), len(gains)))
    bounds = []
    for at, documents in enumerate(trace):
        for four in fours(documents):
            rows[at, reads[at, four]] = rows[at, writes[at, four]] = 1
        bounds.append(1)
    for four, times in users.items():
        for nth, at in enumerate(times):
            # It is read only if an earlier request that still counts read or wrote it.
            rows[len(bounds), reads[at, four]] = 1
            for before in times[:nth]:
                if at - before < lifetime:
                    rows[len(bounds), reads[before, four]] = rows[len(bounds), writes[before, four]] = -1
            bounds.append(0)
    constraint = LinearConstraint(rows.tocsr(), -numpy.inf, numpy.array(bounds))
    integral = numpy.ones(len(gains))
    found = milp(-numpy.array(gains), constraints=constraint, bounds=Bounds(0, 1), integrality=integral, options={"mip_rel_gap": 0.01})
    return ratio(-found.fun + free)


for lifetime in [300, 1_800]:
    best = min(
        (statistics.mean(law(lifetime, first, seed) for seed in range(100, 130)), first) for first in range(3, 11)
    )
    print(f"lifetime {lifetime}: law {best[0]:.3f}, writing in the first {best[1]} of a burst")
    try:
        print(f"lifetime {lifetime}: future {statistics.mean(future(lifetime, seed) for seed in (1, 2, 3)):.3f}")
    except ImportError:
        print("scipy is missing, so the second bound is left out")
