"""Defines `Study`, which compares methods on one problem, from decisions and training to the verdict."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, get_args

from tagalong.errors import InvalidInput
from tagalong.files import describe_unwritten
from tagalong.learn import Problem
from tagalong.progress import NoProgress, Progress, TimeLimit

from .best import Best, keep_best
from .decisions import compare
from .executors import Executor, device_name, make_executor
from .methods import Method
from .results import Results
from .run_folder import check_folder, write_run_report, write_settings
from .runner import Keep, Runner, open_runner
from .store import Store
from .study_request import Options, StudyRequest, check_request
from .words import label_text

logger = logging.getLogger(__name__)


class Study:
    """Compares ways of grouping tasks on one problem.

    All networks and results are stored in the folder `out`. If a study is killed and run again, finished networks are
    not retrained, and the results are the same.

    Args:
        problem: the problem to train on. For networks trained by your own script, see `ExternalStudy`.
        out: the folder of the run. If it contains an earlier run of the same problem, that run is continued.
        executor: "serial", "processes", "ray" or a custom `Executor`. "processes" trains in multiple processes on this
            machine, e.g. "processes:4" for four. Scripts then need `if __name__ == "__main__":`. "ray" trains on a
            cluster if `ray.init(address="auto")` was called before, otherwise on this machine.
        device: the device to train on, e.g. "cpu" or "cuda". "auto" selects CUDA if it is available.
        progress: an object that receives the number of networks to train and an update whenever one finishes.
        keep: "all" keeps the weights of every network, so that no later run trains a network again. "recommended" keeps
            only those of the compared methods and the answers of the others on validation and test rows, and logs what
            training the others again would cost.

    Attributes:
        problem: see above.
        out: see above.
        unwritten: sentences about the files that the last call of `run` could not write, e.g. on a full disk. They are
            logged too. Networks that are already trained are never lost.

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
        keep: Keep = "all",
    ) -> None:
        if keep not in get_args(Keep):
            raise InvalidInput("keep", f"must be one of {', '.join(map(repr, get_args(Keep)))}", repr(keep))
        if not isinstance(problem, Problem):
            hint = "for networks trained by your own script, use ExternalStudy"
            raise InvalidInput("problem", "must be a Problem", type(problem).__name__, hint)
        if not isinstance(out, (str, os.PathLike)) or not os.fspath(out) or "\0" in os.fspath(out):
            raise InvalidInput("out", "must be a folder", repr(out))
        self.problem, self.out = problem, Path(out)
        self._executor = make_executor(executor)
        self._executor_name = executor if isinstance(executor, str) else type(executor).__name__
        self._device, self._progress, self._keep = device_name(device), progress, keep
        self.unwritten: tuple[str, ...] = ()

    def run(
        self,
        methods: Sequence[str | Method] | None = None,
        budgets: Sequence[int] | None = None,
        seeds: int | Sequence[int] | None = None,
        *,
        options: Options | None = None,
        confirm: int = 0,
        effort: Any = None,
        reference: str | None = None,
        repeats: int | None = None,
        time: str | float | None = None,
    ) -> Results:
        """Trains the networks that the methods need, unless they are already in the folder, and compares the methods.

        Args:
            methods: names like "mtl", "tag" or "tag+pcgrad" (see `make_method`), or `Method` objects. `mtl` is always
                included as the baseline. Defaults to `default_methods`: one plain network, larger networks, copies,
                groups, and references without networks, as far as they support the problem.
            budgets: the limits on the number of networks. Defaults to 2, 3 and 4, up to the number of tasks. Only
                methods that average answers, such as "ensemble" and "best-of", use more networks than there are tasks.
            seeds: the number of seeds, 3 by default, or a list of seeds. Each method decides once per budget, based on
                all seeds. With folds, each fold has one seed.
            options: options for each method, e.g. `{"tag": {"every": 1, "update": "optimizer"}}`.
            confirm: the number of fresh seeds used to retrain the recommended networks and the reference. These seeds
                judge the recipe, since their results did not influence the choice (see `Verdict`).
            effort: the effort that `auto` and `best-of` each spend on their decision, for all seeds together: a number
                of training runs, "quick" (20), "normal" (60, the default), "thorough" (200), or a duration, e.g.
                "10min". With folds, in each fold, and "quick" by default.
            reference: the method that everything is compared with, e.g. "stl" or, with its budget, "ensemble:2".
                Defaults to "boosting" for tables, if it is among the methods, and otherwise to "mtl".
            repeats: the number of folds. Each row is tested once, by networks of a fold that neither learned from it
                nor were chosen by it. Each fold repeats the whole procedure, and you get the networks of the first one.
                1 means the problem's own split. Defaults to 5 for tables and arrays without given splits that have
                fewer than 2,000 labelled rows, if `seeds` is not given, and otherwise to 1.
            time: how long to train, e.g. "10min" or a number of seconds. Methods that are not finished then are left
                out, except for `mtl` and the reference. Run again with more time to continue.

        Raises:
            ValueError: If the input is invalid. The message lists every problem, and nothing is trained.
            Diverged: If the network for all tasks diverges for every seed. The study continues if any other network
                diverges.
            OSError: If the disk is full. Networks trained so far are kept. Nothing is raised if only the recommended
                networks, the results or the report cannot be written; see `unwritten`.
        """
        request = self.check(
            methods,
            budgets,
            seeds,
            options=options,
            confirm=confirm,
            effort=effort,
            reference=reference,
            repeats=repeats,
            time=time,
        )
        limit = None if request.seconds is None else TimeLimit(self._progress or NoProgress(), request.seconds)
        with open_runner(
            self.problem,
            self.out,
            executor=self._executor,
            device=self._device,
            progress=limit or self._progress,
            keep=self._keep,
        ) as runner:
            about = {**request.to_document(), "device": self._device, "executor": self._executor_name}
            settings = write_settings(self.out, self.problem, runner.keys.architecture, about)
            for note in request.notes:
                logger.info("%s", note)
            results = compare(runner, request, settings, self.out, limit)
            runner.unwritten += self._write_results(results, runner.folds(request.repeats)[0])
            logger.info("finished: %d networks in the store", len(runner.store))
        self.unwritten = tuple(runner.unwritten)
        for sentence in self.unwritten:
            logger.error("%s", sentence)  # again, since the log in the folder is closed by now
        return results

    def check(
        self,
        methods: Sequence[str | Method] | None = None,
        budgets: Sequence[int] | None = None,
        seeds: int | Sequence[int] | None = None,
        **more: Any,
    ) -> StudyRequest:
        """Raises the errors that `run` would raise for invalid arguments, without training anything.

        Args:
            methods: see `run`.
            budgets: see `run`.
            seeds: see `run`.
            **more: the other arguments of `run`.

        Returns:
            What `run` would compare.
        """
        request = check_request(self.problem.names, methods, budgets, seeds, problem=self.problem, **more)
        check_folder(self.out, self.problem.fingerprint)
        return request

    def results(self) -> Results:
        """Reads the results of `run` from the study's folder.

        Raises:
            ValueError: If there are no results yet, or they belong to different data.
        """
        if not (self.out / "results.json").exists():
            raise InvalidInput("", f"there are no results in {self.out} yet", hint="run the study first")
        check_folder(self.out, self.problem.fingerprint)
        results = Results.load(self.out)
        if results.problem.fingerprint != self.problem.fingerprint:
            found = f"results for other data in {self.out}"
            raise InvalidInput("out", "must contain results for this problem", found, "use a new folder")
        return results

    def best(self, method: str | None = None, budget: int | None = None) -> Best:
        """Returns the trained networks of a method and budget for the seed that performed best on validation.

        Args:
            method: the name of the method, or None for the verdict's recommendation, as in `Results.best`.
            budget: the maximum number of networks, or None for methods without a budget.

        Raises:
            ValueError: If there are no results yet, or none for this method and budget.
        """
        if method is None and budget is not None:
            raise InvalidInput("budget", "can only be used together with `method`")
        results = self.results()
        label = results.verdict().recommended if method is None else (method, budget)
        if not any(record.networks for record in results.records_of(label)):
            known = ", ".join(dict.fromkeys(label_text(record.label) for record in results.records if record.networks))
            expected = f"must identify networks in {self.out}"
            raise InvalidInput("`method` and `budget`", expected, str(label), f"choose from {known}")
        with (
            Store(self.out / "run.sqlite") as store,
            Runner(self.problem, store, executor=self._executor, device=self._device) as runner,
        ):
            return keep_best(results, runner.folds(results.settings.get("repeats", 1))[0], label)

    def _write_results(self, results: Results, runner: Runner) -> list[str]:
        """Writes the networks, results and report. Returns a sentence for each that could not be written."""
        best, file = keep_best(results, runner), self.out / "results.json"
        ways = results.verdict().by_budget if self._keep == "all" else {}
        by_budget = {networks: keep_best(results, runner, way.label) for networks, way in ways.items()}

        def save_networks() -> None:
            best.save(self.out)
            for networks, other in by_budget.items():
                other.save(self.out, networks)

        networks_lost = _try_to_write(self.out / "networks", save_networks)
        results_lost = _try_to_write(file, lambda: results.save(file))
        needed = f"{self.out / 'report.html'} could not be written: it is made from {file.name}"
        report_lost = needed if results_lost else write_run_report(self.out)
        return [sentence for sentence in (networks_lost, results_lost, report_lost) if sentence is not None]


def _try_to_write(path: Path, write: Callable[[], object]) -> str | None:
    """Writes a file or folder. If that fails, logs and returns a sentence that says why."""
    try:
        write()
    except OSError as error:
        sentence = describe_unwritten(path, error)
        logger.error("%s", sentence)
        return sentence
    return None
