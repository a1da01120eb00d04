#!/usr/bin/env python3
"""Writes agents' recorded sessions as lines of JSON, {"messages": [...]}, for `cargo bench -p foreword-benches -- outputs`.

  sessions.py tau  CLONE > tau.jsonl    github.com/sierra-research/tau-bench (MIT): gpt-4o's airline sessions
  sessions.py mini CLONE > mini.jsonl   github.com/gruckion/mini-swe-agent (MIT): Gemini 3 Pro on SWE-bench Verified. Its
                                        agent has no tools: what a command printed is the next user message, and becomes a
                                        tool's result here, as agents with function calls send it
"""
import json
import pathlib
import sys


def tau(clone):
    for session in json.loads((clone / "historical_trajectories/gpt-4o-airline.json").read_text()):
        yield session["traj"]


def mini(clone):
    for path in sorted(clone.glob("swebench_results/*/trajs/*/*.traj.json")):
        messages = json.loads(path.read_text())["messages"]
        for at, message in enumerate(messages):
            role = "tool" if message["role"] == "user" and at > 1 else message["role"]
            messages[at] = {"role": role, "content": message["content"]}
        yield messages


def main():
    if len(sys.argv) != 3 or sys.argv[1] not in ("tau", "mini"):
        sys.exit(__doc__)
    for messages in {"tau": tau, "mini": mini}[sys.argv[1]](pathlib.Path(sys.argv[2])):
        print(json.dumps({"messages": messages}))


if __name__ == "__main__":
    main()
