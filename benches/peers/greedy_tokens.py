#!/usr/bin/env python3
"""Greedy answers of `foreword serve` beside llama.cpp's, token by token, on the same weights in f32.

    greedy_tokens.py FOREWORD FILE.gguf [--tokens 200] [--threads N]

llama.cpp widens the file's weights to f32 (a file beside it, removed at the end), and both compute with those, keys and values
in f32 as well. The prompts are five of the handbook's passages, as llama.cpp's token ids; texts are compared, of which each
token has one. The packages are those of requirements-cpu.txt. The last line is one JSON object.
"""

import argparse
import ctypes
import json
import os
import tempfile

import llama_cpp

from batch_plans import ROOT
from server import start_foreword

PROMPTS = 5


def widened(source, target):
    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype, params.allow_requantize = llama_cpp.LLAMA_FTYPE_ALL_F32, True
    status = llama_cpp.llama_model_quantize(source.encode(), target.encode(), ctypes.byref(params))
    if status != 0:
        raise SystemExit(f"llama.cpp cannot widen {source}: {status}")


def theirs(model, prompt, count):
    model.reset()
    answer = []
    for token in model.generate(prompt, temp=0.0, repeat_penalty=1.0, top_k=1):
        answer.append(token)
        if len(answer) == count:
            return answer
    return answer


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("foreword")
    parser.add_argument("model")
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    lines = (ROOT / "examples/handbook/documents.jsonl").read_text().splitlines()
    texts = [json.loads(line)["text"] for line in lines[:: max(1, len(lines) // PROMPTS)]][:PROMPTS]
    figures = []
    with tempfile.TemporaryDirectory() as folder:
        file = os.path.join(folder, "f32.gguf")
        widened(options.model, file)
        model = llama_cpp.Llama(
            model_path=file, n_ctx=2048, n_threads=options.threads, n_threads_batch=options.threads,
            type_k=llama_cpp.GGML_TYPE_F32, type_v=llama_cpp.GGML_TYPE_F32, flash_attn=False, verbose=False,
        )
        server = start_foreword(options.foreword, file, options.threads, "--cpu-precision", "f32")
        try:
            server.wait()
            print("| prompt tokens | equal tokens of the answer, of | first difference |")
            print("| --- | --- | --- |")
            for text in texts:
                prompt = model.tokenize(text[:800].encode(), add_bos=False, special=False)
                expected = theirs(model, prompt, options.tokens)
                body = {"prompt": prompt, "max_tokens": options.tokens, "temperature": 0, "ignore_eos": True, "logprobs": 0}
                status, answer = server.post("/v1/completions", body)
                if status != 200:
                    raise SystemExit(f"foreword answered {status}: {answer}")
                ours = answer["choices"][0]["logprobs"]["tokens"]
                spelt = [model.detokenize([token], special=True).decode(errors="replace") for token in expected]
                differ = [at for at, (one, other) in enumerate(zip(ours, spelt, strict=True)) if one != other]
                equal = differ[0] if differ else len(spelt)
                at = f"{ours[equal]!r} instead of {spelt[equal]!r}" if differ else ""
                print(f"| {len(prompt)} | {equal} of {len(spelt)} | {at} |", flush=True)
                figures.append({"prompt": len(prompt), "equal": equal, "of": len(spelt)})
        finally:
            server.process.terminate()
    print(json.dumps({"answers": figures}))


if __name__ == "__main__":
    main()
