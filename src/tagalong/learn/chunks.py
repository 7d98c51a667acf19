"""Which networks are trained together: those of the same kind that can be stacked and fit into memory.

Whether they can be stacked is tried once: they must have the same results as separate networks.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import replace
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor

from .fitted_heads import FittedHeads
from .job import Job
from .losses import Targets
from .module_step import ModuleStep
from .network import Network, build_network
from .problem import Problem
from .randomness import borrowed_rng
from .recipe import Recipe
from .rows import Split
from .stack_step import StackStep

OPTIMIZER_MOMENTS = {"sgd": 1, "adam": 2, "adamw": 2}
CPU_BYTES_LIMIT = 128 * 2**20  # bytes beyond which the time per network no longer decreases, see benchmarks/README.md
CPU_BYTES_LIMIT_OF_SEEDS = 32 * 2**20  # bytes beyond which networks of several seeds are faster seed by seed
MIN_FILLED = 0.5  # seeds are trained together if each has more than this fraction of the networks of the largest
GPU_FRACTION = 0.6  # of the free memory
TRIAL_RECIPE = Recipe("sgd", lr=1.0, momentum=0.0, weight_decay=0.0, batch_size=8)  # changes weights by the gradient
TOLERANCES = {torch.float64: 1e-6, torch.float32: 1e-2}  # relative to the largest value; GPUs may use TF32
LOW_PRECISION_TOLERANCE, ABSOLUTE_TOLERANCE = 0.1, 1e-12
_answers: WeakKeyDictionary[Problem, dict[Hashable, str | None]] = WeakKeyDictionary()
logger = logging.getLogger(__name__)


def make_chunks(
    problem: Problem, jobs: Sequence[Job], device: torch.device, targets: Mapping[Job, Targets]
) -> Iterator[list[Job]]:
    """Yields chunks of jobs to train together: jobs of the same kind and width that fit into memory."""
    kinds: dict[tuple[str, float, str | None], list[Job]] = {}
    for job in jobs:
        kinds.setdefault((job.rule, job.width, job.network), []).append(job)
    for (rule, width, name), similar in kinds.items():
        own = problem.with_network(name)
        reason = why_not_batched(own, similar, device=device) if len(similar) > 1 else None
        if reason is not None:
            level = logging.INFO if rule != "plain" else logging.WARNING
            logger.log(level, "training %d networks of %s one at a time: %s", len(similar), own.name, reason)
        if reason is not None or len(similar) == 1:
            yield from ([job] for job in similar)
            continue
        network = build_network(own, {name for job in similar for name in job.tasks}, similar[0].seed, width).to(device)
        replaced = max(sum(target.nbytes for target in targets.get(job, {}).values()) for job in similar)
        each = bytes_per_network(own, network, device, replaced)
        size, size_of_seeds = (max(1, usable_bytes(device, several_seeds=seeds) // each) for seeds in (False, True))
        for seeds in _group_seeds(similar, device, size_of_seeds):
            yield from _split_evenly(seeds, size_of_seeds if len(seeds) > 1 else size)


def why_not_batched(
    problem: Problem, jobs: Sequence[Job] | None = None, *, device: torch.device | str = "cpu"
) -> str | None:
    """Returns why `train_many` cannot train these networks together, or None if it can.

    Args:
        problem: the problem.
        jobs: the networks to train. If None, checks networks with any tasks and the "plain" rule.
        device: the device to train on.
    """
    jobs = [Job(problem.names)] if jobs is None else jobs
    rules = sorted({job.rule for job in jobs} - {"plain"})
    reasons = {
        "rows are read from files, batch by batch": not all(
            isinstance(split, Split) for split in problem.splits.values()
        ),
        "their heads are fitted": isinstance(problem.head, FittedHeads),
        "schedule='windows' lowers the rate of each network at different steps": problem.recipe.schedule == "windows",
        f"rule {', '.join(map(repr, rules))} combines the losses of each network separately": bool(rules),
        "amp='fp16' scales the losses of each network differently; 'bf16' can be batched": problem.recipe.amp == "fp16",
    }
    for reason, applies in reasons.items():
        if applies:
            return reason
    for width in sorted({job.width for job in jobs}):
        # If networks of all tasks can be stacked, so can those of some tasks.
        wanted = [name for name in problem.names if any(name in job.tasks for job in jobs if job.width == width)]
        if all(_try_once(problem, names, width, str(device)) for names in (problem.names, tuple(wanted))):
            return _try_once(problem, tuple(wanted), width, str(device))
    return None


def _try_once(problem: Problem, tasks: tuple[str, ...], width: float, device: str) -> str | None:
    """Returns why networks cannot be stacked. The answer is remembered, since the trial takes as long as many steps."""
    answers = _answers.setdefault(problem, {})
    key = tasks, width, device
    if key not in answers:
        with borrowed_rng(), warnings.catch_warnings():
            warnings.simplefilter("error")  # vmap warns if it falls back to a loop
            try:
                answers[key] = _compare(problem, tasks, width, torch.device(device))
            except Exception as error:  # layers and losses that cannot be stacked may raise anything
                answers[key] = f"vmap: {str(error).splitlines()[0] if str(error) else type(error).__name__}"
    return answers[key]


def _compare(problem: Problem, names: tuple[str, ...], width: float, device: torch.device) -> str | None:
    """Takes a step with each of two networks, and with a stack of both. They differ in their seeds and weights."""
    rows = Split(*problem.train.only(names).batch(torch.arange(min(TRIAL_RECIPE.batch_size, len(problem.train)))))
    small = replace(problem.only(names), train=rows, val=rows, test=rows, recipe=TRIAL_RECIPE, weightings={})
    alone = [ModuleStep(small, Job(names, seed, width=width), device) for seed in (0, 1)]
    stack = StackStep(
        small, [step.job for step in alone], small.tasks, np.ones((2, len(names)), dtype=bool), device, {}
    )
    with torch.no_grad():  # an encoder that is a module starts with the same weights for all seeds
        torch._foreach_mul_([parameter for module in alone[1].modules for parameter in module.parameters()], 1.1)
        torch._foreach_mul_([parameter[1] for parameter in stack.stack.parameters.values()], 1.1)
    separate = [_take_step(step, 1) for step in alone]
    draws = [torch.get_rng_state, torch.cuda.get_rng_state][: 2 if device.type == "cuda" else 1]
    before = [state() for state in draws]
    stacked = _take_step(stack, 2)
    if not all(torch.equal(own, state()) for own, state in zip(before, draws, strict=True)):
        return "some layers draw random numbers other than dropout masks"

    # Relative to the largest gradient of all, since some gradients consist only of rounding errors.
    parameters = dict(alone[0].network.named_parameters(remove_duplicate=False))
    largest_gradient = max(float(own[name].abs().max()) for own in separate for name in parameters)
    tolerance = TOLERANCES.get(next(iter(parameters.values())).dtype, LOW_PRECISION_TOLERANCE)
    different = []
    for name, actual in stacked.items():
        expected = torch.cat([own[name] for own in separate])
        largest = largest_gradient if name in parameters else float(expected.abs().max())
        if not torch.allclose(actual, expected, rtol=0, atol=ABSOLUTE_TOLERANCE + tolerance * largest):
            different.append(name)
    return f"in a stack, {', '.join(different)} would differ from separate training" if different else None


def _take_step(step: ModuleStep | StackStep, count: int) -> dict[str, Tensor]:
    """Returns the changes of all parameters and buffers [networks, …] in a step, and the losses in evaluation mode."""
    networks = np.arange(count)
    step.keep(networks)
    before = step.states()
    step.train_epoch(0, networks >= 0)
    losses = step.validate()[:, :, 0]
    step.keep(networks)
    pairs = list(zip(before, step.states(), strict=True))
    changes = {name: torch.stack([new[name].double() - old[name].double() for old, new in pairs]) for name in before[0]}
    return {"the losses in evaluation mode": torch.from_numpy(losses), **changes}


def _group_seeds(jobs: list[Job], device: torch.device, size: int) -> list[list[list[Job]]]:
    """Returns groups of seeds that are trained together, with the jobs of each seed.

    On a CPU, seeds are trained together only if there are at most `size` networks; more are faster seed by seed. Seeds
    with very different numbers of networks are never trained together, since all are filled up to the largest number.
    """
    by_seed: dict[int, list[Job]] = {}
    for job in jobs:
        by_seed.setdefault(job.seed, []).append(job)
    groups: list[list[list[Job]]] = []
    for own in sorted(by_seed.values(), key=len, reverse=True):
        fits = groups and (device.type != "cpu" or sum(map(len, groups[-1])) + len(own) <= size)
        if fits and len(own) > MIN_FILLED * len(groups[-1][0]):
            groups[-1].append(own)
        else:
            groups.append([own])
    return groups


def _split_evenly(seeds: list[list[Job]], size: int) -> Iterator[list[Job]]:
    """Splits the jobs of some seeds into chunks of at most `size`, each with equally many jobs of each seed."""
    if len(seeds) > size:  # not even one job of each seed fits
        seeds = [[job for own in seeds for job in own]]
    parts = -(-max(map(len, seeds)) // (size // len(seeds)))
    for part in range(parts):
        yield [job for own in seeds for job in own[part * len(own) // parts : (part + 1) * len(own) // parts]]


def usable_bytes(device: torch.device, *, several_seeds: bool) -> int:
    """Returns how many bytes networks that are trained together may use."""
    if device.type == "cuda":
        return int(GPU_FRACTION * torch.cuda.mem_get_info(device)[0])
    # On a CPU, more memory does not speed up training.
    return CPU_BYTES_LIMIT_OF_SEEDS if several_seeds else CPU_BYTES_LIMIT


def bytes_per_network(problem: Problem, network: Network, device: torch.device, own_targets: int = 0) -> int:
    """Estimates the bytes that one network needs for its weights, optimizer state, activations and outputs.

    Args:
        problem: the problem.
        network: a network with the tasks of all networks to train, of which only the buffers change.
        device: the device to train on.
        own_targets: the bytes of the targets that replace the problem's.
    """
    rows = torch.arange(min(problem.recipe.batch_size, len(problem.train)))
    inputs, targets = problem.train.only(network.tasks).to(device).batch(rows)
    activations: dict[int, int] = {}  # what a training step keeps for its backward pass, by address

    def record_saved(tensor: Tensor) -> Tensor:
        activations[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with borrowed_rng(), torch.autograd.graph.saved_tensors_hooks(record_saved, lambda tensor: tensor):
        outputs = network(inputs)
        losses = [problem.task(name).row_losses(own, targets[name])[0].mean() for name, own in outputs.items()]
    for tensor in (inputs, *network.parameters(), *network.buffers()):
        activations.pop(tensor.untyped_storage().data_ptr(), None)
    del losses  # needed until here: they keep storages alive, whose addresses could otherwise be reused

    weights = sum(parameter.nbytes for parameter in network.parameters())
    # Weights and moments exist twice while stopped networks are dropped. There are also gradients and best weights.
    copies = 2 * (1 + OPTIMIZER_MOMENTS[problem.recipe.optimizer]) + 2
    most_rows = max(len(problem.val), len(problem.test))
    validation = most_rows * sum(own.nbytes for own in outputs.values()) // len(inputs)
    # Gradients of activations need as much as these. Layers and losses may copy outputs and targets.
    return int(copies * weights + 2 * (sum(activations.values()) + validation + own_targets))
