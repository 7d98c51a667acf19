"""Drawn faces with the paper's nine CelebA attributes. No download is needed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

import numpy as np
import torch
from torch import nn

from tagalong.errors import InvalidInput, is_integer, is_number
from tagalong.learn import Encoder, ModuleFactory, Problem, Recipe, Task, derive_seed

from .celeba_net import PAPER_RECIPE, CelebANet, Centred
from .faces_drawing import add_label_noise, draw_attributes, draw_faces

SIZES: dict[str, dict[str, Any]] = {
    "quick": {"rows": 2000, "pixels": 16, "channels": 8, "dtype": "float32"},
    "small": {"rows": 400, "pixels": 12, "channels": 4, "dtype": "float32"},
    "full": {"rows": 60_000, "pixels": 64, "channels": 64, "dtype": "uint8"},
}
FACES_RECIPES = {
    "quick": Recipe(lr=5e-3, batch_size=256, epochs=80, patience=5),
    "small": replace(PAPER_RECIPE, lr=2e-2, batch_size=40, epochs=4, patience=2, period=2),
    "full": PAPER_RECIPE,
}
MIN_VALUES = {"rows": 100, "pixels": 8, "channels": 1}


def faces(
    rows: int | None = None,
    pixels: int | None = None,
    noise: float = 0.02,
    channels: int | None = None,
    dtype: Literal["float32", "uint8"] | None = None,
    seed: int = 0,
    recipe: Recipe | None = None,
    size: Literal["small", "full"] | None = None,
) -> Problem:
    """Drawn faces with nine attributes: hair color, facial hair, rosy cheeks and hats.

    Attributes depend on each other, as they do in photographs. For example, a face with a beard cannot have "No_Beard",
    most bearded faces are male, and hair has only one color. Skin, lighting, position, tilt and background vary at
    random.

    Args:
        rows: the number of faces. The default is 2000 unless `size` is given.
        pixels: the width and height of an image, at least 8. The default is 16 unless `size` is given.
        noise: the fraction of wrong labels for an attribute that half of the faces have. Rarer attributes have fewer
            wrong labels.
        channels: the number of channels in the encoder's first stage. The default is 8 unless `size` is given.
        dtype: "float32" for pixels from -1 to 1, or "uint8" to use a quarter of the memory.
        seed: the seed for the faces and the split.
        recipe: the training recipe. The default is a quick recipe, or one based on the paper's if `size` is given.
        size: "full" uses the paper's CelebA network, recipe and heads (softmax over two outputs) on 60,000 faces of
            64×64 pixels. "small" is the same with 400 faces of 12×12 pixels and 4 channels, and trains in seconds. If
            None, a quick encoder is used.
    """
    if size not in (None, "small", "full"):
        raise InvalidInput("size", "must be 'small', 'full' or None", repr(size))
    given = {"rows": rows, "pixels": pixels, "channels": channels, "dtype": dtype}
    settings = SIZES[size or "quick"] | {name: value for name, value in given.items() if value is not None}
    for name, minimum in MIN_VALUES.items():
        if not is_integer(settings[name], minimum):
            raise InvalidInput(name, f"must be an integer ≥ {minimum}", repr(settings[name]))
    if not is_integer(seed):
        raise InvalidInput("seed", "must be an integer", repr(seed))
    if not (is_number(noise) and 0 <= noise <= 0.25):
        raise InvalidInput("noise", "must be between 0 and 0.25", repr(noise))
    if settings["dtype"] not in ("float32", "uint8"):
        raise InvalidInput("dtype", "must be 'float32' or 'uint8'", repr(settings["dtype"]))
    if not is_integer(seed):
        raise InvalidInput("seed", "must be an integer", repr(seed))

    random = np.random.default_rng(derive_seed(seed, "faces"))
    attributes, man, skin = draw_attributes(settings["rows"], random)
    images = torch.from_numpy(draw_faces(attributes, man, skin, settings["pixels"], random))
    labels = add_label_noise(attributes, noise, random)
    uint8, channels = settings["dtype"] == "uint8", settings["channels"]
    encoder: Encoder = SmallCNN(settings["pixels"], channels, uint8)
    if size:
        # With Keras's 0.01, BatchNorm's statistics would need hundreds of steps, more than the first epoch has.
        encoder = CelebANet(channels, uint8, momentum=0.1, channels_last=size == "full")
    return Problem.from_arrays(
        images if uint8 else Centred()(images),
        {name: flags.astype(np.float64) for name, flags in labels.items()},
        [Task(name, "multiclass", classes=2) if size else Task(name) for name in labels],
        name="faces",
        encoder=encoder,
        recipe=recipe or FACES_RECIPES[size or "quick"],
        seed=seed,
        notes=[f"drawn: {settings['rows']} faces of {settings['pixels']} pixels, {noise:.0%} label noise"],
    )


class SmallCNN(ModuleFactory):
    """Creates convolutional encoders. Each stage halves the image size, down to about 4×4 pixels.

    Args:
        pixels: the width and height of an image.
        channels: the number of channels in the first stage. The number doubles with each stage, up to four times this
            value.
        uint8: whether images are integers from 0 to 255 rather than floats from -1 to 1.
    """

    def __init__(self, pixels: int, channels: int = 8, uint8: bool = False) -> None:
        self.pixels, self.channels, self.uint8 = pixels, channels, uint8

    def __call__(self, width: float = 1.0) -> nn.Module:
        layers: list[nn.Module] = [Centred()] if self.uint8 else []
        inputs, side, stage = 3, self.pixels, 0
        while side >= 8 or stage == 0:
            outputs = max(1, round(self.channels * min(2**stage, 4) * width))
            layers += [
                nn.Conv2d(inputs, outputs, 3, padding=1, bias=False),
                nn.BatchNorm2d(outputs),
                nn.ReLU(),
                nn.MaxPool2d(2),
            ]
            inputs, side, stage = outputs, side // 2, stage + 1
        return nn.Sequential(*layers, nn.Flatten())

    def __repr__(self) -> str:
        return f"SmallCNN({self.pixels}, channels={self.channels}, uint8={self.uint8})"
