"""Losses around a model, so that every model of the zoo can end in one number."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn


class WithCrossEntropy(nn.Module):
    """``forward(x, targets)``: the mean cross-entropy of ``model(x)`` against class indices.

    Logits are (batch, classes, ...) and targets int64 (batch, ...): classes of an image, or of
    each of its pixels.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(self.model(x), targets)
