"""What one grouping loses against another."""

from __future__ import annotations

from dataclasses import dataclass

from ._grouping import Grouping

SAME = 1e-9  # of the larger value: what counts as equal


@dataclass(frozen=True)
class Comparison:
    """Two groupings of the same tasks, scored alike.

    Attributes:
        mine: for example made by hand and scored by `score_grouping`.
        best: what to compare it with, usually from `select_groups`.

    Example:
        >>> from tagalong.group import score_grouping, select_groups
        >>> affinity = [[0, 5, 1], [5, 0, 0], [0, 0, 0]]
        >>> print(Comparison(score_grouping(affinity, [{"0", "1"}, {"1", "2"}]), select_groups(affinity, 2)))
        loses 1 of 11 (9.1%), all of it on 2
    """

    mine: Grouping
    best: Grouping

    def __post_init__(self) -> None:
        if self.mine.tasks != self.best.tasks or self.mine.objective != self.best.objective:
            raise ValueError("`mine` and `best` must be groupings of the same tasks with the same objective")

    @property
    def loss(self) -> float:
        """How much worse `mine` is in total; negative where it is better, 0 up to rounding."""
        sign = 1.0 if self.best.objective == "max" else -1.0
        loss = sign * (self.best.value - self.mine.value)
        largest = max(abs(self.best.value), abs(self.mine.value))
        return 0.0 if abs(loss) <= SAME * largest else loss

    @property
    def per_task(self) -> dict[str, float]:
        """How much worse `mine` is for each task, before weights; negative where it is better."""
        sign = 1.0 if self.best.objective == "max" else -1.0
        return {task: sign * (score - self.mine.per_task[task]) for task, score in self.best.per_task.items()}

    @property
    def spent(self) -> tuple[float, float]:
        """What the networks of `mine` and of `best` cost."""
        return sum(group.cost for group in self.mine.groups), sum(group.cost for group in self.best.groups)

    def __str__(self) -> str:
        if not self.loss:
            return f"is as good: {self.mine.value:.6g}"
        share = f" ({abs(self.loss / self.best.value):.1%})" if self.best.value else ""
        if self.loss < 0:
            return f"is better by {-self.loss:.4g}{share} than {self.best.value:.6g}"
        losing = [task for task, loss in self.per_task.items() if loss > SAME * abs(self.best.value)]
        where = f", all of it on {losing[0]}" if len(losing) == 1 else ""
        return f"loses {self.loss:.4g} of {self.best.value:.6g}{share}{where}"
