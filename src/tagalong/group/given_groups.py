"""Reads, scores and compares groups chosen by hand or by another method."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from reprlib import repr as short
from typing import Any, Literal

import numpy as np

from tagalong.errors import InvalidInput, is_number, raise_problems

from .grouping import FORMAT, Group, Grouping, GroupingFileError, Option, read_yaml
from .problem_building import link_components
from .scores import Candidate, Complete, Scores, group_name, read_scores
from .selection_problem import tasks_in_mask
from .selection_request import Cost, ScoreScaling, SelectionRequest, read_links

GivenGroup = Group | frozenset[str]
EQUALITY_TOLERANCE = 1e-9  # relative


def read_groups(text: str) -> tuple[GivenGroup, ...]:
    """Reads groups from YAML or JSON text, which may be a saved grouping or may have been written by hand.

    Args:
        text: the output of `Grouping.to_json` or `Grouping.to_yaml`, a list of groups, or a mapping from group names to
            groups. A group is a list of task names, or an entry with `trains` and optionally `serves`.

    Returns:
        The groups. An entry with `serves` is returned as a `Group`, and any other entry as a set of task names.

    Raises:
        GroupingFileError: If the text cannot be read as groups.

    Example:
        >>> [sorted(group) for group in read_groups("hair: [black, blond]\\nbeard: [goatee, mustache]")]
        [['black', 'blond'], ['goatee', 'mustache']]
        >>> print(read_groups("- {trains: [age, ill], serves: [age]}")[0])
        serves {age}, helped by {ill}
    """
    document = _parse_document(text)
    if isinstance(document, Mapping):
        if "groupings" in document:
            hint = "save the grouping for a single budget"
            raise GroupingFileError("groups", "must be a single grouping", "groupings for multiple budgets", hint)
        document = document.get("groups", document)
    entries = list(document.values()) if isinstance(document, Mapping) else document
    if not isinstance(entries, list) or not entries:
        found = "nothing" if not entries else type(entries).__name__
        expected = "must be a list of lists of names, a mapping 'name: [names]', or a list of {trains, serves} entries"
        raise GroupingFileError("groups", expected, found)
    return tuple(_read_entry(entry) for entry in entries)


def _parse_document(text: str) -> Any:
    # Try JSON first, because it may contain tabs, which YAML does not allow.
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
        raise GroupingFileError("groups", f"is not valid YAML or JSON: {error}") from error


def _read_entry(entry: Any) -> GivenGroup:
    if not isinstance(entry, Mapping):
        return _read_names(entry)
    if "trains" not in entry or set(entry) - {"trains", "serves", "cost", "name"}:
        expected = "must contain lists of names, or entries with 'trains' and 'serves'"
        raise GroupingFileError("groups", expected, f"an entry with the keys {', '.join(map(repr, entry))}")
    trains = _read_names(entry["trains"])
    if "serves" not in entry:
        return trains
    try:
        return Group(trains, _read_names(entry["serves"]), float(entry.get("cost", 1)))
    except (TypeError, ValueError, OverflowError) as error:
        raise GroupingFileError("`groups`:", str(error)) from None


def _read_names(entry: Any) -> frozenset[str]:
    names = re.split(r"\s*[,+;]\s*", entry.strip()) if isinstance(entry, str) else entry
    if not isinstance(names, list) or not names or not all(isinstance(name, str) and name for name in names):
        raise GroupingFileError("`groups`:", "each group must be a list of names", short(entry))
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        found = f"{', '.join(map(repr, repeated))} more than once"
        raise GroupingFileError("`groups`:", "each group must list each task only once", found)
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
    """Scores an existing grouping in the same way as `select_groups` does.

    Args:
        scores: the scores, in any form that `select_groups` accepts. The other options also have the same meaning as in
            `select_groups`.
        groups: the groups, given as `Group` objects or as sets of task names. A `Group` specifies which tasks it
            serves. Otherwise, each task is served by the network in which it has the best score.
        budget: the budget to record in the grouping. The budget is not enforced. Defaults to the total cost of the
            networks.
        objective: "max" or "min".
        allow_single: whether a network may be trained on a single task.
        max_size: the maximum number of tasks per network.
        cost: the cost of a network as a function of its tasks.
        max_cost: the maximum cost of a single network.
        must_link: sets of tasks that must be served by the same network.
        cannot_link: sets of tasks that must not be trained in the same network.
        weights: the weight of each task in the sum.
        complete: if "pairs", missing results of larger groups are computed from pairs.

    Returns:
        A `Grouping` with solver "given". Its bound is the value that would result if every task had its best partner.

    Raises:
        InvalidInput: If a task is unknown or missing, a group has no known result, or a constraint is violated.

    Example:
        >>> affinity = [[0, 5, 1], [5, 0, 0], [0, 0, 0]]
        >>> score_grouping(affinity, [{"0", "1"}, {"1", "2"}]).value
        10.0
    """
    request = SelectionRequest(
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
    read = read_scores(scores, complete, has_costs=cost is not None)
    request.check(read)
    if budget is not None and not (is_number(budget) and budget > 0):
        raise InvalidInput("budget", "must be a positive number", short(budget))
    networks = [_ScoredNetwork.look_up(group, read, request) for group in _check_groups(groups)]
    problems = [problem for network in networks for problem in network.problems(read, request)]
    raise_problems(problems + _coverage_problems(networks, read))
    return _build_grouping(networks, read, request, budget)


def _check_groups(groups: Any) -> list[GivenGroup]:
    expected = "must be a list of Groups or sets of names"
    if isinstance(groups, str) or not isinstance(groups, Iterable):
        raise InvalidInput("groups", expected, short(groups))
    checked: list[GivenGroup] = []
    for group in groups:
        if isinstance(group, str) or not isinstance(group, (Group, Iterable)):
            raise InvalidInput("groups", expected, short(group))
        names = group if isinstance(group, Group) else tuple(group)
        if isinstance(names, tuple) and not all(isinstance(name, str) for name in names):
            raise InvalidInput("groups", expected, short(names))
        checked.append(names if isinstance(names, Group) else frozenset(names))
    return checked


@dataclass(frozen=True)
class _ScoredNetwork:
    """A network in a given grouping, with the scores of the tasks that it can serve.

    Attributes:
        trains: the tasks on which the network is trained.
        serves: the tasks that the network must serve, or None if they are not specified.
        values: the score of each task that the network can serve.
        cost: the cost of the network, or NaN if the cost table does not list it.
    """

    trains: frozenset[str]
    serves: frozenset[str] | None
    values: Mapping[str, float]
    cost: float

    @classmethod
    def look_up(cls, group: GivenGroup, scores: Scores, request: SelectionRequest) -> _ScoredNetwork:
        """Looks up the scores of a group. Unknown tasks are reported later by `problems`."""
        trains, serves = (group.trains, group.serves) if isinstance(group, Group) else (group, None)
        if not trains or not trains <= set(scores.tasks):
            return cls(trains, serves, {}, 1.0)
        if scores.candidates is None:
            values = {task: scores.score_of(task, trains) for task in sorted(trains)}
            cost = request.cost_of(trains)
        else:
            chosen = _find_candidate(group, trains, scores, request)
            values = dict(chosen.values) if chosen else {}
            own = chosen is not None and not np.isnan(chosen.cost)
            cost = chosen.cost if chosen is not None and own else request.cost_of(trains)
        if len(scores.tasks) == 1:
            values = {task: 0.0 if np.isnan(value) else value for task, value in values.items()}
        return cls(trains, serves, {task: value for task, value in values.items() if np.isfinite(value)}, cost)

    def problems(self, scores: Scores, request: SelectionRequest) -> list[InvalidInput]:
        """Returns the problems with this network, such as violated constraints."""
        name = group_name(self.trains)
        unknown = sorted(self.trains - set(scores.tasks))
        if unknown or not self.trains:
            known, found = ", ".join(map(repr, scores.tasks)), ", ".join(map(repr, unknown)) or "an empty group"
            return [InvalidInput("groups", f"must contain only known tasks ({known})", found)]
        if len(self.trains) == 1 and len(scores.tasks) > 1 and not request.allows_single_tasks(scores):
            return [
                _group_problem(f"{name} trains a single task, which `allow_single` does not permit for these scores")
            ]
        problems = []
        if not set(self.serves or ()) <= set(self.values) or not self.values:
            problems.append(_group_problem(f"`scores` has no result for {name}"))
        if request.max_size is not None and len(self.trains) > request.max_size:
            problems.append(
                _group_problem(f"{name} trains {len(self.trains)} tasks, but `max_size` is {request.max_size}")
            )
        if np.isnan(self.cost):
            problems.append(_group_problem(f"`cost` has no entry for {name}"))
        if request.max_cost is not None and self.cost > request.max_cost * (1 + 1e-9):
            problems.append(_group_problem(f"{name} costs {self.cost:g}, but `max_cost` is {request.max_cost:g}"))
        for link in request.cannot_link:
            if len(self.trains & set(link)) > 1:
                both = ", ".join(sorted(self.trains & set(link)))
                problems.append(_group_problem(f"{name} trains {both} together, which `cannot_link` forbids"))
        return problems


def _group_problem(text: str) -> InvalidInput:
    return InvalidInput("`groups`:", text)


def _find_candidate(
    group: GivenGroup, trains: frozenset[str], scores: Scores, request: SelectionRequest
) -> Candidate | None:
    """Returns the matching candidate.

    If there are several, candidates with the given cost are preferred, then those with better scores, and then those
    with lower costs.
    """
    same = [entry for entry in scores.candidates or () if entry.trains == trains]
    same_cost = [entry for entry in same if isinstance(group, Group) and entry.cost == group.cost]
    if len(same_cost or same) < 2:
        return next(iter(same_cost or same), None)
    scaling = request.scaling(scores)

    def preference(entry: Candidate) -> tuple[float, float]:
        total = sum(scaling.weighted_score(scores.tasks.index(task), value) for task, value in entry.values.items())
        return request.sign * total, -entry.cost

    return max(same_cost or same, key=preference)


def _coverage_problems(networks: Sequence[_ScoredNetwork], scores: Scores) -> list[InvalidInput]:
    """Checks that every task is served by exactly one network, and returns the problems found."""
    stated = [task for network in networks for task in network.serves or ()]
    reached = set(stated).union(*(network.values for network in networks if network.serves is None))
    missing = sorted(set(scores.tasks) - reached)
    repeated = sorted({task for task in stated if stated.count(task) > 1})
    problems = []
    if missing:
        unserved = f"no group that serves {', '.join(map(repr, missing))}"
        problems.append(InvalidInput("groups", "must serve every task", unserved))
    if repeated:
        found = f"{', '.join(map(repr, repeated))} more than once"
        problems.append(InvalidInput("groups", "must serve each task only once", found))
    return problems


def _build_grouping(
    networks: Sequence[_ScoredNetwork], scores: Scores, request: SelectionRequest, budget: float | None
) -> Grouping:
    scaling = request.scaling(scores)
    number = {task: i for i, task in enumerate(scores.tasks)}
    place = _assign_tasks(networks, scores, request, scaling)
    per_task = {task: networks[at].values[task] for task, at in place.items()}
    value = scaling.to_scores(sum(scaling.weighted_score(number[task], score) for task, score in per_task.items()))
    spent = float(sum(network.cost for network in networks))
    return Grouping(
        groups=tuple(
            Group(network.trains, {task for task, at in place.items() if at == row}, network.cost)
            for row, network in enumerate(networks)
        ),
        value=value,
        bound=request.sign * max(_upper_bound(scores, request, scaling), request.sign * value),
        status="feasible",
        per_task={task: per_task[task] for task in scores.tasks},
        budget=budget if budget is not None else (int(spent) if spent.is_integer() else spent),
        objective=request.objective,
        options={task: _scored_options(networks, task, request.sign) for task in scores.tasks},
        unmeasured=scores.unmeasured,
    )


def _assign_tasks(
    networks: Sequence[_ScoredNetwork], scores: Scores, request: SelectionRequest, scaling: ScoreScaling
) -> dict[str, int]:
    """Returns the network that serves each task. Unless specified otherwise, this is the network with the best score.

    Linked tasks stay together.
    """
    place: dict[str, int] = {}
    problems = []
    for bits in link_components(scores.tasks, request.must_link):
        link = [scores.tasks[i] for i in tasks_in_mask(bits)]
        stated = {at for at, network in enumerate(networks) for task in link if task in (network.serves or ())}
        eligible = [
            at
            for at, network in enumerate(networks)
            if set(link) <= set(network.values) and (stated == {at} or (not stated and network.serves is None))
        ]
        if not eligible:
            problems.append(_group_problem(f"no network serves {', '.join(link)} together, which `must_link` requires"))
            continue
        worth = [
            request.sign
            * sum(scaling.weighted_score(i, networks[at].values[scores.tasks[i]]) for i in tasks_in_mask(bits))
            for at in eligible
        ]
        best = eligible[worth.index(max(worth))]
        place |= dict.fromkeys(link, best)
    raise_problems(problems)
    return place


def _scored_options(networks: Sequence[_ScoredNetwork], task: str, sign: float) -> tuple[Option, ...]:
    known = [Option(network.trains, network.values[task]) for network in networks if task in network.values]
    return tuple(sorted(known, key=lambda option: (-sign * option.score, sorted(option.trains))))


def _upper_bound(scores: Scores, request: SelectionRequest, scaling: ScoreScaling) -> float:
    """Returns an upper bound on the value, assuming that every task has its best partner."""
    best = dict.fromkeys(scores.tasks, -np.inf)
    for entry in scores.candidates or [Candidate(group, values) for group, values in scores.given.items()]:
        for task, value in entry.values.items():
            best[task] = max(best[task], request.sign * value)
    if scores.matrix is not None:
        known = np.where(np.isfinite(scores.matrix), request.sign * scores.matrix, -np.inf)
        if not request.allows_single_tasks(scores) and len(known) > 1:
            np.fill_diagonal(known, -np.inf)
        best = {task: max(best[task], top) for task, top in zip(scores.tasks, known.max(axis=0).tolist(), strict=True)}
    top = [best[task] if np.isfinite(best[task]) else 0.0 for task in scores.tasks]
    return scaling.to_scores(sum(scaling.weighted_score(i, score) for i, score in enumerate(top)))


@dataclass(frozen=True)
class Comparison:
    """A comparison of two groupings of the same tasks, based on the same scores.

    Attributes:
        mine: the first grouping, usually made by hand and scored with `score_grouping`.
        best: the grouping to compare `mine` with, usually found by `select_groups`.

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
            expected = "must be groupings of the same tasks with the same objective"
            raise InvalidInput("`mine` and `best`", expected)

    @property
    def loss(self) -> float:
        """How much worse `mine` is in total. A negative value means that `mine` is better."""
        sign = 1.0 if self.best.objective == "max" else -1.0
        loss = sign * (self.best.value - self.mine.value)
        largest = max(abs(self.best.value), abs(self.mine.value))
        return 0.0 if abs(loss) <= EQUALITY_TOLERANCE * largest else loss

    @property
    def per_task(self) -> dict[str, float]:
        """How much worse `mine` is for each task, ignoring weights. Negative values mean that `mine` is better."""
        sign = 1.0 if self.best.objective == "max" else -1.0
        return {task: sign * (score - self.mine.per_task[task]) for task, score in self.best.per_task.items()}

    @property
    def spent(self) -> tuple[float, float]:
        """The total costs of `mine` and `best`."""
        return sum(group.cost for group in self.mine.groups), sum(group.cost for group in self.best.groups)

    def __str__(self) -> str:
        if not self.loss:
            return f"is equally good: {self.mine.value:.6g}"
        percentage = f" ({abs(self.loss / self.best.value):.1%})" if self.best.value else ""
        if self.loss < 0:
            return f"is better by {-self.loss:.4g}{percentage} than {self.best.value:.6g}"
        losing = [task for task, loss in self.per_task.items() if loss > EQUALITY_TOLERANCE * abs(self.best.value)]
        where = f", all of it on {losing[0]}" if len(losing) == 1 else ""
        return f"loses {self.loss:.4g} of {self.best.value:.6g}{percentage}{where}"
