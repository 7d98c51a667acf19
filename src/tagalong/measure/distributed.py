"""Measurements on multiple ranks: process groups, agreement between ranks, and parameters in DDP or FSDP2."""

from __future__ import annotations

import gc
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeGuard, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from .closure import ReplayableClosure, raise_closure_problems

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor

T = TypeVar("T")

_ERROR_ON_ANOTHER_RANK = "the closure cannot be measured on another rank; see the error there."


class Replicas:
    """The ranks that train the same parameters on different rows.

    Args:
        group: The process group, or None for a single process.
        device: The device used for communication.

    Attributes:
        alone: Whether there is only one rank.
    """

    def __init__(self, group: dist.ProcessGroup | None, device: torch.device | str = "cpu") -> None:
        self.group, self.device = group, device
        self.size = 1 if group is None else dist.get_world_size(group)
        self.alone = self.size == 1

    def sum(self, tensors: Sequence[Tensor]) -> Sequence[Tensor]:
        # Sums tensors over ranks, sending them as one flat message.
        if self.alone:
            return tensors
        message = torch.cat([t.reshape(-1) for t in tensors])
        dist.all_reduce(message, group=self.group)
        parts = message.split([t.numel() for t in tensors])
        return [part.view_as(t) for part, t in zip(parts, tensors, strict=True)]

    def sum_of_parts(self, value: Tensor) -> Tensor:
        # Sums what each rank has computed from its part of sharded parameters.
        if self.alone:
            return value
        return self.sum([value.to(self.device)])[0].to(value.device)

    def gather(self, item: T) -> list[T]:
        # Gathers a small Python object from every rank, in rank order, which is too slow to do at every step.
        if self.alone:
            return [item]
        items: list[Any] = [None] * self.size
        dist.all_gather_object(items, item, group=self.group)
        return items


def find_wrapper(models: Iterable[nn.Module], parameters: Sequence[Tensor]) -> DistributedDataParallel | None:
    # Returns the DDP wrapper of the shared parameters, or None if there is none or only one rank.
    if not dist.is_available() or not dist.is_initialized() or dist.get_world_size() == 1:
        return None
    shared = {id(p) for p in parameters}
    # PyTorch keeps no list of wrappers, and closures may call the wrapped module directly, as in Lightning.
    living = (o for o in gc.get_objects() if issubclass(type(o), DistributedDataParallel))
    for module in chain(models, living):
        if isinstance(module, DistributedDataParallel) and any(id(p) in shared for p in module.parameters()):
            return module
    return None


@dataclass
class AgreedLosses:
    """The losses of one closure, averaged over ranks.

    Attributes:
        mean: The losses [tasks] averaged over ranks, Σ w_r L_r / Σ w_r; NaN if no rank has the task.
        share: This rank's fraction of the total weight [tasks], w_r / Σ w_r.
        local: The tasks that have a loss on this rank; with multiple ranks, only those with a positive weight.
    """

    mean: Tensor
    share: Tensor
    local: Sequence[str]


def agree_on_tasks(tasks: tuple[str, ...] | None, names: Sequence[str], replicas: Replicas) -> tuple[str, ...]:
    # Returns the names of all tasks: those known so far, or else those that the closure returned on any rank.
    ranks = replicas.gather((tasks, names))
    known = {tasks for tasks, _ in ranks if tasks is not None}
    if len(known) > 1:
        raise_closure_problems([f"`tasks` differs between ranks: {known}; pass the same names in the same order."])
    return known.pop() if known else tuple(dict.fromkeys(name for _, names in ranks for name in names))


def agree_on_losses(
    closures: Sequence[ReplayableClosure], tasks: Sequence[str], problems: Sequence[str], call: int, replicas: Replicas
) -> list[AgreedLosses]:
    """Averages losses over ranks in one collective. Raises an error on every rank if any rank has a problem.

    Args:
        closures: The closures, which have run on this rank.
        tasks: All task names.
        problems: The problems on this rank.
        call: The number of previous calls to the meter.
        replicas: The ranks that must agree.
    """
    values = [closure.losses.stacked(tasks) for closure in closures]
    if replicas.alone:
        raise_closure_problems(problems)
        pairs = zip(closures, values, strict=True)
        return [AgreedLosses(mean, torch.ones_like(mean), [*closure.losses.by_task]) for closure, mean in pairs]

    # One message: weighted losses and weights [closures, tasks], the number of problems, and the number of calls. A NaN
    # loss would make sums NaN even with weight 0.
    own_losses = torch.stack([of_closure.to(replicas.device) for of_closure in values])
    own_weights = [[float(closure.losses.weights.get(task, 0.0)) for task in tasks] for closure in closures]
    weights = torch.where(own_losses.isnan(), 0.0, own_losses.new_tensor(own_weights))
    weighted = torch.where(weights > 0, own_losses, 0.0) * weights
    flags = weights.new_tensor([len(problems), call])
    total_losses, total_weights, flags = replicas.sum([weighted, weights, flags])
    raise_closure_problems(problems)
    problems_everywhere, calls = flags.tolist()
    if problems_everywhere:
        raise_closure_problems([_ERROR_ON_ANOTHER_RANK])
    if calls != replicas.size * call:
        raise RuntimeError(
            "the ranks have called the meter different numbers of times. Give every rank the same number of batches, "
            "e.g. with DistributedSampler(..., drop_last=True), and call the meter for each of them."
        )
    local = [[task for task, weight in zip(tasks, row, strict=True) if weight > 0] for row in weights.tolist()]
    return [*map(AgreedLosses, total_losses / total_weights, weights / total_weights, local)]


def raise_on_all_ranks(problems: Iterable[str], replicas: Replicas) -> None:
    # Raises an error on every rank if any rank has problems.
    local = list(problems)
    elsewhere = sum(replicas.gather(len(local)))
    raise_closure_problems(local)
    if elsewhere:
        raise_closure_problems([_ERROR_ON_ANOTHER_RANK])


def is_sharded(tensor: Tensor) -> TypeGuard[DTensor]:
    # Whether the tensor is divided among ranks, as FSDP2 does. DTensor itself takes a second to import.
    return hasattr(tensor, "device_mesh")


def local_part(tensor: Tensor) -> Tensor:
    # Returns this rank's part of a sharded tensor, or else the tensor.
    return tensor.to_local() if is_sharded(tensor) else tensor


def local_start(tensor: Tensor) -> int:
    # Returns the number of elements of a tensor that come before this rank's part, which is a range of rows.
    if not is_sharded(tensor):
        return 0
    mesh, rows = tensor.device_mesh, tensor.shape[0]
    rows_per_rank = -(-rows // mesh.size())
    return min(rows, mesh.get_local_rank() * rows_per_rank) * math.prod(tensor.shape[1:])


def sharding_ranks(parameters: Sequence[Tensor]) -> Replicas:
    # Returns the ranks among which FSDP divides the parameters, which is a single process without FSDP.
    first = parameters[0]
    if not is_sharded(first):
        return Replicas(None)
    return Replicas(first.device_mesh.get_group(), first.device_mesh.device_type)


def check_sharding(parameters: Sequence[Tensor]) -> None:
    # Checks that the parameters are not sharded, or all of them by rows over the same ranks.
    layouts = {(p.device_mesh, p.placements) if is_sharded(p) else None for p in parameters}
    if len(layouts) > 1:
        raise ValueError("`shared` must be sharded in one way; found parameters that are sharded differently, or not")
    (layout,) = layouts
    if layout is not None and not (len(layout[1]) == 1 and layout[1][0].is_shard(0)):
        raise ValueError(f"`shared` must be sharded by rows, as fully_shard does by default; found {layout[1]}")
