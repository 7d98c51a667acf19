"""Taskonomy (Zamir et al. 2018) as the paper uses it: five dense tasks on photographs of rooms."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from tagalong.errors import closest, counted, named, refuse, require
from tagalong.files import CACHE, make_folder
from tagalong.learn import PARTS, Problem, Recipe, StreamedRows, Task
from tagalong.progress import NoProgress, Progress

from .files import (
    MOST_NAMED,
    Building,
    Folders,
    Lists,
    Views,
    domains_of,
    find_folders,
    open_building,
    read_lists,
    some,
    usable_views,
)
from .images import CLASSES, ViewReader, decodable
from .network import Decoders, Xception

SHIFTS = [(down, right) for down in range(3) for right in range(3)]


def absolute_error(outputs: Tensor, targets: Tensor) -> Tensor:
    """Of every pixel."""
    return (outputs - targets).abs()


def rotated_error(outputs: Tensor, targets: Tensor) -> Tensor:
    """Of every row the mean absolute error at the best of nine places: outputs shifted by a pixel, or not at all.

    This is the published code's "loss rotation": labels made from meshes can lie a pixel beside the image. Unknown
    pixels (the last channel of the targets is 0) count with an error of 0, as there.

    Args:
        outputs: [rows, channels, side, side].
        targets: [rows, channels + 1, side, side].

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
    Task("segmentation", "multiclass", classes=CLASSES, error="loss"),
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
SMALLEST, STEP = 32, 16
CHECKS = ("header", "decode")
OUTSIDE = (
    "images were looked at from outside: those damaged inside are counted when read, or before, with check=decode",
)


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
    """Segmentation, depth, normals, 2d edges and 2d keypoints of rooms; images are read while networks train.

    Args:
        data: the folder with the images, as they are downloaded: DATA/DOMAIN/BUILDING or DATA/BUILDING/DOMAIN. Nothing
            is downloaded here.
        lists: a folder with the lists of buildings, `train_models.txt`, `val_models.txt` and `test_models.txt`, one
            building a line; None: they are in `data`.
        tasks: some of the five; only their domains are read. A text is read as names between commas.
        size: "full": the paper's network, recipe and 256 pixels; "small": all of it narrow, at 64 pixels, in seconds.
        pixels: of a side, a multiple of 16; larger images are reduced.
        channels: what the channels of encoder and decoders are multiplied by.
        per_building: so many images of each building of validation and test, the first ones; None: all.
        check: of images before any training; damaged ones are skipped and counted. "header": their first and last
            bytes; damage inside leaves a view without labels when it is read, and is logged with a count. "decode":
            all are decoded, which takes as long as reading them for an epoch; that is done once.
        cache: the folder for what "decode" finds; None: `tagalong-cache` in `data`.
        recipe: how to train; None: the paper's.
        progress: is told how many views are decoded.

    Raises:
        ValueError: what is wrong with the folder, the lists or the options.
        ImportError: Pillow is missing.
    """
    require("the problem 'taskonomy'", "PIL", "tagalong[images]")
    chosen = _chosen(tasks)
    given = {"pixels": pixels, "channels": channels}
    refuse(_problems(data, chosen, size, per_building, {**given, "check": check}))
    settings = SIZES[size] | {name: value for name, value in given.items() if value is not None}
    domains = domains_of(chosen)
    place = Path(str(data))
    folders = find_folders(place, domains)
    found = read_lists(place if lists is None else Path(str(lists)))
    buildings = _buildings(found, folders, domains)
    views = {
        part: usable_views(buildings[part], domains, settings["pixels"], None if part == "train" else per_building)
        for part in PARTS
    }
    refuse_empty(views)
    readers = {part: ViewReader(views[part], chosen, settings["pixels"]) for part in PARTS}
    tried = {part: reader.unreadable() for part, reader in readers.items()}
    refuse([f"`data`: {part} must have images that can be read; {why}" for part, why in tried.items() if why])
    if check == "decode":
        readers = _decoded(readers, place / CACHE if cache is None else Path(str(cache)), progress or NoProgress())
        views = {part: reader.views for part, reader in readers.items()}
    refuse_unlabelled({part: reader.unlabelled() for part, reader in readers.items()})
    rows = {part: _rows(reader) for part, reader in readers.items()}
    return Problem(
        "taskonomy",
        tuple(task for task in TASKS if task.name in chosen),
        rows["train"],
        rows["val"],
        rows["test"],
        encoder=Xception(settings["channels"]),
        head=Decoders(settings["channels"]),
        recipe=recipe or RECIPES[size],
        notes=(*about_views(views, found, folders, per_building), *(OUTSIDE if check == "header" else ())),
    )


def _chosen(tasks: Sequence[str] | str | None) -> tuple[str, ...]:
    known = tuple(task.name for task in TASKS)
    if tasks is None:
        return known
    wanted = tuple(map(str.strip, tasks.split(","))) if isinstance(tasks, str) else named(tasks)
    unknown = [name for name in wanted if name not in known]
    refuse([f"`tasks` must be tasks of taskonomy, found {name!r}; {closest(name, known)}" for name in unknown])
    return tuple(name for name in known if name in wanted)


def _problems(data: Any, tasks: Sequence[str], size: Any, per_building: Any, given: dict[str, Any]) -> list[str]:
    problems = []
    if data is None:
        problems.append("`data` must be the folder with Taskonomy's images, found none; nothing is downloaded")
    if not tasks:
        problems.append("`tasks` must name at least one task, found none")
    if size not in SIZES:
        problems.append(f"`size` must be 'small' or 'full', found {size!r}")
    pixels, channels = given["pixels"], given["channels"]
    if pixels is not None and (not isinstance(pixels, int) or pixels < SMALLEST or pixels % STEP):
        problems.append(f"`pixels` must be a multiple of {STEP} from {SMALLEST}, found {pixels!r}")
    if channels is not None and (not isinstance(channels, (int, float)) or not 0 < channels < float("inf")):
        problems.append(f"`channels` must be a positive number, found {channels!r}")
    if per_building is not None and (not isinstance(per_building, int) or per_building < 1):
        problems.append(f"`per_building` must be a whole number from 1, or None for all, found {per_building!r}")
    if given["check"] not in CHECKS:
        problems.append(f"`check` must be 'header' or 'decode', found {given['check']!r}")
    return problems


def _buildings(lists: Lists, folders: Mapping[str, Folders], domains: Sequence[str]) -> dict[str, list[Building]]:
    """The buildings of each list, opened; what is wrong with them at once, of many buildings with the first few."""
    problems, flaws = [], []
    opened: dict[str, list[Building]] = {part: [] for part in PARTS}
    for part, names in lists.items():
        missing = [name for name in names if name not in folders]
        if missing:
            problems.append(f"`lists`: {part} must name buildings that are in `data`, found {some(missing)}")
        for name in names:
            found = open_building(name, folders[name], domains) if name in folders else ""
            if isinstance(found, Building):
                opened[part].append(found)
            elif found:
                flaws.append(found)
    left_out = len(flaws) - MOST_NAMED
    more = [f"`data`: {counted(left_out, 'more building')} with such flaws"] if left_out > 0 else []
    refuse([*problems, *flaws[:MOST_NAMED], *more])
    return opened


def _decoded(readers: Mapping[str, ViewReader], folder: Path, progress: Progress) -> dict[str, ViewReader]:
    make_folder(folder)
    found = {part: decodable(reader, folder, progress) for part, reader in readers.items()}
    refuse_empty({part: reader.views for part, reader in found.items()})
    return found


def _rows(reader: ViewReader) -> StreamedRows:
    return StreamedRows(reader, reader.tasks, torch.from_numpy(reader.views.building.astype(np.int64)), at_once=16)


def refuse_empty(views: Mapping[str, Views]) -> None:
    """Refuses parts without a single view.

    Raises:
        ValueError: names them, and says why their views were skipped.
    """
    start = "must have images that can be used, found none"
    refuse([f"`data`: {part} {start}: {_skipped(found)}" for part, found in views.items() if not len(found)])


def refuse_unlabelled(unlabelled: Mapping[str, Sequence[str]]) -> None:
    """Refuses parts that have nothing to learn a task from, to choose by, or to report.

    Args:
        unlabelled: for each part its tasks without a label.

    Raises:
        ValueError: names them.
    """
    start, todo = "must have labels of every task, found no pixel known for", "add buildings to its list"
    refuse([f"`data`: {part} {start} {', '.join(found)}; {todo}" for part, found in unlabelled.items() if found])


def about_views(
    views: Mapping[str, Views], lists: Lists, folders: Mapping[str, Folders], per_building: int | None
) -> tuple[str, ...]:
    """How many views of how many buildings there are, and what was left out."""
    sizes = "; ".join(_size(part, v) for part, v in views.items())
    notes = [f"read from files: {sizes}"]
    if per_building is not None:
        notes.append(f"of each building of validation and test the first {counted(per_building, 'image')}")
    notes += [f"{part}: images skipped: {_skipped(v)}" for part, v in views.items() if v.skipped]
    notes += [
        f"{part}: buildings filtered, no image left: {', '.join(v.filtered)}" for part, v in views.items() if v.filtered
    ]
    unlisted = len(folders.keys() - {name for names in lists.values() for name in names})
    return (*notes, f"buildings in the folder that no list names: {unlisted}") if unlisted else tuple(notes)


def _size(part: str, views: Views) -> str:
    return f"{part} {counted(len(views), 'image')} of {counted(len(views.buildings), 'building')}"


def _skipped(views: Views) -> str:
    return "; ".join(f"{number} {why}" for why, number in sorted(views.skipped.items())) or "no images"
