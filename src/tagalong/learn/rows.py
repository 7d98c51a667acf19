"""Rows of a problem: held in memory, mapped from a file, or read while a network trains."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

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
            yield _content(tensor)


def rows_at_once(inputs: Tensor) -> int:
    """How many rows to evaluate at once.

    Example:
        >>> rows_at_once(torch.zeros(2, 100)), rows_at_once(torch.zeros(2, 3, 64, 64))
        (4096, 341)
    """
    return max(1, min(ROWS_AT_ONCE, NUMBERS_AT_ONCE // max(1, inputs[:1].numel())))


def in_memory(rows: Rows, what: str) -> Split:
    """Rows that must be in memory.

    Args:
        rows: of a problem.
        what: needs them there, for the message.
    """
    if not isinstance(rows, Split):
        raise ValueError(f"{what} needs rows that are in memory, found rows that are read from files")
    return rows


class Mapped(Tensor):
    """Some rows of an npy file, as `Mapped.open` gives them.

    Whatever is computed from it is a plain tensor. Pickled it is the place of the file, not its content, and a
    fingerprint takes `key` instead of reading it all.

    Attributes:
        path: of the file.
        key: what the whole file holds, in a few letters.
        first: which row of the file is the first here.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     np.save(f"{folder}/rows.npy", np.arange(12).reshape(6, 2))
        ...     rows = Mapped.open(f"{folder}/rows.npy", "twelve numbers", first=2, rows=3)
        ...     type(rows).__name__, rows[1:]
        ('Mapped', tensor([[6, 7],
                [8, 9]]))
    """

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]
    path: str
    key: str
    first: int

    @staticmethod
    def open(path: str | Path, key: str, first: int = 0, rows: int | None = None) -> Mapped:
        """Maps rows of a file.

        Args:
            path: an npy file.
            key: see `Mapped`.
            first: the first row.
            rows: how many; None: all from the first on.

        Raises:
            ValueError: there is no such file, or it is not whole.
        """
        if not Path(path).is_file():
            raise ValueError(f"{path} must be a file that this machine can read, found none")
        try:
            # Copy on write: torch warns about arrays that it may not write to, and nothing is ever written here.
            every = np.load(path, mmap_mode="c", allow_pickle=False)
        except (ValueError, EOFError) as error:
            todo = "delete it or name another `cache`"
            raise ValueError(f"{path} must be a whole npy file, found a part of one; {todo}") from error
        last = len(every) if rows is None else first + rows
        made = torch.from_numpy(every[first:last]).as_subclass(Mapped)
        made.path, made.key, made.first = str(path), key, first
        return made

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        return Mapped.open, (self.path, self.key, self.first, len(self))

    def __deepcopy__(self, memo: Any) -> Mapped:
        return Mapped.open(self.path, self.key, self.first, len(self))


def _content(tensor: Tensor) -> bytes:
    """What a fingerprint takes of a tensor."""
    if isinstance(tensor, Mapped):
        return f"{tensor.key} from {tensor.first}".encode()
    return np.ascontiguousarray(tensor.detach().cpu().numpy()).tobytes()
