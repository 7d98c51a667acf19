"""A backend that looks up the results of networks trained elsewhere."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from torch import Tensor

from tagalong.affinity import Affinity
from tagalong.errors import InvalidInput
from tagalong.group import Group
from tagalong.learn import Job, Task, Trained
from tagalong.score import Score

from .executors import Elsewhere, Pending
from .external_targets import ExternalTargets, Parts, arrays_checksum, flatten_parts
from .members import member_seed
from .records import Cost, Record, averaged_tasks
from .runner import Runner, plain_steps, without_rows
from .store import Losses

COSINE_ESTIMATORS = ("cosine", "cosine_kernels", "centered_cosine")  # estimators whose affinities `cs` uses
PREDICTIONS_HINT = "pass `targets` to ExternalStudy and predictions to tell()"


@dataclass(frozen=True)
class ExternalResult(Trained):
    """The result of a network trained elsewhere.

    Attributes:
        predictions: its checked predictions, by part ("val" and "test") and task. Empty if only losses are known.
    """

    predictions: Parts = field(default_factory=dict, repr=False)

    @cached_property
    def checksum(self) -> str:
        """A checksum of the predictions."""
        return arrays_checksum(flatten_parts(self.predictions))


class ExternalBackend(Runner):
    """Looks up the results of networks trained elsewhere.

    Requesting a network without a result raises `Pending`. Once the missing results are available, the same
    methods can be run again.

    Args:
        tasks: the names of all tasks.
        results: the results of the networks trained so far. More results can be added later.
        affinities: the measured affinities, keyed by the method that uses them ("tag" or "cs").
        targets: the targets of the tasks if the results include predictions, or None if only losses are known.

    Attributes:
        requests: all requested networks in order, including duplicates. Callers may clear this list.
        copies: the record's seed and the number of every copy that was mentioned so far, by the seed it is trained
            with. Copies with number 0 are left out.
    """

    def __init__(
        self,
        tasks: Iterable[str],
        results: Mapping[Job, Trained],
        affinities: Mapping[str, Affinity] | None = None,
        targets: ExternalTargets | None = None,
    ) -> None:
        super().__init__(without_rows(tasks), executor=Elsewhere())
        self.requests: list[Job] = []
        self.copies: dict[int, tuple[int, int]] = {}
        self._results, self._affinities, self._targets = results, affinities or {}, targets

    def group_job(self, group: Group, seed: int, rule: str = "plain", width: float = 1.0) -> Job:
        if group.copy:
            self.copies[member_seed(seed, group.copy)] = seed, group.copy
        return super().group_job(group, seed, rule, width)

    def task(self, name: str) -> Task | None:
        return None if self._targets is None else self._targets.task(name)

    def find_results(self, jobs: Sequence[Job], what: str) -> Mapping[Job, Trained]:
        self.requests += jobs
        if missing := [job for job in jobs if job not in self._results]:
            raise Pending(missing)
        return self._results

    def measure_affinity(
        self, seeds: Sequence[int], settings: Mapping[str, Any], method: str = ""
    ) -> tuple[Affinity, dict[int, Cost]]:
        """Returns the affinity provided by the user.

        Each seed incurs the cost of one training run and an equal share of the measuring cost.
        """
        estimator = settings.get("estimator")
        given = self._affinities.get(method) or self._affinities.get(method_of_estimator(estimator))
        if given is None:
            raise InvalidInput("affinity", f"must include a measurement with the estimator {estimator!r}", "none")
        affinity = given.only(self.tasks)
        return affinity, {seed: self._measuring_cost(affinity, seed, len(seeds)) for seed in seeds}

    def _measuring_cost(self, affinity: Affinity, seed: int, runs: int) -> Cost:
        network = self._results.get(self.job(self.tasks, seed))
        if network is None:  # groups can be decided before the cost of the affinity is known
            return Cost(1)
        steps = plain_steps(affinity, network.steps, runs) if network.steps else 0
        return Cost(1, steps, network.seconds * (1 + (affinity.settings.get("overhead") or 0.0)))

    def row_losses(self, record: Record, part: str = "test") -> Losses | None:
        averaged = self.average_scores(record.groups, record.networks, part) if averaged_tasks(record.groups) else {}
        found: Losses = {task: score.rows for task, score in averaged.items() if score.rows is not None}
        for group in record.groups:
            scores = getattr(self._results[self.group_job(group, record.seed)], part)
            for task in group.serves - averaged.keys():
                if scores[task].rows is None:
                    return None
                found[task] = scores[task].rows
        return {task: found[task] for task in self.tasks if task in found}

    def average_scores(self, groups: Sequence[Group], networks: Sequence[str], part: str) -> dict[str, Score]:
        """Returns the scores of the tasks that several networks serve, computed from the networks' predictions."""
        tasks = averaged_tasks(groups)
        jobs = {result.key: job for job, result in self._results.items() if result.key in networks}
        members = [(group, jobs.get(key)) for group, key in zip(groups, networks, strict=True) if group.serves & tasks]
        if any(job is None for _, job in members):
            raise self._without_predictions()
        if any(self._results[job].diverged for _, job in members if job is not None):
            return dict.fromkeys(tasks, Score(math.nan, math.nan))
        outputs = self.outputs([job for _, job in members if job is not None], part)
        served = [
            {task: values for task, values in outputs[job].items() if task in group.serves & tasks}
            for group, job in members
            if job is not None
        ]
        assert self._targets is not None
        return self._targets.average_scores(served, part)

    def outputs(self, jobs: Iterable[Job], part: str) -> dict[Job, dict[str, Tensor]]:
        """Returns the outputs of networks for each of their tasks: predicted values, and logits for classes.

        Args:
            jobs: the networks.
            part: "val" or "test".

        Raises:
            Diverged: If a network diverged.
            InvalidInput: If only the losses of networks are known.
        """
        if self._targets is None or part not in self._targets.labels:
            raise self._without_predictions()
        found = {}
        for job, result in self.networks(jobs, "networks whose answers are averaged").items():
            if not isinstance(result, ExternalResult) or not result.predictions:
                raise self._without_predictions()
            found[job] = self._targets.outputs(result.predictions[part])
        return found

    def targets(self, part: str) -> dict[str, Tensor]:
        """Returns the targets of each task, with NaN for missing labels. The rows are those of `outputs`.

        Raises:
            InvalidInput: If only the losses of networks are known.
        """
        if self._targets is None or part not in self._targets.labels:
            raise self._without_predictions()
        return dict(self._targets.tensors[part])

    def _without_predictions(self) -> InvalidInput:
        expected = "must not need the predictions of networks if only their losses are known"
        return InvalidInput("methods", expected, hint=PREDICTIONS_HINT)


def method_of_estimator(estimator: Any) -> str:
    """Returns the method that uses this estimator's affinities: "cs" for cosines, otherwise "tag"."""
    # Matrices without settings and user-defined estimators are assumed to be for `tag`.
    return "cs" if estimator in COSINE_ESTIMATORS else "tag"
