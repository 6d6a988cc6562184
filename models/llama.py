"""A Llama: the decoder of today, with fewer heads for keys and values than for queries.

After "LLaMA: Open and Efficient Foundation Language Models" (Touvron et al., 2023): RMSNorm before
each half of a block, rotary positions (Su et al., 2021), SwiGLU (Shazeer, 2020), no biases; and
the grouped-query attention of Ainslie et al. (2023). The defaults are those of Llama 3.2 1B
(Meta, 2024), whose rotary base is 500000; its stretching of low frequencies for contexts beyond
8192 is left out.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn each pair of (first half, second half) of the last axis by its position's angle."""
    first, second = x.chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


class GroupedAttention(nn.Module):
    """Causal self-attention; ``heads // kv_heads`` query heads share a head of keys and values."""

    def __init__(self, width: int, heads: int, kv_heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.kv_heads = kv_heads
        size = width // heads
        self.q = nn.Linear(width, width, bias=False)
        self.k = nn.Linear(width, kv_heads * size, bias=False)
        self.v = nn.Linear(width, kv_heads * size, bias=False)
        self.out = nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        batch, context, width = x.shape
        q = self.q(x).view(batch, context, self.heads, -1).transpose(1, 2)
        k = self.k(x).view(batch, context, self.kv_heads, -1).transpose(1, 2)
        v = self.v(x).view(batch, context, self.kv_heads, -1).transpose(1, 2)
        q, k = _rotate(q, cos, sin), _rotate(k, cos, sin)
        y = F.scaled_dot_product_attention(q, self._repeat(k), self._repeat(v), is_causal=True)
        mixed: Tensor = self.out(y.transpose(1, 2).reshape(batch, context, width))
        return mixed

    def _repeat(self, x: Tensor) -> Tensor:
        group = self.heads // self.kv_heads
        return x.unsqueeze(2).expand(-1, -1, group, -1, -1).flatten(1, 2)


class SwiGLU(nn.Module):
    """An MLP whose hidden layer is the product of a gate and a value."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.gate = nn.Linear(width, hidden, bias=False)
        self.value = nn.Linear(width, hidden, bias=False)
        self.out = nn.Linear(hidden, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        mixed: Tensor = self.out(F.silu(self.gate(x)) * self.value(x))
        return mixed


class LlamaBlock(nn.Module):
    """One layer: attention and SwiGLU, each behind a norm and a residual."""

    def __init__(self, width: int, heads: int, kv_heads: int, hidden: int) -> None:
        super().__init__()
        self.norm1 = nn.RMSNorm(width, eps=1e-5)
        self.attention = GroupedAttention(width, heads, kv_heads)
        self.norm2 = nn.RMSNorm(width, eps=1e-5)
        self.mlp = SwiGLU(width, hidden)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x), cos, sin)
        x = x + self.mlp(self.norm2(x))
        return x


class Llama(nn.Module):
    """``forward(tokens, targets)``, both int64 (batch, context), is the mean cross-entropy."""

    def __init__(
        self,
        *,
        layers: int,
        width: int,
        heads: int,
        kv_heads: int,
        hidden: int,
        vocab: int,
        theta: float,
        tied: bool,
    ) -> None:
        super().__init__()
        self.pairs = width // heads // 2
        self.theta = theta
        self.token = nn.Embedding(vocab, width)
        self.blocks = nn.ModuleList(
            LlamaBlock(width, heads, kv_heads, hidden) for _ in range(layers)
        )
        self.norm = nn.RMSNorm(width, eps=1e-5)
        self.head = nn.Linear(width, vocab, bias=False)
        nn.init.normal_(self.token.weight, std=0.02)
        if tied:
            self.head.weight = self.token.weight

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        x = self.token(tokens)
        # Angles in float32 whatever the weights are: bfloat16 cannot count to 1000.
        place = torch.arange(tokens.shape[1], device=x.device, dtype=torch.float32)
        power = torch.arange(self.pairs, device=x.device, dtype=torch.float32) / self.pairs
        angles = place.unsqueeze(1) * self.theta**-power
        cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
        for block in self.blocks:
            x = block(x, cos, sin)
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def llama(
    *,
    layers: int = 16,
    width: int = 2048,
    heads: int = 32,
    kv_heads: int = 8,
    hidden: int = 8192,
    context: int = 2048,
    vocab: int = 128256,
    theta: float = 500000.0,
    tied: bool = True,
    batch: int = 8,
    dtype: torch.dtype = torch.float32,
) -> tuple[Llama, tuple[Tensor, Tensor]]:
    """A Llama and random ``(tokens, targets)``, int64 (batch, context) each."""
    if width % (2 * heads) or heads % kv_heads:
        raise ValueError(
            f"width ({width}) must be divisible by 2 * heads ({heads}), "
            f"and heads by kv_heads ({kv_heads})"
        )
    model = Llama(
        layers=layers,
        width=width,
        heads=heads,
        kv_heads=kv_heads,
        hidden=hidden,
        vocab=vocab,
        theta=theta,
        tied=tied,
    )
    tokens = torch.randint(vocab, (batch, context + 1))
    return model.to(dtype), (tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous())
