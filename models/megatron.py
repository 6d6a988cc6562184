"""GPT-2 at the sizes of Megatron-LM and Turing-NLG, whose weights alone may not fit.

Sizes of "Megatron-LM: Training Multi-Billion Parameter Language Models Using Model Parallelism"
(Shoeybi et al., 2019), heads of 8.3b as in its table 2; its vocabulary is padded to 51200. The
smallest, 0.7b, is half as deep as 1.2b, and has 0.65 billion parameters. Turing-NLG: "Turing-NLG:
A 17-billion-parameter language model by Microsoft" (Rosset, 2020).
"""

from __future__ import annotations

import torch
from torch import Tensor

from karma_fx.models.gpt import GPT, gpt

# size: width, layers, heads
SIZES = {
    "0.7b": (1536, 20, 16),
    "1.2b": (1536, 40, 16),
    "2.5b": (1920, 54, 20),
    "4.2b": (2304, 64, 24),
    "8.3b": (3072, 72, 24),
}


def megatron(
    *,
    size: str = "0.7b",
    width: int | None = None,
    layers: int | None = None,
    heads: int | None = None,
    context: int = 1024,
    vocab: int = 51200,
    dropout: float = 0.0,
    batch: int = 8,
    dtype: torch.dtype = torch.float32,
) -> tuple[GPT, tuple[Tensor, Tensor]]:
    """The GPT of ``size``, one of ``SIZES``; width, layers and heads replace what it says."""
    if size not in SIZES:
        raise ValueError(f"size ({size!r}) must be one of {', '.join(SIZES)}")
    of_size = SIZES[size]
    return gpt(
        width=of_size[0] if width is None else width,
        layers=of_size[1] if layers is None else layers,
        heads=of_size[2] if heads is None else heads,
        context=context,
        vocab=vocab,
        dropout=dropout,
        batch=batch,
        dtype=dtype,
    )


def turing_nlg(
    *,
    width: int = 4256,
    layers: int = 78,
    heads: int = 28,
    context: int = 1024,
    vocab: int = 51200,
    dropout: float = 0.0,
    batch: int = 8,
    dtype: torch.dtype = torch.float32,
) -> tuple[GPT, tuple[Tensor, Tensor]]:
    """Turing-NLG, of 17 billion parameters, and random ``(tokens, targets)``."""
    return gpt(
        width=width,
        layers=layers,
        heads=heads,
        context=context,
        vocab=vocab,
        dropout=dropout,
        batch=batch,
        dtype=dtype,
    )
