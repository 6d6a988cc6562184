"""A small residual convnet with batch norm: buffers that change in forward, and skips.

The basic block of "Deep Residual Learning for Image Recognition" (He et al., 2015). Each stage
halves the image and doubles the channels, so that early activations are the large ones.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from karma_fx.models.loss import WithCrossEntropy


def _conv_norm(inputs: int, outputs: int, *, kernel: int = 3, stride: int = 1) -> nn.Sequential:
    conv = nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(outputs))


class ResidualBlock(nn.Module):
    """Two 3x3 convolutions and a skip, which is projected where the shape changes."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.first = _conv_norm(inputs, outputs, stride=stride)
        self.second = _conv_norm(outputs, outputs)
        same = inputs == outputs and stride == 1
        self.skip = nn.Identity() if same else _conv_norm(inputs, outputs, kernel=1, stride=stride)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.second(F.relu(self.first(x))) + self.skip(x))


def convnet(
    *,
    width: int = 16,
    stages: int = 3,
    blocks: int = 2,
    image: int = 32,
    classes: int = 10,
    batch: int = 8,
    dtype: torch.dtype = torch.float32,
) -> tuple[WithCrossEntropy, tuple[Tensor, Tensor]]:
    """``stages`` times ``blocks`` residual blocks; inputs (batch, 3, image, image), (batch,)."""
    layers: list[nn.Module] = [_conv_norm(3, width), nn.ReLU()]
    channels = width
    for stage in range(stages):
        outputs = width * 2**stage
        for block in range(blocks):
            stride = 2 if stage > 0 and block == 0 else 1
            layers.append(ResidualBlock(channels, outputs, stride))
            channels = outputs
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes)]
    model = WithCrossEntropy(nn.Sequential(*layers))
    inputs = torch.randn(batch, 3, image, image, dtype=dtype), torch.randint(classes, (batch,))
    return model.to(dtype), inputs
