"""What `auto` did, as people read it: from the document that a study keeps of its decision."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from ._text_table import WIDTH, percent

POINTS = 6  # of the curve, in a line of text
UNBROKEN = "\u00a0"  # a space that no line ends at


@dataclass(frozen=True)
class Lesson:
    """What one training taught.

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


def lessons(told: Mapping[str, Any]) -> Iterator[Lesson]:
    """What each training taught, in order."""
    trained = [one for step in told["steps"] for one in step["trained"]]
    most = max((len(one["tasks"]) for one in trained), default=0)
    together = {(one["seed"], one["fraction"]): one["val"] for one in trained if len(one["tasks"]) == most}
    spent = float(told.get("measuring") or 0.0)
    for step in told["steps"]:
        best = {int(budget): float(value) for budget, value in step["best"].items()}
        for one in step["trained"]:
            spent += one["effort"]
            base = together.get((one["seed"], one["fraction"])) if len(one["tasks"]) < most else None
            diverged = not one["val"]
            change = None if diverged or not base else _change(one["val"], base)
            yield Lesson(spent, tuple(one["tasks"]), one["seed"], one["fraction"], change, best, diverged)


def _change(losses: Mapping[str, float], base: Mapping[str, float]) -> float:
    return math.exp(sum(math.log(losses[task] / base[task]) for task in losses) / len(losses)) - 1


def curve(told: Mapping[str, Any]) -> dict[int, list[tuple[float, float]]]:
    """By budget: effort, and the expected change on validation of the best networks that it had found."""
    budgets = [int(budget) for budget in told["chosen"]]
    return {k: [(step["spent"], step["best"][str(k)]) for step in told["steps"]] for k in budgets}


def trainings(effort: float) -> str:
    """An effort in three digits, or in as many as it takes.

    Example:
        >>> trainings(45.125), trainings(1.1), trainings(60.0), trainings(9656.2)
        ('45.1', '1.1', '60', '9,656')
    """
    return f"{effort:.3g}" if effort < 999.5 else f"{effort:,.0f}"


def effort_sentence(told: Mapping[str, Any]) -> str:
    """What was spent, on how much, and what measuring took."""
    sets = {one.tasks for one in lessons(told)}
    diverged = len({one.tasks for one in lessons(told) if one.diverged})
    lost = f", of which {diverged} diverged" if diverged else ""
    overhead = told.get("overhead")
    measuring = "" if overhead is None else f"; measuring affinities took {100 * overhead:.1f} % more time in the first"
    spent = f"{trainings(told['spent'])} of {trainings(told['effort'])} trainings"
    return f"auto spent {spent} on {len(sets)} sets of tasks, all together among them{lost}{measuring}."


def search_text(told: Mapping[str, Any], width: int = WIDTH) -> list[str]:
    """The effort, then for each budget how the best expectation fell with it."""
    lines = textwrap.wrap(effort_sentence(told), width)
    for budget, points in curve(told).items():
        chosen = told["chosen"][str(budget)]
        found = f"{percent(chosen['expected'])} ± {100 * chosen['doubt']:.1f}" if chosen["expected"] else "all together"
        text = f"  budget {budget}: {found}; {_path(points)}".replace(" %", f"{UNBROKEN}%")
        wrapped = textwrap.wrap(text, width, subsequent_indent="    ")
        lines += [line.replace(UNBROKEN, " ") for line in wrapped]
    return lines


def _path(points: list[tuple[float, float]]) -> str:
    """A few points where the expectation changed."""
    changed = [point for before, point in pairwise([(0.0, 0.0), *points]) if percent(point[1]) != percent(before[1])]
    if not changed:
        return "nothing better was expected at any effort"
    kept = changed[:: -(-len(changed) // POINTS)]
    path = ", ".join(f"{percent(value)} at {trainings(spent)}".replace(" ", UNBROKEN) for spent, value in kept)
    return f"expected on validation by effort: {path}"
