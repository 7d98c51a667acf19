"""Gradients of individual tasks with respect to the shared parameters, in blocks that fit in memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tagalong.errors import InvalidInput

from .distributed import Replicas
from .isolation import copy_tensors
from .step_rules import ParameterSlice, split_tensor
from .steps import Steps


class TaskGradients:
    """Differentiates one task's loss at a time, without changing ``.grad``.

    Attributes:
        touched: The indices of the shared parameters that each task depends on, for the tasks differentiated so far.
        finite: Whether each gradient is finite on all ranks, as tensors on the device; empty unless losses are scaled.
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
        needs_communication: bool = False,
        capture: GradientSum | None = None,
        guard: Callable[[Callable[[], Sequence[Tensor | None]]], Sequence[Tensor | None]] = lambda run: run(),
    ) -> None:
        self._losses = losses
        self._parameters = parameters
        self._weights = weights or {}
        self._scale = scale
        self._shares = shares or {}
        self._replicas = replicas or Replicas(None)
        # If computing a gradient requires communication, a rank without the loss differentiates another loss times 0.
        self._stand_in = next(iter(losses.values()), None) if needs_communication else None
        self._capture = capture
        self._guard = guard
        self._ahead: tuple[str, bool, Sequence[Tensor | None]] | None = None
        self.touched: dict[str, set[int]] = {}
        self.finite: list[Tensor] = []

    def weight(self, task: str) -> float | Tensor:
        return self._weights.get(task, 1.0)

    def start_gradient(self, task: str, *, weighted: bool) -> None:
        """Starts computing the gradient that will probably be needed first, while the host is waiting."""
        raw = self._differentiate(task, self.weight(task) if weighted else 1.0, list(self._parameters))
        self._ahead = task, weighted, raw

    def gradient(self, task: str, *, weighted: bool) -> list[Tensor | None]:
        """Returns the dense gradient of a task's loss, with None for parameters that the task does not use.

        The tensors have the same memory layout as the parameters. Do not modify the tensors, since they may belong to
        autograd.

        Args:
            task: The task.
            weighted: Whether to multiply the loss by its weight.
        """
        gradient = list(self._replicas.sum(self.local_gradient(task, weighted=weighted)))
        self._check_overflow(gradient)
        self.agree_on_touched([task])
        return [g if i in self.touched[task] else None for i, g in enumerate(gradient)]

    def agree_on_touched(self, tasks: Sequence[str]) -> None:
        """Collects `touched` from all ranks, since a rank without labels cannot tell what a task depends on."""
        if self._replicas.alone:
            return
        flags = torch.zeros(len(tasks), len(self._parameters), device=self._parameters[0].device)
        for row, task in zip(flags, tasks, strict=True):
            row[list(self.touched[task])] = 1.0
        self._replicas.sum_in_place(flags)
        for row, task in zip(flags, tasks, strict=True):
            self.touched[task] = set(row.nonzero().flatten().tolist())

    def sum_in_place(self, rows: Sequence[Tensor]) -> None:
        """Sums rows filled by `local_gradient` over all ranks, in place."""
        for row in rows:
            self._replicas.sum_in_place(row)
        self._check_overflow(rows)

    def local_gradient(self, task: str, *, weighted: bool, only: Sequence[int] | None = None) -> list[Tensor]:
        """Returns this rank's contribution to the gradient.

        Args:
            task: The task.
            weighted: Whether to multiply the loss by its weight.
            only: Indices of the shared parameters to differentiate with respect to; all by default.
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
        touched = self.touched.setdefault(task, set())
        if task in self._losses:
            touched.update(i for i, g in zip(indices, raw, strict=True) if g is not None)
        if self._capture is not None and only is None and task not in self._capture.tasks:
            self._capture.add(task, wanted, raw, (1.0 if weighted else weight) / self._scale)
        shared = [_to_dense(g, p) for g, p in zip(raw, wanted, strict=True)]
        if self._scale != 1.0:
            shared = list(torch._foreach_mul(shared, 1.0 / self._scale))
        return shared

    def _check_overflow(self, gradient: Sequence[Tensor]) -> None:
        """Records whether loss scaling made the gradient overflow on any rank."""
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
                "torch.compile donated buffers that are needed for a second backward pass; run "
                "`import torch._functorch.config; torch._functorch.config.donated_buffer = False` before calling the "
                "compiled model"
            ) from error


def _to_dense(gradient: Tensor | None, parameter: Tensor) -> Tensor:
    if gradient is None:
        return torch.zeros_like(parameter)
    if gradient.layout != torch.strided:
        raise sparse_gradient_error(f"shape {tuple(parameter.shape)}")
    if gradient.stride() != parameter.stride():
        return torch.empty_like(parameter).copy_(gradient)
    return gradient


def sparse_gradient_error(name: str) -> InvalidInput:
    return InvalidInput(
        "shared",
        f"contains an embedding with sparse gradients ({name}), which the meter does not support",
        hint="create it with sparse=False, or leave it out of `shared`",
    )


class GradientSum:
    """The training gradient of the shared parameters, Σ w_t ∇L_t over the tasks differentiated so far.

    Attributes:
        tasks: The tasks whose gradients have been added.
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
        # Copied, since the graph may still need the tensors that autograd returns.
        sums = copy_tensors([g for _, g in fresh])
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
        """Adds `factor` times the sum to each parameter's ``.grad`` and frees the sum."""
        for parameter, gradient in self._sums.values():
            if factor != 1.0:
                gradient.mul_(factor)
            if parameter.grad is None:
                parameter.grad = _to_dense(gradient, parameter)
            else:
                parameter.grad.add_(gradient)
        self._sums = {}


def gradient_matrices(
    gradients: TaskGradients,
    tasks: Sequence[str],
    blocks: Sequence[ParameterBlock],
    parameters: Sequence[Tensor],
    *,
    whole: bool,
    local_only: bool = False,
) -> list[Tensor]:
    """Returns one matrix per block, with one task's gradient per row.

    Args:
        gradients: The task gradients to compute.
        tasks: The tasks, one per row.
        blocks: The blocks of parameters, one per matrix.
        parameters: The shared parameters.
        whole: Whether `blocks` cover all parameters; if not, only the parameters in the blocks are differentiated.
        local_only: Whether to return only this rank's contribution to the gradients.
    """
    indices = sorted({piece.index for block in blocks for piece in block.pieces})
    matrices = [torch.empty(len(tasks), block.size, dtype=block.dtype, device=block.device) for block in blocks]
    for row, task in enumerate(tasks):
        gradient = gradients.local_gradient(task, weighted=False, only=None if whole else indices)
        found = dict(zip(indices, gradient, strict=True))
        for block, matrix in zip(blocks, matrices, strict=True):
            values = [piece.select(found[piece.index]) for piece in block.pieces]
            torch._foreach_copy_(block.split_row(matrix[row], parameters), values)
        del gradient, found, values  # frees this gradient before the next one is computed
        if not local_only:
            gradients.sum_in_place([matrix[row] for matrix in matrices])
    if not local_only:
        gradients.agree_on_touched(tasks)
    return matrices


@dataclass(frozen=True)
class ParameterBlock:
    """Slices of the shared parameters on one device that are processed together.

    Weights with more than one dimension come first and make up the first `kernels` elements of a row.
    """

    pieces: tuple[ParameterSlice, ...]
    sizes: tuple[int, ...]
    kernels: int
    device: torch.device
    dtype: torch.dtype

    @property
    def size(self) -> int:
        return sum(self.sizes)

    def select(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Returns the block's slices of tensors that have the shapes of the shared parameters."""
        return [piece.select(tensors[piece.index]) for piece in self.pieces]

    def split_row(self, row: Tensor, parameters: Sequence[Tensor]) -> list[Tensor]:
        """Splits a row of the block's matrix into views that have the shapes of the slices."""
        parts = row.split(list(self.sizes))
        return [part.view(like.shape) for part, like in zip(parts, self.select(parameters), strict=True)]


def plan_blocks(
    parameters: Sequence[Tensor], rows: int, limit: float, steps: Steps
) -> tuple[list[ParameterBlock], bool]:
    """Splits the shared parameters into blocks such that `rows` gradients of a block fit in `limit` bytes.

    If the step is elementwise, a tensor may be split into multiple blocks; otherwise, blocks contain whole tensors.

    Returns:
        The blocks, and whether all of them fit in memory at once, so that each gradient is computed only once.
    """
    dtype = _dtype(parameters)
    capacity = max(1, int(limit // (rows * dtype.itemsize)))
    fit_together = gradients_fit(parameters, rows, limit)
    if not fit_together and not steps.separable:
        raise InvalidInput(
            "gradient_memory",
            "must be large enough for the gradients of all tasks with this optimizer",
            f"{limit:.0f} bytes",
            "increase `gradient_memory`, or use `update='sgd'` or `estimator='lookahead'`",
        )
    longest = capacity if steps.elementwise else max(p.numel() for p in parameters)
    order = sorted(range(len(parameters)), key=lambda i: (str(parameters[i].device), parameters[i].dim() < 2))
    blocks: list[list[ParameterSlice]] = [[]]
    size = 0
    for piece in (piece for index in order for piece in split_tensor(index, parameters[index], longest)):
        number = piece.select(parameters[piece.index]).numel()
        device = parameters[piece.index].device
        if blocks[-1] and (size + number > capacity or parameters[blocks[-1][-1].index].device != device):
            blocks.append([])
            size = 0
        blocks[-1].append(piece)
        size += number
    return [_make_block(pieces, parameters, dtype) for pieces in blocks], fit_together


def _make_block(pieces: Sequence[ParameterSlice], parameters: Sequence[Tensor], dtype: torch.dtype) -> ParameterBlock:
    sizes = tuple(piece.select(parameters[piece.index]).numel() for piece in pieces)
    kernels = sum(size for piece, size in zip(pieces, sizes, strict=True) if parameters[piece.index].dim() > 1)
    return ParameterBlock(tuple(pieces), sizes, kernels, parameters[pieces[0].index].device, dtype)


def gradients_fit(parameters: Sequence[Tensor], rows: int, limit: float) -> bool:
    """Whether the gradients of `rows` tasks fit in `limit` bytes."""
    return gradient_bytes(parameters, rows) <= limit


def gradient_bytes(parameters: Sequence[Tensor], rows: int) -> int:
    """Returns the number of bytes that the gradients of `rows` tasks take up."""
    return sum(p.numel() for p in parameters) * rows * _dtype(parameters).itemsize


def _dtype(parameters: Sequence[Tensor]) -> torch.dtype:
    return torch.float64 if any(p.dtype == torch.float64 for p in parameters) else torch.float32
