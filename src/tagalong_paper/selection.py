"""Compares the paper's groupings with the best groupings for the same matrices."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tagalong.group import Grouping, score_grouping, select_groups

from .printed import PRINTED, PrintedGrouping, PublishedMatrix, published_matrices

Names = frozenset[str]


@dataclass(frozen=True)
class Selection:
    """A printed grouping and the best grouping for the same matrix.

    Attributes:
        matrix: the published matrix.
        budget: the number of networks.
        printed: the grouping in the paper's table, with test results.
        given: the printed networks with their scores in the matrix.
        best: the best grouping for the same budget.
    """

    matrix: PublishedMatrix
    budget: int
    printed: PrintedGrouping
    given: Grouping
    best: Grouping

    @property
    def same(self) -> bool:
        """Whether the printed networks are the same as the best ones."""
        return {group.trains for group in self.given.groups} == {group.trains for group in self.best.groups}

    @property
    def unique(self) -> bool:
        """Whether the best grouping is proven to be the only optimum."""
        return self.best.status == "optimal" and not self.best.ties

    @property
    def served_elsewhere(self) -> dict[str, tuple[Names, Names]]:
        """Tasks that are in bold in a network other than their best one, each with both networks (bold, best)."""
        found = {}
        for task in self.given.tasks:
            bold = [frozenset(group.results) for group in self.printed.groups if task in group.bold]
            best = self.given.served_by(task).trains
            if bold and best not in bold:
                found[task] = (bold[0], best)
        return found

    @property
    def total_by_scores(self) -> float:
        """The total of the printed test results if each task is served by the network with its best score."""
        results = {frozenset(group.results): group.results for group in self.printed.groups}
        return sum(results[self.given.served_by(task).trains][task] for task in self.given.tasks)

    @property
    def remarks(self) -> list[str]:
        """Descriptions of the disagreements between the paper's table and the matrix."""
        return [*self._network_remarks(), *self._serving_remarks()]

    def _network_remarks(self) -> list[str]:
        if self.same:
            return []
        helped = [
            f"{_join_names(group.helpers)} also helps {_join_names(group.serves)}"
            for group in self.best.groups
            if any(group.serves == other.trains != group.trains for other in self.given.groups)
        ]
        start = f"the printed networks score {self.given.value:.3f}, the best {self.best.value:.3f}"
        return [f"{start}: {'; '.join(helped)}." if helped else f"{start}."]

    def _serving_remarks(self) -> list[str]:
        remarks = []
        for task, (bold, best) in self.served_elsewhere.items():
            scores = {option.trains: option.score for option in self.given.options[task]}
            table, ours = _join_names(bold), _join_names(best)
            remarks.append(
                f"by its score, {task} would be served from {{{ours}}} ({scores[best]:.4g}), but the table serves it "
                f"from {{{table}}} ({scores[bold]:.4g}): the total test result of {self.printed.total:g} becomes "
                f"{self.total_by_scores:.4f}."
            )
        return remarks

    def to_document(self) -> dict[str, Any]:
        """Returns the contents as a JSON document."""
        return {
            "dataset": self.matrix.dataset,
            "method": self.matrix.method,
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
    """Returns the paper's 15 groupings for TAG, CS and HOA, each with the best grouping for the same matrix.

    Example:
        >>> [(s.matrix.key, s.budget) for s in selections() if not s.same]
        [('celeba_tag', 2)]
    """
    return tuple(
        _compare(matrix, budget, printed)
        for matrix in published_matrices()
        for budget, printed in PRINTED[matrix.key].items()
    )


def _compare(matrix: PublishedMatrix, budget: int, printed: PrintedGrouping) -> Selection:
    scores, options = matrix.affinity, matrix.options
    groups = [frozenset(group.results) for group in printed.groups]
    given = score_grouping(scores, groups, budget=budget, **options)
    return Selection(matrix, budget, printed, given, select_groups(scores, budget, **options))


def _join_names(tasks: Names) -> str:
    return ", ".join(sorted(tasks))
