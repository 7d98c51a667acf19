"""Which views can be used: every image is looked at from outside before any training, and damaged ones are skipped."""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from tagalong.learn._reading import THREADS

from ._taskonomy_folder import Building

SIGNATURE, HEADER, END = b"\x89PNG\r\n\x1a\n", 33, b"\x00\x00\x00\x00IEND\xaeB`\x82"
INCOMPLETE = "without an image of every domain"


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
