"""Methods that group by affinities measured in one training run: `tag` (from the paper) and `cs` (gradient cosines)."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch

from tagalong.errors import InvalidInput
from tagalong.group import Group, select_groups
from tagalong.measure import AffinityMeter

from .method import Choice, Decision, Method

if TYPE_CHECKING:
    from tagalong.learn import Problem

    from ..runner import Runner

OPTIONS_SET_BY_TRAINER = ("self", "shared", "optimizer", "model", "tasks", "weights", "scaler", "process_group", "log")
METER_OPTIONS = {"held_out", *inspect.signature(AffinityMeter.__init__).parameters} - set(OPTIONS_SET_BY_TRAINER)
SELECT_OPTIONS = ("allow_single", "max_size", "must_link", "cannot_link", "solver", "time_limit")


class AffinityMethod(Method):
    """Measures affinities while training all tasks in one network, averages them over seeds, and selects groups.

    Args:
        average: how to average over the measured steps (see `Affinity.averaged`).
        trim: the fraction of steps that "trimmed" discards at each end.
        **options: options for the `AffinityMeter` (`every`, `estimator`, `update`, `lr`, `per_lr`, …), `held_out=True`
            to measure affinities on validation batches, and options for `select_groups` (`allow_single`, `max_size`,
            …).
    """

    order = 20
    measures = True
    defaults: ClassVar[dict[str, Any]] = {}

    def __init__(
        self, *, average: Literal["mean", "trimmed", "median"] = "mean", trim: float = 0.05, **options: Any
    ) -> None:
        self.average, self.trim = average, trim
        self.options = self.defaults | options
        self.meter = {name: value for name, value in self.options.items() if name in METER_OPTIONS}
        self.select = {name: value for name, value in self.options.items() if name in SELECT_OPTIONS}

    def problems(self, tasks: Sequence[str], problem: Problem | None = None) -> list[InvalidInput]:
        known = ["average", "trim", *sorted(METER_OPTIONS), *SELECT_OPTIONS]
        unknown = [name for name in self.options if name not in known]
        if unknown:
            return [InvalidInput(f"`options`: {self.name!r}", f"accepts only {', '.join(known)}", ", ".join(unknown))]
        if self.average not in ("mean", "trimmed", "median"):
            return [InvalidInput("`options`: `average`", "must be 'mean', 'trimmed' or 'median'", repr(self.average))]
        update = self.options.get("update")
        if update not in ("sgd", "optimizer", None):
            return [InvalidInput("`options`: `update`", "must be 'sgd', 'optimizer' or None", repr(update))]
        settings = {name: value for name, value in self.meter.items() if name != "held_out"}
        try:
            # Avoid optimizers, which take seconds to import; the trainer creates one later.
            shared = [torch.nn.Parameter(torch.zeros(1))]  # a layer would advance the user's random number generator
            AffinityMeter(shared, **{**settings, "update": "sgd", "lr": settings.get("lr") or 0.1})
            select_groups(
                [[0.0] * len(tasks) for _ in tasks], len(tasks), **self.select | _numbered_links(self.select, tasks)
            )
        except (TypeError, ValueError) as error:
            return [InvalidInput(f"`options`: {self.name!r}:", str(error))]
        return []

    def begin(self, runner: Runner, seeds: Sequence[int]) -> None:
        # Measures in the training of the networks for all tasks, which every study needs.
        if len(runner.tasks) > 1:
            runner.prepare((), seeds, self.meter)

    def decide(self, runner: Runner, budgets: Sequence[int], seeds: Sequence[int]) -> Decision:
        if len(runner.tasks) == 1:  # there are no affinities to measure
            choice = Choice((Group(runner.tasks, runner.tasks),))
            return Decision.pooled(dict.fromkeys(budgets, choice), seeds)
        affinity, costs = runner.measure_affinity(seeds, self.meter, self.name)
        if self.average != "mean":
            affinity = affinity.averaged(self.average, self.trim)
        groupings = select_groups(affinity, budgets, **self.select)
        choices = {int(budget): Choice.of(grouping) for budget, grouping in groupings.items()}
        return Decision.pooled(choices, seeds, costs, affinity)


def _numbered_links(options: dict[str, Any], tasks: Sequence[str]) -> dict[str, Any]:
    """Replaces task names in links with indices, which serve as the task names of a bare matrix."""
    return {
        option: [[str(tasks.index(name)) if name in tasks else name for name in link] for link in options[option]]
        for option in ("must_link", "cannot_link")
        if option in options
    }


class Tag(AffinityMethod):
    """Task affinity groupings (Fifty et al., NeurIPS 2021), using equation 1 and the paper's plain gradient step.

    Affinities are measured every 10 steps, as the paper recommends and as it does on Taskonomy.
    """

    name = "tag"
    defaults: ClassVar[dict[str, Any]] = {"estimator": "lookahead", "update": "sgd", "every": 10}


class Cs(AffinityMethod):
    """Groups tasks by the cosine between their gradients, measured at every step as in the paper."""

    name = "cs"
    defaults: ClassVar[dict[str, Any]] = {"estimator": "cosine", "every": 1}
