"""Faces that are drawn, not photographed: the nine attributes of the paper, at any size, without a download."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import torch
from torch import nn

from tagalong.errors import refuse
from tagalong.learn import Encoder, Problem, Recipe, Task, derive_seed

from .celeba_net import PAPER_RECIPE, CelebANet, Centred
from .faces_drawing import draw_attributes, draw_faces, mislabelled

SIZES: dict[str, dict[str, Any]] = {
    "quick": {"rows": 2000, "pixels": 16, "channels": 8, "dtype": "float32"},
    "small": {"rows": 400, "pixels": 12, "channels": 4, "dtype": "float32"},
    "full": {"rows": 60_000, "pixels": 64, "channels": 64, "dtype": "uint8"},
}
FACES_RECIPES = {
    "quick": Recipe(lr=2e-2, batch_size=256, epochs=15, patience=3),
    "small": replace(PAPER_RECIPE, lr=2e-2, batch_size=40, epochs=4, patience=2, period=2),
    "full": PAPER_RECIPE,
}
LEAST = {"rows": 100, "pixels": 8, "channels": 1}


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
    """Nine attributes of drawn faces: hair colour, kinds of beard, cheeks, hat.

    Labels depend on each other as in photographs (beards exclude "no beard", most are men's; hair has one colour or
    another); skin, light, place, tilt and background vary and mean nothing.

    Args:
        rows: how many faces; 2000 unless `size` says otherwise.
        pixels: of a side; at least 8; 16 unless `size` says otherwise.
        noise: the share of wrong labels of an attribute that is as often there as not; rarer ones have fewer.
        channels: of the encoder's first stage; 8 unless `size` says otherwise.
        dtype: "float32" from -1 to 1, or "uint8", a quarter of the memory.
        seed: of everything that is drawn, the split included.
        recipe: how to train; None: a quick one, with a `size` the paper's.
        size: "full": the paper's CelebA network, recipe and heads (softmax over two outputs) on 60,000 faces of 64
            pixels; "small": the same in seconds, 400 faces of 12 pixels and 4 channels. None: a quick encoder.
    """
    if size not in (None, "small", "full"):
        raise ValueError(f"`size` must be 'small' or 'full', or be left out, found {size!r}")
    given = {"rows": rows, "pixels": pixels, "channels": channels, "dtype": dtype}
    chosen = SIZES[size or "quick"] | {name: value for name, value in given.items() if value is not None}
    refuse(_problems(chosen, noise, seed))
    random = np.random.default_rng(derive_seed(seed, "faces"))
    attributes, man, skin = draw_attributes(chosen["rows"], random)
    images = torch.from_numpy(draw_faces(attributes, man, skin, chosen["pixels"], random))
    labels = mislabelled(attributes, noise, random)
    whole = chosen["dtype"] == "uint8"
    return Problem.from_arrays(
        images if whole else Centred()(images),
        {name: flags.astype(np.float64) for name, flags in labels.items()},
        [Task(name, "multiclass", classes=2) if size else Task(name) for name in labels],
        name="faces",
        encoder=_encoder(size, chosen, whole),
        recipe=recipe or FACES_RECIPES[size or "quick"],
        seed=seed,
        notes=[f"drawn: {chosen['rows']} faces of {chosen['pixels']} pixels, {noise:.0%} label noise"],
    )


def _problems(chosen: Mapping[str, Any], noise: Any, seed: Any) -> list[str]:
    problems = [
        f"`{name}` must be a whole number from {least}, found {chosen[name]!r}"
        for name, least in LEAST.items()
        if not isinstance(chosen[name], int) or chosen[name] < least
    ]
    if not isinstance(noise, (int, float)) or not 0 <= noise <= 0.25:
        problems.append(f"`noise` must be a share from 0 to 0.25, found {noise!r}")
    if chosen["dtype"] not in ("float32", "uint8"):
        problems.append(f"`dtype` must be 'float32' or 'uint8', found {chosen['dtype']!r}")
    if not isinstance(seed, int):
        problems.append(f"`seed` must be a whole number, found {seed!r}")
    return problems


def _encoder(size: str | None, chosen: Mapping[str, Any], whole: bool) -> Encoder:
    pixels, channels = chosen["pixels"], chosen["channels"]
    if size is None:
        return SmallCNN(pixels, channels, whole=whole)
    # with Keras's 0.01 BatchNorm would take hundreds of steps to know its inputs, and be judged before
    return CelebANet(channels, whole, memory=0.1, channels_last=size == "full")


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
