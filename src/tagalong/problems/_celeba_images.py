"""Where CelebA's files are: in one folder, or in the folders of the official download."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

FOLDER, ARCHIVE = "img_align_celeba", "img_align_celeba.zip"
OFFICIAL = ("", "Img", "Anno", "Eval")
SHOWN = 5


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


def some(names: Sequence[str]) -> str:
    """The first few, and how many more."""
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more


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
