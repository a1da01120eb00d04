#!/usr/bin/env python3
"""What location hints for lines of tools' results do to a model's next step: the log-probability of the recorded agent's next message.

    sessions.py mini CLONE > mini.jsonl
    envoy -c envoy.yaml    gateway-config/envoy/envoy.yaml with "ordering": {"documents": {"outputs": true}} and --listen as the engine
    answers.py forward mini.jsonl --gateway http://127.0.0.1:10000 --listen 127.0.0.1:8600 > hinted.jsonl
    foreword serve --model SmolLM2-135M-Instruct.Q4_1.gguf --name smollm2 --threads 1
    answers.py score hinted.jsonl --endpoint http://127.0.0.1:8000 --model smollm2 --out scores.jsonl

Each answer of a session was a request with all messages before it. `forward` sends each through the gateway, stands in for the engine behind it and
writes the session's first request whose newest tool's result was shortened, with what was forwarded. `score` takes those that fit the context of
--context tokens in full and with the next message. All arms have the same messages otherwise and the same next message:

    full    the newest result as the client sent it
    hint    as forwarded: a hint instead of lines that an earlier result has
    cut     without these lines and without a hint
    gone    as `cut`, and the lines are removed from earlier results too, so that they stand in none
    hint, gone    the hint, but the lines to which it refers are removed from earlier results
    empty   the newest result is empty

Two texts are scored after each arm: the recorded next message, and lines of the longest run that was replaced, as the answer to a question for
them, which says whether the model can still read them. The endpoint must have `prompt_logprobs`, `continue_final_message` and `/tokenize`, as
`foreword serve` has. Scores are added to --out line by line, in an order drawn once; a second run goes on from there, and with --take 0 prints
the tables alone. Only the standard library is needed.
"""

import argparse
import http.server
import json
import pathlib
import random
import re
import statistics
import sys
import threading
import urllib.request

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "peers"))
from served_answers import nats

HINT = re.compile(r"Please refer to the lines? (?:from \[(.+?)\] to )?\[(.+?)\] of a tool result in the previous conversation\.")
ARMS = ("full", "hint", "cut", "empty", "gone", "hint, gone")
DIFFERENCES = tuple((arm, "full") for arm in ARMS[1:]) + tuple(("hint", arm) for arm in ("cut", "gone", "hint, gone"))


class Engine(http.server.BaseHTTPRequestHandler):
    """Stands in for the engine behind the gateway: keeps the last body."""

    protocol_version = "HTTP/1.1"
    body = None

    def do_POST(self):
        Engine.body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        choice = {"index": 0, "message": {"role": "assistant", "content": "."}, "finish_reason": "stop"}
        usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
        text = json.dumps({"id": "a", "object": "chat.completion", "created": 0, "model": "m", "choices": [choice], "usage": usage}).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_):
        pass


def post(url, body):
    request = urllib.request.Request(url, json.dumps(body).encode(), {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=600) as response:
        return json.load(response)


def tokens(options, messages):
    return post(options.endpoint + "/tokenize", {"model": options.model, "messages": messages})["count"]


def replaced(original, forwarded):
    """Returns the result without its hints, and the runs of lines that they replace."""
    lines, pieces, hints = original.split("\n"), [[]], []
    for line in forwarded.split("\n"):
        hint = HINT.fullmatch(line)
        if hint:
            hints.append(hint[2])
            pieces.append([])
        else:
            pieces[-1].append(line)
    kept, runs = pieces[0], []
    at = len(kept)
    if lines[:at] != kept:
        raise ValueError("the result begins with other lines than the original")
    for last, piece in zip(hints, pieces[1:]):
        # The words of a run's last line can stand in an earlier line too, as part of longer ones.
        final = len(runs) + 1 == len(hints)
        ends = (len(lines) - len(piece),) if final else range(at + 1, len(lines))
        end = next((it for it in ends if last in lines[it - 1] and lines[it : it + len(piece)] == piece), None)
        if end is None:
            raise ValueError("no lines of the original end as the hint says")
        runs.append(lines[at:end])
        kept = kept + piece
        at = end + len(piece)
    if at != len(lines):
        raise ValueError("lines are missing")
    return "\n".join(kept), runs


def without(text, runs):
    """Returns the text without each run of lines that stands in it, and how often one did."""
    lines, found = text.split("\n"), 0
    for run in runs:
        at = 0
        while at + len(run) <= len(lines):
            if lines[at : at + len(run)] == run:
                del lines[at : at + len(run)]
                found += 1
            else:
                at += 1
    return "\n".join(lines), found


def first_hint(options, messages):
    """Returns the session's first request with a hint in its newest result, that result as forwarded, and the next message; None if there is none."""
    for at, answer in enumerate(messages):
        if answer["role"] != "assistant" or messages[at - 1]["role"] != "tool":
            continue
        sent = messages[:at]
        post(options.gateway + "/v1/chat/completions", {"model": "m", "messages": sent})
        forwarded = Engine.body["messages"]
        if forwarded[:-1] != sent[:-1]:
            raise SystemExit("an earlier message was changed")
        if forwarded[-1] != sent[-1]:
            return {"messages": sent, "forwarded": forwarded[-1]["content"], "next": answer["content"]}
    return None


def forward(options):
    host, port = options.listen.rsplit(":", 1)
    server = http.server.ThreadingHTTPServer((host, int(port)), Engine)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with open(options.sessions, encoding="utf-8") as file:
        for at, line in enumerate(file):
            found = first_hint(options, json.loads(line)["messages"])
            if found:
                print(json.dumps({"session": at} | found))


def parts(request):
    """Returns the messages of each arm, and the runs of lines that were replaced."""
    *before, newest = request["messages"]
    cut, runs = replaced(newest["content"], request["forwarded"])
    earlier, found = [], 0
    for message in before:
        if message["role"] == "tool":
            text, times = without(message["content"], runs)
            message, found = message | {"content": text}, found + times
        earlier.append(message)
    if found < len(runs):
        raise SystemExit("a hint refers to lines that stand nowhere")
    pairs = {
        "full": (before, newest["content"]),
        "hint": (before, request["forwarded"]),
        "cut": (before, cut),
        "empty": (before, ""),
        "gone": (earlier, cut),
        "hint, gone": (earlier, request["forwarded"]),
    }
    return {name: messages + [newest | {"content": text}] for name, (messages, text) in pairs.items()}, runs


def quotation(runs):
    """Returns a question for up to five lines from the longest run, by the line before them, and these lines; None if no line of it names its place."""
    run = max(runs, key=lambda run: len("\n".join(run)))
    for at in range(len(run) // 3, len(run) - 1):
        named, lines = run[at].strip(), "\n".join(run[at + 1 : at + 6])
        if len(named) >= 20 and sum(named in line for line in run) == 1 and len("".join(lines.split())) >= 40:
            return {"role": "user", "content": f"Which lines follow the line `{named}` in the output above? Write the next lines alone."}, lines
    return None


def score(options):
    out = pathlib.Path(options.out)
    scores = [json.loads(line) for line in out.read_text().splitlines()] if out.exists() else []
    if options.take != 0:
        with open(options.hinted, encoding="utf-8") as file:
            requests = [json.loads(line) for line in file]
        whole = lambda it: it["messages"] + [{"role": "assistant", "content": it["next"]}]
        chosen = [it for it in requests if tokens(options, whole(it)) < options.context]
        print(f"{len(requests)} requests, {len(chosen)} of them fit the context", file=sys.stderr)
        random.Random(1).shuffle(chosen)
        known = {it["session"] for it in scores}
        for request in [it for it in chosen if it["session"] not in known][: options.take]:
            arms, runs = parts(request)
            texts = {"next message": ([], request["next"])}
            asked = quotation(runs)
            if asked:
                texts["quoted lines"] = ([asked[0]], asked[1])
            one = {"session": request["session"], "prompt": {it: tokens(options, messages) for it, messages in arms.items()}}
            for name, messages in arms.items():
                for text, (question, answer) in texts.items():
                    prompt = messages + question
                    length = tokens(options, prompt + [{"role": "assistant", "content": answer}]) - tokens(options, prompt)
                    of = one.setdefault(text, {"nats": {}})
                    of["nats"][name], of["tokens"] = nats(options, prompt, answer, last=length + 32)
            scores.append(one)
            with out.open("a") as file:
                file.write(json.dumps(one) + "\n")
            print(f"\r{len(scores)} requests", end="", file=sys.stderr)
    for text in ("next message", "quoted lines"):
        table(scores, text)


def interval(values, statistic, draws=10_000):
    draw = random.Random(1)
    drawn = sorted(statistic(draw.choices(values, k=len(values))) for _ in range(draws))
    return "[{:+.3f}, {:+.3f}]".format(drawn[draws // 40], drawn[-draws // 40])


def table(scores, text):
    scores = [it[text] | {"prompt": it["prompt"]} for it in scores if it.get(text)]
    print(f"{text}: {len(scores)} requests, {sum(it['tokens'] for it in scores)} tokens")
    print("| arm | prompt tokens, median | nats a token |")
    print("| --- | --- | --- |")
    for arm in ARMS:
        prompt = statistics.median(it["prompt"][arm] for it in scores)
        print(f"| {arm} | {prompt:.0f} | {statistics.fmean(it['nats'][arm] / it['tokens'] for it in scores):.3f} |")
    print("| difference | nats a token, mean of requests | over all tokens | nats a text | requests that lose |")
    print("| --- | --- | --- | --- | --- |")
    for a, b in DIFFERENCES:
        pairs = [(it["nats"][a] - it["nats"][b], it["tokens"]) for it in scores]
        cells = []
        for statistic in (
            lambda drawn: statistics.fmean(it / tokens for it, tokens in drawn),
            lambda drawn: sum(it for it, _ in drawn) / sum(tokens for _, tokens in drawn),
            lambda drawn: statistics.fmean(it for it, _ in drawn),
        ):
            cells.append(f"{statistic(pairs):+.3f} {interval(pairs, statistic)}")
        print(f"| {a}, less {b} | {' | '.join(cells)} | {sum(it < 0 for it, _ in pairs)} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    forwarding = commands.add_parser("forward")
    forwarding.add_argument("sessions")
    forwarding.add_argument("--gateway", required=True)
    forwarding.add_argument("--listen", required=True)
    scoring = commands.add_parser("score")
    scoring.add_argument("hinted")
    scoring.add_argument("--endpoint", required=True)
    scoring.add_argument("--model", required=True)
    scoring.add_argument("--out", required=True)
    scoring.add_argument("--context", type=int, default=8192)
    scoring.add_argument("--take", type=int)
    options = parser.parse_args()
    {"forward": forward, "score": score}[options.command](options)


if __name__ == "__main__":
    main()
