"""Groups that somebody else chose: read as people write them down, scored under the same rules, and compared."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from reprlib import repr as short
from typing import Any, Literal

import numpy as np

from tagalong.errors import is_number, refuse

from .grouping import FORMAT, Group, Grouping, GroupingFileError, Option, read_yaml
from .posing import components
from .problem import indices
from .request import Cost, Request, Units, read_links
from .scores import Candidate, Complete, Scores, group_name, read_scores

Written = Group | frozenset[str]
SAME = 1e-9  # of the larger value: what counts as equal
EXPECTED = "a list of lists of names, `name: [names]`, or entries with `trains` and perhaps `serves`"


def read_groups(text: str) -> tuple[Written, ...]:
    """Reads groups from YAML or JSON text, a saved grouping or one made by hand.

    Args:
        text: a list of lists of names; a mapping from a name of your own to such a list; a list (or mapping) of
            entries with `trains`, and with `serves` where helpers are trained along; or what `Grouping.to_json`
            and `Grouping.to_yaml` write.

    Returns:
        A `Group` where the text says what is served, a set of names where it does not.

    Raises:
        GroupingFileError: the text says something else.

    Example:
        >>> [sorted(group) for group in read_groups("hair: [black, blond]\\nbeard: [goatee, mustache]")]
        [['black', 'blond'], ['goatee', 'mustache']]
        >>> print(read_groups("- {trains: [age, ill], serves: [age]}")[0])
        serves {age}, helped by {ill}
    """
    document = _document(text)
    if isinstance(document, Mapping):
        if "groupings" in document:
            raise GroupingFileError("found groupings for several budgets, expected one; save a single budget")
        document = document.get("groups", document)
    entries = list(document.values()) if isinstance(document, Mapping) else document
    if not isinstance(entries, list) or not entries:
        found = "nothing" if not entries else type(entries).__name__
        raise GroupingFileError(f"groups must be {EXPECTED}, found {found}")
    return tuple(_written(entry) for entry in entries)


def _document(text: str) -> Any:
    # JSON first: YAML does not take its tabs.
    if text.lstrip()[:1] in ("{", "["):
        try:
            document = json.loads(text)
            if isinstance(document, dict) and document.get("format") == FORMAT:
                return document
        except (ValueError, RecursionError):
            pass
    try:
        return read_yaml(text.replace("\t", " "), as_text=True)
    except ValueError as error:
        raise GroupingFileError(f"groups must be valid YAML or JSON, found {error}") from error


def _written(entry: Any) -> Written:
    if not isinstance(entry, Mapping):
        return _names(entry)
    if "trains" not in entry or set(entry) - {"trains", "serves", "cost", "name"}:
        raise GroupingFileError(f"groups must be {EXPECTED}, found an entry with {', '.join(map(repr, entry))}")
    trains = _names(entry["trains"])
    if "serves" not in entry:
        return trains
    try:
        return Group(trains, _names(entry["serves"]), float(entry.get("cost", 1)))
    except (TypeError, ValueError) as error:
        raise GroupingFileError(str(error)) from None


def _names(entry: Any) -> frozenset[str]:
    names = re.split(r"\s*[,+;]\s*", entry.strip()) if isinstance(entry, str) else entry
    if not isinstance(names, list) or not names or not all(isinstance(name, str) and name for name in names):
        raise GroupingFileError(f"a group must be a list of names, found {entry!r}")
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise GroupingFileError(f"a group must name each task once, found {', '.join(map(repr, twice))} again")
    return frozenset(names)


def score_grouping(
    scores: Any,
    groups: Iterable[Group | Iterable[str]],
    *,
    budget: float | None = None,
    objective: Literal["max", "min"] = "max",
    allow_single: bool | None = None,
    max_size: int | None = None,
    cost: Cost | None = None,
    max_cost: float | None = None,
    must_link: Iterable[Iterable[str]] = (),
    cannot_link: Iterable[Iterable[str]] = (),
    weights: Mapping[str, float] | None = None,
    complete: Complete = None,
) -> Grouping:
    """Scores a grouping made by hand, or by another method, as `select_groups` would.

    Args:
        scores: as for `select_groups`, and so are the options below.
        groups: each a `Group`, which says what it serves, or a set of names to train: then every task is served
            by the best of the networks that train it.
        budget: what to write into the grouping; what the networks cost by default. More may be spent.
        objective: "max" or "min".
        allow_single: whether a network may train one task alone.
        max_size: how many tasks a network may train.
        cost: of one network given its tasks.
        max_cost: what a single network may cost.
        must_link: sets of tasks served by the same network.
        cannot_link: sets of tasks of which no network trains two.
        weights: how much each task counts in the sum.
        complete: "pairs" fills larger groups in a table.

    Returns:
        A `Grouping` with solver "given"; its bound gives every task the best partner it could have.

    Raises:
        ValueError: groups that name unknown tasks, leave tasks out, have no known result or break a rule.

    Example:
        >>> affinity = [[0, 5, 1], [5, 0, 0], [0, 0, 0]]
        >>> score_grouping(affinity, [{"0", "1"}, {"1", "2"}]).value
        10.0
    """
    request = Request(
        budgets=(1,),
        objective=objective,
        allow_single=allow_single,
        max_size=max_size,
        cost=cost,
        max_cost=max_cost,
        must_link=read_links(must_link),
        cannot_link=read_links(cannot_link),
        weights=weights,
    )
    read = read_scores(scores, complete, costs=cost is not None)
    request.check(read)
    if budget is not None and not (is_number(budget) and budget > 0):
        raise ValueError(f"`budget` must be a positive number, found {short(budget)}")
    networks = [_Network.of(group, read, request) for group in _groups_given(groups)]
    problems = [problem for network in networks for problem in network.problems(read, request)]
    refuse(problems + _left_out(networks, read))
    return _scored(networks, read, request, budget)


def _groups_given(groups: Any) -> list[Written]:
    expected = "`groups` must be a list of groups, each a Group or a set of names"
    if isinstance(groups, str) or not isinstance(groups, Iterable):
        raise ValueError(f"{expected}, found {short(groups)}")
    written: list[Written] = []
    for group in groups:
        if isinstance(group, str) or not isinstance(group, (Group, Iterable)):
            raise ValueError(f"{expected}, found {short(group)} among them")
        names = group if isinstance(group, Group) else tuple(group)
        if isinstance(names, tuple) and not all(isinstance(name, str) for name in names):
            raise ValueError(f"{expected}, found {short(names)} among them")
        written.append(names if isinstance(names, Group) else frozenset(names))
    return written


@dataclass(frozen=True)
class _Network:
    """A written network with the scores of the tasks it can serve.

    Attributes:
        trains: its tasks.
        serves: those it serves; None if nobody said.
        values: the score of each task it could serve.
        cost: NaN if a table of costs does not list it.
    """

    trains: frozenset[str]
    serves: frozenset[str] | None
    values: Mapping[str, float]
    cost: float

    @classmethod
    def of(cls, group: Written, scores: Scores, request: Request) -> _Network:
        """Looks its scores up; unknown names have none, and `problems` says so."""
        trains, serves = (group.trains, group.serves) if isinstance(group, Group) else (group, None)
        if not trains or not trains <= set(scores.tasks):
            return cls(trains, serves, {}, 1.0)
        if scores.listed is None:
            values = {task: scores.of(task, trains) for task in sorted(trains)}
            cost = request.cost_of(trains)
        else:
            chosen = _listed(group, trains, scores, request)
            values = dict(chosen.values) if chosen else {}
            own = chosen is not None and not np.isnan(chosen.cost)
            cost = chosen.cost if chosen is not None and own else request.cost_of(trains)
        if len(scores.tasks) == 1:
            values = {task: 0.0 if np.isnan(value) else value for task, value in values.items()}
        return cls(trains, serves, {task: value for task, value in values.items() if np.isfinite(value)}, cost)

    def problems(self, scores: Scores, request: Request) -> list[str]:
        """What stands against it."""
        name = group_name(self.trains)
        unknown = sorted(self.trains - set(scores.tasks))
        if unknown or not self.trains:
            known, found = ", ".join(map(repr, scores.tasks)), ", ".join(map(repr, unknown)) or "an empty group"
            return [f"`groups` must name tasks ({known}), found {found}"]
        if len(self.trains) == 1 and len(scores.tasks) > 1 and not request.singles(scores):
            return [f"`groups`: {name} trains one task alone, and `allow_single` is off for these scores"]
        problems = []
        if not set(self.serves or ()) <= set(self.values) or not self.values:
            problems.append(f"`groups`: there is no result for {name} in `scores`")
        if request.max_size is not None and len(self.trains) > request.max_size:
            problems.append(f"`groups`: {name} trains {len(self.trains)} tasks, `max_size` is {request.max_size}")
        if np.isnan(self.cost):
            problems.append(f"`groups`: `cost` does not list {name}")
        if request.max_cost is not None and self.cost > request.max_cost * (1 + 1e-9):
            problems.append(f"`groups`: {name} costs {self.cost:g}, `max_cost` is {request.max_cost:g}")
        for link in request.cannot_link:
            if len(self.trains & set(link)) > 1:
                both = ", ".join(sorted(self.trains & set(link)))
                problems.append(f"`groups`: {name} trains {both} together, against `cannot_link`")
        return problems


def _listed(group: Written, trains: frozenset[str], scores: Scores, request: Request) -> Candidate | None:
    """The candidate that trains these tasks: of the cost that is written, else the best, then the cheapest."""
    same = [entry for entry in scores.listed or () if entry.trains == trains]
    costed = [entry for entry in same if isinstance(group, Group) and entry.cost == group.cost]
    if len(costed or same) < 2:
        return next(iter(costed or same), None)
    units = request.units(scores)

    def worth(entry: Candidate) -> tuple[float, float]:
        total = sum(units.one(scores.tasks.index(task), value) for task, value in entry.values.items())
        return request.sign * total, -entry.cost

    return max(costed or same, key=worth)


def _left_out(networks: Sequence[_Network], scores: Scores) -> list[str]:
    """Tasks that nothing serves, or more than one network says it serves."""
    said = [task for network in networks for task in network.serves or ()]
    reached = set(said).union(*(network.values for network in networks if network.serves is None))
    missing = sorted(set(scores.tasks) - reached)
    twice = sorted({task for task in said if said.count(task) > 1})
    problems = []
    if missing:
        problems.append(f"`groups` must serve every task, found none that serves {', '.join(map(repr, missing))}")
    if twice:
        problems.append(f"`groups` must serve each task once, found {', '.join(map(repr, twice))} more than once")
    return problems


def _scored(networks: Sequence[_Network], scores: Scores, request: Request, budget: float | None) -> Grouping:
    units = request.units(scores)
    number = {task: i for i, task in enumerate(scores.tasks)}
    place = _places(networks, scores, request, units)
    per_task = {task: networks[at].values[task] for task, at in place.items()}
    value = units.back(sum(units.one(number[task], score) for task, score in per_task.items()))
    spent = float(sum(network.cost for network in networks))
    return Grouping(
        groups=tuple(
            Group(network.trains, {task for task, at in place.items() if at == row}, network.cost)
            for row, network in enumerate(networks)
        ),
        value=value,
        bound=request.sign * max(_best_partners(scores, request, units), request.sign * value),
        status="feasible",
        per_task={task: per_task[task] for task in scores.tasks},
        budget=budget if budget is not None else (int(spent) if spent.is_integer() else spent),
        objective=request.objective,
        options={task: _options(networks, task, request.sign) for task in scores.tasks},
    )


def _places(networks: Sequence[_Network], scores: Scores, request: Request, units: Units) -> dict[str, int]:
    """Which network serves each task: as written, else the best; linked tasks go together."""
    place: dict[str, int] = {}
    problems = []
    for bits in components(scores.tasks, request.must_link):
        link = [scores.tasks[i] for i in indices(bits)]
        said = {at for at, network in enumerate(networks) for task in link if task in (network.serves or ())}
        able = [
            at
            for at, network in enumerate(networks)
            if set(link) <= set(network.values) and (said == {at} or (not said and network.serves is None))
        ]
        if not able:
            problems.append(f"`groups`: no network serves {', '.join(link)} together, as `must_link` asks")
            continue
        worth = [
            request.sign * sum(units.one(i, networks[at].values[scores.tasks[i]]) for i in indices(bits)) for at in able
        ]
        best = able[worth.index(max(worth))]
        place |= dict.fromkeys(link, best)
    refuse(problems)
    return place


def _options(networks: Sequence[_Network], task: str, sign: float) -> tuple[Option, ...]:
    known = [Option(network.trains, network.values[task]) for network in networks if task in network.values]
    return tuple(sorted(known, key=lambda option: (-sign * option.score, sorted(option.trains))))


def _best_partners(scores: Scores, request: Request, units: Units) -> float:
    """No grouping is worth more than every task in the best company there is for it."""
    best = dict.fromkeys(scores.tasks, -np.inf)
    for entry in scores.listed or [Candidate(group, values) for group, values in scores.given.items()]:
        for task, value in entry.values.items():
            best[task] = max(best[task], request.sign * value)
    if scores.matrix is not None:
        known = np.where(np.isfinite(scores.matrix), request.sign * scores.matrix, -np.inf)
        if not request.singles(scores) and len(known) > 1:
            np.fill_diagonal(known, -np.inf)
        best = {task: max(best[task], top) for task, top in zip(scores.tasks, known.max(axis=0).tolist(), strict=True)}
    top = [best[task] if np.isfinite(best[task]) else 0.0 for task in scores.tasks]
    return units.back(sum(units.one(i, score) for i, score in enumerate(top)))


@dataclass(frozen=True)
class Comparison:
    """Two groupings of the same tasks, scored alike.

    Attributes:
        mine: for example made by hand and scored by `score_grouping`.
        best: what to compare it with, usually from `select_groups`.

    Example:
        >>> from tagalong.group import score_grouping, select_groups
        >>> affinity = [[0, 5, 1], [5, 0, 0], [0, 0, 0]]
        >>> print(Comparison(score_grouping(affinity, [{"0", "1"}, {"1", "2"}]), select_groups(affinity, 2)))
        loses 1 of 11 (9.1%), all of it on 2
    """

    mine: Grouping
    best: Grouping

    def __post_init__(self) -> None:
        if self.mine.tasks != self.best.tasks or self.mine.objective != self.best.objective:
            raise ValueError("`mine` and `best` must be groupings of the same tasks with the same objective")

    @property
    def loss(self) -> float:
        """How much worse `mine` is in total; negative where it is better, 0 up to rounding."""
        sign = 1.0 if self.best.objective == "max" else -1.0
        loss = sign * (self.best.value - self.mine.value)
        largest = max(abs(self.best.value), abs(self.mine.value))
        return 0.0 if abs(loss) <= SAME * largest else loss

    @property
    def per_task(self) -> dict[str, float]:
        """How much worse `mine` is for each task, before weights; negative where it is better."""
        sign = 1.0 if self.best.objective == "max" else -1.0
        return {task: sign * (score - self.mine.per_task[task]) for task, score in self.best.per_task.items()}

    @property
    def spent(self) -> tuple[float, float]:
        """What the networks of `mine` and of `best` cost."""
        return sum(group.cost for group in self.mine.groups), sum(group.cost for group in self.best.groups)

    def __str__(self) -> str:
        if not self.loss:
            return f"is as good: {self.mine.value:.6g}"
        share = f" ({abs(self.loss / self.best.value):.1%})" if self.best.value else ""
        if self.loss < 0:
            return f"is better by {-self.loss:.4g}{share} than {self.best.value:.6g}"
        losing = [task for task, loss in self.per_task.items() if loss > SAME * abs(self.best.value)]
        where = f", all of it on {losing[0]}" if len(losing) == 1 else ""
        return f"loses {self.loss:.4g} of {self.best.value:.6g}{share}{where}"
