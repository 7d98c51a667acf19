"""Rules that combine the tasks' gradients of the shared parameters: PCGrad and the other aggregators of TorchJD."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from .._network import Network
from .._seeds import drawing
from .._task import Task
from ._rule import Losses, Rule, scaled
from ._scalarised import Scalarised


class Aggregated(Rule):
    """Shared parameters get one combination of the tasks' gradients; each head gets its own task's gradient.

    Args:
        aggregator: of TorchJD.
        network: whose gradients they are.
        tasks: of the network.
        weigher: weighs the losses first, as the published PCGrad run of TAG did with Uncertainty Weights.
        any_number: whether the aggregator takes any number of gradients; then tasks without labels in a batch are
            left out, otherwise their gradient is zero.
    """

    def __init__(
        self,
        aggregator: nn.Module,
        network: Network,
        tasks: Sequence[Task],
        weigher: Scalarised | None = None,
        any_number: bool = True,
    ) -> None:
        super().__init__(tasks)
        self._shared = [parameter for parameter in network.encoder.parameters() if parameter.requires_grad]
        shared = set(map(id, self._shared))
        self._own = [
            [p for p in head.parameters() if p.requires_grad and id(p) not in shared] for head in network.heads
        ]
        like = next(network.parameters())
        self._aggregator = aggregator.to(device=like.device, dtype=like.dtype)
        self._weigher, self._any_number = weigher, any_number
        self._seed, self._calls = network.seed, 0

    def parameters(self) -> Iterable[nn.Parameter]:
        return () if self._weigher is None else self._weigher.parameters()

    def backward(self, losses: Losses, scaler: torch.amp.GradScaler | None) -> None:
        values = self.weighted(losses)
        if self._weigher is None:
            values = scaled(values, scaler)
        else:
            values = self._weigher.coefficients(values.detach(), scaler) * values
        factor = 1.0 if scaler is None else scaler.get_scale()
        gradients = torch.stack([self._gradient(value, own) for value, own in zip(values, self._own, strict=True)])
        combined = self._combined(gradients / factor) * factor
        parts = combined.split([parameter.numel() for parameter in self._shared])
        for parameter, part in zip(self._shared, parts, strict=True):
            _add(parameter, part.view_as(parameter))

    def _gradient(self, value: Tensor, own: list[nn.Parameter]) -> Tensor:
        """Of the shared parameters, in one row; the head's own are added where they belong."""
        wanted = [*self._shared, *own]
        found = torch.autograd.grad(value, wanted, retain_graph=True, allow_unused=True, materialize_grads=True)
        for parameter, gradient in zip(own, found[len(self._shared) :], strict=True):
            _add(parameter, gradient)
        return torch.cat([value.new_zeros(0), *(gradient.flatten() for gradient in found[: len(self._shared)])])

    def _combined(self, gradients: Tensor) -> Tensor:
        # too small to be squared in this precision: PCGrad divides by squared norms, MGDA would stop for a zero row
        teaching = gradients.square().sum(1) >= torch.finfo(gradients.dtype).tiny
        if not gradients.isfinite().all() or not teaching.any():
            return gradients.sum(0)  # the scaler skips such a step; without one, training diverges and says so
        with drawing(self._seed, "balance", self._calls):
            combined: Tensor = self._aggregator(gradients[teaching] if self._any_number else gradients)
        self._calls += 1
        return combined.detach()

    def weights(self) -> Mapping[str, float]:
        return self.given if self._weigher is None else self._weigher.weights()

    def state_dict(self) -> dict[str, Any]:
        weigher = None if self._weigher is None else self._weigher.state_dict()
        return {"aggregator": copy.deepcopy(self._aggregator), "calls": self._calls, "weigher": weigher}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._aggregator, self._calls = copy.deepcopy(state["aggregator"]), state["calls"]
        if self._weigher is not None:
            self._weigher.load_state_dict(state["weigher"])


def _add(parameter: nn.Parameter, gradient: Tensor) -> None:
    # a fresh tensor: two parameters must not share one, and the caller's may be a view
    parameter.grad = gradient.clone() if parameter.grad is None else parameter.grad + gradient
