#!/usr/bin/env python3
"""Times of ADR-011's four scenarios with and without their prefix in the cache, on `foreword serve` and a CPU.

    adr_times.py FOREWORD MODEL [--rounds N] [--threads N]

| scenario | prompt | in the cache |
| --- | --- | --- |
| chat | system prompt of 200 tokens, message of 20 | the system prompt |
| documents | 1,000 tokens of documents, question of 20 | the documents |
| batch | 100 requests at once: instruction of 50 tokens, input of 12 or 100 | the instruction, once the first request has computed it |
| mixed | 500 tokens | the first 400 |

The ADR does not say how long messages, questions and inputs are; 12 tokens are what its own figures imply for a batch. Answers have one
token, so a request's time is that to its first token. The arm without a cached prefix sends the same prompts with a salt of their own
(`cache_salt`), so both arms run in one process. Arms take turns. What counts is the processor time of the server's threads, since
other work may share the machine; seconds by the clock stand beside it. The last line is one JSON object.
"""

import argparse
import json
import pathlib
import random
import statistics
import sys
import threading
import time

from server import start_foreword

chance = random.Random(11)
salts = iter(range(1_000_000))


def words(count):
    return [chance.randrange(1000, 20000) for _ in range(count)]


def ask(server, prompt, salt):
    """Tokens from the cache."""
    return server.ask(prompt, cache_salt=f"s{salt}")[1]


def timed(server, send):
    """Processor time, seconds by the clock and cached tokens of what `send` asks."""
    clock, processor = time.perf_counter(), server.processor_time()
    cached = send()
    clock = time.perf_counter() - clock
    # What the server does behind its answer belongs to the request.
    time.sleep(0.05)
    return server.processor_time() - processor, clock, cached


def one(prefix, rest):
    """One request, with its prefix computed before in the first arm only."""

    def prepare(server):
        shared, salt = words(prefix), next(salts)
        ask(server, shared + words(8), salt)
        prompt = shared + words(rest)
        return [lambda: ask(server, prompt, salt), lambda: ask(server, prompt, next(salts))]

    return prepare


def batch(instruction, rest, size=100):
    """Requests at once, with one salt in the first arm, and a salt each in the second."""

    def prepare(server):
        shared = words(instruction)
        prompts = [shared + words(rest) for _ in range(size)]

        def at_once(salt_of):
            cached, threads = [], []
            for number, prompt in enumerate(prompts):
                call = lambda prompt=prompt, salt=salt_of[number]: cached.append(ask(server, prompt, salt))
                threads.append(threading.Thread(target=call))
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            if len(cached) != size:
                sys.exit("a request of the batch failed")
            return sum(cached)

        return [lambda: at_once([next(salts)] * size), lambda: at_once([next(salts) for _ in prompts])]

    return prepare


SCENARIOS = {
    "chat, 200 + 20 tokens": (10, one(200, 20)),
    "documents, 1,000 + 20": (10, one(1000, 20)),
    "100 at once, 50 + 12": (5, batch(50, 12)),
    "100 at once, 50 + 100": (5, batch(50, 100)),
    "mixed, 400 + 100": (5, one(400, 100)),
}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("foreword", type=pathlib.Path)
    parser.add_argument("model", type=pathlib.Path)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    server = start_foreword(options.foreword.resolve(), options.model, options.threads, "--max-waiting", "200")
    figures = {}
    try:
        print("| scenario | asked for | ratio of processor time [least, most] | of time by the clock | seconds cached / not | cached tokens |")
        print("| --- | --- | --- | --- | --- | --- |")
        for name, (asked, prepare) in SCENARIOS.items():
            rounds = []
            for number in range(options.rounds):
                arms = prepare(server)
                # The arms by turns: which is first changes from round to round.
                order = [0, 1] if number % 2 == 0 else [1, 0]
                found = {arm: timed(server, arms[arm]) for arm in order}
                rounds.append((found[0], found[1]))
            by = lambda at: sorted(cold[at] / warm[at] for warm, cold in rounds)
            middle = lambda arm, at: statistics.median(of[arm][at] for of in rounds)
            figures[name] = {"ratios": by(0), "clock": by(1), "warm_s": middle(0, 1), "cold_s": middle(1, 1), "cached": middle(0, 2)}
            print(
                f"| {name} | {asked} | {statistics.median(by(0)):.1f} [{by(0)[0]:.1f}, {by(0)[-1]:.1f}] | {statistics.median(by(1)):.1f} "
                f"| {middle(0, 1):.3f} / {middle(1, 1):.3f} | {middle(0, 2):.0f} |",
                flush=True,
            )
    finally:
        server.process.kill()
        server.process.wait()
    print(json.dumps({"rounds": options.rounds, "threads": options.threads, "scenarios": figures}))


if __name__ == "__main__":
    main()
