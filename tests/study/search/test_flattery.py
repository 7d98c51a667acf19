"""Early stopping flatters networks for few tasks, and comparisons take that off."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from reduced_rank import World

from tagalong.learn import Job, Trained
from tagalong.study import Score
from tagalong.study.search import search_groups, spend
from tagalong.study.search.flattery import small_set_flattery

TASKS = tuple("abcdef")


def network(tasks: Sequence[str], flattery: float | None) -> Trained:
    """A network with losses of 2, of which `flattery` is the relative luck of the epoch."""
    val = {task: Score(2.0, 0.0) for task in tasks}
    return Trained(
        Job(tuple(tasks)), val, val, 1, 0.0, 1, flattery={} if flattery is None else dict.fromkeys(tasks, 2 * flattery)
    )


def test_flattery_that_falls_with_the_number_of_tasks_is_found() -> None:
    results = [network(TASKS[:count], 0.01 + 0.03 / count) for count in (1, 2, 3, 6)]
    found = small_set_flattery([*results, network("ab", None)], 6)
    assert found == pytest.approx({count: 0.03 * (1 / count - 1 / 6) for count in range(1, 7)})


def test_flattery_is_pooled_over_networks() -> None:
    draw = np.random.default_rng(0)
    counts = draw.integers(1, 7, size=400).tolist()
    noisy = [network(TASKS[:count], 0.03 / count + 0.05 * draw.normal() / np.sqrt(count)) for count in counts]
    assert small_set_flattery(noisy, 6)[1] == pytest.approx(0.025, abs=0.012)


@pytest.mark.parametrize(
    "results", [[], [network(TASKS, 0.1)] * 3, [network("a", None), network(TASKS, None)], [network("ab", 0.1)] * 2]
)
def test_nothing_is_taken_off_if_sizes_cannot_be_compared(results: list[Trained]) -> None:
    assert set(small_set_flattery(results, 6).values()) == {0.0}


def test_small_sets_are_never_favored() -> None:
    found = small_set_flattery([network("a", 0.0), network(TASKS, 0.1)], 6)
    assert set(found.values()) == {0.0}


class StoppedWorld(World):
    """Networks whose epochs were chosen by the validation rows."""

    total = 0.0

    def find_results(self, jobs: Sequence[Job], what: str) -> dict[Job, Trained]:
        return {
            job: replace(
                result,
                flattery={task: self.total / len(job.tasks) * score.loss for task, score in result.val.items()},
            )
            for job, result in super().find_results(jobs, what).items()
        }


def stopped_world(total: float) -> StoppedWorld:
    """Three tasks, so that every subset can be trained, whatever a search would propose."""
    world = StoppedWorld("conflict", 0, tasks=("a", "b", "d"))
    world.total = total
    return world


def test_committees_of_small_sets_are_expected_to_be_worse_by_their_flattery() -> None:
    plain, flattered = (spend(stopped_world(total), [2], 28, 0).plans[2] for total in (0.0, 0.12))
    assert plain.families["copies"] == flattered.families["copies"]
    assert plain.families["sets"] > plain.families["copies"] + 0.2
    lower = plain.families["sets"] - flattered.families["sets"]
    single = 0.12 * (1 - 1 / 3)
    assert single / 6 < lower < single, "of some tasks, from networks for one or two tasks"


def test_groups_are_expected_to_be_worse_by_their_flattery() -> None:
    plain, flattered = (search_groups(stopped_world(total), [2], 14, [0, 1]).chosen[2] for total in (0.0, 0.12))
    assert plain.groups == flattered.groups
    worse = [0.12 * (1 / len(group.trains) - 1 / 3) for group in plain.groups for _ in group.serves]
    assert flattered.expected - plain.expected == pytest.approx(np.mean(worse) * (1 + plain.expected), rel=0.3)
