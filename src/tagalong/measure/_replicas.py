"""Losses and gradients averaged over the ranks of a process group; one process is the simplest case."""

from collections.abc import Iterable, Mapping, Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel


class Replicas:
    """Ranks that hold the same parameters and different rows.

    L = Σ w_r L_r / Σ w_r over ranks, so a rank's share of task j is w_r / Σ w_r; gradients are weighted alike.

    Attributes:
        group: The process group, or None for a single process.
    """

    def __init__(self, group: dist.ProcessGroup | None) -> None:
        self.group = group
        self.alone = group is None or dist.get_world_size(group) == 1

    def agree(
        self, values: Tensor, weights: Mapping[str, float | Tensor], tasks: Sequence[str], problems: int
    ) -> tuple[Tensor, Tensor, int]:
        """One collective before any gradient: mean losses, this rank's share of each, problems on all ranks.

        Args:
            values: This rank's losses, NaN where missing.
            weights: What each counts among the ranks, such as its number of labels.
            tasks: The order of `values`.
            problems: How many things are wrong on this rank.
        """
        if self.alone:
            return values, torch.ones_like(values), problems
        present = ~values.isnan()
        weight = torch.stack([torch.as_tensor(weights.get(t, 0.0)).to(values) for t in tasks])
        weight = torch.where(present, weight, 0.0)
        own = torch.where(present, values, 0.0) * weight
        message = torch.cat([own, weight, own.new_tensor([float(problems)])])
        dist.all_reduce(message, group=self.group)
        total, all_weights = message[: len(tasks)], message[len(tasks) : -1]
        return total / all_weights, weight / all_weights, int(message[-1].item())

    def sum(self, tensors: Sequence[Tensor]) -> Sequence[Tensor]:
        """Sums over ranks, all tensors in one flat message."""
        if self.alone:
            return tensors
        flat = torch.cat([t.reshape(-1) for t in tensors])
        dist.all_reduce(flat, group=self.group)
        parts = flat.split([t.numel() for t in tensors])
        return [part.view_as(t) for part, t in zip(parts, tensors, strict=True)]

    def largest(self, value: float) -> float:
        if self.alone:
            return value
        message = torch.tensor([value], dtype=torch.float64)
        if dist.get_backend(self.group) == "nccl":
            message = message.cuda()
        dist.all_reduce(message, op=dist.ReduceOp.MAX, group=self.group)
        return float(message.item())


def find_group(modules: Iterable[nn.Module], parameters: Sequence[Tensor]) -> dist.ProcessGroup | None:
    """The process group of the DistributedDataParallel module that wraps the shared parameters, if any."""
    wanted = {id(p) for p in parameters}
    for module in modules:
        if isinstance(module, DistributedDataParallel) and wanted & {id(p) for p in module.parameters()}:
            group: dist.ProcessGroup = module.process_group
            return group
    return None
