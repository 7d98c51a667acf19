"""GradNorm, which weights losses so that the gradients of all tasks have similar norms."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from tagalong.errors import InvalidInput

from .balance import Balancer
from .network import Network
from .task import Task

MIN_WEIGHT, MAX_WEIGHT = 0.1, 10.0


class GradNorm(Balancer):
    """GradNorm (Chen et al. 2018): weights the losses so that tasks that learn slowly get larger gradients.

    Let W be the last shared weight matrix, G_i = ‖∇_W w_i·L_i‖, and r_i the loss ratio L_i(t)/L_i(0) divided by its
    mean over tasks. A separate Adam optimizer chooses the weights w_i to minimize Σ |G_i − mean(G)·r_i^α|, where
    mean(G)·r_i^α is treated as a constant (equation 2).

    In the paper, the weights are only renormalized to sum to the number of tasks. Here, as in TAG's published code, the
    weights are first clipped to [0.1, 10]. L_i(0) is the first nonzero loss of task i. A task without labels in a batch
    is excluded from the means. Its weight changes only through the renormalization.

    Args:
        network: the network to train.
        tasks: the tasks of the network.
        alpha: how strongly slow tasks are favored. The GradNorm paper and TAG use 1.5 for large problems.
        lr: the learning rate for the weights.
    """

    _weights: Tensor
    initial_losses: Tensor

    def __init__(self, network: Network, tasks: Sequence[Task], alpha: float = 1.5, lr: float = 0.025) -> None:
        super().__init__(network, tasks)
        if not alpha >= 0:
            raise InvalidInput("rule", "must have the form 'gradnorm:ALPHA' with a non-negative ALPHA", str(alpha))
        trained = [parameter for parameter in network.encoder.parameters() if parameter.requires_grad]
        matrices = [parameter for parameter in trained if parameter.dim() > 1] or trained
        self._last_matrix = matrices[-1:]  # in a list that is empty if the encoder has no parameters
        self._alpha = alpha
        self.register_buffer("_weights", torch.ones_like(self.task_weights))
        self._optimizer = torch.optim.Adam([self._weights], lr=lr)
        self.register_buffer("initial_losses", torch.full_like(self.task_weights, torch.nan))

    def coefficients(self, losses: Tensor, factor: Tensor) -> Tensor:
        values, coefficients = losses * self.task_weights, self.task_weights * self._weights * factor
        gradients = [
            torch.autograd.grad(value, matrix, factor, retain_graph=True, allow_unused=True, materialize_grads=True)[0]
            for matrix in self._last_matrix
            for value in values
        ]
        if not gradients:
            return coefficients

        norms = torch.stack([gradient.norm() for gradient in gradients]) / factor
        values = values.detach().to(norms.dtype)
        active = (values > 0) & (norms > 0) & norms.isfinite()
        count = active.sum().clamp(min=1)
        self.initial_losses = torch.where(active & self.initial_losses.isnan(), values, self.initial_losses)
        ratios = torch.where(active, values / self.initial_losses, 0)
        weighted_norms = torch.where(active, self._weights * norms, 0)
        targets = weighted_norms.sum() / count * (ratios * count / ratios.sum()).pow(self._alpha)

        # The derivative of Σ |G_i − target_i|
        self._weights.grad = torch.where(active, (weighted_norms - targets).sign() * norms, 0)
        before = self._weights.clone()
        self._optimizer.step()
        moved = torch.where(active, self._weights, before).clamp(MIN_WEIGHT, MAX_WEIGHT)
        self._weights.copy_(moved * (len(moved) / moved.sum()))
        return coefficients

    def balance(self) -> Tensor:
        return self._weights

    def get_extra_state(self) -> dict[str, Any]:
        return self._optimizer.state_dict()

    def set_extra_state(self, state: Any) -> None:
        self._optimizer.load_state_dict(state)
