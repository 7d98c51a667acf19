"""Reuses the gradients of a measured step for training (`meter.backward`)."""

from __future__ import annotations

from collections.abc import Mapping
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
        capture: The weighted sum of the task gradients from the last call, if that call was measured.
        wanted: Whether `backward` has been called before. Until then, the sum is not kept, to save memory.
    """

    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        self.losses: Any = None
        self.capture: GradientSum | None = None
        self.wanted = False

    def clear(self) -> None:
        self.losses = self.capture = None

    def backward(self, weights: Mapping[str, float | Tensor] | None, extra: Tensor | None) -> None:
        if self.losses is None:
            raise RuntimeError("`backward` can only be called once per call to the meter; call the meter first")
        # A task without labels has no loss, or NaN, which would make every gradient NaN.
        task_losses = TaskLosses.read(self.losses)
        raise_closure_problems(task_losses.problems)
        losses, capture = task_losses.by_task, self.capture
        if capture is None or len(capture.tasks) < len(losses):
            is_nan = task_losses.stacked(list(losses)).isnan().tolist()
            losses = {task: loss for (task, loss), skip in zip(losses.items(), is_nan, strict=True) if not skip}

        # The measured gradients have the meter's weights, and a gradient hook runs only in a real backward pass.
        parameters = self._setup.parameters
        if weights is not None or any(
            p._backward_hooks or getattr(p, "_post_accumulate_grad_hooks", None) for p in parameters
        ):
            capture = None
        if weights is None:
            weights = self._setup.weights() if callable(self._setup.weights) else self._setup.weights
        weights = dict.fromkeys(losses, 1.0) if weights is None else weights
        check_weights(weights, losses)
        scale: Any = 1.0
        if self._setup.scaler is not None and losses:  # which initializes the scaler, as scaling a loss does
            first = next(iter(losses.values()))
            scale = self._setup.scaler.scale(torch.ones_like(first.detach(), dtype=torch.float32))

        # What is left to differentiate: all other losses, the weights if they are learned, and `extra`.
        measured = {t: loss for t, loss in losses.items() if capture is not None and t in capture.tasks}
        terms = [loss * weights[task] for task, loss in losses.items() if task not in measured]
        for task, loss in measured.items():
            weight = weights[task]
            if isinstance(weight, Tensor) and weight.requires_grad:
                terms.append(loss.detach() * weight)
        terms += [] if extra is None else [extra]

        if capture is not None:
            # One backward pass for the heads, as for all leaves except the shared parameters.
            shared = {id(p) for p in parameters}
            heads = [leaf for key, leaf in LossGraph(measured.values()).leaves.items() if key not in shared]
            if heads:
                seeds = [(torch.ones_like(x) * weights[t] * scale).detach().to(x) for t, x in measured.items()]
                torch.autograd.backward(list(measured.values()), seeds, inputs=heads, retain_graph=bool(terms))
            capture.accumulate(float(scale))
        if terms:
            (torch.stack([term.reshape(()) for term in terms]).sum() * scale).backward()
        self.wanted = True
        self.clear()
