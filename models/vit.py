"""A vision transformer: GPT's blocks without the causal mask, on patches of an image.

ViT-B/16 of "An Image is Worth 16x16 Words" (Dosovitskiy et al., 2020): learned positions, a class
token in front, and the head on what comes out at that token.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from karma_fx.models.gpt import Block
from karma_fx.models.loss import WithCrossEntropy


class ViT(nn.Module):
    """(batch, 3, image, image) -> (batch, classes)."""

    def __init__(
        self,
        *,
        layers: int,
        width: int,
        heads: int,
        image: int,
        patch: int,
        classes: int,
        dropout: float,
    ) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, stride=patch)
        self.token = nn.Parameter(torch.zeros(1, 1, width))
        self.position = nn.Parameter(torch.empty(1, (image // patch) ** 2 + 1, width))
        nn.init.normal_(self.position, std=0.02)
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.ModuleList(
            Block(width, heads, dropout, causal=False) for _ in range(layers)
        )
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], dim=1)
        x = self.dropout(x + self.position)
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.head(self.norm(x[:, 0]))
        return logits


def vit(
    *,
    layers: int = 12,
    width: int = 768,
    heads: int = 12,
    image: int = 224,
    patch: int = 16,
    classes: int = 1000,
    dropout: float = 0.0,
    batch: int = 8,
    dtype: torch.dtype = torch.float32,
) -> tuple[WithCrossEntropy, tuple[Tensor, Tensor]]:
    """ViT-B/16 for ImageNet; inputs (batch, 3, image, image) and (batch,) classes."""
    if image < patch or image % patch:
        raise ValueError(f"image ({image}) must be divisible by patch ({patch})")
    model = ViT(
        layers=layers,
        width=width,
        heads=heads,
        image=image,
        patch=patch,
        classes=classes,
        dropout=dropout,
    )
    inputs = torch.randn(batch, 3, image, image, dtype=dtype), torch.randint(classes, (batch,))
    return WithCrossEntropy(model).to(dtype), inputs
