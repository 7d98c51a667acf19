"""A measured step, from the closure's losses to affinities of all pairs, leaving no trace."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from .closure import UNREACHED, Stage, repeat_problems, structure_problems
from .distributed import Found, Replicas, Told, agreed_losses, raise_everywhere, synchronised_norms
from .estimators import Observed, Quantity, cosines
from .gradients import Block, Capture, TaskGradients, fits, gradient_matrices, plan_blocks, reach
from .history import Arriving, Reading
from .isolation import copies
from .losses import graph_problems, name_problems, raise_all, sign_problems
from .setup import Setup
from .steps import Piece, Steps


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
            found = cosines(*parts)
            if self._scene.null:  # keeps the rows of all quantities aligned; estimators of cosines ignore it
                found = torch.cat([found, torch.zeros_like(found[:1])])
            setattr(seen, quantity, found)


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


def any_step(scene: Scene) -> bool:
    """Whether a step on any source is anything but zero."""
    pieces = [Piece(i) for i in range(len(scene.parameters))]
    for task in scene.sources:
        step, origin = ([make(p.data) for p in scene.parameters] for make in (torch.zeros_like, torch.clone))
        scene.steps.add(step, pieces, scene.gradients.of(task, weighted=True), origin)
        if any(bool(s.any()) for s in step):
            return True
    return False


class Measurement:
    """Measures one step; made anew for each.

    Args:
        setup: The meter's settings.
        tasks: All task names.
        main: The user's closure, which has run.
        held_out: The closure whose losses are looked at instead, which has run too.
        choose: Which of the present source tasks to measure.
        replicas: The ranks that measure together.
        call: How often the meter was called before.
        known: Tasks of which it is known what parameters they touch.
        verify: Whether to look for everything that can be wrong with the closures.
        keep_training_gradient: Whether to keep the sum of the task gradients.
        keep_gram: Whether to keep their inner products, where they fit into memory.

    Attributes:
        capture: That sum, after `run`.
        gram: Those inner products, with the tasks they are of.
    """

    def __init__(
        self,
        setup: Setup,
        tasks: Sequence[str],
        main: Stage,
        held_out: Stage | None,
        *,
        choose: Callable[[Sequence[str]], Sequence[str]],
        replicas: Replicas,
        call: int,
        known: Collection[str],
        verify: bool,
        keep_training_gradient: bool,
        keep_gram: bool = False,
    ) -> None:
        self._setup, self._tasks, self._main, self._held_out = setup, tuple(tasks), main, held_out
        self._choose, self._replicas, self._call = choose, replicas, call
        self._known, self._verify = known, verify
        self._parameters = setup.trainable()
        differentiable = held_out is None or setup.target_gradients
        self._keep_gram = keep_gram and replicas.alone and differentiable and self._fit(len(self._tasks))
        self.gram: tuple[Sequence[str], Tensor] | None = None
        self.capture = Capture() if keep_training_gradient and replicas.alone else None

    def run(self) -> Reading | None:
        """The affinities of this step, or None where no loss is there to measure."""
        stages = [self._main] if self._held_out is None else [self._main, self._held_out]
        values = [stage.losses.values(self._tasks) for stage in stages]
        arriving = [Arriving(found) for found in values]
        own = self._launched() if self._may_launch() else None
        found = [Found(s.losses, v, a.numbers().tolist()) for s, v, a in zip(stages, values, arriving, strict=True)]
        problems = [p for stage, here in zip(stages, found, strict=True) for p in self._problems(stage, here.numbers)]
        told = agreed_losses(found, self._tasks, problems, self._call, self._replicas)
        main, looked = told[0], told[-1]
        sources = [t for t, v in zip(self._tasks, main.values, strict=True) if np.isfinite(v)]
        targets = [t for t, v in zip(self._tasks, looked.values, strict=True) if np.isfinite(v)]
        if not sources or not targets or not self._parameters:  # `shared` may be frozen for a while
            self._warn_if_diverged(main)
            return None
        if self._verify:
            raise_everywhere([p for s in stages for p in repeat_problems(s, self._tasks)], self._replicas)
            self._main.to_end()
            self._warn_if_beyond_models()
        scene = self._scene(main, looked, list(self._choose(sources)), targets, own)
        seen = observe(scene, self._setup.needs | {"gram"} if self._keep_gram else self._setup.needs)
        if seen.gram is not None:
            self.gram = scene.sources if scene.held_out else scene.targets, seen.gram
        if self._replicas.alone and not any(scene.gradients.touched.values()):
            raise_all([UNREACHED])
        if seen.slopes is not None and scene.own_targets:
            seen.slopes = self._replicas.sum([seen.slopes])[0]
        if seen.after is not None:
            seen.after = self._replicas.sum([seen.after])[0]
            if self._verify:
                _warn_if_unseen(scene, seen.after)
        return Reading(
            self._tasks,
            self._setup.estimators,
            scene.sources,
            scene.targets,
            Arriving(torch.stack([e(seen).to(scene.before) for e in self._setup.estimators])),
            with_null=scene.null,
            idle=scene.steps.idle,
            lr=scene.steps.lr if self._setup.per_lr and self._setup.of_steps else 1.0,
            own=np.array(main.values),
            before=np.array(looked.values),
            finite=scene.gradients.finite + scene.target_gradients.finite,
            touched=self._touched(scene),
        )

    def _touched(self, scene: Scene) -> dict[str, set[int]]:
        """What each task depends on, by numbers among all shared parameters: the trainable ones may change.

        A rank without a label of a task does not see what it touches, so ranks tell each other, but only when there
        may be something new.
        """
        number = {id(p): k for k, p in enumerate(self._setup.parameters)}
        here = {
            task: {number[id(self._parameters[i])] for i in found} for task, found in scene.gradients.touched.items()
        }
        if self._replicas.alone:
            return here
        if not self._verify and all(task in self._known for task in scene.sources):
            return {}
        everywhere = self._replicas.gathered(here)
        return {task: set().union(*(there.get(task, set()) for there in everywhere)) for task in here}

    def _may_launch(self) -> bool:
        """Whether a first gradient may be on its way while the host waits for the losses, which may be NaN."""
        on_cuda = bool(self._parameters) and self._parameters[0].device.type == "cuda"
        simple = self._replicas.alone and self._setup.scaler is None and not torch.is_anomaly_enabled()
        return on_cuda and simple and not self._verify

    def _fit(self, tasks: int) -> bool:
        rows = tasks * (2 if self._held_out else 1)
        return fits(self._parameters, rows, self._setup.gradient_memory)

    def _launched(self) -> TaskGradients:
        """Gradients of the closure's losses, that of the first source under way."""
        own = self._own_gradients(None)
        given = [t for t in self._tasks if t in self._main.losses.losses]
        streamed = not self._setup.target_gradients and not self._keep_gram
        if given and (streamed or self._fit(len(given))):
            own.launch(self._choose(given)[0], weighted=streamed)
        return own

    def _problems(self, stage: Stage, values: list[float]) -> Iterable[str]:
        read, what, looked_at = stage.losses, stage.what, stage is (self._held_out or self._main)
        yield from read.problems
        yield from name_problems(read, self._tasks, what)
        if stage is self._main or self._setup.target_gradients:
            present = [t for t, v in zip(self._tasks, values, strict=True) if np.isfinite(v)]
            yield from graph_problems(read, present, what)
        if looked_at and self._setup.ratios:
            yield from sign_problems(values, self._tasks, what)
        if self._verify and isinstance(stage.returned, Mapping):
            yield from structure_problems(stage, self._setup, self._tasks)

    def _scene(
        self, main: Told, looked: Told, chosen: list[str], targets: list[str], own: TaskGradients | None
    ) -> Scene:
        steps = self._setup.steps(self._parameters)
        own = own or self._own_gradients(main)
        stage = self._held_out or self._main
        at = [self._tasks.index(t) for t in targets]
        share = looked.share[at]
        incomplete = len(chosen) < len(self._tasks)
        return Scene(
            self._parameters,
            steps,
            chosen,
            targets,
            own,
            own if stage is self._main else self._gradients(stage, looked),
            look=lambda: _own_part(stage.replay().values(targets), share, self._replicas),
            before=looked.mean[at],
            null=incomplete and self._setup.of_steps and not steps.idle,
            gradient_memory=self._setup.gradient_memory,
            own_targets=self._own_targets(),
        )

    def _own_targets(self) -> bool:
        """Whether n² slopes can be summed over ranks in place of n held-out gradients; cosines need their norms."""
        return self._held_out is not None and not self._replicas.alone and self._setup.needs <= {"after", "slopes"}

    def _own_gradients(self, told: Told | None) -> TaskGradients:
        weights = self._setup.task_weights(self._tasks)
        return self._gradients(self._main, told, weights=weights, capture=self.capture)

    def _gradients(self, stage: Stage, told: Told | None, **options: Any) -> TaskGradients:
        return TaskGradients(
            stage.losses.losses if told is None else told.losses.losses,
            self._parameters,
            scale=self._setup.scale(),
            shares=None if told is None or self._replicas.alone else dict(zip(self._tasks, told.share, strict=True)),
            replicas=self._replicas,
            conversing=not self._replicas.alone and synchronised_norms(stage.modules()),
            guard=stage.settled,
            **options,
        )

    def _warn_if_beyond_models(self) -> None:
        """With `model` nothing is watched, so what lies outside of it is not protected."""
        if not self._setup.models:
            return
        known = {id(p) for model in self._setup.models for p in model.parameters()}
        known |= {id(p) for p in self._setup.parameters}
        leaves = reach(self._main.losses.losses.values()).leaves
        if any(isinstance(leaf, nn.Parameter) and key not in known for key, leaf in leaves.items()):
            warnings.warn(
                "the losses depend on parameters outside of `model`; if they belong to modules with buffers or dropout "
                "modes of their own, pass these too: model=[...].",
                stacklevel=5,
            )

    def _warn_if_diverged(self, main: Told) -> None:
        returned = main.losses.losses
        if returned and all(np.isnan(v) for v in main.values) and len(returned) == len(self._tasks):
            warnings.warn(
                "the losses of all tasks are NaN: training has diverged, and there is nothing to measure. Lower the "
                "learning rate or clip gradients; the affinities so far are kept.",
                stacklevel=4,
            )


def _warn_if_unseen(scene: Scene, after: Tensor) -> None:
    if bool((after == scene.before).all()) and any_step(scene):
        warnings.warn(
            "a step on each task changed no loss at all: the closure does not see the shared parameters change (it "
            "reads a cached copy of them?), or the steps are too small for the precision of the losses.",
            stacklevel=5,
        )


def _own_part(values: Tensor, share: Tensor, replicas: Replicas) -> Tensor:
    """This rank's part of the mean over ranks; alone, the losses themselves."""
    return values if replicas.alone else torch.where(share > 0, values.to(share) * share, 0.0)
