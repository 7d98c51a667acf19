"""Python containers that modules keep as attributes, put back as they were."""

from collections import OrderedDict, defaultdict, deque
from collections.abc import Iterator
from typing import Any

import numpy as np

_KINDS = (list, dict, set, deque, OrderedDict, defaultdict, bytearray)
_DEEP = 1000  # containers with more entries are not searched for further ones
_LARGE = 1 << 20  # numbers of an array that is taken for data rather than state


def saved_containers(value: Any, seen: frozenset[int] = frozenset()) -> Iterator[tuple[Any, Any]]:
    """`value` and the containers in it that can be written in place, each with a copy."""
    if isinstance(value, np.ndarray):
        if value.flags.writeable and value.size <= _LARGE:
            yield value, value.copy()
    elif type(value) in _KINDS and id(value) not in seen:
        yield value, value.copy()
        if type(value) not in (set, bytearray) and len(value) <= _DEEP:
            for inner in list(value.values() if isinstance(value, dict) else value):
                yield from saved_containers(inner, seen | {id(value)})  # a container may hold itself


def refill(container: Any, saved: Any) -> None:
    """Gives `container` the entries of `saved` back."""
    if isinstance(container, np.ndarray):
        np.copyto(container, saved)
        return
    container.clear()
    if isinstance(container, dict | set):
        container.update(saved)
    else:
        container.extend(saved)
