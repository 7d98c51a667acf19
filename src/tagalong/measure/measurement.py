"""A measured step: ranks agree on the losses, the closures are checked, and the affinity of every pair is computed."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from .closure import (
    NO_SHARED_PARAMETER,
    ReplayableClosure,
    change_problems,
    graph_problems,
    name_problems,
    raise_closure_problems,
    repeat_problems,
    returned_losses,
    sign_problems,
    structure_problems,
)
from .distributed import (
    AgreedLosses,
    Replicas,
    agree_on_losses,
    has_synchronized_norms,
    raise_on_all_ranks,
)
from .estimators import Observed
from .gradients import GradientSum, TaskGradients
from .history import HostCopy, Reading
from .observation import StepContext, observe
from .setup import Setup


class Measurement:
    """Measures a single step.

    Args:
        setup: The meter's settings.
        tasks: All task names.
        main: The user's closure, which has already run.
        held_out: The closure that computes the target losses, if different from `main`; it has already run.
        choose: A function that selects the source tasks to measure from the tasks that are present.
        choose_targets: A function that selects the target tasks from those that are present, given the sources.
        asked: The tasks that were run as sources and as targets, if not all.
        replicas: The ranks that measure together.
        call: The number of previous calls to the meter.
        verify: Whether to run all checks on the closures.
        keep_training_gradient: Whether to keep the sum of the task gradients.

    Attributes:
        capture: The sum of the task gradients, available after `run`.
        notes: Sentences about what makes the measurement less useful, available after `run` if `verify`.
    """

    def __init__(
        self,
        setup: Setup,
        tasks: Sequence[str],
        main: ReplayableClosure,
        held_out: ReplayableClosure | None,
        *,
        choose: Callable[[Sequence[str]], Sequence[str]],
        choose_targets: Callable[[Sequence[str], Sequence[str]], Sequence[str]] = lambda present, _: present,
        asked: tuple[Sequence[str], Sequence[str]] | None = None,
        replicas: Replicas,
        call: int,
        verify: bool,
        keep_training_gradient: bool,
    ) -> None:
        self._setup, self._tasks, self._main, self._held_out = setup, tuple(tasks), main, held_out
        self._choose, self._choose_targets, self._asked = choose, choose_targets, asked
        self._replicas, self._call = replicas, call
        self._verify = verify
        self._parameters = setup.trainable()
        self.notes: list[str] = []
        self.capture = GradientSum() if keep_training_gradient and replicas.alone else None

    def run(self) -> Reading | None:
        """Returns the affinities of this step, or None if there is no loss to measure."""
        replayables = [self._main] if self._held_out is None else [self._main, self._held_out]
        agreed = self._agree_on_losses(replayables)
        main, target_losses = agreed[0], agreed[-1]
        sources = [t for t, v in zip(self._tasks, main.values, strict=True) if np.isfinite(v)]
        targets = [t for t, v in zip(self._tasks, target_losses.values, strict=True) if np.isfinite(v)]
        if not sources or not targets or not self._parameters:  # `shared` may be frozen temporarily
            self._warn_if_diverged(main)
            return None
        if self._verify:
            raise_on_all_ranks([p for s in replayables for p in repeat_problems(s, self._tasks)], self._replicas)
            self._main.restore_end()
            self._warn_about_unprotected_modules()
        context = self._context(main, target_losses, sources, targets)
        if not context.sources or not context.targets:
            return None
        observed = observe(context, self._setup.needs)
        if self._replicas.alone and not any(context.gradients.touched.values()):
            raise_closure_problems([NO_SHARED_PARAMETER])
        if observed.slopes is not None and context.own_targets:
            observed.slopes = self._replicas.sum([observed.slopes])[0]
        if observed.after is not None:
            observed.after = self._replicas.sum([observed.after])[0]
        if self._verify:
            _warn_if_nothing_changed(context, observed)
            self.notes += _total_notes(self._tasks)
        if context.probed is not None and observed.after is not None:
            probed = self._replicas.sum([context.probed])[0]
            self.notes += _rounding_notes(context.before, observed.after, probed, self._loss_precision())
        return self._reading(context, observed, main, target_losses)

    def _agree_on_losses(self, replayables: Sequence[ReplayableClosure]) -> list[AgreedLosses]:
        """Returns the losses averaged over ranks."""
        losses = [replayable.losses for replayable in replayables]
        problems = [
            problem
            for replayable in replayables
            for problem in self._closure_problems(replayable, replayable.losses.values(self._tasks).tolist())
        ]
        return agree_on_losses(losses, self._tasks, problems, self._call, self._replicas)

    def _reading(
        self, context: StepContext, observed: Observed, main: AgreedLosses, target_losses: AgreedLosses
    ) -> Reading:
        own, before = np.array(main.values), np.array(target_losses.values)
        missing = np.logical_or.outer(np.isnan(own), np.isnan(before))
        if self._asked is not None:  # the others were not run, so their labels may well be there
            missing &= np.logical_and.outer(*(np.isin(self._tasks, asked) for asked in self._asked))
        infinite = ~missing & np.logical_or.outer(np.isinf(own), np.isinf(before))
        return Reading(
            context.sources,
            context.targets,
            HostCopy(torch.stack([e(observed).to(context.before) for e in self._setup.estimators])),
            idle=context.steps.idle,
            lr=context.steps.lr if self._setup.per_lr and self._setup.uses_steps else 1.0,
            before=before,
            skipped={"missing": missing, "non-finite loss": infinite},
            finite=context.gradients.finite + context.target_gradients.finite,
            touched=self._touched(context),
        )

    def _touched(self, context: StepContext) -> dict[str, set[int]]:
        """Returns the indices of the shared parameters (trainable or frozen) that each task depends on."""
        number = {id(p): k for k, p in enumerate(self._setup.parameters)}
        touched = context.gradients.touched
        return {task: {number[id(self._parameters[i])] for i in indices} for task, indices in touched.items()}

    def _closure_problems(self, replayable: ReplayableClosure, values: list[float]) -> Iterable[str]:
        read, what, looked_at = replayable.losses, replayable.what, replayable is (self._held_out or self._main)
        yield from read.problems
        yield from name_problems(read, self._tasks, what)
        if replayable is self._main or self._setup.needs_target_gradients:
            present = [t for t, v in zip(self._tasks, values, strict=True) if np.isfinite(v)]
            yield from graph_problems(read, present, what)
        if looked_at and self._setup.uses_ratios:
            yield from sign_problems(values, self._tasks, what)
        yield from change_problems(replayable)
        if self._verify and returned_losses(replayable.returned) is not None:
            yield from structure_problems(replayable, self._setup, self._tasks)

    def _context(
        self,
        main: AgreedLosses,
        target_losses: AgreedLosses,
        present: list[str],
        targets: list[str],
    ) -> StepContext:
        chosen = list(self._choose(present))
        targets = list(self._choose_targets(targets, chosen))
        steps = self._setup.steps(self._parameters)
        weights = self._setup.task_weights(self._tasks)
        own = self._gradients(self._main, main, weights=weights, capture=self.capture)
        replayable = self._held_out or self._main
        at = [self._tasks.index(t) for t in targets]
        share = target_losses.share[at]
        incomplete = len(chosen) < len(self._tasks)
        return StepContext(
            self._parameters,
            steps,
            chosen,
            present,
            targets,
            own,
            own if replayable is self._main else self._gradients(replayable, target_losses),
            replay_targets=lambda: _local_contribution(
                replayable.replay(targets).values(targets), share, self._replicas
            ),
            before=target_losses.mean[at],
            null=incomplete and self._setup.uses_steps and not steps.idle,
            gradient_memory=self._setup.gradient_memory,
            own_targets=self._can_sum_slopes(),
            probe=self._verify and self._loss_precision() > DOUBLE_PRECISION,
        )

    def _loss_precision(self) -> float:
        """Returns the relative rounding error of the least precise loss, parameter or autocast region."""
        closure = self._held_out or self._main
        losses = [*closure.losses.losses.values()]
        parameters = [p for module in closure.modules() for p in module.parameters() if p.is_floating_point()]
        dtypes = {tensor.dtype for tensor in (*losses, *parameters)}
        device = losses[0].device.type if losses else "cpu"
        if torch.is_autocast_enabled(device):
            dtypes.add(torch.get_autocast_dtype(device))
        return max((torch.finfo(dtype).eps for dtype in dtypes), default=0.0) / 4

    def _can_sum_slopes(self) -> bool:
        """Whether to sum n² slopes over ranks instead of n held-out gradients, which only cosines need."""
        return self._held_out is not None and not self._replicas.alone and self._setup.needs <= {"after", "slopes"}

    def _gradients(self, replayable: ReplayableClosure, agreed: AgreedLosses, **options: Any) -> TaskGradients:
        return TaskGradients(
            replayable.differentiable_losses(agreed.losses.losses),
            self._parameters,
            scale=self._setup.scale(),
            shares=None if self._replicas.alone else dict(zip(self._tasks, agreed.share, strict=True)),
            replicas=self._replicas,
            needs_communication=not self._replicas.alone and has_synchronized_norms(replayable.modules()),
            guard=replayable.differentiate_at_end,
            **options,
        )

    def _warn_about_unprotected_modules(self) -> None:
        """Warns if losses depend on modules outside `model`, whose state is not protected."""
        if not self._setup.models:
            return
        known = {id(p) for model in self._setup.models for p in model.parameters()}
        known |= {id(p) for p in self._setup.parameters}
        leaves = self._main.loss_graph().leaves
        if any(isinstance(leaf, nn.Parameter) and key not in known for key, leaf in leaves.items()):
            warnings.warn(
                "the losses depend on parameters outside `model`; if these belong to modules that have buffers or use "
                "dropout, pass those modules too: model=[...].",
                stacklevel=5,
            )

    def _warn_if_diverged(self, main: AgreedLosses) -> None:
        returned = main.losses.losses
        if returned and all(np.isnan(v) for v in main.values) and len(returned) == len(self._tasks):
            warnings.warn(
                "the losses of all tasks are NaN: training has diverged, and there is nothing to measure. Lower the "
                "learning rate or clip gradients; affinities measured so far are kept.",
                stacklevel=4,
            )


def _warn_if_nothing_changed(context: StepContext, observed: Observed) -> None:
    after, slopes = observed.after, observed.slopes
    unchanged = (after is not None and bool((after == context.before).all())) or (
        slopes is not None and not bool(slopes.any())
    )
    if not unchanged:
        return
    if _has_nonzero_step(context):
        if after is not None:
            warnings.warn(
                "a step on each task changed no loss at all: either the closure does not see changes to the shared "
                "parameters (does it read a cached copy?), or the steps are too small for the precision of the losses; "
                "estimator='gradient' does not subtract losses.",
                stacklevel=5,
            )
    elif _is_rounded_away(context):
        warnings.warn(
            "a step on each task changes no shared parameter, because it is smaller than their rounding error, so all "
            "affinities are 0. This optimizer does not train them, either: keep the shared parameters in float32 "
            "(with autocast, for example), or raise the learning rate.",
            stacklevel=5,
        )


def _is_rounded_away(context: StepContext) -> bool:
    """Whether the steps are zero only because of the precision of the parameters."""
    if not context.steps.moves or all(p.dtype in (torch.float32, torch.float64) for p in context.parameters):
        return False
    gradients = (context.gradients.gradient(task, weighted=True) for task in context.sources)
    return any(g is not None and bool(g.any()) for gradient in gradients for g in gradient)


DOUBLE_PRECISION = 1e-12  # rounding is never a problem for losses with smaller rounding errors
MAX_AMPLIFICATION = 1000  # of rounding errors by a network; larger third differences are due to curvature
SMALL_CHANGE = 0.02  # larger relative changes of a loss are not rounding errors in any precision


def _rounding_notes(before: Tensor, after: Tensor, probed: Tensor, precision: float) -> Iterable[str]:
    """Yields a note if rounding errors make up a large part of the changes that steps cause.

    Along a small step, a smooth loss is almost a quadratic function, whose third differences are zero. The third
    differences of rounding errors with variance σ² have variance 20σ², and a change (the difference of two losses) has
    variance 2σ².
    """
    opposite, twice = probed
    after = after[: len(opposite)]
    change = (after - before) / before
    third = (twice - 3 * after + 3 * before - opposite) / before
    usable = torch.isfinite(change) & torch.isfinite(third)
    size, rough = (float(x[usable].square().mean().sqrt()) if usable.any() else 0.0 for x in (change, third))
    noise = min(max(rough / math.sqrt(10), precision), MAX_AMPLIFICATION * precision)
    if 0.0 < size < SMALL_CHANGE and noise > size / 2:
        yield (
            f"a large part of the lookahead affinities is rounding error: a step changes the losses by {size:.1g} of "
            f"their value, and rounding changes them by about {noise:.1g}. Use estimator='gradient', which does not "
            "subtract two nearly equal losses, or compute in float32."
        )


_NAMES_OF_TOTALS = ("loss", "total", "total_loss")


def _total_notes(tasks: Sequence[str]) -> Iterable[str]:
    totals = [task for task in tasks if task.lower() in _NAMES_OF_TOTALS]
    if totals and len(tasks) > len(totals) + 1:
        yield (
            f"the closure returns `{totals[0]}` along with the other tasks, so it is measured as a task of its own; if "
            "it is their total, leave it out of the dict, e.g. return (losses, total)."
        )


def _has_nonzero_step(context: StepContext) -> bool:
    """Whether the step on any source is nonzero."""
    indices = range(len(context.parameters))
    for task in context.sources:
        step = [torch.zeros_like(p) for p in context.parameters]
        origin = [p.data for p in context.parameters]
        context.steps.add(step, indices, context.gradients.gradient(task, weighted=True), origin)
        if any(bool(s.any()) for s in step):
            return True
    return False


def _local_contribution(values: Tensor, share: Tensor, replicas: Replicas) -> Tensor:
    """Returns this rank's contribution to the losses averaged over ranks."""
    return values if replicas.alone else torch.where(share > 0, values.to(share) * share, 0.0)
