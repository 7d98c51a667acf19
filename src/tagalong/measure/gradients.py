"""Gradients of individual tasks with respect to the shared parameters, and their reuse for training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from .closure import LossGraph, ReplayableClosure, TaskLosses, raise_closure_problems
from .distributed import AgreedLosses
from .setup import Setup, check_weights

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
        setup: The meter's settings.
        weights: The loss weights, by which the gradients of steps are multiplied.
        training: Adds up the weighted gradients, for training.

    Attributes:
        parameters: The trainable shared parameters.
        touched: The indices of the parameters that each task depends on, for the tasks differentiated so far.
        finite: Whether each gradient is finite on all ranks, as tensors on the device; empty unless losses are scaled.
    """

    def __init__(
        self,
        closure: ReplayableClosure,
        losses: AgreedLosses,
        tasks: Sequence[str],
        setup: Setup,
        weights: Mapping[str, float | Tensor] | None = None,
        training: TrainingGradient | None = None,
    ) -> None:
        self._closure, self._local = closure, losses.local
        self._shares = dict(zip(tasks, losses.share, strict=True))
        # Not scale(), which would initialize the scaler; that is up to the training loop.
        self._scale = 1.0 if setup.scaler is None else float(setup.scaler.get_scale())
        self._replicas = setup.replicas
        detached = {t: w.detach().reshape(()) if isinstance(w, Tensor) else w for t, w in (weights or {}).items()}
        self._weights, self._training = detached, training
        self.parameters = setup.trainable()
        self.touched: dict[str, set[int]] = {}
        self.finite: list[Tensor] = []
        self._kept: dict[str, list[Tensor]] = {}

    def gradient(self, task: str) -> Gradient:
        """Returns the dense gradient of a task's loss, with None for parameters that the task does not use.

        The tensors have the same memory layout as the parameters. Do not modify the tensors, since they may belong to
        autograd.
        """
        if task in self._kept:
            rows = zip(self._kept[task], self.parameters, strict=True)
            return [
                row.view(p.shape).to(p.dtype) if index in self.touched[task] else None
                for index, (row, p) in enumerate(rows)
            ]
        pairs = zip(self._differentiate(task), self.parameters, strict=True)
        gradient = [None if g is None else like_parameter(g, p) for g, p in pairs]
        if not self._replicas.alone:
            # A rank without labels cannot tell what a task depends on.
            used = torch.tensor([g is not None and task in self._local for g in gradient])
            dense = [torch.zeros_like(p) if g is None else g for g, p in zip(gradient, self.parameters, strict=True)]
            *summed, flags = self._replicas.sum([*dense, used.to(dense[0])])
            gradient = [g if is_used else None for g, is_used in zip(summed, (flags > 0).tolist(), strict=True)]
        self.touched[task] = {index for index, g in enumerate(gradient) if g is not None}

        if self._scale != 1.0:
            gradient = [None if g is None else g * (1.0 / self._scale) for g in gradient]
            finite = [g.isfinite().all() for g in gradient if g is not None]
            if finite:
                self.finite.append(torch.stack(finite).all())
        if self._training is not None:
            self._training.add(task, self.parameters, gradient, self._weights.get(task, 1.0))
        return gradient

    def for_step(self, task: str | None) -> Gradient:
        # Returns the gradient of a task's weighted loss, or zeros without a task.
        if task is None:
            return [torch.zeros_like(p) for p in self.parameters]
        gradient = self.gradient(task)
        if task not in self._weights:
            return gradient
        return [None if g is None else g * self._weights[task] for g in gradient]

    def keep(self, tasks: Sequence[str]) -> list[Tensor]:
        """Keeps the gradients of some tasks, and returns them as one matrix [tasks, elements] per parameter.

        The elements of parameters that a task does not use are zero.
        """
        dtype = row_dtype(self.parameters)
        matrices = [torch.zeros(len(tasks), p.numel(), dtype=dtype, device=p.device) for p in self.parameters]
        for number, task in enumerate(tasks):
            rows, gradient = [matrix[number] for matrix in matrices], self.gradient(task)
            used = [k for k, g in enumerate(gradient) if g is not None]
            if used:
                targets = [rows[k].view(self.parameters[k].shape) for k in used]
                torch._foreach_copy_(targets, [g for g in gradient if g is not None])
            self._kept[task] = rows
            del gradient  # frees this gradient before the next one is computed
        return matrices

    def _differentiate(self, task: str) -> Sequence[Tensor | None]:
        share: float | Tensor = 1.0 if self._replicas.alone else self._shares[task]
        if task not in self._local:  # absent on this rank, present on another
            if not self._local:
                return [None] * len(self.parameters)
            # Computing a gradient may require communication, so this rank differentiates another loss times 0.
            task, share = self._local[0], 0.0
        loss = self._closure.loss_with_graph(task)
        if not loss.requires_grad:
            return [None] * len(self.parameters)
        factor = torch.ones_like(loss) * self._scale * share
        try:
            return torch.autograd.grad(
                loss, self.parameters, grad_outputs=factor.to(loss), retain_graph=True, allow_unused=True
            )
        except RuntimeError as error:
            for part, advice in ADVICE.items():
                if part in str(error):
                    raise RuntimeError(advice) from error
            raise


def like_parameter(gradient: Tensor, parameter: Tensor) -> Tensor:
    if gradient.layout != torch.strided:
        raise ValueError(
            f"`shared` contains an embedding with sparse gradients (shape {tuple(parameter.shape)}), which the meter "
            "does not support; create it with sparse=False, or leave it out of `shared`"
        )
    if gradient.stride() != parameter.stride():
        return torch.empty_like(parameter).copy_(gradient)
    return gradient


def row_dtype(parameters: Sequence[Tensor]) -> torch.dtype:
    return torch.float64 if any(p.dtype == torch.float64 for p in parameters) else torch.float32


class TrainingGradient:
    """Accumulates Σ w_t ∇L_t into ``.grad``, from the task gradients of a measured step if it can.

    Attributes:
        losses: The value returned by the last call to the closure.
        wanted: Whether `backward` has been called before. Until then, task gradients are not added up, to save memory.
    """

    def __init__(self, setup: Setup) -> None:
        self._setup, self.wanted = setup, False
        self.clear()

    def clear(self) -> None:
        self.losses: Any = None
        self.forget()

    def forget(self) -> None:
        self._measured: set[str] = set()  # the tasks whose gradients have been added
        self._sums: dict[Tensor, Tensor] = {}  # Σ w_t ∇L_t over these tasks, by shared parameter

    def add(self, task: str, parameters: Sequence[Tensor], gradient: Gradient, weight: float | Tensor) -> None:
        self._measured.add(task)
        for parameter, of_parameter in zip(parameters, gradient, strict=True):
            if of_parameter is not None:
                total = self._sums.get(parameter)
                weighted = of_parameter * weight
                self._sums[parameter] = weighted if total is None else total.add_(weighted)

    def backward(self, weights: Mapping[str, float | Tensor] | None, extra: Tensor | None) -> None:
        if self.losses is None:
            raise RuntimeError("`backward` can only be called once per call to the meter; call the meter first")
        setup, parameters, task_losses = self._setup, self._setup.parameters, TaskLosses.read(self.losses)
        raise_closure_problems(task_losses.problems)
        # The measured gradients have the meter's weights, and a gradient hook runs only in a real backward pass.
        has_hooks = any(p._backward_hooks or getattr(p, "_post_accumulate_grad_hooks", None) for p in parameters)
        can_reuse = weights is None and not has_hooks

        # A task without labels has no loss, or NaN, which would make every gradient NaN.
        losses = task_losses.by_task
        if self._measured != losses.keys():
            is_nan = task_losses.stacked(list(losses)).isnan().tolist()
            losses = {task: loss for (task, loss), skip in zip(losses.items(), is_nan, strict=True) if not skip}
        weights = setup.task_weights(losses) if weights is None else check_weights(weights, losses)
        learned = any(getattr(weight, "requires_grad", False) for weight in weights.values())
        scale: Any = 1.0
        if setup.scaler is not None and losses:  # which initializes the scaler, as scaling a loss does
            first = next(iter(losses.values()))
            scale = setup.scaler.scale(torch.ones_like(first.detach(), dtype=torch.float32))

        terms = [loss * weights.get(task, 1.0) for task, loss in losses.items()]
        if can_reuse and not learned and self._measured == losses.keys():
            # One backward pass for the heads, as for all leaves except the shared parameters.
            shared = {id(p) for p in parameters}
            heads = [leaf for key, leaf in LossGraph(losses.values()).leaves.items() if key not in shared]
            if heads:
                torch.autograd.backward(_total(terms) * scale, inputs=heads, retain_graph=extra is not None)
            for parameter, total in self._sums.items():
                total.mul_(float(scale))
                parameter.grad = total if parameter.grad is None else parameter.grad.add_(total)
            terms = []
        terms += [] if extra is None else [extra]
        if terms:
            (_total(terms) * scale).backward()
        self.wanted = True
        self.clear()


def _total(terms: Sequence[Tensor]) -> Tensor:
    return torch.stack([term.reshape(()) for term in terms]).sum()
