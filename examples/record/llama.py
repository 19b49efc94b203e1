"""A Llama-like decoder of two or three million parameters, and data it can learn.

Activations are (tokens, width): one dimension for batch and position keeps the traces free of reshaping.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn


@dataclass(frozen=True)
class Config:
    """Sizes of the model, in the words of the workload card."""

    layers: int
    vocab: int = 512
    heads: int = 4
    head_dim: int = 64
    seq_len: int = 128

    @property
    def dim(self) -> int:
        """Width of the residual stream."""
        return self.heads * self.head_dim


class Attention(nn.Module):
    """Causal self-attention with rotary positions."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.head_dim = config.head_dim
        self.qkv = nn.Linear(config.dim, 3 * config.dim, bias=False)
        self.out = nn.Linear(config.dim, config.dim, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Attend, with as many heads as the projection is wide: all of them, or a tensor-parallel shard."""
        qkv = self.qkv(x)
        heads = qkv.shape[1] // (3 * self.head_dim)
        qkv = qkv.view(-1, len(cos), heads, 3, self.head_dim).transpose(1, 3)
        qk, v = qkv.split((2, 1), dim=1)
        q, k = (qk * cos + torch.roll(qk, self.head_dim // 2, -1) * sin).unbind(1)
        y = F.scaled_dot_product_attention(q, k, v.squeeze(1), is_causal=True)
        return self.out(y.transpose(1, 2).reshape(len(x), -1))


class FeedForward(nn.Module):
    """SwiGLU."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.gate_up = nn.Linear(config.dim, 4 * config.dim, bias=False)
        self.down = nn.Linear(2 * config.dim, config.dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Gate, widen, narrow."""
        gate, up = self.gate_up(x).unflatten(-1, (-1, 2)).unbind(-1)
        return self.down(F.silu(gate) * up)


class Block(nn.Module):
    """One decoder layer."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.attention_norm, self.mlp_norm = nn.RMSNorm(config.dim), nn.RMSNorm(config.dim)
        self.attention, self.mlp = Attention(config), FeedForward(config)
        half = torch.arange(config.head_dim // 2) * (-2 / config.head_dim)
        angle = torch.outer(torch.arange(config.seq_len), 10_000**half).repeat(1, 2)
        sign = torch.ones(config.head_dim)
        sign[: config.head_dim // 2] = -1
        self.register_buffer("cos", angle.cos(), persistent=False)
        self.register_buffer("sin", angle.sin() * sign, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Attention, then feed-forward, each behind a norm and added to the residual stream."""
        x = x + self.attention(self.attention_norm(x), self.cos, self.sin)
        return x + self.mlp(self.mlp_norm(x))


class Llama(nn.Module):
    """The whole model, or, with `first` and `last`, one pipeline stage of it."""

    def __init__(self, config: Config, layers: range, first: bool = True, last: bool = True) -> None:
        super().__init__()
        self.embedding = nn.Embedding(config.vocab, config.dim) if first else nn.Identity()
        self.blocks = nn.Sequential(*(Block(config) for _ in layers))
        self.head = nn.Sequential(nn.RMSNorm(config.dim), nn.Linear(config.dim, config.vocab, bias=False))
        if not last:
            self.head = nn.Sequential()

    def forward(self, x: Tensor) -> Tensor:
        """From tokens (or the previous stage's activations) to logits (or this stage's activations)."""
        return self.head(self.blocks(self.embedding(x)))


def batch(config: Config, size: int, seed: int) -> tuple[Tensor, Tensor]:
    """Tokens and targets of sequences that count up in threes from a random token."""
    start = torch.randint(config.vocab, (size, 1), generator=torch.Generator().manual_seed(seed))
    sequence = torch.arange(config.seq_len + 1) * 3 + start
    return sequence[:, :-1].flatten() % config.vocab, sequence[:, 1:].flatten() % config.vocab
