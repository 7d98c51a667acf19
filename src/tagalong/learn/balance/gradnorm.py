"""GradNorm (Chen et al., ICML 2018): loss weights that let all tasks train at similar rates."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..network import Network
from ..task import Task
from .rules import Losses, Rule, scaled

LOWEST, HIGHEST = 0.1, 10.0


class GradNorm(Rule):
    """Weights are moved until each task's gradient is as long as its pace of learning asks for.

    With W the last shared kernel, G_i = ‖∇_W w_i·L_i‖ and r_i the loss ratio L_i(t)/L_i(0) divided by its mean over
    tasks, weights descend Σ |G_i − mean(G)·r_i^α| (equation 2; the target is a constant) by their own Adam.

    The paper renormalises weights to sum to the number of tasks and stops there; TAG's published code clips them to
    [0.1, 10] first, as we do. L_i(0) is the first loss that a task shows. A task without labels in a batch is left out
    of the means and keeps its weight but for the sum.

    Args:
        network: whose losses are weighted.
        tasks: of the network.
        alpha: how strongly slow tasks are pulled; the paper's and TAG's value for large problems is 1.5.
        lr: of the weights.
    """

    def __init__(self, network: Network, tasks: Sequence[Task], alpha: float = 1.5, lr: float = 0.025) -> None:
        super().__init__(tasks)
        self._kernel = last_kernel(network.encoder)
        self._alpha = alpha
        like = next(network.parameters())
        self._weights = nn.Parameter(like.new_ones(len(tasks)), requires_grad=False)
        self._first = like.new_full((len(tasks),), torch.nan).detach()
        self._optimizer = torch.optim.Adam([self._weights], lr=lr)

    def backward(self, losses: Losses, scaler: torch.amp.GradScaler | None) -> None:
        values = self.weighted(losses)
        norms = None if self._kernel is None else self._norms(values, self._kernel, scaler)
        scaled((self._weights * values).sum(), scaler).backward()
        if norms is not None:
            self._update(values.detach().to(norms.dtype), norms)

    def _norms(self, values: Tensor, kernel: Tensor, scaler: torch.amp.GradScaler | None) -> Tensor:
        found = [
            torch.autograd.grad(value, kernel, retain_graph=True, allow_unused=True, materialize_grads=True)[0].norm()
            for value in scaled(values, scaler)
        ]
        return torch.stack(found) / (1.0 if scaler is None else scaler.get_scale())

    def _update(self, values: Tensor, norms: Tensor) -> None:
        there = (values > 0) & (norms > 0) & norms.isfinite()
        number = there.sum().clamp(min=1)
        self._first = torch.where(there & self._first.isnan(), values, self._first)
        ratios = torch.where(there, values / self._first, 0)
        lengths = torch.where(there, self._weights * norms, 0)
        targets = lengths.sum() / number * (ratios * number / ratios.sum()).pow(self._alpha)
        self._weights.grad = torch.where(there, (lengths - targets).sign() * norms, 0)
        before = self._weights.clone()
        self._optimizer.step()
        moved = torch.where(there, self._weights, before).clamp(LOWEST, HIGHEST)
        self._weights.copy_(moved * (len(moved) / moved.sum()))

    def weights(self) -> Mapping[str, float]:
        pairs = zip(self.given.items(), self._weights.tolist(), strict=True)
        return {task: given * weight for (task, given), weight in pairs}

    def state_dict(self) -> dict[str, Any]:
        state = {"weights": self._weights.data, "first": self._first, "optimizer": self._optimizer.state_dict()}
        return copy.deepcopy(state)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._weights.copy_(state["weights"])
        self._first = state["first"].clone()
        self._optimizer.load_state_dict(state["optimizer"])


def last_kernel(encoder: nn.Module) -> nn.Parameter | None:
    """The last trained parameter with more than one dimension, or else the last one; None if nothing is trained."""
    trained = [parameter for parameter in encoder.parameters() if parameter.requires_grad]
    kernels = [parameter for parameter in trained if parameter.dim() > 1]
    found = kernels or trained
    return found[-1] if found else None
