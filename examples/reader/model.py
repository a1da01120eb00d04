"""The reader's network in plain PyTorch: the shape of Qwen3, so that its checkpoint loads wherever Qwen3 does."""

import json
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F


@dataclass(frozen=True)
class Shape:
    vocabulary: int
    width: int = 256
    layers: int = 4
    heads: int = 4
    head_dim: int = 64
    feed_forward: int = 512
    positions: int = 4096
    rope_theta: float = 10_000.0
    norm_eps: float = 1e-6


class Norm(nn.Module):
    def __init__(self, width: int, eps: float):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, (x.shape[-1],), self.weight, self.eps)


class Attention(nn.Module):
    def __init__(self, shape: Shape):
        super().__init__()
        self.heads, self.head_dim = shape.heads, shape.head_dim
        inner = shape.heads * shape.head_dim
        self.q_proj = nn.Linear(shape.width, inner, bias=False)
        self.k_proj = nn.Linear(shape.width, inner, bias=False)
        self.v_proj = nn.Linear(shape.width, inner, bias=False)
        self.o_proj = nn.Linear(inner, shape.width, bias=False)
        self.q_norm = Norm(shape.head_dim, shape.norm_eps)
        self.k_norm = Norm(shape.head_dim, shape.norm_eps)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """`x` is `[rows, tokens, width]`, `cos` and `sin` are `[tokens, head_dim / 2]`."""
        rows, tokens, _ = x.shape

        def heads(y: Tensor) -> Tensor:
            return y.view(rows, tokens, self.heads, self.head_dim).transpose(1, 2)

        def rotate(y: Tensor) -> Tensor:
            a, b = y.chunk(2, -1)
            return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)

        q = rotate(self.q_norm(heads(self.q_proj(x))))
        k = rotate(self.k_norm(heads(self.k_proj(x))))
        attend = attention_in_blocks if q.device.type == "cpu" and torch.is_grad_enabled() else attention
        y = attend(q, k, heads(self.v_proj(x)))
        return self.o_proj(y.transpose(1, 2).reshape(rows, tokens, -1))


def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Causal, of `[rows, heads, tokens, head_dim]` each."""
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def attention_in_blocks(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The same, 256 queries at a time with the keys up to the last of them: compiled and trained on a CPU, twice as fast."""
    block = min(256, q.shape[2])
    after = torch.full((block, block), -torch.inf, dtype=q.dtype).triu(1)
    parts = []
    for start in range(0, q.shape[2], block):
        own = q[:, :, start : start + block]
        size = own.shape[2]
        scores = own @ k[:, :, : start + size].transpose(2, 3) * q.shape[3] ** -0.5
        scores = torch.cat((scores[..., :start], scores[..., start:] + after[:size, :size]), -1)
        parts.append(scores.softmax(-1) @ v[:, :, : start + size])
    return torch.cat(parts, 2)


class FeedForward(nn.Module):
    def __init__(self, shape: Shape):
        super().__init__()
        self.gate_proj = nn.Linear(shape.width, shape.feed_forward, bias=False)
        self.up_proj = nn.Linear(shape.width, shape.feed_forward, bias=False)
        self.down_proj = nn.Linear(shape.feed_forward, shape.width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self, shape: Shape):
        super().__init__()
        self.input_layernorm = Norm(shape.width, shape.norm_eps)
        self.self_attn = Attention(shape)
        self.post_attention_layernorm = Norm(shape.width, shape.norm_eps)
        self.mlp = FeedForward(shape)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), cos, sin)
        return x + self.mlp(self.post_attention_layernorm(x))


class Reader(nn.Module):
    """Parameters have the names that checkpoints give them, less the leading `model.`; the output layer is the embedding."""

    def __init__(self, shape: Shape):
        super().__init__()
        self.shape = shape
        self.embed_tokens = nn.Embedding(shape.vocabulary, shape.width)
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.layers))
        self.norm = Norm(shape.width, shape.norm_eps)
        half = shape.head_dim // 2
        frequencies = shape.rope_theta ** (-torch.arange(half, dtype=torch.float64) / half)
        angles = torch.outer(torch.arange(shape.positions, dtype=torch.float64), frequencies)
        self.register_buffer("cos", angles.cos().float(), persistent=False)
        self.register_buffer("sin", angles.sin().float(), persistent=False)
        self.initialise()

    @torch.no_grad()
    def initialise(self) -> None:
        """Random weights with one head start: in the upper half of the layers, a head that attends to a token adds that
        token's embedding, roughly. So values are copied as soon as attention finds them, whatever their tokens are.
        """
        nn.init.normal_(self.embed_tokens.weight, std=self.shape.width**-0.5)
        for number, layer in enumerate(self.layers):
            for name, weight in layer.named_parameters():
                if weight.ndim == 2:
                    nn.init.normal_(weight, std=0.5 * weight.shape[1] ** -0.5)
            nn.init.zeros_(layer.self_attn.o_proj.weight)
            nn.init.zeros_(layer.mlp.down_proj.weight)
            if number >= self.shape.layers // 2:
                nn.init.orthogonal_(layer.self_attn.v_proj.weight)
                layer.self_attn.o_proj.weight.copy_(0.25 * layer.self_attn.v_proj.weight.T)

    def hidden(self, tokens: Tensor) -> Tensor:
        """`[rows, tokens]` to `[rows, tokens, width]`."""
        x = self.embed_tokens(tokens)
        cos, sin = (table[: tokens.shape[1]].to(x.dtype) for table in (self.cos, self.sin))
        for layer in self.layers:
            x = layer(x, cos, sin)
        return self.norm(x)

    def logits(self, hidden: Tensor) -> Tensor:
        return F.linear(hidden, self.embed_tokens.weight)


def save(model: Reader, folder: Path, eos: int) -> None:
    """Writes `config.json` and `model.safetensors` (bf16)."""
    from safetensors.torch import save_file

    shape = model.shape
    config = {
        "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "dtype": "bfloat16", "hidden_act": "silu",
        "vocab_size": shape.vocabulary, "hidden_size": shape.width, "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads, "num_key_value_heads": shape.heads, "head_dim": shape.head_dim,
        "intermediate_size": shape.feed_forward, "max_position_embeddings": shape.positions, "rms_norm_eps": shape.norm_eps,
        "rope_theta": shape.rope_theta, "attention_bias": False, "tie_word_embeddings": True, "bos_token_id": None,
        "eos_token_id": eos,
    }
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    tensors = {f"model.{name}": weight.detach().to(torch.bfloat16).contiguous().cpu() for name, weight in model.named_parameters()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


