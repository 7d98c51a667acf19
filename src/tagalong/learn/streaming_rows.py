"""Rows that do not fit into memory and are read from files in batches, slightly ahead of training."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from .randomness import derive_seed
from .rows import Batch, Draw

THREADS = min(16, os.cpu_count() or 1)
PREFETCHED_BATCHES = 2  # number of batches to read ahead of training


class Reader(Protocol):
    """Reads individual rows of a data set. Implementations must be thread-safe and picklable."""

    @property
    def tasks(self) -> tuple[str, ...]:
        """The tasks that have targets."""

    def __len__(self) -> int: ...

    def read(self, row: int, tasks: Sequence[str], draw: int | None) -> Batch:
        """Returns the inputs and targets of one row, without a batch dimension.

        Args:
            row: the number of the row.
            tasks: the tasks whose targets are needed.
            draw: the seed for random augmentation. If None, the row is returned unchanged.
        """

    def contents(self) -> Iterator[bytes]:
        """Yields bytes that identify the data, such as file names and sizes."""


@dataclass(frozen=True, eq=False)
class StreamedRows:
    """Rows that are read from files on demand.

    Attributes:
        reader: the object that reads individual rows.
        tasks: the tasks whose targets are read.
        groups: the group number of each row, or None if all rows are independent.
        at_once: the number of rows to evaluate at once.
        device: the device that batches are moved to.
        threads: the number of reader threads.

    Example:
        >>> class Squares:
        ...     tasks = ("square",)
        ...     def __len__(self): return 5
        ...     def read(self, row, tasks, draw): return torch.tensor([float(row)]), {"square": torch.tensor(row**2.0)}
        ...     def contents(self): yield b"squares"
        >>> inputs, targets = StreamedRows(Squares(), ("square",)).batch(torch.tensor([3, 1]))
        >>> inputs.shape, targets["square"]
        (torch.Size([2, 1]), tensor([9., 1.]))
    """

    reader: Reader
    tasks: tuple[str, ...]
    groups: Tensor | None = None
    at_once: int = 32
    device: torch.device | str = "cpu"
    threads: int = THREADS
    weights: ClassVar[None] = None  # all rows count the same

    def __len__(self) -> int:
        return len(self.reader)

    def only(self, tasks: Iterable[str]) -> StreamedRows:
        """Returns the same rows, without reading the targets of other tasks."""
        return replace(self, tasks=tuple(tasks))

    def to(self, device: torch.device | str) -> StreamedRows:
        """Returns the same rows, with batches on this device."""
        return replace(self, device=device)

    def batch(self, rows: Tensor) -> Batch:
        """Returns the inputs and targets of these rows, without augmentation."""
        return next(self._read_batches([rows], None))

    def batches(self, parts: Sequence[Tensor], draw: Draw) -> Iterator[Batch]:
        """Yields the batches of an epoch. Augmentation depends on the seed, the epoch and the row number."""
        return self._read_batches(parts, draw)

    def chunks(self) -> Iterator[Batch]:
        """Yields all rows in order, without augmentation."""
        return self._read_batches(torch.arange(len(self)).split(self.at_once), None)

    def labelled(self, task: str) -> Tensor:
        """Returns True for every row, since missing labels are not known until the rows are read."""
        return torch.ones(len(self), dtype=torch.bool)

    def contents(self) -> Iterator[bytes]:
        """Yields the names of the tasks, followed by the contents of the reader."""
        yield repr(sorted(self.tasks)).encode()
        yield from self.reader.contents()

    def _read_batches(self, parts: Sequence[Tensor], draw: Draw | None) -> Iterator[Batch]:
        """Reads rows in a thread pool and yields batches in order. Reading stops when the caller stops iterating."""
        pool = ThreadPoolExecutor(self.threads, "tagalong-read")
        waiting: deque[list[Future[Batch]]] = deque()
        try:
            for part in parts:
                waiting.append([pool.submit(self._read_row, row, draw) for row in part.tolist()])
                if len(waiting) > PREFETCHED_BATCHES:
                    yield self._collate(waiting.popleft())
            while waiting:
                yield self._collate(waiting.popleft())
        finally:
            pool.shutdown(wait=True, cancel_futures=True)

    def _read_row(self, row: int, draw: Draw | None) -> Batch:
        seed = None if draw is None else derive_seed(draw[0], "augmentation", draw[1], row)
        return self.reader.read(row, self.tasks, seed)

    def _collate(self, futures: list[Future[Batch]]) -> Batch:
        read = [future.result() for future in futures]
        inputs = self._stack_rows([row for row, _ in read])
        return inputs, {task: self._stack_rows([targets[task] for _, targets in read]) for task in self.tasks}

    def _stack_rows(self, rows: list[Tensor]) -> Tensor:
        stacked = torch.stack(rows)
        if torch.device(self.device).type != "cuda":
            return stacked.to(self.device)
        return stacked.pin_memory().to(self.device, non_blocking=True)
