"""Rows that are far more than memory holds: read from files batch by batch, a little ahead of the training."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from .randomness import derived
from .rows import Batch, Draw

THREADS = min(16, os.cpu_count() or 1)
AHEAD = 2  # batches that are read while the network trains on another


class Reader(Protocol):
    """Reads single rows of a data set; called from several threads at once, and sent to worker processes."""

    @property
    def tasks(self) -> tuple[str, ...]:
        """The tasks that have targets."""

    def __len__(self) -> int: ...

    def read(self, row: int, tasks: Sequence[str], draw: int | None) -> Batch:
        """Inputs and targets of one row, without a dimension of rows.

        Args:
            row: its number.
            tasks: whose targets are wanted.
            draw: a seed for what is done to the row by chance; None: it comes as it is.
        """

    def contents(self) -> Iterator[bytes]:
        """What the data are, such as names and sizes of files."""


@dataclass(frozen=True, eq=False)
class ReadRows:
    """Rows that a reader reads when they are needed.

    Attributes:
        reader: of single rows.
        tasks: whose targets are read.
        groups: which rows belong together; None if every row stands alone.
        at_once: rows that are scored at once.
        device: where batches come.
        threads: that read.

    Example:
        >>> class Squares:
        ...     tasks = ("square",)
        ...     def __len__(self): return 5
        ...     def read(self, row, tasks, draw): return torch.tensor([float(row)]), {"square": torch.tensor(row**2.0)}
        ...     def contents(self): yield b"squares"
        >>> inputs, targets = ReadRows(Squares(), ("square",)).batch(torch.tensor([3, 1]))
        >>> inputs.shape, targets["square"]
        (torch.Size([2, 1]), tensor([9., 1.]))
    """

    reader: Reader
    tasks: tuple[str, ...]
    groups: Tensor | None = None
    at_once: int = 32
    device: torch.device | str = "cpu"
    threads: int = THREADS

    def __len__(self) -> int:
        return len(self.reader)

    def only(self, tasks: Iterable[str]) -> ReadRows:
        """The same rows; targets of other tasks are not read."""
        return replace(self, tasks=tuple(tasks))

    def to(self, device: torch.device | str) -> ReadRows:
        """The same rows; batches come on this device."""
        return replace(self, device=device)

    def batch(self, rows: Tensor) -> Batch:
        """Inputs and targets of these rows, as they are in the files."""
        return next(self._read([rows], None))

    def batches(self, parts: Sequence[Tensor], draw: Draw) -> Iterator[Batch]:
        """One part after the other, each row as seed, epoch and its number have it by chance."""
        return self._read(parts, draw)

    def chunks(self) -> Iterator[Batch]:
        """All rows in order, as they are in the files."""
        return self._read(torch.arange(len(self)).split(self.at_once), None)

    def labelled(self, task: str) -> Tensor:
        """Every row, since what is missing is only known once it is read."""
        return torch.ones(len(self), dtype=torch.bool)

    def contents(self) -> Iterator[bytes]:
        """What the reader says of its data, and the tasks."""
        yield repr(sorted(self.tasks)).encode()
        yield from self.reader.contents()

    def _read(self, parts: Sequence[Tensor], draw: Draw | None) -> Iterator[Batch]:
        """Row by row in the pool, batch by batch in order; nothing is read after the caller stops asking."""
        pool = ThreadPoolExecutor(self.threads, "tagalong-read")
        waiting: deque[list[Future[Batch]]] = deque()
        try:
            for part in parts:
                waiting.append([pool.submit(self._row, row, draw) for row in part.tolist()])
                if len(waiting) > AHEAD:
                    yield self._together(waiting.popleft())
            while waiting:
                yield self._together(waiting.popleft())
        finally:
            pool.shutdown(wait=True, cancel_futures=True)

    def _row(self, row: int, draw: Draw | None) -> Batch:
        chance = None if draw is None else derived(draw[0], "augmentation", draw[1], row)
        return self.reader.read(row, self.tasks, chance)

    def _together(self, futures: list[Future[Batch]]) -> Batch:
        read = [future.result() for future in futures]
        inputs = self._placed([row for row, _ in read])
        return inputs, {task: self._placed([targets[task] for _, targets in read]) for task in self.tasks}

    def _placed(self, rows: list[Tensor]) -> Tensor:
        stacked = torch.stack(rows)
        if torch.device(self.device).type != "cuda":
            return stacked.to(self.device)
        return stacked.pin_memory().to(self.device, non_blocking=True)
