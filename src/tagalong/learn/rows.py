"""The rows of a problem: kept in memory, or streamed from files slightly ahead of training."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import ClassVar, Protocol, TypeAlias

import numpy as np
import torch
from torch import Tensor

from tagalong.errors import InvalidInput

from .randomness import derive_seed

THREADS = min(16, os.cpu_count() or 1)  # that read rows from files
PREFETCHED_BATCHES = 2  # number of batches to read ahead of training
MAX_CHUNK_ROWS = 4096
MAX_CHUNK_VALUES = 2**22  # limits inputs per batch, so that validating on images takes no more memory than training
Batch = tuple[Tensor, dict[str, Tensor]]
Draw = tuple[int, int]


@dataclass(frozen=True, eq=False)
class Split:
    """Rows in memory: the inputs, and the targets of each task, with NaN for missing labels.

    Attributes:
        inputs: [rows, …].
        targets: the floating-point targets [rows] or [rows, …] of each task.
        groups: the group number of each row, used for error bars, or None if all rows are independent.
        weights: the weight of each row in losses and scores, or None if all rows count the same. A row of weight 0
            counts as if its labels were missing.
    """

    inputs: Tensor
    targets: Mapping[str, Tensor]
    groups: Tensor | None = None
    weights: Tensor | None = None

    def __len__(self) -> int:
        return len(self.inputs)

    @property
    def tasks(self) -> tuple[str, ...]:
        """The tasks that have targets."""
        return tuple(self.targets)

    def to(self, device: torch.device | str) -> Split:
        """Returns the same rows on a device."""
        targets = {task: target.to(device) for task, target in self.targets.items()}
        weights = None if self.weights is None else self.weights.to(device)
        return replace(self, inputs=self.inputs.to(device), targets=targets, weights=weights)

    def only(self, tasks: Iterable[str]) -> Split:
        """Returns the same rows with only the targets of these tasks."""
        return replace(self, targets={task: self.targets[task] for task in tasks})

    def batch(self, rows: Tensor) -> Batch:
        """Returns the inputs and targets of these rows, in this order."""
        rows = rows.to(self.inputs.device)
        return select_rows(self.inputs, rows), {task: target[rows] for task, target in self.targets.items()}

    def chunks(self) -> Iterator[Batch]:
        """Yields all rows in order, in chunks."""
        at_once = rows_at_once(self.inputs)
        for start in range(0, len(self), at_once):
            some = slice(start, start + at_once)
            yield self.inputs[some], {task: target[some] for task, target in self.targets.items()}

    def labelled(self, task: str) -> Tensor:
        """Returns whether each row has a label for this task. For dense targets, one label is enough."""
        return self.targets[task].isfinite().unsqueeze(1).flatten(1).any(1)

    def contents(self) -> Iterator[bytes]:
        """Yields the inputs, the targets sorted by name, and the weights.

        A tensor with an attribute `identity`, a string, is represented by it, e.g. if reading a file would take long.
        """
        weights = [] if self.weights is None else [self.weights]
        for tensor in (self.inputs, *(self.targets[name] for name in sorted(self.targets)), *weights):
            yield f"{tensor.dtype}{tuple(tensor.shape)}".encode()
            if hasattr(tensor, "identity"):
                yield tensor.identity.encode()
            else:
                yield np.ascontiguousarray(tensor.detach().cpu().numpy()).tobytes()


def select_rows(tensor: Tensor, rows: Tensor) -> Tensor:
    """Returns the rows of a tensor with these indices. Faster than `tensor[rows]`, since it copies whole rows."""
    selected = tensor.index_select(0, rows.flatten())
    return selected.view(*rows.shape, *tensor.shape[1:])


def rows_at_once(inputs: Tensor) -> int:
    """Returns the number of rows to evaluate at once.

    Example:
        >>> rows_at_once(torch.zeros(2, 100)), rows_at_once(torch.zeros(2, 3, 64, 64))
        (4096, 341)
    """
    return max(1, min(MAX_CHUNK_ROWS, MAX_CHUNK_VALUES // max(1, inputs[:1].numel())))


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
    """Rows that are read from files on demand, because they do not fit into memory. Otherwise like `Split`.

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
        return next(self.batches([rows], None))

    def chunks(self) -> Iterator[Batch]:
        """Yields all rows in order, without augmentation."""
        return self.batches(torch.arange(len(self)).split(self.at_once), None)

    def labelled(self, task: str) -> Tensor:
        """Returns True for every row, since missing labels are not known until the rows are read."""
        return torch.ones(len(self), dtype=torch.bool)

    def contents(self) -> Iterator[bytes]:
        """Yields the names of the tasks, followed by the contents of the reader."""
        yield repr(sorted(self.tasks)).encode()
        yield from self.reader.contents()

    def batches(self, parts: Sequence[Tensor], draw: Draw | None) -> Iterator[Batch]:
        """Reads rows in a thread pool and yields batches in order. Reading stops when the caller stops iterating.

        Args:
            parts: the row numbers of each batch.
            draw: the seed and the epoch, which together with the row number determine the augmentation of a row. If
                None, rows are not augmented.
        """
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
        if torch.device(self.device).type == "cuda":
            stacked = stacked.pin_memory()
        return stacked.to(self.device, non_blocking=True)


Rows: TypeAlias = Split | StreamedRows


def require_in_memory(rows: Rows, operation: str) -> Split:
    """Returns the rows, or raises an error if they are not in memory.

    Args:
        rows: the rows of a problem.
        operation: the operation that needs the rows in memory, as named in the message.
    """
    if not isinstance(rows, Split):
        raise InvalidInput("", f"{operation} requires rows in memory", "rows that are read from files")
    return rows
