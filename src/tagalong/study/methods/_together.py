"""One network for all tasks: `mtl`, the same under a rule that balances tasks, and wider ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tagalong.learn import Problem, parameters_of, width_for
from tagalong.learn._seeds import drawing

from ._method import Choice, Decision, Method, everything

if TYPE_CHECKING:
    from .._lab import Lab


class Mtl(Method):
    """All tasks in one network: what every grouping is compared with."""

    name = "mtl"
    order = 0
    budgeted = False

    def decide(self, lab: Lab, budgets: Sequence[int], seeds: Sequence[int]) -> Decision:
        return Decision.pooled({None: Choice(everything(lab.problem))}, seeds)


class Ruled(Mtl):
    """All tasks in one network whose losses are combined by a rule, such as uncertainty weights.

    Args:
        rule: its name, see `tagalong.learn.Job`.
    """

    order = 10

    def __init__(self, rule: str) -> None:
        self.name = self.rule = rule


class Wide(Mtl):
    """All tasks in one larger network, as the paper's comparison without a limit on latency.

    Args:
        times: how many times as large.
        of: "wide": so many times the channels; "big": so many times the parameters.
    """

    order = 10

    def __init__(self, times: float, of: str = "wide") -> None:
        self.times, self.of = float(times), of
        self.name = f"mtl-{of}{times:g}"
        self._width: float | None = None

    def problems(self, problem: Problem) -> list[str]:
        if not self.times > 0:
            return [f"`methods`: {self.name!r} must be a positive multiple, found {self.times:g}"]
        try:
            with drawing(0, "check"):
                problem.make_encoder(self.width(problem))
        except ValueError as error:
            return [f"`methods`: {self.name!r} cannot widen this network: {error}"]
        return []

    def width(self, problem: Problem) -> float:
        if self._width is None:
            names = problem.names
            self._width = self.times
            if self.of == "big":
                self._width = width_for(problem, names, self.times * parameters_of(problem, names))
        return self._width
