"""Warnings about tables that can be learned from but promise too much: leaks, few labels, and duplicate rows."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from tagalong.errors import first_few

from .splitting import PARTS, RowSplit
from .targets import Target

MAX_ROWS = 20_000  # a sample of this size shows whether a feature determines a target
MAX_COMPARISONS = 2 * 10**7  # of rows, for all pairs of a feature and a target
MIN_ROWS = 30  # with fewer, anything can happen by chance
MIN_EXPECTED = 15  # the number of neighbors with different labels that chance must predict before none is a surprise
LEAK = 0.02  # the difference between neighbors, relative to chance, below which a feature determines a target
LEAK_CORRELATION = 0.999  # of ranks
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
    warnings = [warning for target in targets for warning in _class_warnings(target, parts)]
    warnings += _few_labels_warnings(targets, parts)
    if not names:
        return warnings
    flat = [target for target in targets if target.values.ndim == 1]
    columns = np.column_stack([raw.numpy(), *(target.values for target in flat)]).astype(np.float64)
    # There are many kinds of NaN, and two of 0; rows must be contiguous to be compared as a whole.
    columns = np.ascontiguousarray(np.where(np.isnan(columns), np.nan, columns + 0.0))
    _, row_ids = np.unique(columns.view(f"V{columns.itemsize * columns.shape[1]}").ravel(), return_inverse=True)

    # At most one row per group, and no copies of rows, which any feature would predict.
    random = np.random.default_rng(0)
    rows = random.permutation(np.concatenate(parts))
    if groups is not None:
        rows = random.permutation(rows[np.unique(groups[rows], return_index=True)[1]])
    rows = rows[: min(MAX_ROWS, MAX_COMPARISONS // max(1, len(names) * len(flat)))]
    rows = rows[np.unique(row_ids[rows], return_index=True)[1]]
    leaks = []
    if len(rows) >= MIN_ROWS:
        for name, feature in zip(names, columns[rows].T, strict=False):
            leaks += _leak_warnings(name, feature, flat, rows)
    return [*leaks, *warnings, *_duplicate_warnings(row_ids, columns, parts)]


def log_warnings(name: str, warnings: Sequence[str]) -> None:
    """Logs the warnings about the data of a problem as one message."""
    if warnings:
        logger.warning("%s", "\n  - ".join([f"warnings about the data of {name!r}:", *warnings]))


def _leak_warnings(name: str, feature: Array, targets: Sequence[Target], rows: NDArray[np.int64]) -> list[str]:
    """Warns if a feature determines targets, or whether it is missing does, as for the date of a treatment."""
    missing = np.isnan(feature)
    classes = [target for target in targets if target.has_classes]
    warnings = []
    for what, known, values, possible in (
        (f"feature {name!r}", ~missing, feature, targets),
        (f"whether feature {name!r} is missing", np.ones_like(missing), missing.astype(np.float64), classes),
    ):
        order = np.random.default_rng(1).permutation(np.flatnonzero(known))  # of rows with equal values
        order = order[np.argsort(values[order], kind="stable")]
        told = [
            repr(target.task.name)
            for target in possible
            if _determines(values[order], target.values[rows[order]], target.has_classes)
        ]
        if told:
            which = f"target{'s' * (len(told) > 1)} {first_few(told)}"
            warnings.append(f"{what} determines the {which} almost exactly; remove it, unless it is known for new rows")
    return warnings


def _determines(values: Array, labels: Array, are_classes: bool) -> bool:
    """Returns whether a feature, given in ascending order, tells the labels: those of neighbors hardly differ."""
    from scipy.stats import rankdata

    values, ranks = values[~np.isnan(labels)], rankdata(labels[~np.isnan(labels)])
    if len(ranks) < MIN_ROWS:
        return False
    differences = np.abs(np.diff(ranks))
    by_chance = np.abs(np.diff(np.random.default_rng(2).permutation(ranks)))
    if (by_chance > 0).sum() < MIN_EXPECTED:
        return False
    if are_classes:
        differences, by_chance = differences > 0, by_chance > 0
    if differences.mean() <= LEAK * by_chance.mean():
        return True
    # A feature with few values tells the labels if rows with the same value have the same label.
    equal = np.diff(values) == 0
    if equal.sum() >= len(ranks) // 2 and differences[equal].mean() <= LEAK * by_chance.mean():
        return True
    if are_classes or np.ptp(values) == 0:
        return False
    return bool(abs(np.corrcoef(rankdata(values), ranks)[0, 1]) > LEAK_CORRELATION)


def _share_of_different_pairs(values: Array) -> float:
    counts, rows = np.unique(values, return_counts=True)[1], len(values)
    return 1 - float((counts * (counts - 1.0)).sum()) / max(1.0, rows * (rows - 1.0))


def _class_warnings(target: Target, parts: RowSplit) -> list[str]:
    """Warns of classes with few labels, and of parts without a class that could be expected there."""
    if not target.has_classes:
        return []
    codes = np.unique(target.values[~np.isnan(target.values)])
    counts = np.array([[(target.values[rows] == code).sum() for code in codes] for rows in parts])  # [parts, classes]
    labels = counts.sum(1, keepdims=True)
    is_lacking = (counts == 0) & (labels >= LABELS_PER_CLASS * len(codes))
    warnings = []
    for code, in_parts, lacking in zip(codes, counts.T, is_lacking.T, strict=True):
        if lacking.any() or in_parts.sum() < min(FEW_LABELS, RARE * labels.sum()):
            where = ", ".join(f"{count} in {part}" for part, count in zip(PARTS, in_parts, strict=True))
            what = f"few labels of class {target.label(code)!r} ({where})"
            warnings.append(f"{target.task.name!r} has {what}; results for it are unreliable")
    return warnings


def _few_labels_warnings(targets: Sequence[Target], parts: RowSplit) -> list[str]:
    warnings = []
    for part, rows in zip(PARTS, parts, strict=True):
        # Of a dense target, one label is enough.
        counts = {
            target.task.name: int((~np.isnan(target.values[rows].reshape(len(rows), -1))).any(1).sum())
            for target in targets
        }
        few = [f"{name} ({count})" for name, count in counts.items() if count < FEW_LABELS]
        if few:
            what = f"fewer than {FEW_LABELS} labels of {first_few(few, 10)}"
            warnings.append(f"{part} has {what}; results for it are unreliable")
    return warnings


def _duplicate_warnings(row_ids: NDArray[np.int64], columns: Array, parts: RowSplit) -> list[str]:
    """Warns if more rows of val and test are copies of training rows than in a table of independent columns."""
    train, others = row_ids[parts.train], row_ids[np.concatenate([parts.val, parts.test])]
    copies = int(np.isin(others, train).sum())
    sample = np.random.default_rng(2).permutation(parts.train)[:MAX_ROWS]
    sample = sample[np.unique(row_ids[sample], return_index=True)[1]]
    chance = math.prod(1 - _share_of_different_pairs(column) for column in columns[sample].T)  # that two are equal
    # The root allows for columns that depend on each other.
    if copies <= SURPRISE * len(others) * min(1.0, len(train) * chance**0.5):
        return []
    return [
        f"{copies:,} of the {len(others):,} rows of val and test also occur in train, with the same features and "
        "targets, so results may look too good; remove copies, or keep them in one split with a group column"
    ]
