#!/usr/bin/env python3
"""Time to the first token by request rate, beside llama.cpp's server and any other: RAGCache's figure 15.

    serving_rates.py FOREWORD [--llama-server PROGRAM] [--engine NAME=URL] [--by clock|processor] [--rates R,R,...]
                     [--requests N] [--place NAME]

Every server computes the shape of 0.1B with the same random weights, numbers of bf16, on the same cores (`--llama-weights`
f16 or f32 are the same numbers, for builds of llama.cpp that are slow with bf16). The requests are the
handbook's questions with their five best documents, as `foreword batch` sends them: in the client's order, or in the
gateway's (`foresight`), whose hint is part of the prompt. Prompts go as token ids, so that all servers compute the same
ones. An answer has one token, as MMLU's have in the paper, so a request's time is that to its first token.

For each rate, the arms take turns, each with the same requests at the same times of a Poisson process. Every prompt of
an arm at a rate begins with eight tokens of its own, so that no cache begins with what another arm or rate left in it;
the first tenth of the requests is asked before and not counted. A time counts from the arrival, the queue included. An
arm leaves once its mean is twice beyond five times that at its lowest rate: the paper calls the highest rate up to five
times the throughput (its section 7, *Metrics*).

On a machine that does other work too, use `--by processor --threads 1`: the arms send one request each in turn, and what
counts is the processor time of the server's threads. The times by rate are then those of one queue, first come, first
served, before a processor that does nothing else; what a server gains by its own order or by batches is not in them.

| server | started by |
| --- | --- |
| foreword | this script: `foreword serve` |
| llama.cpp | this script, if PROGRAM is named: llama-server, or `xllamacpp` for the server in that package |
| NAME | you: an OpenAI-compatible server of the folder that `--keep FOLDER` leaves, such as vLLM's |

The last line is one JSON object.
"""

import argparse
import json
import os
import pathlib
import random
import shutil
import statistics
import struct
import subprocess
import sys
import tempfile
import threading
import time
import urllib.parse

import numpy

import cpu_engines
from batch_plans import ROOT, batch, bodies
from server import Server, start_foreword

VOCABULARY = 32000
# The throughput of an arm: the highest rate whose mean is at most so many times that of the lowest.
WITHIN = 5
# Times that the requests are repeated where the queue is computed.
REPEATED = 50


def values_of(name, size):
    """The values of a tensor. Logits are made smaller, by a power of two, or one token would have all probability."""
    values = cpu_engines.random(name, size)
    return values / numpy.float32(64) if name == "model.norm.weight" else values


def write_checkpoint(folder, element):
    """The shape, a fixture's tokenizer, and the weights as safetensors and as GGUF."""
    shape = json.loads((ROOT / "examples/shapes/0.1b/config.json").read_text())
    shutil.copy(ROOT / "examples/shapes/0.1b/config.json", folder)
    for name in ["tokenizer_config.json", "chat_template.jinja"]:
        shutil.copy(ROOT / "host/engine/fixtures/llama" / name, folder)
    # Every id of the shape gets a text, so that answers can be compared.
    tokenizer = json.loads((ROOT / "host/engine/fixtures/llama/tokenizer.json").read_text())
    texts = tokenizer["model"]["vocab"]
    taken = set(texts.values()) | {token["id"] for token in tokenizer["added_tokens"]}
    texts.update({f"t{number}": number for number in range(VOCABULARY) if number not in taken})
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    head, pieces, offset = {}, [], 0
    for name, _, size in cpu_engines.tensors(shape):
        piece = cpu_engines.to_bf16(values_of(name, size).reshape(-1)).tobytes()
        head[name] = {"dtype": "BF16", "shape": size, "data_offsets": [offset, offset + len(piece)]}
        offset += len(piece)
        pieces.append(piece)
    head = json.dumps(head).encode()
    with open(folder / "model.safetensors", "wb") as file:
        file.write(struct.pack("<Q", len(head)) + head)
        file.writelines(pieces)
    # Ids are all that is sent. The fixture's own few tokens have other texts here, as other kinds of tokenizers do.
    tokens = ["<unk>", "<s>", "</s>"] + [f"t{number}" for number in range(3, VOCABULARY)]
    cpu_engines.write_gguf(shape, element, str(folder / f"{element}.gguf"), tokens, values_of)


# llama.cpp's server in the package xllamacpp, whose wheels are built for AVX2; it takes llama-server's arguments that
# this script gives.
XLLAMACPP = """
import sys, time, xllamacpp
given = dict(zip(sys.argv[1::2], sys.argv[2::2]))
params = xllamacpp.CommonParams()
params.model.path, params.n_ctx = given["-m"], int(given["-c"])
params.hostnames, params.port = [given["--host"]], int(given["--port"])
params.cpuparams.n_threads = params.cpuparams_batch.n_threads = int(given["-t"])
server = xllamacpp.Server(params)
print(server.listening_address, flush=True)
while True:
    time.sleep(60)
"""


def start_llama(options, folder):
    program = [sys.executable, "-c", XLLAMACPP] if options.llama_server == "xllamacpp" else options.llama_server.split()
    command = [*program, "-m", folder / f"{options.llama_weights}.gguf", "--host", "127.0.0.1"]
    command += ["--port", str(options.llama_port), "-t", str(options.threads), "-c", str(options.kv_tokens)]
    with open(folder / "llama.log", "w", encoding="utf-8") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    return Server("llama.cpp", f"127.0.0.1:{options.llama_port}", process)


def prompts(server, sent):
    """The token ids of requests that `foreword batch` sent."""
    ids = []
    for body in sent:
        status, answer = server.post("/tokenize", {"messages": json.loads(body)["messages"]})
        assert status == 200, answer
        ids.append(answer["tokens"])
    return ids


def era_tokens(era):
    """Eight tokens that no other era's prompts begin with."""
    return [100 + (era // 500**place) % 500 for place in range(2)] * 4


def play(server, asked, rate, seed):
    """Asks at the times of a Poisson process; seconds from arrival to answer, prompt and cached tokens, by request."""
    chance = random.Random(seed)
    arrivals, at = [], 0.0
    for _ in asked:
        at += chance.expovariate(rate)
        arrivals.append(at)
    results = [None] * len(asked)
    begin = time.perf_counter()

    def one(number):
        counts = server.ask(asked[number])
        results[number] = (time.perf_counter() - begin - arrivals[number], *counts)

    threads = []
    for number, arrival in enumerate(arrivals):
        time.sleep(max(0.0, begin + arrival - time.perf_counter()))
        threads.append(threading.Thread(target=one, args=(number,)))
        threads[-1].start()
    for thread in threads:
        thread.join()
    if None in results:
        sys.exit(f"{server.name}: a request failed")
    return results


def alone(arms, warm, requests):
    """Processor time, prompt and cached tokens of each request by arm, asked one by one, the arms in turns."""
    asked = {arm: [era_tokens(era) + tokens for tokens in ids] for era, (arm, (_, ids)) in enumerate(arms.items())}
    samples = {arm: [] for arm in arms}
    names = list(arms)
    for at in range(warm + requests):
        for turn in range(len(names)):
            arm = names[(at + turn) % len(names)]
            server = arms[arm][0]
            begin = server.processor_time()
            counts = server.ask(asked[arm][at])
            # What a server does behind its answer, such as keeping the prompt, belongs to the request.
            time.sleep(0.05)
            samples[arm].append((server.processor_time() - begin, *counts))
        print(f"\r{at + 1}/{warm + requests}", end="", file=sys.stderr)
    print(file=sys.stderr)
    return {arm: of_arm[warm:] for arm, of_arm in samples.items()}


def queued(samples, rate, seed):
    """The requests' times from arrival to answer in one queue, first come, first served; they come as in `play`."""
    chance = random.Random(seed)
    at = free = 0.0
    results = []
    for seconds, prompt, cached in samples:
        at += chance.expovariate(rate)
        free = max(free, at) + seconds
        results.append((free - at, prompt, cached))
    return results


def by_processor(arms, rates, warm, options):
    samples = alone(arms, warm, options.requests)
    figures = {}
    for arm, of_arm in samples.items():
        # The same requests many times over, so that chance has little to say.
        figures[arm] = {rate: summary(queued(of_arm * REPEATED, rate, options.seed)) for rate in rates}
        service = [seconds for seconds, _, _ in of_arm]
        print(f"{arm}: {statistics.mean(service):.3f} s of processor time a request", file=sys.stderr)
    return figures


def summary(results):
    times = sorted(seconds for seconds, _, _ in results)
    return {
        "mean_s": statistics.mean(times),
        "p50_s": statistics.median(times),
        "p95_s": times[max(0, -(-95 * len(times) // 100) - 1)],
        "prompt_tokens": sum(prompt for _, prompt, _ in results),
        "cached_tokens": sum(cached for _, _, cached in results),
        "requests": len(results),
    }


def throughput(cells):
    """The highest rate up to which the mean keeps within the rule, and whether a higher one broke it."""
    rates = sorted(cells)
    bound = WITHIN * cells[rates[0]]["mean_s"]
    kept = [rate for rate in rates if all(cells[lower]["mean_s"] <= bound for lower in rates if lower <= rate)]
    return kept[-1], len(kept) < len(rates)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("foreword", type=pathlib.Path)
    parser.add_argument("--llama-server", help="llama-server, with arguments of its own; or: xllamacpp")
    parser.add_argument("--llama-weights", choices=["bf16", "f16", "f32"], default="bf16")
    parser.add_argument("--llama-port", type=int, default=8091)
    parser.add_argument("--engine", action="append", default=[], metavar="NAME=URL")
    parser.add_argument("--by", choices=["clock", "processor"], default="clock")
    parser.add_argument("--rates", default="0.5,1,1.5,2,2.5,3,4,5,6")
    parser.add_argument("--requests", type=int, default=60)
    parser.add_argument("--documents", type=int, default=5)
    parser.add_argument("--words", type=int, default=40)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--kv-tokens", type=int, default=65536)
    parser.add_argument("--place", default="auto", help="the gateway's rank.place: auto (as shipped), free, last or first")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", type=pathlib.Path, help="folder for the checkpoint, kept for --engine")
    parser.add_argument("--out", type=pathlib.Path)
    options = parser.parse_args()
    options.foreword = options.foreword.resolve()
    if options.by == "processor" and options.engine:
        sys.exit("--by processor: the processor time of --engine is not known here")
    options.questions = None
    rates = sorted(float(rate) for rate in options.rates.split(","))
    warm = options.requests // 10
    requests = batch(options)[: warm + options.requests]
    if len(requests) < warm + options.requests:
        sys.exit(f"--requests: the handbook has {len(requests)} questions, a tenth of the requests comes on top")
    load = os.getloadavg()[0]
    started = []
    with tempfile.TemporaryDirectory() as place:
        folder = options.keep or pathlib.Path(place)
        folder.mkdir(exist_ok=True)
        if not (folder / f"{options.llama_weights}.gguf").exists():
            write_checkpoint(folder, options.llama_weights)
        try:
            memory = ["--kv-tokens", str(options.kv_tokens)]
            servers = [start_foreword(options.foreword, folder, options.threads, *memory)]
            if options.llama_server:
                servers.append(start_llama(options, folder))
            started = list(servers)
            for engine in options.engine:
                name, url = engine.split("=", 1)
                servers.append(Server(name, urllib.parse.urlparse(url).netloc))
            for server in servers:
                server.wait()
            common = (options.foreword, folder, requests, "--order", "input")
            orders = {
                "client's order": prompts(servers[0], bodies(*common, policy="retrieval")),
                "gateway's order": prompts(servers[0], bodies(*common, place=options.place)),
            }
            check_same_answers(servers, orders["client's order"][:3])
            arms = {f"{server.name}, {order}": (server, ids) for server in servers for order, ids in orders.items()}
            figures = (by_processor if options.by == "processor" else measure)(arms, rates, warm, options)
        finally:
            for server in started:
                server.process.kill()
                server.process.wait()
    show(figures, rates, (load, os.getloadavg()[0]), options)


def check_same_answers(servers, prompts):
    """Ends the run unless the servers find the same probabilities: otherwise they would not compute the same weights."""
    for tokens in prompts:
        found = {}
        for server in servers:
            body = {"prompt": tokens, "max_tokens": 1, "temperature": 0, "ignore_eos": True, "logprobs": 5}
            status, answer = server.post("/v1/completions", body)
            assert status == 200, answer
            found[server.name] = highest(answer["choices"][0]["logprobs"])
        first, *others = found
        for name in others:
            if max(abs(a - b) for a, b in zip(found[first], found[name])) > 0.1:
                sys.exit(f"{first} and {name} do not compute the same: {found}")
        print(f"log-probabilities agree: {found}", file=sys.stderr)


def highest(logprobs):
    """The three highest log-probabilities of the first token, in either of OpenAI's shapes; texts differ by tokenizer."""
    if "content" in logprobs:
        values = [rival["logprob"] for rival in logprobs["content"][0]["top_logprobs"]]
    else:
        values = list(logprobs["top_logprobs"][0].values())
    return sorted(values, reverse=True)[:3]


def measure(arms, rates, warm, options):
    figures = {arm: {} for arm in arms}
    over = {arm: 0 for arm in arms}
    era, names = 0, list(arms)
    for turn, rate in enumerate(rates):
        for at in range(len(names)):
            arm = names[(turn + at) % len(names)]
            era += 1
            if over[arm] >= 2:
                continue
            server, ids = arms[arm]
            asked = [era_tokens(era) + tokens for tokens in ids]
            for tokens in asked[:warm]:
                server.ask(tokens)
            cell = summary(play(server, asked[warm:], rate, options.seed))
            figures[arm][rate] = cell
            over[arm] += cell["mean_s"] > WITHIN * figures[arm][rates[0]]["mean_s"]
            print(f"{rate} a second, {arm}: mean {cell['mean_s']:.3f} s", file=sys.stderr)
    return figures


def show(figures, rates, load, options):
    print(f"load average {load[0]:.1f} before, {load[1]:.1f} after; threads: {options.threads}; mean / median / p95, ms\n")
    print("| server, order | cached | throughput |" + "".join(f" {rate:g}/s |" for rate in rates))
    print("| --- | --- | --- |" + " --- |" * len(rates))
    for arm, cells in figures.items():
        prompt = sum(cell["prompt_tokens"] for cell in cells.values())
        cached = 100 * sum(cell["cached_tokens"] for cell in cells.values()) / prompt
        highest, is_bounded = throughput(cells)
        words = f"{highest:g}/s" if is_bounded else f"at least {highest:g}/s"
        row = f"| {arm} | {cached:.1f} % | {words} |"
        bound = 2 * WITHIN * cells[rates[0]]["mean_s"]
        for rate in rates:
            cell = cells.get(rate)
            # A queue that only grows has no times of its own.
            cell = cell if cell and cell["mean_s"] <= bound else None
            row += " " + (" / ".join(f"{1000 * cell[of]:.0f}" for of in ("mean_s", "p50_s", "p95_s")) if cell else "") + " |"
        print(row)
    text = json.dumps({"arms": figures, "load": load, "threads": options.threads, "rates": rates})
    print(text)
    if options.out:
        options.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
