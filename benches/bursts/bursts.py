#!/usr/bin/env python3
"""Sends bursts of requests that open with the same new documents, through several gateways in turn.

    python3 benches/bursts/bursts.py --arm off=http://127.0.0.1:10000 --arm hold=http://127.0.0.1:10001 \
        --model smollm2 --at-once 8,32 --rounds 3
    python3 benches/bursts/bursts.py --log bursts.jsonl --model claude-sonnet-5 --at-once 8 --rounds 50 --words 800

With `--log` it sends nothing, and writes the requests for `foreword replay`: those of a burst within 100 ms, a burst every 30 s.

Each burst has documents that no earlier burst had, so its prefix is cold. The arms take turns within a round, and
which one begins alternates. For each arm and size: the cached share of prompt tokens, as the engine's `usage` says, and
the mean time to the first byte of the answer's body and to its end. Only the standard library is needed.
"""

import argparse
import http.client
import json
import random
import threading
import time
import urllib.parse

WORDS = (
    "lamp harbour keeper fog signal winter ledger coal wick brass tide storm ladder mirror watch bell oil glass "
    "rope stair north gale hull pilot chart anchor ferry reef lantern dusk gull pier"
).split()


def document(draw, words):
    return " ".join(draw.choice(WORDS) for _ in range(words)) + "."


def ask(url, body, start, results):
    where = urllib.parse.urlsplit(url)
    client = http.client.HTTPConnection(where.hostname, where.port, timeout=600)
    start.wait()
    begin = time.monotonic()
    try:
        client.request("POST", "/v1/chat/completions", body, {"content-type": "application/json"})
        response = client.getresponse()
        first, text = None, b""
        while piece := response.read1(65536):
            first = first or time.monotonic()
            text += piece
        end = time.monotonic()
        usage = {}
        for line in text.decode().splitlines():
            if line.startswith("data: {"):
                usage = json.loads(line[6:]).get("usage") or usage
        cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
        results.append((response.status, usage.get("prompt_tokens", 0), cached, first - begin, end - begin))
    except (OSError, TypeError, http.client.HTTPException) as error:
        results.append((0, 0, 0, 0.0, 0.0))
        print(f"a request failed: {error!r}")


def requests(options, draw, at_once):
    documents = [document(draw, options.words) for _ in range(options.documents)]
    spans = "\n".join(f'<document id="d{draw.getrandbits(40)}">{text}</document>' for text in documents)
    for number in range(at_once):
        yield {
            "model": options.model,
            "messages": [
                {"role": "system", "content": "Answer from the documents."},
                {"role": "user", "content": f"{spans}\n\nQuestion {number}: what does it say?"},
            ],
            "max_tokens": options.max_tokens,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }


def burst(url, options, draw, at_once):
    results, threads, start = [], [], threading.Event()
    for body in requests(options, draw, at_once):
        threads.append(threading.Thread(target=ask, args=(url, json.dumps(body), start, results)))
    for thread in threads:
        thread.start()
    start.set()
    for thread in threads:
        thread.join()
    return results


def write(options, draw):
    sizes = [int(size) for size in options.at_once.split(",")] * options.rounds
    with open(options.log, "w") as file:
        for number, at_once in enumerate(sizes):
            for at, body in enumerate(requests(options, draw, at_once)):
                line = {"time": round(1_800_000_000 + 30 * number + at * 0.1 / at_once, 3), "request": body}
                file.write(json.dumps(line) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--arm", action="append", default=[], help="NAME=URL of a gateway")
    parser.add_argument("--log", metavar="FILE", help="write the requests instead of sending them")
    parser.add_argument("--model", required=True)
    parser.add_argument("--at-once", default="8,32", help="sizes of bursts")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--documents", type=int, default=5)
    parser.add_argument("--words", type=int, default=150, help="words of a document")
    parser.add_argument("--max-tokens", type=int, default=4)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    arms = [arm.split("=", 1) for arm in options.arm]
    draw = random.Random(options.seed)
    if options.log:
        return write(options, draw)
    if not arms:
        parser.error("--arm NAME=URL is needed, or --log FILE")
    for at_once in map(int, options.at_once.split(",")):
        seen = {name: [] for name, _ in arms}
        for number in range(options.rounds):
            for name, url in arms if number % 2 == 0 else reversed(arms):
                seen[name] += burst(url, options, draw, at_once)
        for name, results in seen.items():
            failed = sum(result[0] != 200 for result in results)
            results = [result for result in results if result[0] == 200]
            count = max(len(results), 1)
            prompt = sum(result[1] for result in results)
            cached = sum(result[2] for result in results)
            first, end = (sum(result[at] for result in results) / count for at in (3, 4))
            print(
                f"{at_once:3} at once, {name:8} {len(results)} requests, {failed} failed, {prompt / count:.0f} prompt tokens, "
                f"cached {100 * cached / max(prompt, 1):.1f} %, first byte {first:.2f} s, end {end:.2f} s"
            )


if __name__ == "__main__":
    main()
