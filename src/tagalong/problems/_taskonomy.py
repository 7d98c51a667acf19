"""Taskonomy (Zamir et al. 2018) as the paper uses it: five dense tasks on photographs of rooms."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from tagalong._names import counted, named, refuse
from tagalong._progress import Progress, Silent
from tagalong.learn import Problem, ReadRows, Recipe
from tagalong.learn._split import PARTS
from tagalong.learn._table_roles import closest

from ._cache_folder import CACHE, make_folder
from ._needs import require
from ._taskonomy_check import decodable
from ._taskonomy_folder import Building, Folders, domains_of, find_folders, open_building
from ._taskonomy_images import ViewReader
from ._taskonomy_lists import MOST_NAMED, Lists, read_lists, some
from ._taskonomy_losses import TASKS
from ._taskonomy_network import Decoders, Xception
from ._taskonomy_notes import OUTSIDE, about_views, refuse_empty, refuse_unlabelled
from ._taskonomy_views import usable_views

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
    require("taskonomy", "PIL", "tagalong[images]")
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
        readers = _decoded(readers, place / CACHE if cache is None else Path(str(cache)), progress or Silent())
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


def _rows(reader: ViewReader) -> ReadRows:
    return ReadRows(reader, reader.tasks, torch.from_numpy(reader.views.building.astype(np.int64)), at_once=16)
