"""Sets up the paper's experiments: a problem, seeds, and a store of networks that all experiments share."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tagalong.errors import InvalidInput, pluralize, raise_problems, would_train

from .printed import TASK_NAMES

if TYPE_CHECKING:
    from tagalong.learn import Problem
    from tagalong.progress import Progress
    from tagalong.study import Executor, TrainingBackend

CELEBA_SHORT_NAMES = {name: short for short, name in TASK_NAMES["celeba"].items()}
TASKONOMY_SHORT_NAMES = {name: short for short, name in TASK_NAMES["taskonomy"].items()}
SMALL_TASKS = ("5_o_Clock_Shadow", "Black_Hair", "Blond_Hair", "Goatee", "No_Beard")  # 31 subsets
PROBLEMS = ("faces", "celeba", "taskonomy")
BUDGETS = {"faces": (2, 3, 4), "celeba": (2, 3, 4), "taskonomy": (2, 3)}
SEED_COUNTS = {"small": 2, "full": 3}
MAX_SEEDS = 10_000
MIN_TASKS = 2  # with fewer, there is nothing to group


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
    def is_small(self) -> bool:
        """Whether the experiment should be quick rather than accurate."""
        return self.size == "small"

    @property
    def budgets(self) -> tuple[int, ...]:
        """The paper's budgets, up to the number of tasks."""
        return tuple(k for k in BUDGETS.get(self.problem.name, (2, 3, 4)) if k <= len(self.chosen.names))

    @property
    def printed_dataset(self) -> str | None:
        """The paper's data set with the same tasks: "celeba", "taskonomy" or None."""
        if set(self.problem.names) <= set(CELEBA_SHORT_NAMES):
            return "celeba"
        return "taskonomy" if self.problem.name == "taskonomy" else None

    def short_name(self, task: str) -> str:
        """Returns the paper's short name for a task, such as a1 or s, or the task's own name if it has none."""
        names = TASKONOMY_SHORT_NAMES if self.problem.name == "taskonomy" else CELEBA_SHORT_NAMES
        return names.get(task, task)

    @property
    def notes(self) -> list[str]:
        """The notes that appear in every report: problem, rows, seeds, recipe and tasks."""
        recipe, rows = self.problem.recipe, {part: len(split) for part, split in self.problem.splits.items()}
        short = {task: self.short_name(task) for task in self.chosen.names}
        names = ", ".join(task if task == name else f"{name} {task}" for task, name in short.items())
        notes = [
            f"{self.problem.name}, {self.size}: {rows['train']} rows for training, {rows['val']} for validation, "
            f"{rows['test']} for test; seeds {', '.join(map(str, self.seeds))}; {recipe.optimizer}, learning rate "
            f"{recipe.lr:g}, batches of {recipe.batch_size}, at most {pluralize(recipe.epochs, 'epoch')}",
            f"tasks: {names}",
        ]
        return [*notes, *self.problem.notes]

    @property
    def printed_notes(self) -> list[str]:
        """Additional notes for reports whose tables contain the paper's numbers."""
        start = 'columns headed "printed" hold the paper\'s numbers'
        if self.printed_dataset is not None and self.printed_dataset != self.problem.name:
            return [f"{start} on CelebA; the data differ, so only the pattern can be compared"]
        if self.printed_dataset and self.is_small:
            return [f"{start} at full size; results at small size are not comparable"]
        return []

    @contextmanager
    def open_backend(self, problem: Problem | None = None, **recipe: Any) -> Iterator[TrainingBackend]:
        """Opens a training backend that uses the shared store.

        Args:
            problem: the problem to train. Defaults to the problem with the chosen tasks.
            **recipe: the recipe settings to change.
        """
        from tagalong.study import open_backend

        found = problem or self.chosen
        if recipe:
            fingerprint = found.fingerprint
            found = replace(found, recipe=replace(found.recipe, **recipe))
            vars(found)["fingerprint"] = fingerprint  # the data are the same, and reading them takes a long time
        with open_backend(
            found, self.out, executor=self.executor, device=self.device, progress=self.progress
        ) as backend:
            yield backend


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
        size: "small" runs in seconds, and "full" is the paper's size.
        out: the output folder. Defaults to `runs/paper-PROBLEM-SIZE`.
        seeds: the number of seeds. Defaults to 2 if `size` is "small", 3 if it is "full", and 1 for Taskonomy.
        tasks: the tasks to use. Defaults to five tasks if `size` is "small", and to all tasks if it is "full".
        options: the problem's options, such as its data folder.
        recipe: the recipe settings to change.
        device: the device to train on, as in `Study`.
        progress: reports progress.
        executor: how to run training jobs, as in `Study`.

    Raises:
        ValueError: If the problem or the size is unknown, the problem is not installed, or the folder contains a run of
            a different problem.
    """
    _check_arguments(problem, size, seeds, recipe or {})
    from tagalong.problems import load_problem
    from tagalong.study import check_backend, claim_folder

    folder = out or Path("runs") / f"paper-{problem}-{size}"
    check_backend(folder, executor=executor, device=device)  # before generating or decoding images, which takes minutes
    loaded = load_problem(problem, **{**(options or {}), "size": size, "progress": progress})
    if recipe:
        loaded = replace(loaded, recipe=replace(loaded.recipe, **recipe))
    names = (loaded if tasks is None else loaded.only(tasks)).names
    if len(names) < MIN_TASKS:
        raise InvalidInput("tasks", f"must contain at least {MIN_TASKS} tasks to group", repr(names[0]))
    default = SMALL_TASKS if size == "small" and set(SMALL_TASKS) <= set(loaded.names) else None
    count = seeds or (1 if problem == "taskonomy" else SEED_COUNTS[size])
    setup = ExperimentSetup(
        loaded, folder, default if tasks is None else tuple(tasks), range(count), size, device, progress, executor
    )
    claim_folder(folder, loaded, {"seeds": list(setup.seeds), "size": size})
    return setup


def _check_arguments(problem: str, size: str, seeds: int | None, recipe: Mapping[str, Any]) -> None:
    from dataclasses import fields

    from tagalong.learn import Recipe
    from tagalong.problems import problem_names

    problems = []
    if problem not in PROBLEMS:
        problems.append(InvalidInput("problem", f"must be one of {', '.join(map(repr, PROBLEMS))}", repr(problem)))
    elif problem not in problem_names():
        missing = f"{problem!r} is not available in this installation"
        problems.append(InvalidInput("problem", missing, hint="use the substitute 'faces'"))
    if size not in SEED_COUNTS:
        problems.append(InvalidInput("size", "must be 'small' or 'full'", repr(size)))
    if seeds is not None and seeds < 1:
        problems.append(InvalidInput("seeds", "must be a positive integer", repr(seeds)))
    if seeds is not None and seeds > MAX_SEEDS:
        found = f"a number that would train {would_train(seeds)}"
        problems.append(InvalidInput("seeds", f"must be at most {MAX_SEEDS:,}", found))
    known = sorted(one.name for one in fields(Recipe))
    if unknown := [name for name in recipe if name not in known]:
        problems.append(
            InvalidInput("recipe", f"must contain only known settings ({', '.join(known)})", ", ".join(unknown))
        )
    raise_problems(problems)
