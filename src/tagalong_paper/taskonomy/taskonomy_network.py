"""The Taskonomy network of Standley et al.: a modified Xception encoder with a small decoder for each task."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

from torch import Tensor, nn

from tagalong.learn import ModuleFactory, Task

ENTRY_CHANNELS, MIDDLE_CHANNELS, MIDDLE_BLOCKS, OUTPUT_CHANNELS = (32, 64, 128, 256), 728, 8, 512
DECODER_CHANNELS = (128, 64, 48, 32)


@dataclass(frozen=True)
class Xception(ModuleFactory):
    """Creates encoders with 512 output channels at 1/16 of the input resolution.

    The layers are two plain convolutions, three blocks of two separable convolutions that halve the resolution, eight
    blocks of three separable convolutions, and a final separable convolution with BatchNorm.

    Args:
        channels: a multiplier for the paper's number of channels. `width` is an additional multiplier, which does not
            affect the output channels.

    Example:
        >>> import torch
        >>> Xception(1 / 16)()(torch.zeros(2, 3, 64, 64, dtype=torch.uint8)).shape
        torch.Size([2, 32, 4, 4])
    """

    channels: float = 1.0

    def __call__(self, width: float = 1.0) -> nn.Module:
        first, second, *growing = (
            _scale_channels(size, self.channels * width) for size in (*ENTRY_CHANNELS, MIDDLE_CHANNELS)
        )
        encoder = nn.Sequential(
            Colours(),
            *_with_norm(nn.Conv2d(3, first, 3, 2, 1, bias=False), first),
            nn.ReLU(),
            *_with_norm(nn.Conv2d(first, second, 3, 1, 1, bias=False), second),
            nn.ReLU(),
            *(Block(a, b, 2, halve=True, rectified=n > 0) for n, (a, b) in enumerate(pairwise([second, *growing]))),
            *(Block(growing[-1], growing[-1], 3) for _ in range(MIDDLE_BLOCKS)),
            nn.ReLU(),
            *_with_norm(Separable(growing[-1], last := _scale_channels(OUTPUT_CHANNELS, self.channels)), last),
        )
        return initialize(encoder)


@dataclass(frozen=True)
class Decoders(ModuleFactory):
    """Creates decoders with four transposed convolutions, each of which doubles the resolution.

    Args:
        channels: a multiplier for the paper's number of channels.
    """

    channels: float = 1.0

    def __call__(self, task: Task, features: int) -> nn.Module:
        layers: list[nn.Module] = []
        sizes = [features, *(_scale_channels(size, self.channels) for size in DECODER_CHANNELS)]
        for place, (in_channels, out_channels) in enumerate(pairwise(sizes)):
            layers += [*_with_norm(nn.ConvTranspose2d(in_channels, out_channels, 2, 2), out_channels), nn.ReLU()]
            if place < len(DECODER_CHANNELS) - 1:
                layers += [*_with_norm(nn.Conv2d(out_channels, out_channels, 3, padding=1), out_channels), nn.ReLU()]
        return initialize(nn.Sequential(*layers, nn.Conv2d(sizes[-1], task.head_size, 3, padding=1)))


class Colours(nn.Module):
    """Scales pixel values from the range 0–255 to 0–1."""

    def forward(self, images: Tensor) -> Tensor:
        return images.float() / 255


class Separable(nn.Sequential):
    """A depthwise convolution followed by a pointwise convolution."""

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__(
            nn.Conv2d(in_channels, in_channels, 3, padding=1, groups=in_channels, bias=False),
            nn.Conv2d(in_channels, out_channels, 1, bias=False),
        )


class Block(nn.Module):
    """A block of separable convolutions with a skip connection.

    Args:
        in_channels: the number of input channels.
        out_channels: the number of output channels.
        convolutions: the number of separable convolutions.
        halve: whether a strided convolution halves the resolution.
        rectified: whether the block starts with a ReLU.
    """

    def __init__(
        self, in_channels: int, out_channels: int, convolutions: int, halve: bool = False, rectified: bool = True
    ) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for place in range(convolutions):
            layers += [
                nn.ReLU(),
                *_with_norm(Separable(out_channels if place else in_channels, out_channels), out_channels),
            ]
        layers += [nn.Conv2d(out_channels, out_channels, 2, 2)] if halve else []
        self.layers = nn.Sequential(*layers[0 if rectified else 1 :])
        self.short_cut: nn.Module = nn.Identity()
        if halve:
            convolution = nn.Conv2d(in_channels, out_channels, 1, 2, bias=False)
            self.short_cut = nn.Sequential(*_with_norm(convolution, out_channels))

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.layers(inputs) + self.short_cut(inputs)
        return outputs


def _scale_channels(size: int, factor: float) -> int:
    return max(1, round(size * factor))


def initialize(module: nn.Module) -> nn.Module:
    """Initializes convolutions as in the published code: normally distributed with variance 2 / (kernel · outputs)."""
    for part in module.modules():
        if isinstance(part, nn.Conv2d):
            nn.init.normal_(part.weight, 0.0, math.sqrt(2 / (math.prod(part.kernel_size) * part.out_channels)))
    return module


def _with_norm(layer: nn.Module, channels: int) -> tuple[nn.Module, nn.Module]:
    return layer, nn.BatchNorm2d(channels)
