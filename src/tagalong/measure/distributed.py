"""Measuring on several ranks: process groups, agreement between ranks, and the DDP wrapper."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from .closure import ReplayableClosure, TaskLosses, raise_all
from .history import task_names

T = TypeVar("T")

_LEFT = (
    "another rank did not take part in a measurement: it ended, or called the meter less often. Give every rank the "
    "same number of batches (DistributedSampler(..., drop_last=True), say) and call the meter for each of them."
)


class Replicas:
    """Ranks that hold the same parameters and different rows.

    Args:
        group: The process group, or None for a single process.
        device: The device of messages.

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

    def gather(self, item: T) -> list[T]:
        """Gathers a small Python object from every rank, in the order of ranks; too slow for every step."""
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
        """Moves `values` to the device of messages; on a rank without losses they are on the CPU."""
        return values if self.alone else values.to(self._device)

    @staticmethod
    def _together(collective: Callable[[], object]) -> None:
        try:
            collective()
        except RuntimeError as error:
            raise RuntimeError(_LEFT) from error


UNEVEN_BATCHES = (
    "the model is inside its `join` context, which lets ranks have unequal numbers of batches; a rank that has run out "
    "cannot take part in a measurement. Give every rank the same number (DistributedSampler(..., drop_last=True), say) "
    "and leave `join` out."
)


class WrapperSearch:
    """Searches for the wrapper of the shared parameters, and caches it, since the search takes time.

    Attributes:
        found: The wrapper; None if there is none, or only one rank.
    """

    def __init__(self) -> None:
        self.found: DistributedDataParallel | None = None

    def look(self, models: Iterable[nn.Module], parameters: Sequence[Tensor]) -> None:
        several = dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1
        self.found = _find(models, parameters) if several else None

    def __getstate__(self) -> dict[str, None]:
        return {"found": None}  # a copy belongs to another wrapper


def _find(modules: Iterable[nn.Module], parameters: Sequence[Tensor]) -> DistributedDataParallel | None:
    """Returns the wrapper that trains the shared parameters, if any, whether or not the closure calls it."""
    wanted = {id(p) for p in parameters}
    for module in modules:
        if isinstance(module, DistributedDataParallel) and _holds(module, wanted):
            return module
    # torch keeps no list of wrappers, and a closure may call the module inside of one (Lightning's modules do).
    living = (o for o in gc.get_objects() if issubclass(type(o), DistributedDataParallel))
    return next((module for module in living if _holds(module, wanted)), None)


def _holds(module: nn.Module, wanted: set[int]) -> bool:
    return any(id(p) in wanted for p in module.parameters())


def has_uneven_batches(wrapper: DistributedDataParallel | None) -> bool:
    """Whether ranks may have different numbers of batches."""
    return wrapper is not None and bool(wrapper._join_config.enable)


def is_learning_static_graph(wrapper: DistributedDataParallel | None) -> bool:
    """Whether the wrapper is still learning its static graph, so that a replay would become part of it."""
    if wrapper is None or not wrapper.static_graph:
        return False
    return not (wrapper._static_graph_delay_allreduce_enqueued and wrapper._has_rebuilt_buckets)


def tracks_unused_parameters(wrapper: DistributedDataParallel | None) -> bool:
    """Whether the next backward pass expects gradients of the parameters that the *last* forward pass used."""
    return wrapper is not None and wrapper.find_unused_parameters and not wrapper.static_graph


def has_synchronized_norms(modules: Iterable[nn.Module]) -> bool:
    """Whether computing a gradient needs communication between ranks, in which all must take part."""
    return any(isinstance(module, nn.SyncBatchNorm) for module in modules)


_ELSEWHERE = "the closure cannot be measured on another rank; see the error there."
_UNEQUAL = (
    "ranks have called the meter different numbers of times. Give every rank the same number of batches "
    "(DistributedSampler(..., drop_last=True), say) and call the meter for each of them."
)


@dataclass
class LocalLosses:
    """The losses of one closure on this rank.

    Attributes:
        losses: The losses that the closure returned.
        values: The losses by task, NaN if missing.
        numbers: The same, on the host.
    """

    losses: TaskLosses
    values: Tensor
    numbers: list[float]


@dataclass
class AgreedLosses:
    """The losses of one closure, averaged over ranks.

    Attributes:
        losses: The losses of this rank; with several ranks, without those of weight 0.
        mean: L = Σ w_r L_r / Σ w_r over ranks, NaN if no rank has the task.
        share: w_r / Σ w_r of this rank.
        values: `mean`, on the host.
    """

    losses: TaskLosses
    mean: Tensor
    share: Tensor
    values: list[float]


def agree_on_tasks(given: tuple[str, ...] | None, main: ReplayableClosure, replicas: Replicas) -> tuple[str, ...]:
    """Returns the names of all tasks: those given, or else those that the closure of any rank returned."""
    here = [name for name in main.returned if isinstance(name, str)] if isinstance(main.returned, Mapping) else []
    if replicas.alone:
        return given or tuple(here)
    everyone = replicas.gather((given, here))
    different = {names for names, _ in everyone if names is not None}
    if len(different) > 1:
        raise_all([f"`tasks` differ between ranks: {sorted(different)}; name the same, in the same order."])
    found = tuple(dict.fromkeys(name for _, names in everyone for name in names))
    return different.pop() if different else task_names(found) if found else ()


def agree_on_losses(
    found: Sequence[LocalLosses], tasks: Sequence[str], problems: Sequence[str], call: int, replicas: Replicas
) -> list[AgreedLosses]:
    """Averages losses over ranks in one collective; raises on every rank if a closure of any rank has a problem.

    Args:
        found: The losses of the closures on this rank.
        tasks: All task names.
        problems: The problems on this rank.
        call: The number of calls of the meter before this one.
        replicas: The ranks to agree with.
    """
    if replicas.alone:
        raise_all(problems)
        return [AgreedLosses(here.losses, here.values, torch.ones_like(here.values), here.numbers) for here in found]
    call %= 1 << 20  # squares stay exact
    weights = [replicas.home(_weights(here, tasks)) for here in found]
    own = [torch.where(w > 0, replicas.home(here.values), 0.0) * w for here, w in zip(found, weights, strict=True)]
    facts = own[0].new_tensor([float(len(problems)), call, call * call])
    message = torch.cat([*own, *weights, facts])
    replicas.add_up(message)
    *sums, elsewhere, calls, squares = message.split([len(tasks)] * (2 * len(found)) + [1, 1, 1])
    raise_all(problems)
    if elsewhere.item():
        raise_all([_ELSEWHERE])
    if squares.item() - 2 * call * calls.item() + replicas.size * call * call:  # Σ (a rank's calls − mine)²
        raise_all([_UNEQUAL])
    return [
        AgreedLosses(
            _losses_that_count(here, w, tasks), total / all_weights, w / all_weights, (total / all_weights).tolist()
        )
        for here, w, total, all_weights in zip(found, weights, sums, sums[len(found) :], strict=False)
    ]


def raise_on_all_ranks(problems: Iterable[str], replicas: Replicas) -> None:
    """Raises an error on every rank if there are problems on any."""
    here = list(problems)
    elsewhere = sum(replicas.gather(len(here)))
    raise_all(here)
    if elsewhere:
        raise_all([_ELSEWHERE])


def _weights(here: LocalLosses, tasks: Sequence[str]) -> Tensor:
    """Returns the weight of each loss among ranks; 0 if it is missing."""
    given = [torch.as_tensor(here.losses.weights.get(task, 0.0)).to(here.values) for task in tasks]
    return torch.where(here.values.isnan(), 0.0, torch.stack(given)) if given else here.values


def _losses_that_count(here: LocalLosses, weights: Tensor, tasks: Sequence[str]) -> TaskLosses:
    """Returns the losses with a weight; a NaN would make the sum of gradients NaN even with a share of 0."""
    counted = {task for task, weight in zip(tasks, weights.tolist(), strict=True) if weight > 0}
    return TaskLosses({t: x for t, x in here.losses.losses.items() if t in counted}, here.losses.weights)
