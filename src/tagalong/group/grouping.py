"""`Group` is a network and its tasks, `Grouping` the networks selected for a budget (`GroupingsByBudget`: several)."""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise
from typing import Any, Literal

from tagalong.errors import InvalidInput, first_few, pluralize
from tagalong.files import check_document, document_text, json_safe, parse_document, report_damage
from tagalong.rendering import TextTable

MAX_TIES = 8  # listed per grouping
NETWORK_TITLES = {
    "tabm": "TabM network",
    "ridge": "ridge",
    "boosting": "boosting",
    "xgboost": "XGBoost",
    "lightgbm": "LightGBM",
    "catboost": "CatBoost",
    "xgboost-vector": "XGBoost with vector leaves",
}
FORMAT = "tagalong-grouping"
VERSION = 1
SAVE_AGAIN_HINT = "save the grouping again"
MIN_SETTLED_FRACTION = 0.8  # a task is settled if its group is the same in at least this fraction of resamples


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

    @property
    def lesson(self) -> Taught:
        """What this has in common with other students of the same teachers on the same rows."""
        return replace(self, mix=1.0, fill=True)

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
    problem's own, e.g. "tabm", which uses as much of a budget as a plain one. `rule` names the rule that combines the
    task losses in training, e.g. "uw".

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
    rule: str = "plain"

    def __init__(
        self,
        trains: Iterable[str],
        serves: Iterable[str],
        cost: float = 1,
        copy: int = 0,
        taught: Taught | None = None,
        size: int = 1,
        network: str | None = None,
        rule: str = "plain",
    ) -> None:
        self.__dict__.update(trains=frozenset(trains), serves=frozenset(serves), cost=cost, copy=copy, taught=taught)
        self.__dict__.update(size=size, network=network, rule=rule)
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
        if self.rule != "plain":
            parts.append(f"trained with {self.rule}")
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
        for name, usual in (("copy", 0), ("size", 1), ("network", None), ("rule", "plain")):
            if getattr(self, name) != usual:
                document[name] = getattr(self, name)
        if self.taught:
            document["taught"] = self.taught.to_document()
        return document

    def __lt__(self, other: Group) -> bool:
        first, second = (
            (sorted(g.serves), sorted(g.trains), g.cost, g.copy, repr(g.taught or ""), g.size, g.network or "", g.rule)
            for g in (self, other)
        )
        return first < second


def join_names(tasks: Iterable[str]) -> str:
    return ", ".join(sorted(tasks))


@dataclass(frozen=True)
class NetworkScore:
    """A network that could serve a task, and the score of the task in that network."""

    trains: frozenset[str]
    score: float


@dataclass(frozen=True)
class Stability:
    """How often resamples of the measured steps lead to the same groups.

    Attributes:
        resamples: the number of resamples.
        share: the fraction of resamples that lead to the same grouping.
        tasks: the task names, in the same order as `together` and `same`.
        together: the fraction of resamples in which each pair of tasks is served by the same network.
        same: the fraction of resamples in which each task is served together with the same tasks.
    """

    resamples: int
    share: float
    tasks: tuple[str, ...]
    together: tuple[tuple[float, ...], ...]
    same: tuple[float, ...]

    @property
    def unsettled(self) -> tuple[str, ...]:
        """The tasks whose group differs in more than a fifth of the resamples."""
        return tuple(task for task, share in zip(self.tasks, self.same, strict=True) if share < MIN_SETTLED_FRACTION)

    def __str__(self) -> str:
        agreement = f"the same groups in {self.share:.0%} of {self.resamples} resamples"
        return f"{agreement}; not settled: {', '.join(self.unsettled)}" if self.unsettled else agreement


@dataclass(frozen=True)
class Grouping:
    """The networks chosen for a budget, their scores, and whether they are proven optimal.

    Attributes:
        groups: the networks, in sorted order. Every task is served by exactly one network.
        value: the sum of the scores of all tasks, weighted if weights were given.
        bound: a bound on the value of any grouping, up to a tolerance of 1e-9 times the largest score. If the grouping
            is proven optimal, the bound equals `value`.
        status: "optimal" if the grouping is proven optimal up to ties, otherwise "feasible".
        per_task: the score of each task in the network that serves it.
        budget: the maximum number of networks that was requested.
        objective: "max" or "min".
        solver: the name of the solver that found the grouping.
        ties: up to eight other groupings with the same value and the same number of groups.
        options: the score of each task in each of the chosen networks, sorted from best to worst.
        resampled: the result of repeating the selection on resamples, or None if there are no standard errors and all
            pairs were measured.
        unmeasured: the fraction of pairs of tasks that were never measured. Their scores were predicted from the other
            pairs.
        unplaced: the tasks that no network serves because none of their pairs was measured.

    Example:
        >>> from tagalong.group import select_groups
        >>> grouping = select_groups([[0, 5, 1], [5, 0, 0], [0, 0, 0]], budget=2)
        >>> grouping.value, grouping.status, sorted(grouping.served_by("2").trains)
        (11.0, 'optimal', ['0', '2'])
    """

    groups: tuple[Group, ...]
    value: float
    bound: float
    status: Literal["optimal", "feasible"]
    per_task: Mapping[str, float]
    budget: int
    objective: Literal["max", "min"] = "max"
    solver: str = "given"
    ties: tuple[tuple[Group, ...], ...] = ()
    options: Mapping[str, tuple[NetworkScore, ...]] = field(default_factory=dict, repr=False)
    resampled: Stability | None = field(default=None, repr=False)
    unmeasured: float = field(default=0.0, repr=False)
    unplaced: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "groups", tuple(sorted(self.groups)))

    @property
    def tasks(self) -> tuple[str, ...]:
        """The names of all tasks, in alphabetical order."""
        return tuple(sorted(self.per_task))

    @property
    def gap(self) -> float:
        """The relative difference between `bound` and `value`."""
        distance = abs(self.bound - self.value)
        return distance / abs(self.value) if self.value else (float("inf") if distance else 0.0)

    @property
    def stability(self) -> float | None:
        """The fraction of resamples that lead to the same grouping, or None if there are no resamples."""
        return None if self.resampled is None else self.resampled.share

    def served_by(self, task: str) -> Group:
        """Returns the group that serves a task."""
        if task not in self.per_task:
            raise InvalidInput("task", f"must be one of {', '.join(map(repr, self.tasks))}", repr(task))
        return next(group for group in self.groups if task in group.serves)

    def loss_mask(self, group: Group | int) -> dict[str, bool]:
        """Returns whether the network of a group is trained on each task's loss.

        Args:
            group: one of `groups`, or its index.

        Example:
            >>> from tagalong.group import select_groups
            >>> grouping = select_groups([[0, 5, 1], [5, 0, 0], [0, 0, 0]], budget=2)
            >>> grouping.loss_mask(1)
            {'0': True, '1': False, '2': True}
        """
        trains = (self.groups[group] if isinstance(group, int) else group).trains
        return {task: task in trains for task in self.tasks}

    def explain(self, task: str) -> str:
        """Returns a sentence about the network that serves a task and about the best other network.

        Example:
            >>> from tagalong.group import select_groups
            >>> grouping = select_groups([[0, 5, 1], [5, 0, 0], [0, 0, 0]], budget=2)
            >>> print(grouping.explain("1"))
            1 is served by {0, 1} with 5; next best: {0, 1, 2} with 2.5.
        """
        group, score = self.served_by(task), self.per_task[task]
        start = f"{task} is served by {{{join_names(group.trains)}}} with {score:.6g}"
        others = [option for option in self.options.get(task, ()) if option.trains != group.trains]
        if not others:
            return f"{start}, the only chosen network that can."
        best = others[0]
        sign = 1 if self.objective == "max" else -1
        relation = "better for it alone, but not for all tasks" if sign * best.score > sign * score else "next best"
        return f"{start}; {relation}: {{{join_names(best.trains)}}} with {best.score:.6g}."

    @property
    def summary(self) -> str:
        """A one-line summary: the number of networks, their total score, and whether the grouping is proven optimal."""
        gap = f"feasible, bound {self.bound:.6g}, gap {self.gap:.1%}"
        proof = "proven optimal" if self.status == "optimal" else gap
        networks = f"{pluralize(len(self.groups), 'network')} for {pluralize(len(self.tasks), 'task')}"
        return f"{networks}, total {self.value:.6g} ({proof})"

    @property
    def remarks(self) -> list[str]:
        """Remarks on equally good groupings, unmeasured pairs, and the stability of this grouping, one per line."""
        remarks = []
        if self.ties:
            count = f"{'at least ' * (len(self.ties) == MAX_TIES)}{pluralize(len(self.ties), 'other grouping')}"
            remarks += [f"equally good: {count}, for example:", *(f"  {group}" for group in self.ties[0])]
        if self.unmeasured:
            remarks.append(f"{self.unmeasured:.1%} of pairs were never measured; their scores are predictions")
        if self.unplaced:
            remarks.append(f"not placed, as none of their pairs was measured: {first_few(self.unplaced, 12)}")
        if self.resampled is not None:
            remarks.append(str(self.resampled))
        return remarks

    @property
    def cost(self) -> float:
        """The sum of the costs of all networks."""
        return sum(group.cost for group in self.groups)

    def table(self) -> TextTable:
        """Returns a table with one row per network."""
        has_costs = self.cost != len(self.groups)
        columns = ["network", "serves", "helped by", "score", *["cost"] * has_costs]
        table = TextTable(*columns, numbers=("network", "score", "cost"))
        for number, group in enumerate(self.groups, 1):
            score = sum(self.per_task[task] for task in sorted(group.serves))  # sorted to make rounding deterministic
            row = [str(number), join_names(group.serves), join_names(group.helpers), f"{score:.6g}"]
            table.add_row(*row, *[f"{group.cost:g}"] * has_costs)
        return table

    def __str__(self) -> str:
        return "\n".join([self.summary, *self.table().lines(), *self.remarks])

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(str(self))}</pre>"

    def to_document(self) -> dict[str, Any]:
        """Returns the grouping as a JSON-compatible dictionary, which `from_document` reads."""
        document: dict[str, Any] = {"format": FORMAT, "version": VERSION}
        for name in ("value", "bound", "status", "budget", "objective", "solver", "groups", "per_task", "ties"):
            document[name] = json_safe(getattr(self, name))
        document["options"] = {
            task: [{"trains": sorted(option.trains), "score": option.score} for option in options]
            for task, options in self.options.items()
        }
        usual = {"resampled": None, "unmeasured": 0.0, "unplaced": ()}
        return document | {name: json_safe(getattr(self, name)) for name in usual if getattr(self, name) != usual[name]}

    @staticmethod
    def from_document(document: Any) -> Grouping:
        """Reads a dictionary created by `to_document`."""
        from tagalong.documents import build  # pydantic is loaded only where documents enter

        checked = check_document(document, "a grouping", FORMAT, VERSION, hint=SAVE_AGAIN_HINT)
        with report_damage("the grouping", hint=SAVE_AGAIN_HINT):
            grouping = build(Grouping, checked)
            served = sorted(task for group in grouping.groups for task in group.serves)
            if not served or served != sorted(grouping.per_task):
                raise ValueError("groups must serve each task of per_task exactly once")
        return grouping

    def to_json(self) -> str:
        """Returns the grouping as JSON text, which `from_json` reads."""
        return document_text(FORMAT, VERSION, self.to_document())

    @staticmethod
    def from_json(text: str) -> Grouping:
        """Reads JSON text created by `to_json`.

        Example:
            >>> from tagalong.group import select_groups
            >>> grouping = select_groups([[0, 5, 1], [5, 0, 0], [0, 0, 0]], budget=2)
            >>> Grouping.from_json(grouping.to_json()) == grouping
            True
        """
        return Grouping.from_document(parse_document(text, "a grouping", FORMAT, VERSION, hint=SAVE_AGAIN_HINT))


class GroupingsByBudget(dict[int, Grouping]):
    """The best grouping for each number of networks, and what each further network gains.

    The total never decreases with further networks, even if all affinities are noise: the more groups there are to
    choose from, the better they fit the errors of measurement. If the affinities have standard errors, `gains` are
    corrected for this: groups are selected from resampled affinities, and what their totals owe to the resampling is
    subtracted.

    Attributes:
        gains: the gain of each number of networks over the previous one.
        errors: the standard error of each gain. Empty if the affinities have no standard errors.

    Example:
        >>> from tagalong import select_groups
        >>> groupings = select_groups([[0, 5, 1, 0], [5, 0, 0, 0], [0, 0, 0, 4], [0, 0, 4, 0]])
        >>> print(groupings)
        networks    total    gain  proof    stability  groups
               1  6.33333          optimal             {0, 1, 2, 3}
               2       18  +11.67  optimal             {0, 1} {2, 3}
               3       18      +0  optimal             {0, 1} {2, 3}
               4       18      +0  optimal             {0, 1} {2, 3}
        2 networks are enough
        >>> groupings[2].value, groupings.enough
        (18.0, 2)
    """

    def __init__(
        self, groupings: Mapping[int, Grouping], gains: Mapping[int, float], errors: Mapping[int, float]
    ) -> None:
        super().__init__(groupings)
        self.gains = gains
        self.errors = errors

    @property
    def enough(self) -> int:
        """The number of networks after which a further one gains no more than its standard error."""
        budgets = list(self)
        for budget, following in pairwise(budgets):
            if self.gains[following] <= max(self.errors.get(following, 0.0), 1e-9 * abs(self[following].value)):
                return budget
        return budgets[-1]

    def table(self) -> TextTable:
        """Returns a table with one row for each number of networks."""
        numbers = ("networks", "total", "gain", "stability")
        table = TextTable("networks", "total", "gain", "proof", "stability", "groups", numbers=numbers)
        for budget, grouping in self.items():
            gain = f"{self.gains[budget]:+.4g}" if budget in self.gains else ""
            if budget in self.errors:
                gain += f" ± {self.errors[budget]:.2g}"
            proof = "optimal" if grouping.status == "optimal" else f"gap {grouping.gap:.1%}"
            stability = "" if grouping.stability is None else f"{grouping.stability:.0%}"
            groups = " ".join(f"{{{join_names(group.trains)}}}" for group in grouping.groups)
            table.add_row(str(budget), f"{grouping.value:.6g}", gain, proof, stability, groups)
        return table

    @property
    def summary(self) -> str:
        """How many networks are enough, in one line."""
        resampled = next(iter(self.values())).resampled
        about = f" ({resampled.resamples} resamples)" if resampled else ""
        return f"{self.enough} network{'s are' if self.enough > 1 else ' is'} enough{about}"

    def __str__(self) -> str:
        return f"{self.table()}\n{self.summary}"
