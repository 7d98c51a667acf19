"""A data loader that measures each batch before a trainer gets it, for training loops that cannot be edited."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

from .meter import AffinityMeter


class MeasuredLoader:
    """Wraps a data loader, and measures each batch just before the training loop receives it.

    Pass it instead of the loader to a ``fit`` method that contains the training loop. At that point, the parameters and
    the optimizer are in the state in which the training step will find them. Training does not change: the batches are
    the same, and everything that a measurement changes is restored.

    Args:
        loader: The data loader, or any iterable of batches.
        meter: The meter. It counts every batch as a call.
        task_losses: A function that takes a batch and returns the losses by task, like a closure of the meter. It must
            not change the batch, and it must move the batch to the device if the training loop does so.

    Example:
        >>> import torch
        >>> encoder, loader = torch.nn.Linear(3, 2), [torch.ones(4, 3), torch.zeros(4, 3)]
        >>> meter = AffinityMeter(encoder, lr=0.1, every=2)
        >>> measured = MeasuredLoader(loader, meter, lambda x: dict(zip("ab", encoder(x).pow(2).mean(0))))
        >>> len(measured), len([batch for batch in measured]), meter.measured
        (2, 2, 1)
    """

    def __init__(self, loader: Iterable[Any], meter: AffinityMeter, task_losses: Callable[[Any], Any]) -> None:
        self.loader, self.meter, self.task_losses = loader, meter, task_losses

    def __iter__(self) -> Iterator[Any]:
        for batch in self.loader:
            self.meter.measure_only(partial(self.task_losses, batch))
            yield batch

    def __len__(self) -> int:
        return len(self.loader)  # type: ignore[arg-type]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "loader":  # not yet set while being unpickled
            raise AttributeError(name)
        return getattr(self.loader, name)
