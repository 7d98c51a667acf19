"""How many networks fit into memory at once."""

from __future__ import annotations

import os
from pathlib import Path

import torch
from torch import Tensor

from .network import Network
from .problem import Problem
from .scoring import mean_loss

MOMENTS = {"sgd": 1, "adam": 2, "adamw": 2}
CPU_ROOM = 128 * 2**20  # where time per network no longer falls, see benchmarks/README.md
SHARE_OF_GPU, SHARE_OF_CPU = 0.6, 0.25  # of what is free


def networks_at_once(problem: Problem, network: Network, device: torch.device, memory: int | None) -> int:
    """How many networks like this one, of all tasks that any of them has, are trained together; at least one."""
    room = free_bytes(device) if memory is None else memory
    return max(1, room // bytes_of(problem, network, device))


def bytes_of(problem: Problem, network: Network, device: torch.device) -> int:
    """What one more network takes: weights and their companions, activations of a batch, outputs of a split.

    Activations count twice: beside those kept for the backward pass there are their gradients.
    """
    weights = sum(p.numel() * p.element_size() for p in network.parameters())
    copies = 2 * (1 + MOMENTS[problem.recipe.optimizer]) + 2  # twice while stopped ones are dropped; gradient, best
    kept, outputs = _activations(problem, network, device)
    rows = max(len(problem.val), len(problem.test))
    return int(copies * weights + 2 * kept + 2 * rows * outputs)


def _activations(problem: Problem, network: Network, device: torch.device) -> tuple[int, float]:
    """Bytes that a training step keeps for its backward pass, and bytes of outputs per row."""
    rows = torch.arange(min(problem.recipe.batch_size, len(problem.train)))
    inputs, targets = problem.train.only(network.tasks).to(device).batch(rows)
    own = {tensor.untyped_storage().data_ptr() for tensor in (inputs, *network.parameters(), *network.buffers())}
    kept: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    before = {name: buffer.clone() for name, buffer in network.named_buffers()}
    devices = range(torch.cuda.device_count())
    with torch.random.fork_rng(devices=devices), torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        outputs = network(inputs)
        losses = [mean_loss(problem.task(name), out, targets[name]) for name, out in outputs.items()]
        total = torch.stack(losses).sum()
    del total  # storages must stay alive until here, or their addresses would be given out again
    with torch.no_grad():
        for name, buffer in network.named_buffers():
            buffer.copy_(before[name])
    return sum(kept.values()), sum(out.nbytes for out in outputs.values()) / len(inputs)


def free_bytes(device: torch.device) -> int:
    """What may be used: a share of what is free, on a CPU no more than helps."""
    if device.type == "cuda":
        return int(SHARE_OF_GPU * torch.cuda.mem_get_info(device)[0])
    return min(CPU_ROOM, int(SHARE_OF_CPU * _available()))


def _available() -> int:
    """Bytes that the machine can still give; a cautious guess where it does not say."""
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
        return int(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2)
    except (OSError, ValueError, AttributeError):
        return 4 * CPU_ROOM
