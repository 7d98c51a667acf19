"""Where Taskonomy's images are, which buildings are in which part, and which views can be used."""

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

from tagalong.errors import refuse
from tagalong.learn import PARTS, THREADS

RGB = "rgb"
DOMAINS = {
    "segmentation": "segment_semantic",
    "depth": "depth_zbuffer",
    "normals": "normal",
    "edges": "edge_texture",
    "keypoints": "keypoints2d",
}
COMPONENT = "taskonomy"  # a folder that the present download puts between domain and buildings
VIEW = re.compile(r"(point_\d+_view_\d+)((?:_domain_\w+)?\.png)")
SIGNATURE, HEADER, END = b"\x89PNG\r\n\x1a\n", 33, b"\x00\x00\x00\x00IEND\xaeB`\x82"
INCOMPLETE = "without an image of every domain"
MOST_NAMED = 5
Folders = Mapping[str, Path]
Lists = Mapping[str, tuple[str, ...]]


def read_lists(folder: Path) -> Lists:
    """The buildings of train, val and test.

    Reads `train_models.txt`, as the paper's code calls them, or `train.txt`, and so on; what follows a # is a comment.

    Raises:
        ValueError: a list is missing or empty, or a building is in two places.
    """
    files = {part: _file(folder, part) for part in PARTS}
    missing = [f"{part}_models.txt" for part, path in files.items() if path is None]
    if missing:
        raise ValueError(
            f"`lists` must be a folder with lists of buildings, one a line; found no {', '.join(missing)} in {folder}; "
            "the paper's are released with its code"
        )
    lists = {part: _names(path) for part, path in files.items() if path is not None}
    problems = [f"`lists`: {part} must name buildings, found none" for part, names in lists.items() if not names]
    every = [name for names in lists.values() for name in names]
    again = sorted({name for name in every if every.count(name) > 1})
    if again:
        problems.append(f"`lists` must name each building once, found {some(again)} again")
    refuse(problems)
    return lists


def _file(folder: Path, part: str) -> Path | None:
    paths = (folder / f"{part}_models.txt", folder / f"{part}.txt")
    return next((path for path in paths if path.is_file()), None)


def _names(path: Path) -> tuple[str, ...]:
    # Some editors put a mark before the first letter; what is no text names no building, and is shown as such.
    lines = path.read_text(encoding="utf-8-sig", errors="replace").splitlines()
    return tuple(name for line in lines if (name := line.partition("#")[0].strip()))


def some(names: list[str]) -> str:
    """The first few of them.

    Example:
        >>> some(list("abcdefg"))
        "'a', 'b', 'c', 'd', 'e' and 2 more"
    """
    more = len(names) - MOST_NAMED
    return ", ".join(map(repr, names[:MOST_NAMED])) + (f" and {more} more" if more > 0 else "")


@dataclass(frozen=True)
class Building:
    """The images of a building.

    Attributes:
        name: of the building.
        folders: of each domain.
        endings: how names of a domain's files end: the view's name comes before.
        views: those with an image in every domain, by file name.
        incomplete: how many views lack an image in some domain.
    """

    name: str
    folders: Folders
    endings: Mapping[str, str]
    views: tuple[str, ...]
    incomplete: int

    def file(self, domain: str, view: str) -> str:
        """The path of an image."""
        return f"{self.folders[domain]}{os.sep}{view}{self.endings[domain]}"


def domains_of(tasks: Iterable[str]) -> tuple[str, ...]:
    """What must be read for these tasks; where normals are valid is known from depth."""
    chosen = set(tasks)
    needed = chosen | {"depth"} if "normals" in chosen else chosen
    return (RGB, *(domain for task, domain in DOMAINS.items() if task in needed))


def find_folders(data: Path, domains: Sequence[str]) -> Mapping[str, Folders]:
    """By building the folders of these domains that are there.

    Reads DATA/DOMAIN/BUILDING, DATA/DOMAIN/taskonomy/BUILDING and DATA/BUILDING/DOMAIN.

    Raises:
        ValueError: neither layout is there.
    """
    if not data.is_dir():
        raise ValueError(f"`data` must be the folder with Taskonomy's images, found {data}, which is no folder")
    found: dict[str, dict[str, Path]] = {}
    if (data / RGB).is_dir():
        for domain in domains:
            inside = data / domain / COMPONENT
            for building in _subfolders(inside if inside.is_dir() else data / domain):
                found.setdefault(building.name, {})[domain] = building
    else:
        for building in _subfolders(data):
            folders = {domain: building / domain for domain in domains if (building / domain).is_dir()}
            if folders:
                found[building.name] = folders
    if not found:
        raise ValueError(
            f"`data` must hold {RGB}/BUILDING/*.png, or BUILDING/{RGB}/*.png, and label domains beside {RGB}; found "
            f"neither in {data}"
        )
    return found


def _subfolders(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.is_dir()) if folder.is_dir() else []


def open_building(name: str, folders: Folders, domains: Sequence[str]) -> Building | str:
    """Looks which views of a building have all images; says what is wrong if a domain is missing or empty."""
    lacking = [domain for domain in domains if domain not in folders]
    if lacking:
        return f"`data`: the building {name!r} must have {', '.join(domains)}, found no {', '.join(lacking)}"
    endings: dict[str, str] = {}
    views: dict[str, set[str]] = {}
    for domain in domains:
        matches = [match for match in map(VIEW.fullmatch, os.listdir(folders[domain])) if match]
        endings[domain] = matches[0][2] if matches else ""
        views[domain] = {match[1] for match in matches if match[2] == endings[domain]}
    empty = [str(folders[domain]) for domain in domains if not views[domain]]
    if empty:
        where = ", ".join(empty)
        return f"`data`: the building {name!r} must have files point_*_view_*_domain_*.png, found none in {where}"
    complete = set.intersection(*views.values())
    # By file name, as the published code sorts before it takes the first ones.
    ordered = tuple(sorted(complete, key=lambda view: view + endings[RGB]))
    return Building(name, folders, endings, ordered, len(set.union(*views.values())) - len(complete))


@dataclass(frozen=True, eq=False)
class Views:
    """The views of some buildings.

    Attributes:
        buildings: those with views that can be used.
        building: of each view, its place among the buildings.
        view: of each view, its place in the building.
        skipped: why views were left out, and how often.
        filtered: buildings of which no view was left.
        digest: of names and sizes of all files.
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
        """A view's building and its own name."""
        building = self.buildings[int(self.building[row])]
        return f"{building.name}/{building.views[int(self.view[row])]}"

    def file(self, row: int, domain: str) -> str:
        """The path of an image."""
        building = self.buildings[int(self.building[row])]
        return building.file(domain, building.views[int(self.view[row])])


def usable_views(buildings: Sequence[Building], domains: Sequence[str], pixels: int, most: int | None = None) -> Views:
    """The views whose images are all whole.

    Args:
        buildings: in the order of the rows.
        domains: that are read.
        pixels: images must be square, of so many pixels a side or a multiple.
        most: so many of each building, the first ones; None: all.
    """
    kept: list[Building] = []
    rows: list[tuple[int, int]] = []
    filtered: list[str] = []
    skipped: Counter[str] = Counter()
    digest = hashlib.sha256()
    with ThreadPoolExecutor(THREADS) as pool:
        for building in buildings:
            chosen = building.views[:most]
            seen = pool.map(partial(_look, building, domains, pixels), chosen)
            whole = []
            for place, (sizes, flaw) in enumerate(seen):
                digest.update(f"{building.name}/{chosen[place]} {sizes}\n".encode())
                if flaw is None:
                    whole.append((len(kept), place))
                else:
                    skipped[flaw] += 1
            skipped[INCOMPLETE] += building.incomplete
            if whole:
                kept.append(building)
                rows += whole
            else:
                filtered.append(building.name)
    places = np.array(rows, dtype=np.int32).reshape(-1, 2)
    return Views(tuple(kept), places[:, 0], places[:, 1], +skipped, tuple(filtered), digest.digest())


def _look(building: Building, domains: Sequence[str], pixels: int, view: str) -> tuple[list[int], str | None]:
    """The sizes of a view's files, and what is wrong with the first that has a flaw."""
    looks = [_look_at(building.file(domain, view), pixels) for domain in domains]
    return [size for size, _ in looks], next((flaw for _, flaw in looks if flaw is not None), None)


def _look_at(path: str, pixels: int) -> tuple[int, str | None]:
    """The size of a file, and what can be told from its first and last bytes."""
    try:
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            head = file.read(HEADER)
            file.seek(max(0, size - len(END)))
            tail = file.read()
    except OSError as error:
        return 0, f"unreadable ({error.strerror})"
    if not head.startswith(SIGNATURE):
        return size, "damaged: no PNG"
    if len(head) < HEADER or tail != END:
        return size, "damaged: truncated"
    wide, high = (int.from_bytes(head[at : at + 4], "big") for at in (16, 20))
    if wide != high or not wide or wide % pixels:
        return size, f"of {wide}×{high} pixels instead of {pixels}×{pixels} or a multiple"
    return size, None
