"""Estimates how many networks fit into memory at once."""

from __future__ import annotations

import torch
from torch import Tensor

from tagalong.free_memory import free_memory

from .network import Network
from .problem import Problem
from .scoring import mean_loss

OPTIMIZER_MOMENTS = {"sgd": 1, "adam": 2, "adamw": 2}
CPU_BYTES_LIMIT = 128 * 2**20  # bytes beyond which the time per network no longer decreases, see benchmarks/README.md
GPU_FRACTION, CPU_FRACTION = 0.6, 0.25  # fraction of the free memory


def networks_at_once(problem: Problem, network: Network, device: torch.device, memory: int | None) -> int:
    """Returns how many networks to train together, at least one.

    Args:
        problem: the problem.
        network: a network with the tasks of all networks to train.
        device: the device to train on.
        memory: the number of bytes that may be used. If None, a fraction of the free memory is used.
    """
    available = usable_bytes(device) if memory is None else memory
    return max(1, available // bytes_per_network(problem, network, device))


def bytes_per_network(problem: Problem, network: Network, device: torch.device) -> int:
    """Estimates the bytes that one network needs for its weights, optimizer state, activations and outputs.

    Activations are counted twice, since their gradients need the same amount of memory.
    """
    weights = sum(p.numel() * p.element_size() for p in network.parameters())
    # Weights and moments, which exist twice while stopped networks are dropped, and the gradient and best weights.
    copies = 2 * (1 + OPTIMIZER_MOMENTS[problem.recipe.optimizer]) + 2
    kept, outputs = _activation_bytes(problem, network, device)
    rows = max(len(problem.val), len(problem.test))
    return int(copies * weights + 2 * kept + 2 * rows * outputs)


def _activation_bytes(problem: Problem, network: Network, device: torch.device) -> tuple[int, float]:
    """Returns how many bytes a training step keeps for its backward pass, and how many a row's outputs take."""
    rows = torch.arange(min(problem.recipe.batch_size, len(problem.train)))
    inputs, targets = problem.train.only(network.tasks).to(device).batch(rows)
    own = {tensor.untyped_storage().data_ptr() for tensor in (inputs, *network.parameters(), *network.buffers())}
    kept: dict[int, int] = {}

    def record_saved(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    before = {name: buffer.clone() for name, buffer in network.named_buffers()}
    devices = range(torch.cuda.device_count())
    with (
        torch.random.fork_rng(devices=devices),
        torch.autograd.graph.saved_tensors_hooks(record_saved, lambda tensor: tensor),
    ):
        outputs = network(inputs)
        losses = [mean_loss(problem.task(name), out, targets[name]) for name, out in outputs.items()]
        total = torch.stack(losses).sum()
    del total  # needed until here: it keeps storages alive, whose addresses could otherwise be reused
    with torch.no_grad():
        for name, buffer in network.named_buffers():
            buffer.copy_(before[name])
    return sum(kept.values()), sum(out.nbytes for out in outputs.values()) / len(inputs)


def usable_bytes(device: torch.device) -> int:
    """Returns a fraction of the free memory. On a CPU, it is capped where more memory no longer speeds up training."""
    if device.type == "cuda":
        return int(GPU_FRACTION * torch.cuda.mem_get_info(device)[0])
    return min(CPU_BYTES_LIMIT, int(CPU_FRACTION * free_memory()))
