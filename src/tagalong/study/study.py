"""The whole comparison on one problem: decide, train, compare, and say whether any grouping is worth it."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from tagalong.affinity import Affinity
from tagalong.errors import named
from tagalong.learn import Problem
from tagalong.progress import Progress

from .backend import Lab, open_lab
from .best import Best, keep_best
from .decisions import confirmed, decide_all, records_of, write_decisions
from .executors import Executor, device_name, make_executor
from .external import External, Losses, has_plan
from .methods import Method
from .planning import Plan
from .planning import plan as make_plan
from .records import ProblemInfo
from .request import Asked, Options, check_request, usual_budgets, with_effort
from .results import Results
from .run_folder import draw_page, folder_problem, write_settings
from .store import Store
from .text import label_text
from .uncertainty import row_noise

logger = logging.getLogger(__name__)


class Study:
    """Compares ways of grouping on one problem.

    Everything is kept in the folder `out`: killed at any moment and run again, finished networks are not trained
    again and results are the same.

    Args:
        problem: what is learnt; or only the names of tasks, for `ask` and `tell` with an own training script.
        out: the folder of the run; it goes on where the last run of the same problem stopped.
        executor: "serial", "processes" (of this machine, "processes:4" for four; scripts need
            `if __name__ == "__main__":`) or "ray": a cluster, if `ray.init(address="auto")` was called before, else
            this machine; or an own `Executor`.
        device: "auto" (CUDA where there is one), "cpu", "cuda", ….
        progress: is told how many networks there are to train and how many are done.

    Example:
        >>> import numpy as np, tempfile
        >>> from tagalong.learn import Problem, Recipe, Task
        >>> rng = np.random.default_rng(0)
        >>> X = rng.normal(size=(300, 4))
        >>> Y = X @ rng.normal(size=(4, 3)) + rng.normal(size=(300, 3))
        >>> tasks = [Task(name, kind="regression") for name in ("age", "height", "weight")]
        >>> problem = Problem.from_arrays(X, Y, tasks, recipe=Recipe(epochs=2))
        >>> with tempfile.TemporaryDirectory() as out:
        ...     results = Study(problem, out).run(methods=["mtl", "stl", "tag"], budgets=[2], seeds=2)
        >>> sorted({(record.method, record.budget) for record in results.records}, key=str)
        [('mtl', None), ('stl', None), ('tag', 2)]
    """

    def __init__(
        self,
        problem: Problem | Sequence[str],
        out: str | os.PathLike[str],
        *,
        executor: str | Executor = "serial",
        device: str = "auto",
        progress: Progress | None = None,
    ) -> None:
        self.problem, self.out = problem, Path(out)
        self._executor = make_executor(executor)
        self._named = executor if isinstance(executor, str) else type(executor).__name__
        self._device, self._progress = device_name(device), progress
        self._external: External | None = None
        self._has_run = False  # and nobody has asked or told since

    def run(
        self,
        methods: Sequence[str | Method] = ("mtl", "stl", "tag"),
        budgets: Sequence[int] | None = None,
        seeds: int | Sequence[int] = 3,
        *,
        options: Options | None = None,
        price_per_hour: float | None = None,
        confirm: int = 0,
        effort: Any = None,
    ) -> Results:
        """Trains what the methods ask for and is not there yet, and compares them.

        Args:
            methods: names such as "mtl", "tag", "tag+pcgrad" (see `make_method`), or methods. `mtl` is always
                there, since everything is compared with it.
            budgets: how many networks there may be, for methods that group; by default 2, 3 and 4, as far as there
                are tasks.
            seeds: how many, or which. Each method decides once per budget, from all seeds together.
            options: by method, for example `{"tag": {"every": 1, "update": "optimizer"}}`.
            price_per_hour: of computing; costs are then reported as money too.
            confirm: so many further seeds train the grouping that does best on validation, and all together, once
                more; the verdict then counts these alone, since no choice could be made for the luck of their networks.
            effort: of `auto`: a number of trainings, "quick" (20), "normal" (60, the default), "thorough" (200), or a
                time such as "10min".

        Raises:
            ValueError: with every problem of the input, before any training.
            Diverged: one network for all tasks did, with every seed; other networks that do end nothing.
        """
        options = with_effort(options, effort)
        problem, asked = self._asked(methods, budgets, seeds, options, price_per_hour, confirm)
        with open_lab(problem, self.out, executor=self._executor, device=self._device, progress=self._progress) as lab:
            about = {**asked.to_document(options), "device": self._device, "executor": self._named}
            settings = write_settings(self.out, problem, lab.keys.architecture, about)
            results = self._compared(lab, asked, settings)
            draw_page(self.out)
            logger.info("finished: %d networks in the store", len(lab.store))
        self._has_run = True
        return results

    def check(self, methods: Sequence[str | Method], budgets: Sequence[int] | None = None, **more: Any) -> None:
        """Refuses what `run` would refuse, and trains nothing.

        Args:
            methods: as for `run`.
            budgets: as for `run`.
            **more: the other arguments of `run`.
        """
        options = with_effort(more.pop("options", None), more.pop("effort", None))
        self._asked(methods, budgets, options=options, **more)

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
        sizes = usual_budgets(len(tasks)) if budgets is None else budgets
        chosen = make_plan(affinity, sizes, wanted, seeds, tasks=tasks)
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
        if self._has_run or (self._external is None and (self._holds_run() or not has_plan(self.out))):
            return self._results_of_run()
        results = self._told.results()
        results.save(self.out / "results.json")
        draw_page(self.out)
        return results

    def best(self, method: str | None = None, budget: int | None = None) -> Best:
        """The trained networks of a method and budget of the finished run, of the seed that did best on validation.

        Args:
            method: its name; None: what the verdict recommends, as `Results.best` reads it.
            budget: how many networks it was allowed; None for methods without a budget.

        Raises:
            ValueError: there are no results yet, or none of this method and budget.
        """
        if not isinstance(self.problem, Problem):
            raise ValueError("`problem` must be a Problem whose networks are here, found names of tasks")
        if method is None and budget is not None:
            raise ValueError(f"`budget` must come with a `method`, found {budget!r} alone")
        results = self._results_of_run()
        label = results.verdict().recommended if method is None else (method, budget)
        if not any(record.networks for record in results.records_of(label)):
            known = ", ".join(dict.fromkeys(label_text(record.label) for record in results.records if record.networks))
            raise ValueError(
                f"`method` and `budget` must have networks in {self.out}, found {label}; there are {known}"
            )
        with (
            Store(self.out / "run.sqlite") as store,
            Lab(self.problem, store, executor=self._executor, device=self._device) as lab,
        ):
            return keep_best(results, self.problem, lab.weights, lab.width, label)

    def _asked(self, *arguments: Any, **named: Any) -> tuple[Problem, Asked]:
        """The problem and what is asked of it, see `check_request`; refused if it cannot be run in this folder."""
        if not isinstance(self.problem, Problem):
            raise ValueError("`problem` must be a Problem to be run, found names of tasks; use `ask` and `tell`")
        asked = check_request(self.problem, *arguments, **named)
        if wrong := folder_problem(self.out, self.problem.fingerprint):
            raise ValueError(wrong)
        return self.problem, asked

    def _compared(self, lab: Lab, asked: Asked, settings: dict[str, Any]) -> Results:
        for method in asked.methods:
            method.begin(lab, asked.seeds)
        # All together first: every cost is compared with what this took.
        wanted, asked = asked.seeds, replace(asked, seeds=lab.sound(asked.seeds))
        decisions = decide_all(lab, asked)
        write_decisions(self.out, decisions, lab.problem.names)
        told = {name: dict(decision.about) for name, (_, decision) in decisions.items() if decision.about}
        settings = settings | ({"decisions": told} if told else {})
        info = ProblemInfo.of(lab.problem)
        records = records_of(lab, decisions, asked.seeds)
        fresh, lost = confirmed(lab, decisions, records, asked.confirming, info)
        records += fresh
        lost = [seed for seed in wanted if seed not in asked.seeds] + lost
        settings = settings | ({"diverged_seeds": lost} if lost else {})
        chosen = {key for record in records for key in record.networks}
        lab.store.keep(chosen)  # before they are read: another process on this folder may be about to prune
        lab.restore(sorted(chosen))
        noise = row_noise(records, lab.row_losses, lab.problem.test.groups, asked.confirming)
        settings = {**settings, "spent": asdict(lab.store.spent())}
        results = Results(records, problem=info, noise=noise, settings=settings, out=self.out)
        keep_best(results, lab.problem, lab.weights, lab.width).save(self.out)
        results.save(self.out / "results.json")
        return results

    def _holds_run(self) -> bool:
        """Whether the results in the folder are of networks trained here; those that were told know no data."""
        written = isinstance(self.problem, Problem) and (self.out / "results.json").exists()
        return written and Results.load(self.out).problem.fingerprint != ""

    def _results_of_run(self) -> Results:
        if not (self.out / "results.json").exists():
            raise ValueError(f"there are no results in {self.out} yet; `run` the study, or `ask` and `tell`")
        if isinstance(self.problem, Problem) and (wrong := folder_problem(self.out, self.problem.fingerprint)):
            raise ValueError(wrong)
        results, tasks = Results.load(self.out), _names(self.problem)
        known = results.problem.fingerprint
        if isinstance(self.problem, Problem) and known not in ("", self.problem.fingerprint):
            raise ValueError(f"`out` must hold results of this problem, found those of other data in {self.out}")
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
