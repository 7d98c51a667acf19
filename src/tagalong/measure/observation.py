"""What one measured step sees: losses after a step on each task, and inner products of gradients and steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .estimators import Observed, Quantity
from .gradients import Block, TaskGradients, gradient_matrices, plan_blocks
from .isolation import copies
from .step_rules import Piece
from .steps import Steps


@dataclass
class Scene:
    """Everything a measured step works with.

    Attributes:
        parameters: The trainable shared parameters, θ.
        steps: How an optimiser would move them.
        sources: Tasks whose steps are looked at.
        targets: Tasks onto which the affinity is measured.
        gradients: Of the closure's losses (sources).
        target_gradients: Of the losses that are looked at: the same, or the held-out closure's.
        look: Replays the closure that is looked at and returns the targets' losses.
        before: The targets' losses at θ.
        null: Whether the step on a zero gradient is looked at too, as a last source.
        gradient_memory: Bytes for gradients held together.
        own_targets: Whether the targets' gradients, and with them slopes, are this rank's part of the sum only.
    """

    parameters: Sequence[Tensor]
    steps: Steps
    sources: Sequence[str]
    targets: Sequence[str]
    gradients: TaskGradients
    target_gradients: TaskGradients
    look: Callable[[], Tensor]
    before: Tensor
    null: bool
    gradient_memory: float
    own_targets: bool = False

    @property
    def held_out(self) -> bool:
        return self.target_gradients is not self.gradients


def observe(scene: Scene, needs: frozenset[Quantity]) -> Observed:
    """Computes the quantities in `needs`; the parameters are as before when it returns, or raises."""
    seen = Observed(scene.before)
    held: list[tuple[Block, _Rows]] = []
    if needs - {"after"}:
        held = _first_order(scene, needs, seen)
    if "after" in needs:
        seen.after = _lookahead(scene, held)
    return seen


@dataclass
class _Rows:
    """The gradients of sources and targets on one block."""

    sources: Tensor
    targets: Tensor


def _first_order(scene: Scene, needs: frozenset[Quantity], seen: Observed) -> list[tuple[Block, _Rows]]:
    """Everything that needs inner products of gradients; returns the gradients if all were held together."""
    rows = len(scene.sources) + len(scene.targets) if scene.held_out else len({*scene.sources, *scene.targets})
    blocks, held = plan_blocks(scene.parameters, rows, scene.gradient_memory, scene.steps)
    sums = _InnerProducts(scene, needs)
    together = _gradient_rows(scene, blocks, whole=True) if held else []
    for k, block in enumerate(blocks):
        # Where they do not fit together, each block's are found on the spot and let go before the next.
        sums.add(block, together[k] if held else _gradient_rows(scene, [block], whole=False)[0])
    sums.write(seen)
    return list(zip(blocks, together, strict=True)) if held else []


def _gradient_rows(scene: Scene, blocks: Sequence[Block], *, whole: bool) -> list[_Rows]:
    if scene.held_out:
        sources = gradient_matrices(scene.gradients, scene.sources, blocks, scene.parameters, whole=whole)
        targets = gradient_matrices(
            scene.target_gradients, scene.targets, blocks, scene.parameters, whole=whole, own=scene.own_targets
        )
        return [_Rows(s, t) for s, t in zip(sources, targets, strict=True)]
    tasks = list(dict.fromkeys([*scene.sources, *scene.targets]))
    matrices = gradient_matrices(scene.gradients, tasks, blocks, scene.parameters, whole=whole)
    of_targets = [tasks.index(t) for t in scene.targets]
    same = of_targets == list(range(len(tasks)))
    return [_Rows(m[: len(scene.sources)], m if same else m[of_targets]) for m in matrices]


class _InnerProducts:
    """Sums over blocks of inner products between gradients and steps."""

    def __init__(self, scene: Scene, needs: frozenset[Quantity]) -> None:
        self._scene = scene
        self._needs = needs
        self._slopes: Tensor | float = 0.0
        self._gram: Tensor | float = 0.0
        self._grams: dict[str, list[Tensor]] = {}

    def add(self, block: Block, rows: _Rows) -> None:
        home = self._scene.before
        if "slopes" in self._needs:
            self._slopes = self._slopes + _slopes(self._scene, block, rows).to(home)
        if "gram" in self._needs:
            own = rows.sources if self._scene.held_out else rows.targets
            self._gram = self._gram + (own @ own.T).to(home.device)
        for quantity, width in (("inner", block.size), ("kernel_inner", block.kernels)):
            if quantity in self._needs:
                s, t = rows.sources[:, :width], rows.targets[:, :width]
                squares = (torch.linalg.vector_norm(x, dim=1).square() for x in (s, t))
                new = [part.to(home) for part in (s @ t.T, *squares)]
                old = self._grams.get(quantity)
                self._grams[quantity] = new if old is None else [a + b for a, b in zip(old, new, strict=True)]

    def write(self, seen: Observed) -> None:
        if isinstance(self._slopes, Tensor):
            seen.slopes = self._slopes
        if isinstance(self._gram, Tensor):
            seen.gram = self._gram
        for quantity, parts in self._grams.items():
            found = _cosines(*parts)
            if self._scene.null:  # keeps the rows of all quantities aligned; estimators of cosines ignore it
                found = torch.cat([found, torch.zeros_like(found[:1])])
            setattr(seen, quantity, found)


def _cosines(inner: Tensor, source_squares: Tensor, target_squares: Tensor) -> Tensor:
    """Inner products over norms; NaN (skipped and counted) where a gradient is zero."""
    return inner / torch.outer(source_squares.sqrt(), target_squares.sqrt())


def _slopes(scene: Scene, block: Block, rows: _Rows) -> Tensor:
    """⟨g_j, −Δθ_i⟩ on one block."""
    factor = scene.steps.slope(block.pieces)
    if factor is None:
        gradients = _block_gradients(scene, block, rows)
        return -torch.stack([rows.targets @ step for step in _steps(scene, block, gradients)])
    # Δθ_i = Δθ(0) + c w_i g_i, so that one product of matrices does it.
    gram = rows.sources @ rows.targets.T
    weights = [scene.gradients.weight(task) for task in scene.sources]
    scaled = torch.stack([row * weight * -factor for row, weight in zip(gram, weights, strict=True)])
    if scene.steps.idle:
        return scaled
    zero = [torch.zeros_like(p) for p in block.of(scene.parameters)]
    null = -(rows.targets @ next(_steps(scene, block, iter([zero]))))
    return torch.cat([scaled + null, null[None]]) if scene.null else scaled + null


def _steps(scene: Scene, block: Block, gradients: Iterator[list[Tensor]]) -> Iterator[Tensor]:
    """The step on each gradient, flat; each is overwritten by the next."""
    parameters = block.of([p.data for p in scene.parameters])
    # A rule that runs the optimiser itself works on `origin` and needs a copy; the others only read it.
    origin = parameters if scene.steps.elementwise else [p.clone() for p in parameters]
    step = torch.zeros(block.size, dtype=block.dtype, device=block.device)
    out = block.views(step, scene.parameters)
    for gradient in gradients:
        moved = [torch.zeros_like(p) for p in parameters] if _mixed(block, parameters) else out
        step.zero_()
        scene.steps.add(moved, block.pieces, [g.to(p.dtype) for g, p in zip(gradient, parameters, strict=True)], origin)
        if moved is not out:
            torch._foreach_copy_(out, moved)
        yield step


def _mixed(block: Block, parameters: Sequence[Tensor]) -> bool:
    return any(p.dtype != block.dtype for p in parameters)


def _block_gradients(scene: Scene, block: Block, rows: _Rows) -> Iterator[list[Tensor]]:
    for row, task in enumerate(scene.sources):
        yield _weighted(block.views(rows.sources[row], scene.parameters), scene.gradients.weight(task))
    if scene.null:
        yield [torch.zeros_like(p) for p in block.of(scene.parameters)]


def _weighted(gradient: list[Tensor], weight: float | Tensor) -> list[Tensor]:
    if isinstance(weight, Tensor) or weight != 1.0:
        return [g * weight for g in gradient]
    return gradient


def _lookahead(scene: Scene, held: Sequence[tuple[Block, _Rows]]) -> Tensor:
    """L_j(θ + Δθ_i): steps the parameters in place, looks, and puts them back from a copy."""
    values = [p.data for p in scene.parameters]
    saved = copies(values)
    pieces = [Piece(i) for i in range(len(values))]
    found = []
    try:
        for row in range(len(scene.sources) + scene.null):
            scene.steps.add(values, pieces, _source_gradient(scene, row, held), saved)
            found.append(scene.look())
            torch._foreach_copy_(values, saved)
    finally:
        torch._foreach_copy_(values, saved)
    return torch.stack(found)


def _source_gradient(scene: Scene, row: int, held: Sequence[tuple[Block, _Rows]]) -> list[Tensor]:
    if row == len(scene.sources):
        return [torch.zeros_like(p) for p in scene.parameters]
    task = scene.sources[row]
    if not held:
        return scene.gradients.of(task, weighted=True)
    gradient: dict[int, Tensor] = {}
    for block, rows in held:
        views = block.views(rows.sources[row], scene.parameters)
        gradient.update({piece.index: view for piece, view in zip(block.pieces, views, strict=True)})
    ordered = [gradient[i].to(p.dtype) for i, p in enumerate(scene.parameters)]
    return _weighted(ordered, scene.gradients.weight(task))
