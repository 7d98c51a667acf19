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

from .closure import ReplayableClosure, TaskLosses, raise_closure_problems, returned_losses
from .history import task_names

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
        """Sums tensors over ranks, sending them as one flat message."""
        if self.alone:
            return tensors
        message = torch.cat([t.reshape(-1) for t in tensors])
        dist.all_reduce(message, group=self.group)
        parts = message.split([t.numel() for t in tensors])
        return [part.view_as(t) for part, t in zip(parts, tensors, strict=True)]

    def sum_of_parts(self, value: Tensor) -> Tensor:
        """Sums what each rank has computed from its part of sharded parameters."""
        if self.alone:
            return value
        return self.sum([value.to(self.device)])[0].to(value.device)

    def gather(self, item: T) -> list[T]:
        """Gathers a small Python object from every rank, in rank order, which is too slow to do at every step."""
        if self.alone:
            return [item]
        items: list[Any] = [None] * self.size
        dist.all_gather_object(items, item, group=self.group)
        return items


def find_wrapper(models: Iterable[nn.Module], parameters: Sequence[Tensor]) -> DistributedDataParallel | None:
    """Returns the DDP wrapper of the shared parameters, or None if there is none or only one rank."""
    if not dist.is_available() or not dist.is_initialized() or dist.get_world_size() == 1:
        return None
    shared = {id(p) for p in parameters}
    # PyTorch keeps no list of wrappers, and closures may call the wrapped module directly, as in Lightning.
    living = (o for o in gc.get_objects() if issubclass(type(o), DistributedDataParallel))
    for module in chain(models, living):
        if isinstance(module, DistributedDataParallel) and any(id(p) in shared for p in module.parameters()):
            return module
    return None


def is_learning_static_graph(wrapper: DistributedDataParallel | None) -> bool:
    """Whether the wrapper is still learning its static graph, which a replay would become part of."""
    if wrapper is None or not wrapper.static_graph:
        return False
    return not (wrapper._static_graph_delay_allreduce_enqueued and wrapper._has_rebuilt_buckets)


@dataclass
class AgreedLosses:
    """The losses of one closure, averaged over ranks.

    Attributes:
        local: The losses of this rank; with multiple ranks, only those with a positive weight.
        mean: The losses averaged over ranks, Σ w_r L_r / Σ w_r; NaN if no rank has the task.
        share: This rank's fraction of the total weight, w_r / Σ w_r.
        values: The entries of `mean` as Python numbers.
    """

    local: TaskLosses
    mean: Tensor
    share: Tensor
    values: list[float]


def agree_on_tasks(tasks: tuple[str, ...] | None, main: ReplayableClosure, replicas: Replicas) -> tuple[str, ...]:
    """Returns the names of all tasks: those known so far, or else those that the closure returned on any rank."""
    returned = [name for name in returned_losses(main.returned) or () if isinstance(name, str)]
    if replicas.alone:
        return tasks or tuple(returned)
    everyone = replicas.gather((tasks, returned))
    named = {names for names, _ in everyone if names is not None}
    if len(named) > 1:
        raise_closure_problems([f"`tasks` differs between ranks: {named}; pass the same names in the same order."])
    if named:
        return named.pop()
    names = dict.fromkeys(name for _, names in everyone for name in names)
    return task_names([*names]) if names else ()


def agree_on_losses(
    local_losses: Sequence[TaskLosses], tasks: Sequence[str], problems: Sequence[str], call: int, replicas: Replicas
) -> list[AgreedLosses]:
    """Averages losses over ranks in one collective. Raises an error on every rank if any rank has a problem.

    Args:
        local_losses: The losses of each closure on this rank.
        tasks: All task names.
        problems: The problems on this rank.
        call: The number of previous calls to the meter.
        replicas: The ranks that must agree.
    """
    local_values = [losses.stacked(tasks) for losses in local_losses]
    if replicas.alone:
        raise_closure_problems(problems)
        return [
            AgreedLosses(losses, values, torch.ones_like(values), values.tolist())
            for losses, values in zip(local_losses, local_values, strict=True)
        ]

    # One message: weighted losses and weights [2, closures, tasks], the number of problems, and the number of calls.
    weights, weighted_losses = [], []
    for losses, values in zip(local_losses, local_values, strict=True):
        weight = values.new_tensor([float(losses.weights.get(task, 0.0)) for task in tasks])
        weight = torch.where(values.isnan(), 0.0, weight)
        # On a rank without losses, they are on the CPU.
        weights.append(weight.to(replicas.device))
        weighted_losses.append((torch.where(weight > 0, values, 0.0) * weight).to(replicas.device))
    call %= 1 << 20  # keeps squares exact
    flags = weights[0].new_tensor([len(problems), call, call * call])
    *totals, flags = replicas.sum([torch.stack(weighted_losses), torch.stack(weights), flags])
    problems_everywhere, calls, squares = flags.tolist()
    raise_closure_problems(problems)
    if problems_everywhere:
        raise_closure_problems([_ERROR_ON_ANOTHER_RANK])
    if squares - 2 * call * calls + replicas.size * call * call:  # Σ (a rank's calls − mine)²
        raise RuntimeError(
            "the ranks have called the meter different numbers of times. Give every rank the same number of batches, "
            "e.g. with DistributedSampler(..., drop_last=True), and call the meter for each of them."
        )

    agreed = []
    for losses, weight, total_loss, total_weight in zip(local_losses, weights, *totals, strict=True):
        # A NaN loss would make the sum of gradients NaN even with weight 0.
        weighted = {task for task, value in zip(tasks, weight.tolist(), strict=True) if value > 0}
        counted = {task: loss for task, loss in losses.by_task.items() if task in weighted}
        mean = total_loss / total_weight
        agreed.append(AgreedLosses(TaskLosses(counted, losses.weights), mean, weight / total_weight, mean.tolist()))
    return agreed


def raise_on_all_ranks(problems: Iterable[str], replicas: Replicas) -> None:
    """Raises an error on every rank if any rank has problems."""
    local = list(problems)
    elsewhere = sum(replicas.gather(len(local)))
    raise_closure_problems(local)
    if elsewhere:
        raise_closure_problems([_ERROR_ON_ANOTHER_RANK])


def is_sharded(tensor: Tensor) -> TypeGuard[DTensor]:
    """Whether the tensor is divided among ranks, as FSDP2 does. DTensor itself takes a second to import."""
    return hasattr(tensor, "device_mesh")


def local_part(tensor: Tensor) -> Tensor:
    """Returns this rank's part of a sharded tensor, or else the tensor."""
    return tensor.to_local() if is_sharded(tensor) else tensor


def local_start(tensor: Tensor) -> int:
    """Returns the number of elements of a tensor that come before this rank's part, which is a range of rows."""
    if not is_sharded(tensor):
        return 0
    mesh, rows = tensor.device_mesh, tensor.shape[0]
    rows_per_rank = -(-rows // mesh.size())
    return min(rows, mesh.get_local_rank() * rows_per_rank) * math.prod(tensor.shape[1:])


def sharding_ranks(parameters: Sequence[Tensor]) -> Replicas:
    """Returns the ranks among which FSDP divides the parameters, which is a single process without FSDP."""
    first = parameters[0]
    if not is_sharded(first):
        return Replicas(None)
    return Replicas(first.device_mesh.get_group(), first.device_mesh.device_type)


def check_sharding(parameters: Sequence[Tensor]) -> None:
    """Checks that the parameters are not sharded, or all of them by rows over the same ranks."""
    layouts = {(p.device_mesh, p.placements) if is_sharded(p) else None for p in parameters}
    if len(layouts) > 1:
        raise ValueError("`shared` must be sharded in one way; found parameters that are sharded differently, or not")
    (layout,) = layouts
    if layout is not None and not (len(layout[1]) == 1 and layout[1][0].is_shard(0)):
        raise ValueError(f"`shared` must be sharded by rows, as fully_shard does by default; found {layout[1]}")
