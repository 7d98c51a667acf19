"""Ranks of a process group that measure together; one process is the simplest case."""

from collections.abc import Callable, Sequence
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

T = TypeVar("T")

_LEFT = (
    "another rank did not take part in a measurement: it ended, or called the meter less often. Give every rank the "
    "same number of batches (DistributedSampler(..., drop_last=True), say) and call the meter for each of them."
)


class Replicas:
    """Ranks that hold the same parameters and different rows.

    Args:
        group: The process group, or None for a single process.
        device: Where messages must lie to be sent.

    Attributes:
        group: The process group, or None for a single process.
        alone: Whether there is only one rank.
    """

    def __init__(self, group: dist.ProcessGroup | None, device: torch.device | str = "cpu") -> None:
        self.group, self._device = group, torch.device(device)
        self.size = 1 if group is None else dist.get_world_size(group)
        self.alone = self.size == 1

    def sum(self, tensors: Sequence[Tensor]) -> Sequence[Tensor]:
        """Sums over ranks, all tensors in one flat message."""
        if self.alone:
            return tensors
        flat = torch.cat([t.reshape(-1) for t in tensors])
        self.add_up(flat)
        parts = flat.split([t.numel() for t in tensors])
        return [part.view_as(t) for part, t in zip(parts, tensors, strict=True)]

    def add_up(self, message: Tensor) -> None:
        """Sums one contiguous tensor over ranks, in place."""
        if not self.alone:
            self._together(lambda: dist.all_reduce(message, group=self.group))

    def gathered(self, item: T) -> list[T]:
        """What every rank has to say, in the order of ranks; any small Python value, so not for every step."""
        if self.alone:
            return [item]
        found: list[T | None] = [None] * self.size
        self._together(lambda: dist.all_gather_object(found, item, group=self.group))
        return found  # type: ignore[return-value]

    def largest(self, value: float) -> float:
        message = torch.tensor([value], dtype=torch.float64, device=self._device)
        if not self.alone:
            self._together(lambda: dist.all_reduce(message, op=dist.ReduceOp.MAX, group=self.group))
        return float(message.item())

    def home(self, values: Tensor) -> Tensor:
        """`values` where they can be sent from: losses of a rank without any lie on the CPU."""
        return values if self.alone else values.to(self._device)

    @staticmethod
    def _together(collective: Callable[[], object]) -> None:
        try:
            collective()
        except RuntimeError as error:
            raise RuntimeError(_LEFT) from error
