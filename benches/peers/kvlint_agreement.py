#!/usr/bin/env python3
"""Compares the causes that `foreword explain` names with the rules of kvlint 0.1.1 that fire, request by request.

    kvlint_agreement.py FOREWORD [--requests N] [--seed N]

FOREWORD is the program. For each rule of kvlint that looks at one divergence, a log is made whose requests break in
that one way: N requests with a long system text, and tools for `key_order`. `volatile_fewshot` and `short_prefix` judge
logs, `block_straddle` is about the length of a shared prefix; these are left out. A log without a break shows what
either names without a cause.

kvlint wants a model's tokenizer. One is made here, from the words and the marks of the logs: which rule fires depends
on where texts part, not on how words are cut.
"""

import argparse
import json
import random
import subprocess
import sys
import tempfile
import uuid
from pathlib import Path

TEMPLATE = (
    "{% if tools %}<|tools|>{{ tools | tojson }}\n{% endif %}"
    "{% for message in messages %}<|{{ message.role }}|>{{ message.content }}\n{% endfor %}<|assistant|>"
)
RULES = [
    "You are the assistant of a library's reading room.",
    "Answer from the catalogue and say which entry you used.",
    "Give shelf marks exactly as they are printed.",
    "Opening hours are on the notice board; do not guess them.",
    "Write in whole sentences and in the language of the question.",
    "Where two entries disagree, name both.",
]
NAMES = ["Ann Lee", "Bob Ray", "Eve Fox", "Max Roe", "Ian Orr", "Zoe Poe"]
WORDS = "atlas ledger folio index quarto vellum plate margin spine gloss codex leaf".split()

# Per rule of kvlint, the causes of ours that say the same.
SAME = {
    "dynamic_time": {("volatile-value", "date-time")},
    "dynamic_id": {("volatile-value", "id")},
    "user_in_system": {("volatile-value", "value"), ("volatile-value", "id"), ("volatile-value", "number")},
    "whitespace_drift": {("whitespace", None)},
    "key_order": {("key-order", None)},
}


def shuffled(value, rng):
    if isinstance(value, dict):
        items = list(value.items())
        rng.shuffle(items)
        return {key: shuffled(inner, rng) for key, inner in items}
    return value


def tools(rng, is_broken):
    made = []
    for nth in range(4):
        properties = {
            word: {"type": "string", "description": f"The {word} to look for."} for word in WORDS[nth : nth + 4]
        }
        function = {
            "name": f"find_{WORDS[nth]}",
            "description": f"Finds every {WORDS[nth]} of the reading room.",
            "parameters": {"type": "object", "properties": properties},
        }
        tool = {"type": "function", "function": function}
        made.append(shuffled(tool, rng) if is_broken else tool)
    return made


def system(rule, nth, rng):
    lines = list(RULES)
    forms = {
        "dynamic_time": [
            f"Current time: 2026-11-{1 + nth % 28:02} {rng.randrange(24):02}:{rng.randrange(60):02}:{rng.randrange(60):02}",
            f"It is {rng.randrange(24):02}:{rng.randrange(60):02}:{rng.randrange(60):02} on 2026-11-{1 + nth % 28:02}.",
            f"Timestamp: 2026-11-{1 + nth % 28:02}T{rng.randrange(24):02}:{rng.randrange(60):02}:{rng.randrange(60):02}Z",
        ],
        "dynamic_id": [
            f"Session: {uuid.UUID(int=rng.getrandbits(128))}",
            f"Trace req_{rng.getrandbits(48):012x} is written to the log.",
            f"request_id={uuid.UUID(int=rng.getrandbits(128))}",
        ],
        "user_in_system": [
            f"User: {rng.choice(NAMES).split()[0].lower()}{rng.randrange(90)}@example.com",
            f"user_name: {rng.choice(NAMES).replace(' ', '_')}_{rng.randrange(90)}",
            f"Customer: {rng.choice(NAMES).split()[1]}-{rng.randrange(9)}",
        ],
    }
    if rule in forms:
        # One form a client: the log has three.
        lines.insert(1, forms[rule][nth % 3])
        lines[0] = f"{lines[0][:-1]}, desk {'abc'[nth % 3]}."
    text = "\n".join(lines)
    if rule == "whitespace_drift":
        text = "".join(line + rng.choice(["\n", "\n\n", " \n", "\r\n"]) for line in lines)
    return text


def log(rule, count, rng):
    bodies = []
    for nth in range(count):
        body = {
            "model": "m",
            "messages": [
                {"role": "system", "content": system(rule, nth, rng)},
                {"role": "user", "content": f"Where is the {rng.choice(WORDS)} number {nth} of the {rng.choice(WORDS)}?"},
            ],
        }
        if rule == "key_order":
            body["tools"] = tools(rng, True)
        bodies.append(body)
    return bodies


def tokenizer(texts, folder):
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(models.WordLevel(unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.Split(Regex(r"\w+|\s|[^\w\s]"), "isolated")
    words.train_from_iterator(texts, trainers.WordLevelTrainer(vocab_size=1 << 20, special_tokens=["[UNK]"]))
    made = PreTrainedTokenizerFast(tokenizer_object=words, unk_token="[UNK]")
    made.chat_template = TEMPLATE
    made.save_pretrained(folder)


def kvlint_rules(path, folder):
    """The rules that fire, by request."""
    from kvlint.ingest.openai_jsonl import load
    from kvlint.lint.engine import run
    from kvlint.tokenize.renderer import tokenize_requests

    requests = load(path)
    fired = {request.request_id: set() for request in requests}
    for finding in run(requests, tokenize_requests(str(folder), requests)):
        for request in finding.affected_request_ids:
            fired[request].add(finding.rule_id)
    return list(fired.values())


def foreword_causes(program, path):
    told = subprocess.run(
        [program, "explain", "--json", "--no-gain", "--page-tokens", "1", path],
        capture_output=True,
        text=True,
        check=True,
    )
    diagnoses = json.loads(told.stdout)["diagnoses"]
    return [(diagnosis["cause"], diagnosis.get("volatile")) for diagnosis in diagnoses]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("foreword")
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    print("| seeded | broken | kvlint names it | foreword names it | both | kvlint names another too |")
    print("| --- | --- | --- | --- | --- | --- |")
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        logs = {rule: log(rule, arguments.requests, random.Random(arguments.seed)) for rule in [*SAME, "nothing"]}
        from jinja2 import Environment

        template = Environment().from_string(TEMPLATE)
        texts = [template.render(**body) for bodies in logs.values() for body in bodies]
        tokenizer(texts, folder / "tokenizer")
        for rule, bodies in logs.items():
            path = folder / f"{rule}.jsonl"
            path.write_text("\n".join(json.dumps(body) for body in bodies) + "\n", encoding="utf-8")
            theirs = kvlint_rules(path, folder / "tokenizer")
            ours = foreword_causes(arguments.foreword, path)
            if rule == "nothing":
                named = [cause for cause, _ in ours if cause not in ("none", "first-seen")]
                fired = [rules for rules in theirs if rules & set(SAME)]
                print(f"| nothing | 0 of {len(ours)} | {len(fired)} | {len(named)} | | |")
                continue
            # The first request of each form, and one that is like an earlier one, broke nothing.
            pairs = [(a, b) for a, b in zip(theirs, ours) if b[0] not in ("none", "first-seen") or rule in a]
            by_them = sum(rule in a for a, _ in pairs)
            by_us = sum(b in SAME[rule] for _, b in pairs)
            both = sum(rule in a and b in SAME[rule] for a, b in pairs)
            others = sum(bool((a & set(SAME)) - {rule}) for a, _ in pairs)
            print(f"| {rule} | {len(pairs)} of {len(ours)} | {by_them} | {by_us} | {both} | {others} |")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
