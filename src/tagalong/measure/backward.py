"""Reuses the gradients of a measured step for training (`meter.backward`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from .closure import LossGraph, TaskLosses, raise_closure_problems
from .gradients import GradientSum
from .setup import Setup, check_weights


class TrainingGradient:
    """Accumulates Σ w_t ∇L_t into ``.grad``.

    Attributes:
        losses: The value returned by the last call to the closure.
        measured: The weighted sum of the task gradients from the last call, if that call was measured.
        wanted: Whether `backward` has been called before. Until then, the sum is not kept, to save memory.
    """

    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        self.losses: Any = None
        self.measured: GradientSum | None = None
        self.wanted = False

    def clear(self) -> None:
        self.losses = self.measured = None

    def backward(self, weights: Mapping[str, float | Tensor] | None, extra: Tensor | None) -> None:
        if self.losses is None:
            raise RuntimeError("`backward` can only be called once per call to the meter; call the meter first")
        setup, parameters, task_losses = self._setup, self._setup.parameters, TaskLosses.read(self.losses)
        raise_closure_problems(task_losses.problems)
        # The measured gradients have the meter's weights, and a gradient hook runs only in a real backward pass.
        has_hooks = any(p._backward_hooks or getattr(p, "_post_accumulate_grad_hooks", None) for p in parameters)
        measured = None if weights is not None or has_hooks else self.measured

        # A task without labels has no loss, or NaN, which would make every gradient NaN.
        losses = task_losses.by_task
        if measured is None or len(measured.tasks) < len(losses):
            is_nan = task_losses.stacked(list(losses)).isnan().tolist()
            losses = {task: loss for (task, loss), skip in zip(losses.items(), is_nan, strict=True) if not skip}
        if weights is None:
            weights = setup.weights() if callable(setup.weights) else setup.weights
        weights = dict.fromkeys(losses, 1.0) if weights is None else weights
        check_weights(weights, losses)
        learned = any(getattr(weights[task], "requires_grad", False) for task in losses)
        scale: Any = 1.0
        if setup.scaler is not None and losses:  # which initializes the scaler, as scaling a loss does
            first = next(iter(losses.values()))
            scale = setup.scaler.scale(torch.ones_like(first.detach(), dtype=torch.float32))

        terms = [loss * weights[task] for task, loss in losses.items()]
        if measured is not None and measured.tasks == losses.keys() and not learned:
            # One backward pass for the heads, as for all leaves except the shared parameters.
            shared = {id(p) for p in parameters}
            heads = [leaf for key, leaf in LossGraph(losses.values()).leaves.items() if key not in shared]
            if heads:
                torch.autograd.backward(_total(terms) * scale, inputs=heads, retain_graph=extra is not None)
            measured.accumulate(float(scale))
            terms = []
        terms += [] if extra is None else [extra]
        if terms:
            (_total(terms) * scale).backward()
        self.wanted = True
        self.clear()


def _total(terms: Sequence[Tensor]) -> Tensor:
    return torch.stack([term.reshape(()) for term in terms]).sum()
