"""`Study`: the whole comparison on one problem, from decisions and training to the verdict."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from tagalong.errors import InvalidInput
from tagalong.learn import Problem
from tagalong.progress import Progress

from .backend import TrainingBackend, open_backend
from .best import Best, keep_best
from .decisions import about_decisions, confirm, decide_all, records_of, write_decisions
from .executors import Executor, device_name, make_executor
from .methods import Method
from .records import ProblemInfo
from .results import Results
from .run_folder import check_folder, draw_page, write_settings
from .store import Store
from .study_request import Options, StudyRequest, check_request, with_effort
from .text import label_text
from .uncertainty import row_noise

logger = logging.getLogger(__name__)


class Study:
    """Compares ways of grouping on one problem.

    Everything is kept in the folder `out`: if a study is killed and run again, finished networks are not trained again
    and the results are the same.

    Args:
        problem: the problem to train on. For networks that your own script trains, see `ExternalStudy`.
        out: the folder of the run; a run of the same problem continues where the last one stopped.
        executor: "serial", "processes" (of this machine, "processes:4" for four; scripts need
            `if __name__ == "__main__":`) or "ray": a cluster, if `ray.init(address="auto")` was called before, else
            this machine; or an own `Executor`.
        device: "auto" (CUDA if it is available), "cpu", "cuda", ….
        progress: receives the number of networks to train, and how many are done.

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
        problem: Problem,
        out: str | os.PathLike[str],
        *,
        executor: str | Executor = "serial",
        device: str = "auto",
        progress: Progress | None = None,
    ) -> None:
        if not isinstance(problem, Problem):
            hint = "for networks that your own script trains, use ExternalStudy"
            raise InvalidInput("problem", "must be a Problem", repr(problem), hint)
        self.problem, self.out = problem, Path(out)
        self._executor = make_executor(executor)
        self._named = executor if isinstance(executor, str) else type(executor).__name__
        self._device, self._progress = device_name(device), progress

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
        """Trains the networks that methods need, unless they are in the folder already, and compares the methods.

        Args:
            methods: names such as "mtl", "tag", "tag+pcgrad" (see `make_method`), or methods. `mtl` is always
                there, since everything is compared with it.
            budgets: how many networks there may be, for methods that group; by default 2, 3 and 4, as far as there
                are tasks.
            seeds: how many, or which. Each method decides once per budget, from all seeds together.
            options: by method, for example `{"tag": {"every": 1, "update": "optimizer"}}`.
            price_per_hour: price of an hour of compute; adds a cost column.
            confirm: re-train the best grouping, and all together, with this many fresh seeds before judging it; the
                verdict then counts these alone, since no choice could be made for the luck of their networks.
            effort: of `auto`: a number of trainings, "quick" (20), "normal" (60, the default), "thorough" (200), or a
                time such as "10min".

        Raises:
            ValueError: with every problem of the input, before any training.
            Diverged: one network for all tasks did, with every seed; other networks that do end nothing.
        """
        options = with_effort(options, effort)
        request = self._request(methods, budgets, seeds, options, price_per_hour, confirm)
        with open_backend(
            self.problem, self.out, executor=self._executor, device=self._device, progress=self._progress
        ) as backend:
            about = {**request.to_document(options), "device": self._device, "executor": self._named}
            settings = write_settings(self.out, self.problem, backend.keys.architecture, about)
            results = self._compare(backend, request, settings)
            draw_page(self.out)
            logger.info("finished: %d networks in the store", len(backend.store))
        return results

    def check(self, methods: Sequence[str | Method], budgets: Sequence[int] | None = None, **more: Any) -> None:
        """Raises what `run` would raise for invalid arguments, and trains nothing.

        Args:
            methods: as for `run`.
            budgets: as for `run`.
            **more: the other arguments of `run`.
        """
        options = with_effort(more.pop("options", None), more.pop("effort", None))
        self._request(methods, budgets, options=options, **more)

    def results(self) -> Results:
        """Reads the results of `run` from the folder.

        Raises:
            ValueError: there are none yet, or they are of other data.
        """
        if not (self.out / "results.json").exists():
            raise InvalidInput("", f"there are no results in {self.out} yet", hint="run the study first")
        check_folder(self.out, self.problem.fingerprint)
        results = Results.load(self.out)
        if results.problem.fingerprint not in ("", self.problem.fingerprint):
            raise InvalidInput("out", "must hold results of this problem", f"those of other data in {self.out}")
        if results.problem.tasks != self.problem.names:
            found = f"those for {', '.join(results.problem.tasks)}"
            expected = f"must hold results for {', '.join(self.problem.names)}"
            raise InvalidInput("out", expected, found, "use a new one")
        return results

    def best(self, method: str | None = None, budget: int | None = None) -> Best:
        """The trained networks of a method and budget of the finished run, of the seed that did best on validation.

        Args:
            method: its name; None: what the verdict recommends, as `Results.best` reads it.
            budget: how many networks it was allowed; None for methods without a budget.

        Raises:
            ValueError: there are no results yet, or none of this method and budget.
        """
        if method is None and budget is not None:
            raise InvalidInput("budget", "must come with a `method`", f"{budget!r} alone")
        results = self.results()
        label = results.verdict().recommended if method is None else (method, budget)
        if not any(record.networks for record in results.records_of(label)):
            known = ", ".join(dict.fromkeys(label_text(record.label) for record in results.records if record.networks))
            expected = f"must have networks in {self.out}"
            raise InvalidInput("`method` and `budget`", expected, str(label), f"there are {known}")
        with (
            Store(self.out / "run.sqlite") as store,
            TrainingBackend(self.problem, store, executor=self._executor, device=self._device) as backend,
        ):
            return keep_best(results, self.problem, backend.weights, backend.width, label)

    def _request(self, *arguments: Any, **named: Any) -> StudyRequest:
        """Returns the checked request, see `check_request`; rejects one that cannot be run in this folder."""
        request = check_request(self.problem.names, *arguments, problem=self.problem, **named)
        check_folder(self.out, self.problem.fingerprint)
        return request

    def _compare(self, backend: TrainingBackend, request: StudyRequest, settings: dict[str, Any]) -> Results:
        for method in request.methods:
            method.begin(backend, request.seeds)
        # All tasks together first: every cost is relative to that of these networks.
        wanted, request = request.seeds, replace(request, seeds=backend.converged_seeds(request.seeds))
        decisions = decide_all(backend, request)
        write_decisions(self.out, decisions, backend.tasks)
        settings = settings | about_decisions(decisions)
        info = ProblemInfo.of(self.problem)
        records = records_of(backend, decisions, request.seeds)
        fresh, lost = confirm(backend, decisions, records, request.confirming, info)
        records += fresh
        lost = [seed for seed in wanted if seed not in request.seeds] + lost
        settings = settings | ({"diverged_seeds": lost} if lost else {})
        chosen = {key for record in records for key in record.networks}
        backend.store.keep(chosen)  # before they are read, since another process may be about to prune the store
        backend.restore(sorted(chosen))
        noise = row_noise(records, backend.row_losses, self.problem.test.groups, request.confirming)
        settings = {**settings, "spent": asdict(backend.store.spent())}
        results = Results(records, problem=info, noise=noise, settings=settings, out=self.out)
        keep_best(results, self.problem, backend.weights, backend.width).save(self.out)
        results.save(self.out / "results.json")
        return results
