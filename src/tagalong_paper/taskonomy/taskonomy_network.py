"""The network of Standley et al. for Taskonomy: a modified Xception encoder, and a small decoder for every task."""

from __future__ import annotations

import math
from itertools import pairwise

from torch import Tensor, nn

from tagalong.learn import ModuleFactory, Task

ENTRY, MIDDLE, BLOCKS, FEATURES = (32, 64, 128, 256), 728, 8, 512
DECODER = (128, 64, 48, 32)


class Xception(ModuleFactory):
    """Makes encoders with 512 output channels at 1/16 of the image's side.

    The layers: two plain convolutions, three blocks of two separable convolutions that halve the image, eight blocks of
    three separable convolutions, and a last separable convolution with BatchNorm.

    Args:
        channels: a factor for the paper's channels; `width` is another factor for all but the output channels.

    Example:
        >>> import torch
        >>> Xception(1 / 16)()(torch.zeros(2, 3, 64, 64, dtype=torch.uint8)).shape
        torch.Size([2, 32, 4, 4])
    """

    def __init__(self, channels: float = 1.0) -> None:
        self.channels = channels

    def __call__(self, width: float = 1.0) -> nn.Module:
        first, second, *growing = (scale_channels(size, self.channels * width) for size in (*ENTRY, MIDDLE))
        encoder = nn.Sequential(
            Colours(),
            *_with_norm(nn.Conv2d(3, first, 3, 2, 1, bias=False), first),
            nn.ReLU(),
            *_with_norm(nn.Conv2d(first, second, 3, 1, 1, bias=False), second),
            nn.ReLU(),
            *(Block(a, b, 2, halve=True, rectified=n > 0) for n, (a, b) in enumerate(pairwise([second, *growing]))),
            *(Block(growing[-1], growing[-1], 3) for _ in range(BLOCKS)),
            nn.ReLU(),
            *_with_norm(Separable(growing[-1], last := scale_channels(FEATURES, self.channels)), last),
        )
        return initialize(encoder)

    def __repr__(self) -> str:
        return f"Xception(channels={self.channels:g})"


class Decoders(ModuleFactory):
    """Makes decoders of four transposed convolutions, each of which doubles the side and is followed by a plain one.

    Args:
        channels: a factor for the paper's channels.
    """

    def __init__(self, channels: float = 1.0) -> None:
        self.channels = channels

    def __call__(self, task: Task, features: int) -> nn.Module:
        layers: list[nn.Module] = []
        sizes = [features, *(scale_channels(size, self.channels) for size in DECODER)]
        for place, (before, after) in enumerate(pairwise(sizes)):
            layers += [*_with_norm(nn.ConvTranspose2d(before, after, 2, 2), after), nn.ReLU()]
            if place < len(DECODER) - 1:
                layers += [*_with_norm(nn.Conv2d(after, after, 3, padding=1), after), nn.ReLU()]
        return initialize(nn.Sequential(*layers, nn.Conv2d(sizes[-1], task.head_size, 3, padding=1)))

    def __repr__(self) -> str:
        return f"Decoders(channels={self.channels:g})"


class Colours(nn.Module):
    """Scales pixels from 0…255 to 0…1."""

    def forward(self, images: Tensor) -> Tensor:
        return images.float() / 255


class Separable(nn.Sequential):
    """A depthwise convolution followed by a pointwise one."""

    def __init__(self, before: int, after: int) -> None:
        super().__init__(
            nn.Conv2d(before, before, 3, padding=1, groups=before, bias=False), nn.Conv2d(before, after, 1, bias=False)
        )


class Block(nn.Module):
    """Separable convolutions with a shortcut.

    Args:
        before: the number of input channels.
        after: the number of output channels.
        convolutions: the number of separable convolutions.
        halve: whether a strided convolution halves the side.
        rectified: whether the block starts with a ReLU.
    """

    def __init__(self, before: int, after: int, convolutions: int, halve: bool = False, rectified: bool = True) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for place in range(convolutions):
            layers += [nn.ReLU(), *_with_norm(Separable(after if place else before, after), after)]
        layers += [nn.Conv2d(after, after, 2, 2)] if halve else []
        self.layers = nn.Sequential(*layers[0 if rectified else 1 :])
        shortened = halve or before != after
        self.short_cut = (
            nn.Sequential(*_with_norm(nn.Conv2d(before, after, 1, 2 if halve else 1, bias=False), after))
            if shortened
            else nn.Identity()
        )

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.layers(inputs) + self.short_cut(inputs)
        return outputs


def scale_channels(size: int, factor: float) -> int:
    """Scales a number of channels by a factor; the result is at least one."""
    return max(1, round(size * factor))


def initialize(module: nn.Module) -> nn.Module:
    """Initializes plain convolutions as in the published code: normal, with variance 2 / (kernel · outputs)."""
    for part in module.modules():
        if isinstance(part, nn.Conv2d):
            nn.init.normal_(part.weight, 0.0, math.sqrt(2 / (math.prod(part.kernel_size) * part.out_channels)))
    return module


def _with_norm(layer: nn.Module, channels: int) -> tuple[nn.Module, nn.Module]:
    return layer, nn.BatchNorm2d(channels)
