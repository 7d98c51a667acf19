"""Splits rows into training, validation and test sets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tagalong.errors import InvalidInput, pluralize, raise_problems

from .column_types import as_column
from .randomness import derive_seed
from .targets import Target

PARTS = ("train", "val", "test")
MIN_ROWS = 10
MAX_ATTEMPTS = 20
RowNumbers = NDArray[np.int64]


class RowSplit(NamedTuple):
    """The row numbers of each split, in ascending order."""

    train: RowNumbers
    val: RowNumbers
    test: RowNumbers


def choose_split(
    targets: Sequence[Target], rows: int, split: Sequence[Any], groups: NDArray[Any] | None, seed: int
) -> RowSplit:
    """Returns the given split, or a random split in which every task has enough labels and classes.

    Raises:
        InvalidInput: If the split or the labels of its rows are invalid; the message lists all problems.
    """
    if not are_fractions(split):
        row_split = read_split(split, rows, groups)
        raise_problems(_label_problems(targets, row_split))
        return row_split
    check_fractions(split, rows, groups)
    usable = None
    for attempt in range(MAX_ATTEMPTS):
        row_split = split_rows(rows, split, groups, derive_seed(seed, "attempt", attempt) if attempt else seed)
        if not _label_problems(targets, row_split):
            usable = usable or row_split
            if not one_class_notes(targets, row_split):
                return row_split
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
    """Raises an error if the fractions are invalid or there are too few rows or groups to split.

    Args:
        split: the fractions of training, validation and test rows.
        rows: the number of rows.
        groups: the group label of each row, or None.
        names: the names of the rows and groups, used in messages.
    """
    if len(split) != 3 or not all(isinstance(part, (int, float)) and part > 0 for part in split):
        raise InvalidInput("split", "must be three positive fractions (train, validation, test)", repr(tuple(split)))
    problems = []
    if abs(sum(split) - 1) > 1e-6:
        found = f"{tuple(split)!r}, which sum to {sum(split):g}"
        problems.append(InvalidInput("split", "must be fractions that sum to 1", found))
    if rows < MIN_ROWS:
        problems.append(InvalidInput(names[0], f"must have at least {MIN_ROWS} rows for three splits", str(rows)))
    elif groups is not None and len(np.unique(groups)) < 3:
        expected = "must have at least 3 groups, one for each split"
        problems.append(InvalidInput(names[1], expected, str(len(np.unique(groups)))))
    raise_problems(problems)


def split_rows(rows: int, fractions: Sequence[float], groups: NDArray[Any] | None = None, seed: int = 0) -> RowSplit:
    """Randomly splits rows into training, validation and test sets. Rows of the same group stay together.

    Without groups, sizes are exact to within one row. With groups, sizes are exact to within twice the size of the
    largest group.

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
        cuts = np.cumsum(_split_sizes(rows, np.asarray(fractions)))[:-1]
        return RowSplit(*(np.sort(part) for part in np.split(random.permutation(rows), cuts)))
    _, member = np.unique(groups, return_inverse=True)
    part = _assign_groups(np.bincount(member), np.asarray(fractions), random)
    return RowSplit(*(np.flatnonzero(part[member] == number) for number in range(3)))


def _split_sizes(rows: int, fractions: NDArray[np.float64]) -> NDArray[np.int64]:
    """Returns the size (at least 1) of each split. Leftover rows go to the splits with the largest remainders."""
    sizes = np.maximum(np.floor(fractions * rows + 1e-9), 1).astype(np.int64)
    while (left := rows - int(sizes.sum())) != 0:
        sizes[np.argmax(fractions * rows - sizes if left > 0 else sizes)] += np.sign(left)
    return sizes


def _assign_groups(
    sizes: NDArray[np.int64], fractions: NDArray[np.float64], random: np.random.Generator
) -> NDArray[np.int64]:
    """Assigns groups in random order, each to the split that needs the most rows. No split is left empty."""
    lacking = (fractions * sizes.sum()).tolist()
    empty = {0, 1, 2}
    part = np.zeros(len(sizes), dtype=np.int64)
    for left, group in zip(range(len(sizes), 0, -1), random.permutation(len(sizes)), strict=True):
        chosen = max(empty if left == len(empty) else range(3), key=lacking.__getitem__)
        part[group] = chosen
        lacking[chosen] -= int(sizes[group])
        empty.discard(chosen)
    return part


def read_split(split: Sequence[Any], rows: int, groups: NDArray[Any] | None = None) -> RowSplit:
    """Checks three arrays of row numbers or booleans, and converts them to a split.

    Raises:
        InvalidInput: If a row does not exist or is in two splits, or rows of the same group are in different splits.
    """
    if len(split) != 3:
        expected = "must be three arrays of row indices (train, validation, test)"
        raise InvalidInput("split", expected, str(len(split)))
    numbers = [_row_numbers(part) for part in split]
    raise_problems(
        [problem for name, part in zip(PARTS, numbers, strict=True) for problem in _split_problems(name, part, rows)]
    )
    problems = []
    every = np.concatenate(numbers)
    if repeated := len(every) - len(np.unique(every)):
        problems.append(InvalidInput("split", "must contain each row at most once", pluralize(repeated, "duplicate")))
    if groups is not None:
        problems += _group_problems([groups[part] for part in numbers])
    raise_problems(problems)
    return RowSplit(*(part.astype(np.int64) for part in numbers))


def _row_numbers(part: Any) -> NDArray[Any]:
    part = np.asarray(part)
    return np.flatnonzero(part) if part.dtype == bool else part


def _split_problems(name: str, part: NDArray[Any], rows: int) -> list[InvalidInput]:
    where = f"`split`: {name}"
    if part.ndim != 1 or part.dtype.kind not in "iu":
        return [InvalidInput(where, "must be a list of row indices", f"dtype {part.dtype} and shape {part.shape}")]
    if not len(part):
        return [InvalidInput(where, "must have at least one row", "none")]
    if part.min() < 0 or part.max() >= rows:
        return [InvalidInput(where, f"must contain row indices from 0 to {rows - 1}", f"{part.min()} to {part.max()}")]
    return []


def _group_problems(groups: list[NDArray[Any]]) -> list[InvalidInput]:
    train, val, test = (set(part.tolist()) for part in groups)
    shared = (train & val) | (train & test) | (val & test)
    if not shared:
        return []
    examples = ", ".join(repr(group) for group in sorted(shared, key=repr)[:5])
    expected = "must each belong to a single split"
    return [InvalidInput("groups", expected, f"{len(shared)} in multiple splits, e.g. {examples}")]


def _label_problems(targets: Sequence[Target], row_split: RowSplit) -> list[InvalidInput]:
    """Finds tasks with no labels in a split, a single value in the training rows, or a class missing from them."""
    problems = []
    for target in targets:
        where = f"`split`: {target.task.name!r}"
        found = {part: _distinct_labels(target, rows) for part, rows in zip(PARTS, row_split, strict=True)}
        empty = [part for part in PARTS if not len(found[part])]
        problems += [InvalidInput(where, f"must have labels in {part}", "none") for part in empty]
        if target.task.kind == "custom" or "train" in empty:
            continue
        if len(found["train"]) == 1 or (target.task.kind == "regression" and not target.scale(row_split.train)[1]):
            problems.append(InvalidInput(where, "must have at least two distinct labels in train", "one"))
        if target.task.kind != "regression":
            problems += [
                InvalidInput(
                    where,
                    f"has class {_original_label(target, code)!r} in {part}, which does not occur in train",
                    hint="remove the rows with this class, or merge it with another class",
                )
                for part in ("val", "test")
                for code in np.setdiff1d(found[part], found["train"])
            ]
    return problems


def one_class_notes(targets: Sequence[Target], row_split: RowSplit) -> list[str]:
    """Returns notes on binary tasks with only one class in the validation or test rows."""
    return [
        f"{target.task.name!r} has only one class in {part}"
        for target in targets
        if target.task.kind == "binary"
        for part, rows in (("val", row_split.val), ("test", row_split.test))
        if len(_distinct_labels(target, rows)) < 2
    ]


def _distinct_labels(target: Target, rows: RowNumbers) -> NDArray[np.float64]:
    values = target.values[rows]
    return np.unique(values[~np.isnan(values)])


def _original_label(target: Target, code: float) -> Any:
    return int(code) if target.classes is None else target.classes[int(code)]


def group_labels(groups: Any, argument: str = "`groups`") -> NDArray[Any]:
    """Returns the group label of each row, converted to a common type so that labels can be sorted."""
    labels = as_column(groups)
    if not labels.ndim:
        raise InvalidInput(argument, "must have a label for every row", repr(groups))
    missing = [label is None or label != label for label in labels.tolist()]
    if any(missing):
        raise InvalidInput(argument, "must have a label for every row", f"{sum(missing)} missing")
    return labels.astype(str) if labels.dtype == object else labels
