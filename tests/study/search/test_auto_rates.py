"""How often the search is right if nothing can be gained, and if there are groups to find."""

import pytest
from reduced_rank import World

from tagalong.study.search import search_groups

pytestmark = pytest.mark.slow

REPETITIONS = 40
SEEDS = (0, 1, 2)
BUDGETS = (2, 3)


def recommended_groups(kind: str, seed: int) -> dict[int, set[frozenset[str]]]:
    """Returns the tasks that each network serves, by budget, for an effort of 20 trainings."""
    chosen = search_groups(World(kind, seed), BUDGETS, 20, SEEDS).chosen
    return {budget: {group.serves for group in found.groups} for budget, found in chosen.items()}


@pytest.mark.parametrize("kind", ["shuffled", "independent"])
def test_one_network_is_recommended_if_nothing_can_be_gained(kind):
    found = [recommended_groups(kind, seed) for seed in range(REPETITIONS)]
    for budget in BUDGETS:
        assert sum(len(served[budget]) == 1 for served in found) >= 0.95 * REPETITIONS, budget


def test_planted_groups_are_found():
    planted = {frozenset("abc"), frozenset("def")}
    assert sum(recommended_groups("conflict", seed)[2] == planted for seed in range(REPETITIONS)) >= 0.95 * REPETITIONS
