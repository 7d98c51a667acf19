"""Inputs that stay in their file: mapped into memory, read where they are used, shared by all processes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor


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


def content(tensor: Tensor) -> bytes:
    """What a fingerprint takes of a tensor."""
    if isinstance(tensor, Mapped):
        return f"{tensor.key} from {tensor.first}".encode()
    return np.ascontiguousarray(tensor.detach().cpu().numpy()).tobytes()
