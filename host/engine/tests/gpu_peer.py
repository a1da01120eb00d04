"""torch and transformers on the shapes of the steps that the engine's test `steps_are_timed` times: matrix products by
`F.linear`, attention by SDPA, and a whole model with SDPA and a static cache; and how far transformers' own logits in
bf16 are from the fixtures' in f32. Each figure is a line of JSON."""

import argparse
import base64
import json
import pathlib
import statistics
import time

import torch
import torch.nn.functional as F


def tell(**line):
    print(json.dumps(line), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="the folder of a config.json")
    parser.add_argument("--fixtures", type=pathlib.Path, help="the folder of the engine's fixtures")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--prompts", default="512,1024,2048,4096,8192,16384,32768")
    parser.add_argument("--batches", default="1,2,4,8,16,32,64,128,256")
    parser.add_argument("--context", type=int, default=1024)
    parser.add_argument("--runs", type=int, default=7)
    arguments = parser.parse_args()
    device = arguments.device
    prompts, batches = ([int(one) for one in text.split(",")] for text in (arguments.prompts, arguments.batches))
    wait = torch.cuda.synchronize if device == "cuda" else lambda: None
    config = json.load(open(arguments.model + "/config.json"))
    hidden, inner, heads, kv_heads = (
        config[key] for key in ("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads")
    )
    width = config.get("head_dim", hidden // heads)
    tell(peer="versions", torch=torch.__version__, cuda=torch.version.cuda)

    def median(work):
        seconds = []
        for run in range(arguments.runs + 2):
            wait()
            start = time.perf_counter()
            work()
            wait()
            if run >= 2:
                seconds.append(time.perf_counter() - start)
        return statistics.median(seconds)

    def random(*shape):
        return torch.randn(*shape, device=device, dtype=torch.bfloat16)

    matrices = {
        "qkv": (hidden, (heads + 2 * kv_heads) * width),
        "output": (heads * width, hidden),
        "gate_up": (hidden, 2 * inner),
        "down": (inner, hidden),
        "head": (hidden, config["vocab_size"]),
    }
    with torch.inference_mode():
        for name, (inputs, outputs) in matrices.items():
            weights = random(outputs, inputs)
            for rows in batches + [rows for rows in prompts if rows <= 8192 and name != "head"]:
                x = random(rows, inputs)
                seconds = median(lambda: F.linear(x, weights))
                tell(peer="linear", matrix=name, rows=rows, seconds=seconds, tflops=2e-12 * rows * inputs * outputs / seconds)
            del weights
        for tokens in prompts:
            q, k, v = random(1, heads, tokens, width), random(1, kv_heads, tokens, width), random(1, kv_heads, tokens, width)
            seconds = median(lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True))
            tell(peer="attention", tokens=tokens, seconds=seconds, tflops=2e-12 * heads * width * tokens**2 / seconds)
        for batch in batches:
            q = random(batch, heads, 1, width)
            k, v = (random(batch, kv_heads, arguments.context, width) for _ in range(2))
            seconds = median(lambda: F.scaled_dot_product_attention(q, k, v, enable_gqa=True))
            tell(peer="attention", rows=batch, context=arguments.context, seconds=seconds, tb_s=2e-12 * k.nbytes / seconds)
        for folder in sorted(path.parent for path in arguments.fixtures.glob("*/reference.json")) if arguments.fixtures else []:
            rounding(folder, device)
        model(arguments, device, prompts, batches, median)


def rounding(folder, device):
    """The root mean square of what bf16 changes in the logits of a prompt's last token, of their deviation."""
    import numpy
    import transformers

    try:
        model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).to(device).eval()
    except Exception as reason:
        return tell(peer="rounding", family=folder.name, skipped=str(reason)[:200])
    for prompt in json.loads((folder / "reference.json").read_text())["prompts"]:
        found = model(torch.tensor([prompt["tokens"]], device=device)).logits[0, -1].float().cpu().numpy()
        exact = numpy.frombuffer(base64.b64decode(prompt["logits_last"]), "<f4")
        error = float(numpy.sqrt(numpy.mean((found - exact) ** 2)) / exact.std())
        tell(peer="rounding", family=folder.name, tokens=len(prompt["tokens"]), deviations=error)


def model(arguments, device, prompts, batches, median):
    import transformers

    config = transformers.AutoConfig.from_pretrained(arguments.model)
    config._attn_implementation = "sdpa"
    torch.manual_seed(0)
    with torch.device(device):
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()
    tell(peer="transformers", version=transformers.__version__)

    def tokens(batch, length):
        return torch.randint(0, 90, (batch, length), device=device)

    for batch in batches:
        cache = transformers.StaticCache(config=config, max_cache_len=arguments.context + arguments.runs + 8)
        model(tokens(batch, arguments.context), past_key_values=cache, use_cache=True, logits_to_keep=1)
        one = tokens(batch, 1)
        # The context grows by a token each time, by a few in all.
        seconds = median(lambda: model(one, past_key_values=cache, use_cache=True).logits[:, -1].argmax(-1).tolist())
        tell(peer="decode", rows=batch, context=arguments.context, seconds=seconds, tokens_per_s=batch / seconds)
        del cache
    for length in prompts:
        prompt = tokens(1, length)
        seconds = median(lambda: model(prompt, use_cache=True, logits_to_keep=1))
        tell(peer="prefill", tokens=length, seconds=seconds, tokens_per_s=length / seconds)


if __name__ == "__main__":
    main()
