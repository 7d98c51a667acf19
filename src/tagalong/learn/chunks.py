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
        size, size_of_seeds = (
            networks_at_once(own, network, device, memory, several_seeds=several, own_targets=replaced)
            for several in (False, True)
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


def networks_at_once(
    problem: Problem,
    network: Network,
    device: torch.device,
    memory: int | None,
    *,
    several_seeds: bool = False,
    own_targets: int = 0,
) -> int:
    """Returns how many networks to train together, at least one.

    Args:
        problem: the problem.
        network: see `bytes_per_network`.
        device: the device to train on.
        memory: the number of bytes that may be used. If None, a fraction of the free memory is used. On a CPU, it is
            capped where more memory no longer speeds up training.
        several_seeds: see `bytes_per_network`.
        own_targets: see `bytes_per_network`.
    """
    if memory is None and device.type == "cuda":
        memory = int(GPU_FRACTION * torch.cuda.mem_get_info(device)[0])
    elif memory is None:
        limit = CPU_BYTES_LIMIT_OF_SEEDS if several_seeds else CPU_BYTES_LIMIT
        memory = min(limit, int(CPU_FRACTION * free_memory()))
    each = bytes_per_network(problem, network, device, several_seeds=several_seeds, own_targets=own_targets)
    return max(1, memory // each)


def bytes_per_network(
    problem: Problem, network: Network, device: torch.device, *, several_seeds: bool = False, own_targets: int = 0
) -> int:
    """Estimates the bytes that one network needs for its weights, optimizer state, activations, rows and outputs.

    Args:
        problem: the problem.
        network: a network with the tasks of all networks to train, of which only the buffers change.
        device: the device to train on.
        several_seeds: whether the networks have different seeds. In the worst case, each of them has its own seed and
            thus its own rows.
        own_targets: the bytes of the targets that replace the problem's.
    """
    rows = torch.arange(min(problem.recipe.batch_size, len(problem.train)))
    inputs, targets = problem.train.only(network.tasks).to(device).batch(rows)

    # What a training step keeps for its backward pass, by address, besides the network and its inputs
    known = {tensor.untyped_storage().data_ptr() for tensor in (inputs, *network.parameters(), *network.buffers())}
    activations: dict[int, int] = {}

    def record_saved(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in known:
            activations[storage.data_ptr()] = storage.nbytes()
        return tensor

    with (
        torch.random.fork_rng(devices=range(torch.cuda.device_count())),
        torch.autograd.graph.saved_tensors_hooks(record_saved, lambda tensor: tensor),
    ):
        outputs = network(inputs)
        losses = [problem.task(name).row_losses(own, targets[name])[0].mean() for name, own in outputs.items()]
        total = torch.stack(losses).sum()
    del total  # needed until here: it keeps storages alive, whose addresses could otherwise be reused

    weights = sum(parameter.nbytes for parameter in network.parameters())
    # Weights and moments exist twice while stopped networks are dropped. There are also gradients and best weights.
    copies = 2 * (1 + OPTIMIZER_MOMENTS[problem.recipe.optimizer]) + 2
    needed = copies * weights + 2 * sum(activations.values())  # whose gradients need the same amount
    most_rows = max(len(problem.val), len(problem.test))
    needed += 2 * most_rows * sum(own.nbytes for own in outputs.values()) // len(inputs) + 2 * own_targets
    if several_seeds:  # twice, since layers may rearrange their inputs
        needed += 2 * (inputs.nbytes + sum(target.nbytes for target in targets.values()))
    return int(needed)
