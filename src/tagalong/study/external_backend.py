"""Results of networks that are trained elsewhere, as a backend of the methods."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tagalong.affinity import Affinity
from tagalong.errors import InvalidInput
from tagalong.learn import Job

from .backend import Backend, describe_jobs
from .records import Cost, Record
from .store import Losses, NetworkResult, plain_steps

COSINES = ("cosine", "cosine_kernels")  # estimators that `cs` groups by


class MissingNetworks(Exception):
    """A method needs results of networks that were not trained yet.

    Args:
        jobs: the networks.
    """

    def __init__(self, jobs: Sequence[Job]) -> None:
        super().__init__(describe_jobs(jobs))
        self.jobs = tuple(jobs)


class ExternalBackend(Backend):
    """Results of networks that are trained elsewhere.

    A request for networks without a result raises `MissingNetworks`; once their results are there, the same methods
    run again and get further.

    Args:
        tasks: names of all tasks.
        results: of the networks trained so far; may grow.
        affinities: by the method that groups by them, "tag" or "cs".

    Attributes:
        requests: networks in the order of the requests, repeated ones included; may be cleared.
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
            expected = "must need only plain networks, since they are trained elsewhere"
            raise InvalidInput("methods", expected, f"one with the rule {rule!r} and the width {width:g}")
        return super().job(tasks, seed)

    def find_results(self, jobs: Sequence[Job], what: str) -> Mapping[Job, NetworkResult]:
        self.requests += jobs
        if missing := [job for job in jobs if job not in self._known]:
            raise MissingNetworks(missing)
        return self._known

    def measure_affinity(
        self, seeds: Sequence[int], settings: Mapping[str, Any], method: str = ""
    ) -> tuple[Affinity, dict[int, Cost]]:
        """Returns the given affinity; its cost is that of all tasks together, each seed with its share of measuring."""
        estimator = settings.get("estimator")
        given = self._affinities.get(method) or self._affinities.get(method_of_estimator(estimator))
        if given is None:
            raise InvalidInput("affinity", f"must include one measured with the estimator {estimator!r}", "none")
        affinity = given.only(self.tasks)
        return affinity, {seed: self._measuring_cost(affinity, seed, len(seeds)) for seed in seeds}

    def _measuring_cost(self, affinity: Affinity, seed: int, runs: int) -> Cost:
        network = self._known.get(self.job(self.tasks, seed))
        if network is None:  # groups do not wait for what their affinity took
            return Cost(1)
        steps = plain_steps(affinity, network.steps, runs) if network.steps else 0
        return Cost(1, steps, network.seconds * (1 + (affinity.settings.get("overhead") or 0.0)))

    def row_losses(self, record: Record, part: str = "test") -> Losses | None:
        found: Losses = {}
        for group in record.groups:
            scores = getattr(self._known[self.job(group.trains, record.seed)], part)
            for task in group.serves:
                if scores[task].rows is None:
                    return None
                found[task] = scores[task].rows
        return {task: found[task] for task in self.tasks if task in found}


def method_of_estimator(estimator: Any) -> str:
    """Returns the method that groups by an affinity of this estimator: "cs" for cosines, else "tag"."""
    # what is not known to be a cosine is taken for what `tag` groups by: a matrix without settings, an own estimator
    return "cs" if estimator in COSINES else "tag"
