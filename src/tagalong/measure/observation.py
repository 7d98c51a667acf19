"""The quantities observed at a measured step: losses after a step on each task, and inner products of gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .estimators import Observed, Quantity
from .gradients import ParameterBlock, TaskGradients, gradient_matrices, plan_blocks
from .isolation import copy_tensors
from .step_rules import ParameterSlice
from .steps import Steps

Gradient = list[Tensor | None]  # by parameter, None where the task does not use it

PROBED_SOURCES = 3
ROUNDING = 1e-6  # a centered gradient this much smaller (squared) than the gradients is lost in float32


@dataclass
class StepContext:
    """The inputs to a measured step.

    Attributes:
        parameters: The trainable shared parameters, θ.
        steps: The steps that the optimizer would take.
        sources: The tasks on which steps are taken.
        present: All tasks with a loss in the closure, including those on which no step is taken this time.
        targets: The tasks whose losses are compared before and after the steps.
        gradients: The gradients of the closure's losses (sources).
        target_gradients: The gradients of the target losses: those of the held-out closure if there is one, otherwise
            `gradients`.
        replay_targets: A function that replays the targets' closure and returns their losses.
        before: The target losses at θ.
        null: Whether the null step (with a zero gradient) is also measured, as the last source.
        gradient_memory: The number of bytes available for gradients that are in memory at the same time.
        own_targets: Whether the target gradients, and therefore the slopes, are only this rank's contribution to the
            sum.
        probe: Whether to take other steps in the same directions, to see how much of the changes is rounding.
        probed: The target losses after the opposite step and after twice the step on the first few sources
            [2, sources, targets], available after `observe`.
    """

    parameters: Sequence[Tensor]
    steps: Steps
    sources: Sequence[str]
    present: Sequence[str]
    targets: Sequence[str]
    gradients: TaskGradients
    target_gradients: TaskGradients
    replay_targets: Callable[[], Tensor]
    before: Tensor
    null: bool
    gradient_memory: float
    own_targets: bool = False
    probe: bool = False
    probed: Tensor | None = None

    @property
    def held_out(self) -> bool:
        return self.target_gradients is not self.gradients


def observe(context: StepContext, needs: frozenset[Quantity]) -> Observed:
    """Computes the quantities in `needs`. The parameters are restored even if an error is raised."""
    observed = Observed(context.before)
    kept_gradients: list[tuple[ParameterBlock, _GradientRows]] = []
    if needs - {"after"}:
        kept_gradients = _compute_inner_products(context, needs, observed)
    if "after" in needs:
        observed.after = _lookahead(context, kept_gradients)
    return observed


@dataclass
class _GradientRows:
    """The gradients of the sources and targets on one block.

    Attributes:
        sources: The gradients of the sources.
        targets: The gradients of the targets.
        centering: The gradients whose mean is subtracted from those of the sources, starting with the sources.
    """

    sources: Tensor
    targets: Tensor
    centering: Tensor


def _compute_inner_products(
    context: StepContext, needs: frozenset[Quantity], observed: Observed
) -> list[tuple[ParameterBlock, _GradientRows]]:
    """Computes all inner products of gradients, and returns the gradients if all of them fit in memory at once."""
    of_sources = _source_rows(context, needs)
    rows = len(of_sources) + len(context.targets) if context.held_out else len(of_sources)
    blocks, fit_together = plan_blocks(context.parameters, rows, context.gradient_memory, context.steps)
    sums = _InnerProducts(context, needs)
    together = _gradient_rows(context, of_sources, blocks, whole=True) if fit_together else []
    for k, block in enumerate(blocks):
        # If they do not fit, the gradients of each block are freed before those of the next one are computed.
        sums.add(block, together[k] if fit_together else _gradient_rows(context, of_sources, [block], whole=False)[0])
    sums.write(observed)
    return list(zip(blocks, together, strict=True)) if fit_together else []


def _source_rows(context: StepContext, needs: frozenset[Quantity]) -> list[str]:
    """Returns the tasks whose losses in the closure must be differentiated, starting with the sources."""
    if not context.held_out:
        return list(dict.fromkeys([*context.sources, *context.targets]))
    return list(dict.fromkeys([*context.sources, *(context.present if "centered_inner" in needs else ())]))


def _gradient_rows(
    context: StepContext, of_sources: Sequence[str], blocks: Sequence[ParameterBlock], *, whole: bool
) -> list[_GradientRows]:
    matrices = gradient_matrices(context.gradients, of_sources, blocks, context.parameters, whole=whole)
    n = len(context.sources)
    if context.held_out:
        targets = gradient_matrices(
            context.target_gradients,
            context.targets,
            blocks,
            context.parameters,
            whole=whole,
            local_only=context.own_targets,
        )
        return [_GradientRows(m[:n], t, m) for m, t in zip(matrices, targets, strict=True)]
    of_targets = [of_sources.index(t) for t in context.targets]
    same = of_targets == list(range(len(of_sources)))
    return [_GradientRows(m[:n], m if same else m[of_targets], m) for m in matrices]


class _InnerProducts:
    """Sums the inner products of gradients and steps over blocks."""

    def __init__(self, context: StepContext, needs: frozenset[Quantity]) -> None:
        self._context = context
        self._needs = needs
        self._slopes: Tensor | float = 0.0
        self._gram: Tensor | float = 0.0
        self._grams: dict[str, list[Tensor]] = {}

    def add(self, block: ParameterBlock, rows: _GradientRows) -> None:
        home = self._context.before
        if "slopes" in self._needs:
            self._slopes = self._slopes + _slopes(self._context, block, rows).to(home)
        if "gram" in self._needs:
            own = rows.sources if self._context.held_out else rows.targets
            self._gram = self._gram + (own @ own.T).to(home.device)
        for quantity, width in (("inner", block.size), ("kernel_inner", block.kernels)):
            if quantity in self._needs:
                s, t = rows.sources[:, :width], rows.targets[:, :width]
                squares = (torch.linalg.vector_norm(x, dim=1).square() for x in (s, t))
                self._add_products(quantity, s @ t.T, *squares)
        if "centered_inner" in self._needs:
            self._add_products("centered_inner", *_gram_matrices(rows))

    def _add_products(self, quantity: str, *products: Tensor) -> None:
        new = [part.to(self._context.before) for part in products]
        old = self._grams.get(quantity)
        self._grams[quantity] = new if old is None else [a + b for a, b in zip(old, new, strict=True)]

    def write(self, observed: Observed) -> None:
        if isinstance(self._slopes, Tensor):
            observed.slopes = self._slopes
        if isinstance(self._gram, Tensor):
            observed.gram = self._gram
        for quantity, parts in self._grams.items():
            compute = _centered_cosines if quantity == "centered_inner" else _cosines
            found = compute(*parts)[: len(self._context.sources)]
            if self._context.null:  # keeps the rows of all quantities aligned; cosine estimators ignore it
                found = torch.cat([found, torch.zeros_like(found[:1])])
            setattr(observed, quantity, found)


def _cosines(inner: Tensor, squared_source_norms: Tensor, squared_target_norms: Tensor) -> Tensor:
    """Divides inner products by norms, which yields NaN (counted as skipped) if a gradient is zero."""
    return inner / torch.outer(squared_source_norms.sqrt(), squared_target_norms.sqrt())


def _gram_matrices(rows: _GradientRows) -> tuple[Tensor, Tensor, Tensor]:
    """Returns the inner products of sources and targets, of sources, and of targets."""
    inner = rows.centering @ rows.targets.T
    if rows.targets is rows.centering:
        return inner, inner, inner
    return inner, rows.centering @ rows.centering.T, rows.targets @ rows.targets.T


def _centered_cosines(inner: Tensor, of_sources: Tensor, of_targets: Tensor) -> Tensor:
    """Returns the cosines after subtracting the mean gradient from the sources and from the targets.

    With G the inner products and P = 1 − 11ᵀ/n, the inner products of centered gradients are P G P.
    """
    if min(inner.shape) < 3:
        return _cosines(inner, of_sources.diagonal(), of_targets.diagonal())
    return _cosines(_centered(inner), *(_centered_squares(gram) for gram in (of_sources, of_targets)))


def _centered_squares(gram: Tensor) -> Tensor:
    """Returns the squared norms of centered gradients, or NaN if only rounding errors remain of them."""
    squares = _centered(gram).diagonal()
    return torch.where(squares > ROUNDING * gram.diagonal().mean(), squares, torch.nan)


def _centered(gram: Tensor) -> Tensor:
    return gram - gram.mean(0) - gram.mean(1, keepdim=True) + gram.mean()


def _slopes(context: StepContext, block: ParameterBlock, rows: _GradientRows) -> Tensor:
    """Returns ⟨g_j, −Δθ_i⟩ on one block."""
    factor = context.steps.slope(block.pieces)
    if factor is None:
        gradients = _block_gradients(context, block, rows)
        return -torch.stack([rows.targets @ step for step in _flat_steps(context, block, gradients)])
    # Δθ_i = Δθ(0) + c w_i g_i on the parameters that task i uses, so a single matrix product suffices.
    gram = rows.sources @ rows.targets.T
    weights = [context.gradients.weight(task) for task in context.sources]
    scaled = torch.stack([row * weight * -factor for row, weight in zip(gram, weights, strict=True)])
    if context.steps.idle:
        return scaled
    zero: Gradient = [torch.zeros_like(p) for p in block.select(context.parameters)]
    null_step = next(_flat_steps(context, block, iter([zero])))
    pairs = zip(rows.targets.split(list(block.sizes), dim=1), null_step.split(list(block.sizes)), strict=True)
    null_parts = torch.stack([-(target @ step) for target, step in pairs])  # [slices, targets]
    used = [[p.index in context.gradients.touched[task] for p in block.pieces] for task in context.sources]
    slopes = scaled + torch.tensor(used).to(null_parts) @ null_parts
    return torch.cat([slopes, null_parts.sum(0, keepdim=True)]) if context.null else slopes


def _flat_steps(context: StepContext, block: ParameterBlock, gradients: Iterator[Gradient]) -> Iterator[Tensor]:
    """Yields the step on each gradient as a flat tensor, which is overwritten by the next step."""
    parameters = block.select([p.data for p in context.parameters])
    step = torch.zeros(block.size, dtype=block.dtype, device=block.device)
    out = block.split_row(step, context.parameters)
    for gradient in gradients:
        moved = [torch.zeros_like(p) for p in parameters] if _has_mixed_dtypes(block, parameters) else out
        step.zero_()
        context.steps.add(moved, block.pieces, gradient, parameters)
        if moved is not out:
            torch._foreach_copy_(out, moved)
        yield step


def _has_mixed_dtypes(block: ParameterBlock, parameters: Sequence[Tensor]) -> bool:
    return any(p.dtype != block.dtype for p in parameters)


def _block_gradients(context: StepContext, block: ParameterBlock, rows: _GradientRows) -> Iterator[Gradient]:
    for row in range(len(context.sources)):
        yield _row_gradient(context, block, rows, row)
    if context.null:
        yield [torch.zeros_like(p) for p in block.select(context.parameters)]


def _row_gradient(context: StepContext, block: ParameterBlock, rows: _GradientRows, row: int) -> Gradient:
    """Returns a source's weighted gradient on one block, with None for parameters that it does not use."""
    weight = context.gradients.weight(context.sources[row])
    touched = context.gradients.touched[context.sources[row]]
    values = rows.sources[row]
    if isinstance(weight, Tensor) or weight != 1.0:
        values = values * weight
    views = block.split_row(values, context.parameters)
    return [
        view.to(context.parameters[piece.index].dtype) if piece.index in touched else None
        for piece, view in zip(block.pieces, views, strict=True)
    ]


def _lookahead(context: StepContext, kept_gradients: Sequence[tuple[ParameterBlock, _GradientRows]]) -> Tensor:
    """Returns L_j(θ + Δθ_i), by moving the parameters in place and replaying the closure."""
    values = [p.data for p in context.parameters]
    saved = copy_tensors(values)
    pieces = [ParameterSlice(i) for i in range(len(values))]
    found, probed = [], []
    try:
        for row in range(len(context.sources) + context.null):
            context.steps.add(values, pieces, _source_gradient(context, row, kept_gradients), saved)
            found.append(context.replay_targets())
            if context.probe and row < min(PROBED_SOURCES, len(context.sources)):
                for weight in (2.0, 3.0):  # from θ + Δθ to θ − Δθ, and from there to θ + 2Δθ
                    torch._foreach_lerp_(values, saved, weight)
                    probed.append(context.replay_targets())
            torch._foreach_copy_(values, saved)
    finally:
        torch._foreach_copy_(values, saved)
    context.probed = torch.stack(probed).unflatten(0, (-1, 2)).transpose(0, 1) if probed else None
    return torch.stack(found)


def _source_gradient(
    context: StepContext, row: int, kept_gradients: Sequence[tuple[ParameterBlock, _GradientRows]]
) -> Gradient:
    if row == len(context.sources):
        return [torch.zeros_like(p) for p in context.parameters]
    task = context.sources[row]
    if not kept_gradients:
        return context.gradients.gradient(task, weighted=True)
    gradient: dict[int, Tensor | None] = {}
    for block, rows in kept_gradients:
        parts = zip(block.pieces, _row_gradient(context, block, rows, row), strict=True)
        gradient.update({piece.index: part for piece, part in parts})
    return [gradient[i] for i in range(len(context.parameters))]
