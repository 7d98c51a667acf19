"""Where the paper's experiments run: a problem, its seeds, and one store of networks that all of them share."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tagalong.errors import counted

from .printed import TASK_NAMES

if TYPE_CHECKING:
    from tagalong.learn import Problem
    from tagalong.progress import Progress
    from tagalong.study import Executor, Lab

SHORT = {name: short for short, name in TASK_NAMES["celeba"].items()}
SHORT_TASKONOMY = {name: short for short, name in TASK_NAMES["taskonomy"].items()}
FEW = ("5_o_Clock_Shadow", "Black_Hair", "Blond_Hair", "Goatee", "No_Beard")  # at small size: 31 subsets
PROBLEMS = ("faces", "celeba", "taskonomy")
BUDGETS = {"faces": (2, 3, 4), "celeba": (2, 3, 4), "taskonomy": (2, 3)}
SEEDS = {"small": 2, "full": 3}
FEWEST = 2  # tasks, so that there is something to group


@dataclass(frozen=True)
class Bench:
    """What an experiment needs.

    Attributes:
        problem: with all of its tasks.
        out: the folder; every network is kept in its `run.sqlite`, so that whatever is started again goes on.
        tasks: of the experiments that train every subset; None: all.
        seeds: of networks.
        size: "small" or "full".
        device: as for a `Study`.
        progress: is told how far it is.
        executor: as for a `Study`.
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
        """The problem with the chosen tasks alone."""
        return self.problem if self.tasks is None else self.problem.only(self.tasks)

    @property
    def small(self) -> bool:
        """Whether seconds matter more than numbers."""
        return self.size == "small"

    @property
    def budgets(self) -> tuple[int, ...]:
        """The paper's, as far as there are tasks."""
        return tuple(k for k in BUDGETS.get(self.problem.name, (2, 3, 4)) if k <= len(self.chosen.names))

    @property
    def printed(self) -> str | None:
        """Which of the paper's data sets has tasks of these names: "celeba", "taskonomy" or none."""
        if set(self.problem.names) <= set(SHORT):
            return "celeba"
        return "taskonomy" if self.problem.name == "taskonomy" else None

    def short(self, task: str) -> str:
        """The paper's name of a task, a1 … a9 or s, d, n, t, k; else the task's own."""
        names = SHORT_TASKONOMY if self.problem.name == "taskonomy" else SHORT
        return names.get(task, task)

    @property
    def about(self) -> list[str]:
        """What every report says about where its numbers come from."""
        recipe, rows = self.problem.recipe, {part: len(split) for part, split in self.problem.splits.items()}
        short = {task: self.short(task) for task in self.chosen.names}
        names = ", ".join(task if task == name else f"{name} {task}" for task, name in short.items())
        notes = [
            f"{self.problem.name}, {self.size}: {rows['train']} rows to learn from, {rows['val']} for validation, "
            f"{rows['test']} for test; seeds {', '.join(map(str, self.seeds))}; {recipe.optimizer}, learning rate "
            f"{recipe.lr:g}, batches of {recipe.batch_size}, at most {counted(recipe.epochs, 'epoch')}",
            f"tasks: {names}",
        ]
        return [*notes, *self.problem.notes]

    @property
    def about_printed(self) -> list[str]:
        """What a report says whose tables hold numbers of the paper's."""
        start = "columns headed printed are the paper's"
        if self.printed is not None and self.printed != self.problem.name:
            return [f"{start}, on CelebA: other data, so only the pattern compares"]
        return [f"{start}, at full size; at small size ours mean nothing"] if self.printed and self.small else []

    @contextmanager
    def lab(self, problem: Problem | None = None, **recipe: Any) -> Iterator[Lab]:
        """A laboratory on the shared store.

        Args:
            problem: None: the chosen one.
            **recipe: settings of its recipe to change.
        """
        from tagalong.study import open_lab

        found = problem or self.chosen
        if recipe:
            fingerprint = found.fingerprint
            found = replace(found, recipe=replace(found.recipe, **recipe))
            vars(found)["fingerprint"] = fingerprint  # the data are the same, and long to read
        with open_lab(found, self.out, executor=self.executor, device=self.device, progress=self.progress) as lab:
            yield lab


def open_bench(
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
) -> Bench:
    """Loads the problem and says where its networks are kept.

    Args:
        problem: "faces", "celeba" or "taskonomy".
        size: "small" for seconds, "full" for the paper's size.
        out: the folder; by default one for each problem and size below `runs`.
        seeds: how many runs; by default 2 at small and the paper's 3 at full size (Taskonomy: 1, as in the paper).
        tasks: these alone; by default five at small size, else all.
        options: of the problem, such as where its files are.
        recipe: settings of its recipe to change.
        device: as for a `Study`.
        progress: is told how far it is.
        executor: as for a `Study`.

    Raises:
        ValueError: an unknown problem or size, a problem that is not there, or a folder of another problem.
    """
    _refuse(problem, size, seeds, recipe or {})
    from tagalong.problems import load_problem
    from tagalong.study import check_lab, claim_folder

    folder = out or Path("runs") / f"paper-{problem}-{size}"
    check_lab(folder, executor=executor, device=device)  # before minutes of drawing or decoding
    made = load_problem(problem, **{**(options or {}), "size": size, "progress": progress})
    if recipe:
        made = replace(made, recipe=replace(made.recipe, **recipe))
    names = (made if tasks is None else made.only(tasks)).names
    if len(names) < FEWEST:
        raise ValueError(f"`tasks` must be {FEWEST} at least, so that there is something to group, found {names[0]!r}")
    few = FEW if size == "small" and set(FEW) <= set(made.names) else None
    count = seeds or (1 if problem == "taskonomy" else SEEDS[size])
    bench = Bench(made, folder, few if tasks is None else tuple(tasks), range(count), size, device, progress, executor)
    claim_folder(folder, made, {"seeds": list(bench.seeds), "size": size})
    return bench


def _refuse(problem: str, size: str, seeds: int | None, recipe: Mapping[str, Any]) -> None:
    from dataclasses import fields

    from tagalong.errors import refuse
    from tagalong.learn import Recipe
    from tagalong.problems import problem_names

    problems = []
    if problem not in PROBLEMS:
        problems.append(f"`problem` must be one of {', '.join(map(repr, PROBLEMS))}, found {problem!r}")
    elif problem not in problem_names():
        problems.append(f"`problem` {problem!r} is not offered by this installation; 'faces' stands in for it")
    if size not in SEEDS:
        problems.append(f"`size` must be 'small' or 'full', found {size!r}")
    if seeds is not None and seeds < 1:
        problems.append(f"`seeds` must be a number from 1, found {seeds!r}")
    known = sorted(one.name for one in fields(Recipe))
    if unknown := [name for name in recipe if name not in known]:
        problems.append(f"`recipe` must change one of {', '.join(known)}, found {', '.join(unknown)}")
    refuse(problems)
