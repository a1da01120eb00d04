"""The table of one run of gpu.sh: figures beside what must hold, and what became of each part."""

import json
import pathlib
import sys


def read(path):
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError):
        return None


def main():
    out = pathlib.Path(sys.argv[1])
    own, peer = read(out / "measure.out"), read(out / "transformers.out")
    rows = []

    def row(name, value, wanted=None, good=None):
        # The bounds are a GPU's: a run that only tries the script is held to none.
        if own and not own["ceilings"] and "equal" not in name and "behind" not in name:
            good = None
        verdict = "" if good is None else ("holds" if good else "DOES NOT HOLD")
        rows.append((name, value, wanted or "", verdict))

    if own:
        ceilings, prefill = own["ceilings"], own["prefill"]
        if ceilings:
            row("matrix rate, bf16", f"{ceilings['matrix_tflops']:.0f} TFLOP/s")
            row("copy within the device", f"{ceilings['copy_tb_s']:.2f} TB/s")
        row(f"prefill of {prefill['tokens']}", f"{prefill['seconds'] * 1e3:.1f} ms, {prefill['tokens_per_s']:.0f} tok/s")
        share = prefill["of_matrix_rate"]
        if share is not None:
            row("  of the matrix rate", f"{share:.1%}", ">= 60 %", share >= 0.6)
        if peer:
            ratio = prefill["tokens_per_s"] / peer["prefill"]["tokens_per_s"]
            row("  against transformers", f"{ratio:.2f} x", ">= 1.5 x", ratio >= 1.5)
        for cached, limit in zip(prefill["cached"], [0.35, 0.1]):
            name = f"TTFT, {cached['cached_tokens']} of {prefill['tokens']} cached"
            row(name, f"{cached['of_cold']:.3f} of cold", f"<= {limit}", cached["of_cold"] <= limit)
        for decode in own["decode"]:
            if "skipped" in decode:
                row(f"decode, batch {decode['batch']}", decode["skipped"])
                continue
            batch = decode["batch"]
            name = f"decode, batch {batch}, context {decode['context']}"
            row(name, f"{decode['seconds'] * 1e3:.2f} ms, {decode['tokens_per_s']:.0f} tok/s")
            bound = decode["weight_bound_share"]
            if batch == 1 and bound is not None:
                row("  of what weights and bandwidth allow", f"{bound:.1%}", ">= 75 %", bound >= 0.75)
            for other in peer["decode"] if peer else []:
                if other["batch"] == batch:
                    ratio = decode["tokens_per_s"] / other["tokens_per_s"]
                    limit = {32: 3.0}.get(batch)
                    wanted = f">= {limit:.0f} x" if limit else None
                    row("  against transformers", f"{ratio:.2f} x", wanted, ratio >= limit if limit else None)
        tier = own["host_tier"]
        if "skipped" in tier:
            row("host tier", tier["skipped"])
        else:
            share = tier["loads_of_computing"]
            row(f"loading {tier['tokens']} tokens from the host", f"{share:.3f} of computing", "< 0.25", share < 0.25)
        for part in ["all", "steady"] if own["orders"] else []:
            for arm in own["orders"][part]:
                name = f"RAGCache++, {part}, {arm['arm']}"
                mean, p50 = arm["ttft_mean_ms"], arm["ttft_p50_ms"]
                row(name, f"TTFT mean {mean['mean']:.1f}, p50 {p50['mean']:.1f} ms, {arm['saved_tokens']:.1%} of tokens saved")
                below = arm["p50_below_retrieval"]
                if below is None:
                    continue
                main_run = arm["arm"] == "foresight+hint" and part == "steady"
                wanted, good = (">= 33 %", below["mean"] >= 0.33) if main_run else (None, None)
                row("  p50 below retrieval", f"{below['mean']:.1%}", wanted, good)
                below = arm["mean_below_retrieval"]
                wanted, good = (">= 30 %", below["mean"] >= 0.30) if main_run else (None, None)
                row("  mean below retrieval", f"{below['mean']:.1%}", wanted, good)
        for point in own["sweeps"]:
            arms = {arm["arm"]: arm for arm in point["all"]}
            times = ", ".join(f"{name} {arm['ttft_p50_ms']['mean']:.1f}" for name, arm in arms.items())
            row(f"{point['name']} {point['value']}", f"TTFT p50 in ms: {times}")
        for rate in own["throughput"]:
            name = f"throughput, {rate['arm']}, {rate['at_once']} at once"
            row(name, f"{rate['requests_per_s']:.2f} requests/s, {rate['tokens_per_s']:.0f} tok/s")
        for run in own["pipelining"] or []:
            name = f"pipelining, {run['system_tokens']} system tokens ({run['system_s'] * 1e3:.1f} ms)"
            times = f"serial {run['serial_s'] * 1e3:.1f}, pipelined {run['pipelined_s'] * 1e3:.1f} ms"
            row(name, f"retrieval {run['retrieval_s'] * 1e3:.0f}, {times}: {run['below_serial']:.1%} below")
    else:
        row("measure", "no figures")
    answers = out / "answers.out"
    if answers.exists() and answers.read_text().strip():
        last = read_last(answers)
        if last:
            if "answers" in last:
                good = last["answers_equal"] == last["answers"] > 0
                row("SmolLM2's answers equal to the CPU's", f"{last['answers_equal']} of {last['answers']}", "all", good)
            row("greedy tokens equal to the CPU's", f"{last['tokens_equal']} of {last['tokens']}")
            behind, allowed = last["furthest_behind"], last["behind_allowed"]
            row("  the others behind, of a deviation", f"{behind:.3f}", f"<= {allowed:.1f}", behind <= allowed)
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    for line in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths)).rstrip())
    print()
    for part in (out / "parts").read_text().splitlines():
        name, outcome, seconds = part.split("|")
        print(f"{name:14}{outcome} ({seconds} s)")


def read_last(path):
    try:
        return json.loads(path.read_text().strip().splitlines()[-1])
    except ValueError:
        return None


if __name__ == "__main__":
    main()
