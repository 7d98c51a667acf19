"""The log of a search by `auto`: the result of each training run, and the expected gain as a function of effort."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

from tagalong.errors import pluralize
from tagalong.group import Group
from tagalong.rendering import wrap

from .relative_losses import relative_change
from .text import WIDTH, percent

MAX_CURVE_POINTS = 6  # points of the curve shown in a line of text
NO_BREAK_SPACE = "\u00a0"
COMPARED_WITH_COPIES = ("student", "wide", "tabm")
POOLS = {
    "copies": "copies only",
    "taught": "with taught networks",
    "wide": "wider networks",
    "tabm": "with TabM networks",
    "all": "with all networks",
}


@dataclass(frozen=True)
class LoggedTraining:
    """A training run of a search.

    Attributes:
        spent: the total effort spent up to and including this training run.
        tasks: the tasks of the network.
        seed: the seed of the network.
        fraction: the length of the training run, as a fraction of a full run.
        change: the relative change in validation loss from one network for all tasks with the same seed, averaged over
            the network's tasks. A student, wider network or TabM network is compared with the mean of all copies. The
            change is None if there is nothing to compare with or if training diverged.
        best: for each budget, the expected change of the best networks after the round that includes this training run.
        diverged: whether training diverged.
        kind: "copy" for a network for all tasks, "set" for a network for some tasks, "wide" for a wider network for all
            tasks, "tabm" for a TabM network, or "student" for a network that was taught by others. None in the logs of
            searches without students.
        mix: the weight of the teachers' answers in the loss of a student, or None for other networks.
        mixtures: the number of mixtures of two training rows from which a student learned, as a multiple of the
            training rows.
        size: the number of parameters, as a multiple of those of a plain network for the same tasks.
    """

    spent: float
    tasks: tuple[str, ...]
    seed: int
    fraction: float
    change: float | None
    best: dict[int, float]
    diverged: bool = False
    kind: str | None = None
    mix: float | None = None
    mixtures: float = 0.0
    size: int = 1


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
    def alternatives(self) -> dict[int, dict[str, float]]:
        """For each budget, the expected validation changes of the best networks from each pool.

        The pools are "copies", "taught" (copies and students), "wide" (networks that are larger than a plain one),
        "tabm" (TabM networks, copies and students) and "all" (all networks that are not wider). Searches without
        students have none.
        """
        return {k: dict(self.about["chosen"][str(k)].get("alternatives") or {}) for k in self.budgets}

    @property
    def teachers(self) -> tuple[Group, ...]:
        """The networks that teach the students, in sorted order, each of them once."""
        given = self.about.get("teachers") or ()
        optional = ("copy", "size", "network")
        groups = {
            Group(one["trains"], one["serves"], **{name: one[name] for name in optional if name in one})
            for one in given
        }
        return tuple(sorted(groups))

    @property
    def students(self) -> dict[tuple[float, float], list[LoggedTraining]]:
        """The training runs of students, by the weight of the teachers' answers and the number of mixtures."""
        found: dict[tuple[float, float], list[LoggedTraining]] = {}
        for one in self.trainings:
            if one.mix is not None:
                found.setdefault((one.mix, one.mixtures), []).append(one)
        return found

    @property
    def sentence(self) -> str:
        """A sentence that states the effort spent, what it was spent on, and the measuring overhead."""
        about = self.about
        diverged = len({one.tasks for one in self.trainings if one.diverged})
        lost = f" ({diverged} diverged)" if diverged else ""
        overhead = about.get("overhead")
        measuring = "" if overhead is None else f"; measuring affinities made the first {100 * overhead:.1f}% slower"
        spent = f"{format_effort(about['spent'])} of {format_effort(about['effort'])} trainings"
        return f"auto spent {spent} on {self._networks_text()}{lost}{measuring}."

    def _networks_text(self) -> str:
        kinds = Counter(one.kind for one in self.trainings)
        if not kinds or None in kinds:
            return f"{len({one.tasks for one in self.trainings})} sets of tasks, including the set of all tasks"
        sets = len({one.tasks for one in self.trainings if one.kind == "set"})
        parts = [pluralize(kinds["copy"], "network") + " for all tasks"]
        if sets:
            parts.append(f"{pluralize(kinds['set'], 'network')} for {pluralize(sets, 'set')} of tasks")
        if kinds["wide"]:
            parts.append(pluralize(kinds["wide"], "wider network"))
        if kinds["tabm"]:
            parts.append(pluralize(kinds["tabm"], "TabM network"))
        if kinds["student"]:
            parts.append(f"{pluralize(kinds['student'], 'student')}, which other networks taught")
        return _join(parts)

    @property
    def teaching(self) -> str:
        """A sentence that states which networks teach the students, or an empty string if there are no students."""
        students = sum(map(len, self.students.values()))
        if not students or not self.teachers:
            return ""
        most = max(len(one.tasks) for one in self.trainings)
        trained = Counter((group.trains, group.network_text) for group in self.teachers)
        parts = [
            f"{pluralize(count, kind) if kind else count} trained on "
            + ("all tasks" if len(tasks) == most else f"({', '.join(sorted(tasks))})")
            for (tasks, kind), count in sorted(
                trained.items(), key=lambda item: (-len(item[0][0]), sorted(item[0][0]), item[0][1])
            )
        ]
        verb = "teaches" if len(self.teachers) == 1 else "teach"
        count = pluralize(len(self.teachers), "network")
        return f"{count} {verb} {'the student' if students == 1 else f'the {students} students'}: {_join(parts)}."

    @property
    def restriction(self) -> str:
        """A sentence that states why answers were not averaged, or an empty string if they could be."""
        reason = self.about.get("one_network_per_task")
        return f"Each task is answered by one network: {reason}." if reason else ""

    @property
    def no_wider(self) -> str:
        """A sentence that states why no wider networks were trained, or an empty string if the network can be widened.

        Few training runs are not spent on wider networks either; this is not stated.
        """
        reason = self.about.get("no_wider_networks")
        return f"No wider networks were trained: {reason}." if reason else ""

    def to_text(self, width: int = WIDTH) -> str:
        """Formats the sentences and, for each budget, the alternatives and the best expected change by effort."""
        lines = wrap(" ".join(filter(None, (self.sentence, self.restriction, self.no_wider, self.teaching))), width)
        for budget, points in self.curve.items():
            chosen = self.about["chosen"][str(budget)]
            found = "all together"
            if chosen["expected"]:
                found = f"{percent(chosen['expected'])} ± {100 * chosen['doubt']:.1f}"
            text = f"  budget {budget}: {found}{_format_pools(self.alternatives[budget])}; {_format_curve(points)}"
            lines += [line.replace(NO_BREAK_SPACE, " ") for line in wrap(text, width, hang="    ")]
        return "\n".join(lines)


def _read_trainings(about: Mapping[str, Any]) -> Iterator[LoggedTraining]:
    trained = [one for step in about["steps"] for one in step["trained"]]
    most = max((len(one["tasks"]) for one in trained), default=0)
    plain = [one for one in trained if len(one["tasks"]) == most and one.get("kind") not in COMPARED_WITH_COPIES]
    together = {(one["seed"], one["fraction"]): one["val"] for one in plain if one["val"]}
    copies = _mean_losses([one["val"] for one in plain if one["val"] and one["fraction"] == 1])
    spent = float(about.get("measuring") or 0.0)
    for step in about["steps"]:
        best = {int(budget): float(value) for budget, value in step["best"].items()}
        for one in step["trained"]:
            spent += one["effort"]
            kind, diverged = one.get("kind"), not one["val"]
            compared_with_copies = kind in COMPARED_WITH_COPIES
            base = copies if compared_with_copies else together.get((one["seed"], one["fraction"]))
            comparable = not diverged and (compared_with_copies or len(one["tasks"]) < most)
            yield LoggedTraining(
                spent,
                tuple(one["tasks"]),
                one["seed"],
                one["fraction"],
                _mean_change(one["val"], base) if base and comparable else None,
                best,
                diverged,
                kind,
                one["mix"] if kind == "student" else None,
                float(one.get("mixtures") or 0.0),
                one.get("size", 1),
            )


def _mean_losses(losses: Sequence[Mapping[str, float]]) -> dict[str, float]:
    known: dict[str, list[float]] = {}
    for one in losses:
        for task, loss in one.items():
            known.setdefault(task, []).append(loss)
    return {task: sum(some) / len(some) for task, some in known.items()}


def _mean_change(losses: Mapping[str, float], reference: Mapping[str, float]) -> float | None:
    """Returns the change averaged over tasks; None if a loss in the reference is zero or missing."""
    changes = [relative_change(loss, reference[task]) for task, loss in losses.items() if task in reference]
    mean = sum(changes) / len(changes) if len(changes) == len(losses) else math.nan
    return mean if math.isfinite(mean) else None


def _format_pools(alternatives: Mapping[str, float]) -> str:
    """Formats what the best networks from each pool were expected to bring, if there was more than one pool."""
    listed = [
        f"{POOLS[name]} {percent(alternatives[name])}".replace(" ", NO_BREAK_SPACE)
        for name in POOLS
        if name in alternatives
    ]
    return f" ({', '.join(listed)})" if len(listed) > 1 else ""


def _join(parts: Sequence[str]) -> str:
    """Joins parts of a sentence.

    Example:
        >>> _join(["copies", "sets", "students"])
        'copies, sets, and students'
    """
    if len(parts) < 3:
        return " and ".join(parts)
    return f"{', '.join(parts[:-1])}, and {parts[-1]}"


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
