#!/usr/bin/env python3
"""Writes a GGUF file whose matrices llama.cpp quantised, for the `cpu_peers` bench.

    quantised.py SOURCE KIND FILE.gguf        SOURCE: FILE.gguf, or a folder with a config.json    KIND: Q4_0, Q4_K, ...

A folder is the shape of random weights, those of cpu_engines.py. All matrices get the kind, except where their rows are not whole
blocks of it: llama.cpp takes another there (rows of K kinds must be multiples of 256). The packages are those of requirements-cpu.txt.
"""

import collections
import ctypes
import json
import os
import pathlib
import sys
import tempfile

import gguf
import llama_cpp

from cpu_engines import write_gguf


def quantise(source, kind, target):
    names = [f"LLAMA_FTYPE_MOSTLY_{kind}{size}" for size in ("", "_S")]
    found = [getattr(llama_cpp, name) for name in names if hasattr(llama_cpp, name)]
    if not found:
        sys.exit(f"llama.cpp has no kind {kind}")
    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype, params.allow_requantize, params.pure = found[0], True, True
    params.nthread = 1
    status = llama_cpp.llama_model_quantize(source.encode(), target.encode(), ctypes.byref(params))
    if status != 0:
        sys.exit(f"llama.cpp cannot quantise {source}: {status}")


def main():
    source, kind, target = sys.argv[1:]
    with tempfile.TemporaryDirectory(dir=os.path.dirname(os.path.abspath(target))) as folder:
        if os.path.isdir(source):
            shape = json.loads((pathlib.Path(source) / "config.json").read_text())
            source = os.path.join(folder, "bf16.gguf")
            write_gguf(shape, "bf16", source)
        quantise(source, kind, target)
    kinds = collections.Counter(tensor.tensor_type.name for tensor in gguf.GGUFReader(target).tensors)
    print(", ".join(f"{count} tensors in {name}" for name, count in kinds.items()))


if __name__ == "__main__":
    main()
