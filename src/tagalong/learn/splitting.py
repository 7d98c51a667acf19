"""Which rows are learnt from, which decide, and which are only reported."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tagalong.errors import refuse

from .columns import as_column
from .randomness import derived
from .targets import Target

PARTS = ("train", "val", "test")
FEWEST_ROWS = 10
ATTEMPTS = 20
RowNumbers = NDArray[np.int64]


class Parts(NamedTuple):
    """The row numbers of each part, in rising order."""

    train: RowNumbers
    val: RowNumbers
    test: RowNumbers


def choose_parts(
    targets: Sequence[Target], rows: int, split: Sequence[Any], groups: NDArray[Any] | None, seed: int
) -> Parts:
    """The parts as given, or drawn: the first of a few draws in which every part has every task's labels and classes.

    Raises:
        ValueError: what is wrong with the split, or with the labels in it.
    """
    if not are_shares(split):
        parts = given_parts(split, rows, groups)
        refuse(part_problems(targets, parts))
        return parts
    refuse(share_problems(split, rows, groups))
    usable = None
    for attempt in range(ATTEMPTS):
        parts = split_rows(rows, split, groups, derived(seed, "attempt", attempt) if attempt else seed)
        if not part_problems(targets, parts):
            usable = usable or parts
            if not one_class_notes(targets, parts):
                return parts
    if usable is None:
        refuse(part_problems(targets, split_rows(rows, split, groups, seed)))
    assert usable is not None
    return usable


def are_shares(split: Sequence[Any]) -> bool:
    """Whether a split is given by shares rather than by row numbers."""
    return all(np.ndim(part) == 0 for part in split)


def share_problems(
    split: Sequence[Any], rows: int, groups: NDArray[Any] | None, called: tuple[str, str] = ("`inputs`", "`groups`")
) -> list[str]:
    """What is wrong with shares, or with the rows and groups (as they are `called`) that are to be shared out."""
    if len(split) != 3 or not all(isinstance(part, (int, float)) and part > 0 for part in split):
        return [f"`split` must be three positive shares (train, validation, test), found {tuple(split)!r}"]
    problems = []
    if abs(sum(split) - 1) > 1e-6:
        problems.append(f"`split` must be shares that sum to 1, found {tuple(split)!r} with sum {sum(split):g}")
    if rows < FEWEST_ROWS:
        problems.append(f"{called[0]} must have at least {FEWEST_ROWS} rows to be split in three, found {rows}")
    elif groups is not None and len(np.unique(groups)) < 3:
        problems.append(f"{called[1]} must hold at least 3 groups to be split, found {len(np.unique(groups))}")
    return problems


def split_rows(rows: int, shares: Sequence[float], groups: NDArray[Any] | None = None, seed: int = 0) -> Parts:
    """RowNumbers drawn at random into three parts; rows of one group stay together.

    Without groups the sizes are exact to a row; with groups each part is off by at most twice the largest group.

    Args:
        rows: how many there are.
        shares: of train, validation and test.
        groups: one label per row, or None.
        seed: of the draw.

    Example:
        >>> [len(part) for part in split_rows(100, (0.7, 0.1, 0.2))]
        [70, 10, 20]
    """
    random = np.random.default_rng(derived(seed, "split"))
    if groups is None:
        cuts = np.cumsum(_sizes(rows, np.asarray(shares)))[:-1]
        return Parts(*(np.sort(part) for part in np.split(random.permutation(rows), cuts)))
    _, member = np.unique(groups, return_inverse=True)
    part = _deal(np.bincount(member), np.asarray(shares), random)
    return Parts(*(np.flatnonzero(part[member] == number) for number in range(3)))


def _sizes(rows: int, shares: NDArray[np.float64]) -> NDArray[np.int64]:
    """Whole numbers near the shares, none of them zero; what rounding leaves goes to the largest remainders."""
    sizes = np.maximum(np.floor(shares * rows + 1e-9), 1).astype(np.int64)
    while (left := rows - int(sizes.sum())) != 0:
        sizes[np.argmax(shares * rows - sizes if left > 0 else sizes)] += np.sign(left)
    return sizes


def _deal(sizes: NDArray[np.int64], shares: NDArray[np.float64], random: np.random.Generator) -> NDArray[np.int64]:
    """Each group, in random order, goes where most rows are still wanted; no part stays empty."""
    wanted = (shares * sizes.sum()).tolist()
    empty = {0, 1, 2}
    part = np.zeros(len(sizes), dtype=np.int64)
    for left, group in zip(range(len(sizes), 0, -1), random.permutation(len(sizes)), strict=True):
        chosen = max(empty if left == len(empty) else range(3), key=wanted.__getitem__)
        part[group] = chosen
        wanted[chosen] -= int(sizes[group])
        empty.discard(chosen)
    return part


def given_parts(split: Sequence[Any], rows: int, groups: NDArray[Any] | None = None) -> Parts:
    """The parts from three arrays of row numbers (or of True and False), checked.

    Raises:
        ValueError: rows that do not exist, are in two parts, or belong to a group that straddles parts.
    """
    if len(split) != 3:
        raise ValueError(f"`split` must be three arrays of row numbers (train, validation, test), found {len(split)}")
    parts = [_numbers(part) for part in split]
    problems = []
    for name, part in zip(PARTS, parts, strict=True):
        if part.ndim != 1 or part.dtype.kind not in "iu":
            problems.append(f"`split`: {name} must be a list of row numbers, found {part.dtype} of shape {part.shape}")
        elif not len(part):
            problems.append(f"`split`: {name} must have rows, found none")
        elif part.min() < 0 or part.max() >= rows:
            found = f"{part.min()} … {part.max()}"
            problems.append(f"`split`: {name} must be row numbers from 0 to {rows - 1}, found {found}")
    refuse(problems)
    every = np.concatenate(parts)
    if len(np.unique(every)) < len(every):
        problems.append(f"`split` must hold each row once, found {len(every) - len(np.unique(every))} rows again")
    if groups is not None:
        problems += _straddling([groups[part] for part in parts])
    refuse(problems)
    return Parts(*(part.astype(np.int64) for part in parts))


def _numbers(part: Any) -> NDArray[Any]:
    part = np.asarray(part)
    return np.flatnonzero(part) if part.dtype == bool else part


def _straddling(groups: list[NDArray[Any]]) -> list[str]:
    of_part = [set(part.tolist()) for part in groups]
    shared = (of_part[0] & of_part[1]) | (of_part[0] & of_part[2]) | (of_part[1] & of_part[2])
    if not shared:
        return []
    some = ", ".join(repr(group) for group in sorted(shared, key=repr)[:5])
    return [f"`groups` must not straddle the parts of `split`, found {len(shared)} that do, such as {some}"]


def part_problems(targets: Sequence[Target], parts: Parts) -> list[str]:
    """Tasks without labels in a part, that do not vary in train, or with a class that train lacks."""
    problems = []
    for target in targets:
        name = target.task.name
        found = {part: _labels(target, rows) for part, rows in zip(PARTS, parts, strict=True)}
        empty = [part for part in PARTS if not len(found[part])]
        problems += [f"`split`: {name!r} must have labels in {part}, found none" for part in empty]
        if target.task.kind == "custom" or "train" in empty:
            continue
        if len(found["train"]) == 1 or (target.task.kind == "regression" and not target.scale(parts.train)[1]):
            problems.append(f"`split`: {name!r} must vary in train, found one value")
        if target.task.kind != "regression":
            problems += [
                f"`split`: {name!r} has the class {_label(target, code)!r} in {part} that train lacks; "
                "leave those rows out or merge the class"
                for part in ("val", "test")
                for code in np.setdiff1d(found[part], found["train"])
            ]
    return problems


def one_class_notes(targets: Sequence[Target], parts: Parts) -> list[str]:
    """Binary tasks with one class only in validation or test."""
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
    """One label per row, all of one type so that they can be sorted."""
    labels = as_column(groups)
    missing = [label is None or label != label for label in labels.tolist()]
    if any(missing):
        raise ValueError(f"{argument} must have a label for every row, found {sum(missing)} missing")
    return labels.astype(str) if labels.dtype == object else labels
