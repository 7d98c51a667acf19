"""The search: what it spends and tries, and that it does not depend on task names or loss scales."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from reduced_rank import WHOLE, World

from tagalong.learn import Job, Trained
from tagalong.study.search import SearchSettings, Trial, search
from tagalong.study.search.beliefs import Beliefs, TrialArrays


class CountingWorld(World):
    """Counts the networks that are requested."""

    def __init__(self, *world: Any, **options: Any) -> None:
        super().__init__(*world, **options)
        self.trained: list[Trial] = []

    def find_results(self, jobs: Sequence[Job], what: str) -> dict[Job, Trained]:
        self.trained += map(trial_of, jobs)
        return super().find_results(jobs, what)


def trial_of(job: Job) -> Trial:
    return Trial(frozenset(job.tasks), job.seed, 1.0 if job.epochs is None else job.epochs / WHOLE)


@pytest.mark.parametrize("screen", [None, 0.25])
@pytest.mark.parametrize("effort", [1, 5, 23.5])
def test_the_effort_is_never_exceeded_and_nothing_is_trained_twice(effort: float, screen: float | None) -> None:
    runner = CountingWorld("conflict", 0)
    found = search(runner, [2, 3], effort, [0, 1], spent=0.3, settings=SearchSettings(screen=screen))
    assert found.spent <= effort + 0.31
    assert found.spent == pytest.approx(0.3 + sum(trial.fraction for trial in runner.trained))
    assert len(set(runner.trained)) == len(runner.trained)
    assert all(set(chosen.serves) == set(runner.tasks) for chosen in found.chosen.values())
    assert all(len(found.chosen[budget].networks) <= budget for budget in (2, 3))


def test_every_proposal_has_a_network_of_all_tasks_with_the_same_seed_to_compare_with() -> None:
    runner = CountingWorld("conflict", 0)
    search(runner, [2], 8, [0, 1, 2])
    everything = frozenset(runner.tasks)
    assert {trial.seed for trial in runner.trained} == {
        trial.seed for trial in runner.trained if trial.tasks == everything
    }


def test_effort_left_after_all_subsets_goes_into_more_seeds() -> None:
    runner = CountingWorld("twins", 0, tasks=("a", "b", "c"))
    assert search(runner, [2], 12, [0, 1, 2]).spent == 12
    assert search(runner, [2], 100, [0, 1, 2]).spent == 7 * 3


def test_many_tasks_are_searched_without_all_their_subsets() -> None:
    world = World("conflict", 0, tasks=tuple("abcdefghijklmnop"), rows=(300, 300, 300))
    found = search(world, [2], 30, [0, 1]).chosen[2]
    assert found.expected < 0


def test_estimates_for_trained_networks_are_close_to_their_results() -> None:
    draw = np.random.default_rng(0)
    inside = (np.arange(15, 0, -1)[:, None] >> np.arange(4) & 1).astype(bool)
    effects = -0.05 * (~inside).sum(1)[:, None] + 0.001 * draw.normal(size=inside.shape)
    logs = np.where(inside, effects, np.nan)
    beliefs = Beliefs(TrialArrays(inside, np.zeros(15, dtype=int), np.zeros(15, dtype=bool), logs))
    means, deviations = beliefs.predict(inside)
    np.testing.assert_allclose(means[inside], (logs - logs[0])[inside], atol=0.02)
    assert np.all(deviations[0] == 0)


def test_the_order_of_tasks_and_the_scale_of_losses_do_not_matter() -> None:
    draw = np.random.default_rng(1)
    inside = (np.arange(15, 0, -1)[:, None] >> np.arange(4) & 1).astype(bool)
    logs = np.where(inside, 0.1 * draw.normal(size=inside.shape), np.nan)
    hints, order = draw.normal(size=(4, 4)), [2, 0, 3, 1]
    seeds, early = np.zeros(15, dtype=int), np.zeros(15, dtype=bool)
    one = Beliefs(TrialArrays(inside, seeds, early, logs), hints).predict(inside)[0]
    turned = TrialArrays(inside[:, order], seeds, early, logs[:, order] + np.log([1, 10, 100, 0.1]))
    other = Beliefs(turned, hints[np.ix_(order, order)]).predict(inside[:, order])[0]
    np.testing.assert_allclose(other, one[:, order], atol=1e-6)


class DivergingWorld(CountingWorld):
    """Networks without the first task diverge for odd seeds; optionally, the early look at all tasks does too."""

    def __init__(self, *world: Any, early: bool = False) -> None:
        super().__init__(*world)
        self.early = early

    def find_results(self, jobs: Sequence[Job], what: str) -> dict[Job, Trained]:
        results = super().find_results(jobs, what)
        return {job: as_diverged(one) if self.diverges(trial_of(job)) else one for job, one in results.items()}

    def diverges(self, trial: Trial) -> bool:
        if trial.tasks == frozenset(self.tasks):
            return self.early and trial.fraction < 1 and trial.seed == 1
        return trial.seed % 2 == 1 and self.tasks[0] not in trial.tasks


def as_diverged(result: Trained) -> Trained:
    return replace(result, best_epoch=-1, halves={})


@pytest.mark.parametrize("early", [False, True])
@pytest.mark.parametrize("screen", [None, 0.25])
@pytest.mark.parametrize("effort", [4, 23.5, 60])
def test_diverged_networks_count_as_spent_and_are_never_retried_or_chosen(
    effort: float, screen: float | None, early: bool
) -> None:
    runner = DivergingWorld("conflict", 0, early=early)
    found = search(runner, [2, 3], effort, [0, 1, 2, 3], settings=SearchSettings(screen=screen))
    assert found.spent == pytest.approx(sum(trial.fraction for trial in runner.trained))
    assert found.spent <= effort
    assert len(set(runner.trained)) == len(runner.trained)
    assert [trial for step in found.steps for trial in step.results] == runner.trained
    lost = {trial.tasks: at for at, trial in enumerate(runner.trained) if runner.diverges(trial)}
    lost.pop(frozenset(runner.tasks), None)
    assert lost or effort < 20
    step_of = [number for number, step in enumerate(found.steps) for _ in step.results]
    for tasks, at in lost.items():
        later = [trial for trial, step in zip(runner.trained, step_of, strict=True) if step > step_of[at]]
        assert tasks not in {trial.tasks for trial in later}
    for chosen in found.chosen.values():
        assert not set(chosen.networks) & set(lost)
        assert set(chosen.serves) == set(runner.tasks)


@pytest.mark.parametrize(("free_width", "rounds", "width"), [(2, 12, 5), (3, 4, 14), (None, 4, 14)])
def test_rounds_are_wider_where_networks_trained_together_cost_as_much_as_one(
    free_width: int | None, rounds: int, width: int
) -> None:
    class Device(CountingWorld):
        @property
        def free_width(self) -> int | None:
            return free_width

    runner = Device("conflict", 0)
    found = search(runner, [2], 60, [0, 1, 2])
    assert [len(step.results) for step in found.steps[1:4]] == [width] * 3
    assert len(found.steps) <= 1 + rounds + 1
    assert found.spent == 60
    assert found.steps == search(Device("conflict", 0), [2], 60, [0, 1, 2]).steps, "the same when resumed"
    given = search(CountingWorld("conflict", 0), [2], 60, [0, 1, 2], settings=SearchSettings(rounds=rounds))
    assert found.steps == given.steps


def test_proposals_of_a_wide_round_differ_from_each_other_and_leave_no_trace() -> None:
    runner = CountingWorld("conflict", 0)
    for step in search(runner, [2], 40, [0, 1], settings=SearchSettings(rounds=2)).steps[1:]:
        assert len({trial.tasks for trial in step.results}) == len(step.results)
        for result in step.results.values():
            assert result == runner.find_results([result.job], "")[result.job], "not a prediction"
