"""Finds Taskonomy's images, the buildings of each split and the usable views."""

from __future__ import annotations

import hashlib
import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tagalong.errors import InvalidInput, first_few, raise_problems
from tagalong.learn import PARTS, THREADS

RGB = "rgb"
DOMAINS = {
    "segmentation": "segment_semantic",
    "depth": "depth_zbuffer",
    "normals": "normal",
    "edges": "edge_texture",
    "keypoints": "keypoints2d",
}
SUBFOLDER = "taskonomy"  # folder between domain and buildings in the current download
VIEW_FILE = re.compile(r"(point_\d+_view_\d+)((?:_domain_\w+)?\.png)")
PNG_SIGNATURE, PNG_HEADER_SIZE, PNG_END = b"\x89PNG\r\n\x1a\n", 33, b"\x00\x00\x00\x00IEND\xaeB`\x82"
INCOMPLETE_REASON = "without an image of every domain"
MAX_NAMED = 5
Folders = Mapping[str, Path]
Lists = Mapping[str, tuple[str, ...]]


def read_lists(folder: Path) -> Lists:
    """Reads the names of the buildings for training, validation and test.

    The files have names such as `train_models.txt`, as in the paper's code, or `train.txt`. Comments start with #.

    Raises:
        ValueError: If a list is missing or empty, or a building is listed twice.
    """
    files = {part: _find_list(folder, part) for part in PARTS}
    missing = [f"{part}_models.txt" for part, path in files.items() if path is None]
    if missing:
        raise InvalidInput(
            "lists",
            "must be a folder with lists of buildings, one building per line",
            f"no {', '.join(missing)} in {folder}",
            "the paper's lists are released with its code",
        )
    lists = {part: _read_names(path) for part, path in files.items() if path is not None}
    problems = [
        InvalidInput("`lists`:", f"{part} must name at least one building", "none")
        for part, names in lists.items()
        if not names
    ]
    every = [name for names in lists.values() for name in names]
    repeated = sorted({name for name in every if every.count(name) > 1})
    if repeated:
        problems.append(
            InvalidInput(
                "lists", "must name each building only once", f"{first_few(list(map(repr, repeated)))} more than once"
            )
        )
    raise_problems(problems)
    return lists


def _find_list(folder: Path, split: str) -> Path | None:
    paths = (folder / f"{split}_models.txt", folder / f"{split}.txt")
    return next((path for path in paths if path.is_file()), None)


def _read_names(path: Path) -> tuple[str, ...]:
    # Some editors write a byte order mark. Invalid bytes appear in the error about an unknown building.
    lines = path.read_text(encoding="utf-8-sig", errors="replace").splitlines()
    return tuple(name for line in lines if (name := line.partition("#")[0].strip()))


@dataclass(frozen=True)
class Building:
    """The images of a building.

    Attributes:
        name: the name of the building.
        folders: the image folder for each domain.
        endings: the suffix that follows the view's name in file names, by domain.
        views: the names of the views with an image in every domain, sorted by file name.
        incomplete: the number of views that lack an image in some domain.
    """

    name: str
    folders: Folders
    endings: Mapping[str, str]
    views: tuple[str, ...]
    incomplete: int

    def image_path(self, domain: str, view: str) -> str:
        """Returns the path of an image."""
        return f"{self.folders[domain]}{os.sep}{view}{self.endings[domain]}"


def required_domains(tasks: Iterable[str]) -> tuple[str, ...]:
    """Returns the domains to read for these tasks. Normals also require depth, which shows where they are valid."""
    chosen = set(tasks)
    needed = chosen | {"depth"} if "normals" in chosen else chosen
    return (RGB, *(domain for task, domain in DOMAINS.items() if task in needed))


def find_folders(data: Path, domains: Sequence[str]) -> Mapping[str, Folders]:
    """Finds each building's folders for these domains.

    The supported layouts are DATA/DOMAIN/BUILDING, DATA/DOMAIN/taskonomy/BUILDING and DATA/BUILDING/DOMAIN.

    Raises:
        ValueError: If the folder does not have any of these layouts.
    """
    if not data.is_dir():
        raise InvalidInput("data", "must be the folder with the Taskonomy images", f"{data}, which is not a folder")
    found: dict[str, dict[str, Path]] = {}
    if (data / RGB).is_dir():
        for domain in domains:
            inside = data / domain / SUBFOLDER
            for building in _subfolders(inside if inside.is_dir() else data / domain):
                found.setdefault(building.name, {})[domain] = building
    else:
        for building in _subfolders(data):
            folders = {domain: building / domain for domain in domains if (building / domain).is_dir()}
            if folders:
                found[building.name] = folders
    if not found:
        raise InvalidInput(
            "data",
            f"must contain {RGB}/BUILDING/*.png or BUILDING/{RGB}/*.png, with label folders next to {RGB}",
            f"neither in {data}",
        )
    return found


def _subfolders(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.is_dir()) if folder.is_dir() else []


def open_building(name: str, folders: Folders, domains: Sequence[str]) -> Building:
    """Finds the views of a building that have an image in every domain.

    Raises:
        InvalidInput: If a domain is missing or empty.
    """
    missing = [domain for domain in domains if domain not in folders]
    if missing:
        expected = f"the building {name!r} must have the domains {', '.join(domains)}"
        raise InvalidInput("`data`:", expected, f"no {', '.join(missing)}")
    endings: dict[str, str] = {}
    views: dict[str, set[str]] = {}
    for domain in domains:
        matches = [match for match in map(VIEW_FILE.fullmatch, os.listdir(folders[domain])) if match]
        endings[domain] = matches[0][2] if matches else ""
        views[domain] = {match[1] for match in matches if match[2] == endings[domain]}
    empty = [str(folders[domain]) for domain in domains if not views[domain]]
    if empty:
        files = f"the building {name!r} must have files named point_*_view_*_domain_*.png"
        raise InvalidInput("`data`:", files, f"none in {', '.join(empty)}")
    complete = set.intersection(*views.values())
    # Sorted by file name, as in the published code, which uses the first views.
    ordered = tuple(sorted(complete, key=lambda view: view + endings[RGB]))
    return Building(name, folders, endings, ordered, len(set.union(*views.values())) - len(complete))


@dataclass(frozen=True, eq=False)
class Views:
    """The usable views of a list of buildings.

    Attributes:
        buildings: the buildings with usable views.
        building: the building index of each view.
        view: the index of each view within its building.
        skipped: the number of skipped views, by reason.
        filtered: the names of buildings without usable views.
        digest: a hash of the names and sizes of all files.
    """

    buildings: tuple[Building, ...]
    building: NDArray[np.int32]
    view: NDArray[np.int32]
    skipped: Mapping[str, int]
    filtered: tuple[str, ...]
    digest: bytes

    def __len__(self) -> int:
        return len(self.view)

    def name(self, row: int) -> str:
        """Returns the name of a view, including its building."""
        building = self.buildings[int(self.building[row])]
        return f"{building.name}/{building.views[int(self.view[row])]}"

    def image_path(self, row: int, domain: str) -> str:
        """Returns the path of an image."""
        building = self.buildings[int(self.building[row])]
        return building.image_path(domain, building.views[int(self.view[row])])


def usable_views(
    buildings: Sequence[Building], domains: Sequence[str], pixels: int, max_views: int | None = None
) -> Views:
    """Returns the views with an intact image in every domain.

    Args:
        buildings: the buildings, in row order.
        domains: the domains to read.
        pixels: the width and height of the images. Images whose size is a multiple of this size are also accepted.
        max_views: the maximum number of views per building. If None, all views are used.
    """
    kept: list[Building] = []
    rows: list[tuple[int, int]] = []
    filtered: list[str] = []
    skipped: Counter[str] = Counter()
    digest = hashlib.sha256()
    with ThreadPoolExecutor(THREADS) as pool:
        for building in buildings:
            chosen = building.views[:max_views]
            inspected = pool.map(partial(_inspect_view, building, domains, pixels), chosen)
            usable = []
            for place, (sizes, flaw) in enumerate(inspected):
                digest.update(f"{building.name}/{chosen[place]} {sizes}\n".encode())
                if flaw is None:
                    usable.append((len(kept), place))
                else:
                    skipped[flaw] += 1
            skipped[INCOMPLETE_REASON] += building.incomplete
            if usable:
                kept.append(building)
                rows += usable
            else:
                filtered.append(building.name)
    places = np.array(rows, dtype=np.int32).reshape(-1, 2)
    return Views(tuple(kept), places[:, 0], places[:, 1], +skipped, tuple(filtered), digest.digest())


def _inspect_view(building: Building, domains: Sequence[str], pixels: int, view: str) -> tuple[list[int], str | None]:
    """Returns the sizes of a view's files, and the first flaw found in them, if any."""
    inspected = [_inspect_file(building.image_path(domain, view), pixels) for domain in domains]
    return [size for size, _ in inspected], next((flaw for _, flaw in inspected if flaw is not None), None)


def _inspect_file(path: str, pixels: int) -> tuple[int, str | None]:
    """Returns the size of a file, and a flaw if one is found in its first or last bytes."""
    try:
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            head = file.read(PNG_HEADER_SIZE)
            file.seek(max(0, size - len(PNG_END)))
            tail = file.read()
    except OSError as error:
        return 0, f"unreadable ({error.strerror})"
    if not head.startswith(PNG_SIGNATURE):
        return size, "damaged: not a PNG file"
    if len(head) < PNG_HEADER_SIZE or tail != PNG_END:
        return size, "damaged: truncated"
    wide, high = (int.from_bytes(head[at : at + 4], "big") for at in (16, 20))
    if wide != high or not wide or wide % pixels:
        return size, f"of {wide}×{high} pixels instead of {pixels}×{pixels} or a multiple"
    return size, None
