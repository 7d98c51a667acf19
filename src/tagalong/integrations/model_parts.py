"""Finds a part of a model by its name."""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Any

from torch import nn

from tagalong.errors import InvalidInput


def part_of(model: nn.Module, wanted: str | Callable[[Any], Any], argument: str) -> Any:
    """Returns the attribute of `model` with this (dotted) name, or the result of calling `wanted` on the model."""
    if callable(wanted):
        return wanted(model)
    try:
        return attrgetter(wanted)(model)
    except AttributeError as error:
        expected = (
            f"must be the name of an attribute of {type(model).__name__}, such as 'encoder', or a function of the model"
        )
        raise InvalidInput(argument, expected, repr(wanted)) from error
