"""Errors that list every problem of one input at once."""

from collections.abc import Sequence


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
