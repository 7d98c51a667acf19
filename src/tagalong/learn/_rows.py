"""Rows of a problem: held in memory, or read from files while a network trains."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from ._mapped import content

ROWS_AT_ONCE = 4096
NUMBERS_AT_ONCE = 2**22  # of inputs, so that networks on images take no more memory to validate than to train
Batch = tuple[Tensor, dict[str, Tensor]]
Draw = tuple[int, int]


class Rows(Protocol):
    """Some rows, wherever they are: all that a training asks of them."""

    @property
    def tasks(self) -> tuple[str, ...]:
        """The tasks that have targets here."""

    @property
    def groups(self) -> Tensor | None:
        """Which rows belong together; None if every row stands alone."""

    def __len__(self) -> int: ...

    def only(self, tasks: Iterable[str]) -> Rows:
        """The same rows with the targets of these tasks."""

    def to(self, device: torch.device | str) -> Rows:
        """The same rows; batches come on this device."""

    def batch(self, rows: Tensor) -> Batch:
        """Inputs and targets of these rows, in this order, as they are."""

    def batches(self, parts: Sequence[Tensor], draw: Draw) -> Iterator[Batch]:
        """Inputs and targets of one part after the other, to train on.

        Args:
            parts: row numbers.
            draw: seed and epoch; what is done to a row by chance follows from them and the row alone.
        """

    def chunks(self) -> Iterator[Batch]:
        """All rows in order, as many at once as are worth it."""

    def labelled(self, task: str) -> Tensor:
        """Whether each row has a label of this task, in a dense target any."""

    def contents(self) -> Iterator[bytes]:
        """What the data are: the same bytes for the same data."""


@dataclass(frozen=True, eq=False)
class Split:
    """Some rows in memory: inputs, and targets of each task with NaN where a label is missing.

    Attributes:
        inputs: [rows, …].
        targets: for each task [rows] or [rows, …], floating point.
        groups: which rows belong together (one number per row), for honest error bars; None if every row stands alone.
    """

    inputs: Tensor
    targets: Mapping[str, Tensor]
    groups: Tensor | None = None

    def __len__(self) -> int:
        return len(self.inputs)

    @property
    def tasks(self) -> tuple[str, ...]:
        """The tasks that have targets here."""
        return tuple(self.targets)

    def to(self, device: torch.device | str) -> Split:
        """The same rows on a device."""
        targets = {task: target.to(device) for task, target in self.targets.items()}
        return Split(self.inputs.to(device), targets, self.groups)

    def only(self, tasks: Iterable[str]) -> Split:
        """The same rows with the targets of these tasks."""
        return replace(self, targets={task: self.targets[task] for task in tasks})

    def batch(self, rows: Tensor) -> Batch:
        """Inputs and targets of these rows, in this order."""
        rows = rows.to(self.inputs.device)
        # index_select copies whole rows, several times as fast as `[rows]` does
        return self.inputs.index_select(0, rows), {task: target[rows] for task, target in self.targets.items()}

    def batches(self, parts: Sequence[Tensor], draw: Draw) -> Iterator[Batch]:
        """Inputs and targets of one part after the other; nothing is left to chance."""
        # a copy of its own to a GPU would make every step wait for the one before
        rows = torch.cat(list(parts)).to(self.inputs.device)
        return map(self.batch, rows.split([len(part) for part in parts]))

    def chunks(self) -> Iterator[Batch]:
        """All rows in order."""
        at_once = rows_at_once(self.inputs)
        for start in range(0, len(self), at_once):
            some = slice(start, start + at_once)
            yield self.inputs[some], {task: target[some] for task, target in self.targets.items()}

    def labelled(self, task: str) -> Tensor:
        """Whether each row has a label of this task, in a dense target any."""
        return self.targets[task].isfinite().reshape(len(self), -1).any(1)

    def contents(self) -> Iterator[bytes]:
        """Every number, inputs first, then targets by name; of inputs in a file their key."""
        for tensor in (self.inputs, *(self.targets[name] for name in sorted(self.targets))):
            yield f"{tensor.dtype}{tuple(tensor.shape)}".encode()
            yield content(tensor)


def rows_at_once(inputs: Tensor) -> int:
    """How many rows to evaluate at once.

    Example:
        >>> rows_at_once(torch.zeros(2, 100)), rows_at_once(torch.zeros(2, 3, 64, 64))
        (4096, 341)
    """
    return max(1, min(ROWS_AT_ONCE, NUMBERS_AT_ONCE // max(1, inputs[:1].numel())))


def held(rows: Rows, what: str) -> Split:
    """Rows that must be in memory.

    Args:
        rows: of a problem.
        what: needs them there, for the message.
    """
    if not isinstance(rows, Split):
        raise ValueError(f"{what} needs rows that are in memory, found rows that are read from files")
    return rows
