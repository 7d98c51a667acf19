"""Groupings for several numbers of networks, and what each further network gains."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import TYPE_CHECKING

from tagalong.rendering import TextTable

from .grouping import Grouping

if TYPE_CHECKING:
    import pandas as pd


class GroupingsByBudget(dict[int, Grouping]):
    """The best grouping for each number of networks, and what each further network gains.

    The total never decreases with further networks, even if all affinities are noise: the more groups there are to
    choose from, the better they fit the errors of measurement. If the affinities have standard errors, `gains` are
    corrected for this: groups are selected from resampled affinities, and what their totals owe to the resampling is
    subtracted.

    Attributes:
        gains: the gain of each number of networks over the previous one.
        errors: the standard error of each gain. Empty if the affinities have no standard errors.

    Example:
        >>> from tagalong import select_groups
        >>> groupings = select_groups([[0, 5, 1, 0], [5, 0, 0, 0], [0, 0, 0, 4], [0, 0, 4, 0]])
        >>> print(groupings)
        networks    total    gain  status   groups
               1  6.33333          optimal  {0, 1, 2, 3}
               2       18  +11.67  optimal  {0, 1} {2, 3}
               3       18      +0  optimal  {0, 1} {2, 3}
               4       18      +0  optimal  {0, 1} {2, 3}
        2 networks are enough
        >>> groupings[2].value, groupings.enough
        (18.0, 2)
    """

    def __init__(
        self, groupings: Mapping[int, Grouping], gains: Mapping[int, float], errors: Mapping[int, float]
    ) -> None:
        super().__init__(groupings)
        self.gains = gains
        self.errors = errors

    @property
    def enough(self) -> int:
        """The number of networks after which a further one gains no more than its standard error."""
        budgets = list(self)
        for budget, following in pairwise(budgets):
            if self.gains[following] <= max(self.errors.get(following, 0.0), 1e-9 * abs(self[following].value)):
                return budget
        return budgets[-1]

    def to_frame(self) -> pd.DataFrame:
        """Returns a table with one row for each number of networks."""
        import pandas as pd

        rows = [
            {
                "networks": budget,
                "total": grouping.value,
                "gain": self.gains.get(budget),
                "error": self.errors.get(budget),
                "status": grouping.status,
                "gap": grouping.gap,
                "stability": grouping.stability,
            }
            for budget, grouping in self.items()
        ]
        return pd.DataFrame(rows).set_index("networks")

    def __str__(self) -> str:
        table = TextTable("networks", "total", "gain", "status", "groups", numbers=("networks", "total", "gain"))
        for budget, grouping in self.items():
            gain = f"{self.gains[budget]:+.4g}" if budget in self.gains else ""
            if budget in self.errors:
                gain += f" ± {self.errors[budget]:.2g}"
            groups = " ".join(f"{{{', '.join(sorted(group.trains))}}}" for group in grouping.groups)
            table.add_row(str(budget), f"{grouping.value:.6g}", gain, grouping.status, groups)
        enough = f"{self.enough} network{'s are' if self.enough > 1 else ' is'} enough"
        return f"{table}\n{enough}"
