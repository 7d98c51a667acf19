"""Writes saved contents back into the same objects, so that every reference to them stays valid.

The functions compare before they write: most objects have not changed, and other threads may read them.
"""

from __future__ import annotations

import types
from collections import OrderedDict, deque
from collections.abc import Callable
from operator import is_
from typing import Any

import torch
from torch import Tensor
from torch.autograd.grad_mode import _unsafe_preserve_version_counter

Restore = Callable[[Any, Any], None]
NOTHING = object()  # stands for the contents of variables that do not exist


def read_slot(slot: Any, value: Any) -> Any:
    try:
        return slot.__get__(value)
    except AttributeError:
        return NOTHING


def restore_list(target: list[Any], saved: list[Any]) -> None:
    list.__setitem__(target, slice(None), saved)  # atomic, and faster than comparing


def restore_deque(target: deque[Any], saved: list[Any]) -> None:
    if len(target) != len(saved) or not all(map(is_, deque.__iter__(target), saved)):
        deque.clear(target)
        deque.extend(target, saved)


def _has_same_items(target: Any, saved: dict[Any, Any], methods: Any) -> bool:
    return (
        len(target) == len(saved)
        and all(map(is_, methods.values(target), saved.values()))
        and all(map(is_, methods.__iter__(target), saved))
    )


def restore_dict(target: dict[Any, Any], saved: dict[Any, Any]) -> None:
    if not _has_same_items(target, saved, dict):
        dict.clear(target)
        dict.update(target, saved)


def restore_ordered_dict(target: OrderedDict[Any, Any], saved: dict[Any, Any]) -> None:
    if not _has_same_items(target, saved, OrderedDict):
        OrderedDict.clear(target)
        OrderedDict.update(target, saved)


def restore_set(target: set[Any], saved: set[Any]) -> None:
    if target != saved:
        set.clear(target)
        set.update(target, saved)


def restore_bytes(target: bytearray, saved: bytes) -> None:
    if target != saved:
        target[:] = saved


def restore_slot(where: tuple[Any, Any], saved: Any) -> None:
    slot, target = where
    if read_slot(slot, target) is not saved:
        slot.__delete__(target) if saved is NOTHING else slot.__set__(target, saved)


def restore_module(namespace: dict[str, Any], saved: tuple[dict[str, Any], frozenset[str]]) -> None:
    own, names = saved
    if namespace.keys() != names:
        for name in namespace.keys() - names:
            del namespace[name]
    namespace.update(own)


def restore_class(target: type, saved: tuple[dict[str, Any], frozenset[str]]) -> None:
    own, names = saved
    for name in vars(target).keys() - names:
        type.__delattr__(target, name)
    for name, content in own.items():
        if vars(target).get(name, NOTHING) is not content:
            type.__setattr__(target, name, content)


def restore_variable(where: tuple[dict[str, Any], str], saved: Any) -> None:
    namespace, name = where
    if namespace.get(name, NOTHING) is saved:
        return
    if saved is NOTHING:
        del namespace[name]
    else:
        namespace[name] = saved


def restore_cell(cell: types.CellType, saved: Any) -> None:
    try:
        now = cell.cell_contents
    except ValueError:
        now = NOTHING
    if now is saved:
        return
    if saved is NOTHING:
        del cell.cell_contents
    else:
        cell.cell_contents = saved


def restore_torch_generator(target: torch.Generator, saved: Tensor) -> None:
    target.set_state(saved)


def restore_bits(bits: Any, saved: Any) -> None:
    bits.state = saved


def restore_data(tensor: Tensor, alias: Tensor) -> None:
    if tensor.data_ptr() != alias.data_ptr():
        tensor.data = alias


def set_version(tensor: Tensor, version: int) -> None:
    """Sets the version of `tensor`; otherwise, a backward pass would fail if its graph refers to it."""
    keeper = _unsafe_preserve_version_counter(tensor)
    for name, value in vars(keeper).items():
        if name.startswith("prev_version"):
            setattr(keeper, name, (version,) if isinstance(value, tuple) else version)
    keeper.__exit__(None, None, None)
