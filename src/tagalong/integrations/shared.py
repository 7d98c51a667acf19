"""What integrations share: the message for a missing package, and parts of a model by name."""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Any

from torch import nn


def missing(part: str, package: str | None = None) -> ImportError:
    """An error with the line that helps.

    Args:
        part: of the integrations; the extra is called the same.
        package: that it needs, where that has another name.
    """
    return ImportError(
        f"tagalong.integrations.{part} needs the package `{package or part}`: pip install 'tagalong[{part}]'",
        name=part,
    )


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
