"""Small problems, fast enough for a study to train hundreds of networks."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from tagalong.learn import MLP, Problem, Recipe, Split, Task

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
