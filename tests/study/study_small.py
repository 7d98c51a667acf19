"""Small problems, fast enough for a study to train hundreds of networks."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch

from tagalong.group import Group, Taught
from tagalong.learn import MLP, Problem, Recipe, Split, Task
from tagalong.study import Choice, Decision, Method, Runner

RECIPE = Recipe(optimizer="sgd", lr=0.1, batch_size=16, epochs=3, patience=2, weight_decay=0.0)


def small_problem(
    tasks: Sequence[str] = ("a", "b", "c"),
    *,
    seed: int = 0,
    rows: int = 48,
    recipe: Recipe = RECIPE,
) -> Problem:
    """Linear regression tasks with noise in float64, so that repeated trainings are easy to compare."""
    draw = torch.Generator().manual_seed(seed)
    weights = torch.randn(4, len(tasks), generator=draw, dtype=torch.float64)

    def split(count: int) -> Split:
        inputs = torch.randn(count, 4, generator=draw, dtype=torch.float64)
        targets = inputs @ weights + 0.5 * torch.randn(count, len(tasks), generator=draw, dtype=torch.float64)
        return Split(inputs, {task: targets[:, i].clone() for i, task in enumerate(tasks)})

    return Problem(
        "small",
        tuple(Task(task, kind="regression") for task in tasks),
        split(rows),
        split(24),
        split(24),
        encoder=MLP(4, hidden=(5,)),
        recipe=recipe,
    )


def one_unit(width: float = 1.0) -> torch.nn.Module:
    """An encoder of one unit, whatever the width."""
    return torch.nn.Linear(4, 1)


def narrow_encoder(width: float = 1.0) -> torch.nn.Module:
    """An encoder of one unit, or of more if it is wider."""
    return torch.nn.Linear(4, max(1, round(width)))


def conflicting_pairs(encoder: Callable[..., torch.nn.Module] = one_unit, light: float = 1.0) -> Problem:
    """Two pairs of tasks need different directions, and the second one may weigh less than the first."""
    draw = np.random.default_rng(0)
    inputs = draw.normal(size=(600, 4))
    targets = inputs[:, [0, 0, 1, 1]] + 0.3 * draw.normal(size=(600, 4))
    tasks = [Task(name, kind="regression", weight=1.0 if name in "ab" else light) for name in "abcd"]
    recipe = Recipe(optimizer="adam", lr=0.05, batch_size=64, epochs=25)
    return Problem.from_arrays(inputs, targets, tasks, encoder=encoder, recipe=recipe)


class Students(Method):
    """Two networks taught by two copies, of which the first counts twice."""

    name, budgeted, averages = "students", False, True
    copies = (1, 2)

    def decide(self, runner: Runner, budgets: Sequence[int], seeds: Sequence[int]) -> Decision:
        teachers = [Group(runner.tasks, runner.tasks, copy=copy) for copy in self.copies]
        jobs = [runner.group_job(group, seeds[0]) for group in teachers]
        results = runner.networks(jobs)
        first, second = (results[job].key for job in jobs)
        taught = Taught((first, second), (2.0, 1.0), mix=0.5)
        groups = tuple(Group(runner.tasks, runner.tasks, copy=copy, taught=taught) for copy in (3, 4))
        about = {"teachers": [group.to_document(cost=False) for group in teachers]}
        return Decision.pooled({None: Choice(groups)}, seeds, about=about)
