"""Greedy answers of two hosts, on the CPU and on a device, for the prompts of each fixture's reference: they must be equal,
and equal to what transformers answered when the fixture was made."""

import argparse
import json
import pathlib
import subprocess
import sys
import urllib.request


class Host:
    """`foreword serve` on a free port, until the block ends."""

    def __init__(self, foreword, model, device):
        self.command = [foreword, "serve", "--model", str(model), "--device", device, "--kv-tokens", "8192"]
        self.command += ["--listen", "127.0.0.1:0", "--name", "m"]

    def __enter__(self):
        self.process = subprocess.Popen(self.command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        line = self.process.stdout.readline()
        if "http://" not in line:
            raise SystemExit("the host did not start:\n" + self.process.stderr.read())
        self.address = line.split()[-1]
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.communicate()

    def complete(self, tokens, length):
        body = {"model": "m", "prompt": tokens, "max_tokens": length, "temperature": 0, "ignore_eos": True}
        request = urllib.request.Request(self.address + "/v1/completions", json.dumps(body).encode())
        request.add_header("content-type", "application/json")
        with urllib.request.urlopen(request, timeout=120) as answer:
            return json.load(answer)["choices"][0]["text"]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--foreword", required=True)
    parser.add_argument("--device", required=True)
    parser.add_argument("--fixtures", required=True, type=pathlib.Path)
    arguments = parser.parse_args()
    total = equal = 0
    for reference in sorted(arguments.fixtures.glob("*/reference.json")):
        prompts = json.loads(reference.read_text())["prompts"]
        answers = []
        for device in ["cpu", arguments.device]:
            with Host(arguments.foreword, reference.parent, device) as host:
                answers.append([host.complete(prompt["tokens"], len(prompt["greedy"])) for prompt in prompts])
        for number, (one, other) in enumerate(zip(*answers)):
            total += 1
            equal += one == other
            if one != other:
                print(f"{reference.parent.name}, prompt {number}: cpu {one!r}, {arguments.device} {other!r}")
    print(json.dumps({"answers": total, "equal": equal}))
    sys.exit(0 if total and equal == total else 1)


if __name__ == "__main__":
    main()
