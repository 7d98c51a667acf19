"""Reuses the gradients of a measured step for training (`meter.backward`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from .closure import TaskLosses, loss_graph, raise_closure_problems
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
        losses = self._finite_losses()
        given = self._current_weights() if weights is None else weights
        factors = dict.fromkeys(losses, 1.0) if given is None else given
        check_weights(factors, losses)
        capture = self.capture if weights is None and not self._has_gradient_hooks() else None
        done = {} if capture is None else {t: loss for t, loss in losses.items() if t in capture.tasks}
        total = self._remaining_loss(losses, factors, set(done), extra)
        scale = self._scale_factor(losses)
        if capture is not None:
            self._backward_to_heads(done, factors, scale, retain_graph=total is not None)
            capture.accumulate(1.0 if scale is None else float(scale))
        if total is not None:
            (total if scale is None else total * scale).backward()
        self.wanted = True
        self.clear()

    def _finite_losses(self) -> dict[str, Tensor]:
        read = _read_losses(self.losses)
        if self.capture is not None and len(self.capture.tasks) == len(read.losses):
            return read.losses  # measured, so known to be finite
        return _present_losses(read)

    def _current_weights(self) -> Mapping[str, float | Tensor] | None:
        given = self._setup.weights
        return given() if callable(given) else given

    def _has_gradient_hooks(self) -> bool:
        """Whether any shared parameter has a gradient hook, which runs only in a real backward pass."""
        return any(p._backward_hooks or getattr(p, "_post_accumulate_grad_hooks", None) for p in self._setup.parameters)

    def _remaining_loss(
        self, losses: Mapping[str, Tensor], factors: Mapping[str, float | Tensor], done: set[str], extra: Tensor | None
    ) -> Tensor | None:
        """Returns the sum of the terms that still have to be differentiated."""
        terms = [loss * factors[task] for task, loss in losses.items() if task not in done]
        for task in done:
            weight = factors[task]
            if isinstance(weight, Tensor) and weight.requires_grad:
                terms.append(losses[task].detach() * weight)
        if extra is not None:
            terms.append(extra)
        return torch.stack([term.reshape(()) for term in terms]).sum() if terms else None

    def _scale_factor(self, losses: Mapping[str, Tensor]) -> Tensor | None:
        """Returns the scale factor. Initializes the scaler if necessary, just as scaling a loss does."""
        if self._setup.scaler is None or not losses:
            return None
        one = torch.ones_like(next(iter(losses.values())).detach(), dtype=torch.float32)
        return self._setup.scaler.scale(one)

    def _backward_to_heads(
        self,
        losses: Mapping[str, Tensor],
        factors: Mapping[str, float | Tensor],
        scale: Tensor | None,
        retain_graph: bool,
    ) -> None:
        """Accumulates the gradients of all leaves except the shared parameters in a single backward pass."""
        shared = {id(p) for p in self._setup.parameters}
        heads = [leaf for key, leaf in loss_graph(losses.values()).leaves.items() if key not in shared]
        if heads:
            seeds = [torch.ones_like(x) * factors[t] * (1.0 if scale is None else scale) for t, x in losses.items()]
            seeds = [seed.detach().to(x) for seed, x in zip(seeds, losses.values(), strict=True)]
            torch.autograd.backward(list(losses.values()), seeds, inputs=heads, retain_graph=retain_graph)

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "losses": None, "capture": None}  # a graph can neither be copied nor pickled


def _read_losses(returned: object) -> TaskLosses:
    read = TaskLosses.read(returned)
    raise_closure_problems(read.problems)
    return read


def _present_losses(read: TaskLosses) -> dict[str, Tensor]:
    """Returns the losses of the tasks that have labels in the batch; a NaN loss would make every gradient NaN."""
    values = read.values(list(read.losses)).tolist()
    return {task: loss for (task, loss), value in zip(read.losses.items(), values, strict=True) if value == value}
