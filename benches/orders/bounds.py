"""Bounds for what an order can save on RAGCache++'s workload: bursts of ten requests, five of 500 documents, overlap .6.

    python3 benches/orders/bounds.py [SEEDS [QUERIES]]

`foreword measure` times this workload. Here a request costs its arithmetic: the system text has 100 tokens, a document 200, a
question 32, a hint 15, and attention over the whole prompt is a tenth of the work, as in examples/shapes/0.1b. The second half
of each seed counts.

- *retrieval* keeps the order that came.
- *longest* puts the heaviest cached path first, and the other documents in the order that came.
- *law* knows how the generator draws. Among all orders that begin with a cached path, at most one document shorter than the
  heaviest, it takes the one with the most documents found in this request and, in expectation over every request that may
  follow, in the next one.

Each line says what share of documents is found, how many the median request finds, and how much less than in retrieval order
the mean and the median cost: the mean over seeds, and the standard deviation of a seed.
"""

import itertools
import random
import statistics
import sys

SEEDS = int(sys.argv[1]) if len(sys.argv) > 1 else 30
QUERIES = int(sys.argv[2]) if len(sys.argv) > 2 else 200
SYSTEM, DOCUMENT, QUESTION, HINT = 100, 200, 32, 15
K, KEPT, REGION, BURST = 5, 3, 10, 10
ATTENTION = 0.1 / 0.9


def bursty(seed):
    """`foreword_simulation::workload::bursty` with Python's random numbers: the first document of the region, the order that came."""
    rng = random.Random(seed)
    current, first, trace = [], 0, []
    for at in range(QUERIES):
        if at % BURST == 0:
            first = rng.randrange(500 // REGION) * REGION
            current = []
        rng.shuffle(current)
        region = list(range(first, first + REGION))
        rng.shuffle(region)
        current = current[:KEPT]
        current += [document for document in region if document not in current][: K - len(current)]
        rng.shuffle(current)
        trace.append((first, list(current)))
    return trace


def cost(found, hint):
    """Arithmetic of a request, where a token's products are 1."""
    computed = (K - found) * DOCUMENT + hint + QUESTION
    prefix = SYSTEM + found * DOCUMENT
    whole = SYSTEM + K * DOCUMENT + QUESTION
    return computed * (1 + ATTENTION * (prefix + computed / 2) / (whole / 2))


def paths(tree, documents, before=()):
    """All cached paths of these documents, the empty one first."""
    yield before
    for document, children in tree.items():
        if document in documents:
            yield from paths(children, documents, (*before, document))


def matched(tree, order):
    """How many documents of an order are found."""
    for found, document in enumerate(order):
        if document not in tree:
            return found
        tree = tree[document]
    return len(order)


def heaviest(tree, documents):
    return max(map(len, paths(tree, set(documents))))


def retrieval(_tree, _first, documents):
    return documents


def longest(tree, _first, documents):
    path = max(paths(tree, set(documents)), key=len)
    return [*path, *(document for document in documents if document not in path)]


def law(tree, first, documents):
    region = range(first, first + REGION)
    following = [
        {*kept, *others}
        for kept in itertools.combinations(documents, KEPT)
        for others in itertools.combinations([document for document in region if document not in kept], K - KEPT)
    ]
    held = [heaviest(tree, request) for request in following]
    least = heaviest(tree, documents) - 1
    orders = {
        (*path, *rest)
        for path in paths(tree, set(documents))
        if len(path) >= least
        for rest in itertools.permutations([document for document in documents if document not in path])
    }

    def value(order):
        shared = (next((at for at, document in enumerate(order) if document not in request), K) for request in following)
        later = sum(map(max, held, shared)) / len(following)
        return matched(tree, order) + later, order

    return list(max(orders, key=value))


def run(policy, seed):
    """The number of documents that each request of the second half finds."""
    trees, found = {}, []
    for first, documents in bursty(seed):
        tree = trees.setdefault(first, {})
        order = policy(tree, first, documents)
        found.append(matched(tree, order))
        for document in order:
            tree = tree.setdefault(document, {})
    return found[len(found) // 2 :]


plain = [run(retrieval, seed) for seed in range(SEEDS)]
print("order      found   median finds   mean less        median less")
for policy, hints in [(retrieval, [0]), (longest, [0, HINT]), (law, [0, HINT])]:
    ordered = plain if policy is retrieval else [run(policy, seed) for seed in range(SEEDS)]
    share = statistics.mean(statistics.mean(found) / K for found in ordered)
    median = statistics.mean(map(statistics.median, ordered))
    for hint in hints:
        pairs = [([cost(each, hint) for each in found], [cost(each, 0) for each in base]) for found, base in zip(ordered, plain)]
        less = [[100 * (1 - figure(costs) / figure(before)) for costs, before in pairs] for figure in (statistics.mean, statistics.median)]
        spread = [f"{statistics.mean(each):5.1f} +- {statistics.stdev(each):4.1f} %" for each in less]
        name = policy.__name__ + (" + hint" if hint else "")
        print(f"{name:15} {share:.3f}  {median:4.2f}  {spread[0]}  {spread[1]}")
