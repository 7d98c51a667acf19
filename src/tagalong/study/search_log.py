"""The log of a search by `auto`: what each training showed, and how expectations fell with the effort."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

from tagalong.rendering import wrap

from .text import WIDTH, percent

POINTS = 6  # of the curve, in a line of text
UNBROKEN = "\u00a0"  # a space that no line ends at


@dataclass(frozen=True)
class Lesson:
    """What one training showed.

    Attributes:
        spent: effort until then.
        tasks: of the network.
        seed: of it.
        fraction: how much of a training it was.
        change: of its validation losses against all together with the same seed, a mean over its tasks; None for that
            network itself, where it diverged, and where there is none to compare with.
        best: what was expected, after its round, of the best networks by budget.
        diverged: whether it came to nothing.
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
        """The effort until then, as people read it."""
        return trainings(self.spent)


class SearchLog:
    """How `auto` came to its groups.

    Args:
        about: how it came to its decision: `results.settings["decisions"]["auto"]`; `Results.search_log` reads it.
    """

    def __init__(self, about: Mapping[str, Any]) -> None:
        self.about = about

    @property
    def budgets(self) -> list[int]:
        """For which it searched."""
        return [int(budget) for budget in self.about["chosen"]]

    @cached_property
    def lessons(self) -> tuple[Lesson, ...]:
        """What each training showed, in order."""
        return tuple(_lessons(self.about))

    @property
    def curve(self) -> dict[int, list[tuple[float, float]]]:
        """By budget: effort, and the expected change on validation of the best networks that it had found."""
        return {k: [(step["spent"], step["best"][str(k)]) for step in self.about["steps"]] for k in self.budgets}

    @property
    def sentence(self) -> str:
        """What was spent, on how much, and what measuring took."""
        about, sets = self.about, {one.tasks for one in self.lessons}
        diverged = len({one.tasks for one in self.lessons if one.diverged})
        lost = f", of which {diverged} diverged" if diverged else ""
        overhead = about.get("overhead")
        measuring = (
            "" if overhead is None else f"; measuring affinities took {100 * overhead:.1f} % more time in the first"
        )
        spent = f"{trainings(about['spent'])} of {trainings(about['effort'])} trainings"
        return f"auto spent {spent} on {len(sets)} sets of tasks, all together among them{lost}{measuring}."

    def to_text(self, width: int = WIDTH) -> str:
        """The effort, then for each budget how the best expectation fell with it."""
        lines = wrap(self.sentence, width)
        for budget, points in self.curve.items():
            chosen = self.about["chosen"][str(budget)]
            found = "all together"
            if chosen["expected"]:
                found = f"{percent(chosen['expected'])} ± {100 * chosen['doubt']:.1f}"
            text = f"  budget {budget}: {found}; {_path(points)}".replace(" %", f"{UNBROKEN}%")
            lines += [line.replace(UNBROKEN, " ") for line in wrap(text, width, hang="    ")]
        return "\n".join(lines)


def _lessons(about: Mapping[str, Any]) -> Iterator[Lesson]:
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
            yield Lesson(spent, tuple(one["tasks"]), one["seed"], one["fraction"], change, best, diverged)


def _mean_change(losses: Mapping[str, float], base: Mapping[str, float]) -> float:
    return math.exp(sum(math.log(losses[task] / base[task]) for task in losses) / len(losses)) - 1


def _path(points: list[tuple[float, float]]) -> str:
    """A few points where the expectation changed."""
    changed = [point for before, point in pairwise([(0.0, 0.0), *points]) if percent(point[1]) != percent(before[1])]
    if not changed:
        return "nothing better was expected at any effort"
    kept = changed[:: -(-len(changed) // POINTS)]
    path = ", ".join(f"{percent(value)} at {trainings(spent)}".replace(" ", UNBROKEN) for spent, value in kept)
    return f"expected on validation by effort: {path}"


def trainings(effort: float) -> str:
    """An effort in three digits, or in as many as it takes.

    Example:
        >>> trainings(45.125), trainings(1.1), trainings(60.0), trainings(9656.2)
        ('45.1', '1.1', '60', '9,656')
    """
    return f"{effort:.3g}" if effort < 999.5 else f"{effort:,.0f}"
