"""`Taught`: the networks that teach another one, and how it learns from them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tagalong.errors import InvalidInput, is_nonnegative, raise_problems


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
        raise_problems(self._problems())
        given = self.weights or (1.0,) * len(self.teachers)
        total: dict[str, float] = {}
        for teacher, weight in zip(self.teachers, given, strict=True):
            total[teacher] = total.get(teacher, 0.0) + float(weight)
        keys, smallest = sorted(total), min(total.values())
        relative = tuple(total[key] / smallest for key in keys)
        object.__setattr__(self, "teachers", tuple(keys))
        object.__setattr__(self, "weights", () if set(relative) == {1.0} else relative)
        object.__setattr__(self, "mix", float(self.mix))
        object.__setattr__(self, "mixtures", float(self.mixtures))

    def _problems(self) -> list[InvalidInput]:
        problems = []
        if not self.teachers or not all(isinstance(key, str) and key for key in self.teachers):
            problems.append(InvalidInput("teachers", "must be the keys of one or more networks", repr(self.teachers)))
        if self.weights and len(self.weights) != len(self.teachers):
            expected = f"must contain a number for each of the {len(self.teachers)} teachers"
            problems.append(InvalidInput("weights", expected, str(len(self.weights))))
        elif not all(is_nonnegative(weight) and weight for weight in self.weights):
            problems.append(InvalidInput("weights", "must be positive numbers", repr(self.weights)))
        if not is_nonnegative(self.mix) or self.mix > 1:
            problems.append(InvalidInput("mix", "must be a number from 0 to 1", repr(self.mix)))
        if not is_nonnegative(self.mixtures):
            problems.append(InvalidInput("mixtures", "must be a non-negative number", repr(self.mixtures)))
        return problems + [
            InvalidInput(name, "must be True or False", repr(getattr(self, name)))
            for name in ("fill", "unlabelled")
            if not isinstance(getattr(self, name), bool)
        ]

    def __str__(self) -> str:
        count = len(self.teachers)
        parts = [f"taught by {count} network{'s' * (count != 1)}"]
        if self.mix < 1:
            parts.append("half by labels" if self.mix == 0.5 else f"{1 - self.mix:.0%} by labels")
        if self.mixtures:
            parts.append(f"with {self.mixtures:g} mixture{'s' * (self.mixtures != 1)} per row")
        if self.unlabelled:
            parts.append("with unlabelled rows")
        return ", ".join(parts)

    def to_document(self) -> dict[str, Any]:
        """Returns the fields as a JSON document."""
        return {
            "teachers": list(self.teachers),
            "weights": list(self.weights),
            "mix": self.mix,
            "fill": self.fill,
            "mixtures": self.mixtures,
            "unlabelled": self.unlabelled,
        }
