"""The table of one run of gpu.sh: figures beside what must hold, and what became of each stage."""

import collections
import csv
import json
import pathlib
import re
import sys


def lines(path):
    """The lines of a file that are JSON objects; libtest writes the test's name before the first one."""
    found = []
    for line in path.read_text(errors="replace").splitlines() if path.exists() else []:
        try:
            found.append(json.loads(line[line.index("{") :]))
        except ValueError:
            pass
    return found


def kernels(path):
    """The microseconds of each kernel in a step, by its name: the first greedy decode of so many rows, and the last
    prefill. Steps between them, which copy or answer with logits, are left out."""
    text = path.read_text(errors="replace") if path.exists() else ""
    steps = []
    for line in csv.DictReader(text[text.find('"ID"') :].splitlines()):
        if line.get("Metric Name") != "gpu__time_duration.sum":
            continue
        if line["Kernel Name"] == "embed_rows":
            rows = int(re.match(r"\D*(\d+)", line["Grid Size"])[1])
            steps.append((rows, collections.Counter()))
        if steps:
            step = steps[-1][1]
            unit = {"ns": 1e-3, "nsecond": 1e-3, "us": 1, "usecond": 1, "ms": 1e3, "msecond": 1e3}[line["Metric Unit"]]
            step[line["Kernel Name"].split("<")[0]] += float(line["Metric Value"].replace(",", "")) * unit
    named = {}
    for rows, step in steps:
        if "sample_rows" in step:
            named.setdefault(f"decode of {rows} rows", step)
        elif rows > 256:
            named[f"prefill of {rows} rows"] = step
    return named


def main():
    out = pathlib.Path(sys.argv[1])
    steps, peer, answers = (lines(out / f"{name}.out") for name in ("steps", "peer", "answers"))
    try:
        orders = json.loads((out / "orders.out").read_text())["orders"]
    except (OSError, ValueError, KeyError):
        orders = None
    rows = []
    ceilings = next((line for line in steps if line.get("step") == "ceilings"), None)

    def row(name, value, wanted="", good=None):
        # The bounds are a GPU's: a run that only tries the script is held to none.
        if not ceilings and "equal" not in name and "behind" not in name:
            good = None
        verdict = "" if good is None else ("holds" if good else "DOES NOT HOLD")
        rows.append((name, value, wanted, verdict))

    def theirs(kind, **keys):
        match = [line for line in peer if line.get("peer") == kind and all(line.get(key) == keys[key] for key in keys)]
        return match[0] if match else None

    if ceilings:
        row("matrix rate, bf16", f"{ceilings['matrix_tflops']:.0f} TFLOP/s")
        row("copy within the device", f"{ceilings['copy_tb_s']:.2f} TB/s")
    cold = {line["tokens"]: line for line in steps if line.get("step") == "prefill" and line["cached"] == 0}
    for line in (line for line in steps if line.get("step") == "prefill"):
        tokens, cached, seconds = line["tokens"], line["cached"], line["seconds"]
        if cached:
            limit = 0.35 if tokens - cached > 32 else 0.1
            share = seconds / cold[tokens]["seconds"]
            good = share <= limit if tokens == 4096 else None
            row(f"  TTFT, {cached} cached", f"{share:.3f} of cold", f"<= {limit}" if good is not None else "", good)
            continue
        row(f"prefill of {tokens}", f"{seconds * 1e3:.1f} ms, {tokens / seconds:.0f} tok/s")
        if ceilings:
            share = line["tflops"] / ceilings["matrix_tflops"]
            good = share >= 0.6 if tokens == 4096 else None
            row("  of the matrix rate", f"{share:.1%}", ">= 60 %" if good is not None else "", good)
        if other := theirs("prefill", tokens=tokens):
            ratio = other["seconds"] / seconds
            row("  against transformers", f"{ratio:.2f} x", ">= 1.5 x" if tokens == 4096 else "", ratio >= 1.5 if tokens == 4096 else None)
    for line in (line for line in steps if line.get("step") == "decode"):
        batch, seconds = line["rows"], line["seconds"]
        row(f"decode, {batch} rows, {line['how']}", f"{seconds * 1e3:.2f} ms, {line['tokens_per_s']:.0f} tok/s")
        if line["how"] != "greedy":
            continue
        if ceilings and batch == 1:
            share = ceilings["weight_bytes"] / 1e12 / ceilings["copy_tb_s"] / seconds
            row("  of what weights and bandwidth allow", f"{share:.1%}", ">= 75 %", share >= 0.75)
        if other := theirs("decode", rows=batch):
            ratio = other["seconds"] / seconds
            row("  against transformers", f"{ratio:.2f} x", ">= 3 x" if batch == 32 else "", ratio >= 3 if batch == 32 else None)
    for line in (line for line in steps if line.get("step") == "host"):
        share = (line["question_with_loads_s"] - line["question_s"]) / line["computed_s"]
        row(f"loading {line['tokens']} tokens from the host", f"{share:.3f} of computing", "< 0.25", share < 0.25)
        # Loads overlap with the layers that do not need them yet, so their rate is at least that of what they add.
        seconds = [line["store_s"], line["question_with_loads_s"] - line["question_s"]]
        rates = [line["bytes"] / one / 1e9 for one in seconds]
        row("  to the host and back", f"{rates[0]:.1f} and {rates[1]:.1f} GB/s")
    for part in ["all", "steady"] if orders else []:
        for arm in orders[part]:
            mean, p50 = arm["ttft_mean_ms"], arm["ttft_p50_ms"]
            saved = f"{arm['saved_tokens']:.1%} of tokens saved"
            row(f"RAGCache++, {part}, {arm['arm']}", f"TTFT mean {mean['mean']:.1f}, p50 {p50['mean']:.1f} ms, {saved}")
            if arm["p50_below_retrieval"] is None:
                continue
            is_main = arm["arm"] == "foresight+hint" and part == "steady"
            for name, limit in (("p50", 0.33), ("mean", 0.30)):
                below = arm[f"{name}_below_retrieval"]["mean"]
                wanted, good = (f">= {limit:.0%}", below >= limit) if is_main else ("", None)
                row(f"  {name} below retrieval", f"{below:.1%}", wanted, good)
    if answers:
        last = answers[-1]
        if "answers" in last:
            good = last["answers_equal"] == last["answers"] > 0
            row("SmolLM2's answers equal to the CPU's", f"{last['answers_equal']} of {last['answers']}", "all", good)
            row("  log-probabilities apart, at most", f"{last['logprobs_apart']:.3f}")
        row("greedy tokens equal to the CPU's", f"{last['tokens_equal']} of {last['tokens']}")
        behind, allowed = last["furthest_behind"], last["behind_allowed"]
        row("  the others behind, of a deviation", f"{behind:.3f}", f"<= {allowed:.1f}", behind <= allowed)
    for name, step in kernels(out / "kernels.csv").items():
        row(f"kernels of a {name}, 2 layers", f"{sum(step.values()):.0f} us")
        for name, microseconds in step.most_common(8):
            row(f"  {name[:60]}", f"{microseconds:.0f} us")
    widths = [max(len(row[column]) for row in rows) for column in range(4)] if rows else []
    for line in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths)).rstrip())
    print()
    for stage in (out / "outcomes").read_text().splitlines():
        name, outcome, seconds = stage.split("|")
        print(f"{name:12}{outcome} ({seconds} s)")


if __name__ == "__main__":
    main()
