"""VGG-16: a plain chain of convolutions, whose first activations and last weights are the bulk.

Configuration D of "Very Deep Convolutional Networks for Large-Scale Image Recognition" (Simonyan
and Zisserman, 2014), with dropout on the two hidden layers of its head.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from karma_fx.models.loss import WithCrossEntropy

STAGES = ((1, 2), (2, 2), (4, 3), (8, 3), (8, 3))  # times the width, and how many convolutions


def vgg16(
    *,
    width: int = 64,
    hidden: int = 4096,
    dropout: float = 0.5,
    image: int = 224,
    classes: int = 1000,
    batch: int = 8,
    dtype: torch.dtype = torch.float32,
) -> tuple[WithCrossEntropy, tuple[Tensor, Tensor]]:
    """VGG-16 for ImageNet; inputs (batch, 3, image, image) and (batch,) classes."""
    if image < 32 or image % 32:
        raise ValueError(f"image ({image}) must be divisible by 32")
    layers: list[nn.Module] = []
    channels = 3
    for times, convolutions in STAGES:
        for _ in range(convolutions):
            conv = nn.Conv2d(channels, times * width, 3, padding=1)
            nn.init.kaiming_normal_(conv.weight, mode="fan_out", nonlinearity="relu")
            layers += [conv, nn.ReLU()]
            channels = times * width
        layers.append(nn.MaxPool2d(2))
    layers.append(nn.Flatten())
    features = channels * (image // 32) ** 2
    for _ in range(2):
        layers += [nn.Linear(features, hidden), nn.ReLU(), nn.Dropout(dropout)]
        features = hidden
    model = WithCrossEntropy(nn.Sequential(*layers, nn.Linear(features, classes)))
    inputs = torch.randn(batch, 3, image, image, dtype=dtype), torch.randint(classes, (batch,))
    return model.to(dtype), inputs
