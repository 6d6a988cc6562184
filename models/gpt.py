"""A decoder-only transformer (pre-LN, causal): the model that most people run out of memory with.

After "Language Models are Unsupervised Multitask Learners" (Radford et al., 2019): layer norm
before each half of a block, GELU, learned positions, the head tied to the token embedding.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Attention(nn.Module):
    """Self-attention, causal or not: (batch, context, width) -> the same."""

    def __init__(self, width: int, heads: int, dropout: float, *, causal: bool = True) -> None:
        super().__init__()
        self.heads = heads
        self.causal = causal
        self.dropout = dropout
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, context, width = x.shape
        qkv = self.qkv(x).view(batch, context, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        dropout_p = self.dropout if self.training else 0.0
        y = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal, dropout_p=dropout_p)
        mixed: Tensor = self.out(y.transpose(1, 2).reshape(batch, context, width))
        return mixed


class Block(nn.Module):
    """One layer: attention and a four times wider MLP, each behind a norm and a residual."""

    def __init__(self, width: int, heads: int, dropout: float, *, causal: bool = True) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attention = Attention(width, heads, dropout, causal=causal)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width), nn.Dropout(dropout)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        x = x + self.mlp(self.norm2(x))
        return x


class GPT(nn.Module):
    """``forward(tokens, targets)``, both int64 (batch, context), is the mean cross-entropy."""

    def __init__(
        self,
        *,
        layers: int,
        width: int,
        heads: int,
        context: int,
        vocab: int,
        dropout: float = 0.0,
        tied: bool = True,
    ) -> None:
        super().__init__()
        self.token = nn.Embedding(vocab, width)
        self.position = nn.Embedding(context, width)
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.ModuleList(Block(width, heads, dropout) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocab, bias=False)
        for embedding in (self.token, self.position):
            nn.init.normal_(embedding.weight, std=0.02)
        if tied:
            self.head.weight = self.token.weight

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.dropout(self.token(tokens) + self.position(positions))
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def gpt(
    *,
    layers: int = 12,
    width: int = 512,
    heads: int = 8,
    context: int = 512,
    batch: int = 8,
    vocab: int = 256,
    dropout: float = 0.0,
    tied: bool = True,
    dtype: torch.dtype = torch.float32,
) -> tuple[GPT, tuple[Tensor, Tensor]]:
    """A GPT and random ``(tokens, targets)``, int64 (batch, context) each."""
    model = GPT(
        layers=layers,
        width=width,
        heads=heads,
        context=context,
        vocab=vocab,
        dropout=dropout,
        tied=tied,
    )
    tokens = torch.randint(vocab, (batch, context + 1))
    return model.to(dtype), (tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous())
