"""Summarizes records, averaged over seeds, by method and budget."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tagalong.group import Group

from .records import TOGETHER, Cost, Label, Record, SkillScale, by_label


@dataclass(frozen=True)
class MethodSummary:
    """The summary of a method and budget, which is a row of `Results.table`.

    All numbers are averaged over seeds.

    Attributes:
        method: the name of the method.
        budget: the maximum number of networks, or None for methods without a budget.
        seeds: the number of seeds.
        groups: the networks trained with the first seed. The tuple is empty for `random`, which averages over many
            groupings.
        honest: whether the groups were chosen without test data.
        skill: the mean skill over tasks on test rows, or None if a network diverged or there is nothing to compare.
        validation: the same on validation rows, with the models that these rows picked.
        total: the sum of raw test losses, as in the paper's tables.
        error: the test error of each task, measured by its error metric (lower is better).
        deciding: the cost of choosing the groups, which is shared by all budgets.
        training: the cost of training the groups.
        deciding_cost: `deciding` relative to the cost of training `mtl`, in steps if known, otherwise in seconds, or
            None if neither is known.
        training_cost: `training` in the same units as `deciding_cost`.
        parameters: the total number of parameters in all networks.
        relative_parameters: `parameters` divided by the number of parameters in `mtl`.
        latency: the duration in seconds of a forward pass through all networks, or None if not measured.
        diverged: the number of seeds for which a network diverged.
    """

    method: str
    budget: int | None
    seeds: int
    groups: tuple[Group, ...]
    honest: bool
    skill: float | None
    validation: float | None
    total: float
    error: Mapping[str, float]
    deciding: Cost
    training: Cost
    deciding_cost: float | None
    training_cost: float | None
    parameters: float
    relative_parameters: float | None
    latency: float | None
    diverged: int = 0

    @property
    def label(self) -> Label:
        """The method and its budget."""
        return self.method, self.budget


def summarize(records: Sequence[Record], scale: SkillScale | None = None) -> list[MethodSummary]:
    """Summarizes each method and budget.

    Methods are in order of first appearance, with smaller budgets first.
    """
    labelled = by_label(records)
    order = list(dict.fromkeys(record.method for record in records))
    together = labelled.get(TOGETHER, [])
    unit = mean_cost([record.training for record in together])
    plain_parameters = mean([record.parameters for record in together])
    summaries = []
    for label in sorted(labelled, key=lambda label: (order.index(label[0]), label[1] or 0)):
        same = labelled[label]
        deciding, training = mean_cost([r.deciding for r in same]), mean_cost([r.training for r in same])
        parameters = mean([record.parameters for record in same])
        latencies = [record.latency for record in same if record.latency is not None]
        summary = MethodSummary(
            *label,
            seeds=len(same),
            groups=same[0].groups,
            honest=all(record.honest for record in same),
            skill=_mean_skill(same, scale, "test"),
            validation=_mean_skill(same, scale, "val"),
            total=mean([record.total() for record in same]),
            error={task: mean([record.test[task].error for record in same]) for task in same[0].test},
            deciding=deciding,
            training=training,
            deciding_cost=relative_cost(deciding, unit),
            training_cost=relative_cost(training, unit),
            parameters=parameters,
            relative_parameters=parameters / plain_parameters if parameters and plain_parameters > 0 else None,
            latency=mean(latencies) if latencies else None,
            diverged=sum(record.diverged for record in same),
        )
        summaries.append(summary)
    return summaries


def _mean_skill(records: Sequence[Record], scale: SkillScale | None, part: str) -> float | None:
    skill = math.nan if scale is None else mean([scale.mean(record, part) for record in records])
    return None if math.isnan(skill) else skill


def mean(values: Sequence[float]) -> float:
    """Returns the mean, or NaN if there are no values."""
    return sum(values) / len(values) if values else math.nan


def stderr(values: Sequence[float]) -> float:
    """Returns the standard error of the mean; infinity if the values are infinite or their squares overflow.

    Example:
        >>> round(stderr([1.0, 2.0, 3.0]), 3)
        0.577
    """
    center = mean(values)
    if not math.isfinite(center):
        return math.inf
    try:
        return math.sqrt(sum((value - center) ** 2 for value in values) / (len(values) - 1) / len(values))
    except OverflowError:
        return math.inf


def mean_cost(costs: Sequence[Cost]) -> Cost:
    """Returns the mean cost, with the number of networks and the number of steps rounded to integers."""
    total, count = sum(costs, Cost()), max(1, len(costs))
    return Cost(round(total.networks / count), round(total.steps / count), total.seconds / count)


def relative_cost(cost: Cost, reference: Cost) -> float | None:
    """Returns the ratio of two costs, in steps if known, otherwise in seconds, or None if neither is known.

    Steps are preferred because seconds depend on the machine and favor networks trained in large chunks.
    """
    if reference.steps and (cost.steps or not cost.networks):
        return cost.steps / reference.steps
    return cost.seconds / reference.seconds if reference.seconds and (cost.seconds or not cost.networks) else None
