"""A truth table as an oracle: what a search would see, without training anything."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tagalong.study.search import Seen, Trial

from ._table import TruthTable


@dataclass(frozen=True, eq=False)
class Lookup:
    """Looks trials up in a table.

    Attributes:
        table: the truth.
    """

    table: TruthTable

    @property
    def tasks(self) -> tuple[str, ...]:
        return self.table.tasks

    @property
    def fractions(self) -> tuple[float, ...]:
        return self.table.fractions

    def train(self, trials: Sequence[Trial]) -> list[Seen]:
        return [self._seen(trial) for trial in trials]

    def _seen(self, trial: Trial) -> Seen:
        place, table = self.table.place(trial.tasks), self.table
        if trial.fraction == 1:
            losses = np.exp(table.val[trial.seed, :, place])
        else:
            losses = np.exp(table.early[trial.seed, [table.fractions.index(trial.fraction)] * 2, place])
        by_task = {
            task: (float(losses[0, column]), float(losses[1, column]))
            for column, task in enumerate(table.tasks)
            if task in trial.tasks
        }
        return Seen(trial, by_task, trial.fraction)
