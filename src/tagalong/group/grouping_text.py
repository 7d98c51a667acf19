"""A grouping as people read it: a table in text and HTML, one line of summary, and why a task is where it is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tagalong.rendering import columns, join, left, right, table, tag

from .solvers import MAX_TIES

if TYPE_CHECKING:
    from .grouping import Group, Grouping

PADDED = (right, left, left, right)


def text_table(grouping: Grouping) -> str:
    """One line of summary, then one line per network."""
    rows = [("network", "serves", "helped by", "score")]
    for number, group in enumerate(grouping.groups, 1):
        rows.append((str(number), _names(group.serves), _names(group.helpers), f"{_score(grouping, group):.6g}"))
    widths = [max(columns(row[column]) for row in rows) for column in range(4)]
    lines = ["  ".join(pad(cell, width) for pad, cell, width in zip(PADDED, row, widths, strict=True)) for row in rows]
    return "\n".join([summary(grouping), *(line.rstrip() for line in lines), *remarks(grouping)])


def html_table(grouping: Grouping) -> str:
    """One row per network, then what else there is to say."""
    rows = [
        [number, _names(group.serves), _names(group.helpers) or "–", f"{_score(grouping, group):.4g}"]
        for number, group in enumerate(grouping.groups, 1)
    ]
    made = table(["network", "serves", "helped by", "score"], rows, caption=summary(grouping))
    return join([made, *(tag("div", tag("small", remark)) for remark in remarks(grouping))])


def summary(grouping: Grouping) -> str:
    """How many networks, how good, and whether that is proven."""
    count, n = len(grouping.groups), len(grouping.tasks)
    networks = f"{count} network{'s' * (count != 1)} for {n} task{'s' * (n != 1)}"
    gap = f"feasible, bound {grouping.bound:.6g}, gap {grouping.gap:.1%}"
    proof = "proven optimal" if grouping.status == "optimal" else gap
    return f"{networks}, total {grouping.value:.6g} ({proof})"


def remarks(grouping: Grouping) -> list[str]:
    """What else there is to say: other groupings that are as good, and how stable this one is."""
    found = []
    if grouping.ties:
        count = len(grouping.ties)
        number = f"{'at least ' if count == MAX_TIES else ''}{count} other grouping{'s are' if count > 1 else ' is'}"
        found.append(f"{number} just as good, for example:")
        found += [f"  {group}" for group in grouping.ties[0]]
    if grouping.resampled is not None:
        found.append(str(grouping.resampled))
    return found


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


def _score(grouping: Grouping, group: Group) -> float:
    return sum(grouping.per_task[task] for task in sorted(group.serves))  # in one order: so is the last digit


def _names(tasks: frozenset[str]) -> str:
    return ", ".join(sorted(tasks))
