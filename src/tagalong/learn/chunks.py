"""Which networks are trained together: those of the same kind that can be stacked and fit into memory."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from tagalong.free_memory import free_memory

from .job import Job
from .network import Network, build_network
from .own_targets import Targets
from .problem import Problem
from .stackable import why_not_batched

OPTIMIZER_MOMENTS = {"sgd": 1, "adam": 2, "adamw": 2}
CPU_BYTES_LIMIT = 128 * 2**20  # bytes beyond which the time per network no longer decreases, see benchmarks/README.md
CPU_BYTES_LIMIT_OF_SEEDS = 32 * 2**20  # bytes beyond which networks of several seeds are faster seed by seed
MIN_FILLED = 0.5  # seeds are trained together if each has more than this fraction of the networks of the largest
GPU_FRACTION, CPU_FRACTION = 0.6, 0.25  # fraction of the free memory
logger = logging.getLogger(__name__)


def make_chunks(
    problem: Problem, jobs: list[Job], device: torch.device, targets: Mapping[Job, Targets], memory: int | None
) -> Iterator[list[Job]]:
    """Yields chunks of jobs to train together: jobs of the same kind and width that fit into memory."""
    kinds: dict[tuple[str, float, int | None, str | None], list[Job]] = {}
    for job in jobs:
        kinds.setdefault((job.rule, job.width, job.epochs, job.network), []).append(job)
    for (rule, width, _, name), similar in kinds.items():
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
        size, size_of_seeds = (
            max(1, (memory or _usable_bytes(device, several_seeds=several)) // each) for several in (False, True)
        )
        for seeds in _group_seeds(similar, device, size_of_seeds):
            yield from _split_evenly(seeds, size_of_seeds if len(seeds) > 1 else size)


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


def _usable_bytes(device: torch.device, *, several_seeds: bool) -> int:
    if device.type == "cuda":
        return int(GPU_FRACTION * torch.cuda.mem_get_info(device)[0])
    # On a CPU, more memory does not speed up training.
    return min(CPU_BYTES_LIMIT_OF_SEEDS if several_seeds else CPU_BYTES_LIMIT, int(CPU_FRACTION * free_memory()))


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

    with (
        torch.random.fork_rng(devices=range(torch.cuda.device_count())),
        torch.autograd.graph.saved_tensors_hooks(record_saved, lambda tensor: tensor),
    ):
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
