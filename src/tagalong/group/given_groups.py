"""Scores groups chosen by hand or by another method, with the rules of `select_groups`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from tagalong.errors import InvalidInput

from .grouping import Group, Grouping
from .scores import Candidate, Complete, Cost, Objective, Scores, assemble_grouping, group_name, read_scores


def score_grouping(
    scores: Any,
    groups: Iterable[Group | Iterable[str]],
    *,
    objective: Objective = "max",
    allow_single: bool | None = None,
    cost: Cost | None = None,
    weights: Mapping[str, float] | None = None,
    complete: Complete = None,
) -> Grouping:
    """Scores an existing grouping in the same way as `select_groups` does.

    Args:
        scores: the scores, in any form that `select_groups` accepts. The other options also have the same meaning as in
            `select_groups`.
        groups: the groups, given as `Group` objects or as sets of task names. A `Group` specifies which tasks it
            serves. Otherwise, each task is served by the network in which it has the best score.
        objective: "max" or "min".
        allow_single: whether a network may be trained on a single task.
        cost: the cost of a network as a function of its tasks.
        weights: the weight of each task in the sum.
        complete: if "pairs", missing results of larger groups are computed from pairs.

    Returns:
        A `Grouping` with solver "given". Its bound is the value that would result if every task had its best partner,
        and its budget is the number of groups.

    Raises:
        InvalidInput: If a task is unknown or not served, or a group has no known result.

    Example:
        >>> affinity = [[0, 5, 1], [5, 0, 0], [0, 0, 0]]
        >>> score_grouping(affinity, [{"0", "1"}, {"1", "2"}]).value
        10.0
    """
    task_scores = read_scores(
        scores, objective=objective, allow_single=allow_single, cost=cost, weights=weights, complete=complete
    )
    tasks, sign = task_scores.tasks, task_scores.sign
    groups = list(groups)
    networks = [_look_up(group, task_scores) for group in groups]

    # Each task is served by the network that says so, or else by the one in which it has the best score.
    serves: list[set[str]] = [set() for _ in networks]
    for task in tasks:
        stated = [row for row, group in enumerate(groups) if isinstance(group, Group) and task in group.serves]
        free = [row for row, group in enumerate(groups) if not isinstance(group, Group)]
        able = [row for row in stated or free if task in networks[row].values]
        if len(stated) > 1 or not able:
            raise InvalidInput("groups", f"must serve {task!r} by one network", "several" if stated[1:] else "none")
        chosen = max(able, key=lambda row: sign * networks[row].values[task])
        serves[chosen].add(task)

    # In no grouping is a task better than in its best network or with its best partner.
    best = dict.fromkeys(tasks, -np.inf)
    if task_scores.matrix is not None:
        unused = np.eye(len(tasks), dtype=bool) & (len(tasks) > 1) & (not task_scores.singles)
        best_partners = np.where(unused, -np.inf, sign * task_scores.matrix).max(axis=0)
        best = dict(zip(tasks, best_partners.tolist(), strict=True))
    for values in [*task_scores.group_results.values(), *(entry.values for entry in task_scores.candidates or ())]:
        for task, score in values.items():
            best[task] = max(best[task], sign * score)

    chosen_networks = [
        (Group(network.trains, served, network.cost), network.values)
        for network, served in zip(networks, serves, strict=True)
    ]
    return assemble_grouping(task_scores, chosen_networks, len(networks), sign * task_scores.total(best))


def _look_up(group: Group | Iterable[str], scores: Scores) -> Candidate:
    """Returns the network with this group's tasks, the results of those that it can serve, and its cost."""
    trains = group.trains if isinstance(group, Group) else frozenset(group)
    if isinstance(group, str) or not trains or not trains <= set(scores.tasks):
        raise InvalidInput("groups", f"must be sets of known tasks ({', '.join(map(repr, scores.tasks))})", repr(group))
    if len(trains) == 1 < len(scores.tasks) and not scores.singles:
        raise InvalidInput("groups", "must have two or more tasks unless `allow_single=True`", group_name(trains))

    # Several listed networks may train these tasks: prefer the stated cost, then better results, then lower costs.
    listed = [entry for entry in scores.candidates or () if entry.trains == trains]
    if listed:
        stated_cost = getattr(group, "cost", None)
        network = max(
            listed, key=lambda entry: (entry.cost == stated_cost, scores.sign * scores.total(entry.values), -entry.cost)
        )
        values, cost = network.values, network.cost
    else:
        values, cost = {task: scores.score_of(task, trains) for task in sorted(trains)}, np.nan
        values = {task: score for task, score in values.items() if np.isfinite(score)}
    cost = scores.cost_of(trains) if np.isnan(cost) else cost
    if not values or np.isnan(cost):
        raise InvalidInput("groups", "must have a result in `scores` and an entry in `cost`", group_name(trains))
    return Candidate(trains, values, cost)
