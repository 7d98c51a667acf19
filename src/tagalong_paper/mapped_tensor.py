"""Rows that are mapped from a file, which may be larger than the memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tagalong.errors import InvalidInput


class MappedTensor(Tensor):
    """A memory-mapped tensor that contains rows of an npy file, created by `MappedTensor.open`.

    Operations on a mapped tensor return plain tensors. Pickles contain the path of the file rather than its contents,
    and fingerprints of problems use `identity` instead of reading the file.

    Attributes:
        path: the path of the file.
        key: a short string that identifies the contents of the entire file.
        first: the number of the first row in the file.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     np.save(f"{folder}/rows.npy", np.arange(12).reshape(6, 2))
        ...     rows = MappedTensor.open(f"{folder}/rows.npy", "twelve numbers", first=2, rows=3)
        ...     type(rows).__name__, rows[1:]
        ('MappedTensor', tensor([[6, 7],
                [8, 9]]))
    """

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]
    path: str
    key: str
    first: int

    @staticmethod
    def open(path: str | Path, key: str, first: int = 0, rows: int | None = None) -> MappedTensor:
        """Memory-maps rows of a file.

        Args:
            path: an npy file.
            key: see `MappedTensor`.
            first: the number of the first row.
            rows: the number of rows. If None, all rows from `first` on are mapped.

        Raises:
            InvalidInput: If the file does not exist or is incomplete.
        """
        if not Path(path).is_file():
            raise InvalidInput(path, "does not exist on this machine")
        try:
            # Copy on write: torch warns about read-only arrays, although nothing is ever written here.
            array = np.load(path, mmap_mode="c", allow_pickle=False)
        except (ValueError, EOFError) as error:
            hint = "delete it or choose another `cache`"
            raise InvalidInput(path, "must be a complete npy file", "a truncated one", hint) from error
        last = len(array) if rows is None else first + rows
        mapped = torch.from_numpy(array[first:last]).as_subclass(MappedTensor)
        mapped.path, mapped.key, mapped.first = str(path), key, first
        return mapped

    @property
    def identity(self) -> str:
        """A string that identifies the rows."""
        return f"{self.key} from {self.first}"

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        return MappedTensor.open, (self.path, self.key, self.first, len(self))

    def __deepcopy__(self, memo: Any) -> MappedTensor:
        return MappedTensor.open(self.path, self.key, self.first, len(self))
