"""A U-Net: its skips keep the largest activations alive across the whole net.

After "U-Net: Convolutional Networks for Biomedical Image Segmentation" (Ronneberger et al.,
2015), with padded convolutions, so that the output has the size of the input. ``size="paper"`` is
the paper's net, on images of 512 pixels a side in place of its 572, of which it puts out 388.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from karma_fx.models.loss import WithCrossEntropy

# size: base, depth, image
SIZES = {"small": (8, 3, 32), "paper": (64, 4, 512)}


def _double_conv(inputs: int, outputs: int) -> nn.Sequential:
    """Two 3x3 convolutions with ReLU: the step of every level."""
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(outputs, outputs, 3, padding=1),
        nn.ReLU(),
    )


class UNet(nn.Module):
    """(batch, channels, height, width) -> (batch, classes, height, width).

    Height and width are divisible by ``2**depth``; level ``i`` has ``base * 2**i`` channels.
    """

    def __init__(self, *, base: int, depth: int, channels: int, classes: int) -> None:
        super().__init__()
        widths = [base * 2**level for level in range(depth + 1)]
        self.down = nn.ModuleList(
            _double_conv(inputs, outputs)
            for inputs, outputs in zip([channels, *widths[:-2]], widths[:-1], strict=True)
        )
        self.bottom = _double_conv(widths[-2], widths[-1])
        self.rise = nn.ModuleList(
            nn.ConvTranspose2d(2 * width, width, 2, stride=2) for width in reversed(widths[:-1])
        )
        self.up = nn.ModuleList(_double_conv(2 * width, width) for width in reversed(widths[:-1]))
        self.head = nn.Conv2d(base, classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        skips = []
        for down in self.down:
            skips.append(down(x))
            x = F.max_pool2d(skips[-1], 2)
        x = self.bottom(x)
        for rise, up, skip in zip(self.rise, self.up, reversed(skips), strict=True):
            x = up(torch.cat([skip, rise(x)], dim=1))
        logits: Tensor = self.head(x)
        return logits


def unet(
    *,
    size: str = "small",
    base: int | None = None,
    depth: int | None = None,
    image: int | None = None,
    channels: int = 1,
    classes: int = 2,
    batch: int = 2,
    dtype: torch.dtype = torch.float32,
) -> tuple[WithCrossEntropy, tuple[Tensor, Tensor]]:
    """A U-Net with ``depth`` levels; (batch, channels, image, image), and a class a pixel.

    Base, depth and image replace what ``size``, one of ``SIZES``, says.
    """
    if size not in SIZES:
        raise ValueError(f"size ({size!r}) must be one of {', '.join(SIZES)}")
    of_size = SIZES[size]
    base = of_size[0] if base is None else base
    depth = of_size[1] if depth is None else depth
    image = of_size[2] if image is None else image
    if depth < 1 or image % 2**depth:
        raise ValueError(f"image ({image}) must be divisible by 2**depth ({2**depth}), depth >= 1")
    model = WithCrossEntropy(UNet(base=base, depth=depth, channels=channels, classes=classes))
    images = torch.randn(batch, channels, image, image, dtype=dtype)
    return model.to(dtype), (images, torch.randint(classes, (batch, image, image)))
