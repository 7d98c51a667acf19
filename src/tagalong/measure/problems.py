"""What makes a measurement impossible (problems), and what makes it less useful (notes)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn

from .closure import ReplayableClosure, returned_losses
from .distributed import AgreedLosses
from .estimators import Observed
from .observation import SourceSteps
from .setup import Setup

NO_SHARED_PARAMETER = (
    "no loss depends on any parameter of `shared`; pass the module that the closure calls (not a copy), and check for "
    ".detach() or torch.no_grad() between it and the losses."
)
NO_TASK_HAS_A_LOSS = (
    "the losses of all tasks are NaN: training has diverged, and there is nothing to measure. Lower the learning rate "
    "or clip gradients; affinities measured so far are kept."
)
NO_STEP_CHANGES_A_LOSS = (
    "a step on each task changed no loss at all: either the closure does not see changes to the shared parameters "
    "(does it read a cached copy?), or the steps are too small for the precision of the losses; estimator='gradient' "
    "does not subtract losses."
)
STEPS_ARE_ROUNDED_AWAY = (
    "a step on each task changes no shared parameter, because it is smaller than their rounding error, so all "
    "affinities are 0. This optimizer does not train them, either: keep the shared parameters in float32 (with "
    "autocast, for example), or raise the learning rate."
)
NAMES_OF_TOTALS = ("loss", "total", "total_loss")

DOUBLE_PRECISION = 1e-12  # rounding is never a problem for losses with smaller rounding errors
MAX_AMPLIFICATION = 1000  # of rounding errors by a network; larger third differences are due to curvature
SMALL_CHANGE = 0.02  # larger relative changes of a loss are not rounding errors in any precision


def loss_problems(
    closure: ReplayableClosure, tasks: Sequence[str], setup: Setup, *, first: bool, differentiated: bool, compared: bool
) -> Iterable[str]:
    """Yields what is wrong with the losses of a closure that has run.

    Args:
        closure: The closure.
        tasks: All task names.
        setup: The meter's settings.
        first: Whether nothing has been measured before. Afterward, unknown tasks and negative losses are skipped.
        differentiated: Whether the losses are differentiated.
        compared: Whether the losses before and after a step are compared.
    """
    what, losses = closure.what, closure.losses.losses
    yield from closure.losses.problems
    unknown = [task for task in losses if task not in tasks]
    if first and unknown:
        yield (
            f"the {what} returned tasks {unknown} that are not among {list(tasks)}; task names must not change. Pass "
            "the names of all tasks to the meter with `tasks=[...]`; tasks that a batch lacks may be omitted or None."
        )
    values = dict(zip(tasks, closure.losses.values(tasks).tolist(), strict=True))
    detached = [t for t, value in values.items() if math.isfinite(value) and not losses[t].requires_grad]
    if differentiated and detached:
        yield (
            f"the {what}'s losses for {detached} have no autograd graph; compute them without .detach() and outside "
            "torch.no_grad(), and return None if the batch has no labels for a task."
        )
    negative = [f"`{task}` ({value:.4g})" for task, value in values.items() if value < 0]
    if first and compared and setup.uses_ratios and negative:
        yield (
            f"the {what}'s losses for {', '.join(negative)} are negative. Affinity is the fraction of a loss that a "
            "step removes, 1 − after/before, which is meaningless for a negative loss; add a constant that keeps the "
            "loss positive, or use estimator='cosine', which does not divide by the loss."
        )
    if closure.changed:
        yield (
            f"the {what} changes {', '.join(closure.changed)}, which cannot be undone when it is replayed; do this "
            "outside the closure, with what the meter returns (a closure may return `(losses, anything)`). Fetch "
            "batches outside the closure, modify parameters after the optimizer step, and use torch.autograd.grad "
            "inside the closure instead of .backward()."
        )


def graph_problems(closure: ReplayableClosure, tasks: Sequence[str], setup: Setup) -> Iterable[str]:
    """Yields the problems found in the graph of the losses and in the modules that computed them."""
    if returned_losses(closure.returned) is None:
        return
    what, graph, modules = closure.what, closure.loss_graph(), closure.modules()
    shared = {id(p) for p in setup.trainable()}
    if len(tasks) < 2 and not closure.losses.problems:
        yield (
            f"there is only one task, {list(tasks)}, but affinity is defined between tasks; return the loss of each "
            "task by name, not their sum. If a batch has labels for only some tasks, pass all names with "
            "`tasks=[...]`; if every step trains on one task, return the losses of all tasks, each on its own batch, "
            "or use estimator='streaming' and call meter.observe(task) after backward()."
        )
    if not setup.models and (graph.has("CompiledFunction") or closure.compiled):
        yield (
            f"the {what} calls compiled code, whose modules cannot be detected; pass all modules that the closure "
            "calls as `model=`."
        )
    recurrent = [module for module in modules if isinstance(module, nn.RNNBase) and module.training]
    if graph.has("CudnnRnn") and any(module.dropout > 0 and module.num_layers > 1 for module in recurrent):
        yield (
            f"the {what} uses dropout inside a cuDNN recurrent network, whose random state cannot be restored; "
            "use single layers with nn.Dropout between them, or torch.backends.cudnn.flags(enabled=False)."
        )
    # DataParallel's threads number their nodes independently.
    is_parallel = any(isinstance(module, nn.DataParallel) for module in modules)
    if graph.has("CheckpointFunctionBackward"):
        yield (
            f"the {what} uses reentrant checkpointing, which hides the shared parameters from task gradients; "
            "call torch.utils.checkpoint.checkpoint(..., use_reentrant=False)."
        )
    elif shared & graph.earlier.keys() and not is_parallel:
        yield (
            f"the {what} uses results that were computed from the shared parameters before it ran, and a replay does "
            "not recompute them; put the whole forward pass of the shared layers inside the closure."
        )
    elif what == "closure" and graph.leaves and not shared & graph.leaves.keys():
        yield NO_SHARED_PARAMETER


def repeat_problems(closure: ReplayableClosure, tasks: Sequence[str]) -> Iterable[str]:
    """Yields a problem if replaying the closure does not return the same losses."""
    first, second = closure.losses.values(tasks), closure.replay().values(tasks)
    precision = max((torch.finfo(loss.dtype).eps for loss in closure.losses.losses.values()), default=0.0)
    tolerance = min(64 * precision, 1e-3)  # nondeterministic kernels round differently
    equal = torch.isclose(first, second.to(first), rtol=tolerance, atol=0.0, equal_nan=True)
    if not equal.all():
        different = [task for task, is_equal in zip(tasks, equal.tolist(), strict=True) if not is_equal]
        yield (
            f"the {closure.what} is not repeatable: run again with the same weights, buffers and random state, it "
            f"returned different losses for {different}. It must use the same batch each time (fetch it outside the "
            "closure), and must not depend on a private random generator, counter or cache that the first run changed."
        )


def closure_notes(closure: ReplayableClosure, tasks: Sequence[str], setup: Setup) -> Iterable[str]:
    """Yields notes about modules that are not protected, and about a total among the losses."""
    protected = {id(p) for model in setup.models for p in model.parameters()} | {id(p) for p in setup.parameters}
    leaves = closure.loss_graph().leaves if setup.models else {}
    if any(isinstance(leaf, nn.Parameter) and key not in protected for key, leaf in leaves.items()):
        yield (
            "the losses depend on parameters outside `model`; if these belong to modules that have buffers or use "
            "dropout, pass those modules too: model=[...]."
        )
    totals = [task for task in tasks if task.lower() in NAMES_OF_TOTALS]
    if totals and len(tasks) > len(totals) + 1:
        yield (
            f"the closure returns `{totals[0]}` along with the other tasks, so it is measured as a task of its own; if "
            "it is their total, leave it out of the dict, e.g. return (losses, total)."
        )


def skipped_loss_notes(tasks: Sequence[str], target_losses: AgreedLosses, setup: Setup) -> Iterable[str]:
    """Yields a note for each target whose loss is zero or negative, so that no fraction of it can be removed."""
    for task, value in zip(tasks, target_losses.values, strict=True):
        if setup.uses_ratios and value <= 0:
            yield (
                f"`{task}` has a zero or negative loss, so affinities onto it are skipped (and counted in "
                f"`Affinity.skipped`); the loss is {value:.4g}."
            )


def step_notes(moves: SourceSteps, observed: Observed) -> Iterable[str]:
    """Yields a note if no step changes any loss."""
    after, slopes = observed.after, observed.slopes
    same_losses = after is not None and bool((after == observed.before).all())
    if not same_losses and (slopes is None or slopes.any()):
        return
    indices = range(len(moves.parameters))
    gradients = [moves.gradients.gradient(task, weighted=True) for task in moves.sources]
    is_low_precision = any(p.dtype not in (torch.float32, torch.float64) for p in moves.parameters)
    if any(bool(part.any()) for gradient in gradients for part in moves.step(gradient, indices)):
        if same_losses:
            yield NO_STEP_CHANGES_A_LOSS
    elif moves.rule.moves and is_low_precision and any(g is not None and g.any() for gs in gradients for g in gs):
        yield STEPS_ARE_ROUNDED_AWAY


def loss_precision(closure: ReplayableClosure) -> float:
    """Returns the relative rounding error of the least precise loss, parameter or autocast region."""
    losses = [*closure.losses.losses.values()]
    parameters = [p for module in closure.modules() for p in module.parameters() if p.is_floating_point()]
    dtypes = {tensor.dtype for tensor in (*losses, *parameters)}
    device = losses[0].device.type if losses else "cpu"
    if torch.is_autocast_enabled(device):
        dtypes.add(torch.get_autocast_dtype(device))
    return max((torch.finfo(dtype).eps for dtype in dtypes), default=0.0) / 4


def rounding_notes(before: Tensor, after: Tensor, probed: Tensor, precision: float) -> Iterable[str]:
    """Yields a note if rounding errors make up a large part of the changes that steps cause.

    Along a small step, a smooth loss is almost a quadratic function, whose third differences are zero. The third
    differences of rounding errors with variance σ² have variance 20σ², and a change (the difference of two losses) has
    variance 2σ².

    Args:
        before: The target losses before the step [targets].
        after: The target losses after each step [sources, targets].
        probed: Those after the opposite step and after twice the step on the first few sources [2, sources, targets].
        precision: The relative rounding error of the losses.
    """
    opposite, twice = probed
    after = after[: len(opposite)]
    change = (after - before) / before
    third = (twice - 3 * after + 3 * before - opposite) / before
    usable = torch.isfinite(change) & torch.isfinite(third)
    if not usable.any():
        return
    size, rough = (float(x[usable].square().mean().sqrt()) for x in (change, third))
    noise = min(max(rough / math.sqrt(10), precision), MAX_AMPLIFICATION * precision)
    if 0.0 < size < SMALL_CHANGE and noise > size / 2:
        yield (
            f"a large part of the lookahead affinities is rounding error: a step changes the losses by {size:.1g} of "
            f"their value, and rounding changes them by about {noise:.1g}. Use estimator='gradient', which does not "
            "subtract two nearly equal losses, or compute in float32."
        )
