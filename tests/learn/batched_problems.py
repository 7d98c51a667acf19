"""Small problems for training many networks at once, and comparisons of trained networks."""

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from tagalong.learn import MLP, Job, Problem, Recipe, Split, Task, Trained, train, train_many

MIXED = (
    Task("size", kind="regression"),
    Task("ill", kind="binary", class_weights=(1, 3), error="auroc"),
    Task("sort", kind="multiclass", classes=3, weight=0.5),
    Task("price", kind="custom", loss=lambda out, target: ((out.squeeze(1) - target).square() + 1).sqrt()),
)


def vectors(rows: int, generator: torch.Generator, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(rows, 6, generator=generator, dtype=dtype)


def images(rows: int, generator: torch.Generator) -> Tensor:
    return torch.randn(rows, 2, 6, 6, generator=generator, dtype=torch.float64)


def words(rows: int, generator: torch.Generator) -> Tensor:
    return torch.randint(5, (rows, 4), generator=generator)


def make_problem(
    encoder: Callable[..., nn.Module],
    inputs: Callable[..., Tensor] = vectors,
    tasks: Sequence[Task] = MIXED,
    rows: Sequence[int] = (70, 31, 29),
    **settings: Any,
) -> Problem:
    """Noisy targets that the inputs say something about, a fifth of the labels missing."""
    generator = torch.Generator().manual_seed(7)
    recipe = Recipe(**({"lr": 0.05, "batch_size": 23, "epochs": 9, "patience": 2} | settings))

    def split(number: int) -> Split:
        found = inputs(number, generator)
        flat = found.flatten(1).double()
        targets = {task.name: _target(task, flat, place, generator) for place, task in enumerate(tasks)}
        return Split(found, targets)

    return Problem("small", tuple(tasks), *map(split, rows), encoder, recipe=recipe)


def _target(task: Task, flat: Tensor, place: int, generator: torch.Generator) -> Tensor:
    value = (
        flat[:, place % 4] + flat[:, (place + 1) % 4] + torch.randn(len(flat), generator=generator, dtype=torch.float64)
    )
    if task.kind == "binary":
        value = (value > 0).double()
    if task.kind == "multiclass":
        value = value.round().clamp(0, 2)
    return torch.where(torch.rand(len(flat), generator=generator) < 0.2, torch.nan, value)


class Layers:
    """Makes an encoder from layers; `nn.Sequential` with weights of its own each time."""

    def __init__(self, *layers: Callable[[], nn.Module]) -> None:
        self.layers = layers

    def __call__(self) -> nn.Module:
        return nn.Sequential(*(layer() for layer in self.layers))


MLP_WITH_DROPOUT = MLP(6, hidden=(12, 8), dropout=0.2)
CNN_WITH_BATCHNORM = Layers(
    lambda: nn.Conv2d(2, 4, 3, padding=1),
    lambda: nn.BatchNorm2d(4),
    nn.ReLU,
    lambda: nn.MaxPool2d(2),
    lambda: nn.Dropout(0.2),
    lambda: nn.Conv2d(4, 5, 3, padding=1, groups=1),
    lambda: nn.BatchNorm2d(5, momentum=0.3),
    nn.GELU,
    lambda: nn.AdaptiveAvgPool2d(2),
    nn.Flatten,
)


def all_jobs(problem: Problem, seeds: Sequence[int] = (0,), **settings: Any) -> list[Job]:
    """Every subset of the tasks."""
    sizes = range(1, len(problem.names) + 1)
    subsets = [tasks for size in sizes for tasks in itertools.combinations(problem.names, size)]
    return [Job(tasks, seed, **settings) for seed in seeds for tasks in subsets]


def some_jobs(problem: Problem, seeds: Sequence[int], every: int = 4, **settings: Any) -> list[Job]:
    """The same few subsets of the tasks with each seed."""
    return [job for seed in seeds for job in all_jobs(problem, (seed,), **settings)[::every]]


def assert_same(together: Trained, alone: Trained, within: float = 1e-7, states: float = 1e-6) -> None:
    """Everything but the time spent, `within` a relative error, or that of `states` for weights and single rows."""
    assert together.job == alone.job
    np.testing.assert_allclose(together.curve, alone.curve, rtol=within, atol=within)
    assert (together.best_epoch, together.steps, together.parameters) == (
        alone.best_epoch,
        alone.steps,
        alone.parameters,
    )
    assert list(together.state) == list(alone.state)
    for name, tensor in alone.state.items():
        torch.testing.assert_close(together.state[name], tensor, rtol=states, atol=states)
    for found, wanted in ((together.val, alone.val), (together.test, alone.test)):
        assert list(found) == list(wanted)
        for task in wanted:
            np.testing.assert_allclose(found[task].loss, wanted[task].loss, rtol=within)
            np.testing.assert_allclose(found[task].error, wanted[task].error, rtol=within)
            np.testing.assert_allclose(found[task].rows, wanted[task].rows, rtol=states, atol=states)


def trained_together(problem: Problem, jobs: list[Job], **options: Any) -> dict[Job, Trained]:
    return {trained.job: trained for trained in train_many(problem, jobs, **options)}


def check_some(problem: Problem, jobs: list[Job], every: int = 4) -> None:
    found = trained_together(problem, jobs)
    for job in jobs[::every]:
        assert_same(found[job], train(problem, job))
