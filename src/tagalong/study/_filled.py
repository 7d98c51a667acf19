"""A verdict from a table: losses of networks that were trained elsewhere."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tagalong._names import listed, refuse
from tagalong.group import Group, select_groups

from ._change import TOGETHER, Label
from ._info import ProblemInfo
from ._plan import Plan
from ._plan_csv import Line, Networks, label_text, networks_in, read_label, read_lines
from ._relative import Subset, relative_table
from ._results import Results
from ._told import Ledger, check_told


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
    lines, columns = read_lines(file)
    networks = networks_in(lines, file)
    plan = _plan(networks, columns, sizes)
    ledger = Ledger(plan)
    for (_, seed), by_task in networks.items():
        told = check_told(
            list(by_task), _parts(by_task, "val"), _parts(by_task, "test"), _rows(by_task, file), **_costs(by_task)
        )
        refuse(ledger.row_problems(told))
        ledger.told[frozenset(by_task), seed] = told
    settings = {"methods": list(plan.methods), "budgets": list(plan.budgets), "seeds": list(plan.seeds)}
    return ledger.results(ProblemInfo.named(plan.tasks, file.stem), settings, None)


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
            for label in map(read_label, line["serves"].split()):
                served.setdefault(label, {}).setdefault(frozenset(by_task), set()).add(task)
            waiting |= dict.fromkeys(map(read_label, line.get("decides", "").split()))
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
            problems.append(f"column `serves`: {label_text(label)} must serve every task once, odd: {', '.join(odd)}")
    refuse(problems)


def _parts(by_task: Mapping[str, Line], part: str) -> dict[str, tuple[float, float]]:
    return {
        task: (float(line[f"{part}_loss"]), float(line.get(f"{part}_error") or math.nan))
        for task, line in by_task.items()
    }


def _rows(by_task: Mapping[str, Line], file: Path) -> dict[str, Any] | None:
    named = {task: line["test_rows"] for task, line in by_task.items() if line.get("test_rows")}
    if set(named) != set(by_task):
        return None
    return {task: np.load(file.parent / name, allow_pickle=False) for task, name in named.items()}


def _costs(by_task: Mapping[str, Line]) -> dict[str, Any]:
    """Of the network: whichever of its rows has them."""
    found: dict[str, Any] = {}
    for column, kind in (("steps", int), ("seconds", float), ("parameters", int)):
        given = [line[column] for line in by_task.values() if line.get(column)]
        found[column] = kind(float(given[0])) if given else None
    return found
