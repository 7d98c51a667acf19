"""The paper's network for CelebA, described as "loosely ResNet 18" but published with a single residual block."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from tagalong.learn import ModuleFactory, Recipe

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


class CelebANet(ModuleFactory):
    """Builds the paper's encoder for images of 64×64 pixels. Other sizes work too.

    It consists of a 3×3 convolution, BatchNorm, ReLU, max pooling (3, stride 2), a residual block of two 3×3
    convolutions, average pooling (2), and flattening. With 64 channels and 64×64 pixels, it outputs 14,400 features.

    Args:
        channels: the number of channels in each convolution, before multiplying by `width`.
        uint8: whether images are integers from 0 to 255 rather than floats from -1 to 1.
        momentum: the momentum of BatchNorm's running statistics. Keras's default corresponds to 0.01.
        channels_last: whether to use the `torch.channels_last` memory format, which is almost twice as fast on GPUs.
            Networks in this format are trained one at a time, which is no slower for images of this size.

    Example:
        >>> import torch
        >>> CelebANet()()(torch.zeros(2, 3, 64, 64)).shape
        torch.Size([2, 14400])
    """

    def __init__(
        self, channels: int = 64, uint8: bool = False, momentum: float = 0.01, channels_last: bool = False
    ) -> None:
        self.channels, self.uint8, self.momentum, self.channels_last = channels, uint8, momentum, channels_last

    def __call__(self, width: float = 1.0) -> nn.Module:
        channels = max(1, round(self.channels * width))
        encoder = nn.Sequential(
            *([Centred()] if self.uint8 else []),
            _convolution(3, channels),
            self._batch_norm(channels),
            nn.ReLU(),
            nn.MaxPool2d(3, 2),
            Residual(
                _convolution(channels, channels),
                self._batch_norm(channels),
                nn.ReLU(),
                _convolution(channels, channels),
                self._batch_norm(channels),
            ),
            nn.ReLU(),
            nn.AvgPool2d(2),
            nn.Flatten(),
        )
        if self.channels_last:
            encoder.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # missing in torch's stubs
        return encoder

    def _batch_norm(self, channels: int) -> nn.BatchNorm2d:
        return nn.BatchNorm2d(channels, eps=1e-3, momentum=self.momentum)

    def __repr__(self) -> str:
        last = ", channels_last=True" if self.channels_last else ""
        return f"CelebANet(channels={self.channels}, uint8={self.uint8}, momentum={self.momentum}{last})"


class Residual(nn.Sequential):
    """A sequence of layers with a skip connection, which adds their input to their output."""

    def forward(self, inputs: Tensor) -> Tensor:
        outputs = inputs
        for layer in self:
            outputs = layer(outputs)
        return inputs + outputs


class Centred(nn.Module):
    """Scales pixel values from [0, 255] to [-1, 1]."""

    def forward(self, images: Tensor) -> Tensor:
        return images.float() / 127.5 - 1


def _convolution(inputs: int, outputs: int) -> nn.Conv2d:
    convolution = nn.Conv2d(inputs, outputs, 3, padding=1, bias=False)
    nn.init.xavier_uniform_(convolution.weight)  # as in the published code
    return convolution
