"""The quantities observed at a measured step: losses after a step on each task, and inner products of gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .estimators import Observed, Quantity
from .gradients import Gradient, TaskGradients, gradient_rows, parameter_blocks
from .isolation import copy_tensors
from .steps import Steps

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
    kept = None
    if needs - {"after"}:
        kept = _compute_inner_products(context, needs, observed)
    if "after" in needs:
        observed.after = _lookahead(context, kept)
    return observed


@dataclass
class _GradientBlock:
    """The gradients with respect to some of the shared parameters, as one matrix [tasks, elements] per parameter.

    Attributes:
        indices: The indices of the parameters.
        sources: The gradients of the sources.
        targets: The gradients of the targets.
        centering: The gradients whose mean is subtracted from those of the sources, starting with the sources.
    """

    indices: list[int]
    sources: list[Tensor]
    targets: list[Tensor]
    centering: list[Tensor]


def _compute_inner_products(
    context: StepContext, needs: frozenset[Quantity], observed: Observed
) -> _GradientBlock | None:
    """Computes all inner products of gradients, and returns the gradients if all of them fit in memory at once."""
    of_sources = _source_rows(context, needs)
    rows = len(of_sources) + len(context.targets) if context.held_out else len(of_sources)
    blocks = parameter_blocks(context.parameters, rows, context.gradient_memory, context.steps)
    sums = _InnerProducts(context, needs)
    for indices in blocks:
        block = _gradient_block(context, of_sources, indices)
        sums.add(block)
        if len(blocks) == 1:
            sums.write(observed)
            return block
        del block  # frees these gradients before those of the next block are computed
    sums.write(observed)
    return None


def _source_rows(context: StepContext, needs: frozenset[Quantity]) -> list[str]:
    """Returns the tasks whose losses in the closure must be differentiated, starting with the sources."""
    if not context.held_out:
        return list(dict.fromkeys([*context.sources, *context.targets]))
    return list(dict.fromkeys([*context.sources, *(context.present if "centered_inner" in needs else ())]))


def _gradient_block(context: StepContext, of_sources: Sequence[str], indices: list[int]) -> _GradientBlock:
    rows = gradient_rows(context.gradients, of_sources, context.parameters, indices)
    sources = [matrix[: len(context.sources)] for matrix in rows]
    if context.held_out:
        gradients, local = context.target_gradients, context.own_targets
        targets = gradient_rows(gradients, context.targets, context.parameters, indices, local=local)
        return _GradientBlock(indices, sources, targets, rows)
    order = [of_sources.index(task) for task in context.targets]
    targets = rows if order == list(range(len(of_sources))) else [matrix[order] for matrix in rows]
    return _GradientBlock(indices, sources, targets, rows)


class _InnerProducts:
    """Sums the inner products of gradients and steps over parameters."""

    def __init__(self, context: StepContext, needs: frozenset[Quantity]) -> None:
        self._context = context
        self._needs = needs
        self._sums: dict[str, list[Tensor]] = {}

    def add(self, block: _GradientBlock) -> None:
        if "slopes" in self._needs:
            self._add("slopes", _slopes(self._context, block))
        for index, *matrices in zip(block.indices, block.sources, block.targets, block.centering, strict=True):
            sources, targets, centering = matrices
            if "gram" in self._needs:
                own = sources if self._context.held_out else targets
                self._add("gram", own @ own.T)
            of_kernels = None if self._context.parameters[index].dim() > 1 else 0  # elements
            for quantity, elements in (("inner", None), ("kernel_inner", of_kernels)):
                if quantity in self._needs:
                    s, t = sources[:, :elements], targets[:, :elements]
                    squares = (torch.linalg.vector_norm(x, dim=1).square() for x in (s, t))
                    self._add(quantity, s @ t.T, *squares)
            if "centered_inner" in self._needs:
                of_sources, of_targets = (x @ x.T for x in (centering, targets))
                self._add("centered_inner", centering @ targets.T, of_sources, of_targets)

    def _add(self, quantity: str, *products: Tensor) -> None:
        new = [part.to(self._context.before.device) for part in products]
        old = self._sums.get(quantity)
        self._sums[quantity] = new if old is None else [a + b for a, b in zip(old, new, strict=True)]

    def write(self, observed: Observed) -> None:
        for quantity, parts in self._sums.items():
            if quantity in ("slopes", "gram"):
                setattr(observed, quantity, parts[0])
                continue
            compute = _centered_cosines if quantity == "centered_inner" else _cosines
            found = compute(*parts)[: len(self._context.sources)]
            if self._context.null:  # keeps the rows of all quantities aligned; cosine estimators ignore it
                found = torch.cat([found, torch.zeros_like(found[:1])])
            setattr(observed, quantity, found)


def _cosines(inner: Tensor, squared_source_norms: Tensor, squared_target_norms: Tensor) -> Tensor:
    """Divides inner products by norms, which yields NaN (counted as skipped) if a gradient is zero."""
    return inner / torch.outer(squared_source_norms.sqrt(), squared_target_norms.sqrt())


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


def _slopes(context: StepContext, block: _GradientBlock) -> Tensor:
    """Returns ⟨g_j, −Δθ_i⟩ on one block."""
    factor = context.steps.slope(block.indices)
    if factor is None:
        rows = range(len(context.sources) + context.null)
        steps = (_step(context, block.indices, _row_gradient(context, block, row)) for row in rows)
        return torch.stack([torch.stack(_effects(context, block, step)).sum(0) for step in steps])
    # Δθ_i = Δθ(0) + c w_i g_i on the parameters that task i uses, so inner products of gradients suffice.
    weights = [context.gradients.weight(task) for task in context.sources]
    products = [(s @ t.T).to(context.before.device) for s, t in zip(block.sources, block.targets, strict=True)]
    gram = torch.stack(products).sum(0)
    scaled = torch.stack([row * weight * -factor for row, weight in zip(gram, weights, strict=True)])
    if context.steps.idle:
        return scaled
    null_step = _step(context, block.indices, _row_gradient(context, block, len(context.sources)))
    null_parts = torch.stack(_effects(context, block, null_step))  # [parameters, targets]
    used = [[index in context.gradients.touched[task] for index in block.indices] for task in context.sources]
    slopes = scaled + torch.tensor(used).to(null_parts) @ null_parts
    return torch.cat([slopes, null_parts.sum(0, keepdim=True)]) if context.null else slopes


def _step(context: StepContext, indices: Sequence[int], gradient: Gradient) -> list[Tensor]:
    origin = [context.parameters[i].data for i in indices]
    step = [torch.zeros_like(p) for p in origin]
    context.steps.add(step, indices, gradient, origin)
    return step


def _effects(context: StepContext, block: _GradientBlock, step: Sequence[Tensor]) -> list[Tensor]:
    """Returns ⟨g_j, −Δθ⟩ for each parameter, over the targets j."""
    rows = zip(block.targets, step, strict=True)
    return [-(matrix @ part.reshape(-1).to(matrix.dtype)).to(context.before.device) for matrix, part in rows]


def _row_gradient(context: StepContext, block: _GradientBlock, row: int) -> Gradient:
    """Returns a source's weighted gradient on one block, or zeros for the null step."""
    parameters = [context.parameters[i] for i in block.indices]
    if row == len(context.sources):
        return [torch.zeros_like(p) for p in parameters]
    task = context.sources[row]
    weight, touched = context.gradients.weight(task), context.gradients.touched[task]
    return [
        (matrix[row] * weight).view(p.shape).to(p.dtype) if index in touched else None
        for index, matrix, p in zip(block.indices, block.sources, parameters, strict=True)
    ]


def _lookahead(context: StepContext, kept: _GradientBlock | None) -> Tensor:
    """Returns L_j(θ + Δθ_i), by moving the parameters in place and replaying the closure."""
    values = [p.data for p in context.parameters]
    saved = copy_tensors(values)
    found, probed = [], []
    try:
        for row in range(len(context.sources) + context.null):
            context.steps.add(values, range(len(values)), _source_gradient(context, row, kept), saved)
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


def _source_gradient(context: StepContext, row: int, kept: _GradientBlock | None) -> Gradient:
    if kept is not None:
        return _row_gradient(context, kept, row)
    if row == len(context.sources):
        return [torch.zeros_like(p) for p in context.parameters]
    return context.gradients.gradient(context.sources[row], weighted=True)
