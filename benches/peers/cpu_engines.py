"""Other engines on the CPU, driven by the `cpu_peers` bench: one process, one engine, one set of weights, one thread count.

    cpu_engines.py ENGINE ELEMENT THREADS FOLDER        ENGINE: llama.cpp | torch    ELEMENT: bf16 | f32 | a file's name

Standard input has a shape (the keys of a Hugging Face config.json) on its first line, or {"file": "MODEL.gguf"} for
llama.cpp, then commands; each is answered by a line of JSON:

    {"tokens": [...], "start": 0}        computes the tokens behind `start` ones that were computed before
                                         -> {"seconds": ..., "cpu_seconds": ... of all threads}
    {"logits": true}                     the last token's logits -> {"logits": [...]}
    {"memory": true}                     MiB of resident memory that the model has added -> {"memory": ...}

Weights of a shape are those of `Checkpoint::random` in host/engine/src/models/checkpoint.rs, number by number, so that the bench
can compare logits before it compares times. FOLDER keeps them as GGUF from run to run. An engine that is not installed
ends the process with exit code 3 and a line that says so.
"""

import json
import os
import sys
import time

import numpy

SEED = 1
GOLDEN = numpy.uint64(0x9E3779B97F4A7C15)


def random(name, shape):
    """The f32 values of tensor `name`, before they are rounded to the element."""
    state = SEED ^ 0xCBF29CE484222325
    for byte in name.encode():
        state = ((state ^ byte) * 0x0100000001B3) & (2**64 - 1)
    count = int(numpy.prod(shape))
    bits = numpy.uint64(state) + GOLDEN * numpy.arange(1, count + 1, dtype=numpy.uint64)
    bits = (bits ^ (bits >> numpy.uint64(30))) * numpy.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> numpy.uint64(27))) * numpy.uint64(0x94D049BB133111EB)
    uniform = (bits >> numpy.uint64(40)).astype(numpy.float32) / numpy.float32(1 << 23) - numpy.float32(1)
    uniform *= numpy.sqrt(numpy.float32(3))
    if "norm" in name:
        middle, deviation = 1.0, numpy.float32(0.1)
    elif name.endswith("bias"):
        middle, deviation = 0.0, numpy.float32(0.1)
    elif "embed" in name:
        middle, deviation = 0.0, numpy.float32(1.0)
    else:
        middle, deviation = 0.0, numpy.float32(1.0) / numpy.sqrt(numpy.float32(shape[-1]))
    return (numpy.float32(middle) + deviation * uniform).reshape(shape)


def to_bf16(values):
    """The upper halves of f32, rounded to nearest, ties to even."""
    bits = values.view(numpy.uint32)
    return ((bits + (((bits >> 16) & 1) + 0x7FFF)) >> 16).astype(numpy.uint16)


def from_bf16(halves):
    return (halves.astype(numpy.uint32) << 16).view(numpy.float32)


def tensors(shape):
    """Name in a checkpoint, name in GGUF, dimensions, of every tensor."""
    hidden, inner = shape["hidden_size"], shape["intermediate_size"]
    queries = hidden
    keys = shape["num_key_value_heads"] * (hidden // shape["num_attention_heads"])
    yield "model.embed_tokens.weight", "token_embd.weight", [shape["vocab_size"], hidden]
    yield "model.norm.weight", "output_norm.weight", [hidden]
    for index in range(shape["num_hidden_layers"]):
        ours, theirs = f"model.layers.{index}.", f"blk.{index}."
        yield ours + "input_layernorm.weight", theirs + "attn_norm.weight", [hidden]
        yield ours + "post_attention_layernorm.weight", theirs + "ffn_norm.weight", [hidden]
        for letter, rows in (("q", queries), ("k", keys), ("v", keys)):
            yield ours + f"self_attn.{letter}_proj.weight", theirs + f"attn_{letter}.weight", [rows, hidden]
            yield ours + f"self_attn.{letter}_proj.bias", theirs + f"attn_{letter}.bias", [rows]
        yield ours + "self_attn.o_proj.weight", theirs + "attn_output.weight", [hidden, queries]
        yield ours + "mlp.gate_proj.weight", theirs + "ffn_gate.weight", [inner, hidden]
        yield ours + "mlp.up_proj.weight", theirs + "ffn_up.weight", [inner, hidden]
        yield ours + "mlp.down_proj.weight", theirs + "ffn_down.weight", [hidden, inner]


class LlamaCpp:
    def __init__(self, shape, element, threads, folder):
        import llama_cpp

        self.api = llama_cpp
        path = shape.get("file") or os.path.join(folder, f"{json_hash(shape)}-{element}.gguf")
        if not os.path.exists(path):
            write_gguf(shape, element, path)
        silence = llama_cpp.llama_log_callback(lambda level, text, data: None)
        llama_cpp.llama_log_set(silence, None)
        self.keep = silence
        llama_cpp.llama_backend_init()
        self.before = resident()
        self.model = llama_cpp.llama_model_load_from_file(path.encode(), llama_cpp.llama_model_default_params())
        settings = llama_cpp.llama_context_default_params()
        settings.n_ctx = 1024
        settings.n_batch = settings.n_ubatch = 512
        settings.n_threads = settings.n_threads_batch = threads
        self.context = llama_cpp.llama_init_from_model(self.model, settings)
        assert self.context, "llama.cpp refuses the model"
        self.vocabulary = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self.model))
        self.name = "llama.cpp " + llama_cpp.__version__

    def run(self, tokens, start):
        api = self.api
        api.llama_memory_seq_rm(api.llama_get_memory(self.context), 0, start, -1)
        array = (api.llama_token * len(tokens))(*tokens)
        # Positions follow those that are there, and the last token's logits are computed.
        assert api.llama_decode(self.context, api.llama_batch_get_one(array, len(tokens))) == 0
        api.llama_synchronize(self.context)

    def logits(self):
        pointer = self.api.llama_get_logits_ith(self.context, -1)
        return [pointer[i] for i in range(self.vocabulary)]


class Torch:
    def __init__(self, shape, element, threads, folder):
        import torch
        from transformers import DynamicCache, Qwen2Config, Qwen2ForCausalLM

        torch.set_num_threads(threads)
        self.torch = torch
        self.before = resident()
        self.cache_type = DynamicCache
        settings = {key: value for key, value in shape.items() if key != "model_type"}
        kind = torch.bfloat16 if element == "bf16" else torch.float32
        config = Qwen2Config(**settings, attn_implementation="sdpa")
        with torch.device("meta"):
            model = Qwen2ForCausalLM(config)
        state = {name: torch.from_numpy(random(name, size)).to(kind) for name, _, size in tensors(shape)}
        state["lm_head.weight"] = state["model.embed_tokens.weight"]
        model.load_state_dict(state, assign=True)
        # What the meta device left without values: the rotary frequencies.
        model.model.rotary_emb = type(model.model.rotary_emb)(config)
        self.model = model.eval()
        self.cache = None
        self.name = "torch " + torch.__version__

    def run(self, tokens, start):
        torch = self.torch
        if self.cache is None or start == 0:
            self.cache = self.cache_type()
        self.cache.crop(start)
        with torch.inference_mode():
            output = self.model(torch.tensor([tokens]), past_key_values=self.cache, use_cache=True, logits_to_keep=1)
        self.last = output.logits[0, -1]

    def logits(self):
        return self.last.float().tolist()


def resident():
    """MiB of this process's resident memory."""
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmRSS:")) / 1024


def json_hash(shape):
    import hashlib

    return hashlib.sha256(json.dumps(shape, sort_keys=True).encode()).hexdigest()[:16]


def write_gguf(shape, element, path, tokens=None, values_of=random):
    """Writes the weights as GGUF. Without `tokens`, their texts, the file has no vocabulary and serves ids alone."""
    import gguf

    writer = gguf.GGUFWriter(path + ".part", "qwen2")
    writer.add_context_length(shape["max_position_embeddings"])
    writer.add_embedding_length(shape["hidden_size"])
    writer.add_block_count(shape["num_hidden_layers"])
    writer.add_feed_forward_length(shape["intermediate_size"])
    writer.add_head_count(shape["num_attention_heads"])
    writer.add_head_count_kv(shape["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(shape["rms_norm_eps"])
    writer.add_rope_freq_base(shape["rope_theta"])
    writer.add_vocab_size(shape["vocab_size"])
    if tokens is None:
        writer.add_tokenizer_model("none")
    else:
        writer.add_tokenizer_model("llama")
        writer.add_token_list(tokens)
        writer.add_token_scores([0.0] * len(tokens))
        writer.add_token_types([gguf.TokenType.NORMAL] * len(tokens))
        writer.add_add_bos_token(False)
    for name, theirs, size in tensors(shape):
        values = values_of(name, size)
        if element == "f32":
            writer.add_tensor(theirs, values)
        elif element == "f16" and len(size) > 1:
            # The numbers in bf16, which f16 has too but for the smallest: for builds that are slow with bf16.
            writer.add_tensor(theirs, from_bf16(to_bf16(values)).astype(numpy.float16))
        elif len(size) == 1:
            # llama.cpp wants vectors in f32: the same numbers, widened.
            writer.add_tensor(theirs, from_bf16(to_bf16(values)))
        else:
            writer.add_tensor(theirs, to_bf16(values).view(numpy.uint8), raw_dtype=gguf.GGMLQuantizationType.BF16)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    os.rename(path + ".part", path)


def main():
    engine, element, threads, folder = sys.argv[1:5]
    shape = json.loads(sys.stdin.readline())
    kind = {"llama.cpp": LlamaCpp, "torch": Torch}[engine]
    try:
        peer = kind(shape, element, int(threads), folder)
    except ImportError as error:
        print(f"{engine} is not installed: {error}", file=sys.stderr)
        sys.exit(3)
    print(json.dumps({"name": peer.name}), flush=True)
    after = None
    for line in sys.stdin:
        command = json.loads(line)
        if command.get("logits"):
            answer = {"logits": peer.logits()}
        elif command.get("memory"):
            answer = {"memory": after - peer.before}
        else:
            begin, used = time.perf_counter(), time.process_time()
            peer.run(command["tokens"], command["start"])
            answer = {"seconds": time.perf_counter() - begin, "cpu_seconds": time.process_time() - used}
            after = after or resident()
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
