"""Errors that list every problem of one input at once."""

from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")


class ClosureError(ValueError):
    """The closure (or what the meter was told about it) cannot be measured.

    Attributes:
        problems: One sentence per problem; all that could be found in one look.
    """

    def __init__(self, problems: Sequence[str]) -> None:
        self.problems = tuple(problems)
        super().__init__("the affinity cannot be measured:\n" + "\n".join(f"- {p}" for p in problems))


def raise_all(problems: Sequence[str]) -> None:
    """Raises one error that lists `problems`, or returns if there are none."""
    if problems:
        raise ClosureError(problems)


class Problems:
    """Tries one thing after another, and raises what went wrong with any of them at the end."""

    def __init__(self) -> None:
        self._errors: list[ValueError | TypeError] = []

    def __call__(self, make: Callable[[], T]) -> T | None:
        try:
            return make()
        except (ValueError, TypeError) as error:
            self._errors.append(error)
            return None

    def done(self) -> None:
        if len(self._errors) == 1:
            raise self._errors[0]
        if self._errors:
            raise ValueError("the meter cannot be made:\n" + "\n".join(f"- {error}" for error in self._errors))
