"""Rules that make one loss of several: Uncertainty Weights and the other scalarizers of TorchJD."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from .._network import Network
from .._seeds import drawing
from .._task import Task
from ._rule import Losses, Rule, scaled


class Scalarised(Rule):
    """A function of all losses is minimised; what the function itself learns, the network's optimiser trains.

    Uncertainty Weights (Kendall et al. 2018) minimise Σ ½·exp(−s)·L + ½·s with a learnt s for each task, 0 at the
    start. TAG's published code has L/exp(2s) + s, s clipped to [0.01, 10] and 1 at the start: the same weights but
    for the factor ½, the start and the clipping.

    A task without labels in a batch counts with the loss it had last, gets no gradient and learns nothing.

    Args:
        scalarizer: of TorchJD.
        network: whose losses they are.
        tasks: of the network.
    """

    def __init__(self, scalarizer: nn.Module, network: Network, tasks: Sequence[Task]) -> None:
        super().__init__(tasks)
        like = next(network.parameters())
        self._scalarizer = scalarizer.to(device=like.device, dtype=like.dtype)
        self._seed = network.seed
        self._calls = 0
        self._seen = like.new_ones(len(tasks)).detach()

    def parameters(self) -> Iterable[nn.Parameter]:
        # FAMO has an `update`, and an optimiser of its own
        return () if hasattr(self._scalarizer, "update") else self._scalarizer.parameters()

    def backward(self, losses: Losses, scaler: torch.amp.GradScaler | None) -> None:
        values = self.weighted(losses)
        (self.coefficients(values.detach(), scaler) * values).sum().backward()

    def coefficients(self, values: Tensor, scaler: torch.amp.GradScaler | None) -> Tensor:
        """How much each loss counts (times the scaler's factor); what the scalarizer learns gets its gradient."""
        absent = values == 0
        values = torch.where(absent, self._seen, values.to(self._seen.dtype)).requires_grad_()
        self._seen = values.detach()
        scaled(self._total(self._scalarizer, values), scaler).backward()
        self._calls += 1
        assert values.grad is not None
        for parameter in self.parameters():
            if parameter.grad is not None:
                parameter.grad.masked_fill_(absent, 0)
        return values.grad.masked_fill(absent, 0)

    def after_step(self, losses: Callable[[], Losses]) -> None:
        update = getattr(self._scalarizer, "update", None)
        if update is not None:
            with torch.no_grad():
                values = self.weighted(losses()).to(self._seen.dtype)
            update(torch.where(values == 0, self._seen, values))

    def after_epoch(self) -> None:
        step = getattr(self._scalarizer, "step", None)  # DWA compares epochs
        if step is not None:
            step()

    def weights(self) -> Mapping[str, float]:
        values = self._seen.clone().requires_grad_()
        with torch.enable_grad():
            total = self._total(copy.deepcopy(self._scalarizer), values)  # a call changes some of them
        (slopes,) = torch.autograd.grad(total, values)
        return {task: weight * slope for (task, weight), slope in zip(self.given.items(), slopes.tolist(), strict=True)}

    def _total(self, scalarizer: nn.Module, values: Tensor) -> Tensor:
        with drawing(self._seed, "balance", self._calls):
            total: Tensor = scalarizer(values)
        return total

    def state_dict(self) -> dict[str, Any]:
        return {"scalarizer": copy.deepcopy(self._scalarizer), "calls": self._calls, "seen": self._seen.clone()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._calls, self._seen = state["calls"], state["seen"].clone()
        if any(True for _ in self.parameters()):  # the optimiser holds them, so they stay where they are
            self._scalarizer.load_state_dict(state["scalarizer"].state_dict())
        else:
            self._scalarizer = copy.deepcopy(state["scalarizer"])
