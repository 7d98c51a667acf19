"""Finds a part of a model by name."""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Any

from torch import nn

from tagalong.errors import InvalidInput


def resolve_part(model: nn.Module, name_or_function: str | Callable[[Any], Any], argument: str) -> Any:
    """Returns the attribute of `model` with the given (dotted) name. If a function is given, returns its result."""
    if callable(name_or_function):
        return name_or_function(model)
    try:
        return attrgetter(name_or_function)(model)
    except AttributeError as error:
        expected = f"must be the name of a {type(model).__name__} attribute (e.g. 'encoder') or a function of the model"
        raise InvalidInput(argument, expected, repr(name_or_function)) from error
