"""Tables and sentences in plain text: methods, tasks, networks and changes as people read them."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Sequence

from tagalong.group import Group
from tagalong.rendering import columns, cut, left, right

from .records import Label, ProblemInfo
from .relative_losses import relative
from .summary import Line

WIDTH, NARROWEST, GAP = 100, 40, "  "
HEADINGS = (
    *("method", "budget", "nets", "total loss", "vs mtl", "vs random"),
    *("decide", "train", "size", "latency", "money"),
)
TASK_HEADINGS = ("task", "loss (mtl)", "(groups)", "change", "error (mtl)", "(groups)", "")
TOTAL_ERROR = "± of the total loss"
# What is left out on narrow screens, in this order.
SPARED = ("latency", TOTAL_ERROR, "size", "vs random", "total loss", "decide", "train")
DIVERGED, HUGE = "diverged", 1e6
METHOD, TASK = 14, 16  # letters that names keep before columns are left out
Row = Sequence[str]


def methods_table(lines: Sequence[Line], width: int = WIDTH) -> tuple[list[str], list[str]]:
    """One line per method and budget, and which columns had no room; those that nothing is known for are left out."""
    whole = [cells(line) for line in lines]
    known = {name for column, name in enumerate(HEADINGS) if any(row[column] for row in whole)}
    known |= {TOTAL_ERROR} if any(line.total_stderr is not None for line in lines) else set()
    spared = [name for name in SPARED if name in known]
    for number in range(len(spared) + 1):
        left_out = spared[:number]
        rows = [HEADINGS, *(cells(line, total_error=TOTAL_ERROR not in left_out) for line in lines)]
        shown = [column for column, name in enumerate(HEADINGS) if name not in left_out]
        made = _aligned([[row[column] for column in shown] for row in rows], 2, width, METHOD)
        if max(map(columns, made)) <= width:
            break
    return made, left_out


def legend(lines: Iterable[Line], width: int = WIDTH, left_out: Sequence[str] = ()) -> list[str]:
    """What the columns of `methods_table` mean, as far as they are there."""
    lines = list(lines)
    said = ["Test losses, mean ± standard error over seeds; changes are means over tasks, negative is better."]
    if any(line.groups and line.deciding.networks for line in lines):
        said.append("Nets: in use + trained to decide.")
    if any(line.deciding_cost or line.training_cost for line in lines) and "train" not in left_out:
        said.append(
            "Decide, train: steps in units of mtl's (to decide once for all budgets; a measured step counts as the "
            "plain ones it is worth)."
        )
    if any(line.relative_parameters for line in lines) and "size" not in left_out:
        said.append("Size: parameters in units of mtl's.")
    if any(line.latency is not None for line in lines) and "latency" not in left_out:
        said.append("Latency: ms for one row through all networks.")
    if any(line.money is not None for line in lines):
        said.append("Money: to decide and to train, at the price per hour of the run.")
    if any(line.diverged for line in lines):
        said.append("Diverged: a network had no finite validation loss, with one seed or more; a lower lr may help.")
    if not all(line.honest for line in lines):
        said.append("* chose by looking at test data: a bound, not a method.")
    if left_out:
        said.append(f"No room for: {', '.join(left_out)}.")
    return textwrap.wrap(" ".join(said), width)


def tasks_table(problem: ProblemInfo, together: Line, mine: Line, width: int = WIDTH) -> list[str]:
    """Test loss and error of every task, all together and in the groups of another method."""
    rows: list[Row] = [TASK_HEADINGS]
    for task in problem.tasks:
        losses, errors = (together.loss[task], mine.loss[task]), (together.error[task], mine.error[task])
        known = all(map(math.isfinite, errors))
        cells = [f"{error:.4g}" if known else "" for error in errors]
        measure = problem.errors.get(task, "") if known else ""
        rows.append((task, *(f"{loss:.4g}" for loss in losses), percent(relative(*reversed(losses))), *cells, measure))
    for number in (7, 6, 4):
        made = _aligned([row[:number] for row in rows], 4, width, TASK)
        if max(map(columns, made)) <= width:
            break
    return made


def _aligned(rows: Sequence[Row], always: int, width: int, shortest: int) -> list[str]:
    """Columns side by side, the first to the left and cut if it must be; empty ones after the first few left out."""
    used = [column for column in range(len(rows[0])) if column < always or any(row[column] for row in rows[1:])]
    widths = [max(columns(row[column]) for row in rows) for column in used]
    room = width - sum(width + len(GAP) for width in widths[1:])
    widths[0] = min(widths[0], max(room, shortest))
    return [_line([row[column] for column in used], widths) for row in rows]


def _line(cells: Row, widths: Sequence[int]) -> str:
    name = left(cut(cells[0], widths[0]), widths[0])
    return GAP.join([name, *map(right, cells[1:], widths[1:])]).rstrip()


def cells(line: Line, total_error: bool = True) -> Row:
    """What stands under `HEADINGS`; empty where nothing is known."""
    known = total_error and line.total_stderr is not None
    return (
        line.method if line.honest else f"{line.method}*",
        "" if line.budget is None else str(line.budget),
        _networks(line),
        "" if line.diverged else _with_error(f"{line.total:.4g}", f"{line.total_stderr:.2g}" if known else None),
        change_text(line) if line.diverged or line.method != "mtl" else "",
        "" if line.method == "random" else _change(line.random_change, None),
        _times(line.deciding_cost),
        _times(line.training_cost),
        _times(line.relative_parameters),
        "" if line.latency is None else f"{1000 * line.latency:.2g}",
        "" if line.money is None else f"{line.money:.3g}",
    )


def _networks(line: Line) -> str:
    if not line.groups:
        return ""
    tried = line.deciding.networks
    return f"{len(line.groups)} + {tried}" if tried else str(len(line.groups))


def _with_error(value: str, error: str | None) -> str:
    return value if error is None else f"{value} ± {error}"


def _change(value: float | None, error: float | None) -> str:
    return "" if value is None else _with_error(percent(value), None if error is None else _short(100 * error))


def change_text(line: Line) -> str:
    """The change of the losses against `mtl` with its standard error; "diverged", or empty where it is not known."""
    return DIVERGED if line.diverged else _change(line.change, line.change_stderr)


def percent(value: float) -> str:
    """A share with its sign.

    Example:
        >>> percent(-0.0312), percent(0.1), percent(-1e-9), percent(4e20)
        ('-3.1 %', '+10.0 %', '+0.0 %', '+4.0e+22 %')
    """
    return f"{_short(round(100 * value, 1) + 0.0, '+')} %"


def _short(value: float, sign: str = "") -> str:
    """With one digit after the point; losses that nearly diverged take no more room than others."""
    return f"{value:{sign}.1e}" if abs(value) >= HUGE else f"{value:{sign}.1f}"


def _times(value: float | None) -> str:
    return f"{value:.3g}×" if value else ""


def networks_list(groups: Sequence[Group], width: int) -> list[str]:
    """What each network serves, and what it is trained with, on lines of their own."""
    rows = (f"  {number}. {_network(group)}" for number, group in enumerate(groups, 1))
    return [line for row in rows for line in wrapped(row, width, hang="     ")]


def label_text(label: Label) -> str:
    """A method and its budget.

    Example:
        >>> label_text(("tag", 2)), label_text(("stl", None))
        ('tag (budget 2)', 'stl')
    """
    return label[0] if label[1] is None else f"{label[0]} (budget {label[1]})"


def _network(group: Group) -> str:
    helped = f" (trained with {', '.join(sorted(group.helpers))})" if group.helpers else ""
    return ", ".join(sorted(group.serves)) + helped


def wrapped(text: str, width: int, hang: str = "") -> list[str]:
    return textwrap.wrap(text, width, subsequent_indent=hang, break_on_hyphens=False)
