"""Confidence intervals that account for noise due to seeds, test rows and the choice of grouping."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri, stdtrit

from .candidates import find_candidates, matching_copies, picked_record, without_tasks
from .records import TOGETHER, Label, Record, by_label
from .summary import mean, stderr

CONFIDENCE = 0.95


def interval_half_width(
    changes: Sequence[float],
    tried: Sequence[Sequence[float]] = (),
    row_stderr: float = 0.0,
    confidence: float = CONFIDENCE,
) -> float:
    """Returns half the width of the confidence interval for a mean change over seeds.

    The interval combines two independent sources of noise: the seeds and the test rows.

    Args:
        changes: the change of the chosen grouping for each seed, with at least two seeds.
        tried: the changes of every grouping that could have been chosen, including this one (see `seed_half_width`).
        row_stderr: the standard error due to the finite number of test rows.
        confidence: the confidence level.

    Example:
        >>> round(interval_half_width([-1.0, 0.0, 1.0]), 2)
        2.48
        >>> round(interval_half_width([-1.0, 0.0, 1.0], row_stderr=2.0), 2)
        4.64
    """
    return math.hypot(seed_half_width(changes, tried, confidence), row_half_width(row_stderr, confidence))


def row_half_width(row_stderr: float, confidence: float = CONFIDENCE) -> float:
    """Returns half the width of the confidence interval that is due to the finite number of test rows.

    Example:
        >>> round(row_half_width(1.0), 2)
        1.96
    """
    return float(ndtri((1 + confidence) / 2)) * row_stderr


def seed_half_width(
    chosen: Sequence[float], tried: Sequence[Sequence[float]] = (), confidence: float = CONFIDENCE
) -> float:
    """Returns half the width of the confidence interval for a mean over seeds.

    The mean may be the best of several. The interval is based on Student's t-distribution over the seeds of the chosen
    grouping. If several groupings were tried with the same seeds, the chosen one is more likely to have been lucky.
    This luck also affects the test losses. The interval is then at least as wide as the Bonferroni interval for this
    number of comparisons, with pooled variance.

    Args:
        chosen: the change of the chosen grouping for each seed.
        tried: the changes of every grouping that could have been chosen, including this one.
        confidence: the confidence level.

    Example:
        >>> round(seed_half_width([-1.0, 0.0, 1.0]), 2)  # 4.3 times the standard error, 0.58
        2.48
    """
    tail = (1 - confidence) / 2
    alone = float(stdtrit(len(chosen) - 1, 1 - tail)) * stderr(chosen)
    if len(tried) < 2:
        return alone
    try:
        pooled = math.sqrt(mean([stderr(changes) ** 2 for changes in tried]))
    except OverflowError:
        return math.inf
    dof = sum(len(changes) - 1 for changes in tried)
    return max(alone, float(stdtrit(dof, 1 - tail / len(tried))) * pooled)


Rows = Mapping[str, NDArray[Any]]


def row_stderr(candidate: Sequence[Rows], mtl: Sequence[Rows], clusters: Any = None) -> float:
    """Returns the standard error of a grouping's mean relative change due to the finite number of rows.

    The change is the mean of several ratios between mean losses over the same rows. The delta method gives the
    influence of each row (Cochran, Sampling Techniques, section 6.4). Influences are averaged over seeds first, since
    all seeds use the same rows.

    Args:
        candidate: for each seed, each task's loss on every row from the network that serves it, with NaN for rows
            without a label.
        mtl: the corresponding losses of the network for all tasks, with the seeds in the same order.
        clusters: one cluster label per row. Rows in the same cluster (e.g. a patient or a scene) count as one.

    Example:
        >>> together = [{"age": np.array([1.0, 2.0, 3.0, 4.0])}]
        >>> row_stderr([{"age": np.array([0.5, 1.0, 1.5, 2.0])}], together)  # every loss is halved: no doubt
        0.0
    """
    influence = np.mean([_influence(mine, theirs) for mine, theirs in zip(candidate, mtl, strict=True)], axis=0)
    if clusters is not None:
        _, cluster = np.unique(np.asarray(clusters), return_inverse=True)
        influence = np.bincount(cluster.reshape(-1), weights=influence)
    count = len(influence)
    return math.sqrt(float(np.square(influence).sum()) * count / (count - 1)) if count > 1 else math.inf


def _influence(candidate: Rows, mtl: Rows) -> NDArray[np.float64]:
    by_task = [_task_influence(np.asarray(candidate[task]), np.asarray(mtl[task])) for task in mtl]
    return np.asarray(np.mean(by_task, axis=0))


def _task_influence(candidate: NDArray[Any], mtl: NDArray[Any]) -> NDArray[np.float64]:
    candidate, mtl = candidate.astype(np.float64), mtl.astype(np.float64)
    present = np.isfinite(candidate) & np.isfinite(mtl)
    if not present.any():
        return np.zeros(len(candidate))
    loss, base = candidate[present].mean(), mtl[present].mean()
    influence: NDArray[np.float64] = np.zeros(len(candidate))
    if base and not np.array_equal(candidate[present], mtl[present]):
        added = (candidate[present] - loss) / base - loss * (mtl[present] - base) / base**2
        influence[present] = np.sign(base) * added
    return influence / np.count_nonzero(present)


@dataclass(frozen=True)
class RowNoise:
    """Standard errors of relative changes due to the finite number of test rows, by method and budget.

    Attributes:
        recipe: of the mean change from `mtl` over paired seeds.
        networks: of the change from the mean of all `mtl` networks to the very networks that a user gets (see
            `picked_record`).
        copies: of the mean change over paired seeds from copies with the same number of networks (see
            `matching_copies`).
        networks_from_copies: of the change from the very networks of these copies to those of the method.
    """

    recipe: Mapping[Label, float] = field(default_factory=dict)
    networks: Mapping[Label, float] = field(default_factory=dict)
    copies: Mapping[Label, float] = field(default_factory=dict)
    networks_from_copies: Mapping[Label, float] = field(default_factory=dict)

    @staticmethod
    def of(noise: Mapping[Label, float] | RowNoise | None) -> RowNoise:
        """Returns noise that may be known only for the changes from `mtl` over paired seeds."""
        return noise if isinstance(noise, RowNoise) else RowNoise(dict(noise or {}))

    def of_networks(self, label: Label, seeds: int) -> float | None:
        """Returns the standard error for the very networks of a method, or None if unknown.

        If only the noise of the mean over seeds is known, that of a single seed is at most the square root of the
        number of seeds times as large.
        """
        known = _finite_or_none(self.networks.get(label))
        mean_noise = _finite_or_none(self.recipe.get(label))
        return known if known is not None or mean_noise is None else math.sqrt(seeds) * mean_noise

    def of_copies(self, label: Label, copies: Label) -> float | None:
        """Returns the standard error of the change from copies, or None if unknown.

        If only the noise of both changes from `mtl` is known, that of their difference is at most the sum.
        """
        known = _finite_or_none(self.copies.get(label))
        parts = [_finite_or_none(self.recipe.get(one)) for one in (label, copies)]
        sums = [part for part in parts if part is not None]
        return known if known is not None or len(sums) < 2 else sum(sums)


def _finite_or_none(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


GetRows = Callable[[Record], Rows | None]


def row_noise(
    records: Sequence[Record],
    get_rows: GetRows,
    clusters: Any = None,
    confirming_seeds: Collection[int] = (),
    unlearnt: Collection[str] = (),
) -> dict[Label, float]:
    """Returns `row_stderr` for each method and budget that groups tasks, relative to `mtl` with the same seeds.

    Args:
        records: the records of a study.
        get_rows: a function that takes a record and returns each task's loss on every test row, from the network that
            serves the task, or None if these losses are unknown.
        clusters: one cluster label per test row, or None if rows are independent.
        confirming_seeds: seeds that were not used to choose groups. If a method has records for these seeds, only those
            records are used.
        unlearnt: the tasks that do not count.
    """
    get_counted_rows, found = _counted(get_rows, unlearnt), by_label(records)
    noise = {}
    for label, mine in found.items():
        converged = not any(record.diverged for record in mine)
        usable = [record for record in mine if converged and record.groups and label != TOGETHER]
        error = _pairs_noise(
            paired_records(usable, found.get(TOGETHER, []), confirming_seeds), get_counted_rows, clusters
        )
        if error is not None:
            noise[label] = error
    return noise


def comparison_noise(
    records: Sequence[Record],
    get_rows: GetRows,
    clusters: Any = None,
    confirming_seeds: Collection[int] = (),
    unlearnt: Collection[str] = (),
) -> RowNoise:
    """Returns the noise of all comparisons that the verdict makes, as far as it is known.

    The arguments are those of `row_noise`.
    """
    get_counted_rows = _counted(get_rows, unlearnt)
    recipe = row_noise(records, get_rows, clusters, confirming_seeds, unlearnt)
    found = by_label(without_tasks(records, unlearnt))
    choosing = by_label([record for some in found.values() for record in some if record.seed not in confirming_seeds])
    known = TOGETHER in choosing and choosing[TOGETHER][0].val
    candidates = find_candidates(choosing, {record.label for record in records if record.diverged}) if known else {}
    plain = _mean_rows([get_counted_rows(record) for record in found[TOGETHER]]) if candidates else None
    noise: dict[str, dict[Label, float | None]] = {"networks": {}, "copies": {}, "networks_from_copies": {}}
    for label, one in candidates.items():
        picked = get_counted_rows(picked_record(found[label]))
        noise["networks"][label] = _rows_noise([picked], [plain], clusters)
        if (copies := matching_copies(candidates, one)) is not None:
            pairs = paired_records(found[label], found[copies], confirming_seeds)
            noise["copies"][label] = _pairs_noise(pairs, get_counted_rows, clusters)
            theirs = get_counted_rows(picked_record(found[copies]))
            noise["networks_from_copies"][label] = _rows_noise([picked], [theirs], clusters)
    kept = {name: {at: error for at, error in some.items() if error is not None} for name, some in noise.items()}
    return RowNoise(recipe, **kept)


def _counted(get_rows: GetRows, unlearnt: Collection[str]) -> GetRows:
    """Returns a function that returns the losses of the tasks that count."""

    def get_counted_rows(record: Record) -> Rows | None:
        rows = get_rows(record)
        return None if rows is None else {task: losses for task, losses in rows.items() if task not in unlearnt}

    return get_counted_rows


def _mean_rows(rows: Sequence[Rows | None]) -> Rows | None:
    known = [one for one in rows if one is not None]
    if not known or len(known) < len(rows):
        return None
    return {task: np.mean([one[task] for one in known], axis=0) for task in known[0]}


def _pairs_noise(pairs: Sequence[tuple[Record, Record]], get_rows: GetRows, clusters: Any) -> float | None:
    return _rows_noise([get_rows(mine) for mine, _ in pairs], [get_rows(theirs) for _, theirs in pairs], clusters)


def _rows_noise(mine: Sequence[Rows | None], theirs: Sequence[Rows | None], clusters: Any) -> float | None:
    """Returns `row_stderr`, or None if losses are unknown or there is only one row, which tells nothing about noise."""
    candidate, reference = ([rows for rows in some if rows is not None] for some in (mine, theirs))
    if len(candidate) < len(mine) or len(reference) < len(theirs) or not any(reference):
        return None
    return _finite_or_none(row_stderr(candidate, reference, clusters))


def paired_records(
    records: Sequence[Record], references: Sequence[Record], confirming_seeds: Collection[int] = ()
) -> list[tuple[Record, Record]]:
    """Returns the records of two methods with the same seeds: the confirming seeds if both have any, else all."""
    same_seed = {record.seed: record for record in references}
    pairs = [(record, same_seed[record.seed]) for record in records if record.seed in same_seed]
    return [pair for pair in pairs if pair[0].seed in confirming_seeds] or pairs
