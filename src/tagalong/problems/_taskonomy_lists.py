"""Which buildings are learnt from, which decide, and which are only reported: lists in files, one building a line."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tagalong._names import refuse
from tagalong.learn._split import PARTS

MOST_NAMED = 5
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
