"""Records summed up: a line per method and budget and a change per task, as means over seeds; what it cost."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tagalong.group import Group

from .records import TOGETHER, Cost, Label, Outcome, Record, by_label
from .relative_losses import relative


@dataclass(frozen=True)
class Line:
    """What a method reached for a budget; a mean over seeds wherever there are several.

    Attributes:
        method: its name.
        budget: networks allowed; None for methods without one.
        seeds: how many.
        groups: the networks; empty for an expected value over many groupings.
        honest: False where the choice looked at test data.
        total: the sum of raw test losses, as in the paper's tables.
        total_stderr: its standard error over seeds; None with one seed.
        change: mean over tasks of the relative change of the test loss against `mtl`; None without `mtl`.
        change_stderr: its standard error over seeds (pairs of the same seed).
        random_change: the same against `random` of this budget; None without it.
        validation: the same against `mtl` on validation rows.
        loss: test loss of each task.
        error: test error of each task, in its own measure; lower is better.
        deciding: what deciding on the groups took, counted once for all budgets.
        training: what training the groups took.
        deciding_cost: in trainings of `mtl` (by steps where they are known, else by seconds); None if unknown.
        training_cost: likewise.
        parameters: of all networks.
        relative_parameters: against `mtl`.
        parameters_per_network: on average, against `mtl`.
        latency: seconds of one forward pass through all networks; None if not measured.
        money: what deciding and training cost together; None without a price.
        diverged: with how many of the seeds a network diverged; no total and no change is then known.
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
        """Its method and budget."""
        return self.method, self.budget


def summarise(records: Sequence[Record], price_per_hour: float | None = None) -> list[Line]:
    """The lines, in the order in which methods first appear, smaller budgets first."""
    found = by_label(records)
    order = list(dict.fromkeys(record.method for record in records))
    labels = sorted(found, key=lambda label: (order.index(label[0]), label[1] or 0))
    return [_line(found[label], found, price_per_hour) for label in labels]


def _line(found: list[Record], others: Mapping[Label, list[Record]], price: float | None) -> Line:
    first = found[0]
    together = others.get(TOGETHER, [])
    against_mtl = changes(found, together)
    totals = [record.total() for record in found]
    deciding, training = mean_cost([r.deciding for r in found]), mean_cost([r.training for r in found])
    unit = mean_cost([record.training for record in together])
    parameters = mean([record.parameters for record in found])
    share = _share(parameters, mean([record.parameters for record in together]))
    return Line(
        first.method,
        first.budget,
        seeds=len(found),
        groups=first.groups,
        honest=all(record.honest for record in found),
        total=mean(totals),
        total_stderr=stderr(totals) if len(totals) > 1 and not any(record.diverged for record in found) else None,
        change=_known(against_mtl),
        change_stderr=stderr(against_mtl) if len(against_mtl) > 1 else None,
        random_change=_known(changes(found, others.get(("random", first.budget), []))),
        validation=_known(changes(found, together, "val")),
        loss=_by_task([record.test for record in found], "loss"),
        error=_by_task([record.test for record in found], "error"),
        deciding=deciding,
        training=training,
        deciding_cost=in_units_of(deciding, unit),
        training_cost=in_units_of(training, unit),
        parameters=parameters,
        relative_parameters=share,
        parameters_per_network=share / len(first.groups) if share and first.groups else None,
        latency=_known([record.latency for record in found if record.latency is not None]),
        money=None if price is None else price * (deciding.seconds + training.seconds) / 3600,
        diverged=sum(record.diverged for record in found),
    )


def _share(mine: float, theirs: float) -> float | None:
    return mine / theirs if mine > 0 and theirs > 0 else None


def _by_task(outcomes: Sequence[Mapping[str, Outcome]], what: str) -> dict[str, float]:
    return {task: mean([getattr(outcome[task], what) for outcome in outcomes]) for task in outcomes[0]}


def _known(values: Sequence[float]) -> float | None:
    return mean(values) if values else None


@dataclass(frozen=True)
class TaskChange:
    """What a method changes for one task, as means over seeds.

    Attributes:
        task: its name.
        change: the relative change of its test loss against `mtl`; negative is better.
        stderr: the standard error of that over seeds (pairs of the same seed); None with one seed.
        loss: its test loss.
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
        """Whether the change lies beyond two standard errors; never with one seed."""
        return self.stderr is not None and abs(self.change) > 2 * self.stderr


def task_change(task: str, pairs: Sequence[tuple[Record, Record]]) -> TaskChange:
    """The change of a task.

    Args:
        task: its name.
        pairs: for each seed the record of a method, and that of `mtl`.
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
    """The relative change of each record against that of the others with the same seed; negative is better.

    None at all if one of them diverged: what the other seeds reached would be the luck of those that are left.
    """
    if any(record.diverged for record in [*found, *others]):
        return []
    same_seed = {record.seed: record for record in others}
    return [record.change(same_seed[record.seed], part) for record in found if record.seed in same_seed]


def mean(values: Sequence[float]) -> float:
    """The mean; NaN of nothing."""
    return sum(values) / len(values) if values else math.nan


def stderr(values: Sequence[float]) -> float:
    """The standard error of a mean.

    Example:
        >>> round(stderr([1.0, 2.0, 3.0]), 3)
        0.577
    """
    centre = mean(values)
    return math.sqrt(sum((value - centre) ** 2 for value in values) / (len(values) - 1) / len(values))


def mean_cost(costs: Sequence[Cost]) -> Cost:
    """The mean over seeds, steps and networks to whole numbers."""
    whole, count = sum(costs, Cost()), max(1, len(costs))
    return Cost(round(whole.networks / count), round(whole.steps / count), whole.seconds / count)


def in_units_of(cost: Cost, unit: Cost) -> float | None:
    """A cost against another, by steps where they are known, else by seconds; None where neither is.

    Seconds would flatter networks that were trained many at once, and change from machine to machine.
    """
    if unit.steps and (cost.steps or not cost.networks):
        return cost.steps / unit.steps
    return cost.seconds / unit.seconds if unit.seconds and (cost.seconds or not cost.networks) else None
