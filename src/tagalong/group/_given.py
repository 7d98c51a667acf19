"""What networks chosen by somebody else are worth, under the same scores and rules."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from reprlib import repr as short
from typing import Any, Literal

import numpy as np

from tagalong._names import refuse

from ._candidate import Candidate
from ._given_network import Network
from ._grouping import Group, Grouping, Option
from ._hand_made import Written
from ._pose import components
from ._problem import indices
from ._request import Cost, Request, read_links
from ._scores import Complete, Scores, Units, is_number, read_scores


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
    networks = [Network.of(group, read, request) for group in _written(groups)]
    problems = [problem for network in networks for problem in network.problems(read, request)]
    refuse(problems + _left_out(networks, read))
    return _scored(networks, read, request, budget)


def _written(groups: Any) -> list[Written]:
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


def _left_out(networks: Sequence[Network], scores: Scores) -> list[str]:
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


def _scored(networks: Sequence[Network], scores: Scores, request: Request, budget: float | None) -> Grouping:
    sign = 1.0 if request.objective == "max" else -1.0
    units = request.units(scores)
    number = {task: i for i, task in enumerate(scores.tasks)}
    place = _places(networks, scores, request, sign, units)
    per_task = {task: networks[at].values[task] for task, at in place.items()}
    value = units.back(sum(units.one(number[task], score) for task, score in per_task.items()))
    spent = float(sum(network.cost for network in networks))
    return Grouping(
        groups=tuple(
            Group(network.trains, {task for task, at in place.items() if at == number}, network.cost)
            for number, network in enumerate(networks)
        ),
        value=value,
        bound=sign * max(_best_partners(scores, request, sign, units), sign * value),
        status="feasible",
        per_task={task: per_task[task] for task in scores.tasks},
        budget=budget if budget is not None else (int(spent) if spent.is_integer() else spent),
        objective=request.objective,
        options={task: _options(networks, task, sign) for task in scores.tasks},
    )


def _places(networks: Sequence[Network], scores: Scores, request: Request, sign: float, units: Units) -> dict[str, int]:
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
        worth = [sign * sum(units.one(i, networks[at].values[scores.tasks[i]]) for i in indices(bits)) for at in able]
        best = able[worth.index(max(worth))]
        place |= dict.fromkeys(link, best)
    refuse(problems)
    return place


def _options(networks: Sequence[Network], task: str, sign: float) -> tuple[Option, ...]:
    known = [Option(network.trains, network.values[task]) for network in networks if task in network.values]
    return tuple(sorted(known, key=lambda option: (-sign * option.score, sorted(option.trains))))


def _best_partners(scores: Scores, request: Request, sign: float, units: Units) -> float:
    """No grouping is worth more than every task in the best company there is for it."""
    best = dict.fromkeys(scores.tasks, -np.inf)
    for entry in scores.listed or [Candidate(group, values) for group, values in scores.given.items()]:
        for task, value in entry.values.items():
            best[task] = max(best[task], sign * value)
    if scores.matrix is not None:
        known = np.where(np.isfinite(scores.matrix), sign * scores.matrix, -np.inf)
        if not request.singles(scores) and len(known) > 1:
            np.fill_diagonal(known, -np.inf)
        best = {task: max(best[task], top) for task, top in zip(scores.tasks, known.max(axis=0).tolist(), strict=True)}
    top = [best[task] if np.isfinite(best[task]) else 0.0 for task in scores.tasks]
    return units.back(sum(units.one(i, score) for i, score in enumerate(top)))
