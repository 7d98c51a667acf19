"""Scores groups chosen by hand or by another method, with the rules of `select_groups`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal

import numpy as np

from tagalong.errors import InvalidInput, is_positive

from .grouping import Group, Grouping, Option
from .problem_building import link_components
from .scores import Candidate, Complete, Scores, group_name, read_scores
from .selection_problem import tasks_in_mask
from .selection_request import Cost, SelectionRequest, read_links


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
    known = read_scores(scores, complete, has_costs=cost is not None)
    request.check(known)
    if budget is not None and not is_positive(budget):
        raise InvalidInput("budget", "must be a positive number", repr(budget))
    groups = list(groups)
    if any(isinstance(group, str) for group in groups):
        raise InvalidInput("groups", "must be a list of Groups or sets of names", repr(groups))
    given = [group if isinstance(group, Group) else frozenset(group) for group in groups]
    networks = [_look_up(group, known, request) for group in given]
    scaling, sign = request.scaling(known), request.sign

    # Linked tasks are served by the same network: the one that says so, or else the one with their best total.
    serves: list[set[str]] = [set() for _ in networks]
    for bits in link_components(known.tasks, request.must_link):
        link = {known.tasks[i] for i in tasks_in_mask(bits)}
        stated = {row for row, group in enumerate(given) if isinstance(group, Group) and group.serves & link}
        totals = {
            row: sign * scaling.weighted_total({task: network.values[task] for task in link}, known.tasks)
            for row, network in enumerate(networks)
            if link <= set(network.values) and (stated == {row} or not (stated or isinstance(given[row], Group)))
        }
        if not totals:
            found = "several" if len(stated) > 1 else "none"
            raise InvalidInput("groups", f"must serve {', '.join(map(repr, sorted(link)))} by one network", found)
        serves[max(totals, key=totals.__getitem__)] |= link

    per_task = {task: networks[row].values[task] for row, served in enumerate(serves) for task in served}
    per_task = {task: per_task[task] for task in known.tasks}
    value = scaling.to_scores(scaling.weighted_total(per_task, known.tasks))
    highest = scaling.to_scores(sign * scaling.weighted_total(_best_scores(known, request), known.tasks))
    spent = float(sum(network.cost for network in networks))
    options = {
        task: [Option(network.trains, network.values[task]) for network in networks if task in network.values]
        for task in known.tasks
    }
    return Grouping(
        groups=tuple(Group(network.trains, serves[row], network.cost) for row, network in enumerate(networks)),
        value=value,
        bound=sign * max(highest, sign * value),
        status="feasible",
        per_task=per_task,
        budget=budget or (int(spent) if spent.is_integer() else spent),
        objective=objective,
        options={
            task: tuple(sorted(found, key=lambda option: (-sign * option.score, sorted(option.trains))))
            for task, found in options.items()
        },
        unmeasured=known.unmeasured,
    )


def _look_up(group: Group | frozenset[str], scores: Scores, request: SelectionRequest) -> Candidate:
    """Returns the network with this group's tasks, the results of those that it can serve, and its cost."""
    trains = group.trains if isinstance(group, Group) else group
    unknown = trains - set(scores.tasks)
    if unknown or not trains:
        expected = f"must contain only known tasks ({', '.join(map(repr, scores.tasks))})"
        raise InvalidInput("groups", expected, ", ".join(map(repr, sorted(unknown))) or "an empty group")
    if scores.candidates is None:
        network = Candidate(trains, {task: scores.score_of(task, trains) for task in sorted(trains)}, np.nan)
    else:
        # Several networks may train the same tasks: prefer the stated cost, then better results, then lower costs.
        listed = [entry for entry in scores.candidates if entry.trains == trains]
        same_cost = [entry for entry in listed if isinstance(group, Group) and entry.cost == group.cost]
        scaling = request.scaling(scores)
        network = max(
            same_cost or listed,
            key=lambda entry: (request.sign * scaling.weighted_total(entry.values, scores.tasks), -entry.cost),
            default=Candidate(trains, {}, np.nan),
        )
    values = {task: value for task, value in network.values.items() if np.isfinite(value)}
    if len(scores.tasks) == 1:
        values = dict.fromkeys(trains, 0.0) | values  # there is nothing to choose, so the score may be unknown
    cost = request.cost_of(trains) if np.isnan(network.cost) else network.cost
    must_serve = group.serves if isinstance(group, Group) else set()
    alone = len(trains) == 1 < len(scores.tasks)
    broken_rules = {
        "`allow_single` does not permit": alone and not request.allows_single_tasks(scores),
        "`scores` has no result for": not values or not must_serve <= set(values),
        "`cost` has no entry for": bool(np.isnan(cost)),
        "`max_size` does not permit": request.max_size is not None and len(trains) > request.max_size,
        "`max_cost` does not permit": request.max_cost is not None and cost > request.max_cost * (1 + 1e-9),
        "`cannot_link` does not permit": any(len(trains & set(link)) > 1 for link in request.cannot_link),
    }
    for rule, is_broken in broken_rules.items():
        if is_broken:
            raise InvalidInput("`groups`:", f"{rule} {group_name(trains)}")
    return Candidate(trains, values, cost)


def _best_scores(scores: Scores, request: SelectionRequest) -> dict[str, float]:
    """Returns the score that each task would have if it had its best partners."""
    results = [*scores.given.values(), *(entry.values for entry in scores.candidates or ())]
    rows = [[values.get(task, np.nan) for task in scores.tasks] for values in results]
    if scores.matrix is not None:
        n, singles = len(scores.tasks), request.allows_single_tasks(scores)
        rows += np.where(np.eye(n, dtype=bool) & (n > 1 and not singles), np.nan, scores.matrix).tolist()
    best = request.sign * np.fmax.reduce(request.sign * np.array(rows))
    return dict(zip(scores.tasks, np.nan_to_num(best).tolist(), strict=True))
