"""Gradients of individual tasks with respect to the shared parameters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from tagalong.errors import InvalidInput

from .closure import ReplayableClosure
from .distributed import AgreedLosses, Replicas

# Parts of torch's errors when a task's loss is differentiated, and what to do
ADVICE = {
    "selective activation checkpoint": (
        "selective checkpointing (`context_fn`) allows one backward pass only, but the meter needs one per task; leave "
        "`context_fn` out, or call the meter with one closure per task: meter({task: closure})"
    ),
    "donated": (
        "torch.compile donated buffers that are needed for a second backward pass; run "
        "`import torch._functorch.config; torch._functorch.config.donated_buffer = False` before calling the model"
    ),
}

Gradient = list[Tensor | None]  # by parameter, None where the task does not use it


class TaskGradients:
    """Differentiates one task's loss at a time, without changing ``.grad``.

    Args:
        closure: The closure that has computed the losses.
        losses: Its losses, as agreed on by all ranks.
        tasks: All task names.
        parameters: The trainable shared parameters.
        scale: The factor by which losses are multiplied for the backward pass, and gradients divided after it.
        replicas: The ranks that measure together.
        weights: The loss weights, for weighted gradients.
        capture: A sum to which the weighted gradient of each task is added.

    Attributes:
        parameters: The trainable shared parameters.
        weights: The loss weights.
        touched: The indices of the parameters that each task depends on, for the tasks differentiated so far.
        finite: Whether each gradient is finite on all ranks, as tensors on the device; empty unless losses are scaled.
    """

    def __init__(
        self,
        closure: ReplayableClosure,
        losses: AgreedLosses,
        tasks: Sequence[str],
        parameters: Sequence[Tensor],
        *,
        scale: float,
        replicas: Replicas,
        weights: Mapping[str, float | Tensor] | None = None,
        capture: GradientSum | None = None,
    ) -> None:
        self._closure, self._local_tasks = closure, list(losses.local.by_task)
        self._shares = {} if replicas.alone else dict(zip(tasks, losses.share, strict=True))
        self.parameters, self.weights = parameters, weights or {}
        self._scale, self._replicas, self._capture = scale, replicas, capture
        self.touched: dict[str, set[int]] = {}
        self.finite: list[Tensor] = []

    def gradient(self, task: str, *, weighted: bool) -> Gradient:
        """Returns the dense gradient of a task's loss, with None for parameters that the task does not use.

        The tensors have the same memory layout as the parameters. Do not modify the tensors, since they may belong to
        autograd.

        Args:
            task: The task.
            weighted: Whether to multiply the loss by its weight.
        """
        weight = self.weights.get(task, 1.0)
        raw = self._differentiate(task, weight if weighted else 1.0)
        if self._capture is not None and task not in self._capture.tasks:
            self._capture.add(task, self.parameters, raw, (1.0 if weighted else weight) / self._scale)

        gradient = [None if g is None else like_parameter(g, p) for g, p in zip(raw, self.parameters, strict=True)]
        used = [g is not None and task in self._local_tasks for g in gradient]
        if not self._replicas.alone:
            # A rank without labels cannot tell what a task depends on.
            dense = [torch.zeros_like(p) if g is None else g for g, p in zip(gradient, self.parameters, strict=True)]
            *summed, flags = self._replicas.sum([*dense, torch.tensor(used).to(dense[0])])
            gradient, used = list(summed), (flags > 0).tolist()
        self.touched[task] = {index for index, is_used in enumerate(used) if is_used}
        gradient = [g if is_used else None for g, is_used in zip(gradient, used, strict=True)]

        if self._scale != 1.0:
            gradient = [None if g is None else g * (1.0 / self._scale) for g in gradient]
            finite = [g.isfinite().all() for g in gradient if g is not None]
            if finite:
                self.finite.append(torch.stack(finite).all())
        return gradient

    def _differentiate(self, task: str, weight: float | Tensor) -> Sequence[Tensor | None]:
        share: float | Tensor = 1.0 if self._replicas.alone else self._shares[task]
        if task not in self._local_tasks:  # absent on this rank, present on another
            # If computing a gradient requires communication, this rank differentiates another loss times 0.
            modules = self._closure.state.modules.values()
            if not self._local_tasks or not any(isinstance(module, nn.SyncBatchNorm) for module in modules):
                return [None] * len(self.parameters)
            task, share = self._local_tasks[0], 0.0
        loss = self._closure.loss_with_graph(task)
        if not loss.requires_grad:
            return [None] * len(self.parameters)
        factor = torch.ones_like(loss) * weight * self._scale * share
        try:
            return torch.autograd.grad(
                loss, self.parameters, grad_outputs=factor.to(loss), retain_graph=True, allow_unused=True
            )
        except RuntimeError as error:
            for part, advice in ADVICE.items():
                if part in str(error):
                    raise RuntimeError(advice) from error
            raise

    def rows(self, tasks: Sequence[str]) -> list[Tensor]:
        """Returns one matrix [tasks, elements] per parameter, with zeros for parameters that a task does not use."""
        dtype = row_dtype(self.parameters)
        rows = [torch.zeros(len(tasks), p.numel(), dtype=dtype, device=p.device) for p in self.parameters]
        for number, task in enumerate(tasks):
            gradient = self.gradient(task, weighted=False)
            used = [k for k, g in enumerate(gradient) if g is not None]
            if used:
                targets = [rows[k][number].view(self.parameters[k].shape) for k in used]
                torch._foreach_copy_(targets, [g for g in gradient if g is not None])
            del gradient  # frees this gradient before the next one is computed
        return rows


def like_parameter(gradient: Tensor, parameter: Tensor) -> Tensor:
    if gradient.layout != torch.strided:
        name = f"an embedding with sparse gradients (shape {tuple(parameter.shape)})"
        hint = "create it with sparse=False, or leave it out of `shared`"
        raise InvalidInput("shared", f"contains {name}, which the meter does not support", hint=hint)
    if gradient.stride() != parameter.stride():
        return torch.empty_like(parameter).copy_(gradient)
    return gradient


def row_dtype(parameters: Sequence[Tensor]) -> torch.dtype:
    return torch.float64 if any(p.dtype == torch.float64 for p in parameters) else torch.float32


class GradientSum:
    """The training gradient of the shared parameters, Σ w_t ∇L_t over the tasks differentiated so far.

    Attributes:
        tasks: The tasks whose gradients have been added.
    """

    def __init__(self) -> None:
        self.tasks: set[str] = set()
        self._sums: dict[Tensor, Tensor] = {}  # by parameter

    def add(
        self, task: str, parameters: Sequence[Tensor], gradients: Sequence[Tensor | None], factor: float | Tensor
    ) -> None:
        self.tasks.add(task)
        used = {p: g for p, g in zip(parameters, gradients, strict=True) if g is not None}
        for parameter, gradient in used.items():
            if parameter not in self._sums:
                self._sums[parameter] = torch.zeros_like(gradient)
        if isinstance(factor, Tensor):
            used, factor = {p: g * factor for p, g in used.items()}, 1.0
        if used:
            torch._foreach_add_([self._sums[p] for p in used], list(used.values()), alpha=factor)

    def accumulate(self, factor: float) -> None:
        """Adds `factor` times the sum to each parameter's ``.grad`` and frees the sum."""
        for parameter, gradient in self._sums.items():
            if factor != 1.0:
                gradient.mul_(factor)
            if parameter.grad is None:
                parameter.grad = like_parameter(gradient, parameter)
            else:
                parameter.grad.add_(gradient)
        self._sums = {}
