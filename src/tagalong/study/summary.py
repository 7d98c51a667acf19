"""Summaries of records: what each method reached for a budget, and what it changed for each task; means over seeds."""

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
    """What a method reached for a budget: a row of `Results.table`. Numbers are means over seeds.

    Attributes:
        method: its name.
        budget: the number of networks allowed; None for methods without a budget.
        seeds: the number of seeds.
        groups: the networks of the first seed; empty for `random`, which is an average over many groupings.
        honest: False if the groups were chosen by looking at test data.
        total: the sum of raw test losses, as in the paper's tables.
        total_stderr: its standard error over seeds; None with one seed.
        change: the relative change of the test loss against `mtl`, mean over tasks; negative is better. None if there
            are no results of `mtl`.
        change_stderr: its standard error over seeds, from pairs of the same seed; None with one seed.
        random_change: like `change`, against `random` with the same budget.
        validation: like `change`, on the validation rows.
        loss: the test loss of each task.
        error: the test error of each task, in its own measure; lower is better.
        deciding: the cost of deciding on the groups, for all budgets together.
        training: the cost of training the groups.
        deciding_cost: `deciding` in units of training `mtl`: by steps if they are known, else by seconds. None if
            neither is known.
        training_cost: `training` in the same units.
        parameters: the number of parameters of all networks together.
        relative_parameters: `parameters` in units of those of `mtl`.
        parameters_per_network: `relative_parameters` divided by the number of networks.
        latency: seconds of one forward pass through all networks; None if it was not measured.
        money: the price of deciding and training together; None if there is no price per hour.
        diverged: the number of seeds with which a network diverged. If there are any, no total and no change is known.
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
    """Summarizes every method and budget, in the order in which methods first appear, smaller budgets first."""
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
    """What a method changes for one task. Numbers are means over seeds.

    Attributes:
        task: its name.
        change: the relative change of its test loss against `mtl`; negative is better.
        stderr: the standard error of `change` over seeds, from pairs of the same seed; None with one seed.
        loss: its test loss with this method.
        before: its test error with `mtl`.
        after: its test error with this method.
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
    """Returns what a method changes for a task.

    Args:
        task: its name.
        pairs: for each seed the record of the method and that of `mtl`.
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
    """Returns the relative change of each record against the other record with its seed; negative is better.

    If any of them diverged the list is empty: the seeds that are left would be the lucky ones.
    """
    if any(record.diverged for record in [*found, *others]):
        return []
    same_seed = {record.seed: record for record in others}
    return [record.change(same_seed[record.seed], part) for record in found if record.seed in same_seed]


def mean(values: Sequence[float]) -> float:
    """Returns the mean, or NaN if there are no values."""
    return sum(values) / len(values) if values else math.nan


def stderr(values: Sequence[float]) -> float:
    """Returns the standard error of the mean.

    Example:
        >>> round(stderr([1.0, 2.0, 3.0]), 3)
        0.577
    """
    centre = mean(values)
    return math.sqrt(sum((value - centre) ** 2 for value in values) / (len(values) - 1) / len(values))


def mean_cost(costs: Sequence[Cost]) -> Cost:
    """Returns the mean over seeds, with networks and steps rounded to integers."""
    total, count = sum(costs, Cost()), max(1, len(costs))
    return Cost(round(total.networks / count), round(total.steps / count), total.seconds / count)


def in_units_of(cost: Cost, unit: Cost) -> float | None:
    """Divides a cost by another: steps if they are known, else seconds; None if neither is.

    Steps come first since seconds differ between machines, and favor networks that were trained many at once.
    """
    if unit.steps and (cost.steps or not cost.networks):
        return cost.steps / unit.steps
    return cost.seconds / unit.seconds if unit.seconds and (cost.seconds or not cost.networks) else None
