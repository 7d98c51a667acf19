"""Tries once whether networks can be trained as one stack: with the same results as one by one."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Hashable, Mapping, Sequence
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor, nn

from .fitted_heads import FittedHeads
from .job import Job
from .losses import LabeledRows, Losses
from .network import build_network, evaluation_mode
from .problem import Problem
from .rows import Split
from .stacking import Stack, Tensors

TRIAL_ROWS = 8
# Tolerances relative to the largest value; GPUs may use TF32.
TOLERANCES = {torch.float64: 1e-6, torch.float32: 1e-2, torch.int64: 0.0}
LOW_PRECISION_TOLERANCE, ABSOLUTE_TOLERANCE = 0.1, 1e-12
GRADIENT = "the gradient of "
_answers: WeakKeyDictionary[Problem, dict[Hashable, str | None]] = WeakKeyDictionary()


def why_not_batched(
    problem: Problem, jobs: Sequence[Job] | None = None, *, device: torch.device | str = "cpu"
) -> str | None:
    """Returns why `train_many` cannot train these networks together, or None if it can.

    Args:
        problem: the problem.
        jobs: the networks to train. If None, checks networks with any tasks and the "plain" rule.
        device: the device to train on.
    """
    if not all(isinstance(split, Split) for split in problem.splits.values()):
        return "rows are read from files, batch by batch"
    if isinstance(problem.head, FittedHeads):
        return "their heads are fitted"
    if problem.recipe.schedule == "windows":
        return "schedule='windows' lowers the learning rate of each network at different steps"
    jobs = [Job(problem.names)] if jobs is None else jobs
    rules = sorted({job.rule for job in jobs} - {"plain"})
    if rules:
        return f"rule {', '.join(map(repr, rules))} combines the losses of each network separately"
    if problem.recipe.amp == "fp16":
        return "amp='fp16' scales the losses of each network by a different factor; 'bf16' can be batched"
    for width in sorted({job.width for job in jobs}):
        # If networks of all tasks can be stacked, so can those of some tasks.
        wanted = frozenset(name for job in jobs if job.width == width for name in job.tasks)
        reasons = (_try_once(problem, names, width, str(device)) for names in (frozenset(problem.names), wanted))
        if all(reasons):
            return _try_once(problem, wanted, width, str(device))
    return None


def _try_once(problem: Problem, tasks: frozenset[str], width: float, device: str) -> str | None:
    """Returns why networks cannot be stacked. The answer is remembered, since the trial takes as long as many steps."""
    answers = _answers.setdefault(problem, {})
    key = tasks, width, device
    if key not in answers:
        with torch.random.fork_rng(devices=range(torch.cuda.device_count())), warnings.catch_warnings():
            warnings.simplefilter("error")  # vmap warns if it falls back to a loop
            try:
                answers[key] = _compare(problem, tasks, width, device)
            except Exception as error:  # layers and losses that cannot be stacked may raise anything
                answers[key] = f"vmap: {str(error).splitlines()[0] if str(error) else type(error).__name__}"
    return answers[key]


def _compare(problem: Problem, names: frozenset[str], width: float, device: str) -> str | None:
    """Takes a step with each of two networks, and with a stack of both. They differ in their seeds and weights."""
    networks = [build_network(problem, names, seed, width).to(device).at_step(0) for seed in (0, 1)]
    with torch.no_grad():
        for parameter in networks[1].parameters():
            parameter.mul_(1.1)  # an encoder that is a module starts with the same weights for all seeds
    stack = Stack(networks, [0, 1])
    tasks = [task for task in problem.tasks if task.name in names]
    order = torch.arange(min(TRIAL_ROWS, len(problem.train)))
    rows = Split(*problem.train.only(names).batch(order)).to(device)

    separate = []
    for network in networks:
        losses = Losses(tasks, network, rows)
        tensors = dict(network.named_parameters()), dict(network.named_buffers())
        separate.append(_step(network, network, losses, rows, order.roll(network.seed), *tensors))
    alone = {name: torch.stack([own[name] for own in separate]) for name in separate[0]}

    before = _random_states()
    losses = Losses(tasks, networks[0], rows, np.ones((2, len(tasks)), dtype=bool))
    both = torch.stack([order.roll(network.seed) for network in networks])
    stacked = _step(stack, stack.network, losses, rows, both, stack.parameters, stack.buffers)
    if not all(map(torch.equal, before, _random_states())):
        return "some layers draw random numbers other than dropout masks"

    # Relative to the largest gradient of all, since some gradients consist only of rounding errors.
    gradients = [float(value.abs().max()) for name, value in alone.items() if name.startswith(GRADIENT)]
    different = []
    for name, value in alone.items():
        largest = max(gradients) if name.startswith(GRADIENT) else float(value.double().abs().max())
        allowed = ABSOLUTE_TOLERANCE + TOLERANCES.get(value.dtype, LOW_PRECISION_TOLERANCE) * largest
        if not bool(((stacked[name].double() - value.double()).abs() <= allowed).all()):
            different.append(name)
    return f"in a stack, {', '.join(different)} would differ from separate training" if different else None


def _random_states() -> list[Tensor]:
    on_gpus = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
    return [torch.get_rng_state(), *on_gpus]


def _step(
    compute: Callable[[Tensor], Tensors],
    module: nn.Module,
    losses: Losses,
    rows: Split,
    batch: Tensor,
    parameters: Mapping[str, Tensor],
    buffers: Mapping[str, Tensor],
) -> Tensors:
    """Returns the losses in training mode, with their gradients, those in evaluation mode, and the buffers."""
    labeled_rows = LabeledRows(rows, losses)
    labeled = labeled_rows.batch(batch)
    means, _ = losses.means(losses.join(compute(labeled.inputs)), labeled)
    means.sum().backward()
    with evaluation_mode(module), torch.no_grad():
        labeled = labeled_rows.batch(torch.arange(len(rows)))
        evaluated, _ = losses.means(losses.join(compute(labeled.inputs)), labeled)
    gradients = {f"{GRADIENT}{name}": p.grad for name, p in parameters.items() if p.grad is not None}
    states = {f"the buffer {name}": buffer for name, buffer in buffers.items()}
    return {"the losses": means.detach(), "the losses in evaluation mode": evaluated, **gradients, **states}
