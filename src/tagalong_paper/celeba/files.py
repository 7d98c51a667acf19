"""Where CelebA's files are, and what its lists say: attributes of each image, and its part."""

from __future__ import annotations

import os
import zipfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO

import numpy as np
from numpy.typing import NDArray

from tagalong.errors import closest, refuse

FOLDER, ARCHIVE = "img_align_celeba", "img_align_celeba.zip"
ATTRIBUTES_LIST, PARTITION_LIST = "list_attr_celeba.txt", "list_eval_partition.txt"
OFFICIAL = ("", "Img", "Anno", "Eval")
VALUES = {"1": True, "-1": False}
PARTS = {"0": "train", "1": "validation", "2": "test"}
SHOWN = 5  # names in a message, of many


@dataclass(frozen=True)
class Images:
    """Image files by name.

    Attributes:
        source: the folder or the archive.
        members: for each name the path below the folder, or the name in the archive.
    """

    source: Path
    members: Mapping[str, str]

    def sizes(self, names: Sequence[str]) -> list[int]:
        """Bytes of these files, unpacked."""
        if self.source.is_dir():
            return [os.stat(self.source / self.members[name]).st_size for name in names]
        with zipfile.ZipFile(self.source) as archive:
            return [archive.getinfo(self.members[name]).file_size for name in names]


def find_file(data: Path, name: str) -> Path:
    """A file of the data set.

    Raises:
        ValueError: it is in none of the places.
    """
    found = _places(data, name)
    if not found:
        raise ValueError(f"`data` must hold {name}, found none {_looked(data)}")
    return found[0]


def find_images(data: Path) -> Images:
    """The images of the folder, or where there is none with images, of the archive.

    Raises:
        ValueError: there is neither, or the archive is not whole or has no images where they should be.
    """
    for folder in (place for place in _places(data, FOLDER) if place.is_dir()):
        for prefix in ("", FOLDER):  # some archives unpack into a folder of that name once more
            members = _members(folder, prefix)
            if members:
                return Images(folder, members)
    archives = _places(data, ARCHIVE)
    if not archives:
        raise ValueError(f"`data` must hold the aligned images, {FOLDER}/ or {ARCHIVE}, found none {_looked(data)}")
    try:
        with zipfile.ZipFile(archives[0]) as archive:
            files = [PurePosixPath(name) for name in archive.namelist() if not name.endswith("/")]
    except (zipfile.BadZipFile, OSError) as error:
        raise ValueError(
            f"`data` must hold a whole archive, found {archives[0]} ({error}); it may be cut off: get it again"
        ) from error
    members = {file.name: str(file) for file in files if file.parent.name in ("", FOLDER)}
    if not members:
        found = some([str(file) for file in files]) or "none"
        raise ValueError(f"`data`: {archives[0]} must have images outside folders or in {FOLDER}/, found {found}")
    return Images(archives[0], members)


def missing_images(images: Images, names: Iterable[str], listed: str) -> list[str]:
    """What is wrong where images of a list are not there."""
    absent = [name for name in names if name not in images.members]
    if not absent:
        return []
    others = sorted(images.members.keys() - set(names))
    hint = f"; there are others, such as {some(others)}" if others else ""
    return [
        f"`data` must hold every image of {listed}, found {len(absent)} missing in {images.source}: {some(absent)}"
        + hint
    ]


def _places(data: Path, name: str) -> list[Path]:
    return [data / folder / name for folder in OFFICIAL if (data / folder / name).exists()]


def _looked(data: Path) -> str:
    if not data.is_dir():
        return f"since {data} is no folder"
    return f"in {data} and its folders {', '.join(filter(None, OFFICIAL))}"


def _members(folder: Path, prefix: str) -> dict[str, str]:
    place = folder / prefix
    if not place.is_dir():
        return {}
    with os.scandir(place) as entries:
        return {entry.name: f"{prefix}/{entry.name}" if prefix else entry.name for entry in entries if entry.is_file()}


def read_attributes(path: Path, wanted: Sequence[str]) -> tuple[list[str], NDArray[np.bool_]]:
    """The names of the images, and [image, attribute] whether an image has each wanted attribute.

    Raises:
        ValueError: lists what is wrong with the file, or attributes that it does not have.
    """
    with _open(path) as file:
        count, header = file.readline().strip(), file.readline().split()
        if not count.isdecimal():
            found = f"{count[:40]!r}; is it the official file?"
            raise ValueError(f"`data`: {path} must start with the number of its images, found {found}")
        refuse(_header_problems(path, header))
        unknown = [name for name in wanted if name not in header]
        refuse(
            [f"`attributes` must be some of {path.name}, found {name!r}; {closest(name, header)}" for name in unknown]
        )
        places = [header.index(name) for name in wanted]
        names, labels, odd = [], [], OddLines(path)
        for number, (name, *values) in lines_of(file, 3):
            if len(values) != len(header):
                odd.add(number, f"a name and {len(header)} values", f"{len(values)} values")
            elif not VALUES.keys() >= set(values):
                odd.add(number, "values 1 and -1 alone", next(value for value in values if value not in VALUES))
            names.append(name)
            labels.append([VALUES.get(values[place], False) for place in places if place < len(values)])
    refuse([*odd.problems, *_wrong_count(path, int(count), names), *_twice(path, names, "image")])
    return names, np.array(labels, dtype=np.bool_).reshape(len(names), len(wanted))


def read_partition(path: Path, names: Sequence[str]) -> NDArray[np.int64]:
    """The part of each image: 0 train, 1 validation, 2 test.

    Raises:
        ValueError: lists what is wrong with the file, images that it leaves out, or more than there are attributes of.
    """
    listed: list[str] = []
    parts: dict[str, int] = {}
    odd = OddLines(path)
    with _open(path) as file:
        for number, (name, *values) in lines_of(file, 1):
            if len(values) != 1 or values[0] not in PARTS:
                odd.add(number, "a name and 0, 1 or 2", " ".join(values) or "a name alone")
            listed.append(name)
            parts[name] = list(PARTS).index(values[0]) if values and values[0] in PARTS else -1
    refuse([*odd.problems, *_twice(path, listed, "image")])
    refuse(_unlike(path, listed, names))
    found = np.array([parts[name] for name in names], dtype=np.int64)
    empty = [word for part, word in enumerate(PARTS.values()) if not (found == part).any()]
    refuse([f"`data`: {path} must have images of every part, found none for {', '.join(empty)}"] if empty else [])
    return found


def _unlike(path: Path, listed: Sequence[str], names: Sequence[str]) -> list[str]:
    """Where the images of this list are not those that have attributes."""
    absent, others = sorted({*names} - {*listed}), sorted({*listed} - {*names})
    problems = [f"`data`: {path} must have a line for every image, found none for {some(absent)}"] if absent else []
    if others:
        found = f"none for {some(others)}; is it cut off?"
        problems.append(f"`data`: {ATTRIBUTES_LIST} must have a line for every image of {path}, found {found}")
    return problems


def _open(path: Path) -> IO[str]:
    """Some editors put a mark before the first letter; what is no text shows in the words."""
    return path.open(encoding="utf-8-sig", errors="replace")


def lines_of(file: Iterable[str], first: int) -> Iterator[tuple[int, list[str]]]:
    """The number and the words of each line that is not empty."""
    return ((number, words) for number, line in enumerate(file, first) if (words := line.split()))


class OddLines:
    """Lines that are not as they should be: the first of each kind is shown, the others are counted."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._kinds: dict[str, list[tuple[int, str]]] = {}

    def add(self, number: int, expected: str, found: str) -> None:
        """Notes a line."""
        self._kinds.setdefault(expected, []).append((number, found))

    @property
    def problems(self) -> list[str]:
        """A sentence for each kind."""
        said = []
        for expected, ((number, found), *others) in self._kinds.items():
            more = f", and {len(others)} more such lines" if others else ""
            said.append(f"`data`: {self._path}, line {number} must have {expected}, found {found[:40]}{more}")
        return said


def _header_problems(path: Path, header: Sequence[str]) -> list[str]:
    if not header:
        return [f"`data`: {path} must have the names of attributes in its second line, found none; is it cut off?"]
    return _twice(path, header, "attribute")


def _wrong_count(path: Path, count: int, names: Sequence[str]) -> list[str]:
    if not names:
        return [f"`data`: {path} must list images, found none"]
    if len(names) == count:
        return []
    return [f"`data`: {path} must list {count} images, as its first line says, found {len(names)}; is it cut off?"]


def _twice(path: Path, names: Sequence[str], what: str) -> list[str]:
    again = [name for name, times in Counter(names).items() if times > 1]
    return [f"`data`: {path} must list each {what} once, found more often: {some(again)}"] if again else []


def some(names: Sequence[str]) -> str:
    """The first few, and how many more."""
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more
