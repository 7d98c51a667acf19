"""Splits rows into training, validation and test parts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tagalong.errors import InvalidInput, raise_problems

from .column_types import as_column
from .randomness import derive_seed
from .targets import Target

PARTS = ("train", "val", "test")
MIN_ROWS = 10
ATTEMPTS = 20
RowNumbers = NDArray[np.int64]


class Parts(NamedTuple):
    """The row numbers of each part, in ascending order."""

    train: RowNumbers
    val: RowNumbers
    test: RowNumbers


def choose_parts(
    targets: Sequence[Target], rows: int, split: Sequence[Any], groups: NDArray[Any] | None, seed: int
) -> Parts:
    """Returns the given parts, or the first of several random splits in which every task has labels and classes.

    Raises:
        InvalidInput: lists all problems with the split and with the labels in its parts.
    """
    if not are_fractions(split):
        parts = read_parts(split, rows, groups)
        raise_problems(_label_problems(targets, parts))
        return parts
    check_fractions(split, rows, groups)
    usable = None
    for attempt in range(ATTEMPTS):
        parts = split_rows(rows, split, groups, derive_seed(seed, "attempt", attempt) if attempt else seed)
        if not _label_problems(targets, parts):
            usable = usable or parts
            if not one_class_notes(targets, parts):
                return parts
    if usable is None:
        raise_problems(_label_problems(targets, split_rows(rows, split, groups, seed)))
    assert usable is not None
    return usable


def are_fractions(split: Sequence[Any]) -> bool:
    """Returns whether a split is given as fractions rather than as row numbers."""
    return all(np.ndim(part) == 0 for part in split)


def check_fractions(
    split: Sequence[Any], rows: int, groups: NDArray[Any] | None, names: tuple[str, str] = ("`inputs`", "`groups`")
) -> None:
    """Raises an error if fractions are invalid, or if there are too few rows or groups to split.

    Args:
        split: the fractions of training, validation and test rows.
        rows: the number of rows.
        groups: the group label of each row, or None.
        names: the names of the rows and the groups in messages.
    """
    if len(split) != 3 or not all(isinstance(part, (int, float)) and part > 0 for part in split):
        raise InvalidInput("split", "must be three positive fractions (train, validation, test)", repr(tuple(split)))
    problems = []
    if abs(sum(split) - 1) > 1e-6:
        found = f"{tuple(split)!r} with sum {sum(split):g}"
        problems.append(InvalidInput("split", "must be fractions that sum to 1", found))
    if rows < MIN_ROWS:
        expected = f"must have at least {MIN_ROWS} rows for three parts"
        problems.append(InvalidInput(names[0], expected, str(rows)))
    elif groups is not None and len(np.unique(groups)) < 3:
        expected = "must have at least 3 groups, one for each part"
        problems.append(InvalidInput(names[1], expected, str(len(np.unique(groups)))))
    raise_problems(problems)


def split_rows(rows: int, fractions: Sequence[float], groups: NDArray[Any] | None = None, seed: int = 0) -> Parts:
    """Randomly splits rows into three parts; rows of the same group stay together.

    Without groups, sizes are exact to within one row; with groups, to within twice the size of the largest group.

    Args:
        rows: the number of rows.
        fractions: the fractions of training, validation and test rows.
        groups: the group label of each row, or None.
        seed: the seed for the split.

    Example:
        >>> [len(part) for part in split_rows(100, (0.7, 0.1, 0.2))]
        [70, 10, 20]
    """
    random = np.random.default_rng(derive_seed(seed, "split"))
    if groups is None:
        cuts = np.cumsum(_sizes(rows, np.asarray(fractions)))[:-1]
        return Parts(*(np.sort(part) for part in np.split(random.permutation(rows), cuts)))
    _, member = np.unique(groups, return_inverse=True)
    part = _assign_groups(np.bincount(member), np.asarray(fractions), random)
    return Parts(*(np.flatnonzero(part[member] == number) for number in range(3)))


def _sizes(rows: int, fractions: NDArray[np.float64]) -> NDArray[np.int64]:
    """Returns the size of each part, at least 1; rows left over by rounding go to the largest remainders."""
    sizes = np.maximum(np.floor(fractions * rows + 1e-9), 1).astype(np.int64)
    while (left := rows - int(sizes.sum())) != 0:
        sizes[np.argmax(fractions * rows - sizes if left > 0 else sizes)] += np.sign(left)
    return sizes


def _assign_groups(
    sizes: NDArray[np.int64], fractions: NDArray[np.float64], random: np.random.Generator
) -> NDArray[np.int64]:
    """Assigns groups, in random order, to the part that lacks the most rows; no part remains empty."""
    lacking = (fractions * sizes.sum()).tolist()
    empty = {0, 1, 2}
    part = np.zeros(len(sizes), dtype=np.int64)
    for left, group in zip(range(len(sizes), 0, -1), random.permutation(len(sizes)), strict=True):
        chosen = max(empty if left == len(empty) else range(3), key=lacking.__getitem__)
        part[group] = chosen
        lacking[chosen] -= int(sizes[group])
        empty.discard(chosen)
    return part


def read_parts(split: Sequence[Any], rows: int, groups: NDArray[Any] | None = None) -> Parts:
    """Reads and checks the parts from three arrays of row numbers or booleans.

    Raises:
        InvalidInput: rows do not exist or are in two parts, or rows of the same group are in different parts.
    """
    if len(split) != 3:
        expected = "must be three arrays of row numbers (train, validation, test)"
        raise InvalidInput("split", expected, str(len(split)))
    parts = [_row_numbers(part) for part in split]
    raise_problems(
        [problem for name, part in zip(PARTS, parts, strict=True) for problem in _part_problems(name, part, rows)]
    )
    problems = []
    every = np.concatenate(parts)
    if repeated := len(every) - len(np.unique(every)):
        problems.append(InvalidInput("split", "must contain each row at most once", f"{repeated} repeated"))
    if groups is not None:
        problems += _group_problems([groups[part] for part in parts])
    raise_problems(problems)
    return Parts(*(part.astype(np.int64) for part in parts))


def _row_numbers(part: Any) -> NDArray[Any]:
    part = np.asarray(part)
    return np.flatnonzero(part) if part.dtype == bool else part


def _part_problems(name: str, part: NDArray[Any], rows: int) -> list[InvalidInput]:
    where = f"`split`: {name}"
    if part.ndim != 1 or part.dtype.kind not in "iu":
        return [InvalidInput(where, "must be a list of row numbers", f"{part.dtype} of shape {part.shape}")]
    if not len(part):
        return [InvalidInput(where, "must have rows", "none")]
    if part.min() < 0 or part.max() >= rows:
        return [InvalidInput(where, f"must be row numbers from 0 to {rows - 1}", f"{part.min()} … {part.max()}")]
    return []


def _group_problems(groups: list[NDArray[Any]]) -> list[InvalidInput]:
    train, val, test = (set(part.tolist()) for part in groups)
    shared = (train & val) | (train & test) | (val & test)
    if not shared:
        return []
    examples = ", ".join(repr(group) for group in sorted(shared, key=repr)[:5])
    expected = "must each be in only one part of `split`"
    return [InvalidInput("groups", expected, f"{len(shared)} in multiple parts, e.g. {examples}")]


def _label_problems(targets: Sequence[Target], parts: Parts) -> list[InvalidInput]:
    """Finds tasks without labels in a part, with one value in train, or with a class that does not occur in train."""
    problems = []
    for target in targets:
        where = f"`split`: {target.task.name!r}"
        found = {part: _labels(target, rows) for part, rows in zip(PARTS, parts, strict=True)}
        empty = [part for part in PARTS if not len(found[part])]
        problems += [InvalidInput(where, f"must have labels in {part}", "none") for part in empty]
        if target.task.kind == "custom" or "train" in empty:
            continue
        if len(found["train"]) == 1 or (target.task.kind == "regression" and not target.scale(parts.train)[1]):
            problems.append(InvalidInput(where, "must have more than one value in train", "one"))
        if target.task.kind != "regression":
            problems += [
                InvalidInput(
                    where,
                    f"has class {_label(target, code)!r} in {part}, which does not occur in train",
                    hint="leave those rows out or merge the class with another",
                )
                for part in ("val", "test")
                for code in np.setdiff1d(found[part], found["train"])
            ]
    return problems


def one_class_notes(targets: Sequence[Target], parts: Parts) -> list[str]:
    """Returns notes on binary tasks with only one class in validation or test."""
    return [
        f"{target.task.name!r} has only one class in {part}"
        for target in targets
        if target.task.kind == "binary"
        for part, rows in (("val", parts.val), ("test", parts.test))
        if len(_labels(target, rows)) < 2
    ]


def _labels(target: Target, rows: RowNumbers) -> NDArray[np.float64]:
    values = target.values[rows]
    return np.unique(values[~np.isnan(values)])


def _label(target: Target, code: float) -> Any:
    return int(code) if target.classes is None else target.classes[int(code)]


def group_labels(groups: Any, argument: str = "`groups`") -> NDArray[Any]:
    """Returns the group label of each row, all of the same type so that they can be sorted."""
    labels = as_column(groups)
    if not labels.ndim:
        raise InvalidInput(argument, "must have a label for every row", repr(groups))
    missing = [label is None or label != label for label in labels.tolist()]
    if any(missing):
        raise InvalidInput(argument, "must have a label for every row", f"{sum(missing)} missing")
    return labels.astype(str) if labels.dtype == object else labels
