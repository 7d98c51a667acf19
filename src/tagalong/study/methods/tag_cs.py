"""Groups by what a meter measures in one training of all tasks: `tag` (the paper's) and `cs` (cosines of gradients)."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from functools import reduce
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch

from tagalong.affinity import Affinity
from tagalong.group import select_groups, select_groups_by_budget
from tagalong.learn import Problem
from tagalong.measure import AffinityMeter

from .method import Choice, Decision, Method, everything

if TYPE_CHECKING:
    from ..backend import Lab

GIVEN = ("self", "shared", "optimizer", "model", "tasks", "weights", "scaler", "process_group", "log")  # by the trainer
METER = {name for name in inspect.signature(AffinityMeter.__init__).parameters if name not in GIVEN} | {"held_out"}
SELECT = ("allow_single", "max_size", "must_link", "cannot_link", "solver", "time_limit")


class Measured(Method):
    """Measures affinities while all tasks train in one network, averages the seeds, and selects groups.

    Args:
        average: of the measured steps, see `Affinity.averaged`.
        trim: the share that "trimmed" cuts at either end.
        **options: of the `AffinityMeter` (`every`, `estimator`, `update`, `lr`, `per_lr`, …), `held_out=True` to
            read affinities on validation batches, and of `select_groups` (`allow_single`, `max_size`, …).
    """

    order = 20
    defaults: ClassVar[dict[str, Any]] = {}

    def __init__(
        self, *, average: Literal["mean", "trimmed", "median"] = "mean", trim: float = 0.05, **options: Any
    ) -> None:
        self.average, self.trim = average, trim
        self.options = self.defaults | options
        self.meter = {name: value for name, value in self.options.items() if name in METER}
        self.select = {name: value for name, value in self.options.items() if name in SELECT}

    def problems(self, problem: Problem) -> list[str]:
        known = ["average", "trim", *sorted(METER), *SELECT]
        unknown = [name for name in self.options if name not in known]
        if unknown:
            return [f"`options`: {self.name!r} takes {', '.join(known)}; found {', '.join(unknown)}"]
        if self.average not in ("mean", "trimmed", "median"):
            return [f"`options`: `average` must be 'mean', 'trimmed' or 'median', found {self.average!r}"]
        if self.options.get("update") not in ("sgd", "optimizer", None):
            return [f"`options`: `update` must be 'sgd', 'optimizer' or None, found {self.options['update']!r}"]
        settings = {name: value for name, value in self.meter.items() if name != "held_out"}
        try:
            # Without an optimiser, which takes seconds to import and is made by the trainer.
            shared = [torch.nn.Parameter(torch.zeros(1))]  # a layer would draw from the user's random numbers
            AffinityMeter(shared, **{**settings, "update": "sgd", "lr": settings.get("lr") or 0.1})
            names = problem.names
            select_groups([[0.0] * len(names) for _ in names], len(names), **self.select | _links(self.select, names))
        except (TypeError, ValueError) as error:
            return [f"`options`: {self.name!r}: {error}"]
        return []

    def decide(self, lab: Lab, budgets: Sequence[int], seeds: Sequence[int]) -> Decision:
        if len(lab.problem.names) == 1:  # affinity is between tasks
            return Decision.pooled({budget: Choice(everything(lab.problem)) for budget in budgets}, seeds)
        measured = lab.affinities(seeds, self.meter)
        affinity: Affinity = reduce(Affinity.merge, (found for found, _ in measured.values()))
        if self.average != "mean":
            affinity = affinity.averaged(self.average, self.trim)
        groupings = select_groups_by_budget(affinity, budgets, **self.select)
        choices = {int(budget): Choice.of(grouping) for budget, grouping in groupings.items()}
        return Decision.pooled(choices, seeds, {seed: cost for seed, (_, cost) in measured.items()}, affinity)


def _links(select: dict[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    """Links with numbers for names, as a bare matrix has them."""
    return {
        option: [[str(names.index(name)) if name in names else name for name in link] for link in select[option]]
        for option in ("must_link", "cannot_link")
        if option in select
    }


class Tag(Measured):
    """Task affinity groupings (Fifty et al., NeurIPS 2021): equation 1 with the paper's plain gradient step.

    Measured at every tenth step, as the paper does on Taskonomy and recommends.
    """

    name = "tag"
    defaults: ClassVar[dict[str, Any]] = {"estimator": "lookahead", "update": "sgd", "every": 10}


class Cs(Measured):
    """Groups by the cosine between task gradients, measured at every step as in the paper."""

    name = "cs"
    defaults: ClassVar[dict[str, Any]] = {"estimator": "cosine", "every": 1}
