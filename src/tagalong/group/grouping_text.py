"""Renders a grouping as text or HTML, summarizes it, and explains why a task is served by its network."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tagalong.errors import first_few
from tagalong.rendering import TextTable, join, table, tag

from .solvers import MAX_TIES

if TYPE_CHECKING:
    from .grouping import Group, Grouping

COLUMN_HEADINGS = ("network", "serves", "helped by", "score")


def text_table(grouping: Grouping) -> str:
    """Returns a summary and a table with one row per network."""
    made = TextTable(*COLUMN_HEADINGS, numbers=("network", "score"))
    for number, group in enumerate(grouping.groups, 1):
        made.add_row(
            str(number), _join_names(group.serves), _join_names(group.helpers), f"{_group_score(grouping, group):.6g}"
        )
    return "\n".join([summary(grouping), *made.lines(), *remarks(grouping)])


def html_table(grouping: Grouping) -> str:
    """Returns HTML that contains a table with one row per network, followed by the remarks."""
    rows = [
        [number, _join_names(group.serves), _join_names(group.helpers) or "–", f"{_group_score(grouping, group):.4g}"]
        for number, group in enumerate(grouping.groups, 1)
    ]
    made = table(COLUMN_HEADINGS, rows, caption=summary(grouping))
    return join([made, *(tag("div", tag("small", remark)) for remark in remarks(grouping))])


def summary(grouping: Grouping) -> str:
    """Returns one line: the number of networks, their total score, and whether the grouping is proven optimal."""
    count, n = len(grouping.groups), len(grouping.tasks)
    networks = f"{count} network{'s' * (count != 1)} for {n} task{'s' * (n != 1)}"
    gap = f"feasible, bound {grouping.bound:.6g}, gap {grouping.gap:.1%}"
    proof = "proven optimal" if grouping.status == "optimal" else gap
    return f"{networks}, total {grouping.value:.6g} ({proof})"


def remarks(grouping: Grouping) -> list[str]:
    """Returns remarks on equally good groupings, on unmeasured pairs, and on the stability of this grouping."""
    found = []
    if grouping.ties:
        count = len(grouping.ties)
        number = f"{'at least ' if count == MAX_TIES else ''}{count} other grouping{'s are' if count > 1 else ' is'}"
        found.append(f"{number} just as good, for example:")
        found += [f"  {group}" for group in grouping.ties[0]]
    if grouping.unmeasured:
        share = f"{grouping.unmeasured:.0%}" if grouping.unmeasured >= 0.005 else "less than 1%"
        found.append(f"{share} of pairs were never measured; their scores are predictions")
    if grouping.unplaced:
        found.append(f"not placed, as none of their pairs was measured: {first_few(grouping.unplaced, 12)}")
    if grouping.resampled is not None:
        found.append(str(grouping.resampled))
    return found


def explanation(grouping: Grouping, task: str) -> str:
    """Returns a sentence about the network that serves a task and about the second-best network."""
    group, score = grouping.served_by(task), grouping.per_task[task]
    start = f"{task} is served by {{{_join_names(group.trains)}}} with {score:.6g}"
    sign = 1 if grouping.objective == "max" else -1
    others = [option for option in grouping.options.get(task, ()) if option.trains != group.trains]
    if not others:
        return f"{start}, the only chosen network that can."
    best = others[0]
    next_best = f"{{{_join_names(best.trains)}}} with {best.score:.6g}"
    if sign * best.score > sign * score:
        return f"{start}; {next_best} would be better for it alone, but not for all tasks together."
    return f"{start}, the best of the {len(grouping.groups)} networks for it; next best: {next_best}."


def _group_score(grouping: Grouping, group: Group) -> float:
    return sum(grouping.per_task[task] for task in sorted(group.serves))  # sorted to make rounding deterministic


def _join_names(tasks: frozenset[str]) -> str:
    return ", ".join(sorted(tasks))
