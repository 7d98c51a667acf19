"""Results, verdict and search as people read them, in plain text."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from tagalong.group import Group
from tagalong.rendering import columns, cut, left, right

from .records import ProblemInfo, relative
from .summary import Line
from .uncertainty import TOGETHER, Label

if TYPE_CHECKING:
    from .results import Results
    from .verdict import Verdict

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
        made = aligned([[row[column] for column in shown] for row in rows], 2, width, METHOD)
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
        made = aligned([row[:number] for row in rows], 4, width, TASK)
        if max(map(columns, made)) <= width:
            break
    return made


def aligned(rows: Sequence[Row], always: int, width: int, shortest: int) -> list[str]:
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
        DIVERGED if line.diverged else "" if line.method == "mtl" else _change(line.change, line.change_stderr),
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


def results_text(results: Results, width: int = WIDTH) -> str:
    """The table of all methods, the tasks one by one for the best grouping, then the verdict.

    Args:
        results: of a study.
        width: columns of the screen; prose takes no more than a hundred.
    """
    width = max(width, NARROWEST)
    lines, prose = results.table(), min(width, WIDTH)
    tasks, seeds = len(results.problem.tasks), max(line.seeds for line in lines)
    title = f"{results.problem.name}: {_counted(tasks, 'task')}, {_counted(seeds, 'seed')}"
    made, left_out = methods_table(lines, width)
    parts = [title, "", *made, "", *legend(lines, prose, left_out)]
    by_label = {(line.method, line.budget): line for line in lines}
    if TOGETHER in by_label:
        verdict = results.verdict()
        if verdict.candidate is not None:
            together, mine = by_label[TOGETHER], by_label[verdict.candidate]
            parts += ["", f"By task, mtl and the groups of {label_text(verdict.candidate)}:"]
            parts += tasks_table(results.problem, together, mine, width)
            parts += [] if verdict.worth_it else ["", "The groups:", *networks(verdict.candidate_groups, prose)]
        parts += ["", verdict_text(verdict, prose)]
    told = results.settings.get("decisions", {}).get("auto")
    if told and told.get("steps"):
        parts += ["", *search_text(told, prose)]
    return "\n".join(parts)


def _counted(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def verdict_text(verdict: Verdict, width: int = WIDTH) -> str:
    """One or two sentences, then the networks to use."""
    start = "Provisional verdict: " if verdict.provisional else "Verdict: "
    text = start + verdict_sentence(verdict)
    if verdict.provisional:
        text += f" ({'; '.join(verdict.provisional)}.)"
    return "\n".join([*_wrapped(text, width), *networks(verdict.groups, width)])


def networks(groups: Sequence[Group], width: int) -> list[str]:
    """What each network serves, and what it is trained with, on lines of their own."""
    rows = (f"  {number}. {_network(group)}" for number, group in enumerate(groups, 1))
    return [line for row in rows for line in _wrapped(row, width, hang="     ")]


def verdict_sentence(verdict: Verdict) -> str:
    """What to do and why, in one sentence."""
    advice = "Train them all together in one network"
    if verdict.candidate is None or verdict.estimate is None:
        found = "auto found no groups that validation confirms" if verdict.searched else "no grouping was tried"
        if verdict.diverged:
            lost = ", ".join(map(label_text, verdict.diverged))
            found += f"; {lost} diverged" if verdict.searched else f", but for {lost}, which diverged"
        return f"{advice}: {found}."
    name = label_text(verdict.candidate)
    count = f"{len(verdict.candidate_groups)} networks of {name}"
    change, interval = percent(verdict.estimate), interval_text(verdict)
    if verdict.worth_it:
        what = "Training each task alone" if verdict.candidate[0] == "stl" else "Grouping"
        return f"{what} is worth it: the {count} change the test losses by {change} {interval}{_costs(verdict)}."
    if verdict.validation is not None and verdict.validation >= 0:
        best = f"the best being the {count} with {change} on test {interval}"
        return f"{advice}: no grouping did better on validation, {best}."
    why = "which is not better by more than the noise" if verdict.seeds > 1 else "and one seed cannot tell luck apart"
    if verdict.high is not None and -verdict.at_least <= verdict.high < 0:
        why = f"which is less than the {100 * verdict.at_least:g} % asked for"
    return f"{advice}: the {count}, best on validation, change the test losses by {change} {interval}, {why}."


def _costs(verdict: Verdict) -> str:
    known = {"the training": verdict.training_cost, "the parameters": verdict.size}
    costs = [f"{value:.3g} times {what}" for what, value in known.items() if value is not None]
    return f", for {' and '.join(costs)}" if costs else ""


def interval_text(verdict: Verdict) -> str:
    """The interval and how many seeds it rests on."""
    seeds = _counted(verdict.seeds, "seed")
    if verdict.low is None or verdict.high is None:
        return f"({seeds})"
    return f"({100 * verdict.confidence:g} % interval {percent(verdict.low)} to {percent(verdict.high)}, {seeds})"


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


def _wrapped(text: str, width: int, hang: str = "") -> list[str]:
    return textwrap.wrap(text, width, subsequent_indent=hang, break_on_hyphens=False)


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
            change = None if diverged or not base else _expected_change(one["val"], base)
            yield Lesson(spent, tuple(one["tasks"]), one["seed"], one["fraction"], change, best, diverged)


def _expected_change(losses: Mapping[str, float], base: Mapping[str, float]) -> float:
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
