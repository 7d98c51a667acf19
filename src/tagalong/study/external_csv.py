"""The verdict on a table of losses that somebody filled in: a plan's CSV, or one of their own."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np

from tagalong.errors import listed, refuse
from tagalong.group import Group, select_groups
from tagalong.learn import find_delimiter, read_text

from .external import Ledger
from .planning import KEYS, NEEDED, OPTIONAL, Plan, csv_label, read_csv_label
from .records import TOGETHER, Label, ProblemInfo
from .relative_losses import Subset, relative_table
from .results import Results

NUMBERS = tuple(column for column in (*NEEDED, *OPTIONAL) if column != "test_rows")
LISTED = 8  # of the missing numbers
Cells = Mapping[str, str]  # of one row, by column
Networks = dict[tuple[str, int], dict[str, Cells]]


def verdict_from_csv(path: str | Path, *, budgets: Sequence[int] | None = None) -> Results:
    """Results, with table and verdict, from a CSV of the losses of networks trained elsewhere.

    Args:
        path: with the columns network, seed, task, val_loss, test_loss, and if you like val_error, test_error,
            test_rows (an npy file with the loss of every test row, which makes the verdict's interval complete),
            steps, seconds and parameters (of the network). A plan's columns `serves` and `decides` say which methods
            use a network; without them the best groups among the networks are chosen on validation.
        budgets: for a table without a plan, how many networks there may be; by default 2, 3 and 4.

    Raises:
        ValueError: what is missing, all in one sentence.
    """
    sizes = None if budgets is None else listed(budgets, "budgets", "numbers of networks", "[2, 3]")
    file = Path(path)
    lines, columns = _read_lines(file)
    networks = _networks_in(lines, file)
    plan = _plan(networks, columns, sizes)
    ledger = Ledger(plan)
    for (_, seed), by_task in networks.items():
        val, test = _parts(by_task, "val"), _parts(by_task, "test")
        ledger.tell(list(by_task), seed, val, test, _rows(by_task, file), **_costs(by_task))
    return ledger.results(ProblemInfo.named(plan.tasks, file.stem))


def tasks_in_csv(path: str | Path) -> tuple[str, ...]:
    """The tasks in such a CSV, in the order in which they first appear."""
    return tuple(dict.fromkeys(line["task"] for line in _read_lines(Path(path))[0]))


def _plan(networks: Networks, columns: Sequence[str], budgets: Sequence[int] | None) -> Plan:
    tasks = tuple(dict.fromkeys(task for by_task in networks.values() for task in by_task))
    seeds = tuple(sorted({seed for _, seed in networks}))
    subsets = list(dict.fromkeys(frozenset(by_task) for by_task in networks.values()))
    if frozenset(tasks) not in subsets:
        raise ValueError(f"the table must have a network of all tasks ({', '.join(tasks)}) to compare with, found none")
    if "serves" in columns:
        return _planned(networks, tasks, seeds)
    wanted = [budget for budget in (2, 3, 4) if budget <= len(tasks)] if budgets is None else budgets
    return _chosen(networks, tasks, seeds, subsets, wanted)


def _planned(networks: Networks, tasks: tuple[str, ...], seeds: tuple[int, ...]) -> Plan:
    served: dict[Label, dict[Subset, set[str]]] = {}
    waiting: dict[Label, None] = {}
    for by_task in networks.values():
        for task, line in by_task.items():
            for label in map(read_csv_label, line["serves"].split()):
                served.setdefault(label, {}).setdefault(frozenset(by_task), set()).add(task)
            waiting |= dict.fromkeys(map(read_csv_label, line.get("decides", "").split()))
    groupings = {
        label: tuple(sorted(Group(trains, serves) for trains, serves in groups.items()))
        for label, groups in served.items()
    }
    groupings = {TOGETHER: (Group(tasks, tasks),)} | groupings
    _refuse_incomplete(groupings, tasks)
    labels = [*groupings, *waiting]
    methods = tuple(dict.fromkeys(method for method, _ in labels))
    budgets = tuple(sorted({budget for _, budget in labels if budget is not None}))
    return Plan(tasks, methods, budgets, seeds, groupings)


def _chosen(
    networks: Networks, tasks: tuple[str, ...], seeds: tuple[int, ...], subsets: list[Subset], budgets: Sequence[int]
) -> Plan:
    """Groups among the networks there are, by validation."""
    by_subset = {(frozenset(by_task), seed): by_task for (_, seed), by_task in networks.items()}
    complete = [subset for subset in subsets if all((subset, seed) in by_subset for seed in seeds)]
    groupings: dict[Label, tuple[Group, ...]] = {TOGETHER: (Group(tasks, tasks),)}
    if all(frozenset([task]) in complete for task in tasks):
        groupings["stl", None] = tuple(Group({task}, {task}) for task in tasks)

    def loss(subset: Subset, task: str, seed: int) -> float:
        return float(by_subset[subset, seed][task]["val_loss"])

    table = relative_table(complete, tasks, seeds, loss, "together")
    for budget in budgets:
        groupings["chosen", budget] = select_groups(table, budget, objective="min").groups
    return Plan(tasks, ("mtl", "stl", "chosen"), tuple(budgets), seeds, groupings)


def _refuse_incomplete(groupings: Mapping[Label, tuple[Group, ...]], tasks: Sequence[str]) -> None:
    problems = []
    for label, groups in groupings.items():
        served = [task for group in groups for task in group.serves]
        odd = sorted(set(tasks) ^ set(served)) + sorted(task for task in set(served) if served.count(task) > 1)
        if odd:
            problems.append(f"column `serves`: {csv_label(label)} must serve every task once, odd: {', '.join(odd)}")
    refuse(problems)


def _parts(by_task: Mapping[str, Cells], part: str) -> dict[str, tuple[float, float]]:
    return {
        task: (float(line[f"{part}_loss"]), float(line.get(f"{part}_error") or math.nan))
        for task, line in by_task.items()
    }


def _rows(by_task: Mapping[str, Cells], file: Path) -> dict[str, Any] | None:
    named = {task: line["test_rows"] for task, line in by_task.items() if line.get("test_rows")}
    if set(named) != set(by_task):
        return None
    return {task: np.load(file.parent / name, allow_pickle=False) for task, name in named.items()}


def _costs(by_task: Mapping[str, Cells]) -> dict[str, Any]:
    """Of the network: whichever of its rows has them."""
    found: dict[str, Any] = {}
    for column, kind in (("steps", int), ("seconds", float), ("parameters", int)):
        given = [line[column] for line in by_task.values() if line.get(column)]
        found[column] = kind(float(given[0])) if given else None
    return found


def _read_lines(file: Path) -> tuple[list[Cells], list[str]]:
    """The rows and the names of the columns, as a spreadsheet may have left them."""
    text = read_text(file, "`path`")
    delimiter = find_delimiter(text)
    try:
        header, *rows = [line for line in csv.reader(io.StringIO(text, newline=""), delimiter=delimiter) if line] or [
            []
        ]
    except csv.Error as error:
        raise ValueError(f"{file} must be a table, found {error}; is a quotation mark left open?") from error
    columns = [column.strip() for column in header]
    lines: list[Cells] = [_line(columns, row, delimiter) for row in rows if any(cell.strip() for cell in row)]
    missing = [column for column in (*KEYS, *NEEDED) if column not in columns]
    if missing:
        raise ValueError(f"{file} must have the columns {', '.join((*KEYS, *NEEDED))}, found no {', '.join(missing)}")
    if not lines:
        raise ValueError(f"{file} must have at least one row, found none")
    return lines, columns


def _line(columns: Sequence[str], row: Sequence[str], delimiter: str) -> Cells:
    line = {column: cell.strip() for column, cell in zip_longest(columns, row[: len(columns)], fillvalue="")}
    if delimiter != ",":  # where a comma separates no cells, it may be the decimal point
        line |= {column: line[column].replace(",", ".") for column in NUMBERS if column in line}
    return line


def _networks_in(lines: Sequence[Cells], file: Path) -> Networks:
    """The rows by network and task, refused with everything that is missing or no number."""
    networks: Networks = {}
    empty, problems = [], []
    for number, line in enumerate(lines, 2):
        where = f"{line['network']} (seed {line['seed']}) {line['task']}"
        if not line["seed"].isdigit() or not line["network"] or not line["task"]:
            problems.append(
                f"{file}, line {number}: network, seed (a whole number) and task must be given, found {where}"
            )
            continue
        by_task = networks.setdefault((line["network"], int(line["seed"])), {})
        if line["task"] in by_task:
            problems.append(f"{file}, line {number}: found a second row for {where}")
        by_task[line["task"]] = line
        empty += [f"{column} of {where}" for column in NEEDED if not line[column]]
        problems += [
            f"{file}, line {number}: {column} must be a number, found {line[column]!r}"
            for column in NUMBERS
            if line.get(column) and not _is_number(line[column])
        ]
    if empty:
        more = f" and {len(empty) - LISTED} more" if len(empty) > LISTED else ""
        problems.append(f"{file} is not filled in yet: {', '.join(empty[:LISTED])}{more} missing")
    refuse(problems)
    return networks


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
