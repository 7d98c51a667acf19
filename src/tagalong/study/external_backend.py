"""A backend that looks up the results of networks trained elsewhere."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tagalong.affinity import Affinity
from tagalong.errors import InvalidInput
from tagalong.learn import Job

from .backend import Backend, describe_jobs
from .records import Cost, Record
from .store import Losses, NetworkResult, plain_steps

COSINE_ESTIMATORS = ("cosine", "cosine_kernels", "centered_cosine")  # estimators whose affinities `cs` uses


class MissingNetworks(Exception):
    """Raised when a method needs the results of networks that have not been trained yet.

    Args:
        jobs: the missing networks.
    """

    def __init__(self, jobs: Sequence[Job]) -> None:
        super().__init__(describe_jobs(jobs))
        self.jobs = tuple(jobs)


class ExternalBackend(Backend):
    """Looks up the results of networks trained elsewhere.

    Requesting a network without a result raises `MissingNetworks`. Once the missing results are available, the same
    methods can be run again.

    Args:
        tasks: the names of all tasks.
        results: the results of the networks trained so far. More results can be added later.
        affinities: the measured affinities, keyed by the method that uses them ("tag" or "cs").

    Attributes:
        requests: all requested networks in order, including duplicates. Callers may clear this list.
    """

    def __init__(
        self,
        tasks: Iterable[str],
        results: Mapping[Job, NetworkResult],
        affinities: Mapping[str, Affinity] | None = None,
    ) -> None:
        super().__init__(tasks)
        self.requests: list[Job] = []
        self._known, self._affinities = results, affinities or {}

    def job(self, tasks: Iterable[str], seed: int, rule: str = "plain", width: float = 1.0) -> Job:
        if rule != "plain" or width != 1:
            expected = "must not require balancing rules or wider networks if networks are trained elsewhere"
            raise InvalidInput("methods", expected, f"a network with rule {rule!r} and width {width:g}")
        return super().job(tasks, seed)

    def find_results(self, jobs: Sequence[Job], what: str) -> Mapping[Job, NetworkResult]:
        self.requests += jobs
        if missing := [job for job in jobs if job not in self._known]:
            raise MissingNetworks(missing)
        return self._known

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
        network = self._known.get(self.job(self.tasks, seed))
        if network is None:  # groups can be decided before the cost of the affinity is known
            return Cost(1)
        steps = plain_steps(affinity, network.steps, runs) if network.steps else 0
        return Cost(1, steps, network.seconds * (1 + (affinity.settings.get("overhead") or 0.0)))

    def row_losses(self, record: Record, part: str = "test") -> Losses | None:
        found: Losses = {}
        for group in record.groups:
            scores = getattr(self._known[self.group_job(group, record.seed)], part)
            for task in group.serves:
                if scores[task].rows is None:
                    return None
                found[task] = scores[task].rows
        return {task: found[task] for task in self.tasks if task in found}


def method_of_estimator(estimator: Any) -> str:
    """Returns the method that uses this estimator's affinities: "cs" for cosines, otherwise "tag"."""
    # Matrices without settings and user-defined estimators are assumed to be for `tag`.
    return "cs" if estimator in COSINE_ESTIMATORS else "tag"
