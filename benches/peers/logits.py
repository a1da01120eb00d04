#!/usr/bin/env python3
"""Log-probabilities of `foreword serve` beside those of `transformers`, on the same GGUF file's weights.

    logits.py FOREWORD FILE.gguf [--texts 4] [--tokens 512] [--threads N] [--bf16]

The reference is `transformers` in f32 on the file's weights, dequantised. Beside it:

| arm | what it computes with |
| --- | --- |
| foreword f32, file widened | weights that llama.cpp widened to f32 (a file that is removed at the end), products in f32 |
| foreword f32 | the file; weights rounded to bf16, products in f32 |
| foreword auto | the file as the host takes it by default |
| foreword bf16 | with `--bf16`, for CPUs that have the instructions: weights and activations rounded to bf16 |
| llama.cpp | the file as llama.cpp takes it by default |
| transformers bf16 | weights and activations rounded to bf16: **the bound** for all other arms |
| transformers f32, wrong ... | one mistake each, which must exceed the bound |

The texts are the handbook's documents, one after another, cut into pieces of as many tokens. An arm gives, at each token behind a
piece's first, the log-probabilities of that token and of the 20 that the arm holds likeliest; each is compared with the
reference's of the same token. Differences are in standard deviations of the reference's logits at that place: the root mean square
over all places (as in `host/engine/tests/packed.rs`) and the largest. The packages are those of requirements-cpu.txt, with torch,
transformers and accelerate. The last line is one JSON object; the exit code is 1 if a mistake stays within
the bound or another arm is beyond it, as packed weights (`auto`, llama.cpp) are.
"""

import argparse
import json
import math
import os
import sys
import tempfile

import llama_cpp
import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GgufConfig

from batch_plans import ROOT
from greedy_tokens import widened
from server import start_foreword

# As many as `foreword serve` gives.
LIKELIEST = 20


def ours(program, model, options, precision, pieces):
    """For each piece and each token behind its first: log-probabilities by token id."""
    server = start_foreword(program, model, options.threads, "--cpu-precision", precision)
    try:
        server.wait()
        rows = []
        for piece in pieces:
            body = {"prompt": piece, "max_tokens": 1, "temperature": 0, "prompt_logprobs": LIKELIEST}
            status, answer = server.post("/v1/completions", body)
            if status != 200:
                raise SystemExit(f"foreword answered {status}: {answer}")
            found = answer["choices"][0]["prompt_logprobs"][1:]
            rows.append([{int(token): it["logprob"] for token, it in place.items()} for place in found])
        return rows
    finally:
        server.process.terminate()
        server.process.wait()


def load(path, kind, **changes):
    folder, name = os.path.split(os.path.abspath(path))
    config = AutoConfig.from_pretrained(folder, gguf_file=name)
    for field, value in changes.items():
        setattr(config, field, value)
    unpacked = GgufConfig(dequantize=True)
    model = AutoModelForCausalLM.from_pretrained(folder, gguf_file=name, config=config, dtype=kind, quantization_config=unpacked)
    return model.eval()


def logits(model, piece):
    with torch.inference_mode():
        return model(torch.tensor([piece])).logits[0, :-1].float()


def places(values, piece):
    """What `ours` gives, from logits at each token of a piece but its last."""
    values = torch.log_softmax(values.double(), -1)
    asked = torch.cat([torch.tensor(piece[1:])[:, None], values.topk(LIKELIEST).indices], 1)
    found = values.gather(1, asked)
    return [dict(zip(*pair)) for pair in zip(asked.tolist(), found.tolist())]


def theirs(model, pieces):
    return [places(logits(model, piece), piece) for piece in pieces]


def llama(path, options, pieces):
    threads = {"n_threads": options.threads, "n_threads_batch": options.threads}
    model = llama_cpp.Llama(model_path=path, n_ctx=options.tokens, logits_all=True, verbose=False, **threads)
    rows = []
    for piece in pieces:
        model.reset()
        model.eval(piece)
        rows.append(places(torch.from_numpy(model.scores[: len(piece) - 1].copy()), piece))
    return rows


class Reference:
    def __init__(self, model, pieces):
        self.pieces, self.values, self.deviations = pieces, [], []
        for piece in pieces:
            values = logits(model, piece)
            self.deviations.append(values.double().std(-1, correction=0))
            self.values.append(torch.log_softmax(values.double(), -1).float())

    def compare(self, rows):
        squares = variances = worst = nats = 0.0
        count = same = 0
        for piece, values, deviations, arm in zip(self.pieces, self.values, self.deviations, rows, strict=True):
            best = values.argmax(-1).tolist()
            for at, (place, deviation) in enumerate(zip(arm, deviations.tolist(), strict=True)):
                for token, value in place.items():
                    difference = abs(value - values[at, token].item())
                    squares, variances = squares + difference**2, variances + deviation**2
                    worst = max(worst, difference / deviation)
                nats -= place[piece[at + 1]]
                same += max(place, key=place.get) == best[at]
                count += 1
        return {
            "rms": math.sqrt(squares / variances),
            "largest": worst,
            "same_first": same / count,
            "nats": nats / count,
            "places": count,
        }


def mistakes(path):
    """Models with one mistake each, by what is wrong."""
    model = load(path, torch.float32)
    rotary, middle = model.config.rope_parameters, model.config.num_hidden_layers // 2
    base = rotary["rope_theta"] * 2
    yield f"rotary base {base:g}", load(path, torch.float32, rope_parameters={**rotary, "rope_theta": base})
    mlp = model.model.layers[middle].mlp
    mlp.gate_proj, mlp.up_proj = mlp.up_proj, mlp.gate_proj
    yield f"gate and up of layer {middle} exchanged", model
    model = load(path, torch.float32)
    attention = model.model.layers[middle].self_attn
    for matrix in (attention.q_proj, attention.k_proj):
        # The order of rows that GGUF files have.
        rows, columns = matrix.weight.shape
        heads = matrix.weight.data.view(-1, 2, attention.head_dim // 2, columns)
        matrix.weight.data = heads.transpose(1, 2).reshape(rows, columns).contiguous()
    yield f"rows of queries and keys of layer {middle} in the file's order", model


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("foreword")
    parser.add_argument("model")
    parser.add_argument("--texts", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--bf16", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    folder, name = os.path.split(os.path.abspath(options.model))
    tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=name)
    lines = (ROOT / "examples/handbook/documents.jsonl").read_text().splitlines()
    text = "".join(json.loads(line)["text"] + "\n\n" for line in lines)
    tokens = tokenizer.encode(text, add_special_tokens=False)
    starts = range(0, options.texts * options.tokens, options.tokens)
    pieces = [tokens[start : start + options.tokens] for start in starts]
    if len(pieces[-1]) < options.tokens:
        raise SystemExit(f"the handbook has {len(tokens)} tokens, fewer than {options.texts} pieces of {options.tokens}")
    reference = Reference(load(options.model, torch.float32), pieces)
    figures = {}
    print("| arm | root mean square | largest | same first token | nats a token |")
    print("| --- | --- | --- | --- | --- |")

    def row(arm, rows):
        it = figures[arm] = reference.compare(rows)
        print(f"| {arm} | {it['rms']:.2e} | {it['largest']:.2e} | {100 * it['same_first']:.2f} % | {it['nats']:.4f} |", flush=True)

    row("transformers bf16", theirs(load(options.model, torch.bfloat16), pieces))
    with tempfile.TemporaryDirectory() as kept:
        file = os.path.join(kept, "f32.gguf")
        widened(options.model, file)
        row("foreword f32, file widened", ours(options.foreword, file, options, "f32", pieces))
    for precision in ["f32", "auto"] + ["bf16"] * options.bf16:
        row(f"foreword {precision}", ours(options.foreword, options.model, options, precision, pieces))
    row("llama.cpp", llama(options.model, options, pieces))
    for wrong, model in mistakes(options.model):
        row(f"transformers f32, wrong: {wrong}", theirs(model, pieces))
    print(json.dumps(figures))
    bound, failed = figures["transformers bf16"], []
    for arm, it in figures.items():
        within = it["rms"] <= bound["rms"] and it["largest"] <= bound["largest"]
        if within == (", wrong: " in arm):
            failed.append(f"{arm} is {'within' if within else 'beyond'} the bound")
    if failed:
        sys.exit("; ".join(failed))


if __name__ == "__main__":
    main()
