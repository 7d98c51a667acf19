"""What is the best use of k networks, if every method may train equally many (see the README)?

    python benchmarks/fair.py --data DIR --device cuda --workers 6 --out fair.json
    python benchmarks/fair.py nhanes --repetitions 3-5 --data DIR --device cuda --out more.json
    python benchmarks/fair.py --parts boosting,balancing --data DIR --workers 8 --out others.json
    python benchmarks/fair.py --show fair.json more.json others.json --out all.json  # prints and merges the results
    python benchmarks/fair.py --show benchmarks/fair_results.json --write-docs         # updates benchmarks/README.md
    python benchmarks/fair.py nhanes faces --repetitions 2 --efforts 6,20

Every repetition draws a new split (or new data) and new seeds. All numbers are changes of the test loss relative to one
plain network for all tasks (the mean over many seeds), averaged over tasks; negative numbers are better. Methods choose
on validation rows. What they chose is judged twice: by the very networks that they chose, and by the recipe, i.e. the
same plan trained again with fresh seeds.

A repetition has up to four parts: `methods`, `tables` (other networks for tables), `boosting` and `balancing` (one
network trained with other rules). Each is saved as soon as it is finished. If the command is stopped and run again with
the same `--out`, it continues with the parts that are missing.
"""

import argparse
import json
import multiprocessing
import os
import statistics
import threading
import time
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fair_problems import PROBLEMS, TABLE_NETWORKS, with_default_network
from markdown import progress, replace_part, table
from tagalong.affinity import Affinity
from tagalong.group import Group
from tagalong.learn import Diverged, Job, Problem, Trained, build_network, outputs_on, train, train_many
from tagalong.learn.boosting import boosting_scores
from tagalong.study import Backend, Cost, Decision, Method, NetworkResult, make_method
from tagalong.study.learning import LAST_EPOCHS
from tagalong.study.methods.auto import METER_SETTINGS, measuring_interval
from tagalong.study.network_result import halve_rows, plain_steps

BUDGETS = (1, 2, 3, 4)
EFFORTS = (6, 20, 60)
SEARCH_SEEDS = 3  # of `auto`, as in a study
FRESH_SEEDS = 4  # that judge a recipe
FRESH_COPIES = 12  # divided into sets of k that judge the recipe of k averaged copies
SEEDS_PER_REPETITION = 1000
FIRST_COPY, FIRST_FRESH = 100, 500
ONE = 1  # the effort of methods that train one network and choose nothing
PARTS = ("methods", "tables", "boosting", "balancing")  # of a repetition; boosting needs scikit-learn
RULES = ("uw", "gradnorm", "pcgrad")  # that balance the losses of one network
RULE_SEEDS = 3
GROUP_SEARCH = "auto, revised"  # not "auto", the first version of the search, which some saved results are about
MIN_PROBABILITY = 1e-12
ROOT = Path(__file__).parent.parent
PAGE = ROOT / "benchmarks" / "README.md"
Losses = np.ndarray  # the test loss of each task


@dataclass(frozen=True)
class Row:
    """What a method reached with a budget.

    Attributes:
        method: the name of the method.
        effort: the number of networks that it trained before it chose.
        budget: the number of networks in use.
        very: the change with the very networks that it chose.
        recipe: the change with the same plan and fresh seeds.
    """

    method: str
    effort: int
    budget: int
    very: float
    recipe: float


@dataclass
class CaseResult:
    """The results on one problem and repetition.

    Attributes:
        problem: the name of the problem.
        repetition: the number of the repetition.
        rows: the results of all methods.
        plain: the mean test loss of each task in one plain network.
        late: the number of plain networks that were best in one of their last three epochs.
        networks: the number of plain networks.
        trained: the number of all networks that were trained.
        seconds: the duration.
        boosting: the test loss of each task with boosting; empty if not measured.
        balancing: the mean test loss of each task in one network for all tasks, by the rule that balances its losses.
        tables: the mean test loss of each task with other networks for tables, by kind of network and number of copies.
        table_seconds: the mean training time of one network of each kind, in seconds.
    """

    problem: str
    repetition: int
    rows: list[Row] = field(default_factory=list)
    plain: list[float] = field(default_factory=list)
    late: int = 0
    networks: int = 0
    trained: int = 0
    seconds: float = 0.0
    boosting: list[float] = field(default_factory=list)
    balancing: dict[str, list[float]] = field(default_factory=dict)
    tables: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    table_seconds: dict[str, float] = field(default_factory=dict)

    @property
    def parts(self) -> set[str]:
        """The parts that have been measured."""
        measured = zip(PARTS, (self.rows, self.tables, self.boosting, self.balancing), strict=True)
        return {part for part, found in measured if found}

    @property
    def all_rows(self) -> list[Row]:
        """The results of all methods, of other networks for tables, of boosting, and of balancing rules."""
        if not self.plain:  # there is nothing to compare with
            return []
        others = [
            (name, int(copies), losses) for name, found in self.tables.items() for copies, losses in found.items()
        ]
        others += [("boosting", ONE, self.boosting)] if self.boosting else []
        others += [(rule, ONE, losses) for rule, losses in self.balancing.items()]
        changes = [float((np.divide(losses, self.plain) - 1).mean()) for *_, losses in others]
        found = zip(others, changes, strict=True)
        return [*self.rows, *(Row(name, copies, copies, change, change) for (name, copies, _), change in found)]


class Pool(Backend):
    """Trains networks on demand and keeps them in memory, so that all methods share them."""

    def __init__(self, problem: Problem, device: str) -> None:
        super().__init__(problem.names)
        self.problem, self.device = problem, device
        self.trained: dict[Job, Trained] = {}
        self._results: dict[Job, NetworkResult] = {}
        self.affinities: dict[str, tuple[Affinity, Cost]] = {}

    def train(self, jobs: Iterable[Job]) -> list[Trained]:
        """Trains the networks that are missing, and returns all of them."""
        wanted = list(jobs)
        missing = [job for job in dict.fromkeys(wanted) if job not in self.trained]
        try:
            for one in train_many(self.problem, missing, device=self.device) if missing else ():
                self.trained[one.job] = one
        except Diverged as error:
            self.trained |= {one.job: one for one in error.networks}
        return [self.trained[job] for job in wanted]

    def find_results(self, jobs: Sequence[Job], what: str) -> dict[Job, NetworkResult]:
        """Returns the results of networks, which are trained if necessary."""
        for one in self.train(jobs):
            if one.job not in self._results:
                self._results[one.job] = self._pack(one)
        return {job: self._results[job] for job in jobs}

    def _pack(self, one: Trained) -> NetworkResult:
        halves = halve_rows({task: score.rows for task, score in one.val.items()}, self.problem.val.groups)
        sizes = one.steps, one.seconds, one.parameters
        found = {"best_epoch": one.best_epoch, "halves": halves, "flattery": one.flattery}
        return NetworkResult(one.job, one.val, one.test, *sizes, **found)

    def measure_affinity(
        self, seeds: Sequence[int], settings: Mapping[str, Any], method: str = ""
    ) -> tuple[Affinity, dict[int, Cost]]:
        """Measures affinities while training with the first seed. This is done on the CPU, by `prepare_case`."""
        key = repr((seeds[0], sorted(settings.items())))
        if key not in self.affinities:
            one = train(self.problem, self.job(self.tasks, seeds[0]), meter=settings)
            assert one.affinity is not None
            self.affinities[key] = one.affinity, Cost(1, plain_steps(one.affinity, one.steps), one.seconds)
        affinity, cost = self.affinities[key]
        return affinity, {seeds[0]: cost}

    def losses(self, groups: Sequence[Group], seed: int, part: str = "test") -> Losses:
        """Returns the loss of each task in the networks of a grouping, in which each task is served once."""
        scores = {}
        for group in groups:
            (one,) = self.train([self.group_job(group, seed)])
            scores |= {task: getattr(one, part)[task].loss for task in group.serves}
        return np.array([scores[task] for task in self.tasks])


class Gate:
    """Trains the networks that several searches ask for at the same time, since more networks take hardly longer."""

    def __init__(self, pool: Pool, searches: int) -> None:
        self.pool, self._running = pool, searches
        self._changed, self._wanted, self._waiting, self._round = threading.Condition(), list[Job](), 0, 0

    def train(self, jobs: Sequence[Job]) -> None:
        """Waits until every other search waits too, or has finished; then all networks are trained."""
        if all(job in self.pool.trained for job in jobs):
            return
        with self._changed:
            now = self._round
            self._wanted += jobs
            self._waiting += 1
            self._train_if_all_wait()
            while self._round == now:
                self._changed.wait()

    def leave(self) -> None:
        """Says that a search has finished."""
        with self._changed:
            self._running -= 1
            self._train_if_all_wait()

    def _train_if_all_wait(self) -> None:
        if not self._waiting or self._waiting < self._running:
            return
        try:
            self.pool.train(self._wanted)
        finally:
            self._wanted, self._waiting, self._round = [], 0, self._round + 1
            self._changed.notify_all()


class PoolOfSearch(Pool):
    """Asks a gate for networks, and shares them with the pool of the gate."""

    def __init__(self, gate: Gate) -> None:
        super().__init__(gate.pool.problem, gate.pool.device)
        self.trained, self.affinities, self._gate = gate.pool.trained, gate.pool.affinities, gate

    def train(self, jobs: Iterable[Job]) -> list[Trained]:
        """Returns networks, which are trained together with those that other searches ask for."""
        wanted = list(jobs)
        self._gate.train(wanted)
        return [self.trained[job] for job in wanted]


def decide_together(pool: Pool, plans: Sequence[tuple[Method, list[int]]], budgets: Sequence[int]) -> list[Decision]:
    """Lets methods decide at the same time; each has its own seeds."""
    gate = Gate(pool, len(plans))

    def decide(plan: tuple[Method, list[int]]) -> Decision:
        try:
            return plan[0].decide(PoolOfSearch(gate), budgets, plan[1])
        finally:
            gate.leave()

    with ThreadPoolExecutor(len(plans)) as threads:
        return list(threads.map(decide, plans))


class Copies:
    """Networks for all tasks that differ only in their seeds, and averages of their answers.

    The answers are kept in the space in which they are averaged: outputs, or probabilities.
    """

    def __init__(self, problem: Problem, trained: Sequence[Trained], device: str) -> None:
        self.tasks, self.size = problem.tasks, len(trained)
        self._answers: dict[str, dict[str, Tensor]] = {}
        self._targets: dict[str, dict[str, Tensor]] = {}
        for part, rows in (("val", problem.val), ("test", problem.test)):
            outputs = []
            for one in trained:
                own = problem.with_network(one.job.network)
                network = build_network(own, problem.names, one.job.seed, one.job.width).to(device)
                network.load_state_dict(one.state)
                outputs.append(outputs_on(network, rows.inputs.to(device)))
            self._answers[part] = {
                task.name: _to_answers(torch.stack([own[task.name] for own in outputs]), task.averaging)
                for task in self.tasks
            }
            self._targets[part] = {task.name: rows.targets[task.name].to(device) for task in self.tasks}

    def losses(self, sets: Sequence[Sequence[int]], part: str = "test") -> np.ndarray:
        """Returns the losses [sets, tasks] of averages over some of the networks."""
        found = []
        for task in self.tasks:
            answers, targets = self._answers[part][task.name], self._targets[part][task.name]
            means = torch.stack([answers[list(some)].mean(0) for some in sets])
            outputs = _to_outputs(means, task.averaging).to(targets.dtype if targets.is_floating_point() else None)
            losses, present = task.row_losses(
                outputs.flatten(0, 1), targets.repeat(len(sets), *[1] * (targets.dim() - 1))
            )
            found.append((losses.view(len(sets), -1).sum(1) / present.view(len(sets), -1).sum(1)).cpu().numpy())
        return np.stack(found, 1).astype(np.float64)

    def best(self, numbers: Sequence[int], budget: int) -> list[int]:
        """Returns the networks that are best together on validation: greedily, then by exchanging one at a time."""
        single = self.losses([[number] for number in numbers], "val").mean(0)

        def best_addition(others: list[int]) -> tuple[float, int]:
            free = [number for number in numbers if number not in others]
            values = (self.losses([[*others, number] for number in free], "val") / single).mean(1)
            return float(values.min()), free[int(values.argmin())]

        chosen: list[int] = []
        while len(chosen) < min(budget, len(numbers)):
            value, number = best_addition(chosen)
            chosen.append(number)
        improved = len(chosen) > 1
        while improved:
            improved = False
            for place in range(len(chosen)):
                others = chosen[:place] + chosen[place + 1 :]
                new, number = best_addition(others)
                if new < value - 1e-9:
                    value, chosen, improved = new, [*others, number], True
        return chosen


def _to_answers(outputs: Tensor, average: str | None) -> Tensor:
    if average == "sigmoid":
        return torch.sigmoid(outputs.double())
    return torch.softmax(outputs.double(), 2) if average == "softmax" else outputs.double()


def _to_outputs(answers: Tensor, average: str | None) -> Tensor:
    if average == "sigmoid":
        return torch.logit(answers, MIN_PROBABILITY)
    return answers.clamp(min=MIN_PROBABILITY).log() if average == "softmax" else answers


@dataclass(frozen=True)
class Prepared:
    """A problem with the affinities of all its tasks. Both are prepared on CPUs while a GPU trains networks."""

    name: str
    repetition: int
    problem: Problem
    affinities: dict[str, tuple[Affinity, Cost]]

    @property
    def first_seed(self) -> int:
        """The first of the seeds that belong to this repetition."""
        return SEEDS_PER_REPETITION * (self.repetition + 1)


def load_case(name: str, repetition: int, options: argparse.Namespace) -> Problem:
    """Loads a problem with the plain network that everything is compared with."""
    problem = PROBLEMS[name].load(options.data, repetition)
    if options.base == "default" and PROBLEMS[name].is_table:
        problem = with_default_network(problem)
    return shorten(problem, options.rows, options.epochs) if options.rows else problem


def prepare_case(name: str, repetition: int, options: argparse.Namespace) -> Prepared:
    """Loads a problem and measures the affinities for TAG and `auto`."""
    problem = load_case(name, repetition, options)
    prepared = Prepared(name, repetition, problem, {})
    pool = Pool(problem, "cpu")
    pool.affinities = prepared.affinities
    for settings in (make_method("tag").meter, {**METER_SETTINGS, "every": measuring_interval(len(problem.names))}):
        pool.measure_affinity([prepared.first_seed], settings)
    return prepared


class Case:
    """Compares all methods on one problem and repetition."""

    def __init__(self, prepared: Prepared, options: argparse.Namespace) -> None:
        self.options, self.problem, self.first_seed = options, prepared.problem, prepared.first_seed
        self.result = CaseResult(prepared.name, prepared.repetition)
        self.pool = Pool(self.problem, options.device)
        self.pool.affinities = prepared.affinities

    def run(self) -> CaseResult:
        """Trains everything and returns the results."""
        start = time.perf_counter()
        self._compare_copies()
        self._compare_wider()
        self._compare_groups()
        self.result.trained, self.result.seconds = len(self.pool.trained), time.perf_counter() - start
        return self.result

    def _add(self, method: str, effort: int, budget: int, very: Iterable[Losses], recipe: Iterable[Losses]) -> None:
        changes = [float((np.mean(list(losses), 0) / self.result.plain - 1).mean()) for losses in (very, recipe)]
        self.result.rows.append(Row(method, effort, budget, *changes))

    def _compare_copies(self) -> None:
        """One plain network, k copies, and the best k of E copies."""
        names, count = self.problem.names, max(self.options.efforts)
        seeds = [self.first_seed + FIRST_COPY + number for number in range(count)]
        fresh = [self.first_seed + FIRST_FRESH + number for number in range(FRESH_COPIES)]
        # The singles and pairs of HOA and the networks for all tasks of `auto` are trained at the same time.
        others = [self.pool.job(subset, self.first_seed) for subset in self.pool.subsets(largest=2)]
        others += [self.pool.job(names, self.first_seed + number) for number in range(SEARCH_SEEDS)]
        self.pool.train([Job(names, seed) for seed in (*seeds, *fresh)] + others)
        trained = [one for one in self.pool.train(Job(names, seed) for seed in (*seeds, *fresh)) if not one.diverged]
        copies = Copies(self.problem, trained, self.options.device)
        single = copies.losses([[number] for number in range(copies.size)])
        self.result.plain = single.mean(0).tolist()
        last = self.problem.recipe.epochs - LAST_EPOCHS
        self.result.late = sum(one.best_epoch >= last for one in trained)
        self.result.networks = copies.size
        count = copies.size - FRESH_COPIES
        for budget in self.options.budgets:
            recipe = copies.losses(_divide(range(count, copies.size), budget))
            self._add("ensemble", budget, budget, copies.losses(_divide(range(count), budget)), recipe)
            for effort in self.options.efforts:
                sets = [copies.best(some, budget) for some in _divide(range(count), effort)]
                self._add("best-of", effort, budget, copies.losses(sets), recipe)

    def _compare_wider(self) -> None:
        for budget in self.options.budgets[1:]:
            width = make_method(f"mtl-big{budget}").width(self.problem)
            jobs = [Job(self.problem.names, self.first_seed + FIRST_FRESH + n, width=width) for n in range(FRESH_SEEDS)]
            losses = [_test_losses(one) for one in self.pool.train(jobs) if not one.diverged]
            self._add("mtl-big", budget, budget, losses, losses)

    def _compare_groups(self) -> None:
        """Groups of TAG, HOA and `auto`. All of them are trained with fresh seeds at the same time."""
        budgets = [budget for budget in self.options.budgets if 1 < budget <= len(self.problem.names)]
        n, first = len(self.problem.names), self.first_seed
        plans = [("tag", 1, make_method("tag"), [first]), ("hoa", n * (n + 1) // 2, make_method("hoa"), [first])]
        seeds = [first + number for number in range(SEARCH_SEEDS)]
        plans += [(GROUP_SEARCH, e, groups_by_search(e), seeds) for e in self.options.efforts]
        made = decide_together(self.pool, [(method, own) for *_, method, own in plans], budgets)
        chosen = [
            (name, effort, budget, own, decision.choices[budget, own[0]].groups)
            for (name, effort, _, own), decision in zip(plans, made, strict=True)
            for budget in budgets
        ]
        fresh = [first + FIRST_FRESH + number for number in range(FRESH_SEEDS)]
        used = [(group, seed) for *_, own, groups in chosen for group in groups for seed in (*own, *fresh)]
        self.pool.train(self.pool.group_job(group, seed) for group, seed in used)
        together = [Group(self.pool.tasks, self.pool.tasks)]
        for name, effort, budget, own, groups in chosen:
            plain = np.mean([self.pool.losses(together, seed, "val") for seed in own], 0)
            best = min(own, key=lambda seed, g=groups, p=plain: (self.pool.losses(g, seed, "val") / p).mean())
            recipe = [self.pool.losses(groups, seed) for seed in fresh]
            self._add(name, effort, budget, [self.pool.losses(groups, best)], recipe)


def groups_by_search(effort: float) -> Method:
    """Returns `auto` as it was before it could average answers and teach networks."""
    return make_method("auto", {"auto": {"effort": effort, "average": False}})


def _divide(numbers: Sequence[int], size: int) -> list[Sequence[int]]:
    """Returns disjoint sets of this size; numbers that are left over are not used."""
    size = min(size, len(numbers))
    return [numbers[start : start + size] for start in range(0, len(numbers) - size + 1, size)]


def _test_losses(one: Trained) -> Losses:
    return np.array([score.loss for score in one.test.values()])


def shorten(problem: Problem, rows: int, epochs: int | None) -> Problem:
    """Keeps only the first rows of each split and fewer epochs, for a quick trial."""
    splits = {
        part: replace(
            split,
            inputs=split.inputs[:rows],
            targets={task: values[:rows] for task, values in split.targets.items()},
            groups=None if split.groups is None else split.groups[:rows],
        )
        for part, split in problem.splits.items()
    }
    recipe = problem.recipe if epochs is None else replace(problem.recipe, epochs=epochs)
    return replace(problem, **splits, recipe=recipe)


def compare_tables(name: str, repetition: int, options: argparse.Namespace) -> CaseResult:
    """Trains other kinds of networks for tables, and averages their copies."""
    plain, result = PROBLEMS[name].load(options.data, repetition), CaseResult(name, repetition)
    first = SEEDS_PER_REPETITION * (repetition + 1) + FIRST_FRESH
    for kind, change_network in TABLE_NETWORKS.items():
        problem = change_network(plain)
        if options.rows:
            problem = shorten(problem, options.rows, options.epochs)
        count, budgets = (FRESH_SEEDS, (1,)) if kind == "TabM" else (FRESH_COPIES, options.budgets)
        jobs, start = [Job(problem.names, first + number) for number in range(count)], time.perf_counter()
        trained = [one for one in Pool(problem, options.device).train(jobs) if not one.diverged]
        result.table_seconds[kind] = (time.perf_counter() - start) / count
        copies = Copies(problem, trained, options.device)
        result.tables[kind] = {
            str(budget): copies.losses(_divide(range(copies.size), budget)).mean(0).tolist() for budget in budgets
        }
    return result


def boost(name: str, repetition: int, options: argparse.Namespace) -> CaseResult:
    """Measures boosting on a table."""
    problem = PROBLEMS[name].load(options.data, repetition)
    if options.rows:
        problem = shorten(problem, options.rows, options.epochs)
    scores = boosting_scores(problem)["test"]
    return CaseResult(name, repetition, boosting=[scores[task].loss for task in problem.names])


def balance(name: str, repetition: int, options: argparse.Namespace) -> CaseResult:
    """Trains one network for all tasks with each balancing rule, on the CPU of a worker while the GPU does the rest."""
    problem = load_case(name, repetition, options)
    first, result = SEEDS_PER_REPETITION * (repetition + 1) + FIRST_FRESH, CaseResult(name, repetition)
    for rule in RULES:
        trained = [train(problem, Job(problem.names, first + number, rule)) for number in range(RULE_SEEDS)]
        result.balancing[rule] = np.mean([_test_losses(one) for one in trained], 0).tolist()
    return result


def prepare(case: tuple[str, int, argparse.Namespace], part: str = "methods") -> Prepared | CaseResult | None:
    """Prepares the methods of a case, or measures a part that needs no GPU. An error is printed; others continue."""
    torch.set_num_threads(1)
    name, repetition, _ = case
    try:
        if part == "tables":  # trained by the main process, which has the GPU
            return CaseResult(name, repetition)
        return {"methods": prepare_case, "boosting": boost, "balancing": balance}[part](*case)
    except (FileNotFoundError, ImportError) as error:
        progress(f"{name}: skipped, {error}")
    except Exception:
        progress(f"{name}, repetition {repetition}:\n{traceback.format_exc()}")
    return None


def prepare_part(case: tuple[str, int, str, argparse.Namespace]) -> tuple[str, Prepared | CaseResult | None]:
    """Prepares a part of a case, and returns the name of the part, too."""
    name, repetition, part, options = case
    return part, prepare((name, repetition, options), part)


def finish(part: str, found: Prepared | CaseResult, options: argparse.Namespace) -> CaseResult | None:
    """Trains the networks of a prepared part. An error is printed."""
    try:
        if isinstance(found, Prepared):
            return Case(found, options).run()
        return compare_tables(found.problem, found.repetition, options) if part == "tables" else found
    except FileNotFoundError as error:
        progress(f"skipped: {error}")
    except Exception:
        progress(f"{part}:\n{traceback.format_exc()}")
    return None


def show(results: Sequence[CaseResult], kind: str) -> str:
    """Formats the mean changes over repetitions, in percent, with standard errors."""
    lines, budgets = [], sorted({row.budget for one in results for row in one.all_rows})
    for problem in dict.fromkeys(one.problem for one in results):
        rows = [row for one in results if one.problem == problem for row in one.all_rows]
        own = {"ensemble", "mtl-big", *TABLE_NETWORKS}  # their effort is the budget
        keys = dict.fromkeys((row.method, None if row.method in own else row.effort) for row in rows)
        for method, effort in keys:
            cells = []
            for budget in budgets:
                found = [
                    100 * getattr(row, kind)
                    for row in rows
                    if (row.method, row.budget) == (method, budget) and effort in (None, row.effort)
                ]
                cells.append(_with_error(found))
            lines.append([problem, method, "k" if effort is None else str(effort), *cells])
    return table(["problem", "method", "trainings", *(f"k = {budget}" for budget in budgets)], lines)


def _with_error(changes: Sequence[float]) -> str:
    if not changes:
        return ""
    error = f" ± {statistics.stdev(changes) / len(changes) ** 0.5:.1f}" if len(changes) > 1 else ""
    return f"{statistics.mean(changes):+.1f}{error}".replace("-", "−")


def show_convergence(results: Sequence[CaseResult]) -> str:
    """Formats how many networks for all tasks were best in one of their last three epochs."""
    lines = []
    for problem in dict.fromkeys(one.problem for one in results):
        some = [one for one in results if one.problem == problem]
        late, networks = sum(one.late for one in some), sum(one.networks for one in some)
        trained, seconds = sum(one.trained for one in some), sum(one.seconds for one in some)
        lines.append([problem, str(len(some)), f"{late} of {networks}", f"{trained:,}", f"{seconds:.0f}"])
    return table(["problem", "repetitions", "best in the last three epochs", "networks trained", "seconds"], lines)


def show_prices(results: Sequence[CaseResult]) -> str:
    """Formats the training times of networks for tables, relative to the old network."""
    lines = []
    for problem in dict.fromkeys(one.problem for one in results if one.table_seconds):
        some = [one.table_seconds for one in results if one.problem == problem and one.table_seconds]
        seconds = {kind: statistics.mean(one[kind] for one in some) for kind in TABLE_NETWORKS}
        lines.append([problem, *(f"{seconds[kind] / seconds['old network']:.1f}×" for kind in TABLE_NETWORKS)])
    return table(["training time of one network", *TABLE_NETWORKS], lines) if lines else ""


def read_results(*paths: Path) -> list[CaseResult]:
    """Reads the results of earlier runs, and merges the parts of each case."""
    found = [CaseResult(**one) for path in paths for one in json.loads(path.read_text())]
    return merge(replace(one, rows=[Row(**row) for row in one.rows]) for one in found)


def merge(results: Iterable[CaseResult]) -> list[CaseResult]:
    """Merges the parts of each case. If a part was measured twice, the last result counts."""
    merged: dict[tuple[str, int], CaseResult] = {}
    for one in results:
        known = merged.setdefault((one.problem, one.repetition), CaseResult(one.problem, one.repetition))
        if one.rows:
            for name in ("rows", "plain", "late", "networks", "trained", "seconds"):
                setattr(known, name, getattr(one, name))
        if one.tables:
            known.tables, known.table_seconds = one.tables, one.table_seconds
        known.boosting, known.balancing = one.boosting or known.boosting, one.balancing or known.balancing
    return sorted(merged.values(), key=lambda one: (list(PROBLEMS).index(one.problem), one.repetition))


def save(results: Sequence[CaseResult], path: Path) -> None:
    """Saves results. If the process is killed, the file is either the old or the new one."""
    written = path.with_name(f"{path.name}.new")
    written.write_text(json.dumps([asdict(one) for one in results], indent=1))
    os.replace(written, path)


def show_all(results: Sequence[CaseResult]) -> str:
    """Formats all tables of the README."""
    parts = ["The very networks that were chosen:", show(results, "very")]
    parts += ["The recipe: the same plan, trained again with fresh seeds. For best-of, this is any k copies."]
    return "\n\n".join(filter(None, [*parts, show(results, "recipe"), show_convergence(results), show_prices(results)]))


def write_docs(results: Sequence[CaseResult]) -> None:
    """Replaces the tables of the README beside this file. `summary.py` writes those of the other pages."""
    replace_part(PAGE, "fair.py", "all", show_all(results))


def main() -> None:
    """Measures the missing parts and prints the tables. Results are saved after each part."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("problems", nargs="*", default=list(PROBLEMS), metavar="PROBLEM", help=", ".join(PROBLEMS))
    parser.add_argument("--repetitions", type=_range, default=range(5), help="their number, or a range such as 3-5")
    parser.add_argument("--parts", type=_names, default=PARTS[:2], help=f"some of {','.join(PARTS)}")
    parser.add_argument("--efforts", type=_numbers, default=EFFORTS)
    parser.add_argument("--budgets", type=_numbers, default=BUDGETS)
    parser.add_argument("--base", choices=("truth", "default"), default="truth", help="the plain network on tables")
    parser.add_argument("--data", type=Path, help="folder with qm9/, tox21/, nhanes.tsv and digits.npz")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--workers", type=int, default=1, help="number of processes that prepare cases")
    parser.add_argument("--rows", type=int, help="rows of each split, for a quick trial")
    parser.add_argument("--epochs", type=int, help="maximum number of epochs, with --rows")
    parser.add_argument("--out", type=Path, help="where to save all results; those it has already are kept")
    parser.add_argument("--limit-seconds", type=float, default=1e6, help="stop after this time; the rest is missing")
    parser.add_argument("--show", type=Path, nargs="+", help="print the tables of earlier runs; --out merges them")
    parser.add_argument("--write-docs", action="store_true", help="replace the tables of benchmarks/README.md")
    options = parser.parse_args()
    results = read_results(*(options.show or (path for path in (options.out,) if path is not None and path.exists())))
    if not options.show:
        results = measure(results, options)
    if options.show and options.out:
        save(results, options.out)
    if options.write_docs:
        write_docs(results)
    print(show_all(results))


def measure(results: list[CaseResult], options: argparse.Namespace) -> list[CaseResult]:
    """Measures the parts that are missing in the results, and returns all of them."""
    known = {(one.problem, one.repetition, part) for one in results for part in one.parts}
    wanted = [(name, number, part) for number in options.repetitions for name in options.problems
              for part in options.parts if part in ("methods", "balancing") or PROBLEMS[name].is_table]  # fmt: skip
    missing = [(*case, options) for case in wanted if case not in known]
    with ExitStack() as stack:
        found = map(prepare_part, missing)  # in this process, case by case
        if options.workers > 1:  # leaving the pool ends its workers
            pool = stack.enter_context(multiprocessing.get_context("spawn").Pool(options.workers))
            found = pool.imap(prepare_part, missing)
        for part, prepared in _until(time.monotonic() + options.limit_seconds, found):
            start = time.perf_counter()
            one = None if prepared is None else finish(part, prepared, options)
            if one is None:
                continue
            took = time.perf_counter() - start
            progress(f"{one.problem}, repetition {one.repetition}, {part}: {one.trained} networks, {took:.0f} s")
            results = merge([*results, one])
            if options.out:
                save(results, options.out)
    return results


def _until(end: float, found: Any) -> Iterator[Any]:
    """Yields prepared cases until there are no more or the time is over."""
    try:
        while (left := end - time.monotonic()) > 0:
            yield next(found) if isinstance(found, map) else found.next(left)
    except StopIteration:
        return
    except multiprocessing.TimeoutError:
        pass
    progress("the time is over; run the command again to continue")


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in text.split(","))


def _range(text: str) -> range:
    first, _, last = text.rpartition("-")
    return range(int(first), int(last) + 1) if first else range(int(last))


def _names(text: str) -> tuple[str, ...]:
    if unknown := set(text.split(",")) - set(PARTS):
        raise argparse.ArgumentTypeError(f"must be some of {', '.join(PARTS)}, not {', '.join(sorted(unknown))}")
    return tuple(text.split(","))


if __name__ == "__main__":
    main()
