"""Residual networks of bottlenecks: the deep convnets that out-of-core training is measured on.

``resnet50`` is from "Deep Residual Learning for Image Recognition" (He et al., 2015), with the
stride in the 3x3 convolution, as torchvision has it. ``resnet200`` has the depths and
``resnet1001`` the pre-activation blocks of "Identity Mappings in Deep Residual Networks" (He et
al., 2016).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from karma_fx.models.loss import WithCrossEntropy

EXPANSION = 4  # a bottleneck puts out this many times the channels of its 3x3 convolution


def _conv(inputs: int, outputs: int, kernel: int, stride: int = 1) -> nn.Conv2d:
    conv = nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, bias=False)
    nn.init.kaiming_normal_(conv.weight, mode="fan_out", nonlinearity="relu")
    return conv


class Bottleneck(nn.Module):
    """1x1, 3x3 and 1x1 convolutions, each with a norm after it, and a skip."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = EXPANSION * width
        self.narrow = nn.Sequential(_conv(inputs, width, 1), nn.BatchNorm2d(width))
        self.middle = nn.Sequential(_conv(width, width, 3, stride), nn.BatchNorm2d(width))
        self.widen = nn.Sequential(_conv(width, outputs, 1), nn.BatchNorm2d(outputs))
        self.skip: nn.Module = nn.Identity()
        if inputs != outputs or stride != 1:
            self.skip = nn.Sequential(_conv(inputs, outputs, 1, stride), nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.middle(F.relu(self.narrow(x))))
        return F.relu(self.widen(y) + self.skip(x))


class PreActivation(nn.Module):
    """The bottleneck with norm and ReLU before each convolution, and nothing after the sum."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = EXPANSION * width
        self.norms = nn.ModuleList(nn.BatchNorm2d(c) for c in (inputs, width, width))
        self.narrow = _conv(inputs, width, 1)
        self.middle = _conv(width, width, 3, stride)
        self.widen = _conv(width, outputs, 1)
        same = inputs == outputs and stride == 1
        self.skip = None if same else _conv(inputs, outputs, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        active = F.relu(self.norms[0](x))
        y = self.middle(F.relu(self.norms[1](self.narrow(active))))
        y = self.widen(F.relu(self.norms[2](y)))
        skip = x if self.skip is None else self.skip(active)
        summed: Tensor = y + skip
        return summed


def _stages(
    block: type[Bottleneck] | type[PreActivation], inputs: int, width: int, blocks: Sequence[int]
) -> tuple[list[nn.Module], int]:
    """The blocks of every stage, and the channels after them; later stages halve the image."""
    layers: list[nn.Module] = []
    for stage, count in enumerate(blocks):
        for index in range(count):
            stride = 2 if stage > 0 and index == 0 else 1
            layers.append(block(inputs, width * 2**stage, stride))
            inputs = EXPANSION * width * 2**stage
    return layers, inputs


def _build(
    layers: list[nn.Module], image: int, classes: int, batch: int, dtype: torch.dtype
) -> tuple[WithCrossEntropy, tuple[Tensor, Tensor]]:
    model = WithCrossEntropy(nn.Sequential(*layers))
    inputs = torch.randn(batch, 3, image, image, dtype=dtype), torch.randint(classes, (batch,))
    return model.to(dtype), inputs


def _imagenet(width: int, blocks: Sequence[int], classes: int) -> list[nn.Module]:
    stem = [_conv(3, width, 7, 2), nn.BatchNorm2d(width), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    layers, channels = _stages(Bottleneck, width, width, blocks)
    return [*stem, *layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes)]


def resnet50(
    *,
    width: int = 64,
    blocks: Sequence[int] = (3, 4, 6, 3),
    image: int = 224,
    classes: int = 1000,
    batch: int = 8,
    dtype: torch.dtype = torch.float32,
) -> tuple[WithCrossEntropy, tuple[Tensor, Tensor]]:
    """ResNet-50 for ImageNet; inputs (batch, 3, image, image) and (batch,) classes."""
    return _build(_imagenet(width, blocks, classes), image, classes, batch, dtype)


def resnet200(
    *,
    width: int = 64,
    blocks: Sequence[int] = (3, 24, 36, 3),
    image: int = 224,
    classes: int = 1000,
    batch: int = 8,
    dtype: torch.dtype = torch.float32,
) -> tuple[WithCrossEntropy, tuple[Tensor, Tensor]]:
    """ResNet-200 for ImageNet; inputs (batch, 3, image, image) and (batch,) classes."""
    return _build(_imagenet(width, blocks, classes), image, classes, batch, dtype)


def resnet1001(
    *,
    depth: int = 1001,
    width: int = 16,
    image: int = 32,
    classes: int = 10,
    batch: int = 8,
    dtype: torch.dtype = torch.float32,
) -> tuple[WithCrossEntropy, tuple[Tensor, Tensor]]:
    """The ResNet of ``depth`` layers for CIFAR-10: three stages of ``(depth - 2) / 9`` blocks."""
    if depth < 11 or (depth - 2) % 9:
        raise ValueError(f"depth ({depth}) must be 9 * n + 2, n >= 1")
    layers, channels = _stages(PreActivation, width, width, [(depth - 2) // 9] * 3)
    end = [nn.BatchNorm2d(channels), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    layers = [_conv(3, width, 3), *layers, *end, nn.Linear(channels, classes)]
    return _build(layers, image, classes, batch, dtype)
