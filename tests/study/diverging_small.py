"""A problem of which some networks diverge: the learning rate is far too large for one task, unless it has company."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from tagalong.learn import MLP, Diverged, Job, Problem, Recipe, Split, Task, train

NAMES = ("a", "b", "calm", "wild")
LOST = [("wild",), ("a", "wild"), ("b", "wild"), ("a", "b", "wild")]
RECIPE = Recipe(optimizer="sgd", lr=0.1, batch_size=4, epochs=4, patience=2, weight_decay=0.0)
PUSH = 1e100  # of `calm` on the features, beyond that of any other task


class Summed(nn.Module):
    """A head without weights."""

    def forward(self, features: Tensor) -> Tensor:
        return features.sum(1, keepdim=True)


class Steep:
    """Makes a head that starts, with a share of the seeds, so steep that every step overshoots the one before."""

    def __init__(self, share: float) -> None:
        self.share = share

    def __call__(self, features: int) -> nn.Module:
        head = nn.Linear(features, 1, bias=False)
        if torch.rand(()) < self.share:
            head.weight.data = 30 * (-1.0) ** torch.arange(features)[None]
        return head


class Unbatched(MLP):
    """An encoder with a layer that `vmap` does not know."""

    def __call__(self, width: float = 1.0) -> nn.Module:
        return nn.Sequential(super().__call__(width), nn.RReLU(1.0, 1.0))


def steep(outputs: Tensor, targets: Tensor) -> Tensor:
    """The further off, the more exponentially so."""
    return torch.cosh(outputs[:, 0] - targets)


def pressed(outputs: Tensor, targets: Tensor) -> Tensor:
    """Lowest where no feature is active: its first steps silence them, and with them whoever reads them."""
    return 1 + targets.square() + PUSH * outputs[:, 0]


def diverging_problem(share: float = 1.0, *, batched: bool = True) -> Problem:
    """Networks of the task wild diverge with a share of the seeds, unless the task calm is trained along."""
    draw = torch.Generator().manual_seed(0)

    def split(count: int) -> Split:
        inputs = torch.rand(count, 4, generator=draw, dtype=torch.float64)
        targets = inputs + 0.1 * torch.randn(count, 4, generator=draw, dtype=torch.float64)
        return Split(inputs, {name: targets[:, i].clone() for i, name in enumerate(NAMES)})

    tasks = (
        Task("a", kind="regression"),
        Task("b", kind="regression"),
        Task("calm", kind="custom", loss=pressed, head=lambda features: Summed()),
        Task("wild", kind="custom", loss=steep, head=Steep(share)),
    )
    encoder = MLP(4, hidden=(8,)) if batched else Unbatched(4, hidden=(8,))
    return Problem("diverging", tasks, split(96), split(48), split(48), encoder=encoder, recipe=RECIPE)


def diverges(problem: Problem, *tasks: str, seed: int) -> bool:
    """Whether a network for these tasks does."""
    try:
        train(problem, Job(tasks, seed))
    except Diverged:
        return True
    return False
