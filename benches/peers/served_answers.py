#!/usr/bin/env python3
"""What documents of a similarity cache do to answers: the reference answers' log-probability with the documents of a hit, less that with
those of a fresh search, in pairs.

    FOREWORD_XQUAD=xquad.en.json FOREWORD_EMBEDDER=DIR FOREWORD_SERVED=served.jsonl cargo bench -p foreword-benches -- proximity
    served_answers.py served.jsonl --xquad xquad.en.json --endpoint http://127.0.0.1:8000 --model NAME

The endpoint must have `prompt_logprobs` and `continue_final_message`, as vLLM and `foreword serve` have. Questions, words and documents are
written as `foreword evaluate` writes them. An answer's log-probability is the sum over its tokens, whose texts are joined from the end
until they hold the answer's visible ASCII characters. Equal prompts are asked once. Only the standard library is needed.
"""

import argparse
import json
import random
import statistics
import sys
import urllib.request

SYSTEM = "Answer the question from the documents, with the answer alone and in as few words as possible."


def prompt(question, documents):
    listed = "\n\n".join(f"[{at}] {text}" for at, text in enumerate(documents, 1))
    return [{"role": "system", "content": SYSTEM}, {"role": "user", "content": f"{listed}\n\nQuestion: {question}"}]


def visible(text):
    return "".join(it for it in text if "!" <= it <= "~")


def nats(options, messages, answer, last=None):
    """Returns the answer's log-probability after the messages, and its tokens. `last`: at most so many tokens."""
    body = {
        "model": options.model,
        "messages": messages + [{"role": "assistant", "content": answer}],
        "max_tokens": 1,
        "temperature": 0,
        "prompt_logprobs": 0,
        "prompt_logprobs_last": last or len(answer.encode()) + 32,
        "add_generation_prompt": False,
        "continue_final_message": True,
    }
    request = urllib.request.Request(
        options.endpoint + "/v1/chat/completions", json.dumps(body).encode(), {"content-type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=600) as response:
        tokens = json.load(response)["prompt_logprobs"]
    total, text, count = 0.0, "", 0
    for token in reversed(tokens):
        if visible(answer) in visible(text):
            return total, count
        if token is None:
            break
        (value,) = token.values()
        total, text, count = total + value["logprob"], value["decoded_token"] + text, count + 1
    if visible(answer) in visible(text):
        return total, count
    raise SystemExit(f"the answer {answer!r} is not at the end of the prompt's tokens: {text!r}")


def interval(values, draws=10_000):
    draw = random.Random(1)
    means = sorted(statistics.fmean(draw.choices(values, k=len(values))) for _ in range(draws))
    return means[draws // 40], means[-draws // 40]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("served")
    parser.add_argument("--xquad", required=True)
    parser.add_argument("--endpoint", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--take", type=int)
    options = parser.parse_args()
    paragraphs, answers = [], {}
    for article in json.load(open(options.xquad, encoding="utf-8"))["data"]:
        for paragraph in article["paragraphs"]:
            paragraphs.append(paragraph["context"])
            answers.update({asked["question"]: asked["answers"][0]["text"] for asked in paragraph["qas"]})
    lines = [json.loads(line) for line in open(options.served, encoding="utf-8")][: options.take]
    known = {}

    def score(line, documents):
        question = max((it for it in answers if line["query"].endswith(it)), key=len)
        key = (line["query"], *documents)
        if key not in known:
            known[key] = nats(options, prompt(line["query"], [paragraphs[int(at)] for at in documents]), answers[question])
            print(f"\r{len(known)} prompts", end="", file=sys.stderr)
        return known[key]

    fresh = [score(line, line["fresh"]) for line in lines]
    total, tokens = sum(it[0] for it in fresh), sum(it[1] for it in fresh)
    print(f"{len(lines)} queries; fresh searches: {total / tokens:.3f} nats a token, {total / len(lines):.2f} an answer")
    print("| setting | other documents, % | nats a token, less fresh searches' | nats an answer, less fresh searches' |")
    print("| --- | --- | --- | --- |")
    for name in lines[0]["served"]:
        served = [score(line, line["served"][name]) for line in lines]
        others = sum(line["served"][name] != line["fresh"] for line in lines)
        by_token = [(a[0] - b[0]) / b[1] for a, b in zip(served, fresh)]
        by_answer = [a[0] - b[0] for a, b in zip(served, fresh)]
        cells = ["{:+.3f} [{:.3f}, {:.3f}]".format(statistics.fmean(it), *interval(it)) for it in (by_token, by_answer)]
        print(f"| {name} | {100 * others / len(lines):.1f} | {cells[0]} | {cells[1]} |")


if __name__ == "__main__":
    main()
