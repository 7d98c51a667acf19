"""How often the search is right where nothing is to be gained, and where something must be found."""

import pytest
from reduced_rank import World

from tagalong.study.search import search

REPETITIONS = 100
SEEDS = (0, 1, 2)


def recommended(kind: str, seed: int) -> set[frozenset[str]]:
    """What each network serves, for at most two networks and the effort of 20 trainings."""
    world = World(kind, seed)
    serves = search(world, [2], 20, SEEDS).chosen[2].serves
    return {frozenset(task for task in world.tasks if serves[task] == network) for network in serves.values()}


@pytest.mark.parametrize("kind", ["shuffled", "independent"])
def test_one_network_is_recommended_where_nothing_is_to_be_gained(kind):
    alone = sum(len(recommended(kind, seed)) == 1 for seed in range(REPETITIONS))
    assert alone >= 95


def test_planted_groups_are_found():
    planted = {frozenset("abc"), frozenset("def")}
    found = sum(recommended("conflict", seed) == planted for seed in range(REPETITIONS))
    assert found >= 95
