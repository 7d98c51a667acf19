"""Standley's network for Taskonomy: a modified Xception encoder, and a small decoder for every task."""

from __future__ import annotations

import math
from itertools import pairwise

from torch import Tensor, nn

from tagalong.learn import Task

ENTRY, MIDDLE, BLOCKS, FEATURES = (32, 64, 128, 256), 728, 8, 512
DECODER = (128, 64, 48, 32)


class Xception:
    """Makes encoders of 512 channels at a sixteenth of the image's side.

    Two plain convolutions, three blocks of two separable convolutions that halve the image by strided ones, eight
    blocks of three separable convolutions, and a last separable convolution with BatchNorm that all decoders share.

    Args:
        channels: what the paper's channels are multiplied by; `width` multiplies all but the last ones again.

    Example:
        >>> import torch
        >>> Xception(1 / 16)()(torch.zeros(2, 3, 64, 64, dtype=torch.uint8)).shape
        torch.Size([2, 32, 4, 4])
    """

    def __init__(self, channels: float = 1.0) -> None:
        self.channels = channels

    def __call__(self, width: float = 1.0) -> nn.Module:
        first, second, *growing = (scaled(size, self.channels * width) for size in (*ENTRY, MIDDLE))
        made = nn.Sequential(
            Colours(),
            *_normed(nn.Conv2d(3, first, 3, 2, 1, bias=False), first),
            nn.ReLU(),
            *_normed(nn.Conv2d(first, second, 3, 1, 1, bias=False), second),
            nn.ReLU(),
            *(Block(a, b, 2, halve=True, rectified=n > 0) for n, (a, b) in enumerate(pairwise([second, *growing]))),
            *(Block(growing[-1], growing[-1], 3) for _ in range(BLOCKS)),
            nn.ReLU(),
            *_normed(Separable(growing[-1], last := scaled(FEATURES, self.channels)), last),
        )
        return initialised(made)

    def __repr__(self) -> str:
        return f"Xception(channels={self.channels:g})"


class Decoders:
    """Makes decoders: four times a transposed convolution that doubles the side, and a plain one.

    Args:
        channels: what the paper's channels are multiplied by.
    """

    def __init__(self, channels: float = 1.0) -> None:
        self.channels = channels

    def __call__(self, task: Task, features: int) -> nn.Module:
        layers: list[nn.Module] = []
        sizes = [features, *(scaled(size, self.channels) for size in DECODER)]
        for place, (before, after) in enumerate(pairwise(sizes)):
            layers += [*_normed(nn.ConvTranspose2d(before, after, 2, 2), after), nn.ReLU()]
            if place < len(DECODER) - 1:
                layers += [*_normed(nn.Conv2d(after, after, 3, padding=1), after), nn.ReLU()]
        return initialised(nn.Sequential(*layers, nn.Conv2d(sizes[-1], task.head_size, 3, padding=1)))

    def __repr__(self) -> str:
        return f"Decoders(channels={self.channels:g})"


class Colours(nn.Module):
    """Whole numbers from 0 to 255 as numbers from 0 to 1."""

    def forward(self, images: Tensor) -> Tensor:
        return images.float() / 255


class Separable(nn.Sequential):
    """A convolution of each channel by itself, then one of all channels at each place."""

    def __init__(self, before: int, after: int) -> None:
        super().__init__(
            nn.Conv2d(before, before, 3, padding=1, groups=before, bias=False), nn.Conv2d(before, after, 1, bias=False)
        )


class Block(nn.Module):
    """Separable convolutions beside a short cut.

    Args:
        before: channels that come in.
        after: channels that go out.
        convolutions: how many.
        halve: whether a strided convolution halves the side.
        rectified: whether a ReLU comes first.
    """

    def __init__(self, before: int, after: int, convolutions: int, halve: bool = False, rectified: bool = True) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for place in range(convolutions):
            layers += [nn.ReLU(), *_normed(Separable(after if place else before, after), after)]
        layers += [nn.Conv2d(after, after, 2, 2)] if halve else []
        self.layers = nn.Sequential(*layers[0 if rectified else 1 :])
        shortened = halve or before != after
        self.short_cut = (
            nn.Sequential(*_normed(nn.Conv2d(before, after, 1, 2 if halve else 1, bias=False), after))
            if shortened
            else nn.Identity()
        )

    def forward(self, inputs: Tensor) -> Tensor:
        changed: Tensor = self.layers(inputs) + self.short_cut(inputs)
        return changed


def scaled(size: int, factor: float) -> int:
    """So many channels times a factor, at least one."""
    return max(1, round(size * factor))


def initialised(module: nn.Module) -> nn.Module:
    """Plain convolutions start as in the published code: normal, with a variance of 2 / (kernel · outputs)."""
    for part in module.modules():
        if isinstance(part, nn.Conv2d):
            nn.init.normal_(part.weight, 0.0, math.sqrt(2 / (math.prod(part.kernel_size) * part.out_channels)))
    return module


def _normed(layer: nn.Module, channels: int) -> tuple[nn.Module, nn.Module]:
    return layer, nn.BatchNorm2d(channels)
