"""Gradients of single tasks with respect to the shared parameters."""

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from ._copies import copies
from ._replicas import Replicas
from ._shared import sparse_sentence


class Capture:
    """Σ w_t ∇L_t over the tasks differentiated so far: the shared parameters' training gradient, for nothing.

    Attributes:
        tasks: Whose gradients are in the sum.
    """

    def __init__(self) -> None:
        self.tasks: set[str] = set()
        self._sums: dict[int, tuple[Tensor, Tensor]] = {}

    def add(
        self, task: str, parameters: Sequence[Tensor], gradients: Sequence[Tensor | None], factor: float | Tensor
    ) -> None:
        self.tasks.add(task)
        found = [(p, g) for p, g in zip(parameters, gradients, strict=True) if g is not None]
        fresh = [(p, g) for p, g in found if id(p) not in self._sums]
        # Copies: autograd may hand out tensors that its graph still needs.
        sums = copies([g for _, g in fresh])
        if sums and (isinstance(factor, Tensor) or factor != 1.0):
            torch._foreach_mul_(sums, factor)
        known = [(self._sums[id(p)][1], g) for p, g in found if id(p) in self._sums]
        self._sums.update({id(p): (p, s) for (p, _), s in zip(fresh, sums, strict=True)})
        if known:
            more = [g for _, g in known]
            if isinstance(factor, Tensor):
                more, factor = list(torch._foreach_mul(more, factor)), 1.0
            torch._foreach_add_([s for s, _ in known], more, alpha=factor)

    def accumulate(self, factor: float) -> None:
        """Adds the sum, times `factor`, to every parameter's ``.grad`` and lets go of it."""
        for parameter, gradient in self._sums.values():
            if factor != 1.0:
                gradient.mul_(factor)
            if parameter.grad is None:
                parameter.grad = _dense(gradient, parameter)
            else:
                parameter.grad.add_(gradient)
        self._sums = {}


class TaskGradients:
    """Differentiates one task's loss at a time; leaves ``.grad`` alone.

    Attributes:
        touched: For every task differentiated so far the numbers of the shared parameters it depends on.
        finite: One flag per gradient of all ranks when losses are scaled (on the device, not read yet).
    """

    def __init__(
        self,
        losses: Mapping[str, Tensor],
        parameters: Sequence[Tensor],
        *,
        weights: Mapping[str, float | Tensor] | None = None,
        scale: float = 1.0,
        shares: Mapping[str, Tensor] | None = None,
        replicas: Replicas | None = None,
        conversing: bool = False,
        capture: Capture | None = None,
        guard: Callable[[Callable[[], Sequence[Tensor | None]]], Sequence[Tensor | None]] = lambda run: run(),
    ) -> None:
        self._losses = losses
        self._parameters = parameters
        self._weights = weights or {}
        self._scale = scale
        self._shares = shares or {}
        self._replicas = replicas or Replicas(None)
        # Where ranks converse within a gradient, one without the loss takes part with another's, times 0.
        self._stand_in = next(iter(losses.values()), None) if conversing else None
        self._capture = capture
        self._guard = guard
        self._ahead: tuple[str, bool, Sequence[Tensor | None]] | None = None
        self.touched: dict[str, set[int]] = {}
        self.finite: list[Tensor] = []

    def weight(self, task: str) -> float | Tensor:
        return self._weights.get(task, 1.0)

    def launch(self, task: str, *, weighted: bool) -> None:
        """Differentiates already what will probably be asked for first, while the host waits for something else."""
        raw = self._differentiate(task, self.weight(task) if weighted else 1.0, list(self._parameters))
        self._ahead = task, weighted, raw

    def of(self, task: str, *, weighted: bool) -> list[Tensor]:
        """The gradient of a task's loss: dense, in the parameters' layout, zero where the loss does not reach.

        The tensors may be autograd's own: read them, never write them.

        Args:
            task: Whose loss.
            weighted: Whether of weight × loss.
        """
        gradient = list(self._replicas.sum(self.here(task, weighted=weighted)))
        self._watch(gradient)
        return gradient

    def add_up(self, rows: Sequence[Tensor]) -> None:
        """Makes rows that were filled from `here` those of all ranks, in place: no more is sent than is kept."""
        for row in rows:
            self._replicas.add_up(row)
        self._watch(rows)

    def here(self, task: str, *, weighted: bool, only: Sequence[int] | None = None) -> list[Tensor]:
        """This rank's part of the gradient.

        Args:
            task: Whose loss.
            weighted: Whether of weight × loss.
            only: Numbers of the shared parameters wanted; all by default.
        """
        indices = range(len(self._parameters)) if only is None else only
        wanted: list[Tensor] = [self._parameters[i] for i in indices]
        weight = self.weight(task)
        ahead, self._ahead = self._ahead, None
        if ahead is not None and only is None and ahead[:2] == (task, weighted):
            raw = ahead[2]
        else:
            raw = self._differentiate(task, weight if weighted else 1.0, wanted)
        del ahead
        self.touched.setdefault(task, set()).update(i for i, g in zip(indices, raw, strict=True) if g is not None)
        if self._capture is not None and only is None and task not in self._capture.tasks:
            self._capture.add(task, wanted, raw, (1.0 if weighted else weight) / self._scale)
        shared = [_dense(g, p) for g, p in zip(raw, wanted, strict=True)]
        if self._scale != 1.0:
            shared = list(torch._foreach_mul(shared, 1.0 / self._scale))
        return shared

    def _watch(self, gradient: Sequence[Tensor]) -> None:
        """Notes, of a sum over ranks, whether scaling made it overflow on any of them."""
        if self._scale != 1.0:
            self.finite.append(torch.stack([g.isfinite().all() for g in gradient]).all())

    def _differentiate(self, task: str, weight: float | Tensor, leaves: list[Tensor]) -> Sequence[Tensor | None]:
        loss, share = self._losses.get(task), self._shares.get(task, 1.0)
        if loss is None:  # absent on this rank, present on another
            loss, share = self._stand_in, 0.0
        if loss is None or not loss.requires_grad:
            return [None] * len(leaves)
        factor = torch.ones_like(loss) * weight * self._scale * share
        try:
            return self._guard(
                lambda: torch.autograd.grad(
                    loss, leaves, grad_outputs=factor.to(loss), retain_graph=True, allow_unused=True
                )
            )
        except RuntimeError as error:
            if "donated" not in str(error):
                raise
            raise RuntimeError(
                "torch.compile gave away buffers that a second gradient needs; put "
                "`torch._functorch.config.donated_buffer = False` before the first call of the compiled model."
            ) from error


def _dense(gradient: Tensor | None, parameter: Tensor) -> Tensor:
    if gradient is None:
        return torch.zeros_like(parameter)
    if gradient.layout != torch.strided:
        raise ValueError(sparse_sentence(f"shape {tuple(parameter.shape)}"))
    if gradient.stride() != parameter.stride():
        return torch.empty_like(parameter).copy_(gradient)
    return gradient
