"""What `tagalong group` does between its options and its output."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tagalong.group import Comparison, Grouping, ScoreTable, read_groups, score_grouping, select_groups
from tagalong.group.tables import read_text

from . import _arguments as arguments
from ._interrupt import Interrupt
from ._sentences import sentence
from ._terminal import progress

SUFFIXES = (".json", ".yaml", ".yml")


@dataclass(frozen=True)
class Answer:
    """The groupings found, for the budgets asked for, and what they were found from."""

    file: Path
    table: ScoreTable
    groupings: Sequence[Grouping]
    interrupted: bool
    comparison: Comparison | None = None
    compared: Path | None = None


def check_together(
    budget: float | None, budgets: str | None, compare: Path | None, detail: bool, out: Path | None
) -> None:
    """Refuses options that contradict each other, before anything is read."""
    if budget is not None and budgets is not None:
        raise ValueError("`budget` and `budgets` exclude each other; give one of them")
    if budget is None and budgets is None and compare is None:
        raise ValueError("`budget` or `budgets` must be given, such as --budget 3 or --budgets 1-5")
    if budgets is not None and (compare is not None or detail):
        raise ValueError("--compare, --explain and --together look at one grouping; give `budget` instead of `budgets`")
    if out is not None and out.suffix.lower() not in SUFFIXES:
        raise ValueError(f"--out must end in {', '.join(SUFFIXES[:-1])} or {SUFFIXES[-1]}, found {str(out)!r}")


def narrowed(table: ScoreTable, tasks: Sequence[str] | None, average: str | None) -> ScoreTable:
    """Some tasks alone, under another average."""
    part = table if tasks is None else table.only(tasks)
    if average is None:
        return part
    if part.kind != "affinity":
        raise ValueError(f"`average` needs the history of a saved affinity, found a {part}")
    return replace(part, scores=part.scores.averaged(average))


def completed(table: ScoreTable, pairs: bool, allow_single: bool | None) -> dict[str, Any]:
    """How pair results become those of larger groups; a square table says it with means, singles on its diagonal."""
    if not pairs:
        return {}
    if table.kind in ("results", "candidates"):
        return {"complete": "pairs"}
    return {"allow_single": table.has_singles if allow_single is None else allow_single}


def given(path: Path | None, table: ScoreTable, rules: dict[str, Any]) -> Grouping | None:
    """The grouping to compare with, under the same scores and rules."""
    if path is None:
        return None
    text = read_text(path)
    try:
        return score_grouping(table.scores, read_groups(text), **rules)
    except ValueError as error:
        said = str(error)
        raise ValueError(said.replace("`groups`", str(path)) if "`" in said else f"{path}: {said}") from None


def budgets_wanted(
    budget: float | None, budgets: str | None, mine: Grouping | None, table: ScoreTable, costs: bool
) -> Sequence[float]:
    """As asked for; with only a grouping to compare with, what that one spends."""
    if budgets is not None:
        if budgets.strip().lower() == "all" and (costs or table.kind == "candidates"):
            raise ValueError("`budgets` all counts networks; where they have costs list totals, such as 1,2.5,4")
        return arguments.budgets(budgets, len(table.tasks))
    if budget is not None:
        return [int(budget) if budget == int(budget) else budget] if abs(budget) < 1e300 else [budget]
    assert mine is not None
    counted = all(group.cost == 1 for group in mine.groups)
    return [min(mine.budget, len(table.tasks)) if counted else mine.budget]


def check_tasks(names: Sequence[str], table: ScoreTable) -> None:
    """Refuses to explain tasks that there are not."""
    unknown = [name for name in names if name not in (*table.tasks, "all")]
    if unknown:
        known = ", ".join(map(repr, table.tasks))
        raise ValueError(f"--explain must be among {known} or all, found {', '.join(map(repr, unknown))}")


def select(file: Path, table: ScoreTable, budgets: Sequence[float], options: dict[str, Any], quiet: bool) -> Answer:
    """Selects, with progress and until somebody asks for the best so far."""
    with Interrupt() as interrupt, progress(f"choosing networks for {len(table.tasks)} tasks", quiet):
        try:
            found = select_groups(table.scores, budgets=budgets, stop=interrupt.asked, **options)
        except ValueError as error:
            raise ValueError(sentence(error, str(file))) from None
        except TimeoutError as error:
            if not interrupt.asked():
                raise TimeoutError(sentence(error, str(file))) from None
            raise KeyboardInterrupt("stopped before any grouping was found; the same command starts again") from None
    return Answer(file, table, list(found.values()), interrupt.asked())
