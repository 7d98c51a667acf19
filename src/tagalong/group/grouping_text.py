"""A grouping as people read it: text, an HTML table, and the comparison of two groupings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tagalong.rendering import columns, join, left, right, table, tag

from .solvers import LISTED

if TYPE_CHECKING:
    from .grouping import Grouping

PADDED = (right, left, left, right)


def text_table(grouping: Grouping) -> str:
    """One line of summary, then one line per network."""
    rows = [("network", "serves", "helped by", "score")]
    for number, group in enumerate(grouping.groups, 1):
        score = sum(grouping.per_task[task] for task in group.serves)
        rows.append((str(number), _names(group.serves), _names(group.helpers), f"{score:.6g}"))
    widths = [max(columns(row[column]) for row in rows) for column in range(4)]
    lines = ["  ".join(pad(cell, width) for pad, cell, width in zip(PADDED, row, widths, strict=True)) for row in rows]
    return "\n".join([summary(grouping), *(line.rstrip() for line in lines), *remarks(grouping)])


def explanation(grouping: Grouping, task: str) -> str:
    """One sentence on where a task is served and what else it could have had."""
    group, score = grouping.served_by(task), grouping.per_task[task]
    start = f"{task} is served by {{{_names(group.trains)}}} with {score:.6g}"
    sign = 1 if grouping.objective == "max" else -1
    others = [option for option in grouping.options.get(task, ()) if option.trains != group.trains]
    if not others:
        return f"{start}, the only chosen network that can."
    best = others[0]
    next_best = f"{{{_names(best.trains)}}} with {best.score:.6g}"
    if sign * best.score > sign * score:
        return f"{start}; {next_best} would be better for it alone, but not for all tasks together."
    return f"{start}, the best of the {len(grouping.groups)} networks for it; next best: {next_best}."


def summary(grouping: Grouping) -> str:
    """How many networks, how good, and whether that is proven."""
    count, n = len(grouping.groups), len(grouping.tasks)
    networks = f"{count} network{'s' * (count != 1)} for {n} task{'s' * (n != 1)}"
    proof = "proven optimal" if grouping.status == "optimal" else f"feasible, {_gap(grouping)}"
    return f"{networks}, total {grouping.value:.6g} ({proof})"


def remarks(grouping: Grouping) -> list[str]:
    """What else there is to say: other groupings that are as good, and how stable this one is."""
    found = []
    if grouping.ties:
        count = len(grouping.ties)
        number = f"{'at least ' if count == LISTED else ''}{count} other grouping{'s are' if count > 1 else ' is'}"
        found.append(f"{number} just as good, for example:")
        found += [f"  {group}" for group in grouping.ties[0]]
    if grouping.resampled is not None:
        found.append(str(grouping.resampled))
    return found


def _gap(grouping: Grouping) -> str:
    return f"bound {grouping.bound:.6g}, gap {grouping.gap:.1%}"


def _names(tasks: frozenset[str]) -> str:
    return ", ".join(sorted(tasks))


def html_table(grouping: Grouping) -> str:
    """One row per network, then what else there is to say."""
    rows = [
        [
            number,
            ", ".join(sorted(group.serves)),
            ", ".join(sorted(group.helpers)) or "–",
            f"{sum(grouping.per_task[task] for task in group.serves):.4g}",
        ]
        for number, group in enumerate(grouping.groups, 1)
    ]
    made = table(["network", "serves", "helped by", "score"], rows, caption=summary(grouping))
    return join([made, *(tag("div", tag("small", remark)) for remark in remarks(grouping))])


SAME = 1e-9  # of the larger value: what counts as equal


@dataclass(frozen=True)
class Comparison:
    """Two groupings of the same tasks, scored alike.

    Attributes:
        mine: for example made by hand and scored by `score_grouping`.
        best: what to compare it with, usually from `select_groups`.

    Example:
        >>> from tagalong.group import score_grouping, select_groups
        >>> affinity = [[0, 5, 1], [5, 0, 0], [0, 0, 0]]
        >>> print(Comparison(score_grouping(affinity, [{"0", "1"}, {"1", "2"}]), select_groups(affinity, 2)))
        loses 1 of 11 (9.1%), all of it on 2
    """

    mine: Grouping
    best: Grouping

    def __post_init__(self) -> None:
        if self.mine.tasks != self.best.tasks or self.mine.objective != self.best.objective:
            raise ValueError("`mine` and `best` must be groupings of the same tasks with the same objective")

    @property
    def loss(self) -> float:
        """How much worse `mine` is in total; negative where it is better, 0 up to rounding."""
        sign = 1.0 if self.best.objective == "max" else -1.0
        loss = sign * (self.best.value - self.mine.value)
        largest = max(abs(self.best.value), abs(self.mine.value))
        return 0.0 if abs(loss) <= SAME * largest else loss

    @property
    def per_task(self) -> dict[str, float]:
        """How much worse `mine` is for each task, before weights; negative where it is better."""
        sign = 1.0 if self.best.objective == "max" else -1.0
        return {task: sign * (score - self.mine.per_task[task]) for task, score in self.best.per_task.items()}

    @property
    def spent(self) -> tuple[float, float]:
        """What the networks of `mine` and of `best` cost."""
        return sum(group.cost for group in self.mine.groups), sum(group.cost for group in self.best.groups)

    def __str__(self) -> str:
        if not self.loss:
            return f"is as good: {self.mine.value:.6g}"
        share = f" ({abs(self.loss / self.best.value):.1%})" if self.best.value else ""
        if self.loss < 0:
            return f"is better by {-self.loss:.4g}{share} than {self.best.value:.6g}"
        losing = [task for task, loss in self.per_task.items() if loss > SAME * abs(self.best.value)]
        where = f", all of it on {losing[0]}" if len(losing) == 1 else ""
        return f"loses {self.loss:.4g} of {self.best.value:.6g}{share}{where}"
