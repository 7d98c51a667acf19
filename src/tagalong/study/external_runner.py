"""A runner for networks that are trained elsewhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from tagalong.affinity import Affinity
from tagalong.learn import Job, Problem, Trained

from .executors import Elsewhere
from .records import Cost
from .runner import Runner, plain_steps
from .store import Store


class ExternalRunner(Runner):
    """Gives methods the results and affinities that somebody else's script has measured.

    Args:
        problem: the tasks and labels, without inputs.
        store: the store of the results.
        affinities: the measured affinities by the method that uses them ("tag", "cs" or "auto").
    """

    def __init__(self, problem: Problem, store: Store, affinities: Mapping[str, Affinity]) -> None:
        super().__init__(problem, store, Elsewhere())
        self._affinities = affinities

    def measure_affinity(
        self, seeds: Sequence[int], settings: Mapping[str, Any], method: str = ""
    ) -> tuple[Affinity, dict[int, Cost]]:
        """Returns the affinity provided by the user.

        Each seed incurs the cost of one training run and an equal share of the measuring cost.
        """
        affinity = (self._affinities.get(method) or self._affinities["cs"]).only(self.tasks)
        jobs = {seed: self.job(self.tasks, seed) for seed in seeds}
        costs = dict.fromkeys(seeds, Cost(1))  # groups can be decided before the cost of the affinity is known
        if not self.missing(jobs.values()):
            for seed, job in jobs.items():
                trained = self.networks([job], diverged=True)[job]
                steps = plain_steps(affinity, trained.steps, len(seeds)) if trained.steps else 0
                overhead = affinity.settings.get("overhead") or 0.0
                costs[seed] = Cost(1, steps, trained.seconds * (1 + overhead))
        return affinity, costs

    def tell(self, trained: Trained, answers: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Stores a network, and its answers on the rows of "val" and "test" if they are known.

        An earlier result of the network is replaced.
        """
        key = self.keys.of(trained.job)
        self.store.remove(key)
        self.store.add({key: (self.keys.definition(trained.job), trained)})
        for part, outputs in answers.items():
            self.store.add_answers(key, part, outputs)

    def trained(self) -> dict[Job, Trained]:
        """Returns all networks whose results are known."""
        return {trained.job: trained for trained in self.store.results(self.store.known_keys()).values()}

    def test_rows(self, job: Job) -> int | None:
        """Returns the number of test rows of another network, or None if it is unknown."""
        others = (key for key in self.store.known_keys() if key != self.keys.of(job))
        losses = next((self.store.losses(key) for key in others), None)
        return None if losses is None else len(next(iter(losses.values())))
