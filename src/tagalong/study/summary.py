"""Summaries of records, averaged over seeds: by method and budget, and by task."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tagalong.group import Group
from tagalong.score import Score

from .records import TOGETHER, Cost, Label, Record, by_label
from .relative_losses import relative


@dataclass(frozen=True)
class MethodSummary:
    """The summary of a method and budget, a row of `Results.table`. All numbers are means over seeds.

    Attributes:
        method: the name of the method.
        budget: the maximum number of networks; None for methods without a budget.
        seeds: the number of seeds.
        groups: the networks of the first seed; empty for `random`, which averages over many groupings.
        honest: False if the groups were chosen with test data.
        total: the sum of raw test losses, as in the paper's tables.
        total_stderr: the standard error of `total` over seeds; None with one seed.
        change: the relative change in test loss from `mtl`, averaged over tasks; negative is better. None if there are
            no results for `mtl`.
        change_stderr: the standard error of `change` over paired seeds; None with one seed.
        random_change: like `change`, but relative to `random` with the same budget.
        validation: like `change`, but on the validation rows.
        loss: the test loss of each task.
        error: the test error of each task, in its own measure; lower is better.
        deciding: the cost of deciding on the groups, for all budgets together.
        training: the cost of training the groups.
        deciding_cost: `deciding` relative to the cost of training `mtl`, in steps if they are known, otherwise in
            seconds; None if neither is known.
        training_cost: `training` in the same units.
        parameters: the total number of parameters of all networks.
        relative_parameters: `parameters` relative to `mtl`.
        parameters_per_network: `relative_parameters` divided by the number of networks.
        latency: the time in seconds of a forward pass through all networks; None if not measured.
        money: the total price of deciding and training; None if there is no price per hour.
        diverged: the number of seeds with which a network diverged; if it is not zero, totals and changes are unknown.
    """

    method: str
    budget: int | None
    seeds: int
    groups: tuple[Group, ...]
    honest: bool
    total: float
    total_stderr: float | None
    change: float | None
    change_stderr: float | None
    random_change: float | None
    validation: float | None
    loss: Mapping[str, float]
    error: Mapping[str, float]
    deciding: Cost
    training: Cost
    deciding_cost: float | None
    training_cost: float | None
    parameters: float
    relative_parameters: float | None
    parameters_per_network: float | None
    latency: float | None
    money: float | None
    diverged: int = 0

    @property
    def label(self) -> Label:
        """The method and its budget."""
        return self.method, self.budget


def summarize(records: Sequence[Record], price_per_hour: float | None = None) -> list[MethodSummary]:
    """Summarizes each method and budget: methods in order of first appearance, smaller budgets first."""
    found = by_label(records)
    order = list(dict.fromkeys(record.method for record in records))
    labels = sorted(found, key=lambda label: (order.index(label[0]), label[1] or 0))
    return [_summary(found[label], found, price_per_hour) for label in labels]


def _summary(found: list[Record], others: Mapping[Label, list[Record]], price: float | None) -> MethodSummary:
    first = found[0]
    together = others.get(TOGETHER, [])
    against_mtl = changes(found, together)
    totals = [record.total() for record in found]
    deciding, training = mean_cost([r.deciding for r in found]), mean_cost([r.training for r in found])
    unit = mean_cost([record.training for record in together])
    parameters = mean([record.parameters for record in found])
    relative_parameters = _ratio(parameters, mean([record.parameters for record in together]))
    return MethodSummary(
        first.method,
        first.budget,
        seeds=len(found),
        groups=first.groups,
        honest=all(record.honest for record in found),
        total=mean(totals),
        total_stderr=stderr(totals) if len(totals) > 1 and not any(record.diverged for record in found) else None,
        change=_mean_or_none(against_mtl),
        change_stderr=stderr(against_mtl) if len(against_mtl) > 1 else None,
        random_change=_mean_or_none(changes(found, others.get(("random", first.budget), []))),
        validation=_mean_or_none(changes(found, together, "val")),
        loss=_by_task([record.test for record in found], "loss"),
        error=_by_task([record.test for record in found], "error"),
        deciding=deciding,
        training=training,
        deciding_cost=in_units_of(deciding, unit),
        training_cost=in_units_of(training, unit),
        parameters=parameters,
        relative_parameters=relative_parameters,
        parameters_per_network=_per_network(relative_parameters, len(first.groups)),
        latency=_mean_or_none([record.latency for record in found if record.latency is not None]),
        money=None if price is None else price * (deciding.seconds + training.seconds) / 3600,
        diverged=sum(record.diverged for record in found),
    )


def _ratio(mine: float, theirs: float) -> float | None:
    return mine / theirs if mine > 0 and theirs > 0 else None


def _per_network(parameters: float | None, networks: int) -> float | None:
    return parameters / networks if parameters and networks else None


def _by_task(outcomes: Sequence[Mapping[str, Score]], what: str) -> dict[str, float]:
    return {task: mean([getattr(outcome[task], what) for outcome in outcomes]) for task in outcomes[0]}


def _mean_or_none(values: Sequence[float]) -> float | None:
    return mean(values) if values else None


@dataclass(frozen=True)
class TaskChange:
    """The change from `mtl` to a method for one task. All numbers are means over seeds.

    Attributes:
        task: the name of the task.
        change: the relative change in test loss from `mtl`; negative is better.
        stderr: the standard error of `change` over paired seeds; None with one seed.
        loss: the test loss with this method.
        before: the test error with `mtl`.
        after: the test error with this method.
    """

    task: str
    change: float
    stderr: float | None
    loss: float
    before: float
    after: float

    @property
    def sure(self) -> bool:
        """Whether the change is larger than two standard errors; False with one seed."""
        return self.stderr is not None and abs(self.change) > 2 * self.stderr


def task_change(task: str, pairs: Sequence[tuple[Record, Record]]) -> TaskChange:
    """Returns the change from `mtl` to a method for one task.

    Args:
        task: the name of the task.
        pairs: for each seed, the record of the method and the record of `mtl`.
    """
    found = [relative(mine.test[task].loss, theirs.test[task].loss) for mine, theirs in pairs]
    return TaskChange(
        task,
        mean(found),
        stderr(found) if len(found) > 1 else None,
        loss=mean([mine.test[task].loss for mine, _ in pairs]),
        before=mean([theirs.test[task].error for _, theirs in pairs]),
        after=mean([mine.test[task].error for mine, _ in pairs]),
    )


def changes(found: Sequence[Record], others: Sequence[Record], part: str = "test") -> list[float]:
    """Returns the relative change of each record from the other record with the same seed; negative is better.

    If any record diverged, the list is empty, since the remaining seeds would be biased toward lucky ones.
    """
    if any(record.diverged for record in [*found, *others]):
        return []
    same_seed = {record.seed: record for record in others}
    return [record.change(same_seed[record.seed], part) for record in found if record.seed in same_seed]


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
    """Returns the mean cost, with networks and steps rounded to integers."""
    total, count = sum(costs, Cost()), max(1, len(costs))
    return Cost(round(total.networks / count), round(total.steps / count), total.seconds / count)


def in_units_of(cost: Cost, unit: Cost) -> float | None:
    """Returns the ratio of two costs, in steps if they are known, otherwise in seconds; None if neither is known.

    Steps are preferred because seconds depend on the machine and favor networks trained in large batches.
    """
    if unit.steps and (cost.steps or not cost.networks):
        return cost.steps / unit.steps
    return cost.seconds / unit.seconds if unit.seconds and (cost.seconds or not cost.networks) else None
