"""Taskonomy (Zamir et al. 2018) as in the paper: five dense prediction tasks on photographs of rooms."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from tagalong.errors import InvalidInput, did_you_mean, first_few, is_integer, pluralize, require_package
from tagalong.learn import PARTS, THREADS, Problem, Recipe, StreamedRows, Task

from .taskonomy_network import Decoders, Xception
from .views import CLASS_COUNT, DOMAINS, RGB, ViewReader, find_folders, find_views


def absolute_error(outputs: Tensor, targets: Tensor) -> Tensor:
    """Returns the absolute error of each pixel."""
    return (outputs - targets).abs()


def rotated_error(outputs: Tensor, targets: Tensor) -> Tensor:
    """Returns the mean absolute error of each row, minimized over shifts of the outputs by at most one pixel.

    The published code calls this "loss rotation". The shifts are needed because labels rendered from meshes can be off
    by a pixel. As in the published code, unknown pixels (where the last channel of the targets is 0) have an error of
    0.

    Args:
        outputs: the predictions [rows, channels, side, side].
        targets: the targets [rows, channels + 1, side, side].

    Example:
        >>> outputs, targets = torch.zeros(1, 1, 6, 6), torch.zeros(1, 2, 6, 6)
        >>> outputs[:, :, 2:4, 2:4], targets[:, 0, 1:3, 1:3], targets[:, 1] = 1.0, 1.0, 1.0
        >>> rotated_error(outputs, targets)
        tensor([0.])
    """
    inner = targets[:, :, 1:-1, 1:-1]
    values, mask = inner[:, :-1], inner[:, -1:]
    high, wide = inner.shape[-2:]
    places = (outputs[:, :, i : i + high, j : j + wide] for i in range(3) for j in range(3))
    errors = [((place - values).abs() * mask).mean((1, 2, 3)) for place in places]
    return torch.stack(errors).min(0).values


TASKS = (
    Task("segmentation", "multiclass", classes=CLASS_COUNT, error="loss"),
    Task("depth", "custom", outputs=1, loss=rotated_error),
    Task("normals", "custom", outputs=3, loss=rotated_error),
    Task("edges", "custom", outputs=1, loss=absolute_error),
    Task("keypoints", "custom", outputs=1, loss=absolute_error),
)
TASKONOMY_RECIPE = Recipe(
    optimizer="sgd",
    lr=0.1,
    momentum=0.9,
    weight_decay=1e-4,
    batch_size=96,
    epochs=100,
    patience=None,
    schedule="windows",
    window=500_000,
    factor=0.5,
)
SIZES: dict[str, dict[str, Any]] = {
    "small": {"pixels": 64, "channels": 1 / 16},
    "full": {"pixels": 256, "channels": 1.0},
}
RECIPES = {"small": replace(TASKONOMY_RECIPE, lr=0.02, batch_size=4, epochs=3, window=12), "full": TASKONOMY_RECIPE}
MIN_PIXELS, PIXEL_STEP = 32, 16
VIEWS_TO_TRY = 100  # views of each split that are read before training, to find out whether every task has labels


def taskonomy(
    data: str | os.PathLike[str] | None = None,
    lists: str | os.PathLike[str] | None = None,
    tasks: Sequence[str] | str | None = None,
    size: Literal["small", "full"] = "full",
    pixels: int | None = None,
    channels: float | None = None,
    per_building: int | None = 1000,
    recipe: Recipe | None = None,
) -> Problem:
    """Loads Taskonomy: segmentation, depth, normals, 2D edges and 2D keypoints of rooms.

    Images are read during training. If an image is damaged, its view counts as unlabeled, and `run.log` names it.

    Args:
        data: the folder with the downloaded images, with the layout DATA/DOMAIN/BUILDING or DATA/BUILDING/DOMAIN. This
            function does not download anything.
        lists: the folder that contains the lists of buildings, `train_models.txt`, `val_models.txt` and
            `test_models.txt`, with one building per line. Defaults to `data`.
        tasks: one or more of the five tasks, as a list or a comma-separated string. Only the images for these tasks are
            read. Defaults to all tasks.
        size: "full" uses the paper's network and recipe with 256 pixels. "small" uses a narrow network with 64 pixels,
            which trains in seconds.
        pixels: the width and height of the images, a multiple of 16. Larger images are downsampled.
        channels: a multiplier for the number of channels in the encoder and the decoders.
        per_building: the maximum number of images per building for validation and test. If None, all images are used.
        recipe: the training recipe. Defaults to the paper's recipe, or to a quick recipe if `size` is "small".

    Raises:
        ValueError: If the folder, the lists or the options are invalid.
        ImportError: If Pillow is not installed.
    """
    require_package("the problem 'taskonomy'", "PIL", "tagalong[images]")
    if data is None:
        raise InvalidInput("data", "must be the folder with the Taskonomy images", "None", "download them first")
    if size not in SIZES:
        raise InvalidInput("size", "must be 'small' or 'full'", repr(size))
    pixels = SIZES[size]["pixels"] if pixels is None else pixels
    channels = SIZES[size]["channels"] if channels is None else channels
    if not is_integer(pixels, MIN_PIXELS) or pixels % PIXEL_STEP:
        raise InvalidInput("pixels", f"must be a multiple of {PIXEL_STEP} and at least {MIN_PIXELS}", repr(pixels))
    known = [task.name for task in TASKS]
    names = known if tasks is None else [name.strip() for name in tasks.split(",")] if isinstance(tasks, str) else tasks
    for name in names:
        if name not in known:
            raise InvalidInput("tasks", "must contain only Taskonomy tasks", repr(name), did_you_mean(name, known))
    chosen = tuple(name for name in known if name in names)
    # Normals also require depth, which shows where they are valid.
    needed = {*chosen, "depth"} if "normals" in chosen else set(chosen)
    domains = [RGB, *(domain for task, domain in DOMAINS.items() if task in needed)]
    listed = read_lists(Path(str(data if lists is None else lists)))
    folder = find_folders(Path(str(data)), listed["train"][0])
    rows, sizes, notes = {}, [], []
    for part, buildings in listed.items():
        with ThreadPoolExecutor(THREADS) as pool:
            views, incomplete, digests = zip(
                *pool.map(lambda name: find_views(folder, name, domains), buildings), strict=True
            )
        if sum(incomplete):
            notes.append(f"{part}: images skipped: {sum(incomplete)} without an image of every domain")
        kept = [names if part == "train" else names[:per_building] for names in views]
        named = [(building, view) for building, names in zip(buildings, kept, strict=True) for view in names]
        reader = ViewReader(folder, named, chosen, pixels, b"".join(digests))
        check_labels(part, reader)
        groups = torch.repeat_interleave(torch.tensor(list(map(len, kept))))  # the building of each row
        rows[part] = StreamedRows(reader, chosen, groups, at_once=16)
        sizes.append(f"{part} {pluralize(len(named), 'image')} of {pluralize(len(buildings), 'building')}")
    if per_building is not None:
        images = pluralize(per_building, "image")
        notes.insert(0, f"for validation and test, only the first {images} of each building")
    return Problem(
        "taskonomy",
        tuple(task for task in TASKS if task.name in chosen),
        rows["train"],
        rows["val"],
        rows["test"],
        encoder=Xception(channels),
        head=Decoders(channels),
        recipe=recipe or RECIPES[size],
        notes=(f"read from files: {'; '.join(sizes)}", *notes),
    )


def read_lists(folder: Path) -> dict[str, list[str]]:
    """Reads the names of the buildings for training, validation and test. Comments start with #."""
    texts = {part: (folder / f"{part}_models.txt").read_text(encoding="utf-8-sig") for part in PARTS}
    lists = {part: re.findall(r"^\s*([^\s#]+)", text, re.MULTILINE) for part, text in texts.items()}
    counts = Counter(name for names in lists.values() for name in names)
    if repeated := [name for name, times in counts.items() if times > 1]:
        raise InvalidInput("lists", "must name each building only once", f"{first_few(repeated)} more than once")
    return lists


def check_labels(part: str, reader: ViewReader) -> None:
    """Checks that every task has labels, by reading views from all buildings until one has been found for each task.

    Raises:
        InvalidInput: If a task has no labels.
    """
    unlabeled = list(reader.tasks)
    for row in np.linspace(0, len(reader) - 1, min(len(reader), VIEWS_TO_TRY)).astype(int).tolist():
        _, targets = reader.read(row, unlabeled, None)
        unlabeled = [task for task in unlabeled if not targets[task].isfinite().any()]
        if not unlabeled:
            return
    found = "; ".join([f"no labels of {', '.join(unlabeled)}", *sorted(reader.damaged)[:1]])
    raise InvalidInput("data", f"must have labels for every task in {part}", found)
