#!/usr/bin/env python3
"""Asks one batch in four orders, in turns: what each order leaves to compute, and how long that takes.

    batch_plans.py FOREWORD [--questions N] [--documents K] [--words W] [--kv-tokens T] [--place NAME]
        [--out FILE]

The batch: the handbook's questions, each with its K best documents, of which the first W words are sent. The orders:

| arm | requests | documents |
| --- | --- | --- |
| input | as in the file | as in the file |
| gateway | as in the file | by the gateway's policy, `foresight` |
| plan | `foreword batch`'s plan | the same plan |
| contextpilot | ContextPilot's plan | the same plan; skipped where it is not installed |

`foreword batch` itself makes the bodies: a server that only keeps what it gets stands in for the endpoint. Then each arm
has a server of its own with the shape of 0.1B and random weights, one thread and an empty cache, and the arms send one
request each in turn. Answers have one token, so a request's time is that of its prefill. The last line is one JSON object.
"""

import argparse
import http.client
import http.server
import json
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time

from server import start_foreword

ROOT = pathlib.Path(__file__).resolve().parents[2]
SYSTEM = "Answer the question from the documents."


def lines(path):
    with open(path, encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def batch(options):
    """The requests: custom id, question, documents."""
    folder = ROOT / "examples/handbook"
    texts = {}
    for document in lines(folder / "documents.jsonl"):
        words = document["text"].split()[: options.words]
        texts[document["id"]] = {"id": document["id"], "text": " ".join(words)}
    retrieved = {found["question"]: found["documents"] for found in lines(folder / "retrieved.jsonl")}
    questions = lines(folder / "questions.jsonl")[: options.questions]
    return [
        (question["id"], question["question"], [texts[found] for found in retrieved[question["id"]][: options.documents]])
        for question in questions
    ]


def write(path, requests):
    with open(path, "w", encoding="utf-8") as file:
        for name, question, documents in requests:
            messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": question}]
            body = {"messages": messages, "documents": documents, "max_tokens": 1}
            line = {"custom_id": name, "method": "POST", "url": "/v1/chat/completions", "body": body}
            file.write(json.dumps(line) + "\n")


def bodies(foreword, folder, requests, *arguments, policy="foresight", place="auto"):
    """The bodies that `foreword batch` sends for these requests, in its order; `place` is the gateway's `rank.place`."""
    kept = []

    class Keeper(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self):
            kept.append(self.rfile.read(int(self.headers["content-length"])))
            answer = b'{"choices": []}'
            self.send_response(200)
            self.send_header("content-length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Keeper)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with tempfile.TemporaryDirectory(dir=folder) as name:
        path = pathlib.Path(name)
        write(path / "batch.jsonl", requests)
        (path / "ordering.json").write_text(json.dumps({"policy": policy, "rank": {"place": place}}))
        command = [foreword, "batch", "batch.jsonl", "--ordering", "ordering.json", "--out", "out.jsonl", "--concurrency", "1"]
        command += ["--endpoint", f"http://127.0.0.1:{server.server_port}", *arguments]
        subprocess.run(command, cwd=path, check=True, stdout=subprocess.DEVNULL)
    server.shutdown()
    return kept


def contextpilot(folder, requests):
    """The requests as ContextPilot plans them; None where it is not installed."""
    numbers = {}
    for _, _, documents in requests:
        for document in documents:
            numbers.setdefault(document["id"], len(numbers))
    texts = {numbers[document["id"]]: document for _, _, documents in requests for document in documents}
    trace, plan = folder / "trace.jsonl", folder / "plan.jsonl"
    with open(trace, "w", encoding="utf-8") as file:
        for _, _, documents in requests:
            file.write(json.dumps({"documents": [numbers[document["id"]] for document in documents]}) + "\n")
    script = pathlib.Path(__file__).with_name("contextpilot_offline.py")
    run = subprocess.run([sys.executable, script, trace, plan], capture_output=True, text=True)
    if run.returncode != 0:
        print(f"skipped: ContextPilot ({run.stderr.strip().splitlines()[-1]})", file=sys.stderr)
        return None
    planned = []
    for line in lines(plan):
        name, question, documents = requests[line["request"]]
        assert sorted(line["documents"]) == sorted(numbers[document["id"]] for document in documents)
        planned.append((name, question, [texts[number] for number in line["documents"]]))
    assert sorted(name for name, _, _ in planned) == sorted(name for name, _, _ in requests)
    return planned


def ask(connection, body):
    start = time.perf_counter()
    connection.request("POST", "/v1/chat/completions", body, {"content-type": "application/json"})
    response = connection.getresponse()
    answer = json.loads(response.read())
    seconds = time.perf_counter() - start
    assert response.status == 200, answer
    usage = answer["usage"]
    return seconds, usage["prompt_tokens"], (usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("foreword", type=pathlib.Path)
    parser.add_argument("--questions", type=int, default=120)
    parser.add_argument("--documents", type=int, default=5)
    parser.add_argument("--words", type=int, default=60)
    parser.add_argument("--kv-tokens", type=int, default=8192)
    parser.add_argument("--place", default="auto", help="the gateway's rank.place: auto (as shipped), free, last or first")
    parser.add_argument("--out", type=pathlib.Path)
    options = parser.parse_args()
    foreword = options.foreword.resolve()
    requests = batch(options)
    with tempfile.TemporaryDirectory() as place:
        folder = pathlib.Path(place)
        shutil.copy(ROOT / "examples/shapes/0.1b/config.json", folder)
        for name in ["tokenizer.json", "tokenizer_config.json", "chat_template.jinja"]:
            shutil.copy(ROOT / "host/engine/fixtures/llama" / name, folder)
        arms = {
            "input": bodies(foreword, folder, requests, "--order", "input", policy="retrieval"),
            "gateway": bodies(foreword, folder, requests, "--order", "input", place=options.place),
            "plan": bodies(foreword, folder, requests, place=options.place),
        }
        if (planned := contextpilot(folder, requests)) is not None:
            arms["contextpilot"] = bodies(foreword, folder, planned, "--order", "input", policy="retrieval")
        arguments = ["--random-weights", "1", "--kv-tokens", str(options.kv_tokens)]
        servers = {arm: start_foreword(foreword, folder, 1, *arguments) for arm in arms}
        try:
            connections = {arm: http.client.HTTPConnection(server.address) for arm, server in servers.items()}
            for connection in connections.values():
                warm = {"messages": [{"role": "user", "content": "warm"}], "max_tokens": 1}
                while True:
                    try:
                        ask(connection, json.dumps(warm))
                        break
                    except AssertionError:
                        time.sleep(0.1)
            asked = {arm: [] for arm in arms}
            names = list(arms)
            for at in range(len(requests)):
                for turn in range(len(names)):
                    arm = names[(at + turn) % len(names)]
                    asked[arm].append(ask(connections[arm], arms[arm][at]))
                print(f"\r{at + 1}/{len(requests)}", end="", file=sys.stderr)
            print(file=sys.stderr)
        finally:
            for server in servers.values():
                server.process.kill()
    figures = {}
    print("| arm | prompt tokens | cached | computed | prefill, s | tokens of prompts a second |")
    print("| --- | --- | --- | --- | --- | --- |")
    for arm, samples in asked.items():
        seconds = sum(sample[0] for sample in samples)
        prompt = sum(sample[1] for sample in samples)
        cached = sum(sample[2] for sample in samples)
        figures[arm] = {
            "seconds": seconds,
            "median_s": statistics.median(sample[0] for sample in samples),
            "prompt_tokens": prompt,
            "cached_tokens": cached,
        }
        share = 100 * cached / prompt
        print(f"| {arm} | {prompt:,} | {share:.1f} % | {prompt - cached:,} | {seconds:.1f} | {prompt / seconds:.0f} |")
    text = json.dumps(figures)
    print(text)
    if options.out:
        options.out.write_text(text + "\n")


# ContextPilot's distance computation starts processes, which import this file again.
if __name__ == "__main__":
    main()
