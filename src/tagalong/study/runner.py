"""Runners give methods the results of networks.

A method asks for jobs and never cares who trains them:

- `runner.job` and `runner.group_job` make the jobs, `runner.networks(jobs)` returns their results by job.
- The runner looks the jobs up in its store. Those that the store lacks are pending: its executor trains them, here, in
  worker processes or on a cluster, and each becomes a row of the store the moment it is finished.
- Without an executor, networks are trained elsewhere: `networks` then raises an error that lists the pending jobs, and
  the method is asked again once their results were added to the store.
- `runner.outputs`, `row_losses` and `average_scores` answer later questions from the store, `measure_affinity` and
  `remember` store what else was computed.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any

from torch import Tensor

from tagalong.affinity import Affinity
from tagalong.errors import InvalidInput
from tagalong.group import Group
from tagalong.learn import Diverged, Job, Problem, Task, relative_step_cost, width_of_size
from tagalong.score import Score

from .members import member_seed
from .network_result import Losses, NetworkResult
from .records import Cost, Record
from .relative_losses import Subset

logger = logging.getLogger(__name__)
MOST_NAMED = 5  # networks that a message lists


class Runner(ABC):
    """Provides the results of networks and the affinities between tasks, either by training or by lookup.

    Methods request the networks that they need without knowing where the results come from.

    Args:
        tasks: the names of all tasks.

    Attributes:
        tasks: the names of all tasks.
        problem: the data and architecture, or None if networks are not trained here.
        can_teach: whether networks can learn from the answers of others (see `Taught`).
    """

    problem: Problem | None = None
    can_teach = False

    def __init__(self, tasks: Iterable[str]) -> None:
        self.tasks = tuple(tasks)
        self._requested: set[Job] = set()
        self._diverged: set[Job] = set()

    @abstractmethod
    def find_results(self, jobs: Sequence[Job], what: str) -> Mapping[Job, NetworkResult]:
        """Returns a mapping with the results of these networks, including those that diverged."""

    @abstractmethod
    def measure_affinity(
        self, seeds: Sequence[int], settings: Mapping[str, Any], method: str = ""
    ) -> tuple[Affinity, dict[int, Cost]]:
        """Returns the affinity between tasks trained in one network, pooled over seeds, and its cost for each seed.

        Args:
            seeds: the seeds of the networks.
            settings: the settings of the `AffinityMeter`.
            method: the method that uses the affinity. This is needed only by runners that do not measure affinities
                themselves.

        Raises:
            Diverged: If the network diverges for every seed.
        """

    @property
    def free_width(self) -> int | None:
        """How many networks can be trained together in about the time of one, or None if there is no limit.

        `auto` requests more networks at a time if this number is larger. The number depends only on the problem, the
        device and the executor, so a resumed study makes the same requests.
        """
        return None

    def prepare(  # noqa: B027 - optional
        self, jobs: Iterable[Job], seeds: Sequence[int] = (), settings: Mapping[str, Any] | None = None
    ) -> None:
        """Trains networks and measures affinities that will be requested later, all at the same time.

        Runners that look up results do nothing.

        Args:
            jobs: the networks to train without a meter.
            seeds: the seeds for which to measure the affinity between all tasks.
            settings: the settings of the `AffinityMeter`.
        """

    def job(self, tasks: Iterable[str], seed: int, rule: str = "plain", width: float = 1.0) -> Job:
        """Returns the job for a network with these tasks, sorted in the runner's order."""
        wanted = set(tasks)
        return Job(tuple(name for name in self.tasks if name in wanted), seed, rule, float(width))

    def group_job(self, group: Group, seed: int, rule: str = "plain", width: float = 1.0) -> Job:
        """Returns the job for the network of a group in the record of a seed; copies have seeds of their own.

        Args:
            group: the group.
            seed: the seed of the record.
            rule: the rule that combines the task losses.
            width: the width of a group of size 1.

        Raises:
            InvalidInput: If the network must be wider than others and cannot be, or the problem has no such network.
        """
        if self.problem is None and (group.size > 1 or group.network):
            kind = "wider" if group.size > 1 else "other"
            expected = f"must not require {kind} networks if networks are trained elsewhere"
            size = f" of {group.size} times the size" if group.size > 1 else ""
            raise InvalidInput("methods", expected, f"a {group.network_text or 'network'}{size}")
        if group.size > 1 and self.problem is not None:
            tasks = tuple(name for name in self.tasks if name in group.trains)
            width = width_of_size(self.problem.with_network(group.network), tasks, group.size, width)
        job = self.job(group.trains, member_seed(seed, group.copy), rule, width)
        return replace(job, taught=group.taught, network=group.network)

    def step_cost(self, network: str | None) -> float:
        """Returns what a training step of a network costs, as a multiple of a step of a plain network.

        Args:
            network: the name of another network than the problem's own, or None.
        """
        return 1.0 if self.problem is None else relative_step_cost(self.problem, network)

    def subsets(self, largest: int | None = None, smallest: int = 1) -> list[Subset]:
        """Returns all sets of tasks of these sizes, smallest first."""
        sizes = range(smallest, (len(self.tasks) if largest is None else min(largest, len(self.tasks))) + 1)
        return [frozenset(chosen) for size in sizes for chosen in combinations(self.tasks, size)]

    def networks(
        self, jobs: Iterable[Job], what: str = "networks", *, diverged: bool = False
    ) -> dict[Job, NetworkResult]:
        """Returns the results of these networks.

        Args:
            jobs: the networks.
            what: a description of the networks, used in progress updates and messages.
            diverged: whether to include networks that diverged (see `NetworkResult.diverged`).

        Raises:
            Diverged: If a network diverges and `diverged` is False.
        """
        wanted = list(dict.fromkeys(jobs))
        if not self.can_teach and any(job.taught for job in wanted):
            raise InvalidInput("methods", "must not teach networks that are trained elsewhere")
        self._requested.update(wanted)
        known = self.find_results(wanted, what)
        lost = [job for job in wanted if known[job].diverged]
        if lost and not diverged:
            raise Diverged(f"{what}: {describe_jobs(lost)} diverged; lower `recipe.lr`")
        if new := [job for job in lost if job not in self._diverged]:
            logger.warning("%s: %s diverged and will rank below all other results", what, describe_jobs(new))
            self._diverged.update(new)
        return {job: known[job] for job in wanted}

    def requested(self, jobs: Iterable[Job]) -> bool:
        """Whether all of these networks were requested from this runner.

        Requests made by earlier runs do not count.
        """
        return self._requested.issuperset(jobs)

    def cost(self, jobs: Iterable[Job]) -> Cost:
        """Returns the total cost of these networks, counting each network once."""
        return sum((result.cost for result in self.networks(jobs, diverged=True).values()), Cost())

    def converged_seeds(self, seeds: Iterable[int]) -> tuple[int, ...]:
        """Returns the seeds for which the network for all tasks (the baseline of every comparison) converged.

        Raises:
            Diverged: If the network diverges for every seed.
        """
        jobs = {seed: self.job(self.tasks, seed) for seed in seeds}
        results = self.networks(jobs.values(), "all tasks together", diverged=True)
        found = tuple(seed for seed, job in jobs.items() if not results[job].diverged)
        if not found:
            listed = f"seed{'' if len(jobs) == 1 else 's'} {', '.join(map(str, jobs))}"
            raise Diverged(
                f"one network for all tasks diverged with {listed}, and everything is compared with it; "
                "lower `recipe.lr`"
            )
        return found

    def early_job(self, job: Job, steps: float) -> Job:
        """Returns a job that trains the same network but stops after approximately this many steps.

        Raises:
            InvalidInput: If this runner supports only full training runs.
        """
        raise InvalidInput("screen", "must be None if networks are trained elsewhere")

    def latency(self, tasks: Iterable[str], width: float = 1.0, network: str | None = None) -> float | None:
        """Returns the inference time per row, in seconds, of the network for these tasks, or None if unknown."""
        return None

    def row_losses(self, record: Record, part: str = "test") -> Losses | None:
        """Returns each task's loss on every row from the networks that serve it, or None if unknown.

        The losses of rows without a label are NaN.
        """
        return None

    def task(self, name: str) -> Task | None:
        """Returns the task with this name, or None if only its name and the losses of networks are known."""
        return None if self.problem is None else self.problem.task(name)

    def average_scores(self, groups: Sequence[Group], networks: Sequence[str], part: str) -> dict[str, Score]:
        """Returns the scores of the tasks that several networks serve, from the average of their answers.

        Args:
            groups: the tasks that each network is trained on and serves.
            networks: the store keys of the networks, one per group.
            part: "val" or "test".

        Raises:
            InvalidInput: If this runner has no networks to compute answers with.
        """
        raise InvalidInput("methods", "must serve each task by one network if networks are trained elsewhere")

    def outputs(self, jobs: Iterable[Job], part: str) -> dict[Job, dict[str, Tensor]]:
        """Returns the outputs of these networks for each of their tasks, on the CPU, with the rows in order.

        All of them are held in memory at the same time.

        Args:
            jobs: the networks.
            part: "train", "val" or "test".

        Raises:
            Diverged: If a network diverges.
            InvalidInput: If this runner has no networks to compute outputs with.
        """
        raise InvalidInput("methods", "must not need the outputs of networks if these are trained elsewhere")

    def targets(self, part: str) -> dict[str, Tensor]:
        """Returns the targets of each task, on the CPU, with NaN for missing labels. The rows are those of `outputs`.

        Raises:
            InvalidInput: If this runner has no data.
        """
        raise InvalidInput("methods", "must not need the targets if networks are trained elsewhere")

    def remember(self, definition: Mapping[str, Any], compute: Callable[[], Any]) -> Any:
        """Returns what `compute` returns, a JSON document. It is not computed again when a study is continued.

        Args:
            definition: everything that determines the result, apart from the problem, as a JSON document.
            compute: the computation.
        """
        return compute()


def describe_jobs(jobs: Sequence[Job]) -> str:
    """Formats the tasks and seeds of these networks for messages."""
    some = "; ".join(f"{', '.join(job.tasks)} with seed {job.seed}" for job in jobs[:MOST_NAMED])
    return some if len(jobs) <= MOST_NAMED else f"{some}; and {len(jobs) - MOST_NAMED} more"
