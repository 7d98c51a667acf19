"""`Group`: a network and its tasks. `Taught`: how it learns from other networks."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from tagalong.errors import InvalidInput, pluralize

NETWORK_TITLES = {"tabm": "TabM network", "ridge": "ridge", "boosting": "boosting", "xgboost": "XGBoost"}


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


@dataclass(frozen=True, init=False)
class Group:
    """A network with its cost, the tasks on which it is trained, and the subset of these tasks that it serves.

    Several networks may serve the same task if their answers are averaged. Networks that train the same tasks are told
    apart by `copy`: each copy is trained with a different seed. A network that learns from the answers of other
    networks names them in `taught`. A wider network has about `size` times as many parameters as a plain one for the
    same tasks, and uses as much of a budget as `size` plain networks. `network` names another network than the
    problem's own, e.g. "tabm", which uses as much of a budget as a plain one.

    Example:
        >>> print(Group(trains={"age", "ill"}, serves={"age"}))
        serves {age}, helped by {ill}
        >>> print(Group({"age"}, {"age"}, taught=Taught(("key 1", "key 2"))))
        serves {age}, taught by 2 networks
        >>> print(Group({"age"}, {"age"}, copy=1, size=3, network="tabm"))
        serves {age}, copy 1, 3 times the size, TabM network
    """

    trains: frozenset[str]
    serves: frozenset[str]
    cost: int | float = 1  # an integer stays one in documents
    copy: int = 0
    taught: Taught | None = None
    size: int = 1
    network: str | None = None

    def __init__(
        self,
        trains: Iterable[str],
        serves: Iterable[str],
        cost: float = 1,
        copy: int = 0,
        taught: Taught | None = None,
        size: int = 1,
        network: str | None = None,
    ) -> None:
        self.__dict__.update(trains=frozenset(trains), serves=frozenset(serves), cost=cost, copy=copy)
        self.__dict__.update(taught=taught, size=size, network=network)
        if not self.serves <= self.trains:
            others = ", ".join(map(repr, sorted(self.serves - self.trains)))
            raise InvalidInput("serves", "must contain only tasks in `trains`", others)

    @property
    def helpers(self) -> frozenset[str]:
        """The tasks that are trained but not served."""
        return self.trains - self.serves

    @property
    def network_text(self) -> str:
        """The kind of network in words, e.g. "TabM network", or an empty string for the problem's own."""
        return "" if self.network is None else NETWORK_TITLES.get(self.network, f"{self.network} network")

    def __str__(self) -> str:
        parts = [f"serves {{{join_names(self.serves)}}}"]
        if self.helpers:
            parts.append(f"helped by {{{join_names(self.helpers)}}}")
        if self.copy:
            parts.append(f"copy {self.copy}")
        if self.size > 1:
            parts.append(f"{self.size} times the size")
        if self.network:
            parts.append(self.network_text)
        if self.taught:
            parts.append(str(self.taught))
        return ", ".join(parts)

    def to_document(self, *, cost: bool = True) -> dict[str, Any]:
        """Returns the group as a JSON-compatible dictionary, which mentions only what is not as usual.

        Args:
            cost: whether to include the cost.

        Example:
            >>> Group({"age"}, {"age"}, copy=1).to_document(cost=False)
            {'trains': ['age'], 'serves': ['age'], 'copy': 1}
        """
        document: dict[str, Any] = {"trains": sorted(self.trains), "serves": sorted(self.serves)}
        if cost:
            document["cost"] = self.cost
        for name, usual in (("copy", 0), ("size", 1), ("network", None)):
            if getattr(self, name) != usual:
                document[name] = getattr(self, name)
        if self.taught:
            document["taught"] = self.taught.to_document()
        return document

    def __lt__(self, other: Group) -> bool:
        first, second = (
            (sorted(g.serves), sorted(g.trains), g.cost, g.copy, repr(g.taught or ""), g.size, g.network or "")
            for g in (self, other)
        )
        return first < second


def join_names(tasks: Iterable[str]) -> str:
    """Returns the names in alphabetical order, with commas."""
    return ", ".join(sorted(tasks))
