"""The final choice: networks that validation confirms, or one for all tasks.

Expectations come from a model in which every effect is shrunk towards none, as far as the data themselves say (an
empirical Bayes posterior), so that the luckiest of many candidates is not taken at its word. They are shrunk once more by
what two halves of the validation rows agree on, since all candidates are judged on the same rows; and groups are only
recommended if the expected gain stands out from its doubt.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ._beliefs import Beliefs
from ._cover import cover, served_by
from ._oracle import Seen, Subset

SURE = 1.0  # standard deviations that the expected gain must exceed
CAUTION = 0.25  # standard deviations that a task's doubt counts against leaving the others


@dataclass(frozen=True)
class Chosen:
    """What is recommended for a budget.

    Attributes:
        serves: for each task the tasks of the network that serves it.
        expected: the expected change of the losses against all together, a mean over tasks; 0 for all together.
        doubt: its standard deviation.
        tried: how many sets of tasks were trained beside all together.
        agreement: how much of the differences on one half of the validation rows the other half shows.
    """

    serves: dict[str, Subset]
    expected: float
    doubt: float
    tried: int
    agreement: float

    @property
    def networks(self) -> tuple[Subset, ...]:
        """The tasks of each network."""
        return tuple(dict.fromkeys(self.serves.values()))


def choose(
    beliefs: Beliefs, seen: Sequence[Seen], tasks: Sequence[str], budget: int, *, cautious: bool = True
) -> Chosen:
    """The best networks among those that were trained to the end.

    Args:
        beliefs: what is expected of them.
        seen: all trials.
        tasks: names.
        budget: how many networks there may be.
        cautious: recommend all together unless the gain stands out.
    """
    everything = frozenset(tasks)
    whole = dict.fromkeys(one.trial.tasks for one in seen if one.trial.fraction == 1)
    sets = [everything, *(subset for subset in whole if subset != everything)]
    pool = np.array([[task in subset for task in tasks] for subset in sets])
    means, deviations = beliefs.expect(pool)
    agreement = agreement_of_halves(seen, everything)
    means = agreement * means
    together = Chosen(dict.fromkeys(tasks, everything), 0.0, 0.0, len(sets) - 1, agreement)
    values = np.where(pool, means + (CAUTION if cautious else 0.0) * deviations, np.inf)
    values[0] = 0.0
    rows = served_by(values, cover(values, budget))
    columns = np.arange(len(tasks))
    expected = float(means[rows, columns].mean())
    doubt = float(np.sqrt((deviations[rows, columns] ** 2).sum()) / len(tasks))
    if len(sets) == 1 or (cautious and not expected < -SURE * doubt):
        return together
    serves = {task: sets[row] for task, row in zip(tasks, rows, strict=True)}
    return Chosen(serves, expected, doubt, len(sets) - 1, agreement)


def agreement_of_halves(seen: Sequence[Seen], everything: Subset) -> float:
    """How much of what all validation rows show is not the luck of these rows, from 0 to 1.

    Differences against all together with the same seed on either half; the reliability of the whole follows from the
    correlation of halves (Spearman and Brown).
    """
    base = {one.trial.seed: one for one in seen if one.trial.tasks == everything and one.trial.fraction == 1}
    pairs = [
        [np.log(one.losses[task][half] / base[one.trial.seed].losses[task][half]) for half in (0, 1)]
        for one in seen
        if one.trial.fraction == 1 and one.trial.tasks != everything and one.trial.seed in base
        for task in one.trial.tasks
    ]
    if not pairs:
        return 0.5
    first, second = np.array(pairs).T
    weight = 20.0  # pairs that agree by half, before any were seen
    size = (np.mean(first**2) + np.mean(second**2)) / 2
    common = (len(pairs) * np.mean(first * second) + 0.5 * weight * size) / (len(pairs) + weight)
    half = max(0.0, common / size) if size > 0 else 0.0
    return float(2 * half / (1 + half))
