"""Computes the stability of a grouping by repeating the selection on bootstrap resamples of the history."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

Served = frozenset[frozenset[str]]
MIN_SETTLED_FRACTION = 0.8  # a task is settled if its group is the same in at least this fraction of resamples


@dataclass(frozen=True)
class Stability:
    """Measures how often resamples of the measured steps lead to the same groups.

    Attributes:
        resamples: the number of resamples.
        share: the fraction of resamples that lead to the same grouping.
        tasks: the task names, in the same order as `together` and `same`.
        together: the fraction of resamples in which each pair of tasks is served by the same network.
        same: the fraction of resamples in which each task is served together with the same tasks.
    """

    resamples: int
    share: float
    tasks: tuple[str, ...]
    together: tuple[tuple[float, ...], ...]
    same: tuple[float, ...]

    @property
    def unsettled(self) -> tuple[str, ...]:
        """The tasks whose group differs in more than a fifth of the resamples."""
        return tuple(task for task, share in zip(self.tasks, self.same, strict=True) if share < MIN_SETTLED_FRACTION)

    def __str__(self) -> str:
        agreement = f"the same groups in {self.share:.0%} of {self.resamples} resamples"
        return f"{agreement}; not settled: {', '.join(self.unsettled)}" if self.unsettled else agreement


def stability(served: Served, resampled: Sequence[Served]) -> Stability:
    """Compares the groups of a grouping with those selected from resamples.

    Example:
        >>> one, two = [{"a", "b"}, {"c"}], [{"a"}, {"b", "c"}]
        >>> served = [frozenset(map(frozenset, sets)) for sets in (one, one, one, two)]
        >>> print(stability(served[0], served))
        the same groups in 75% of 4 resamples; not settled: a, b, c
    """
    tasks = tuple(sorted(task for tasks in served for task in tasks))
    number = len(resampled)
    served_with = [{task: tasks for tasks in other for task in tasks} for other in resampled]
    chosen_with = {task: tasks for tasks in served for task in tasks}
    together = tuple(tuple(sum(b in p[a] for p in served_with) / number for b in tasks) for a in tasks)
    same = tuple(sum(p[task] == chosen_with[task] for p in served_with) / number for task in tasks)
    return Stability(number, sum(other == served for other in resampled) / number, tasks, together, same)
