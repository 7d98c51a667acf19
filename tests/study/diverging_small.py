"""A problem with diverging networks: the learning rate is far too large for one task unless another is trained too."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from tagalong.learn import MLP, Diverged, Job, Problem, Recipe, Split, Task, train

NAMES = ("a", "b", "calm", "wild")
DIVERGING = [("wild",), ("a", "wild"), ("b", "wild"), ("a", "b", "wild")]
RECIPE = Recipe(optimizer="sgd", lr=0.1, batch_size=4, epochs=4, patience=2, weight_decay=0.0)
PUSH = 1e100  # of `calm` on the features, beyond that of any other task


class SumHead(nn.Module):
    """A head without weights."""

    def forward(self, features: Tensor) -> Tensor:
        return features.sum(1, keepdim=True)


class SteepHead:
    """Makes a head that, for a share of the seeds, starts so steep that every step overshoots the previous one."""

    def __init__(self, share: float) -> None:
        self.share = share

    def __call__(self, features: int) -> nn.Module:
        head = nn.Linear(features, 1, bias=False)
        if torch.rand(()) < self.share:
            head.weight.data = 30 * (-1.0) ** torch.arange(features)[None]
        return head


class UnbatchableEncoder(MLP):
    """An encoder with a layer that `vmap` does not support."""

    def __call__(self, width: float = 1.0) -> nn.Module:
        return nn.Sequential(super().__call__(width), nn.RReLU(1.0, 1.0))


def steep_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    """Grows exponentially with the error."""
    return torch.cosh(outputs[:, 0] - targets)


def push_features_down(outputs: Tensor, targets: Tensor) -> Tensor:
    """Is lowest where no feature is active: its first steps switch the features off for every task that uses them."""
    return 1 + targets.square() + PUSH * outputs[:, 0]


def diverging_problem(share: float = 1.0, *, batched: bool = True) -> Problem:
    """Makes a problem whose task wild diverges for a share of the seeds, unless the task calm is trained with it."""
    draw = torch.Generator().manual_seed(0)

    def split(count: int) -> Split:
        inputs = torch.rand(count, 4, generator=draw, dtype=torch.float64)
        targets = inputs + 0.1 * torch.randn(count, 4, generator=draw, dtype=torch.float64)
        return Split(inputs, {name: targets[:, i].clone() for i, name in enumerate(NAMES)})

    tasks = (
        Task("a", kind="regression"),
        Task("b", kind="regression"),
        Task("calm", kind="custom", loss=push_features_down, head=lambda features: SumHead()),
        Task("wild", kind="custom", loss=steep_loss, head=SteepHead(share)),
    )
    encoder = MLP(4, hidden=(8,)) if batched else UnbatchableEncoder(4, hidden=(8,))
    return Problem("diverging", tasks, split(96), split(48), split(48), encoder=encoder, recipe=RECIPE)


def diverges(problem: Problem, *tasks: str, seed: int) -> bool:
    """Returns whether a network for these tasks diverges."""
    try:
        train(problem, Job(tasks, seed))
    except Diverged:
        return True
    return False
