"""`Taught`: the networks that teach another one, and how it learns from them."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from tagalong.errors import InvalidInput, pluralize


@dataclass(frozen=True)
class Taught:
    """The teachers of a network, and how it learns from their answers.

    Teachers are networks that were trained before, named by keys. Their order does not matter, and a teacher that is
    listed twice counts twice.

    Attributes:
        teachers: the keys of the teachers, in ascending order.
        weights: the weight of each teacher in the average answer, as a multiple of the smallest one. Empty if all
            teachers count the same.
        mix: the weight of the loss against the teachers' answer, from 0 (labels only) to 1 (answers only). The loss
            against the label has the weight 1 - mix.
        fill: whether the answer replaces missing labels of training rows. If False, these remain missing.
        mixtures: the number of mixtures of two training rows to learn from, as a multiple of the training rows. Only
            the teachers answer them.
        unlabelled: whether to learn from the problem's unlabelled rows, which only the teachers answer.

    Example:
        >>> Taught(("b", "a", "b")).teachers, Taught(("b", "a", "b")).weights
        (('a', 'b'), (1.0, 2.0))
        >>> print(Taught(("b", "a"), mix=0.5, mixtures=3))
        taught by 2 networks, half by labels, with 3 mixtures per row
    """

    teachers: tuple[str, ...]
    weights: tuple[float, ...] = ()
    mix: float = 1.0
    fill: bool = True
    mixtures: float = 0.0
    unlabelled: bool = False

    def __post_init__(self) -> None:
        weights = self.weights or (1.0,) * len(self.teachers)
        if not self.teachers or len(weights) != len(self.teachers) or min(weights) <= 0:
            raise InvalidInput("teachers", "must be one or more keys, each with a positive weight", repr(self))
        if not 0 <= self.mix <= 1:
            raise InvalidInput("mix", "must be a number from 0 to 1", repr(self.mix))

        # Equal lessons must be equal objects, since networks are found again by what they learned from.
        totals = dict.fromkeys(sorted(self.teachers), 0.0)
        for teacher, weight in zip(self.teachers, weights, strict=True):
            totals[teacher] += float(weight)
        smallest = min(totals.values())
        relative = tuple(total / smallest for total in totals.values())
        self.__dict__.update(teachers=tuple(totals), weights=() if set(relative) == {1.0} else relative)
        self.__dict__.update(mix=float(self.mix), mixtures=float(self.mixtures))

    def __str__(self) -> str:
        parts = [f"taught by {pluralize(len(self.teachers), 'network')}"]
        if self.mix < 1:
            parts.append("half by labels" if self.mix == 0.5 else f"{1 - self.mix:.0%} by labels")
        if self.mixtures:
            parts.append(f"with {self.mixtures:g} mixture{'s' * (self.mixtures != 1)} per row")
        if self.unlabelled:
            parts.append("with unlabelled rows")
        return ", ".join(parts)

    def to_document(self) -> dict[str, Any]:
        """Returns the fields as a JSON document."""
        return asdict(self) | {"teachers": list(self.teachers), "weights": list(self.weights)}
