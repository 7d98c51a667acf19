"""The parts of a model that integrations ask for by name."""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Any

from torch import nn


def part_of(model: nn.Module, wanted: str | Callable[[Any], Any], argument: str) -> Any:
    """An attribute of `model` by its (dotted) name, or what a function makes of it."""
    if callable(wanted):
        return wanted(model)
    try:
        return attrgetter(wanted)(model)
    except AttributeError as error:
        raise ValueError(
            f"`{argument}`={wanted!r} is no attribute of {type(model).__name__}; name one, such as 'encoder', or pass "
            "a function of the model."
        ) from error
