"""Where the paper's experiments run: a problem, its seeds, and one store of networks that all of them share."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tagalong._names import counted

from ._matrices import CELEBA

if TYPE_CHECKING:
    from tagalong.learn import Problem
    from tagalong.study import Lab, Progress
    from tagalong.study._executors import Executor

ATTRIBUTES = (
    *("5_o_Clock_Shadow", "Black_Hair", "Blond_Hair", "Brown_Hair", "Goatee"),
    *("Mustache", "No_Beard", "Rosy_Cheeks", "Wearing_Hat"),
)
SHORT = dict(zip(ATTRIBUTES, CELEBA, strict=True))
SHORT_TASKONOMY = {"segmentation": "s", "depth": "d", "normals": "n", "edges": "t", "keypoints": "k"}
FEW = ("5_o_Clock_Shadow", "Black_Hair", "Blond_Hair", "Goatee", "No_Beard")  # at small size: 31 subsets
PROBLEMS = ("faces", "celeba", "taskonomy")
BUDGETS = {"faces": (2, 3, 4), "celeba": (2, 3, 4), "taskonomy": (2, 3)}


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
        from tagalong.study import Lab, Store
        from tagalong.study._executors import device_name, make_executor
        from tagalong.study._settings import log_to

        found = problem or self.chosen
        if recipe:
            fingerprint = found.fingerprint
            found = replace(found, recipe=replace(found.recipe, **recipe))
            vars(found)["fingerprint"] = fingerprint  # the data are the same, and long to read
        self.out.mkdir(parents=True, exist_ok=True)
        partial, device = self.out / "partial", device_name(self.device)
        executor = make_executor(self.executor)
        with (
            log_to(self.out / "run.log"),
            Store(self.out / "run.sqlite") as store,
            Lab(found, store, executor=executor, device=device, progress=self.progress, partial=partial) as lab,
        ):
            yield lab
            store.prune()  # results stay; nothing here needs weights
            lab.tidy()
