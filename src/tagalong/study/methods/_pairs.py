"""Groups predicted from all pairs: `hoa`, higher-order approximation (Standley et al., ICML 2020)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tagalong.group import select_groups

from .._relative import relative_losses
from ._method import Choice, Decision, Method

if TYPE_CHECKING:
    from .._lab import Lab


class Hoa(Method):
    """Trains all pairs and singles; a task in a larger group is expected to do as the mean over its pairs there.

    Chosen on validation losses, each relative to the same task trained alone with the same seed and then averaged
    over seeds: rescaling a target changes nothing.
    """

    name = "hoa"
    order = 30

    def decide(self, lab: Lab, budgets: Sequence[int], seeds: Sequence[int]) -> Decision:
        subsets = lab.subsets(largest=2)
        jobs = {seed: [lab.job(subset, seed) for subset in subsets] for seed in seeds}
        lab.networks((job for some in jobs.values() for job in some), "all pairs", diverged=True)
        table = relative_losses(lab, subsets, seeds, part="val", reference="alone")
        groupings = select_groups(table, budgets=budgets, complete="pairs", objective="min")
        choices = {int(budget): Choice.of(grouping) for budget, grouping in groupings.items()}
        return Decision.pooled(choices, seeds, {seed: lab.cost(some) for seed, some in jobs.items()})
