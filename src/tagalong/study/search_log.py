"""The log of a search by `auto`: the result of each training run, and the expected gain as a function of effort."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

from tagalong.entries import Entry
from tagalong.rendering import wrap

from .text import WIDTH, percent

MAX_CURVE_POINTS = 6  # points of the curve shown in a line of text
NO_BREAK_SPACE = "\u00a0"


@dataclass(frozen=True)
class LoggedTraining:
    """A training run of a search.

    Attributes:
        spent: the total effort spent up to and including this training run.
        tasks: the tasks of the network.
        seed: the seed of the network.
        fraction: the length of the training run, as a fraction of a full run.
        change: the relative change in validation loss from one network for all tasks with the same seed, averaged over
            the network's tasks. The change is None if there is nothing to compare with or if training diverged.
        best: for each budget, the expected change of the best networks after the round that includes this training run.
        diverged: whether training diverged.
    """

    spent: float
    tasks: tuple[str, ...]
    seed: int
    fraction: float
    change: float | None
    best: dict[int, float]
    diverged: bool = False

    @property
    def spent_text(self) -> str:
        """The total effort spent up to and including this training run, as text."""
        return format_effort(self.spent)


class SearchLog:
    """The log of how `auto` arrived at its groups (see `Results.search_log`).

    Args:
        about: the log as a JSON document (`results.settings["decisions"]["auto"]`).
    """

    def __init__(self, about: Mapping[str, Any]) -> None:
        self.about = about

    @property
    def budgets(self) -> list[int]:
        """The budgets of the search."""
        return [int(budget) for budget in self.about["chosen"]]

    @cached_property
    def trainings(self) -> tuple[LoggedTraining, ...]:
        """All training runs, in order."""
        return tuple(_read_trainings(self.about))

    @property
    def curve(self) -> dict[int, list[tuple[float, float]]]:
        """For each budget, the effort spent and the best expected validation change after each round."""
        return {k: [(step["spent"], step["best"][str(k)]) for step in self.about["steps"]] for k in self.budgets}

    @property
    def sentence(self) -> str:
        """A sentence that states the effort spent, the number of task sets trained, and the measuring overhead."""
        about, sets = self.about, {one.tasks for one in self.trainings}
        diverged = len({one.tasks for one in self.trainings if one.diverged})
        lost = f" ({diverged} diverged)" if diverged else ""
        overhead = about.get("overhead")
        measuring = "" if overhead is None else f"; measuring affinities made the first {100 * overhead:.1f}% slower"
        spent = f"{format_effort(about['spent'])} of {format_effort(about['effort'])} trainings"
        return f"auto spent {spent} on {len(sets)} sets of tasks, including the set of all tasks{lost}{measuring}."

    def to_text(self, width: int = WIDTH) -> str:
        """Formats `sentence` and, for each budget, the best expected change as a function of effort."""
        lines = wrap(self.sentence, width)
        for budget, points in self.curve.items():
            chosen = self.about["chosen"][str(budget)]
            found = "all together"
            if chosen["expected"]:
                found = f"{percent(chosen['expected'])} ± {100 * chosen['doubt']:.1f}"
            text = f"  budget {budget}: {found}; {_format_curve(points)}"
            lines += [line.replace(NO_BREAK_SPACE, " ") for line in wrap(text, width, hang="    ")]
        return "\n".join(lines)


def check_search_log(about: Entry) -> None:
    """Checks a log that was read from a file."""
    if not about.get("steps").optional(Entry.entries):
        return  # nothing was searched
    about["effort"].number(0)
    about["spent"].number(0)
    for name in ("measuring", "overhead"):
        about.get(name).optional(lambda value: value.number(0))
    chosen = about["chosen"].mapping()
    for budget, found in chosen.items():
        if not budget.isdecimal():
            raise found.error("must be named by its budget")
        if found["expected"].optional(Entry.number):
            found["doubt"].number(0)
    for step in about["steps"].entries():
        step["spent"].number(0)
        best = step["best"]
        for budget in chosen:
            best[budget].number()
        for budget in best.mapping():
            if budget not in chosen:
                raise best.error("must have the same budgets as `chosen`")
        for trained in step["trained"].entries():
            _check_training(trained)


def _check_training(trained: Entry) -> None:
    tasks = trained["tasks"].names()
    trained["seed"].integer(0)
    trained["fraction"].number(0)
    trained["effort"].number(0)
    losses = trained["val"].mapping()
    for loss in losses.values():
        loss.number()
    if losses and set(losses) != set(tasks):
        raise trained["val"].error("must have a loss for each task of the network, or none if it diverged")


def _read_trainings(about: Mapping[str, Any]) -> Iterator[LoggedTraining]:
    trained = [one for step in about["steps"] for one in step["trained"]]
    most = max((len(one["tasks"]) for one in trained), default=0)
    together = {(one["seed"], one["fraction"]): one["val"] for one in trained if len(one["tasks"]) == most}
    spent = float(about.get("measuring") or 0.0)
    for step in about["steps"]:
        best = {int(budget): float(value) for budget, value in step["best"].items()}
        for one in step["trained"]:
            spent += one["effort"]
            base = together.get((one["seed"], one["fraction"])) if len(one["tasks"]) < most else None
            diverged = not one["val"]
            change = None if diverged or not base else _mean_change(one["val"], base)
            yield LoggedTraining(spent, tuple(one["tasks"]), one["seed"], one["fraction"], change, best, diverged)


def _mean_change(losses: Mapping[str, float], reference: Mapping[str, float]) -> float | None:
    """Returns the geometric mean of the changes; None if a loss is zero or the losses have different signs."""
    try:
        return math.exp(sum(math.log(losses[task] / reference[task]) for task in losses) / len(losses)) - 1
    except (ArithmeticError, ValueError, KeyError):
        return None


def _format_curve(points: list[tuple[float, float]]) -> str:
    """Formats a few points at which the expected change of the best networks differs from its previous value."""
    changed = [point for before, point in pairwise([(0.0, 0.0), *points]) if percent(point[1]) != percent(before[1])]
    if not changed:
        return "nothing better was expected at any effort"
    kept = changed[:: -(-len(changed) // MAX_CURVE_POINTS)]
    listed = ", ".join(
        f"{percent(value)} at {format_effort(spent)}".replace(" ", NO_BREAK_SPACE) for spent, value in kept
    )
    return f"expected on validation by effort: {listed}"


def format_effort(effort: float) -> str:
    """Formats an effort with three significant digits, or as an integer if it has more than three digits.

    Example:
        >>> format_effort(45.125), format_effort(1.1), format_effort(60.0), format_effort(9656.2)
        ('45.1', '1.1', '60', '9,656')
    """
    return f"{effort:.3g}" if effort < 999.5 else f"{effort:,.0f}"
