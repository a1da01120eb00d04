"""Greedy answers of two hosts, on the CPU and on a device.

SmolLM2 (`cargo xtask setup` installs it), which was trained, must answer questions with the same words on both. How far apart
the log-probabilities of an answer's first token are is printed.

The fixtures' weights are random, and their likeliest tokens often tie within what bf16 rounds away: along the CPU's answer,
the device must choose the CPU's token at every position, or one that the CPU's own logits put behind it by no more than two
single logits may stray, of 2e-2 of a row's deviation times five each (as in `src/backend/cuda/tests/transformers.rs`)."""

import argparse
import base64
import json
import pathlib
import statistics
import struct
import subprocess
import sys
import urllib.request

STRAY = 2 * 5 * 2e-2


class NoKernels(Exception):
    """The device computes no models of this kind."""


class Host:
    """`foreword serve` on a free port, until the block ends."""

    def __init__(self, foreword, model, device):
        self.command = [foreword, "serve", "--model", str(model), "--device", device, "--kv-tokens", "8192"]
        self.command += ["--listen", "127.0.0.1:0", "--name", "m", "--cpu-precision", "f32", "--kv-policy", "lru"]

    def __enter__(self):
        self.process = subprocess.Popen(self.command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        line = self.process.stdout.readline()
        if "http://" not in line:
            reason = self.process.stderr.read()
            if "computed on the CPU only" in reason:
                raise NoKernels(reason.splitlines()[-1])
            raise SystemExit("the host did not start:\n" + reason)
        self.address = line.split()[-1]
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.communicate()

    def post(self, path, body):
        request = urllib.request.Request(self.address + path, json.dumps(body).encode())
        request.add_header("content-type", "application/json")
        with urllib.request.urlopen(request, timeout=120) as answer:
            return json.load(answer)["choices"][0]

    def complete(self, tokens, length, **more):
        body = {"model": "m", "prompt": tokens, "max_tokens": length, "temperature": 0} | more
        return self.post("/v1/completions", body)

    def chat(self, question, length):
        messages = [{"role": "user", "content": question}]
        body = {"model": "m", "messages": messages, "max_tokens": length, "temperature": 0}
        choice = self.post("/v1/chat/completions", body | {"logprobs": True, "top_logprobs": 5})
        first = choice["logprobs"]["content"][0]["top_logprobs"]
        return choice["message"]["content"], {one["token"]: one["logprob"] for one in first}


QUESTIONS = [
    "What is the capital of France?",
    "Which planet is the largest of the solar system?",
    "What is two and three?",
    "Who wrote Romeo and Juliet?",
    "What is the chemical symbol of gold?",
    "In which continent does Kenya lie?",
    "What do bees make?",
    "How many days does a week have?",
    "What is the opposite of cold?",
    "What is water made of?",
]


def smollm2(foreword, model, device):
    """How many answers there were, how many were the same on both, and how far log-probabilities were apart."""
    answers = []
    for one in ["cpu", device]:
        with Host(foreword, model, one) as host:
            answers.append([host.chat(question, 24) for question in QUESTIONS])
    equal, apart = 0, 0.0
    for question, (cpu, ours), (other, theirs) in zip(QUESTIONS, *answers):
        equal += cpu == other
        apart = max([apart] + [abs(ours[token] - theirs[token]) for token in ours.keys() & theirs.keys()])
        if cpu != other:
            print(f"SmolLM2, {question!r}: cpu {cpu!r}, {device} {other!r}")
    return len(QUESTIONS), equal, apart


def fixture(foreword, folder, device, longest, most):
    """How many tokens were chosen, how many were the CPU's, and the most that another was behind it, of a deviation."""
    prompts = json.loads((folder / "reference.json").read_text())["prompts"]
    prompts = [prompt for prompt in prompts if len(prompt["tokens"]) <= longest]
    with Host(foreword, folder, "cpu") as host:
        paths = []
        for prompt in prompts:
            answer = host.complete(prompt["tokens"], min(most, len(prompt["greedy"])), ignore_eos=True, logprobs=5)
            paths.append(answer["logprobs"])
    total = equal = 0
    worst = 0.0
    with Host(foreword, folder, device) as host:
        for number, (prompt, path) in enumerate(zip(prompts, paths)):
            raw = base64.b64decode(prompt["logits_last"])
            deviation = statistics.pstdev(struct.unpack(f"<{len(raw) // 4}f", raw))
            for at, likeliest in enumerate(path["top_logprobs"]):
                so_far = prompt["tokens"] + prompt["greedy"][:at]
                chosen = host.complete(so_far, 1, ignore_eos=True, logprobs=1)["logprobs"]["tokens"][0]
                total += 1
                equal += chosen == path["tokens"][at]
                behind = (max(likeliest.values()) - likeliest.get(chosen, float("-inf"))) / deviation
                worst = max(worst, behind)
                if behind > STRAY:
                    print(f"{folder.name}, prompt {number}, token {at}: {chosen!r} is {behind:.2f} deviations behind")
    return total, equal, worst


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--foreword", required=True)
    parser.add_argument("--device", required=True)
    parser.add_argument("--fixtures", required=True, type=pathlib.Path)
    parser.add_argument("--smollm2", type=pathlib.Path, help="its GGUF file; left out: it is not asked")
    parser.add_argument("--longest", type=int, default=1 << 30, help="longer prompts of the fixtures are left out")
    parser.add_argument("--tokens", type=int, default=1 << 30, help="tokens of each answer that are compared")
    arguments = parser.parse_args()
    found = {}
    if arguments.smollm2:
        names = ("answers", "answers_equal", "logprobs_apart")
        found |= zip(names, smollm2(arguments.foreword, arguments.smollm2, arguments.device))
    folders = sorted(path.parent for path in arguments.fixtures.glob("*/reference.json"))
    parts = []
    for folder in folders:
        try:
            parts.append(fixture(arguments.foreword, folder, arguments.device, arguments.longest, arguments.tokens))
        except NoKernels as reason:
            print(f"{folder.name}: SKIPPED, {reason}", flush=True)
    found["tokens"], found["tokens_equal"] = sum(part[0] for part in parts), sum(part[1] for part in parts)
    found["furthest_behind"] = max((part[2] for part in parts), default=0.0)
    found["behind_allowed"] = STRAY
    print(json.dumps(found))
    same = found.get("answers") == found.get("answers_equal")
    sys.exit(0 if same and found["tokens"] and found["furthest_behind"] <= STRAY else 1)


if __name__ == "__main__":
    main()
