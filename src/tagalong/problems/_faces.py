"""Faces that are drawn, not photographed: the nine attributes of the paper, at any size, without a download."""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch
from torch import nn

from tagalong._names import refuse
from tagalong.learn import Problem, Recipe, Task
from tagalong.learn._arrays import problem_from_arrays
from tagalong.learn._seeds import derived

from ._attributes import draw_attributes, mislabelled
from ._drawing import draw_faces


class SmallCNN:
    """Makes encoders of convolutions: each stage halves the image, until four pixels or so are left.

    Args:
        pixels: of a side of the image.
        channels: after the first stage; they double with each stage, up to four times.
        whole: whether images come as whole numbers from 0 to 255.
    """

    def __init__(self, pixels: int, channels: int = 8, whole: bool = False) -> None:
        self.pixels, self.channels, self.whole = pixels, channels, whole

    def __call__(self, width: float = 1.0) -> nn.Module:
        layers: list[nn.Module] = [Centred()] if self.whole else []
        size, side, stage = 3, self.pixels, 0
        while side >= 8 or stage == 0:
            wide = max(1, round(self.channels * min(2**stage, 4) * width))
            layers += [
                nn.Conv2d(size, wide, 3, padding=1, bias=False),
                nn.BatchNorm2d(wide),
                nn.ReLU(),
                nn.MaxPool2d(2),
            ]
            size, side, stage = wide, side // 2, stage + 1
        return nn.Sequential(*layers, nn.Flatten())

    def __repr__(self) -> str:
        return f"SmallCNN({self.pixels}, channels={self.channels}, whole={self.whole})"


class Centred(nn.Module):
    """Whole numbers from 0 to 255 as numbers around zero."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return images.float() / 127.5 - 1


def faces(
    rows: int = 2000,
    pixels: int = 16,
    noise: float = 0.02,
    channels: int = 8,
    dtype: Literal["float32", "uint8"] = "float32",
    seed: int = 0,
    recipe: Recipe | None = None,
) -> Problem:
    """Nine attributes of drawn faces: hair colour, kinds of beard, cheeks, hat.

    Labels depend on each other as in photographs (beards exclude "no beard", most are men's; hair has one colour or
    another); skin, light, place, tilt and background vary and mean nothing.

    Args:
        rows: how many faces.
        pixels: of a side; at least 8.
        noise: the share of wrong labels of an attribute that is as often there as not; rarer ones have fewer.
        channels: of the encoder's first stage.
        dtype: "float32" from -1 to 1, or "uint8", a quarter of the memory.
        seed: of everything that is drawn, the split included.
        recipe: how to train; None: a quick one.
    """
    problems = []
    if not isinstance(rows, int) or rows < 100:
        problems.append(f"`rows` must be a whole number from 100, found {rows!r}")
    if not isinstance(pixels, int) or pixels < 8:
        problems.append(f"`pixels` must be a whole number from 8, found {pixels!r}")
    if not 0 <= noise <= 0.25:
        problems.append(f"`noise` must be a share from 0 to 0.25, found {noise!r}")
    if dtype not in ("float32", "uint8"):
        problems.append(f"`dtype` must be 'float32' or 'uint8', found {dtype!r}")
    refuse(problems)
    random = np.random.default_rng(derived(seed, "faces"))
    attributes, man, skin = draw_attributes(rows, random)
    images = torch.from_numpy(draw_faces(attributes, man, skin, pixels, random))
    labels = mislabelled(attributes, noise, random)
    return problem_from_arrays(
        Centred()(images) if dtype == "float32" else images,
        {name: flags.astype(np.float64) for name, flags in labels.items()},
        [Task(name) for name in labels],
        name="faces",
        encoder=SmallCNN(pixels, channels, whole=dtype == "uint8"),
        recipe=recipe or Recipe(lr=2e-2, batch_size=256, epochs=15, patience=3),
        seed=seed,
        notes=[f"drawn: {rows} faces of {pixels} pixels, {noise:.0%} label noise"],
    )
