"""One network that somebody wrote down: what it would score, and which rules it breaks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ._candidate import Candidate
from ._grouping import Group
from ._hand_made import Written
from ._pose import group_cost
from ._request import Request
from ._scores import Scores


@dataclass(frozen=True)
class Network:
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
    def of(cls, group: Written, scores: Scores, request: Request) -> Network:
        """Looks its scores up; unknown names have none, and `problems` says so."""
        trains, serves = (group.trains, group.serves) if isinstance(group, Group) else (group, None)
        if not trains or not trains <= set(scores.tasks):
            return cls(trains, serves, {}, 1.0)
        if scores.listed is None:
            values = {task: scores.of(task, trains) for task in sorted(trains)}
            cost = group_cost(request, trains)
        else:
            chosen = _listed(group, trains, scores, request)
            values = dict(chosen.values) if chosen else {}
            own = chosen is not None and not np.isnan(chosen.cost)
            cost = chosen.cost if chosen is not None and own else group_cost(request, trains)
        if len(scores.tasks) == 1:
            values = {task: 0.0 if np.isnan(value) else value for task, value in values.items()}
        return cls(trains, serves, {task: value for task, value in values.items() if np.isfinite(value)}, cost)

    def problems(self, scores: Scores, request: Request) -> list[str]:
        """What stands against it."""
        name = "{" + ", ".join(sorted(self.trains)) + "}"
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
    sign = 1 if request.objective == "max" else -1
    same = [entry for entry in scores.listed or () if entry.trains == trains]
    costed = [entry for entry in same if isinstance(group, Group) and entry.cost == group.cost]

    if len(costed or same) < 2:
        return next(iter(costed or same), None)
    units = request.units(scores)

    def worth(entry: Candidate) -> tuple[float, float]:
        total = sum(units.one(scores.tasks.index(task), value) for task, value in entry.values.items())
        return sign * total, -entry.cost

    return max(costed or same, key=worth)
