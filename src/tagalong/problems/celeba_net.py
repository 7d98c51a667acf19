"""The paper's network for CelebA: "loosely ResNet 18", in the published code one residual block."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from tagalong.learn import Recipe

PAPER_RECIPE = Recipe(
    optimizer="sgd",
    lr=5e-4,
    momentum=0.9,
    weight_decay=0.0,
    batch_size=256,
    epochs=100,
    patience=10,
    schedule="step",
    period=15,
    factor=0.5,
)


class CelebANet:
    """Makes the paper's encoders for images of 64 pixels; other sizes work too.

    A convolution 3×3, BatchNorm, ReLU, max-pooling (3, stride 2), one residual block of two such convolutions,
    average-pooling (2), and all of it flattened: 14,400 features for 64 channels and 64 pixels.

    Args:
        channels: of every convolution; `width` multiplies it.
        whole: whether images come as whole numbers from 0 to 255.
        memory: how much of a step BatchNorm's running statistics take over; 0.01 is Keras's.
        channels_last: whether weights are laid out so that GPUs are almost twice as fast; such networks are trained one
            by one, which for images of this size is no slower.

    Example:
        >>> import torch
        >>> CelebANet()()(torch.zeros(2, 3, 64, 64)).shape
        torch.Size([2, 14400])
    """

    def __init__(
        self, channels: int = 64, whole: bool = False, memory: float = 0.01, channels_last: bool = False
    ) -> None:
        self.channels, self.whole, self.memory, self.channels_last = channels, whole, memory, channels_last

    def __call__(self, width: float = 1.0) -> nn.Module:
        wide = max(1, round(self.channels * width))
        made = nn.Sequential(
            *([Centred()] if self.whole else []),
            _convolution(3, wide),
            self._norm(wide),
            nn.ReLU(),
            nn.MaxPool2d(3, 2),
            Residual(_convolution(wide, wide), self._norm(wide), nn.ReLU(), _convolution(wide, wide), self._norm(wide)),
            nn.ReLU(),
            nn.AvgPool2d(2),
            nn.Flatten(),
        )
        if self.channels_last:
            made.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # torch's stubs forget it
        return made

    def _norm(self, channels: int) -> nn.BatchNorm2d:
        return nn.BatchNorm2d(channels, eps=1e-3, momentum=self.memory)

    def __repr__(self) -> str:
        last = ", channels_last=True" if self.channels_last else ""
        return f"CelebANet(channels={self.channels}, whole={self.whole}, memory={self.memory}{last})"


class Residual(nn.Sequential):
    """Adds what the layers make of the inputs to the inputs."""

    def forward(self, inputs: Tensor) -> Tensor:
        changed = inputs
        for layer in self:
            changed = layer(changed)
        return inputs + changed


class Centred(nn.Module):
    """Whole numbers from 0 to 255 as numbers around zero."""

    def forward(self, images: Tensor) -> Tensor:
        return images.float() / 127.5 - 1


def _convolution(before: int, after: int) -> nn.Conv2d:
    made = nn.Conv2d(before, after, 3, padding=1, bias=False)
    nn.init.xavier_uniform_(made.weight)  # as the published code
    return made
