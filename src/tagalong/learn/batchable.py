"""Checks whether networks can be trained as one computation, by comparing the results of a trial step."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from .losses import mean_loss
from .network import Network, build_network
from .problem import Problem
from .rows import Split
from .stacking import Stack, Tensors
from .trainer import Job

TRIAL_ROWS = 8
# Tolerances relative to the largest value; GPUs may use TF32.
TOLERANCES = {torch.float64: 1e-6, torch.float32: 1e-2, torch.int64: 0.0}
LOW_PRECISION_TOLERANCE, ABSOLUTE_TOLERANCE = 0.1, 1e-12
GRADIENT_PREFIX = "the gradient of "
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
    if problem.recipe.schedule == "windows":
        return "schedule='windows' lowers the learning rate of each network at different steps"
    jobs = [Job(problem.names)] if jobs is None else jobs
    rules = sorted({job.rule for job in jobs} - {"plain"})
    if rules:
        return f"rule {', '.join(map(repr, rules))} combines the losses of each network separately"
    if problem.recipe.amp == "fp16":
        return "amp='fp16' scales the losses of each network by a different factor; 'bf16' can be batched"
    return _first_reason(problem, jobs, device, (0, 0))


def why_seeds_not_mixed(problem: Problem, jobs: Sequence[Job], *, device: torch.device | str = "cpu") -> str | None:
    """Returns why networks that can be batched need a batch for each seed, or None if they can be batched together.

    Args:
        problem: the problem.
        jobs: the networks to train, for which `why_not_batched` returns None.
        device: the device to train on.
    """
    return _first_reason(problem, jobs, device, (0, 1))


def _first_reason(
    problem: Problem, jobs: Sequence[Job], device: torch.device | str, seeds: tuple[int, int]
) -> str | None:
    for width in sorted({job.width for job in jobs}):
        wanted = frozenset(name for job in jobs if job.width == width for name in job.tasks)
        # if networks of all tasks can be batched, so can those of some tasks
        if _try(problem, frozenset(problem.names), width, str(device), seeds) is None:
            continue
        if (reason := _try(problem, wanted, width, str(device), seeds)) is not None:
            return reason
    return None


def _try(problem: Problem, tasks: frozenset[str], width: float, device: str, seeds: tuple[int, int]) -> str | None:
    """Returns why two networks cannot be batched. The answer is remembered, since the trial takes many steps' time."""
    answers = _answers.setdefault(problem, {})
    key = tasks, width, device, seeds
    if key not in answers:
        if seeds[0] != seeds[1]:  # in full precision, where a difference cannot be mistaken for rounding error
            problem = replace(problem, recipe=replace(problem.recipe, amp=None))
        with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
            networks = [build_network(problem, tasks, seed, width).to(device).at_step(0) for seed in seeds]
            answers[key] = _why_not_together(problem, networks)
    return answers[key]


def _why_not_together(problem: Problem, networks: Sequence[Network]) -> str | None:
    """Performs a step with each of two networks, and with both together."""
    if _shares_weights(networks[0]):
        return "heads share weights with each other or with the encoder"
    if not networks[0].state_dict():
        return "the network has no weights"
    several_seeds = networks[0].seed != networks[1].seed
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # vmap warns if it falls back to a loop
        alone = [_step_alone(problem, network, index) for index, network in enumerate(networks)]
        before = _rng_states()
        try:
            together = _step_together(problem, networks)
        except Exception as error:  # layers and losses that cannot be batched may raise anything
            return f"vmap: {str(error).splitlines()[0] if str(error) else type(error).__name__}"
    if several_seeds and not all(map(torch.equal, before, _rng_states())):
        return "some layers draw random numbers other than dropout masks"
    if any(found.keys() != alone[0].keys() for found in alone):
        return "the layers depend on the seed"
    stacked = {name: torch.stack([found[name] for found in alone]) for name in alone[0]}
    different = _differences(stacked, together, problem.recipe.amp is not None)
    return f"if batched, {', '.join(different)} would differ from separate training" if different else None


def _rng_states() -> list[Tensor]:
    on_gpus = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
    return [torch.get_rng_state(), *on_gpus]


def _shares_weights(network: Network) -> bool:
    owners: dict[int, set[str]] = {}
    for name, parameter in network.named_parameters(remove_duplicate=False):
        part = name.split(".")
        owners.setdefault(id(parameter), set()).add(".".join(part[: 1 if part[0] == "encoder" else 2]))
    return any(len(parts) > 1 for parts in owners.values())


def _step_alone(problem: Problem, network: Network, index: int) -> Tensors:
    """Performs a step with a single network. Returns its losses, gradients and buffers by name."""
    alone = copy.deepcopy(network)
    with torch.no_grad():
        for name, parameter in alone.named_parameters():
            parameter.copy_(_trial_weights(network, index)[name])
    inputs, targets = _trial_batch(problem, network)
    with problem.recipe.precision(inputs.device):
        outputs = alone(inputs)
        losses = {name: mean_loss(problem.task(name), outputs[name], targets[name]) for name in network.tasks}
    torch.stack(list(losses.values())).sum().backward()
    return _name_tensors(losses, dict(alone.named_parameters()), dict(alone.named_buffers()))


def _step_together(problem: Problem, networks: Sequence[Network]) -> Tensors:
    """Performs the same steps with both networks in a stack. The first dimension of each result has size 2."""
    stack = Stack(networks, range(len(networks)))
    shifted = [_trial_weights(network, index) for index, network in enumerate(networks)]
    with torch.no_grad():
        for name, parameter in stack.parameters.items():
            parameter.copy_(torch.stack([own[name] for own in shifted]))
    batches = [_trial_batch(problem, network) for network in networks]
    inputs = batches[0][0]
    with problem.recipe.precision(inputs.device):
        outputs = stack(torch.stack([own for own, _ in batches]) if len(stack.seeds) > 1 else inputs)
        losses = {}
        for name in stack.network.tasks:
            task, pairs = problem.task(name), torch.stack([targets[name] for _, targets in batches])
            losses[name] = torch.vmap(lambda output, own, task=task: mean_loss(task, output, own))(outputs[name], pairs)
    torch.stack(list(losses.values())).sum().backward()
    stack.outputs_on(inputs, TRIAL_ROWS)  # vmap may fail only in evaluation mode
    return _name_tensors(losses, stack.parameters, stack.buffers)


def _trial_weights(network: Network, index: int) -> Tensors:
    """Returns the weights of the first or second trial network. The two networks have different weights."""
    return {name: parameter.detach() * (1 + 0.1 * index) for name, parameter in network.named_parameters()}


def _trial_batch(problem: Problem, network: Network) -> tuple[Tensor, Tensors]:
    """Returns a batch, whose rows are in another order for each seed."""
    device = next(iter(network.state_dict().values())).device
    rows = torch.arange(min(TRIAL_ROWS, len(problem.train))).roll(network.seed)
    inputs, targets = problem.train.only(network.tasks).batch(rows)
    return inputs.to(device), {name: target.to(device) for name, target in targets.items()}


def _name_tensors(losses: Tensors, parameters: Mapping[str, Tensor], buffers: Mapping[str, Tensor]) -> Tensors:
    named = {f"the loss of {name}": loss.detach() for name, loss in losses.items()}
    named |= {f"{GRADIENT_PREFIX}{name}": p.grad for name, p in parameters.items() if p.grad is not None}
    return named | {f"the buffer {name}": buffer for name, buffer in buffers.items()}


def _differences(alone: Tensors, together: Tensors, low_precision: bool) -> list[str]:
    """Returns the names of the tensors that differ by more than rounding error.

    The tolerance is relative to the largest gradient, since some gradients consist only of rounding error.
    """
    gradients = [float(value.abs().max()) for name, value in alone.items() if name.startswith(GRADIENT_PREFIX)]
    different = []
    for name, expected in alone.items():
        found = together.get(name)
        largest = max(gradients) if name.startswith(GRADIENT_PREFIX) else float(expected.abs().max())
        relative = LOW_PRECISION_TOLERANCE
        if not low_precision:
            relative = TOLERANCES.get(expected.dtype, LOW_PRECISION_TOLERANCE)
        allowed = relative * largest + ABSOLUTE_TOLERANCE
        if found is None or found.shape != expected.shape or not bool(((expected - found).abs() <= allowed).all()):
            different.append(name)
    return different
