"""A small problem of three tasks with missing labels, for tests that need any."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from tagalong.learn import Batch, Problem, Recipe, Rows, Split, StreamedRows, Task

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


class RowReader:
    """Reads the rows of a split one by one, and records what was read."""

    def __init__(self, split: Split) -> None:
        self.split, self.tasks = split, split.tasks
        self.asked: list[tuple[int, tuple[str, ...], int | None]] = []

    def __len__(self) -> int:
        return len(self.split)

    def read(self, row: int, tasks: Sequence[str], draw: int | None) -> Batch:
        self.asked.append((row, tuple(tasks), draw))
        return self.split.inputs[row], {task: self.split.targets[task][row] for task in tasks}

    def contents(self) -> Iterator[bytes]:
        return self.split.contents()


def stream(problem: Problem) -> Problem:
    """The same problem, whose rows are read in batches."""
    return replace(problem, **{part: stream_rows(split) for part, split in problem.splits.items()})


def stream_rows(split: Rows) -> StreamedRows:
    return StreamedRows(RowReader(split), split.tasks, at_once=5, threads=3)
