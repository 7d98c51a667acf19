"""Splits rows into training, validation and test sets."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tagalong.errors import InvalidInput, first_few, raise_problems

from .randomness import derive_seed
from .targets import Target
from .task import Task

PARTS = ("train", "val", "test")
MIN_ROWS = 10
MAX_ATTEMPTS = 20
ENOUGH_ROWS = 100  # for a choice between networks, if the table has so many
MAX_VAL, USUAL_VAL, MIN_VAL, TEST = 0.25, 0.2, 0.1, 0.2
PLENTY_OF_ROWS = 1000  # for validation; larger tables use no more than a tenth of their rows
RowNumbers = NDArray[np.int64]


class RowSplit(NamedTuple):
    """The row numbers of each split, in ascending order."""

    train: RowNumbers
    val: RowNumbers
    test: RowNumbers


def default_fractions(rows: int) -> tuple[float, float, float]:
    """Returns the fractions of training, validation and test rows of a table.

    Example:
        >>> [default_fractions(rows)[1] for rows in (200, 400, 4000, 8000, 50_000)]
        [0.25, 0.25, 0.2, 0.125, 0.1]
    """
    enough = min(MAX_VAL, ENOUGH_ROWS / rows)
    val = max(MIN_VAL, min(max(USUAL_VAL, enough), PLENTY_OF_ROWS / rows))
    return 1 - TEST - val, val, TEST


def choose_split(
    targets: Sequence[Target], rows: int, split: Sequence[Any], groups: NDArray[Any] | None, seed: int
) -> RowSplit:
    """Returns the given split, or a random split in which every part has its share of rare classes and labels.

    Raises:
        InvalidInput: If the split or the labels of its rows are invalid; the message lists all problems.
    """
    if not are_fractions(split):
        row_split = read_split(split, rows, groups)
    else:
        _check_fractions(split, rows, groups)
        strata, fewest = _strata(targets), np.inf
        for attempt in range(MAX_ATTEMPTS):
            drawn = split_rows(rows, split, groups, derive_seed(seed, "attempt", attempt) if attempt else seed)
            counts = np.array([strata[part].sum(0) for part in drawn])  # [parts, strata]
            shares = strata.mean(0) * np.array([[len(part)] for part in drawn])
            # Worst is a class that nothing can be learned of, then a part without a class, then less than half a share.
            missed = rows**2 * (counts[0] == 0).sum() + rows * (counts == 0).sum() + (counts < shares / 2).sum()
            if missed < fewest:
                fewest, row_split = missed, drawn
            if not missed:
                break
    _check_labels(targets, row_split)
    return row_split


def split_folds(targets: Sequence[Target], folds: int, groups: NDArray[Any] | None, seed: int) -> list[RowSplit]:
    """Splits rows `folds` times: fold i contains the test rows, fold i + 1 the validation rows, all others train.

    Rows of the same group stay together. Rare classes, and the labels of tasks with few labels, are spread evenly.

    Raises:
        InvalidInput: If there are too few rows, groups or labels of a class; the message lists all problems.
    """
    rows = len(targets[0].values)
    unit = np.arange(rows) if groups is None else np.unique(groups, return_inverse=True)[1]
    sizes = np.bincount(unit)
    if len(sizes) < folds:
        units = "rows" if groups is None else "groups"
        raise InvalidInput("", f"{folds} folds need at least {folds} {units}", str(len(sizes)))

    strata = np.column_stack([np.ones(rows, dtype=bool), _strata(targets)])
    counts = np.zeros((len(sizes), strata.shape[1]), dtype=np.int64)  # of rows, [units, strata]
    np.add.at(counts, unit, strata)
    totals = counts.sum(0)
    rarest = np.where(counts > 0, totals, rows + 1).argmin(1)

    # Units of rare strata are assigned first, each to the fold with the fewest rows of its rarest stratum.
    tie_breaks = np.random.default_rng(derive_seed(seed, "folds")).random(len(sizes))
    fold_of_unit, filled = np.zeros(len(sizes), dtype=np.int64), np.zeros((folds, len(totals)))
    for number in np.lexsort((tie_breaks, -sizes, totals[rarest])):
        fold = np.lexsort((filled[:, 0], filled[:, rarest[number]]))[0]
        fold_of_unit[number] = fold
        filled[fold] += counts[number]

    fold_of_row, splits = fold_of_unit[unit], []
    for fold in range(folds):
        is_test, is_val = fold_of_row == fold, fold_of_row == (fold + 1) % folds
        splits.append(RowSplit(*map(np.flatnonzero, (~is_test & ~is_val, is_val, is_test))))
    for row_split in splits:
        _check_labels(targets, row_split)
    return splits


def _check_labels(targets: Sequence[Target], row_split: RowSplit) -> None:
    problems = []
    for target in targets:
        labels = {part: target.values[rows] for part, rows in zip(PARTS, row_split, strict=True)}
        problems += label_problems(target.task, labels, target.label)
    raise_problems(problems)


def _strata(targets: Sequence[Target]) -> NDArray[np.bool_]:
    """Returns which rows [rows, strata] have each class of each task, or any label of each task without classes."""
    strata = []
    for target in targets:
        values = target.values.reshape(len(target.values), -1)
        if target.has_classes:
            strata += [(values == code).any(1) for code in np.unique(values[~np.isnan(values)])]
        else:
            strata.append(~np.isnan(values).all(1))
    return np.stack(strata, axis=1)


def are_fractions(split: Sequence[Any]) -> bool:
    """Returns whether a split is given as fractions rather than as row numbers."""
    return all(np.ndim(part) == 0 for part in split)


def _check_fractions(split: Sequence[Any], rows: int, groups: NDArray[Any] | None) -> None:
    shares = np.asarray(split, dtype=np.float64)
    if shares.shape != (len(PARTS),) or not shares.min() > 0 or abs(shares.sum() - 1) > 1e-6:
        expected = "must be three positive fractions (train, validation, test) that sum to 1"
        raise InvalidInput("split", expected, repr(tuple(split)))
    if rows < MIN_ROWS:
        raise InvalidInput("", f"a random split needs at least {MIN_ROWS} rows", str(rows))
    if groups is not None and (count := len(np.unique(groups))) < len(PARTS):
        raise InvalidInput("", "a random split needs at least 3 groups", str(count))


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
    random, shares = np.random.default_rng(derive_seed(seed, "split")), np.asarray(fractions)
    if groups is None:
        # Leftover rows go to the parts with the largest remainders; no part is left empty.
        sizes = np.maximum(np.floor(shares * rows + 1e-9), 1).astype(np.int64)
        while (left := rows - int(sizes.sum())) != 0:
            sizes[np.argmax(shares * rows - sizes if left > 0 else sizes)] += np.sign(left)
        return RowSplit(*(np.sort(part) for part in np.split(random.permutation(rows), np.cumsum(sizes)[:-1])))

    # Groups are assigned in random order, each to the part that needs the most rows; no part is left empty.
    _, member, sizes = np.unique(groups, return_inverse=True, return_counts=True)
    lacking, empty, part = (shares * rows).tolist(), {0, 1, 2}, np.zeros(len(sizes), dtype=np.int64)
    for left, group in zip(range(len(sizes), 0, -1), random.permutation(len(sizes)), strict=True):
        chosen = max(empty if left == len(empty) else range(3), key=lacking.__getitem__)
        part[group] = chosen
        lacking[chosen] -= int(sizes[group])
        empty.discard(chosen)
    return RowSplit(*(np.flatnonzero(part[member] == number) for number in range(3)))


def read_split(split: Sequence[Any], rows: int, groups: NDArray[Any] | None = None) -> RowSplit:
    """Checks three arrays of row numbers or booleans, and converts them to a split.

    Raises:
        InvalidInput: If a row does not exist or is in two splits, or rows of the same group are in different splits.
    """
    parts = [np.flatnonzero(part) if part.dtype == bool else part for part in map(np.asarray, split)]
    if len(parts) != 3 or not all(part.ndim == 1 and len(part) and part.dtype.kind in "iu" for part in parts):
        raise InvalidInput("split", "must be three non-empty arrays of row numbers (train, validation, test)")
    every, counts = np.unique(np.concatenate(parts), return_counts=True)
    if every[0] < 0 or every[-1] >= rows:
        raise InvalidInput("split", f"must contain row numbers from 0 to {rows - 1}", f"{every[0]} to {every[-1]}")
    if counts.max() > 1:
        found = first_few(list(map(str, every[counts > 1])))
        raise InvalidInput("split", "must contain each row at most once", f"rows {found} more than once")
    if groups is not None:
        names, counts = np.unique(np.concatenate([np.unique(groups[part]) for part in parts]), return_counts=True)
        if counts.max() > 1:
            found = f"{first_few(list(map(repr, names[counts > 1].tolist())))} in several splits"
            raise InvalidInput("groups", "must each belong to a single split", found)
    return RowSplit(*(part.astype(np.int64) for part in parts))


def label_problems(
    task: Task, labels: Mapping[str, NDArray[np.floating[Any]]], original: Callable[[float], Any] = int
) -> list[InvalidInput]:
    """Finds parts without labels, a single value in the training rows, and classes that are wrong or missing there.

    Args:
        task: the task.
        labels: the labels of each part, with NaN for missing ones.
        original: returns the original label of a class.
    """
    distinct = {part: np.unique(values[np.isfinite(values)]) for part, values in labels.items()}
    has_classes = task.kind in ("binary", "multiclass") and task.loss is None
    classes, problems = np.arange(task.classes or 2), []
    for part, values in distinct.items():
        where = f"labels of {task.name!r} in {part}"
        unseen = np.setdiff1d(values, distinct["train"])
        if not len(values):
            problems.append(InvalidInput(where, "must not all be missing", hint="drop this task"))
        elif part == "train" and task.kind != "custom" and not np.std(values):
            problems.append(
                InvalidInput(where, "must have at least two distinct values", f"only {original(values[0])}")
            )
        elif has_classes and not np.isin(values, classes).all():
            found = f"{np.setdiff1d(values, classes)[0]:g}"
            problems.append(InvalidInput(where, f"must be integers from 0 to {classes[-1]}", found))
        elif has_classes and len(unseen) and len(distinct["train"]) > 1:
            expected = f"must not be of class {original(unseen[0])!r}, which does not occur in train"
            hint = "remove the rows with this class, or merge it with another class"
            problems.append(InvalidInput(where, expected, hint=hint))
    return problems
