"""Warnings about tables that can be learned from but promise too much: leaks, few labels, and duplicate rows."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from tagalong.errors import first_few, pluralize

from .splitting import PARTS, RowNumbers, RowSplit
from .targets import Target

MAX_ROWS = 20_000  # a sample of this size shows whether a feature determines a target
MAX_COMPARISONS = 2 * 10**7  # of rows, for all pairs of a feature and a target
MIN_ROWS = 30  # with fewer, anything can happen by chance
MIN_SEPARATED = 300  # with fewer, a good feature may separate the classes by chance
MIN_EXPECTED = 15  # the number of neighbors with different labels that chance must predict before none is a surprise
LEAK = 0.02  # the difference between neighbors, relative to chance, below which a feature determines a target
LEAK_CORRELATION = 0.999
WORTH_CORRELATING = (
    0.3  # the difference between neighbors, relative to chance, above which no correlation is that large
)
FEW_LABELS = 10
RARE = 0.03  # the fraction of rows below which few labels of a class are more than a sign of a small table
LABELS_PER_CLASS = 10  # with fewer on average, a split may lack a class by chance
SURPRISE = 5  # how many times more duplicates than by chance are worth a warning
Array = NDArray[np.float64]
logger = logging.getLogger(__name__)


def table_warnings(
    names: Sequence[str],
    raw: Tensor,
    targets: Sequence[Target],
    parts: RowSplit,
    groups: NDArray[np.generic] | None = None,
) -> list[str]:
    """Returns warnings about features that determine a target, few labels, and duplicate rows.

    Large tables are sampled, so that this takes seconds at most.

    Args:
        names: the names of the features; without names, only labels are looked at.
        raw: the features [rows, features], NaN where missing.
        targets: the labels of each task.
        parts: the row numbers of each split.
        groups: the group label of each row; rows of the same group are expected to be similar.
    """
    warnings = _label_warnings(targets, parts)
    if not names:
        return warnings
    features = raw.numpy().astype(np.float64) + 0.0  # -0.0 equals 0.0
    flat = [target for target in targets if target.values.ndim == 1]
    labels = np.stack([target.values for target in flat], 1) if flat else np.empty((len(features), 0))
    # Rows are equal if and only if their numbers are, apart from chance.
    _, number = np.unique(_row_hashes(np.hstack([features, labels])), return_inverse=True)
    return [
        *_leak_warnings(names, features, flat, _sample_rows(number, parts, groups, len(names) * len(flat))),
        *warnings,
        *_duplicate_warnings(number, np.hstack([features, labels]), parts),
    ]


def log_warnings(name: str, warnings: Sequence[str]) -> None:
    """Logs the warnings about the data of a problem as one message."""
    if warnings:
        logger.warning("%s", "\n  - ".join([f"warnings about the data of {name!r}:", *warnings]))


def _row_hashes(columns: Array) -> NDArray[np.uint64]:
    hashes = np.zeros(len(columns), np.uint64)
    for column in columns.T:
        values = np.where(np.isnan(column), np.nan, column)  # there are many kinds of NaN
        hashes = (hashes ^ values.view(np.uint64)) * np.uint64(0x9E3779B97F4A7C15)
        hashes ^= hashes >> np.uint64(32)
    return hashes


def _sample_rows(
    number: NDArray[np.int64], parts: RowSplit, groups: NDArray[np.generic] | None, pairs: int
) -> RowNumbers:
    """Returns a sample of distinct rows, at most one per group: copies of a row would be predicted by any feature."""
    random = np.random.default_rng(0)
    rows = random.permutation(np.concatenate(parts))
    if groups is not None:
        rows = random.permutation(rows[np.unique(groups[rows], return_index=True)[1]])
    rows = rows[: min(MAX_ROWS, MAX_COMPARISONS // max(1, pairs))]
    return np.sort(rows[np.unique(number[rows], return_index=True)[1]])


def _leak_warnings(names: Sequence[str], features: Array, targets: Sequence[Target], rows: RowNumbers) -> list[str]:
    if len(rows) < MIN_ROWS:
        return []
    random, warnings = np.random.default_rng(1), []
    labels = {}
    for target in targets:
        are_classes = target.task.kind in ("binary", "multiclass")
        labels[target.task.name] = target.values[rows], are_classes
    for at, name in enumerate(names):
        values = features[rows, at]
        missing = np.isnan(values)
        for what, known, sorting in (
            (f"feature {name!r}", ~missing, values),
            (f"whether feature {name!r} is missing", np.ones(len(rows), bool), missing.astype(float)),
        ):
            # Known only for some classes is e.g. the date of a treatment.
            if sorting is not values and not missing.any():
                continue
            order = random.permutation(np.flatnonzero(known))  # so that rows with equal values are in random order
            order = order[np.argsort(sorting[order], kind="stable")]
            told = [
                repr(task)
                for task, (own, are_classes) in labels.items()
                if (are_classes or sorting is values) and _determines(sorting[order], own[order], are_classes)
            ]
            if told:
                which = f"target{'s' * (len(told) > 1)} {first_few(told)}"
                advice = "remove it, unless it will be known for new rows"
                warnings.append(f"{what} determines the {which} almost exactly; {advice}")
    return warnings


def _determines(values: Array, labels: Array, are_classes: bool) -> bool:
    """Whether rows with similar (or else equal) values of a feature have the same labels; rows are sorted by it.

    For numbers, the first comparison is that of Chatterjee (2021), "A new coefficient of correlation".
    """
    known = ~np.isnan(labels)
    values, rows = values[known], int(known.sum())
    if rows < MIN_ROWS:
        return False
    ranks, counts = _ranks(labels[known])
    differing = 1 - float((counts * (counts - 1.0)).sum()) / (rows * (rows - 1.0))  # by chance, of two rows
    if rows * differing < MIN_EXPECTED:
        return False
    distances = np.abs(np.diff(ranks))
    if are_classes:
        distances, by_chance = (distances > 0).astype(np.float64), differing
        steps = len(counts) - 1.0 if rows >= MIN_SEPARATED else 0.0
    else:
        weights = 2 * np.arange(1, rows + 1) - rows - 1
        by_chance = float(2 * (weights * np.sort(ranks)).sum() / (rows * (rows - 1)))
        steps = 1.1 * rows  # a monotone function takes one step per row
    if steps and distances.sum() <= max(steps, LEAK * len(distances) * by_chance):
        return True
    equal = np.diff(values) == 0
    is_common = equal.sum() >= rows // 2 and equal.sum() * differing >= MIN_EXPECTED
    if is_common and distances[equal].sum() <= LEAK * equal.sum() * by_chance:
        return True
    if are_classes or distances.sum() > WORTH_CORRELATING * len(distances) * by_chance or np.ptp(values) == 0:
        return False
    return bool(abs(np.corrcoef(_ranks(values)[0], ranks)[0, 1]) > LEAK_CORRELATION)


def _ranks(values: Array) -> tuple[Array, NDArray[np.int64]]:
    """Returns the rank of each value, the mean rank if it occurs more than once, and how often each value occurs."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2)[inverse], counts


def _label_warnings(targets: Sequence[Target], parts: RowSplit) -> list[str]:
    warnings = []
    few: dict[str, list[str]] = {part: [] for part in PARTS}
    for target in targets:
        name, labels = repr(target.task.name), {}
        for part, rows in zip(PARTS, parts, strict=True):
            values = target.values[rows].reshape(len(rows), -1)
            labels[part] = values[~np.isnan(values).all(1), 0]  # of a dense target, one label is enough
            if len(labels[part]) < FEW_LABELS:
                few[part].append(f"{target.task.name} ({len(labels[part])})")
        if target.task.kind == "binary":
            for code in (0.0, 1.0):
                counts = {part: int((own == code).sum()) for part, own in labels.items()}
                total = sum(counts.values())
                if not all(counts.values()) or total < min(FEW_LABELS, RARE * sum(map(len, labels.values()))):
                    where = ", ".join(f"{count} in {part}" for part, count in counts.items())
                    what = f"{pluralize(total, 'label')} of class {target.label(code)!r}"
                    warnings.append(f"{name} has only {what} ({where}); results for it are unreliable")
        if target.task.kind == "multiclass":
            classes = np.unique(labels["train"])
            for part in ("val", "test"):
                absent = [repr(target.label(code)) for code in np.setdiff1d(classes, labels[part])]
                if absent and len(labels[part]) >= LABELS_PER_CLASS * len(classes):
                    what = f"no labels of class {first_few(absent)} in {part}"
                    warnings.append(f"{name} has {what}; results say nothing about it")
    for part, tasks in few.items():
        if tasks:
            what = f"fewer than {FEW_LABELS} labels of {first_few(tasks, 10)}"
            warnings.append(f"{part} has {what}; results for it are unreliable")
    return warnings


def _duplicate_warnings(number: NDArray[np.int64], columns: Array, parts: RowSplit) -> list[str]:
    train, others = number[parts.train], number[np.concatenate([parts.val, parts.test])]
    copies = int(np.isin(others, train).sum())
    # Estimate how many rows are equal by chance, as in tables of few distinct values.
    sample = np.random.default_rng(2).permutation(parts.train)[:MAX_ROWS]
    sample = sample[np.unique(number[sample], return_index=True)[1]]
    coincidence = 1.0
    if len(sample) > 1 and copies:
        equal = []
        for column in columns[sample].T:
            _, counts = np.unique(column, return_counts=True)
            equal.append(float((counts * (counts - 1.0)).sum()) / (len(sample) * (len(sample) - 1.0)))
        # Were all columns independent, it would be the product; the root allows for columns that depend on each other.
        coincidence = min(*equal, float(np.sqrt(np.prod(equal))))
    if copies <= SURPRISE * len(others) * min(1.0, len(train) * coincidence):
        return []
    return [
        f"{copies:,} of the {len(others):,} rows of val and test also occur in train, with the same features and "
        "targets, so results may look too good; remove copies, or keep them in one split with a group column"
    ]
