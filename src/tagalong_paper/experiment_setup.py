"""Sets up the paper's experiments: a problem, the paper's metric, seeds, and networks that experiments share."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, fields, replace
from functools import cached_property, reduce
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from tagalong.affinity import Affinity
from tagalong.errors import InvalidInput, did_you_mean, pluralize
from tagalong.group import Group
from tagalong.learn import Diverged, Job, Problem, Recipe
from tagalong.problems import load_problem
from tagalong.progress import Progress
from tagalong.study import (
    Executor,
    Oracle,
    Record,
    Runner,
    Score,
    check_runner,
    claim_folder,
    open_runner,
)

from .printed import TASK_NAMES
from .report import Floats, Value, summarize

SHORT_NAMES = {task: short for names in TASK_NAMES.values() for short, task in names.items()}
SMALL_TASKS = ("5_o_Clock_Shadow", "Black_Hair", "Blond_Hair", "Goatee", "No_Beard")  # 31 subsets
BUDGETS = {"faces": (2, 3, 4), "celeba": (2, 3, 4), "taskonomy": (2, 3)}
SEED_COUNTS = {"small": 2, "full": 3}
MAX_TASKS = 12  # the maximum for training every subset: 4095 networks per seed
EQUATION_1 = {"estimator": "lookahead", "update": "sgd"}  # settings of the meter
Array = NDArray[np.float64]
Label = tuple[str, int | None]  # method and budget
Table = dict[frozenset[str], dict[str, float]]  # the results of each task in each network
Key = TypeVar("Key")


@dataclass(frozen=True)
class ExperimentSetup:
    """The problem, the seeds and the output folder of an experiment.

    Attributes:
        problem: the problem, with all its tasks.
        out: the output folder. The file `run.sqlite` stores every network, so an interrupted experiment can resume.
        tasks: the tasks for experiments that train every subset. If None, all tasks are used.
        seeds: the seeds to train with.
        size: "small" or "full".
        device: the device to train on, as in `Study`.
        progress: reports progress.
        executor: how to run training jobs, as in `Study`.
    """

    problem: Problem
    out: Path
    tasks: Sequence[str] | None = None
    seeds: Sequence[int] = (0, 1, 2)
    size: str = "full"
    device: str = "auto"
    progress: Progress | None = field(default=None, repr=False)
    executor: str | Executor = "serial"

    @cached_property
    def chosen(self) -> Problem:
        """The problem, restricted to the chosen tasks."""
        return self.problem if self.tasks is None else self.problem.only(self.tasks)

    @property
    def budgets(self) -> tuple[int, ...]:
        """The paper's budgets, up to the number of tasks."""
        return tuple(k for k in BUDGETS.get(self.problem.name, (2, 3, 4)) if k <= len(self.chosen.names))

    @property
    def printed_dataset(self) -> str | None:
        """The paper's data set with the same tasks: "celeba", "taskonomy" or None."""
        if self.problem.name == "taskonomy":
            return "taskonomy"
        return "celeba" if set(self.problem.names) <= set(TASK_NAMES["celeba"].values()) else None

    def short_names(self, tasks: Iterable[str] | None = None) -> tuple[str, ...]:
        """Returns the paper's short names of tasks, such as a1 or s, by default of the chosen tasks."""
        return tuple(SHORT_NAMES.get(task, task) for task in (self.chosen.names if tasks is None else tasks))

    @property
    def notes(self) -> list[str]:
        """The notes that appear in every report: problem, rows, seeds, recipe and tasks."""
        recipe = self.problem.recipe
        train, val, test = map(len, self.problem.splits.values())
        tasks = [f"{SHORT_NAMES[task]} {task}" if task in SHORT_NAMES else task for task in self.chosen.names]
        return [
            f"{self.problem.name}, {self.size}: {train} rows for training, {val} for validation, {test} for test; "
            f"seeds {', '.join(map(str, self.seeds))}; {recipe.optimizer}, learning rate {recipe.lr:g}, batches of "
            f"{recipe.batch_size}, at most {pluralize(recipe.epochs, 'epoch')}",
            f"tasks: {', '.join(tasks)}",
            *self.problem.notes,
        ]

    @property
    def noun(self) -> str:
        """The paper's metric: "error" for CelebA, whose results are errors in percent, or "loss" for Taskonomy."""
        return "error" if counts_errors(self.chosen) else "loss"

    @property
    def digits(self) -> int:
        """The number of decimal places that the paper prints."""
        return 2 if self.noun == "error" else 4

    @property
    def per_row(self) -> float:
        """How much one misclassified test row adds to a total error, in percent, or 0 for losses."""
        return 100 / len(self.problem.splits["test"]) if self.noun == "error" else 0.0

    def label(self, split: str = "test") -> str:
        """Returns a label for the metric with its unit, such as "test error, %"."""
        return f"{split} error, %" if self.noun == "error" else f"{split} loss"

    def summarize(self, values: Floats, *, served: bool = True) -> Value:
        """Returns the mean of results over seeds, with as many digits as the paper prints."""
        return summarize(values, digits=self.digits, served=served)

    def open_runner(self, problem: Problem | None = None, **recipe: Any) -> AbstractContextManager[Runner]:
        """Opens a runner that uses the shared store.

        Args:
            problem: the problem. Defaults to that with the chosen tasks.
            **recipe: the settings of the recipe to change.
        """
        wanted = problem or self.chosen
        if recipe:
            wanted = replace(wanted, recipe=replace(wanted.recipe, **recipe))
        return open_runner(wanted, self.out, executor=self.executor, device=self.device, progress=self.progress)

    def measure(self, runner: Runner, **settings: Any) -> dict[int, Affinity]:
        """Measures the affinities of equation 1 by seed: every 10 steps, or at every step with the small size.

        Args:
            runner: the runner that trains the networks.
            **settings: meter settings to change, such as `every` or `held_out`.
        """
        every = 1 if self.size == "small" else 10
        measured = runner.affinities(self.seeds, {**EQUATION_1, "every": every, **settings})
        # Trains nothing, but raises an error if a network diverged.
        runner.networks([runner.job(runner.tasks, seed) for seed in self.seeds], "all tasks together")
        return {seed: affinity for seed, (affinity, _) in measured.items()}


def load_setup(
    problem: str = "faces",
    size: str = "small",
    *,
    out: Path | None = None,
    seeds: int | None = None,
    tasks: Sequence[str] | None = None,
    options: Mapping[str, Any] | None = None,
    recipe: Mapping[str, Any] | None = None,
    device: str = "auto",
    progress: Progress | None = None,
    executor: str = "serial",
) -> ExperimentSetup:
    """Loads a problem and prepares the output folder of an experiment.

    Args:
        problem: "faces", "celeba" or "taskonomy".
        size: "small" finishes in seconds, and "full" is the paper's size.
        out: the output folder. Defaults to `runs/paper-PROBLEM-SIZE`.
        seeds: the number of seeds. Defaults to 2 if `size` is "small", 3 if it is "full", and 1 for Taskonomy.
        tasks: the tasks to use. Defaults to five tasks if `size` is "small", and to all tasks if it is "full".
        options: the problem's options, such as its data folder.
        recipe: the recipe settings to change.
        device: the device to train on, as in `Study`.
        progress: reports progress.
        executor: how to run training jobs, as in `Study`.

    Raises:
        ValueError: If an argument is invalid, or the folder contains a run of a different problem.
    """
    if problem not in BUDGETS:
        raise InvalidInput("problem", f"must be one of {', '.join(map(repr, BUDGETS))}", repr(problem))
    if size not in SEED_COUNTS:
        raise InvalidInput("size", "must be 'small' or 'full'", repr(size))
    if seeds is not None and seeds < 1:
        raise InvalidInput("seeds", "must be a positive integer", str(seeds))
    settings = [setting.name for setting in fields(Recipe)]
    if unknown := [name for name in recipe or () if name not in settings]:
        raise InvalidInput("recipe", "must contain only known settings", unknown[0], did_you_mean(unknown[0], settings))
    folder = out or Path("runs") / f"paper-{problem}-{size}"
    check_runner(folder, executor=executor, device=device)  # before generating or decoding images, which takes minutes
    loaded = load_problem(problem, **{**(options or {}), "size": size, "progress": progress})
    loaded = replace(loaded, recipe=replace(loaded.recipe, **(recipe or {})))
    if tasks is None and size == "small" and set(SMALL_TASKS) <= set(loaded.names):
        tasks = SMALL_TASKS
    count = seeds or (1 if problem == "taskonomy" else SEED_COUNTS[size])
    setup = ExperimentSetup(loaded, folder, tasks, range(count), size, device, progress, executor)
    if len(setup.chosen.names) < 2:
        raise InvalidInput("tasks", "must contain at least 2 tasks to group", repr(setup.chosen.names[0]))
    claim_folder(folder, loaded, {"seeds": list(setup.seeds), "size": size})
    return setup


def counts_errors(problem: Problem) -> bool:
    """Whether a problem's results are error rates rather than losses."""
    return all(task.error_name == "error rate" for task in problem.tasks)


def task_result(problem: Problem, score: Score) -> float:
    """Returns the result of one task, in the unit of the paper's tables: an error in percent, or a loss."""
    return 100 * score.error if counts_errors(problem) else score.loss


def total_result(problem: Problem, scores: Mapping[str, Score]) -> float:
    """Returns the sum of the results of all tasks."""
    return sum(task_result(problem, score) for score in scores.values())


def totals_by_method(problem: Problem, records: Iterable[Record]) -> dict[Label, list[float]]:
    """Returns the totals on test data for all seeds, by method and budget."""
    totals: dict[Label, list[float]] = {}
    for record in records:
        totals.setdefault((record.method, record.budget), []).append(total_result(problem, record.test))
    return totals


def train_totals(
    runner: Runner, jobs: Mapping[Key, Sequence[Job]], description: str, split: str = "test"
) -> dict[Key, Array]:
    """Trains networks together, and returns their totals by seed, with NaN for networks that diverged."""
    rows = runner.networks([job for seeds in jobs.values() for job in seeds], description, diverged=True)
    totals = {job: total_result(runner.problem, getattr(row, split)) for job, row in rows.items()}
    return {key: np.array([totals[job] for job in seeds]) for key, seeds in jobs.items()}


def all_subset_jobs(runner: Runner, seeds: Sequence[int]) -> list[Job]:
    """Returns the networks for every subset of tasks with every seed, as the paper trains for CelebA (511 networks).

    Raises:
        InvalidInput: If there are too many tasks.
    """
    count = len(runner.tasks)
    if count > MAX_TASKS:
        hint = f"training every subset would require {2**count - 1:,} networks per seed"
        raise InvalidInput("tasks", f"must contain at most {MAX_TASKS} tasks", str(count), hint)
    return [runner.job(subset, seed) for seed in seeds for subset in runner.subsets()]


def network_results(runner: Runner, subset: Iterable[str], seeds: Sequence[int]) -> dict[str, Array]:
    """Returns the test results of a subset's network by task and seed, with NaN for seeds that diverged."""
    jobs = [runner.job(subset, seed) for seed in seeds]
    rows = runner.networks(jobs, diverged=True)
    scores = [rows[job].test for job in jobs]
    return {task: np.array([task_result(runner.problem, by_task[task]) for by_task in scores]) for task in scores[0]}


def subset_table(runner: Runner, seeds: Sequence[int]) -> Table:
    """Returns the mean test results of every subset, except for subsets that diverged.

    Raises:
        Diverged: If all networks trained on one of the tasks diverged.
    """
    table: Table = {}
    for subset in runner.subsets():
        means = {task: float(values.mean()) for task, values in network_results(runner, subset, seeds).items()}
        if np.isfinite(list(means.values())).all():
            table[subset] = means
    if lost := set(runner.problem.names).difference(*table):
        raise Diverged(f"every network of {', '.join(sorted(lost))} diverged; lower `recipe.lr`")
    return table


class PaperOptimal(Oracle):
    """The paper's "Optimal": the groups with the lowest total on test data."""

    def table(self, runner: Runner, subsets: Sequence[frozenset[str]], seeds: Sequence[int]) -> Table:
        """Returns the test results of every subset, which the paper uses to choose groups."""
        return subset_table(runner, seeds)


def grouping_totals(runner: Runner, groups: Iterable[Group], seeds: Sequence[int]) -> Array:
    """Returns the total for each seed, where each task's result comes from the network that serves it."""
    totals = np.zeros(len(seeds))
    for group in groups:
        results = network_results(runner, group.trains, seeds)
        totals += sum(results[task] for task in group.serves)
    return totals


def pool_seeds(affinities: Mapping[int, Affinity]) -> Affinity:
    """Merges the affinities of all seeds into one."""
    return reduce(Affinity.merge, affinities.values())


def off_diagonal(affinity: Affinity, *, centered: bool = False) -> Array:
    """Returns the affinities between different tasks as a flat array.

    Args:
        affinity: the affinities.
        centered: whether to subtract each target's mean, which does not affect the grouping.
    """
    off = ~np.eye(len(affinity.tasks), dtype=bool)
    others = np.where(off, affinity.mean, np.nan)
    if centered:
        others = others - np.nanmean(others, axis=0)
    return others[off]
