"""Small made-up problems with every kind of task, which train in milliseconds."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from tagalong.learn import MLP, Problem, Recipe, Split, Task

FEATURES, CLASSES, MISSING = 4, 3, 0.15
ROWS = (48, 32, 32)  # to train, validate and test
RECIPE = Recipe(optimizer="sgd", lr=0.05, batch_size=16, epochs=2, patience=2, weight_decay=0.0)
KINDS = ("regression", "binary", "multiclass")


def small_problem(names: Sequence[str], order: Sequence[int] | None = None, *, test_seed: int = 2) -> Problem:
    """Tasks of mixed kinds in float64, some labels missing; the data of a task depend on its place in `names` alone.

    Args:
        names: of the tasks.
        order: in which the problem lists them.
        test_seed: of the test rows; others leave training and validation rows as they are.
    """
    tasks = [_task(name, number) for number, name in enumerate(names)]
    train, val, test = (_split(names, rows, seed) for rows, seed in zip(ROWS, (0, 1, test_seed), strict=True))
    chosen = tuple(tasks[number] for number in (range(len(names)) if order is None else order))
    return Problem("small", chosen, train, val, test, encoder=MLP(FEATURES, hidden=(6,)), recipe=RECIPE)


def _task(name: str, number: int) -> Task:
    kind = KINDS[number % len(KINDS)]
    if kind == "multiclass":
        return Task(name, kind="multiclass", classes=CLASSES)
    return Task(name, kind="binary") if kind == "binary" else Task(name, kind="regression")


def _split(names: Sequence[str], rows: int, seed: int) -> Split:
    inputs = _normal(rows, FEATURES, seed=seed)
    return Split(inputs, {name: _labels(inputs, number, seed) for number, name in enumerate(names)})


def _labels(inputs: Tensor, number: int, seed: int) -> Tensor:
    """Linear in the inputs with noise, cut into classes for the kinds that have them."""
    direction = _normal(FEATURES, 1, seed=1000 + number)
    # Test rows other than the usual ones follow another rule, so that whoever looks at them decides otherwise.
    rule = direction if seed <= 2 else _normal(FEATURES, 1, seed=100 * seed + number)
    noisy = (inputs @ rule + 0.7 * _normal(len(inputs), 1, seed=5000 + 10 * number + seed)).squeeze(1)
    kind = KINDS[number % len(KINDS)]
    if kind == "binary":
        noisy = (noisy > 0).double()
    if kind == "multiclass":
        noisy = (noisy > -0.6).double() + (noisy > 0.6).double()
    absent = torch.rand(len(inputs), generator=_generator(9000 + 10 * number + seed)) < MISSING
    return torch.where(absent, torch.nan, noisy)


def _normal(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=_generator(seed), dtype=torch.float64)


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)
