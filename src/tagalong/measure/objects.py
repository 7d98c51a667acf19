"""Finds the plain Python objects that a closure reaches, saves their state, and restores it in place."""

from __future__ import annotations

import types
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.modules import module as module_hooks

from .object_kinds import ATOMS, Path, Visitor, sample_of, version_of, visitor_of
from .object_restoring import Restore, restore_data, set_version

STATE_MEMORY = 64 * 2**20  # bytes
MAX_OBJECTS = 50_000  # more would take too long to search; the nearest ones come first
_SMALL = 4096  # variables and attributes up to this size are restored even if .data was written, which leaves no mark
_GLOBAL_HOOKS = ("_global_forward_hooks", "_global_forward_pre_hooks")


@dataclass
class _Watched:
    """Something that cannot be restored, and how to see whether it has changed."""

    path: Path
    what: str
    target: Any
    read: Callable[[Any], Any]
    before: Any

    @property
    def changed(self) -> bool:
        return bool(self.read(self.target) != self.before)


class ObjectState:
    """A snapshot of the objects that a closure reaches: through its variables, `self`, attributes and containers.

    Restoring writes the old contents into the same objects, so that every reference to them stays valid. Tensors and
    arrays are copied, the smallest first, until the copies reach `memory`. What does not fit, or cannot be restored at
    all (iterators, files), is only watched. Objects of the standard library and of torch, and objects that hold a lock
    or a thread, are left alone.

    Args:
        memory: The number of bytes available for copies.

    Attributes:
        copied: The number of bytes copied.
        truncated: Whether there were too many objects to search all of them.
    """

    def __init__(self, memory: float = STATE_MEMORY) -> None:
        self.copied, self.truncated = 0, False
        self._memory = memory
        self._roots: list[tuple[Any, Path]] = []
        self._seen: dict[int, Any] = {}  # the objects too, so that no id is used twice
        self._waiting: deque[tuple[Any, Path]] = deque()
        self._visitors: dict[type, Visitor] = {}
        self._saved: list[tuple[Restore, Any, Any]] = []
        self._watched: list[_Watched] = []
        self._values: list[tuple[Tensor | np.ndarray, Path]] = []
        self._tensors: list[tuple[Tensor, Tensor, Tensor, int]] = []  # with aliases, copies and versions
        self._small: dict[tuple[torch.dtype, torch.device], tuple[list[Tensor], list[Tensor]]] = {}

    def add_closure(self, closure: Callable[[], Any]) -> None:
        """Saves what `closure` reaches."""
        if isinstance(closure, types.MethodType):
            self.add(closure.__self__, "self")
        self.add(closure, "closure" if isinstance(closure, types.FunctionType) else "self")
        for name in _GLOBAL_HOOKS:
            # Only the hooks: a meter in another thread may add its own hook to the table, and remove it, at any time.
            for hook in tuple(getattr(module_hooks, name).values()):
                self.add(hook, name)

    def add(self, value: Any, name: str) -> None:
        """Saves what `value` reaches, unless it is already saved. `name` is used in messages."""
        if id(value) in self._seen:
            return
        path: Path = (None, "name", name)
        self._roots.append((value, path))
        self.reach(value, path)
        while self._waiting:
            self._visit(*self._waiting.popleft())
        self._values.sort(key=lambda pair: pair[0].nbytes)
        self._copy_tensors([pair for pair in self._values if self._copy_array(*pair)])
        self._values = []

    def snapshot(self) -> ObjectState:
        """Returns a snapshot of the current state."""
        state = ObjectState(self._memory)
        for value, path in self._roots:
            state.add(value, path[2])
        return state

    def restore(self) -> None:
        for restore, target, saved in self._saved:
            restore(target, saved)
        for tensor, alias, copy, version in self._tensors:
            if tensor._version != version:
                alias.copy_(copy)
                set_version(tensor, version)
        for values, saved in self._small.values():
            if values:
                torch._foreach_copy_(values, saved)

    def changes(self, known: Iterable[Tensor] = ()) -> list[tuple[str, str]]:
        """Returns the names and kinds of objects that have changed and cannot be restored, except `known` ones."""
        changed = [watched for watched in self._watched if watched.changed]
        ids = {id(tensor) for tensor in known} if changed else set()
        return [(_render(w.path), w.what) for w in changed if id(w.target) not in ids]

    def reach(self, value: Any, path: Path) -> None:
        """Puts `value` on the list of objects to search."""
        kind = type(value)
        if kind in ATOMS or id(value) in self._seen:
            return
        if len(self._seen) >= MAX_OBJECTS:
            self.truncated = True
            return
        self._seen[id(value)] = value
        self._waiting.append((value, path))

    def save(self, restore: Restore, target: Any, saved: Any) -> None:
        self._saved.append((restore, target, saved))

    def watch(self, path: Path, what: str, target: Any, read: Callable[[Any], Any]) -> None:
        self._watched.append(_Watched(path, what, target, read, read(target)))

    def reserve(self, size: int) -> bool:
        """Whether `size` more bytes may be copied."""
        if self.copied + size > self._memory:
            return False
        self.copied += size
        return True

    def _visit(self, value: Any, path: Path) -> None:
        kind = type(value)
        visitor = self._visitors.get(kind)
        if visitor is None:
            visitor = self._visitors[kind] = visitor_of(kind)
        visitor(self, value, path)

    def collect(self, value: Tensor | np.ndarray, path: Path) -> None:
        """Puts `value` on the list of tensors and arrays to copy."""
        self._values.append((value, path))

    def _copy_array(self, value: Tensor | np.ndarray, path: Path) -> bool:
        """Copies or watches an array, and watches a tensor that is too large. Returns whether to copy the tensor."""
        fits = self.reserve(value.nbytes)
        if isinstance(value, Tensor):
            if not fits:
                self.watch(path, "a tensor larger than the meter's `state_memory`", value, version_of)
            return fits
        if fits:
            self.save(np.copyto, value, value.copy())
        else:
            self.watch(path, "an array larger than the meter's `state_memory`", value, sample_of)
        return False

    def _copy_tensors(self, found: Sequence[tuple[Any, Path]]) -> None:
        kinds: dict[tuple[torch.dtype, torch.device], list[tuple[Tensor, Path]]] = {}
        for tensor, path in found:
            kinds.setdefault((tensor.dtype, tensor.device), []).append((tensor, path))
        for kind, group in kinds.items():
            aliases = [tensor.data for tensor, _ in group]
            copies = [torch.empty_like(alias) for alias in aliases]
            torch._foreach_copy_(copies, aliases)
            values, saved = self._small.setdefault(kind, ([], []))
            for (tensor, path), alias, copy in zip(group, aliases, copies, strict=True):
                self._tensors.append((tensor, alias, copy, tensor._version))
                if path[1] != "entry" and tensor.numel() <= _SMALL:
                    self.save(restore_data, tensor, alias)
                    values.append(alias)
                    saved.append(copy)


def _render(path: Path) -> str:
    """Returns the expression that leads to an object, such as ``self.losses['a'].record``."""
    parts: list[str] = []
    at: Path | None = path
    while at is not None:
        at, kind, key = at
        parts.append(f"[{key!r}]" if kind == "entry" else f".{key}" if kind == "attribute" else str(key))
    return "".join(reversed(parts))
