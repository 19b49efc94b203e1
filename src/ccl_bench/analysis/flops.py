"""Floating-point operations that a model needs for one token, by convention.

PaLM (arXiv 2204.02311, appendix B): a training step costs 6 operations for each parameter
outside the embedding and 12·L·H·Q·T for attention (L layers, H heads, Q head size, T tokens
in a sequence); a forward pass alone costs a third of both.
"""

from __future__ import annotations

from dataclasses import dataclass

FORWARD_PASSES = {"inference": 1, "training": 3}
"""What a step costs in forward passes: the backward pass costs two [PaLM app. B]."""

RECOMPUTE_FORWARD_PASSES = 4
"""With full activation checkpointing the forward pass runs twice [arXiv 2205.05198]."""


@dataclass(frozen=True, slots=True)
class Architecture:
    """The sizes that the operations follow from."""

    parameters: int
    """Parameters that a token uses, without those of the embedding."""
    layers: int
    heads: int
    head_dim: int
    seq_len: int
    """Tokens in one sequence."""

    @property
    def matmul_flops(self) -> float:
        """Operations of one forward pass in matrix products with weights, for one token."""
        return 2.0 * self.parameters

    @property
    def attention_flops(self) -> float:
        """Operations of one forward pass in attention, for one token that sees the whole sequence."""
        return 4.0 * self.layers * self.heads * self.head_dim * self.seq_len


def palm(architecture: Architecture, phase: str) -> float:
    """Return operations for one token by the PaLM convention, attention over the whole sequence."""
    return FORWARD_PASSES[phase] * (architecture.matmul_flops + architecture.attention_flops)


def causal(architecture: Architecture, phase: str) -> float:
    """Return operations for one token with causal attention counted by half, as Megatron-LM does."""
    return FORWARD_PASSES[phase] * (architecture.matmul_flops + architecture.attention_flops / 2)


def hardware_with_recompute(architecture: Architecture) -> float:
    """Return operations executed for one training token with full activation checkpointing (HFU)."""
    return RECOMPUTE_FORWARD_PASSES * (architecture.matmul_flops + architecture.attention_flops)
