"""The search: what it may spend, what it tries, and that it does not depend on names or scales."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from reduced_rank import World

from tagalong.study import Seen, Trial
from tagalong.study.search import Settings, search
from tagalong.study.search.beliefs import Beliefs, Seens


@dataclass
class Counting:
    """Counts what an oracle is asked."""

    world: World
    asked: list[Trial] = field(default_factory=list)

    @property
    def tasks(self) -> tuple[str, ...]:
        return self.world.tasks

    @property
    def fractions(self) -> tuple[float, ...]:
        return (0.25,)

    def train(self, trials: Sequence[Trial]) -> list[Seen]:
        self.asked += trials
        return self.world.train(trials)


@pytest.mark.parametrize("screen", [None, 0.25])
@pytest.mark.parametrize("effort", [1, 5, 23.5])
def test_the_effort_is_never_exceeded_and_nothing_is_trained_twice(effort: float, screen: float | None) -> None:
    oracle = Counting(World("conflict", 0))
    found = search(oracle, [2, 3], effort, [0, 1], spent=0.3, settings=Settings(screen=screen))
    assert found.spent <= effort + 0.31
    assert found.spent == pytest.approx(0.3 + sum(trial.fraction for trial in oracle.asked))
    assert len(set(oracle.asked)) == len(oracle.asked)
    assert all(set(chosen.serves) == set(oracle.tasks) for chosen in found.chosen.values())
    assert all(len(found.chosen[budget].networks) <= budget for budget in (2, 3))


def test_the_same_search_again_asks_the_same() -> None:
    first, second = Counting(World("conflict", 1)), Counting(World("conflict", 1))
    assert search(first, [2], 15, [0, 1]).chosen == search(second, [2], 15, [0, 1]).chosen
    assert first.asked == second.asked


def test_every_subset_is_trained_where_the_effort_allows() -> None:
    oracle = Counting(World("twins", 0, tasks=("a", "b", "c")))
    search(oracle, [2], 20, [0, 1])
    assert {(trial.tasks, trial.seed) for trial in oracle.asked} >= {
        (frozenset(some), seed) for some in ("a", "b", "c", "ab", "ac", "bc", "abc") for seed in (0, 1)
    }


@pytest.mark.parametrize(("effort", "seeds"), [(8.1, 1), (14.1, 2)])
def test_networks_of_all_tasks_count_once_among_the_subsets(effort: float, seeds: int) -> None:
    oracle = Counting(World("twins", 0, tasks=("a", "b", "c")))
    search(oracle, [2], effort, range(seeds), spent=0.1)
    assert len(oracle.asked) == 7 * seeds


def test_proposals_have_a_network_of_all_tasks_with_the_same_seed_to_be_compared_with() -> None:
    oracle = Counting(World("conflict", 0))
    search(oracle, [2], 8, [0, 1, 2])
    everything = frozenset(oracle.tasks)
    assert {trial.seed for trial in oracle.asked} == {trial.seed for trial in oracle.asked if trial.tasks == everything}


def test_an_effort_beyond_every_subset_goes_into_further_seeds() -> None:
    oracle = Counting(World("twins", 0, tasks=("a", "b", "c")))
    assert search(oracle, [2], 12, [0, 1, 2]).spent == 12
    assert search(oracle, [2], 100, [0, 1, 2]).spent == 7 * 3


def test_many_tasks_are_searched_without_all_their_subsets() -> None:
    world = World("conflict", 0, tasks=tuple("abcdefghijklmnop"), rows=(300, 300, 300))
    found = search(world, [2], 30, [0, 1]).chosen[2]
    assert found.expected < 0


def test_what_is_known_of_a_network_that_was_trained_is_near_what_it_showed() -> None:
    draw = np.random.default_rng(0)
    inside = (np.arange(15, 0, -1)[:, None] >> np.arange(4) & 1).astype(bool)
    effects = -0.05 * (~inside).sum(1)[:, None] + 0.001 * draw.normal(size=inside.shape)
    logs = np.where(inside, effects, np.nan)
    beliefs = Beliefs(Seens(inside, np.zeros(15, dtype=int), np.zeros(15, dtype=bool), logs))
    means, deviations = beliefs.expect(inside)
    np.testing.assert_allclose(means[inside], (logs - logs[0])[inside], atol=0.02)
    assert np.all(deviations[0] == 0)


def test_the_order_of_tasks_and_the_scale_of_losses_do_not_matter() -> None:
    draw = np.random.default_rng(1)
    inside = (np.arange(15, 0, -1)[:, None] >> np.arange(4) & 1).astype(bool)
    logs = np.where(inside, 0.1 * draw.normal(size=inside.shape), np.nan)
    hints, order = draw.normal(size=(4, 4)), [2, 0, 3, 1]
    seeds, early = np.zeros(15, dtype=int), np.zeros(15, dtype=bool)
    one = Beliefs(Seens(inside, seeds, early, logs), hints).expect(inside)[0]
    turned = Seens(inside[:, order], seeds, early, logs[:, order] + np.log([1, 10, 100, 0.1]))
    other = Beliefs(turned, hints[np.ix_(order, order)]).expect(inside[:, order])[0]
    np.testing.assert_allclose(other, one[:, order], atol=1e-6)


@dataclass
class Wild(Counting):
    """Networks without the first task diverge, with odd seeds; an early look at all tasks may, too."""

    early: bool = False

    def train(self, trials: Sequence[Trial]) -> list[Seen]:
        return [replace(one, losses={}) if self._lost(one.trial) else one for one in super().train(trials)]

    def _lost(self, trial: Trial) -> bool:
        if trial.tasks == frozenset(self.tasks):
            return self.early and trial.fraction < 1 and trial.seed == 1
        return trial.seed % 2 == 1 and self.tasks[0] not in trial.tasks


@pytest.mark.parametrize("early", [False, True])
@pytest.mark.parametrize("screen", [None, 0.25])
@pytest.mark.parametrize("effort", [4, 23.5, 60])
def test_what_diverged_is_paid_for_tried_no_more_and_never_chosen(
    effort: float, screen: float | None, early: bool
) -> None:
    oracle = Wild(World("conflict", 0), early=early)
    found = search(oracle, [2, 3], effort, [0, 1, 2, 3], settings=Settings(screen=screen))
    assert found.spent == pytest.approx(sum(trial.fraction for trial in oracle.asked))
    assert found.spent <= effort
    assert len(set(oracle.asked)) == len(oracle.asked)
    assert [one.trial for step in found.steps for one in step.seen] == oracle.asked
    lost = {trial.tasks: at for at, trial in enumerate(oracle.asked) if oracle._lost(trial)}
    lost.pop(frozenset(oracle.tasks), None)
    assert lost or effort < 20
    step_of = [number for number, step in enumerate(found.steps) for _ in step.seen]
    for tasks, at in lost.items():
        later = [trial for trial, step in zip(oracle.asked, step_of, strict=True) if step > step_of[at]]
        assert tasks not in {trial.tasks for trial in later}
    for chosen in found.chosen.values():
        assert not set(chosen.networks) & set(lost)
        assert set(chosen.serves) == set(oracle.tasks)


def test_the_search_finds_what_is_left_where_all_else_diverges() -> None:
    class OnlyTogether(Counting):
        def train(self, trials: Sequence[Trial]) -> list[Seen]:
            whole = frozenset(self.tasks)
            return [one if one.trial.tasks == whole else replace(one, losses={}) for one in super().train(trials)]

    oracle = OnlyTogether(World("conflict", 0, tasks=("a", "b", "c")))
    found = search(oracle, [2], 30, [0, 1])
    assert found.chosen[2].networks == (frozenset("abc"),)
    assert found.chosen[2].expected == 0
    assert len(oracle.asked) == 2 + 6, "each set once, and all together with both seeds"
