"""Steps of stochastic gradient descent: the paper's equation, and torch's SGD with all its options."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ._pieces import Piece
from ._rule import StepRule


class PlainSgd(StepRule):
    """Δθ = −η g, the lookahead step of the paper's equation 1."""

    def __init__(self, lr: float | Tensor) -> None:
        self._lr = float(lr)

    @property
    def idle(self) -> bool:
        return True

    def slope(self, piece: Piece) -> float | None:
        return -self._lr

    def add(
        self, out: Sequence[Tensor], pieces: Sequence[Piece], gradients: Sequence[Tensor], origin: Sequence[Tensor]
    ) -> None:
        torch._foreach_add_(list(out), list(gradients), alpha=-self._lr)


class SgdRule(StepRule):
    """The step of `torch.optim.SGD` with momentum, dampening, Nesterov, weight decay and maximize.

    With d = ±g + λθ and buffer m, the new buffer is μm + (1 − τ)d (d itself the first time) and the direction
    that buffer, or d + μ·buffer for Nesterov: linear in d and m, so no temporary is needed.
    """

    def __init__(self, group: Mapping[str, Any], states: Mapping[int, Mapping[str, Any]]) -> None:
        self._lr, self._momentum = float(group["lr"]), float(group["momentum"])
        self._dampening, self._decay = float(group["dampening"]), float(group["weight_decay"])
        self._sign = -1.0 if group["maximize"] else 1.0
        self._nesterov = bool(group["nesterov"])
        self._buffers = {
            index: state["momentum_buffer"]
            for index, state in states.items()
            if self._momentum and state.get("momentum_buffer") is not None
        }

    @property
    def idle(self) -> bool:
        return not self._momentum and not self._decay

    def slope(self, piece: Piece) -> float | None:
        on_d, _ = self._factors(known=piece.index in self._buffers)
        return -self._lr * on_d * self._sign

    def _factors(self, known: bool) -> tuple[float, float]:
        """How much of d and of m is in the direction."""
        fresh = 1.0 - self._dampening if known else 1.0
        if self._nesterov:
            return 1.0 + self._momentum * fresh, self._momentum**2
        return fresh, self._momentum

    def add(
        self, out: Sequence[Tensor], pieces: Sequence[Piece], gradients: Sequence[Tensor], origin: Sequence[Tensor]
    ) -> None:
        known = [piece.index in self._buffers for piece in pieces]
        for seen in sorted({*known}):
            here = [k for k, this in enumerate(known) if this == seen]
            buffers = [pieces[k].of(self._buffers[pieces[k].index]) for k in here] if seen else None
            self._add([out[k] for k in here], [gradients[k] for k in here], [origin[k] for k in here], buffers)

    def _add(
        self, out: list[Tensor], gradients: list[Tensor], origin: list[Tensor], buffers: list[Tensor] | None
    ) -> None:
        on_d, on_m = self._factors(known=buffers is not None)
        torch._foreach_add_(out, gradients, alpha=-self._lr * on_d * self._sign)
        if self._decay:
            torch._foreach_add_(out, origin, alpha=-self._lr * on_d * self._decay)
        if buffers is not None:
            torch._foreach_add_(out, buffers, alpha=-self._lr * on_m)
