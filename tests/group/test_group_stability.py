"""The stability of a grouping, from the history or the standard errors of an affinity."""

import numpy as np
import torch
from numpy.typing import NDArray

from tagalong import AffinityMeter
from tagalong.affinity import Affinity
from tagalong.group import Grouping, select_groups
from tagalong.group.stability import default_resamples

PAIRS = np.kron(np.eye(2), np.ones((2, 2)))


def affinity(noise: float, base: NDArray[np.float64] = PAIRS) -> Affinity:
    values = base + noise * np.random.default_rng(0).standard_normal((200, *base.shape))
    return Affinity.from_history(values, list("abcde")[: len(base)])


def test_clear_groups_are_stable() -> None:
    grouping = select_groups(affinity(0.1), 2)
    assert grouping.stability == 1.0
    assert grouping.resampled is not None
    assert grouping.resampled.resamples == 100
    assert not grouping.resampled.unsettled
    together = np.array(grouping.resampled.together)
    assert together.tolist() == PAIRS.tolist()


def test_the_unsettled_task_is_named() -> None:
    base = np.full((5, 5), 0.5)  # the fifth task fits anywhere
    base[:4, :4] = PAIRS
    resampled = select_groups(affinity(1.0, base), 2).resampled
    assert resampled is not None
    assert "e" in resampled.unsettled
    assert resampled.same[resampled.tasks.index("e")] < 0.8


def test_without_standard_errors_there_is_no_stability() -> None:
    assert select_groups(PAIRS, 2).stability is None
    assert select_groups(Affinity.from_matrix(PAIRS), 2).stability is None
    assert select_groups(affinity(0.1).between(0, 1), 2).stability is None
    assert select_groups(affinity(0.1), 2, resamples=0).stability is None


def test_pure_noise_of_streaming_affinities_is_unsettled() -> None:
    meter = AffinityMeter([weight := torch.nn.Parameter(torch.zeros(2000))], estimator="streaming")
    for task in 20 * "abcdefgh":
        weight.grad = torch.randn(2000)
        meter.observe(task)
    resampled = select_groups(meter.affinity(), 3).resampled
    assert resampled is not None
    assert resampled.share < 0.2
    assert len(resampled.unsettled) == 8


def test_stability_is_the_same_for_the_same_seed_and_survives_json() -> None:
    grouping = select_groups(affinity(3.0), 2, resamples=30, seed=5)
    assert select_groups(affinity(3.0), 2, resamples=30, seed=5) == grouping
    assert Grouping.from_json(grouping.to_json()) == grouping


def test_budgets_share_the_resamples() -> None:
    groupings = select_groups(affinity(2.0), [1, 2, 3], resamples=20)
    assert groupings[1].stability == 1.0
    assert groupings[2] == select_groups(affinity(2.0), 2, resamples=20)


def test_resamples_of_many_tasks_use_the_search_solver() -> None:
    tasks = 16
    base = np.kron(np.eye(tasks // 4), np.ones((4, 4)))
    values = base + 0.1 * np.random.default_rng(0).standard_normal((50, tasks, tasks))
    grouping = select_groups(Affinity.from_history(values, list(map(str, range(tasks)))), 4)
    assert grouping.stability == 1.0
    assert grouping.resampled is not None
    assert grouping.resampled.resamples == 20


def test_the_number_of_resamples_depends_on_the_size_only() -> None:
    sizes = [(2, 1), (12, 12), (13, 1), (40, 3), (40, 16), (41, 1)]
    assert [default_resamples(*size) for size in sizes] == [100, 100, 20, 20, 10, 0]
