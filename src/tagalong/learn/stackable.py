"""Tries once whether networks can be trained as one stack: with the same results as one by one."""

from __future__ import annotations

import warnings
from collections.abc import Hashable, Sequence
from dataclasses import replace
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor

from .fitted_heads import FittedHeads
from .job import Job
from .module_step import ModuleStep
from .problem import Problem
from .recipe import Recipe
from .rows import Split
from .stack_step import StackStep

TRIAL_RECIPE = Recipe("sgd", lr=1.0, momentum=0.0, weight_decay=0.0, batch_size=8)  # changes weights by the gradient
TOLERANCES = {torch.float64: 1e-6, torch.float32: 1e-2}  # relative to the largest value; GPUs may use TF32
LOW_PRECISION_TOLERANCE, ABSOLUTE_TOLERANCE = 0.1, 1e-12
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
        with torch.random.fork_rng(devices=range(torch.cuda.device_count())), warnings.catch_warnings():
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
