"""The DistributedDataParallel module around the shared parameters, and what it asks of a measurement."""

import gc
from collections.abc import Iterable, Sequence

import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

UNEVEN = (
    "the model is inside its `join` context, which lets ranks have unequal numbers of batches; a rank that has run out "
    "cannot take part in a measurement. Give every rank the same number (DistributedSampler(..., drop_last=True), say) "
    "and leave `join` out."
)


class WrapperSearch:
    """Looks for the wrapper of the shared parameters, and remembers it, since looking takes time.

    Attributes:
        found: The wrapper; None where there is none, or only one rank.
    """

    def __init__(self) -> None:
        self.found: DistributedDataParallel | None = None

    def look(self, models: Iterable[nn.Module], parameters: Sequence[Tensor]) -> None:
        several = dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1
        self.found = _find(models, parameters) if several else None

    def __getstate__(self) -> dict[str, None]:
        return {"found": None}  # wherever a copy goes, there is another wrapper


def _find(modules: Iterable[nn.Module], parameters: Sequence[Tensor]) -> DistributedDataParallel | None:
    """The wrapper that trains the shared parameters, if any, whether or not the closure goes through it."""
    wanted = {id(p) for p in parameters}
    for module in modules:
        if isinstance(module, DistributedDataParallel) and _holds(module, wanted):
            return module
    # torch keeps no list of wrappers, and a closure may call what is inside of one (Lightning's modules do).
    living = (o for o in gc.get_objects() if issubclass(type(o), DistributedDataParallel))
    return next((module for module in living if _holds(module, wanted)), None)


def _holds(module: nn.Module, wanted: set[int]) -> bool:
    return any(id(p) in wanted for p in module.parameters())


def uneven(wrapper: DistributedDataParallel | None) -> bool:
    """Whether ranks may run out of batches at different times."""
    return wrapper is not None and bool(wrapper._join_config.enable)


def settling(wrapper: DistributedDataParallel | None) -> bool:
    """Whether a static graph is still being learnt, when a further forward pass would be learnt with it."""
    if wrapper is None or not wrapper.static_graph:
        return False
    return not (wrapper._static_graph_delay_allreduce_enqueued and wrapper._has_rebuilt_buckets)


def counts_unused(wrapper: DistributedDataParallel | None) -> bool:
    """Whether the backward pass to come expects the parameters that the *last* forward pass used."""
    return wrapper is not None and wrapper.find_unused_parameters and not wrapper.static_graph


def synchronised_norms(modules: Iterable[nn.Module]) -> bool:
    """Whether a gradient is a conversation between ranks, in which all must take part."""
    return any(isinstance(module, nn.SyncBatchNorm) for module in modules)
