"""Summarizes records, averaged over seeds, by method and budget or by task."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tagalong.group import Group
from tagalong.score import Score

from .records import TOGETHER, Cost, Label, Record, by_label
from .relative_losses import relative_change


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
        total: the sum of raw test losses, as in the paper's tables.
        total_stderr: the standard error of `total` over seeds, or None if there is only one seed.
        change: the relative change in test loss from `mtl`, averaged over tasks (negative is better). Returns None if
            there are no results for `mtl`.
        change_stderr: the standard error of `change` over paired seeds, or None if there is only one seed.
        random_change: like `change`, but relative to `random` with the same budget.
        validation: like `change`, but on the validation rows.
        loss: the test loss of each task.
        error: the test error of each task, measured by its error metric (lower is better).
        deciding: the cost of choosing the groups, which is shared by all budgets.
        training: the cost of training the groups.
        deciding_cost: `deciding` relative to the cost of training `mtl`, in steps if known, otherwise in seconds, or
            None if neither is known.
        training_cost: `training` in the same units as `deciding_cost`.
        parameters: the total number of parameters in all networks.
        relative_parameters: `parameters` divided by the number of parameters in `mtl`.
        parameters_per_network: `relative_parameters` divided by the number of networks.
        latency: the duration in seconds of a forward pass through all networks, or None if not measured.
        money: the total price of deciding and training, or None if there is no price per hour.
        diverged: the number of seeds for which a network diverged. If any network diverged, totals and changes are
            unknown.
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
    """Summarizes each method and budget.

    Methods are in order of first appearance, with smaller budgets first.
    """
    found = by_label(records)
    order = list(dict.fromkeys(record.method for record in records))
    labels = sorted(found, key=lambda label: (order.index(label[0]), label[1] or 0))
    return [_summarize_label(found[label], found, price_per_hour) for label in labels]


def _summarize_label(
    records: list[Record], records_by_label: Mapping[Label, list[Record]], price_per_hour: float | None
) -> MethodSummary:
    first = records[0]
    together = records_by_label.get(TOGETHER, [])
    against_mtl = changes(records, together)
    totals = [record.total() for record in records]
    deciding, training = mean_cost([r.deciding for r in records]), mean_cost([r.training for r in records])
    unit = mean_cost([record.training for record in together])
    parameters = mean([record.parameters for record in records])
    relative_parameters = _positive_ratio(parameters, mean([record.parameters for record in together]))
    return MethodSummary(
        first.method,
        first.budget,
        seeds=len(records),
        groups=first.groups,
        honest=all(record.honest for record in records),
        total=mean(totals),
        total_stderr=stderr(totals) if len(totals) > 1 and not any(record.diverged for record in records) else None,
        change=_mean_or_none(against_mtl),
        change_stderr=stderr(against_mtl) if len(against_mtl) > 1 else None,
        random_change=_mean_or_none(changes(records, records_by_label.get(("random", first.budget), []))),
        validation=_mean_or_none(changes(records, together, "val")),
        loss=_mean_by_task([record.test for record in records], "loss"),
        error=_mean_by_task([record.test for record in records], "error"),
        deciding=deciding,
        training=training,
        deciding_cost=relative_cost(deciding, unit),
        training_cost=relative_cost(training, unit),
        parameters=parameters,
        relative_parameters=relative_parameters,
        parameters_per_network=_positive_ratio(relative_parameters or 0, len(first.groups)),
        latency=_mean_or_none([record.latency for record in records if record.latency is not None]),
        money=None if price_per_hour is None else price_per_hour * (deciding.seconds + training.seconds) / 3600,
        diverged=sum(record.diverged for record in records),
    )


def _positive_ratio(value: float, reference: float) -> float | None:
    return value / reference if value > 0 and reference > 0 else None


def _mean_by_task(scores: Sequence[Mapping[str, Score]], field_name: str) -> dict[str, float]:
    return {task: mean([getattr(outcome[task], field_name) for outcome in scores]) for task in scores[0]}


def _mean_or_none(values: Sequence[float]) -> float | None:
    return mean(values) if values else None


@dataclass(frozen=True)
class TaskChange:
    """A task's change from `mtl` to another method. All numbers are averaged over seeds.

    Attributes:
        task: the name of the task.
        change: the relative change in test loss from `mtl` (negative is better).
        stderr: the standard error of `change` over paired seeds, or None if there is only one seed.
        loss: the test loss of this method.
        before: the test error of `mtl`.
        after: the test error of this method.
    """

    task: str
    change: float
    stderr: float | None
    loss: float
    before: float
    after: float

    @property
    def sure(self) -> bool:
        """Whether the change exceeds two standard errors.

        This is False if there is only one seed.
        """
        return self.stderr is not None and abs(self.change) > 2 * self.stderr


def task_change(task: str, pairs: Sequence[tuple[Record, Record]]) -> TaskChange:
    """Returns a task's change from `mtl` to another method.

    Args:
        task: the name of the task.
        pairs: for each seed, the method's record and the record of `mtl`.
    """
    found = [relative_change(mine.test[task].loss, theirs.test[task].loss) for mine, theirs in pairs]
    return TaskChange(
        task,
        mean(found),
        stderr(found) if len(found) > 1 else None,
        loss=mean([mine.test[task].loss for mine, _ in pairs]),
        before=mean([theirs.test[task].error for _, theirs in pairs]),
        after=mean([mine.test[task].error for mine, _ in pairs]),
    )


def changes(records: Sequence[Record], references: Sequence[Record], split: str = "test") -> list[float]:
    """Returns the relative change of each record from the reference with the same seed (negative is better).

    The list is empty if any record diverged, since the remaining seeds would be biased toward lucky ones.
    """
    if any(record.diverged for record in [*records, *references]):
        return []
    same_seed = {record.seed: record for record in references}
    return [record.change(same_seed[record.seed], split) for record in records if record.seed in same_seed]


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
