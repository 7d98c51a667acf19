"""Parameters that FSDP2 (`fully_shard`) divides among ranks, each of which trains on other rows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeGuard

import torch.distributed as dist
from torch import Tensor

from .distributed import Replicas

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor


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
    axis, rows = _shard_axis(tensor), tensor.shape[0]
    rows_per_rank = -(-rows // tensor.device_mesh.size(axis))
    first_row = min(rows, tensor.device_mesh.get_local_rank(axis) * rows_per_rank)
    return first_row * math.prod(tensor.shape[1:])


def sharding_ranks(parameters: Sequence[Tensor], process_group: Any) -> Replicas:
    """Returns the ranks among which FSDP divides the parameters, which is a single process without FSDP."""
    first = parameters[0]
    if not is_sharded(first):
        return Replicas(None)
    mesh = first.device_mesh
    if process_group == "auto":
        process_group = mesh.get_group() if mesh.ndim == 1 else dist.group.WORLD
    return Replicas(process_group, mesh.device_type, copies=mesh.size() // mesh.size(_shard_axis(first)))


def check_sharding(parameters: Sequence[Tensor], process_group: Any) -> None:
    """Checks that the parameters are not sharded, or all of them by rows over the same ranks."""
    sharded = [p for p in parameters if is_sharded(p)]
    if not sharded:
        return
    mesh, placements = sharded[0].device_mesh, sharded[0].placements
    if len(sharded) < len(parameters) or any((p.device_mesh, p.placements) != (mesh, placements) for p in sharded):
        raise ValueError("`shared` must be sharded in one way; found parameters that are sharded differently, or not")
    if any(not placement.is_shard(0) and not placement.is_replicate() for placement in placements):
        raise ValueError(f"`shared` must be sharded by rows, as fully_shard does by default; found {placements}")
    if sharding_ranks(parameters, process_group).size != mesh.size():
        raise ValueError("`process_group` must contain all ranks that hold parts of `shared`; pass their group")


def _shard_axis(tensor: DTensor) -> int:
    return [placement.is_shard() for placement in tensor.placements].index(True)
