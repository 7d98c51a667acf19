"""What a balancing rule is, and what rules have in common."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from ..task import Task

Losses = Mapping[str, Tensor]


class Balancer(Protocol):
    """A rule: gives every parameter its gradient."""

    def parameters(self) -> Iterable[nn.Parameter]:
        """What the rule learns itself; the network's optimiser trains it."""

    def backward(self, losses: Losses, scaler: torch.amp.GradScaler | None) -> None:
        """Adds to every `.grad` what this step's losses ask for."""

    def after_step(self, losses: Callable[[], Losses]) -> None:
        """Told after the optimiser's step; `losses` computes them again, on the same batch."""

    def after_epoch(self) -> None:
        """Told when every row was seen once more."""

    def weights(self) -> Mapping[str, float]:
        """How much each task's loss counts now."""

    def state_dict(self) -> dict[str, Any]:
        """What changes while training."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Puts it back."""


class Rule:
    """A rule that learns nothing and remembers nothing; others add to it.

    Every rule balances the losses times the weights of their tasks. A task without labels in a batch has a loss of
    exactly 0: it teaches nothing, and must not disturb what the rule does with the others.
    """

    def __init__(self, tasks: Sequence[Task]) -> None:
        self.given = {task.name: float(task.weight) for task in tasks}

    def weighted(self, losses: Losses) -> Tensor:
        """The losses times their tasks' weights, in the order of the tasks."""
        return torch.stack([weight * losses[task] for task, weight in self.given.items()])

    def parameters(self) -> Iterable[nn.Parameter]:
        return ()

    def after_step(self, losses: Callable[[], Losses]) -> None:
        return

    def after_epoch(self) -> None:
        return

    def weights(self) -> Mapping[str, float]:
        return self.given

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        return


def scaled(loss: Tensor, scaler: torch.amp.GradScaler | None) -> Tensor:
    """The loss as mixed precision wants it for the backward pass."""
    return loss if scaler is None else scaler.scale(loss)


class Plain(Rule):
    """The weighted sum of losses."""

    def backward(self, losses: Losses, scaler: torch.amp.GradScaler | None) -> None:
        scaled(self.weighted(losses).sum(), scaler).backward()
