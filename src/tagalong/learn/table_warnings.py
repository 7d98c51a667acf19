"""Warnings about tables that can be learned from but promise too much: leaks, IDs, few labels, and duplicate rows."""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tagalong.errors import first_few, pluralize

from .splitting import PARTS, RowNumbers, RowSplit
from .targets import Label, Target

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
SEQUENCE = 1.2  # the range of integer IDs, relative to their number
DISTINCT = 0.99  # the fraction of distinct texts in a column of IDs
# Not "bmi_index", which is a measurement.
ID_NAME = re.compile(
    r"(?:(?:^|[^A-Za-z])(?i:id|uuid|guid)|[a-z](?:ID|Id|UUID|Uuid|GUID|Guid)|^(?i:(?:row|record|sample)?[\W_]*index))$"
)
FEW_LABELS = 10
RARE = 0.03  # the fraction of rows below which few labels of a class are more than a sign of a small table
LABELS_PER_CLASS = 10  # with fewer on average, a split may lack a class by chance
SURPRISE = 5  # how many times more duplicates than by chance are worth a warning
MIX = np.uint64(0x9E3779B97F4A7C15)
logger = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class Feature:
    """A feature column, before it is prepared.

    Attributes:
        name: the name of the column.
        values: its numbers, or a number for each category; NaN where missing.
        is_category: whether the numbers stand for categories.
    """

    name: str
    values: NDArray[Any]
    is_category: bool = False


def category_feature(name: str, column: NDArray[np.generic]) -> Feature:
    """Returns a feature with a number for each distinct value of a column."""
    if column.dtype != object:
        return Feature(name, column.astype(np.float64), is_category=True)
    numbers: dict[object, float] = {None: np.nan}
    codes = [numbers.setdefault(value, float(len(numbers))) for value in column.tolist()]
    return Feature(name, np.array(codes), is_category=True)


def table_warnings(
    features: Sequence[Feature],
    targets: Sequence[Target],
    parts: RowSplit,
    groups: NDArray[np.generic] | None = None,
    named: bool = True,
) -> list[str]:
    """Returns warnings about features that determine a target, IDs, few labels, and duplicate rows.

    Large tables are sampled, so that this takes seconds at most.

    Args:
        features: the features, in any order.
        targets: the labels of each task.
        parts: the row numbers of each split.
        groups: the group label of each row; rows of the same group are expected to be similar.
        named: whether the features come from a table, where columns of IDs are common.
    """
    ids = [feature for feature in features if named and _is_id(feature)]
    others = [feature for feature in features if feature not in ids]
    return [
        *_leak_warnings(features, targets, _sample_rows(others, targets, parts, groups)),
        *(_id_warning(feature) for feature in ids),
        *(warning for target in targets for warning in _label_warnings(target, parts)),
        *_duplicate_warnings(others, targets, parts),
    ]


def log_warnings(name: str, warnings: Sequence[str]) -> None:
    """Logs the warnings about the data of a problem as one message."""
    if warnings:
        logger.warning("%s", "\n  - ".join([f"warnings about the data of {name!r}:", *warnings]))


def _sample_rows(
    features: Sequence[Feature], targets: Sequence[Target], parts: RowSplit, groups: NDArray[np.generic] | None
) -> RowNumbers:
    """Returns a sample of distinct rows, at most one per group: copies of a row would be predicted by any feature."""
    random = np.random.default_rng(0)
    rows = random.permutation(np.concatenate(parts))
    if groups is not None:
        rows = rows[np.unique(groups[rows], return_index=True)[1]]
        rows = random.permutation(rows)
    pairs = max(1, len(features) * len(targets))
    rows = rows[: min(MAX_ROWS, MAX_COMPARISONS // pairs)]
    return np.sort(rows[np.unique(_row_hashes(features, targets, rows), return_index=True)[1]])


def _leak_warnings(features: Sequence[Feature], targets: Sequence[Target], rows: RowNumbers) -> list[str]:
    flat = [target for target in targets if target.values.ndim == 1]
    if len(rows) < MIN_ROWS:
        return []
    labels = [
        _Labels.of(target.values[rows], are_classes=target.task.kind in ("binary", "multiclass")) for target in flat
    ]
    random, warnings = np.random.default_rng(1), []
    for feature in features:
        order = random.permutation(len(rows))  # so that rows with equal values are in random order
        values = feature.values[rows].astype(np.float64)
        order = order[np.argsort(values[order], kind="stable")][: int((~np.isnan(values)).sum())]
        told = [
            repr(target.task.name)
            for target, known in zip(flat, labels, strict=True)
            if _determines(values[order], known.ordered(order))
        ]
        if told:
            warnings.append(_leak_warning(f"feature {feature.name!r}", told))
        if len(order) < len(rows):
            warnings += _missingness_warnings(feature.name, np.isnan(values), flat, labels)
    return warnings


def _missingness_warnings(
    name: str, missing: NDArray[np.bool_], targets: Sequence[Target], labels: Sequence[_Labels]
) -> list[str]:
    """Returns a warning if a feature is known only for some classes, e.g. the date of a treatment."""
    order = np.random.default_rng(3).permutation(len(missing))
    order = order[np.argsort(missing[order], kind="stable")]
    told = [
        repr(target.task.name)
        for target, known in zip(targets, labels, strict=True)
        if known.are_classes and _determines(missing[order].astype(np.float64), known.ordered(order))
    ]
    return [_leak_warning(f"whether feature {name!r} is missing", told)] if told else []


def _leak_warning(what: str, told: Sequence[str]) -> str:
    targets = f"target{'s' * (len(told) > 1)} {first_few(told)}"
    return f"{what} determines the {targets} almost exactly; remove it, unless it will be known for new rows"


@dataclass(frozen=True, eq=False)
class _Labels:
    """The labels of a target as ranks, and how much two rows differ by chance.

    Attributes:
        ranks: the rank of each label, NaN where missing.
        are_classes: whether labels are equal or not, without an order.
        distinct: the number of distinct labels.
        differing: the probability that two rows have different labels.
        distance: the mean distance between the labels of two rows.
    """

    ranks: NDArray[np.float64]
    are_classes: bool
    distinct: int
    differing: float
    distance: float

    @staticmethod
    def of(values: NDArray[np.float64], are_classes: bool) -> _Labels:
        known = ~np.isnan(values)
        number = max(2, int(known.sum()))
        ranks = np.full(len(values), np.nan)
        ranks[known], counts = _ranks(values[known])
        differing = 1 - float((counts * (counts - 1.0)).sum()) / (number * (number - 1.0))
        distance = differing if are_classes else _mean_difference(ranks[known])
        return _Labels(ranks, are_classes, len(counts), differing, distance)

    def ordered(self, order: RowNumbers) -> _Labels:
        """Returns the labels of some rows, in this order; chance depends on which rows these are."""
        ranks = self.ranks[order]
        if len(order) < len(self.ranks):
            return _Labels.of(ranks, self.are_classes)
        return replace(self, ranks=ranks)


def _determines(values: NDArray[np.float64], labels: _Labels) -> bool:
    """Whether rows with similar (or else equal) values of a feature have the same labels; rows are sorted by it.

    For numbers, the first comparison is that of Chatterjee (2021), "A new coefficient of correlation".
    """
    known = ~np.isnan(labels.ranks)
    ranks, values = labels.ranks[known], values[known]
    if len(ranks) < MIN_ROWS or len(ranks) * labels.differing < MIN_EXPECTED:
        return False
    distances = np.abs(np.diff(ranks))
    if labels.are_classes:
        distances = (distances > 0).astype(np.float64)
        steps = labels.distinct - 1.0 if len(ranks) >= MIN_SEPARATED else 0.0
    else:
        steps = 1.1 * len(ranks)  # a monotone function takes one step per row
    total, by_chance = float(distances.sum()), len(distances) * labels.distance
    if steps and total <= max(steps, LEAK * by_chance):
        return True
    equal = np.diff(values) == 0
    number = int(equal.sum())
    is_common = number >= len(ranks) // 2 and number * labels.differing >= MIN_EXPECTED
    if is_common and float(distances[equal].sum()) <= LEAK * number * labels.distance:
        return True
    is_close = not labels.are_classes and total <= WORTH_CORRELATING * by_chance
    return is_close and _correlation(values, ranks) > LEAK_CORRELATION


def _ranks(values: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Returns the rank of each value, the mean rank if it occurs more than once, and how often each value occurs."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2)[inverse.reshape(-1)], counts


def _mean_difference(ranks: NDArray[np.float64]) -> float:
    """Returns the mean absolute difference between two different rows."""
    rows = len(ranks)
    if rows < 2:
        return 0.0
    weights = 2 * np.arange(1, rows + 1) - rows - 1
    return float(2 * (weights * np.sort(ranks)).sum() / (rows * (rows - 1)))


def _correlation(values: NDArray[np.float64], ranks: NDArray[np.float64]) -> float:
    """Returns the absolute rank correlation; 0 if the values are constant."""
    others, _ = _ranks(values)
    return 0.0 if np.ptp(others) == 0 else float(abs(np.corrcoef(others, ranks)[0, 1]))


def _is_id(feature: Feature) -> bool:
    # Most columns are recognized by their first rows.
    return _are_ids(feature, feature.values[:MAX_ROWS], is_part=True) and _are_ids(feature, feature.values)


def _are_ids(feature: Feature, values: NDArray[Any], is_part: bool = False) -> bool:
    known = values[~np.isnan(values)]
    if len(known) < max(MIN_ROWS, DISTINCT * len(values)):
        return False
    if feature.is_category:
        return len(np.unique(known)) >= DISTINCT * len(known)
    if not (known == np.round(known)).all() or len(np.unique(known)) < len(known):
        return False
    is_sequence = is_part or bool(np.ptp(known) + 1 <= SEQUENCE * len(known))
    return is_sequence or ID_NAME.search(feature.name) is not None


def _id_warning(feature: Feature) -> str:
    what = "has a different value in almost every row" if feature.is_category else "numbers the rows"
    return f"feature {feature.name!r} {what}, like an ID; remove it, since it says nothing about new rows"


def _label_warnings(target: Target, parts: RowSplit) -> list[str]:
    name = repr(target.task.name)
    labels = {part: _known(target, rows) for part, rows in zip(PARTS, parts, strict=True)}
    warnings = [
        f"{name} has only {pluralize(len(known), 'label')} in the {len(rows):,} rows of {part}; "
        "results for it are unreliable"
        for (part, known), rows in zip(labels.items(), parts, strict=True)
        if len(known) < min(FEW_LABELS, len(rows) / 2)
    ]
    if target.task.kind == "binary":
        return warnings + _rare_class_warnings(target, labels)
    if target.task.kind != "multiclass":
        return warnings
    classes = np.unique(labels["train"])
    for part in ("val", "test"):
        absent = np.setdiff1d(classes, labels[part])
        if len(absent) and len(labels[part]) >= LABELS_PER_CLASS * len(classes):
            shown = first_few([repr(_label(target, code)) for code in absent])
            warnings.append(f"{name} has no labels of class {shown} in {part}; results say nothing about it")
    return warnings


def _rare_class_warnings(target: Target, labels: dict[str, NDArray[np.float64]]) -> list[str]:
    """Returns a warning if one of two classes is rare. There is another warning about parts that lack a class."""
    warnings = []
    for code in (0.0, 1.0):
        counts = {part: int((known == code).sum()) for part, known in labels.items()}
        total, all_labels = sum(counts.values()), sum(map(len, labels.values()))
        if total < min(FEW_LABELS, RARE * all_labels):
            found = ", ".join(f"{count} in {part}" for part, count in counts.items())
            what = f"{target.task.name!r} has only {pluralize(total, 'label')} of class {_label(target, code)!r}"
            warnings.append(f"{what} ({found}); results for it are unreliable")
    return warnings


def _known(target: Target, rows: RowNumbers) -> NDArray[np.float64]:
    """Returns the labels of some rows; for dense targets, one per row."""
    values = target.values[rows].reshape(len(rows), -1)
    known = ~np.isnan(values)
    return values[known] if values.shape[1] == 1 else values[known.any(1), 0]


def _label(target: Target, code: float) -> Label:
    return int(code) if target.classes is None else target.classes[int(code)]


def _duplicate_warnings(features: Sequence[Feature], targets: Sequence[Target], parts: RowSplit) -> list[str]:
    if not features:
        return []
    train, val, test = (_row_hashes(features, targets, rows) for rows in parts)
    others = np.concatenate([val, test])
    copies = int(np.isin(others, train).sum())
    if copies <= SURPRISE * len(others) * min(1.0, len(train) * _coincidence(features, targets, parts.train)):
        return []
    return [
        f"{copies:,} of the {len(others):,} rows of val and test also occur in train, with the same features and "
        "targets, so results may look too good; remove copies, or keep them in one split with a group column"
    ]


def _coincidence(features: Sequence[Feature], targets: Sequence[Target], rows: RowNumbers) -> float:
    """Estimates the probability that two rows are equal by chance, as in tables of few distinct values."""
    sample = np.random.default_rng(2).permutation(rows)[:MAX_ROWS]
    sample = sample[np.unique(_row_hashes(features, targets, sample), return_index=True)[1]]
    if len(sample) < 2:
        return 1.0
    flat = (target.values for target in targets if target.values.ndim == 1)
    equal = [_equal_pairs(values[sample]) for values in (*(feature.values for feature in features), *flat)]
    # Were all columns independent, it would be their product; the root allows for columns that depend on each other.
    return min(*equal, float(np.sqrt(np.prod(equal))))


def _equal_pairs(values: NDArray[Any]) -> float:
    """Returns the fraction of pairs of rows with equal values."""
    _, counts = np.unique(values, return_counts=True)
    return float((counts * (counts - 1.0)).sum()) / (len(values) * (len(values) - 1.0))


def _row_hashes(features: Sequence[Feature], targets: Sequence[Target], rows: RowNumbers) -> NDArray[np.uint64]:
    """Returns a number for each row that is the same for equal rows, and otherwise almost surely different."""
    hashes = np.zeros(len(rows), np.uint64)
    flat = (target.values for target in targets if target.values.ndim == 1)
    for values in (*(feature.values for feature in features), *flat):
        column = values[rows].astype(np.float64) + 0.0  # -0.0 equals 0.0
        column[np.isnan(column)] = np.nan  # there are many kinds of NaN
        hashes = (hashes ^ column.view(np.uint64)) * MIX
        hashes ^= hashes >> np.uint64(32)
    return hashes
