"""Prefill and decode of the same shape in transformers with SDPA, random weights, timed as `foreword measure` does."""

import argparse
import json
import statistics
import time

import torch
import transformers


def median(work, wait, runs=5):
    seconds = []
    for run in range(runs + 2):
        wait()
        start = time.perf_counter()
        work()
        wait()
        if run >= 2:
            seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--prompt", type=int, required=True)
    parser.add_argument("--context", type=int, required=True)
    parser.add_argument("--batches", required=True)
    parser.add_argument("--cpu", action="store_true")
    arguments = parser.parse_args()
    device = "cpu" if arguments.cpu else "cuda"
    wait = (lambda: None) if arguments.cpu else torch.cuda.synchronize
    config = transformers.AutoConfig.from_pretrained(arguments.model)
    config._attn_implementation = "sdpa"
    torch.manual_seed(0)
    with torch.device(device):
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()
    result = {"versions": f"transformers {transformers.__version__}, torch {torch.__version__}", "decode": []}

    def tokens(batch, length):
        return torch.randint(0, 128, (batch, length), device=device)

    with torch.inference_mode():
        prompt = tokens(1, arguments.prompt)
        seconds = median(lambda: model(prompt, use_cache=True, logits_to_keep=1), wait)
        result["prefill"] = {"tokens": arguments.prompt, "seconds": seconds, "tokens_per_s": arguments.prompt / seconds}
        for batch in map(int, arguments.batches.split(",")):
            cache = transformers.DynamicCache(config=config)
            for _ in range(1):
                model(tokens(batch, arguments.context), past_key_values=cache, use_cache=True, logits_to_keep=1)
            one = tokens(batch, 1)

            # The context grows by a token each time, by a few in all.
            def step():
                model(one, past_key_values=cache, use_cache=True).logits[:, -1].argmax(-1).tolist()

            seconds = median(step, wait)
            result["decode"].append({"batch": batch, "seconds": seconds, "tokens_per_s": batch / seconds})
            del cache
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
