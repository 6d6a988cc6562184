"""A deep multi-layer perceptron with dropout: the smallest model with randomness to replay."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from karma_fx.models.loss import WithCrossEntropy


def mlp(
    *,
    depth: int = 8,
    width: int = 256,
    p: float = 0.1,
    classes: int = 10,
    batch: int = 32,
    dtype: torch.dtype = torch.float32,
) -> tuple[WithCrossEntropy, tuple[Tensor, Tensor]]:
    """``depth`` hidden layers with dropout ``p``; inputs (batch, width) and (batch,) classes."""
    layers: list[nn.Module] = []
    for _ in range(depth):
        layers += [nn.Linear(width, width), nn.ReLU(), nn.Dropout(p)]
    model = WithCrossEntropy(nn.Sequential(*layers, nn.Linear(width, classes)))
    inputs = torch.randn(batch, width, dtype=dtype), torch.randint(classes, (batch,))
    return model.to(dtype), inputs
