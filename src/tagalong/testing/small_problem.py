"""A small problem for checking methods and executors."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from tagalong.learn import MLP, Problem, Recipe, Split, Task

FEATURES, CLASSES = 4, 3
MISSING_FRACTION = 0.15  # fraction of missing labels
ROW_COUNTS = (48, 32, 32)  # numbers of training, validation and test rows
RECIPE = Recipe(optimizer="sgd", lr=0.05, batch_size=16, epochs=2, patience=2, weight_decay=0.0)
TASK_KINDS = ("regression", "binary", "multiclass")


def small_problem(names: Sequence[str], order: Sequence[int] | None = None, *, test_seed: int = 2) -> Problem:
    """Returns a float64 problem with tasks of different kinds and some missing labels.

    A task's data depend only on its position in `names`.

    Args:
        names: the names of the tasks.
        order: the order in which the problem lists the tasks, as positions in `names`; by default, the order of
            `names`.
        test_seed: the seed for the test rows, which does not affect the training and validation rows.
    """
    tasks = [_make_task(name, number) for number, name in enumerate(names)]
    train, val, test = (
        _make_split(names, rows, seed) for rows, seed in zip(ROW_COUNTS, (0, 1, test_seed), strict=True)
    )
    listed = tuple(tasks[number] for number in (range(len(names)) if order is None else order))
    return Problem("small", listed, train, val, test, encoder=MLP(FEATURES, hidden=(6,)), recipe=RECIPE)


def _make_task(name: str, number: int) -> Task:
    kind = TASK_KINDS[number % len(TASK_KINDS)]
    if kind == "multiclass":
        return Task(name, kind="multiclass", classes=CLASSES)
    return Task(name, kind="binary") if kind == "binary" else Task(name, kind="regression")


def _make_split(names: Sequence[str], rows: int, seed: int) -> Split:
    inputs = _random_normal(rows, FEATURES, seed=seed)
    return Split(inputs, {name: _make_labels(inputs, number, seed) for number, name in enumerate(names)})


def _make_labels(inputs: Tensor, number: int, seed: int) -> Tensor:
    """Returns a noisy linear function of the inputs, thresholded for classification tasks."""
    direction = _random_normal(FEATURES, 1, seed=1000 + number)
    # Different test seeds use different weights, so that a method that looks at test rows decides differently.
    weights = direction if seed <= 2 else _random_normal(FEATURES, 1, seed=100 * seed + number)
    noisy = (inputs @ weights + 0.7 * _random_normal(len(inputs), 1, seed=5000 + 10 * number + seed)).squeeze(1)
    kind = TASK_KINDS[number % len(TASK_KINDS)]
    if kind == "binary":
        noisy = (noisy > 0).double()
    if kind == "multiclass":
        noisy = (noisy > -0.6).double() + (noisy > 0.6).double()
    missing = torch.rand(len(inputs), generator=_generator(9000 + 10 * number + seed)) < MISSING_FRACTION
    return torch.where(missing, torch.nan, noisy)


def _random_normal(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=_generator(seed), dtype=torch.float64)


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)
