"""The paper's groupings beside the best ones for the same matrices."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tagalong.group import Grouping, score_grouping, select_groups

from .printed import PRINTED, Printed, Published, published

Names = frozenset[str]


@dataclass(frozen=True)
class Selection:
    """One printed grouping and the best one.

    Attributes:
        problem: the matrix both come from.
        budget: how many networks.
        printed: as in the paper's table, with test results.
        given: the printed networks, scored by the matrix.
        best: the optimum for the same budget.
    """

    problem: Published
    budget: int
    printed: Printed
    given: Grouping
    best: Grouping

    @property
    def same(self) -> bool:
        """Whether the printed networks are the best ones."""
        return {group.trains for group in self.given.groups} == {group.trains for group in self.best.groups}

    @property
    def unique(self) -> bool:
        """Whether the best is proven, and nothing else is as good."""
        return self.best.status == "optimal" and not self.best.ties

    @property
    def served_elsewhere(self) -> dict[str, tuple[Names, Names]]:
        """Tasks that the table prints in bold in another network than the one that serves them best: (bold, best)."""
        found = {}
        for task in self.given.tasks:
            bold = [frozenset(group.results) for group in self.printed.groups if task in group.bold]
            best = self.given.served_by(task).trains
            if bold and best not in bold:
                found[task] = (bold[0], best)
        return found

    @property
    def total_by_scores(self) -> float:
        """The total of the printed test results if every task is taken from the network where it scores best."""
        results = {frozenset(group.results): group.results for group in self.printed.groups}
        return sum(results[self.given.served_by(task).trains][task] for task in self.given.tasks)

    @property
    def remarks(self) -> list[str]:
        """Where the paper's table and the matrix disagree, in sentences."""
        return [*self._networks(), *self._serving()]

    def _networks(self) -> list[str]:
        if self.same:
            return []
        helped = [
            f"{_names(group.helpers)} also helps {_names(group.serves)}"
            for group in self.best.groups
            if any(group.serves == other.trains != group.trains for other in self.given.groups)
        ]
        start = f"the printed networks score {self.given.value:.3f}, the best {self.best.value:.3f}"
        return [f"{start}: {'; '.join(helped)}." if helped else f"{start}."]

    def _serving(self) -> list[str]:
        remarks = []
        for task, (bold, best) in self.served_elsewhere.items():
            scores = {option.trains: option.score for option in self.given.options[task]}
            table, ours = _names(bold), _names(best)
            remarks.append(
                f"by its score {task} is served from {{{ours}}} ({scores[best]:.4g}; {scores[bold]:.4g} in "
                f"{{{table}}}), the table serves it from {{{table}}}: the total test result of "
                f"{self.printed.total:g} becomes {self.total_by_scores:.4f}."
            )
        return remarks

    def to_document(self) -> dict[str, Any]:
        """As JSON can hold it."""
        return {
            "dataset": self.problem.dataset,
            "method": self.problem.method,
            "budget": self.budget,
            "objective": self.best.objective,
            "printed": {
                "groups": [{"trains": sorted(g.results), "bold": sorted(g.bold)} for g in self.printed.groups],
                "value": self.given.value,
                "total_test_result": self.printed.total,
            },
            "best": {
                "groups": [{"trains": sorted(g.trains), "serves": sorted(g.serves)} for g in self.best.groups],
                "value": self.best.value,
                "status": self.best.status,
                "unique": self.unique,
            },
            "same": self.same,
            "remarks": self.remarks,
        }


def selections() -> tuple[Selection, ...]:
    """The 15 groupings that the paper prints for its own method and the two it compares with.

    Example:
        >>> [(s.problem.key, s.budget) for s in selections() if not s.same]
        [('celeba_tag', 2)]
    """
    return tuple(
        _selection(problem, budget, printed)
        for problem in published()
        for budget, printed in PRINTED[problem.key].items()
    )


def _selection(problem: Published, budget: int, printed: Printed) -> Selection:
    scores, options = problem.affinity, problem.options
    groups = [frozenset(group.results) for group in printed.groups]
    given = score_grouping(scores, groups, budget=budget, **options)
    return Selection(problem, budget, printed, given, select_groups(scores, budget, **options))


def _names(tasks: Names) -> str:
    return ", ".join(sorted(tasks))
