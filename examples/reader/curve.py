"""Draws `log.jsonl` of a training as `curve.svg`: the loss, the share of right answers, and where each stage began."""

import argparse
import json
from pathlib import Path

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 760, 340, 52, 52, 34, 44
LOSS, ANSWERS, INK, GRID = "#c26a0b", "#1f5fd0", "#475569", "#e3e8ef"


def curve(log: list[dict]) -> str:
    most = log[-1]["tokens"]
    top = max(1.0, sorted(line["loss"] for line in log)[-len(log) // 50 - 1])

    def x(tokens: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * tokens / most

    def y(share: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * min(share, 1.0)

    def text(at_x: float, at_y: float, words: str, colour: str = INK, anchor: str = "middle") -> str:
        return f'<text x="{at_x:.1f}" y="{at_y:.1f}" fill="{colour}" text-anchor="{anchor}">{words}</text>'

    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="13">',
             f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>']
    for tick in range(6):
        share = tick / 5
        parts.append(f'<path d="M{LEFT} {y(share):.1f}H{WIDTH - RIGHT}" stroke="{GRID}"/>')
        parts.append(text(LEFT - 8, y(share) + 4, f"{share * top:.1f}", LOSS, "end"))
        parts.append(text(WIDTH - RIGHT + 8, y(share) + 4, f"{100 * share:.0f}%", ANSWERS, "start"))
    step = max(1, round(most / 6e6))
    for millions in range(0, int(most / 1e6) + 1, step):
        parts.append(text(x(millions * 1e6), HEIGHT - BOTTOM + 20, str(millions)))
    parts.append(text(WIDTH / 2, HEIGHT - 6, "million tokens"))
    for before, line in zip(log, log[1:]):
        if line["stage"] != before["stage"]:
            at = x(before["tokens"])
            parts.append(f'<path d="M{at:.1f} {TOP}V{HEIGHT - BOTTOM}" stroke="{INK}" stroke-dasharray="3 4"/>')
            parts.append(text(at + 4, TOP + 12, str(line["stage"] + 1), anchor="start"))
    for colour, points in ((LOSS, [(line["tokens"], line["loss"] / top) for line in log]),
                           (ANSWERS, [(line["tokens"], line["right"]) for line in log])):
        path = " ".join(f"{x(tokens):.1f},{y(share):.1f}" for tokens, share in points)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.8"/>')
    parts.append(text(LEFT, 20, "loss", LOSS, "start"))
    parts.append(text(WIDTH / 2, 20, "dashed: a stage begins"))
    parts.append(text(WIDTH - RIGHT, 20, "right answers in training", ANSWERS, "end"))
    return "\n".join([*parts, "</svg>"]) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="where log.jsonl is")
    folder = parser.parse_args().folder
    lines = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    # A training that went on from a checkpoint did some steps twice; what counts is the later time.
    kept: dict[int, dict] = {}
    for line in lines:
        kept = {step: old for step, old in kept.items() if step < line["step"]}
        kept[line["step"]] = line
    (folder / "curve.svg").write_text(curve(list(kept.values())))


if __name__ == "__main__":
    main()
