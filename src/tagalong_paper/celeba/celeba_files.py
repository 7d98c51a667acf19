"""Finds CelebA's files, and reads the attributes and the split of each image."""

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

from tagalong.errors import InvalidInput, collect, did_you_mean, first_few, pluralize, raise_problems

FOLDER, ARCHIVE = "img_align_celeba", "img_align_celeba.zip"
ATTRIBUTES_LIST, PARTITION_LIST = "list_attr_celeba.txt", "list_eval_partition.txt"
OFFICIAL_FOLDERS = ("", "Img", "Anno", "Eval")
LABEL_VALUES = {"1": True, "-1": False}
SPLITS = {"0": "train", "1": "validation", "2": "test"}


@dataclass(frozen=True)
class ImageFiles:
    """Image files in a folder or an archive.

    Attributes:
        source: the folder or the archive.
        members: the path of each image within the folder or the archive, by name.
    """

    source: Path
    members: Mapping[str, str]

    def sizes(self, names: Sequence[str]) -> list[int]:
        """Returns the uncompressed size of each file in bytes."""
        if self.source.is_dir():
            return [os.stat(self.source / self.members[name]).st_size for name in names]
        with zipfile.ZipFile(self.source) as archive:
            return [archive.getinfo(self.members[name]).file_size for name in names]


def find_file(data: Path, name: str) -> Path:
    """Returns the path of a data set file.

    Raises:
        InvalidInput: If the file is not in any of the expected folders.
    """
    found = _existing_paths(data, name)
    if not found:
        raise InvalidInput("data", f"must contain {name}", _none_found(data))
    return found[0]


def find_images(data: Path) -> ImageFiles:
    """Returns the images in the image folder or, if it has none, in the archive.

    Raises:
        InvalidInput: If neither exists, or the archive is damaged or has no images where they are expected.
    """
    for folder in (place for place in _existing_paths(data, FOLDER) if place.is_dir()):
        for prefix in ("", FOLDER):  # some archives unpack into a second folder of that name
            members = _list_members(folder, prefix)
            if members:
                return ImageFiles(folder, members)
    archives = _existing_paths(data, ARCHIVE)
    if not archives:
        raise InvalidInput("data", f"must contain the aligned images ({FOLDER}/ or {ARCHIVE})", _none_found(data))
    try:
        with zipfile.ZipFile(archives[0]) as archive:
            files = [PurePosixPath(name) for name in archive.namelist() if not name.endswith("/")]
    except (zipfile.BadZipFile, OSError) as error:
        found = f"{archives[0]} ({error})"
        raise InvalidInput(
            "data", "must contain an intact archive", found, "it may be truncated, so download it again"
        ) from error
    members = {file.name: str(file) for file in files if file.parent.name in ("", FOLDER)}
    if not members:
        found = first_few([str(file) for file in files]) or "none"
        raise InvalidInput(f"`data`: {archives[0]}", f"must have images at the top level or in {FOLDER}/", found)
    return ImageFiles(archives[0], members)


def check_images(images: ImageFiles, names: Iterable[str], list_name: str) -> None:
    """Checks that every listed image exists.

    Raises:
        InvalidInput: If images are missing.
    """
    absent = [name for name in names if name not in images.members]
    if absent:
        others = sorted(images.members.keys() - set(names))
        found = f"{len(absent)} missing from {images.source}: {first_few(absent)}"
        hint = f"there are other images: {first_few(others)}" if others else ""
        raise InvalidInput("data", f"must contain every image in {list_name}", found, hint)


def _existing_paths(data: Path, name: str) -> list[Path]:
    return [data / folder / name for folder in OFFICIAL_FOLDERS if (data / folder / name).exists()]


def _none_found(data: Path) -> str:
    if not data.is_dir():
        return f"none, since {data} is not a folder"
    return f"none in {data} and its folders {', '.join(filter(None, OFFICIAL_FOLDERS))}"


def _list_members(folder: Path, prefix: str) -> dict[str, str]:
    place = folder / prefix
    if not place.is_dir():
        return {}
    with os.scandir(place) as entries:
        return {entry.name: f"{prefix}/{entry.name}" if prefix else entry.name for entry in entries if entry.is_file()}


def read_attributes(path: Path, wanted: Sequence[str]) -> tuple[list[str], NDArray[np.bool_]]:
    """Returns the image names, and whether each image has each wanted attribute [images, attributes].

    Raises:
        InvalidInput: If the file is invalid or lacks some of the attributes. The message lists all problems.
    """
    with _open_text(path) as file:
        count, header = file.readline().strip(), file.readline().split()
        if not count.isdecimal():
            expected = "must start with the number of images"
            hint = "is it the official file?"
            raise InvalidInput(f"`data`: {path}", expected, repr(count[:40]), hint)
        _check_header(path, header)
        _check_attributes(path, header, wanted)
        columns = [header.index(name) for name in wanted]
        names, labels, wrong_lines = [], [], LineProblems(path)
        for number, (name, *values) in numbered_words(file, 3):
            if len(values) != len(header):
                wrong_lines.add(number, f"a name and {len(header)} values", f"{len(values)} values")
            elif not LABEL_VALUES.keys() >= set(values):
                wrong_lines.add(
                    number, "only values 1 and -1", next(value for value in values if value not in LABEL_VALUES)
                )
            names.append(name)
            labels.append([LABEL_VALUES.get(values[column], False) for column in columns if column < len(values)])
    problems = wrong_lines.problems
    collect(problems, _check_count, path, int(count), names)
    collect(problems, _check_distinct, path, names, "image")
    raise_problems(problems)
    return names, np.array(labels, dtype=np.bool_).reshape(len(names), len(wanted))


def read_partition(path: Path, names: Sequence[str]) -> NDArray[np.int64]:
    """Returns the split of each image: 0 for training, 1 for validation, 2 for test.

    Raises:
        InvalidInput: If the file is invalid, lacks images, or lists images without attributes. The message lists all
            problems.
    """
    listed: list[str] = []
    splits: dict[str, int] = {}
    wrong_lines = LineProblems(path)
    with _open_text(path) as file:
        for number, (name, *values) in numbered_words(file, 1):
            if len(values) != 1 or values[0] not in SPLITS:
                wrong_lines.add(number, "a name and 0, 1 or 2", " ".join(values) or "only a name")
            listed.append(name)
            splits[name] = list(SPLITS).index(values[0]) if values and values[0] in SPLITS else -1
    problems = wrong_lines.problems
    collect(problems, _check_distinct, path, listed, "image")
    raise_problems(problems)
    _check_same_images(path, listed, names)
    found = np.array([splits[name] for name in names], dtype=np.int64)
    empty = [word for split, word in enumerate(SPLITS.values()) if not (found == split).any()]
    if empty:
        raise InvalidInput(f"`data`: {path}", "must have images of every split", f"none for {', '.join(empty)}")
    return found


def _check_same_images(path: Path, listed: Sequence[str], names: Sequence[str]) -> None:
    """Checks that the images in this list are exactly those with attributes."""
    absent, others = sorted({*names} - {*listed}), sorted({*listed} - {*names})
    problems = []
    if absent:
        lines = "must have a line for every image"
        problems.append(InvalidInput(f"`data`: {path}", lines, f"none for {first_few(absent)}"))
    if others:
        expected = f"must have a line for every image in {path}"
        found = f"none for {first_few(others)}"
        problems.append(InvalidInput(f"`data`: {ATTRIBUTES_LIST}", expected, found, "is it truncated?"))
    raise_problems(problems)


def _open_text(path: Path) -> IO[str]:
    """Opens a text file, skipping a byte order mark and replacing bytes that are not valid UTF-8."""
    return path.open(encoding="utf-8-sig", errors="replace")


def numbered_words(file: Iterable[str], first: int) -> Iterator[tuple[int, list[str]]]:
    """Yields the line number and the words of each nonempty line, counting lines from `first`."""
    return ((number, words) for number, line in enumerate(file, first) if (words := line.split()))


class LineProblems:
    """Collects problems with the lines of a file. Shows the first problem of each kind and counts the others."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._kinds: dict[str, list[tuple[int, str]]] = {}

    def add(self, number: int, expected: str, found: str) -> None:
        """Records a problem with a line."""
        self._kinds.setdefault(expected, []).append((number, found))

    @property
    def problems(self) -> list[InvalidInput]:
        """The first problem of each kind."""
        problems = []
        for expected, ((number, found), *others) in self._kinds.items():
            more = f" (and {pluralize(len(others), 'more line')} like this)" if others else ""
            place = f"`data`: {self._path}, line {number}"
            problems.append(InvalidInput(place, f"must have {expected}", f"{found[:40]}{more}"))
        return problems


def _check_header(path: Path, header: Sequence[str]) -> None:
    if not header:
        expected = "must have the attribute names in its second line"
        raise InvalidInput(f"`data`: {path}", expected, "none", "is it truncated?")
    _check_distinct(path, header, "attribute")


def _check_attributes(path: Path, header: Sequence[str], wanted: Sequence[str]) -> None:
    unknown = [name for name in wanted if name not in header]
    expected = f"must be listed in {path.name}"
    raise_problems([InvalidInput("attributes", expected, repr(name), did_you_mean(name, header)) for name in unknown])


def _check_count(path: Path, count: int, names: Sequence[str]) -> None:
    if not names:
        raise InvalidInput(f"`data`: {path}", "must list at least one image", "none")
    if len(names) != count:
        expected = f"must list {count} images, as stated in its first line"
        raise InvalidInput(f"`data`: {path}", expected, str(len(names)), "is it truncated?")


def _check_distinct(path: Path, names: Sequence[str], what: str) -> None:
    repeated = [name for name, times in Counter(names).items() if times > 1]
    if repeated:
        raise InvalidInput(
            f"`data`: {path}", f"must list each {what} only once", f"{first_few(repeated)} more than once"
        )
