"""The step of torch's Adam and AdamW, without touching their state."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ._pieces import Piece, chunks, cut
from ._rule import StepRule

# Numbers per chunk: bounds the temporaries (two per chunk) without adding noticeable kernel launches.
CHUNK = 1 << 22


class AdamRule(StepRule):
    """m' = β₁m + (1−β₁)g, v' = β₂v + (1−β₂)g², Δθ = −η/(1−β₁ᵗ) · m' / (√v'/√(1−β₂ᵗ) + ε), and weight decay."""

    def __init__(self, group: Mapping[str, Any], states: Mapping[int, Mapping[str, Any]], decoupled: bool) -> None:
        self._states = states
        self._decoupled = decoupled
        self._amsgrad = bool(group["amsgrad"])
        self._lr, self._eps, self._decay = float(group["lr"]), float(group["eps"]), float(group["weight_decay"])
        self._beta1, self._beta2 = (float(beta) for beta in group["betas"])
        self._sign = -1.0 if group["maximize"] else 1.0
        self._steps = _read_steps(states)

    def add(
        self, out: Sequence[Tensor], pieces: Sequence[Piece], gradients: Sequence[Tensor], origin: Sequence[Tensor]
    ) -> None:
        for positions, rows in chunks(gradients, CHUNK):
            here = [pieces[p] for p in positions]
            self._add(
                cut(out, positions, rows), here, cut(gradients, positions, rows), cut(origin, positions, rows), rows
            )

    def _add(
        self, out: list[Tensor], pieces: list[Piece], gradients: list[Tensor], origin: list[Tensor], rows: list[slice]
    ) -> None:
        if self._sign < 0:
            gradients = list(torch._foreach_neg(gradients))
        if self._decay and not self._decoupled:
            gradients = list(torch._foreach_add(gradients, origin, alpha=self._decay))
        counts = [self._steps.get(piece.index, 0.0) + 1.0 for piece in pieces]
        denominator = self._denominator(pieces, gradients, rows, counts)
        moment = list(torch._foreach_mul(gradients, 1.0 - self._beta1))
        known = [k for k, piece in enumerate(pieces) if self._has(piece, "exp_avg")]
        if known:
            old = self._state("exp_avg", pieces, rows, known)
            torch._foreach_add_([moment[k] for k in known], old, alpha=self._beta1)
        torch._foreach_div_(moment, denominator)
        torch._foreach_mul_(moment, [-self._lr / (1.0 - self._beta1**count) for count in counts])
        if self._decay and self._decoupled:
            torch._foreach_add_(out, origin, alpha=-self._lr * self._decay)
        torch._foreach_add_(out, moment)

    def _denominator(
        self, pieces: list[Piece], gradients: list[Tensor], rows: list[slice], counts: list[float]
    ) -> list[Tensor]:
        square = list(torch._foreach_mul(gradients, gradients))
        torch._foreach_mul_(square, 1.0 - self._beta2)
        known = [k for k, piece in enumerate(pieces) if self._has(piece, "exp_avg_sq")]
        if known:
            old = self._state("exp_avg_sq", pieces, rows, known)
            torch._foreach_add_([square[k] for k in known], old, alpha=self._beta2)
            if self._amsgrad:
                largest = self._state("max_exp_avg_sq", pieces, rows, known)
                torch._foreach_maximum_([square[k] for k in known], largest)
        torch._foreach_sqrt_(square)
        torch._foreach_div_(square, [(1.0 - self._beta2**count) ** 0.5 for count in counts])
        torch._foreach_add_(square, self._eps)
        return square

    def _has(self, piece: Piece, name: str) -> bool:
        return self._states.get(piece.index, {}).get(name) is not None

    def _state(self, name: str, pieces: list[Piece], rows: list[slice], known: list[int]) -> list[Tensor]:
        """State tensors cut to the piece, then to the rows of the chunk inside the piece."""
        states = [pieces[k].of(self._states[pieces[k].index][name]) for k in known]
        return cut(states, range(len(states)), [rows[k] for k in known])


def _read_steps(states: Mapping[int, Mapping[str, Any]]) -> dict[int, float]:
    """Step counts by parameter; those that live on a device are read in one transfer."""
    counts = {index: state["step"] for index, state in states.items() if "step" in state}
    if not counts:
        return {}
    tensors = [torch.as_tensor(count, dtype=torch.float32) for count in counts.values()]
    on_host = all(t.device.type == "cpu" for t in tensors)
    values = [t.item() for t in tensors] if on_host else torch.stack([t.reshape(()) for t in tensors]).tolist()
    return dict(zip(counts, values, strict=True))
