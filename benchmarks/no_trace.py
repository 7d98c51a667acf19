"""Does a meter leave a trace in training? Runs one loop without and with it, and counts what differs.

python benchmarks/no_trace.py
"""

import argparse
import difflib
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tagalong import AffinityMeter

TASKS, INPUTS, ROWS, BATCH = 5, 20, 2048, 64


class Model(nn.Module):
    """A network with everything that a careless measurement would change: batch norm, dropout, heads."""

    def __init__(self) -> None:
        super().__init__()
        first, second = nn.Linear(INPUTS, 64), nn.Linear(64, 64)
        self.encoder = nn.Sequential(first, nn.BatchNorm1d(64), nn.ReLU(), nn.Dropout(0.2), second, nn.ReLU())
        self.heads = nn.ModuleList(nn.Linear(64, 1) for _ in range(TASKS))

    def forward(self, x: Tensor) -> list[Tensor]:
        """Returns the outputs of all tasks."""
        features = self.encoder(x)
        return [head(features).squeeze(1) for head in self.heads]


def task_losses(model: Model, batch: tuple[Tensor, Tensor]) -> dict[str, Tensor]:
    """Returns the loss of each task."""
    x, y = batch
    return {f"task {number}": F.mse_loss(out, y[:, number]) for number, out in enumerate(model(x))}


# ruff: noqa: B023 - the meter calls the closure immediately, within the same iteration
def train_plainly(model: Model, optimizer: torch.optim.Optimizer, loader: Iterator[tuple[Tensor, Tensor]]) -> None:
    """An ordinary training loop."""
    for batch in loader:
        losses = task_losses(model, batch)
        sum(losses.values()).backward()
        optimizer.step()
        optimizer.zero_grad()


def train_measured(model: Model, optimizer: torch.optim.Optimizer, loader: Iterator[tuple[Tensor, Tensor]]) -> None:
    """An ordinary training loop."""
    meter = AffinityMeter(shared=model.encoder, optimizer=optimizer, every=10)
    for batch in loader:
        losses = meter(lambda: task_losses(model, batch))
        sum(losses.values()).backward()
        optimizer.step()
        optimizer.zero_grad()


@dataclass(frozen=True)
class Trace:
    """What a meter changed.

    Attributes:
        lines: the number of lines of the loop that were added or changed.
        steps: the number of training steps.
        numbers: how many numbers were compared: weights, buffers, optimizer state, random number generator.
        different: how many of them differ.
    """

    lines: int
    steps: int
    numbers: int
    different: int

    def __str__(self) -> str:
        return (
            f"{self.lines} lines of the loop differ. After {self.steps} steps, {self.different} of {self.numbers:,} "
            "numbers differ in weights, buffers, optimizer state and the random number generator."
        )


def find_trace(steps: int = 200) -> Trace:
    """Trains the same network with both loops, and compares everything that training leaves behind."""
    plain, measured = (train(loop, steps) for loop in (train_plainly, train_measured))
    different = sum(int((_bits(a) != _bits(b)).sum()) for a, b in zip(plain, measured, strict=True))
    return Trace(changed_lines(), steps, sum(one.numel() for one in plain), different)


def train(loop: Callable[..., None], steps: int) -> list[Tensor]:
    """Returns all tensors that training with this loop leaves behind."""
    torch.manual_seed(0)
    model, x = Model(), torch.randn(ROWS, INPUTS)
    y = torch.tanh(x @ torch.randn(INPUTS, TASKS)) + 0.1 * torch.randn(ROWS, TASKS)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    order = [torch.randint(ROWS, (BATCH,)) for _ in range(steps)]
    loop(model, optimizer, ((x[rows], y[rows]) for rows in order))
    kept = [value for state in optimizer.state.values() for value in state.values()]
    return [*model.state_dict().values(), *kept, torch.get_rng_state()]


def changed_lines() -> int:
    """Counts the lines that are in the measured loop only, without the line that names the function."""
    plain, measured = (inspect.getsource(loop).splitlines()[1:] for loop in (train_plainly, train_measured))
    return sum(line.startswith("+ ") for line in difflib.ndiff(plain, measured))


def _bits(numbers: Tensor) -> Tensor:
    """Returns integers with the same bits, so that −0 differs from 0, and NaN equals itself."""
    same_size = {1: torch.uint8, 4: torch.int32, 8: torch.int64}[numbers.element_size()]
    return numbers.view(same_size)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--steps", type=int, default=200)
    print(find_trace(parser.parse_args().steps))
