#!/usr/bin/env python3
"""Plays chats through several gateways, many at once: time to the first token, and between tokens.

    chat_times.py --chats chats.jsonl --arm client=http://127.0.0.1:8600 --arm shipped=http://127.0.0.1:10000 \\
        --model smollm2 --at-once 2,4,8,16,32 --take 32 --turns 4
    chat_times.py … --rates 0.25,0.5,1 --answer-tokens 64 --documents 3

Without --chats, the handbook's questions are asked. A line of --chats is one chat: an array of request bodies, as
`cargo bench -p foreword-benches -- clients --logs FOLDER` writes them in `FOLDER/CLIENT.chats.jsonl`, or a question for
`foreword evaluate`, alone or in turns. With --at-once N, N chats are under way, each of which asks its next question
once the last is answered. With --rates R, chats begin at the times of a Poisson process of R a second. The requests'
words are those of the file, whatever the model answers.

In each round the arms take turns, each with the same chats at the same times, and which one begins rotates; rounds draw
other chats and times. Each arm of a round has a salt of its own, so that no cache begins with what another left in it.
Ratios are to the first arm, with a 95 % interval by bootstrap over the chats. The last line is one JSON object.
"""

import argparse
import http.client
import json
import os
import queue
import random
import statistics
import threading
import time
import urllib.parse

import batch_plans

RESAMPLES = 2000


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--chats")
    parser.add_argument("--arm", action="append", required=True, metavar="NAME=URL")
    parser.add_argument("--model", required=True)
    loads = parser.add_mutually_exclusive_group(required=True)
    loads.add_argument("--at-once", metavar="N,N,…")
    loads.add_argument("--rates", metavar="R,R,…")
    parser.add_argument("--take", type=int, default=32, help="chats of a round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--turns", type=int, default=100, help="most turns of a chat")
    parser.add_argument("--documents", type=int, default=5, help="most documents of a question; of bodies, all")
    parser.add_argument("--words", type=int, default=400, help="most words of a document of the handbook")
    parser.add_argument("--answer-tokens", type=int, default=1)
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args()


def bodies(line, options):
    """The request bodies of a line's chat, without what all requests have in common."""
    if isinstance(line, list):
        return line[: options.turns]
    made, messages = [], [{"role": "system", "content": "Answer the question from the documents."}]
    for turn in line.get("turns", [line])[: options.turns]:
        spans = "".join(
            f'<document id="{document["id"]}">\n{document["text"]}\n</document>\n'
            for document in turn["documents"][: options.documents]
        )
        messages = [*messages, {"role": "user", "content": f"{spans}\n{turn['question']}"}]
        made.append({"messages": messages})
        messages = [*messages, {"role": "assistant", "content": (turn.get("answers") or [""])[0]}]
    return made


def ask(url, body):
    """Seconds to the first token, seconds between tokens (None for one token), prompt tokens and cached ones."""
    where = urllib.parse.urlsplit(url)
    client = http.client.HTTPConnection(where.hostname, where.port, timeout=600)
    begin, first, last, usage = time.perf_counter(), None, None, None
    client.request("POST", "/v1/chat/completions", json.dumps(body), {"content-type": "application/json"})
    response = client.getresponse()
    if response.status != 200:
        raise SystemExit(f"{url}: {response.status} {response.read()[:300]!r}")
    for line in response:
        if not line.startswith(b"data: {"):
            continue
        event = json.loads(line[6:])
        usage = event.get("usage") or usage
        if any(choice["delta"].get("content") for choice in event["choices"]):
            last = time.perf_counter()
            first = first or last
    client.close()
    if first is None:
        raise ValueError(f"{url}: an answer without text")
    # Text may come in fewer pieces than tokens, so tokens are counted by the engine.
    tokens = usage["completion_tokens"]
    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
    between = (last - first) / (tokens - 1) if tokens > 1 and last > first else None
    return first - begin, between, usage["prompt_tokens"], cached


def play(url, chats, salt, load, seed, options):
    """The results of `ask` by chat and turn. `load` is a number of chats at once, or a rate a second."""
    results = [[] for _ in chats]
    failures = []
    common = {
        "model": options.model, "cache_salt": salt, "max_tokens": options.answer_tokens, "temperature": 0, "ignore_eos": True,
        "stream": True, "stream_options": {"include_usage": True},
    }

    def chat(number):
        for body in chats[number]:
            try:
                results[number].append(ask(url, {**body, **common}))
            except (SystemExit, OSError, ValueError, KeyError, TypeError, http.client.HTTPException) as failure:
                failures.append(failure)
                return

    waiting = queue.SimpleQueue()
    for number in range(len(chats)):
        waiting.put(number)

    def worker():
        while not failures:
            try:
                chat(waiting.get_nowait())
            except queue.Empty:
                return

    if options.at_once:
        threads = [threading.Thread(target=worker) for _ in range(load)]
        for thread in threads:
            thread.start()
    else:
        chance = random.Random(seed)
        at, threads = time.perf_counter(), []
        for number in range(len(chats)):
            at += chance.expovariate(load)
            time.sleep(max(0.0, at - time.perf_counter()))
            threads.append(threading.Thread(target=chat, args=(number,)))
            threads[-1].start()
    for thread in threads:
        thread.join()
    if failures:
        raise SystemExit(f"a request failed: {failures[0]!r}")
    return results


def summary(results, baseline):
    """A cell's figures; `baseline` are the results of the first arm there."""
    every = [result for chat in results for result in chat]
    firsts = sorted(result[0] for result in every)
    between = [result[1] for result in every if result[1] is not None]
    prompt, cached = (sum(result[at] for result in every) for at in (2, 3))
    times = [[sum(result[0] for result in chat) for chat in arm] for arm in (results, baseline)]
    chance = random.Random(1)
    ratios = []
    for _ in range(RESAMPLES):
        drawn = chance.choices(range(len(results)), k=len(results))
        ratios.append(sum(times[0][at] for at in drawn) / sum(times[1][at] for at in drawn))
    ratios.sort()
    return {
        "requests": len(every),
        "first_s": {"mean": statistics.mean(firsts), "p50": statistics.median(firsts), "p95": firsts[-(-95 * len(firsts) // 100) - 1]},
        "first_ratio": {
            "mean": sum(times[0]) / sum(times[1]),
            "low": ratios[RESAMPLES // 40],
            "high": ratios[-RESAMPLES // 40 - 1],
        },
        "between_s": statistics.mean(between) if between else None,
        "prompt_tokens": prompt,
        "cached_tokens": cached,
    }


def main():
    options = arguments()
    if options.chats:
        lines = batch_plans.lines(options.chats)
    else:
        options.questions = None
        lines = [{"question": question, "documents": documents} for _, question, documents in batch_plans.batch(options)]
    arms = [arm.split("=", 1) for arm in options.arm]
    loads = [int(n) for n in options.at_once.split(",")] if options.at_once else [float(r) for r in options.rates.split(",")]
    figures = {}
    print("| chats at once or a second | arm | requests | cached | first token: mean / p50 / p95, ms | of the first arm's | between tokens, ms |")
    print("| --- | --- | --- | --- | --- | --- | --- |", flush=True)
    for number, load in enumerate(loads):
        results = {name: [] for name, _ in arms}
        for turn in range(options.rounds):
            seed = options.seed + turn
            chats = [bodies(line, options) for line in random.Random(seed).sample(lines, min(options.take, len(lines)))]
            first = (number + turn) % len(arms)
            for name, url in arms[first:] + arms[:first]:
                results[name] += play(url, chats, f"{name} {load} {turn} {os.getpid()}", load, seed, options)
        for name, _ in arms:
            cell = summary(results[name], results[arms[0][0]])
            figures.setdefault(name, {})[load] = cell
            first = " / ".join(f"{1000 * value:.0f}" for value in cell["first_s"].values())
            ratio = cell["first_ratio"]
            between = f"{1000 * cell['between_s']:.1f}" if cell["between_s"] is not None else ""
            print(
                f"| {load:g} | {name} | {cell['requests']} | {100 * cell['cached_tokens'] / cell['prompt_tokens']:.1f} % | {first} "
                f"| {ratio['mean']:.2f} [{ratio['low']:.2f}, {ratio['high']:.2f}] | {between} |",
                flush=True,
            )
    print(json.dumps({"arms": figures}))


if __name__ == "__main__":
    main()
