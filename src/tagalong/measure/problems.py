"""What makes a measurement impossible (problems), and what makes it less useful (notes)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from .closure import ReplayableClosure, ReplayableTasks
from .estimators import Observed
from .setup import Setup

NO_SHARED_PARAMETER = (
    "returned no loss that depends on any parameter of `shared`; pass the module that the closure calls (not a copy), "
    "and check for .detach() or torch.no_grad() between it and the losses."
)
NO_TASK_HAS_A_LOSS = (
    "the losses of all tasks are NaN: training has diverged, and there is nothing to measure. Lower the learning rate "
    "or clip gradients; affinities measured so far are kept."
)
ONLY_ONE_TASK = (
    "no pair of tasks has been measured yet, because the closure returned the loss of only one task. If it always "
    "does, let it return the losses of several tasks, each on a batch of its own (see 'One task per step' in the "
    "documentation on measuring), or use estimator='streaming' and call meter.observe(task) after backward()."
)
NO_STEP_CHANGES_A_LOSS = (
    "a step on each task changed no loss at all: the closure does not see changes to the shared parameters (does it "
    "read a cached copy?), gradients are zero (are all units dead?), or steps are smaller than the rounding error of "
    "parameters or losses. Keep the "
    "shared parameters in float32 (with autocast, for example), raise the learning rate, or use estimator='gradient', "
    "which does not subtract losses."
)
CHANGES_ARE_ROUNDING = (
    "a large part of the lookahead affinities is rounding error, because a step changes the losses hardly more than "
    "rounding does. Use estimator='gradient', which does not subtract two nearly equal losses, or compute in float32."
)
ROUNDING_ERRORS = 4  # changes of a loss that are smaller than this many rounding errors are mostly noise


def closure_problems(
    closure: ReplayableClosure, tasks: Sequence[str], setup: Setup, *, is_first: bool, compared: bool
) -> Iterable[str]:
    """Yields what is wrong with a closure that has run.

    Args:
        closure: The closure.
        tasks: All task names.
        setup: The meter's settings.
        is_first: Whether nothing has been measured before. Afterward, unknown tasks and negative losses are skipped.
        compared: Whether the losses before and after a step are compared.
    """
    if isinstance(closure, ReplayableTasks) and not setup.replicas.alone:  # ranks would have to run the same closures
        yield "one closure per task is not supported under data parallelism; return the losses of all tasks from one."
    yield from closure.losses.problems
    who = f"the {closure.what}"
    losses = closure.losses.by_task
    values = dict(zip(tasks, closure.losses.stacked(tasks).tolist(), strict=True))
    unknown = [task for task in losses if task not in tasks]
    if is_first and unknown:
        yield (
            f"{who} returned tasks {unknown} that are not among {list(tasks)}; task names must not change. Pass the "
            "names of all tasks to the meter with `tasks=[...]`; tasks that a batch lacks may be omitted or None."
        )
    detached = [task for task, value in values.items() if math.isfinite(value) and not losses[task].requires_grad]
    if detached and (setup.uses_gradients or not closure.held_out):
        yield (
            f"{who} returned losses for {detached} that have no autograd graph; compute them without .detach() and "
            "outside torch.no_grad(), and return None if the batch has no labels for a task."
        )
    negative = [task for task, value in values.items() if value < 0]
    if is_first and compared and setup.uses_ratios and negative:
        yield (
            f"{who} returned negative losses for {negative}. Affinity is the fraction of a loss that a step removes, "
            "1 − after/before, which is meaningless for a negative loss; add a constant that keeps the loss positive, "
            "or use estimator='cosine', which does not divide by the loss."
        )
    if closure.changed:
        yield (
            f"{who} changes {', '.join(closure.changed)}, which cannot be undone when it is replayed; do this outside "
            "the closure, with what the meter returns (a closure may return `(losses, anything)`). Fetch batches "
            "outside the closure, modify parameters after the optimizer step, freeze copies of a network "
            "(requires_grad_(False)), and use torch.autograd.grad inside the closure instead of .backward()."
        )
    if closure.verify:
        for predicate in _graph_problems(closure, tasks, setup):
            yield f"{who} {predicate}"


def _graph_problems(closure: ReplayableClosure, tasks: Sequence[str], setup: Setup) -> Iterable[str]:
    # Yields the problems found in the graph of the losses and in the modules that computed them.
    graphs, modules = closure.graphs.values(), closure.state.modules.values()
    leaves = {key for graph in graphs for key in graph.leaves}
    earlier = {key for graph in graphs for key in graph.earlier}
    operations = " ".join(name for graph in graphs for name in graph.operations)
    shared = {id(p) for p in setup.trainable()}
    if len(tasks) == 1 and not closure.losses.problems:
        yield (
            f"returned only one task, {list(tasks)}, but affinity is defined between tasks; return the loss of each "
            "task by name, not their sum. If a batch has labels for only some tasks, pass all names with "
            "`tasks=[...]`; if every step trains on one task, return the losses of all tasks, each on its own batch, "
            "or use estimator='streaming' and call meter.observe(task) after backward()."
        )
    compiled = [m for m in modules if hasattr(m, "_orig_mod") or getattr(m, "_compiled_call_impl", None) is not None]
    if (compiled or closure.state.compiled or "CompiledFunction" in operations) and not setup.models:
        yield "calls compiled code, whose modules cannot be detected; pass all modules that it calls as `model=`."
    if any(isinstance(module, DistributedDataParallel) and module.static_graph for module in modules):
        yield "calls DistributedDataParallel with static_graph=True, which a replay would disturb; leave it out."
    recurrent = [module for module in modules if isinstance(module, nn.RNNBase) and module.training]
    if "CudnnRnn" in operations and any(module.dropout > 0 and module.num_layers > 1 for module in recurrent):
        yield (
            "uses dropout inside a cuDNN recurrent network, whose random state cannot be restored; use single layers "
            "with nn.Dropout between them, or torch.backends.cudnn.flags(enabled=False)."
        )
    # DataParallel's threads number their nodes independently.
    is_parallel = any(isinstance(module, nn.DataParallel) for module in modules)
    if "CheckpointFunctionBackward" in operations:
        yield (
            "uses reentrant checkpointing, which hides the shared parameters from task gradients; call "
            "torch.utils.checkpoint.checkpoint(..., use_reentrant=False)."
        )
    elif shared & earlier and not is_parallel:
        yield (
            "uses results that were computed from the shared parameters before it ran, and a replay does not recompute "
            "them; put the whole forward pass of the shared layers inside the closure."
        )
    elif leaves and not closure.held_out and not shared & leaves:
        yield NO_SHARED_PARAMETER


def repeat_problems(closure: ReplayableClosure, tasks: Sequence[str]) -> Iterable[str]:
    # Yields a problem if replaying the closure does not return the same losses.
    first, second = closure.losses.stacked(tasks), closure.replay().stacked(tasks)
    tolerance = min(256 * loss_precision(closure), 1e-3)  # nondeterministic kernels round differently
    equal = torch.isclose(first, second.to(first), rtol=tolerance, atol=0.0, equal_nan=True)
    different = [task for task, is_equal in zip(tasks, equal.tolist(), strict=True) if not is_equal]
    if different:
        yield (
            f"the {closure.what} is not repeatable: run again with the same weights, buffers and random state, it "
            f"returned different losses for {different}. It must use the same batch each time (fetch it outside the "
            "closure), and must not depend on a private random generator, counter or cache that the first run changed."
        )


def step_notes(observed: Observed, closure: ReplayableClosure, *, moves: bool) -> Iterable[str]:
    # Yields a note if the steps, which have a learning rate if `moves`, change losses no more than rounding does.
    change = observed.slopes
    if observed.after is not None:
        change = (observed.after - observed.before) / observed.before
    if change is None:
        return
    if not change.any():
        if moves:
            yield NO_STEP_CHANGES_A_LOSS
    elif observed.after is not None:
        size = change[change.isfinite()].square().mean().sqrt()
        if size < ROUNDING_ERRORS * loss_precision(closure):
            yield CHANGES_ARE_ROUNDING


def loss_precision(closure: ReplayableClosure) -> float:
    # Returns the relative rounding error of the least precise loss, parameter or autocast region.
    losses = [*closure.losses.by_task.values()]
    parameters = [p for module in closure.state.modules.values() for p in module.parameters()]
    dtypes = {tensor.dtype for tensor in (*losses, *parameters) if tensor.is_floating_point()}
    device = losses[0].device.type if losses else "cpu"
    if torch.is_autocast_enabled(device):
        dtypes.add(torch.get_autocast_dtype(device))
    return max((torch.finfo(dtype).eps for dtype in dtypes), default=0.0) / 4
