#!/usr/bin/env python3
"""Runs ContextPilot's offline mode on a trace: build the index, order every context, schedule them all.

    contextpilot_offline.py TRACE PLAN

TRACE has a JSON object a line, {"documents": [number, ...]}, in order of arrival. PLAN gets one a line,
{"request": index, "documents": [number, ...]}, in the order in which ContextPilot would send them, and the last line
of standard output is {"version": ..., "seconds": ...}.

This is its `optimize_batch` without the building of messages: a fresh ContextPilot instance whose first `reorder` is
given all contexts. The time is that call's alone; importing is not counted.
"""

import contextlib
import io
import json
import sys
import time
from importlib.metadata import version


def main() -> None:
    trace, plan = sys.argv[1:]
    with open(trace, encoding="utf-8") as file:
        contexts = [json.loads(line)["documents"] for line in file]

    from contextpilot.context_index import ContextIndex  # noqa: F401  (imports SciPy)
    from contextpilot.server.live_index import ContextPilot

    start = time.perf_counter()
    # It narrates its progress on standard output.
    with contextlib.redirect_stdout(io.StringIO()):
        reordered, order = ContextPilot(use_gpu=False).reorder(contexts)
    seconds = time.perf_counter() - start

    with open(plan, "w", encoding="utf-8") as file:
        for request, documents in zip(order, reordered, strict=True):
            line = {"request": int(request), "documents": [int(d) for d in documents]}
            file.write(json.dumps(line) + "\n")
    print(json.dumps({"version": version("contextpilot"), "seconds": seconds}))


# Its distance computation starts processes, which import this file again.
if __name__ == "__main__":
    main()
