"""How often the search is right where nothing is to be gained, and where something must be found."""

import numpy as np
import pytest
from reduced_rank import World

from tagalong.study.search import search

REPETITIONS = 100
SEEDS = (0, 1, 2)
BUDGETS = (2, 3)


def recommended(kind: str, seed: int) -> dict[int, set[frozenset[str]]]:
    """By budget what each network serves, for the effort of 20 trainings and affinities that mean nothing."""
    world = World(kind, seed)
    tasks = len(world.tasks)
    hints = np.random.default_rng([seed, 7]).normal(size=(tasks, tasks))
    chosen = search(world, BUDGETS, 20, SEEDS, hints=hints, errors=np.full_like(hints, 0.5)).chosen
    return {
        budget: {_served(found.serves, group) for group in found.serves.values()} for budget, found in chosen.items()
    }


def _served(serves: dict[str, frozenset[str]], group: frozenset[str]) -> frozenset[str]:
    return frozenset(task for task, by in serves.items() if by == group)


@pytest.mark.parametrize("kind", ["shuffled", "independent"])
def test_one_network_is_recommended_where_nothing_is_to_be_gained(kind):
    found = [recommended(kind, seed) for seed in range(REPETITIONS)]
    for budget in BUDGETS:
        assert sum(len(served[budget]) == 1 for served in found) >= 95, budget


def test_planted_groups_are_found():
    planted = {frozenset("abc"), frozenset("def")}
    assert sum(recommended("conflict", seed)[2] == planted for seed in range(REPETITIONS)) >= 95
