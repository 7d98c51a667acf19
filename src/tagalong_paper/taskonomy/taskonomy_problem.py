"""Taskonomy (Zamir et al. 2018) as in the paper: five dense prediction tasks on photographs of rooms."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from tagalong.errors import (
    InvalidInput,
    as_names,
    collect,
    did_you_mean,
    first_few,
    pluralize,
    raise_problems,
    require_package,
)
from tagalong.files import CACHE, make_folder
from tagalong.learn import PARTS, Problem, Recipe, StreamedRows, Task
from tagalong.progress import NoProgress, Progress

from .images import CLASS_COUNT, ViewReader, drop_undecodable
from .taskonomy_files import (
    MAX_NAMED,
    Building,
    Folders,
    Lists,
    Views,
    find_folders,
    open_building,
    read_lists,
    required_domains,
    usable_views,
)
from .taskonomy_network import Decoders, Xception

SHIFTS = [(down, right) for down in range(3) for right in range(3)]


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
    values, known = inner[:, :-1], inner[:, -1:]
    high, wide = inner.shape[-2:]
    places = (outputs[:, :, down : down + high, right : right + wide] for down, right in SHIFTS)
    errors = [((place - values).abs() * known).mean((1, 2, 3)) for place in places]
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
CHECKS = ("header", "decode")
HEADER_NOTE = "only image headers were checked; other damage is counted when images are read, or use check=decode"


def taskonomy(
    data: str | os.PathLike[str] | None = None,
    lists: str | os.PathLike[str] | None = None,
    tasks: Sequence[str] | str | None = None,
    size: Literal["small", "full"] = "full",
    pixels: int | None = None,
    channels: float | None = None,
    per_building: int | None = 1000,
    check: Literal["header", "decode"] = "header",
    cache: str | os.PathLike[str] | None = None,
    recipe: Recipe | None = None,
    progress: Progress | None = None,
) -> Problem:
    """Loads Taskonomy: segmentation, depth, normals, 2D edges and 2D keypoints of rooms.

    Images are read during training.

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
        check: how to check images before training. Damaged images are skipped and counted. "header" reads only the
            first and last bytes of each image. Views with other damage are logged when they are read, and have no
            labels. "decode" decodes all images once, which takes as long as reading them for one epoch.
        cache: the folder for the results of `check="decode"`. Defaults to `tagalong-cache` in `data`.
        recipe: the training recipe. Defaults to the paper's recipe, or to a quick recipe if `size` is "small".
        progress: reports progress while images are decoded.

    Raises:
        ValueError: If the folder, the lists or the options are invalid.
        ImportError: If Pillow is not installed.
    """
    require_package("the problem 'taskonomy'", "PIL", "tagalong[images]")
    chosen = _choose_tasks(tasks)
    given = {"pixels": pixels, "channels": channels}
    _check_options(data, chosen, size, per_building, {**given, "check": check})
    settings = SIZES[size] | {name: value for name, value in given.items() if value is not None}
    domains = required_domains(chosen)
    place = Path(str(data))
    folders = find_folders(place, domains)
    found = read_lists(place if lists is None else Path(str(lists)))
    buildings = _open_buildings(found, folders, domains)
    views = {
        part: usable_views(buildings[part], domains, settings["pixels"], None if part == "train" else per_building)
        for part in PARTS
    }
    check_views(views)
    readers = {part: ViewReader(views[part], chosen, settings["pixels"]) for part in PARTS}
    flaws = {part: reader.find_systematic_flaw() for part, reader in readers.items()}
    raise_problems(
        [InvalidInput("`data`:", f"{part} must have readable images", flaw) for part, flaw in flaws.items() if flaw]
    )
    if check == "decode":
        readers = _decode_all(readers, place / CACHE if cache is None else Path(str(cache)), progress or NoProgress())
        views = {part: reader.views for part, reader in readers.items()}
    check_labels({part: reader.unlabeled_tasks() for part, reader in readers.items()})
    rows = {part: _streamed_rows(reader) for part, reader in readers.items()}
    return Problem(
        "taskonomy",
        tuple(task for task in TASKS if task.name in chosen),
        rows["train"],
        rows["val"],
        rows["test"],
        encoder=Xception(settings["channels"]),
        head=Decoders(settings["channels"]),
        recipe=recipe or RECIPES[size],
        notes=(*view_notes(views, found, folders, per_building), *([HEADER_NOTE] if check == "header" else [])),
    )


def _choose_tasks(tasks: Sequence[str] | str | None) -> tuple[str, ...]:
    known = tuple(task.name for task in TASKS)
    if tasks is None:
        return known
    chosen = tuple(map(str.strip, tasks.split(","))) if isinstance(tasks, str) else as_names(tasks)
    unknown = [name for name in chosen if name not in known]
    raise_problems(
        [
            InvalidInput("tasks", "must contain only Taskonomy tasks", repr(name), did_you_mean(name, known))
            for name in unknown
        ]
    )
    return tuple(name for name in known if name in chosen)


def _check_options(data: Any, tasks: Sequence[str], size: Any, per_building: Any, options: dict[str, Any]) -> None:
    problems = []
    if data is None:
        hint = "download them first"
        problems.append(InvalidInput("data", "must be the folder with the Taskonomy images", "None", hint))
    if not tasks:
        problems.append(InvalidInput("tasks", "must name at least one task", "none"))
    if size not in SIZES:
        problems.append(InvalidInput("size", "must be 'small' or 'full'", repr(size)))
    pixels, channels = options["pixels"], options["channels"]
    if pixels is not None and (not isinstance(pixels, int) or pixels < MIN_PIXELS or pixels % PIXEL_STEP):
        multiple = f"must be a multiple of {PIXEL_STEP} and at least {MIN_PIXELS}"
        problems.append(InvalidInput("pixels", multiple, repr(pixels)))
    if channels is not None and (not isinstance(channels, (int, float)) or not 0 < channels < float("inf")):
        problems.append(InvalidInput("channels", "must be a positive number", repr(channels)))
    if per_building is not None and (not isinstance(per_building, int) or per_building < 1):
        expected = "must be a positive integer, or None for all images"
        problems.append(InvalidInput("per_building", expected, repr(per_building)))
    if options["check"] not in CHECKS:
        problems.append(InvalidInput("check", "must be 'header' or 'decode'", repr(options["check"])))
    raise_problems(problems)


def _open_buildings(lists: Lists, folders: Mapping[str, Folders], domains: Sequence[str]) -> dict[str, list[Building]]:
    """Opens the buildings in each list. Reports all problems in one error, with the first few in detail."""
    problems: list[InvalidInput] = []
    flaws: list[InvalidInput] = []
    opened: dict[str, list[Building]] = {part: [] for part in PARTS}
    for part, names in lists.items():
        missing = [name for name in names if name not in folders]
        if missing:
            expected = f"{part} must name buildings that are in `data`"
            problems.append(InvalidInput("`lists`:", expected, first_few(list(map(repr, missing)))))
        for name in names:
            building = collect(flaws, open_building, name, folders[name], domains) if name in folders else None
            if building is not None:
                opened[part].append(building)
    left_out = len(flaws) - MAX_NAMED
    more = (
        [InvalidInput("`data`:", f"there are similar problems in {pluralize(left_out, 'more building')}")]
        if left_out > 0
        else []
    )
    raise_problems([*problems, *flaws[:MAX_NAMED], *more])
    return opened


def _decode_all(readers: Mapping[str, ViewReader], folder: Path, progress: Progress) -> dict[str, ViewReader]:
    make_folder(folder)
    found = {part: drop_undecodable(reader, folder, progress) for part, reader in readers.items()}
    check_views({part: reader.views for part, reader in found.items()})
    return found


def _streamed_rows(reader: ViewReader) -> StreamedRows:
    return StreamedRows(reader, reader.tasks, torch.from_numpy(reader.views.building.astype(np.int64)), at_once=16)


def check_views(views: Mapping[str, Views]) -> None:
    """Checks that every split has a usable view.

    Raises:
        ValueError: If a split has no usable views. The message says why views were skipped.
    """
    empty = {part: found for part, found in views.items() if not len(found)}
    raise_problems(
        [
            InvalidInput("`data`:", f"{part} must have usable images", f"none: {_format_skipped(found)}")
            for part, found in empty.items()
        ]
    )


def check_labels(unlabeled: Mapping[str, Sequence[str]]) -> None:
    """Checks that every split has labels for every task.

    Args:
        unlabeled: the tasks without labels in each split.

    Raises:
        ValueError: If a task has no labels in a split.
    """
    raise_problems(
        [
            InvalidInput(
                "`data`:",
                f"{part} must have labels for every task",
                f"no labeled pixels for {', '.join(tasks)}",
                "add buildings to its list",
            )
            for part, tasks in unlabeled.items()
            if tasks
        ]
    )


def view_notes(
    views: Mapping[str, Views], lists: Lists, folders: Mapping[str, Folders], per_building: int | None
) -> tuple[str, ...]:
    """Returns notes on the number of views and buildings, including those that were skipped."""
    sizes = "; ".join(_format_size(part, v) for part, v in views.items())
    notes = [f"read from files: {sizes}"]
    if per_building is not None:
        notes.append(f"for validation and test, only the first {pluralize(per_building, 'image')} of each building")
    notes += [f"{part}: images skipped: {_format_skipped(v)}" for part, v in views.items() if v.skipped]
    notes += [
        f"{part}: buildings without a usable image: {', '.join(v.filtered)}" for part, v in views.items() if v.filtered
    ]
    unlisted = len(folders.keys() - {name for names in lists.values() for name in names})
    return (*notes, f"buildings in the folder that are in no list: {unlisted}") if unlisted else tuple(notes)


def _format_size(split: str, views: Views) -> str:
    return f"{split} {pluralize(len(views), 'image')} of {pluralize(len(views.buildings), 'building')}"


def _format_skipped(views: Views) -> str:
    return "; ".join(f"{number} {why}" for why, number in sorted(views.skipped.items())) or "no images"
