"""A small problem of three tasks with missing labels, for tests that need any."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from tagalong.learn import Problem, Recipe, Split, Task

TASKS = ("age", "weight", "ill")


def encoder(dropout: float = 0.0, norm: bool = False) -> Callable[..., nn.Module]:
    """Two layers; makes them `width` times as wide."""

    def make(width: float = 1.0) -> nn.Module:
        wide = round(6 * width)
        # before BatchNorm, a bias has no gradient but rounding error, which Adam would amplify
        first = [nn.Linear(4, wide, bias=False), nn.BatchNorm1d(wide)] if norm else [nn.Linear(4, wide)]
        return nn.Sequential(*first, nn.Tanh(), nn.Dropout(dropout), nn.Linear(wide, 5), nn.Tanh())

    return make


def rows(count: int, seed: int, missing: float = 0.3, dtype: torch.dtype = torch.float64) -> Split:
    draw = torch.Generator().manual_seed(seed)
    inputs = torch.randn(count, 4, generator=draw, dtype=dtype)
    noise = 0.3 * torch.randn(count, 3, generator=draw, dtype=dtype)
    targets = {
        "age": inputs[:, 0] + inputs[:, 1] + noise[:, 0],
        "weight": inputs[:, 1] * inputs[:, 2] + noise[:, 1],
        "ill": (inputs[:, 0] - inputs[:, 3] + noise[:, 2] > 0).to(dtype),
    }
    gone = {task: torch.rand(count, generator=draw) < missing for task in TASKS}
    return Split(inputs, {task: target.masked_fill(gone[task], torch.nan) for task, target in targets.items()})


def small_problem(
    recipe: Recipe | None = None,
    *,
    make: Callable[..., nn.Module] | nn.Module | None = None,
    missing: float = 0.3,
    count: int = 41,
    dtype: torch.dtype = torch.float64,
) -> Problem:
    """41 rows in batches of 8 leave a last batch of one row."""
    tasks = (Task("age", "regression"), Task("weight", "regression", weight=0.5), Task("ill", class_weights=(1.0, 2.0)))
    return Problem(
        "small",
        tasks,
        rows(count, 1, missing, dtype),
        rows(24, 2, missing, dtype),
        rows(24, 3, missing, dtype),
        make or encoder(),
        recipe=recipe or Recipe(lr=0.02, batch_size=8, epochs=4),
    )


def same(first: dict[str, Tensor], second: dict[str, Tensor]) -> bool:
    """Whether two state dicts are equal bit for bit."""
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)
