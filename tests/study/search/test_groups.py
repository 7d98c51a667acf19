"""The search for groups: what it spends and tries, and what it never recommends."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from reduced_rank import World

from tagalong.learn import Job, Trained
from tagalong.study.search import GroupSearch, Trial, search_groups


class CountingWorld(World):
    """Counts the networks that are requested."""

    def __init__(self, *world: Any, **options: Any) -> None:
        super().__init__(*world, **options)
        self.trained: list[Trial] = []

    def find_results(self, jobs: Sequence[Job], what: str) -> dict[Job, Trained]:
        self.trained += [Trial(frozenset(job.tasks), job.seed) for job in jobs]
        return super().find_results(jobs, what)


def tasks_answered(found: GroupSearch, budget: int) -> list[str]:
    return sorted(task for group in found.chosen[budget].groups for task in group.serves)


@pytest.mark.parametrize("effort", [1, 5, 23.5])
def test_the_effort_is_never_exceeded_and_nothing_is_trained_twice(effort: float) -> None:
    runner = CountingWorld("conflict", 0)
    found = search_groups(runner, [2, 3], effort, [0, 1])
    assert list(found.results) == runner.trained
    assert len(set(runner.trained)) == len(runner.trained) == int(effort)
    for budget in (2, 3):
        assert tasks_answered(found, budget) == list(runner.tasks)
        assert len(found.chosen[budget].groups) <= budget


def test_every_proposal_has_a_network_of_all_tasks_with_the_same_seed_to_compare_with() -> None:
    runner = CountingWorld("conflict", 0)
    search_groups(runner, [2], 8, [0, 1, 2])
    everything = frozenset(runner.tasks)
    assert {trial.seed for trial in runner.trained} == {
        trial.seed for trial in runner.trained if trial.tasks == everything
    }


def test_effort_left_after_all_subsets_goes_into_more_seeds() -> None:
    world = World("twins", 0, tasks=("a", "b", "c"))
    assert len(search_groups(world, [2], 12, [0, 1, 2]).results) == 12
    assert len(search_groups(world, [2], 100, [0, 1, 2]).results) == 7 * 3


def test_many_tasks_are_searched_without_all_their_subsets() -> None:
    world = World("conflict", 0, tasks=tuple("abcdefghijklmnop"), rows=(300, 300, 300))
    assert search_groups(world, [2], 30, [0, 1]).chosen[2].expected < 0


def test_a_resumed_search_trains_the_same() -> None:
    first, again = (search_groups(World("conflict", 0), [2], 30, [0, 1]) for _ in range(2))
    assert first == again


class DivergingWorld(CountingWorld):
    """Networks without the first task diverge for odd seeds."""

    def find_results(self, jobs: Sequence[Job], what: str) -> dict[Job, Trained]:
        results = super().find_results(jobs, what)
        lost = replace(results[jobs[0]], best_epoch=-1, halves={})
        return {job: replace(lost, job=job) if self.diverges(job) else one for job, one in results.items()}

    def diverges(self, job: Job) -> bool:
        return job.seed % 2 == 1 and self.tasks[0] not in job.tasks


@pytest.mark.parametrize("effort", [4, 23.5, 60])
def test_diverged_networks_count_as_spent_and_are_never_chosen(effort: float) -> None:
    runner = DivergingWorld("conflict", 0)
    found = search_groups(runner, [2, 3], effort, [0, 1, 2, 3])
    assert len(found.results) == len(set(runner.trained)) == len(runner.trained) <= effort
    lost = {trial.tasks for trial, result in found.results.items() if result.diverged}
    assert lost or effort < 20
    for budget, chosen in found.chosen.items():
        assert not {group.trains for group in chosen.groups} & lost
        assert tasks_answered(found, budget) == list(runner.tasks)


def test_proposals_made_together_differ_from_each_other() -> None:
    runner = CountingWorld("conflict", 0)
    results = list(search_groups(runner, [2], 40, [0, 1]).results)
    assert np.unique([len(trial.tasks) for trial in results]).size > 2
    assert len({trial.tasks for trial in results[:24]}) >= 22
