"""How the losses of a network become one gradient: the sum, or one of the rules that balance tasks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from ._network import Network
from ._task import Task


class Balancer(Protocol):
    """A rule: gives every parameter its gradient."""

    def parameters(self) -> Iterable[nn.Parameter]:
        """What the rule learns itself; the network's optimiser trains it."""

    def backward(self, losses: Mapping[str, Tensor], scaler: torch.amp.GradScaler | None) -> None:
        """Adds to every `.grad` what this step's losses ask for."""

    def weights(self) -> Mapping[str, float]:
        """How much each task's loss counts now."""

    def state_dict(self) -> dict[str, Any]:
        """What changes while training."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Puts it back."""


def make_balancer(rule: str, network: Network, tasks: Sequence[Task]) -> Balancer:
    """The rule of this name."""
    if rule == "plain":
        return Plain(tasks)
    raise ValueError(f"`rule` must be 'plain', found {rule!r}")


class Plain:
    """The weighted sum of losses."""

    def __init__(self, tasks: Sequence[Task]) -> None:
        self._weights = {task.name: task.weight for task in tasks}

    def parameters(self) -> Iterable[nn.Parameter]:
        return ()

    def backward(self, losses: Mapping[str, Tensor], scaler: torch.amp.GradScaler | None) -> None:
        total = torch.stack([self._weights[task] * loss for task, loss in losses.items()]).sum()
        (total if scaler is None else scaler.scale(total)).backward()

    def weights(self) -> Mapping[str, float]:
        return self._weights

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass
