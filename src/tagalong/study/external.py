"""A study whose networks are trained elsewhere: what to train next, and the verdict on what came back."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tagalong.affinity import Affinity
from tagalong.errors import listed, named, refuse
from tagalong.group import Group, select_groups
from tagalong.learn import Problem

from .external_results import Ledger, Losses, check_told, has_plan, plan_document, read, write
from .planning import Line, Networks, Plan, label_text, networks_in, read_label, read_lines
from .planning import plan as make_plan
from .records import ProblemInfo
from .relative_losses import Subset, relative_table
from .results import Results
from .run_folder import draw_page, folder_problem
from .uncertainty import TOGETHER, Label


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


class External:
    """Asks for networks and is told their results; every result is kept, so that it goes on after a stop.

    Args:
        plan: what to train, see `plan`; None: go on with the plan in `out`.
        out: the folder of the run; None keeps results in memory only.

    Example:
        >>> from tagalong.study.planning import plan
        >>> external = External(plan(None, [], methods=["stl"], seeds=2, tasks=["age", "ill"]))
        >>> while (network := external.ask()) is not None:
        ...     tasks, seed = network
        ...     losses = {task: 1.0 + 0.5 * (len(tasks) == 1) for task in tasks}  # your training
        ...     external.tell(tasks, seed, val=losses, test=losses)
        >>> external.results().verdict().worth_it
        False
    """

    def __init__(self, plan: Plan | None, out: str | Path | None = None) -> None:
        self.out = None if out is None else Path(out)
        self._ledger = _going_on(plan, self.out)
        self._asked = self._ledger.plan  # without what validation decides later
        self._save()

    @property
    def plan(self) -> Plan:
        """The networks to train, as far as is known by now."""
        return self._ledger.plan

    def ask(self) -> tuple[tuple[str, ...], int] | None:
        """Tasks and seed of the network to train next; None if everything has been told."""
        return next(iter(self._ledger.pending), None)

    def pending(self) -> list[tuple[tuple[str, ...], int]]:
        """All networks that can be trained now, for those who train several at a time."""
        return self._ledger.pending

    def tell(
        self,
        tasks: Sequence[str],
        seed: int,
        *,
        val: Losses,
        test: Losses,
        rows: Mapping[str, Any] | None = None,
        steps: int | None = None,
        seconds: float | None = None,
        parameters: int | None = None,
    ) -> None:
        """Takes in how a network did; in any order.

        Args:
            tasks: it was trained on.
            seed: it was trained with.
            val: for each task its validation loss, or (loss, error).
            test: the same on test rows.
            rows: for each task the loss of every test row, NaN where there is no label; without them the interval of
                the verdict does not know the noise of the test rows.
            steps: of the optimiser.
            seconds: of training.
            parameters: of the network.
        """
        names = self._checked(tasks, seed)
        told = check_told(names, val, test, rows, steps, seconds, parameters)
        refuse(self._ledger.row_problems(told))
        self._ledger.told[frozenset(names), int(seed)] = told
        self._save()

    def results(self) -> Results:
        """The results, with table and verdict, once every network has been told."""
        settings = {"methods": list(self.plan.methods), "budgets": list(self.plan.budgets)}
        settings["seeds"] = list(self.plan.seeds)
        return self._ledger.results(ProblemInfo.named(self.plan.tasks), settings, self.out)

    def _checked(self, tasks: Sequence[str], seed: int) -> tuple[str, ...]:
        given = frozenset([tasks] if isinstance(tasks, str) else tasks)
        network = (self.plan.ordered(given), seed)
        problems = []
        if given - set(self.plan.tasks) or network not in self.plan.networks:
            following = self.ask()
            hint = "everything has been told" if following is None else f"ask() gives {following!r} next"
            problems.append(
                f"`tasks` and `seed` must be a network of the plan, found {sorted(given)}, {seed!r}; {hint}"
            )
        elif (given, seed) in self._ledger.told:
            problems.append(f"`tasks` and `seed`: {sorted(given)} with seed {seed} was told before; use a new `out`")
        refuse(problems)
        return network[0]

    def _save(self) -> None:
        if self.out is not None:
            write(self.out, self._asked, self._ledger.told)


def _going_on(plan: Plan | None, out: Path | None) -> Ledger:
    saved = read(out) if out is not None and has_plan(out) else None
    if saved is None:
        if plan is None:
            raise ValueError(f"`plan` must be given where no plan is stored, found none in {out}")
        return Ledger(plan)
    if plan is not None and plan_document(plan) != plan_document(saved.plan):
        raise ValueError(f"`out` must hold results of this plan, found those of another in {out}; use a new one")
    return saved


class AskTell:
    """`ask` and `tell` for a study; needs its `problem` and `out`."""

    problem: Problem | Sequence[str]
    out: Path
    _external: External | None = None
    _has_run = False  # and nobody has asked or told since

    def plan(
        self,
        affinity: Affinity | Sequence[Affinity] | None = None,
        *,
        methods: Sequence[str] | None = None,
        budgets: Sequence[int] | None = None,
        seeds: int | Sequence[int] = 3,
    ) -> Plan:
        """Sets what `ask` will ask for, or goes on with the same plan.

        Args:
            affinity: measured in your own loop, one or several; decides the groups of `tag`, one of cosines those of
                `cs`.
            methods: "stl", "tag", "cs", "hoa", "optimal"; "mtl" is always among them. By default `stl`, and what the
                affinities decide, `hoa` without any.
            budgets: how many networks there may be; by default 2, 3 and 4, as far as there are tasks.
            seeds: how many, or which.
        """
        tasks = _names(self.problem)
        wanted = ("stl", "hoa") if methods is None and affinity is None else methods
        usual = [budget for budget in (2, 3, 4) if budget <= len(tasks)] or [1]
        chosen = make_plan(affinity, usual if budgets is None else budgets, wanted, seeds, tasks=tasks)
        self._external, self._has_run = External(chosen, self.out), False
        return chosen

    def ask(self) -> tuple[tuple[str, ...], int] | None:
        """Tasks and seed of the network to train next; None if there is none left. See `plan` for what is compared."""
        return self._told.ask()

    def tell(self, tasks: Sequence[str], seed: int, *, val: Losses, test: Losses, **more: Any) -> None:
        """Takes in how a network did; see `External.tell`."""
        self._told.tell(tasks, seed, val=val, test=test, **more)

    def results(self) -> Results:
        """The results of `run`, or what was told, compared, once nothing is left to ask, and saved as `results.json`.

        Raises:
            ValueError: networks are still to be told; or there was neither a run nor anything to tell.
        """
        if self._has_run or (self._external is None and not has_plan(self.out)):
            return self._results_of_run()
        results = self._told.results()
        results.save(self.out / "results.json")
        draw_page(self.out)
        return results

    def _results_of_run(self) -> Results:
        if not (self.out / "results.json").exists():
            raise ValueError(f"there are no results in {self.out} yet; `run` the study, or `ask` and `tell`")
        if isinstance(self.problem, Problem) and (wrong := folder_problem(self.out, self.problem.fingerprint)):
            raise ValueError(wrong)
        results, tasks = Results.load(self.out), _names(self.problem)
        if results.problem.tasks != tasks:
            found = ", ".join(results.problem.tasks)
            raise ValueError(f"`out` must hold results for {', '.join(tasks)}, found those for {found}; use a new one")
        return results

    @property
    def _told(self) -> External:
        self._has_run = False
        if self._external is None:
            if has_plan(self.out):
                self._external = External(None, self.out)
            else:
                self.plan()
        assert self._external is not None
        tasks, found = _names(self.problem), self._external.plan.tasks
        if tasks != found:
            raise ValueError(
                f"`out` must hold a plan for {', '.join(tasks)}, found one for {', '.join(found)}; use a new one"
            )
        return self._external


def _names(problem: Problem | Sequence[str]) -> tuple[str, ...]:
    return problem.names if isinstance(problem, Problem) else named(problem)
