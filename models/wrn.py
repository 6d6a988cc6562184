"""A wide residual network: few layers, many channels, and so large activations and weights.

After "Wide Residual Networks" (Zagoruyko and Komodakis, 2016): blocks of two 3x3 convolutions,
with norm and ReLU before each, and dropout between the two.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from karma_fx.models.loss import WithCrossEntropy


def _conv(inputs: int, outputs: int, kernel: int, stride: int = 1) -> nn.Conv2d:
    conv = nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, bias=False)
    nn.init.kaiming_normal_(conv.weight, mode="fan_out", nonlinearity="relu")
    return conv


class WideBlock(nn.Module):
    """Norm, ReLU and a 3x3 convolution, twice, and a skip, projected where the shape changes."""

    def __init__(self, inputs: int, outputs: int, stride: int, dropout: float) -> None:
        super().__init__()
        self.norm1 = nn.BatchNorm2d(inputs)
        self.conv1 = _conv(inputs, outputs, 3, stride)
        self.norm2 = nn.BatchNorm2d(outputs)
        self.dropout = nn.Dropout(dropout) if dropout else nn.Identity()
        self.conv2 = _conv(outputs, outputs, 3)
        same = inputs == outputs and stride == 1
        self.skip = None if same else _conv(inputs, outputs, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        active = F.relu(self.norm1(x))
        y = self.dropout(F.relu(self.norm2(self.conv1(active))))
        skip = x if self.skip is None else self.skip(active)
        summed: Tensor = self.conv2(y) + skip
        return summed


def wrn28_10(
    *,
    depth: int = 28,
    widen: int = 10,
    dropout: float = 0.0,
    image: int = 32,
    classes: int = 10,
    batch: int = 8,
    dtype: torch.dtype = torch.float32,
) -> tuple[WithCrossEntropy, tuple[Tensor, Tensor]]:
    """WRN-``depth``-``widen`` for CIFAR-10. The paper trains with ``dropout=0.3`` and without."""
    if depth < 10 or (depth - 4) % 6:
        raise ValueError(f"depth ({depth}) must be 6 * n + 4, n >= 1")
    layers: list[nn.Module] = [_conv(3, 16, 3)]
    channels = 16
    for stage in range(3):
        outputs = 16 * widen * 2**stage
        for block in range((depth - 4) // 6):
            stride = 2 if stage > 0 and block == 0 else 1
            layers.append(WideBlock(channels, outputs, stride, dropout))
            channels = outputs
    layers += [nn.BatchNorm2d(channels), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    model = WithCrossEntropy(nn.Sequential(*layers, nn.Linear(channels, classes)))
    inputs = torch.randn(batch, 3, image, image, dtype=dtype), torch.randint(classes, (batch,))
    return model.to(dtype), inputs
