#!/usr/bin/env python3
"""What ContextPilot's de-duplication of blocks saves in sessions of `sessions.py`: the peer of `cargo bench -p foreword-benches -- outputs`.

  pip install contextpilot==0.5.0
  peer.py < mini.jsonl

Each session's last request is read once. As in the bench, a message is shortened where it is new and stays so.
"""
import json
import sys

from contextpilot.dedup.block_dedup import dedup_chat_completions


def main():
    results, bodies = [0, 0], [0, 0]
    for line in sys.stdin:
        messages = json.loads(line)["messages"]
        last = max(at for at, message in enumerate(messages) if message["role"] == "assistant")
        messages = messages[:last]
        before = [len(message["content"] or "") for message in messages]
        dedup_chat_completions({"messages": messages})
        for message, original in zip(messages, before):
            sizes = (original, len(message["content"] or ""))
            for at, size in enumerate(sizes):
                bodies[at] += size
                results[at] += size if message["role"] == "tool" else 0
    for name, (original, forwarded) in (("tools' results", results), ("whole last requests", bodies)):
        print(f"{name}: {100 * (1 - forwarded / original):.1f} % of the characters saved")


if __name__ == "__main__":
    main()
