"""Compares the paper's groupings with the best groupings for the same matrices."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from tagalong.group import Grouping, score_grouping, select_groups

from ..printed import MATRICES, PRINTED, PrintedGrouping, PublishedMatrix
from ..report import Answer, Cell, Claim, Report, ReportTable, Value

COLUMNS = ("matrix", "groups", "printed", "total", "best", "best total")
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

    @cached_property
    def remarks(self) -> list[str]:
        """Descriptions of the disagreements between the paper's table and the matrix."""
        remarks = []
        if not self.same:
            remark = f"the printed networks score {self.given.value:.3f}, the best {self.best.value:.3f}"
            served = {group.serves for group in self.given.groups}
            helped = [group for group in self.best.groups if group.helpers and group.serves in served]
            also = [f"{_names(group.helpers)} also helps {_names(group.serves)}" for group in helped]
            remarks.append(f"{': '.join([remark, *also])}.")
        results = {frozenset(group.results): group.results for group in self.printed.groups}
        best = {task: self.given.served_by(task).trains for task in self.given.tasks}
        for task, network in best.items():
            bold = [frozenset(group.results) for group in self.printed.groups if task in group.bold]
            if bold and network not in bold:
                scores = {option.trains: option.score for option in self.given.options[task]}
                total = sum(results[trains][name] for name, trains in best.items())
                remarks.append(
                    f"by its score, {task} would be served from {{{_names(network)}}} ({scores[network]:.4g}), but the "
                    f"table serves it from {{{_names(bold[0])}}} ({scores[bold[0]]:.4g}): the total test result of "
                    f"{self.printed.total:g} becomes {total:.4f}."
                )
        return remarks

    def to_document(self) -> dict[str, Any]:
        """Returns the contents as a JSON document."""
        printed = [{"trains": sorted(group.results), "bold": sorted(group.bold)} for group in self.printed.groups]
        best = [{"trains": sorted(group.trains), "serves": sorted(group.serves)} for group in self.best.groups]
        value, status = self.best.value, self.best.status
        return {
            "dataset": self.matrix.dataset,
            "method": self.matrix.method,
            "budget": self.budget,
            "objective": self.best.objective,
            "printed": {"groups": printed, "value": self.given.value, "total_test_result": self.printed.total},
            "best": {"groups": best, "value": value, "status": status, "unique": self.unique},
            "same": self.same,
            "remarks": self.remarks,
        }


def selections() -> tuple[Selection, ...]:
    """Returns the paper's 15 groupings for TAG, CS and HOA, each with the best grouping for the same matrix.

    Example:
        >>> [(s.matrix.key, s.budget) for s in selections() if not s.same]
        [('celeba_tag', 2)]
    """
    compared = []
    for matrix in map(PublishedMatrix, MATRICES):
        scores, options = matrix.affinity, matrix.options
        for budget, printed in PRINTED[matrix.key].items():
            given = score_grouping(scores, [group.results for group in printed.groups], **options)
            compared.append(Selection(matrix, budget, printed, given, select_groups(scores, budget, **options)))
    return tuple(compared)


def run() -> Report:
    """Compares all printed groupings with the best ones. "yes" means that the printed one is the only optimum."""
    selected = selections()
    rows: list[list[Cell]] = []
    claims = []
    for selection in selected:
        where = f"{selection.matrix.dataset}, {selection.matrix.method}"
        printed = [(frozenset(group.results), group.bold) for group in selection.printed.groups]
        best = [(group.trains, group.serves) for group in selection.best.groups]
        totals = [Value(grouping.value, digits=4) for grouping in (selection.given, selection.best)]
        rows.append([where, selection.budget, _format_groups(printed), totals[0], _format_groups(best), totals[1]])
        text = f"{where}, {selection.budget} networks: the printed groups are the best for the published matrix"
        reproduced: Answer = "yes" if selection.unique and not selection.remarks else "no"
        claims.append(Claim(text, reproduced, " ".join(selection.remarks)))
    return Report(
        "selection",
        "Are the printed groups the best ones for the published matrices?",
        [ReportTable("Totals of published scores", COLUMNS, rows, "+task marks a helper task")],
        claims,
        numbers={"selections": [selection.to_document() for selection in selected]},
    )


def _format_groups(groups: Iterable[tuple[Names, Names]]) -> str:
    texts = [
        " ".join([*sorted(serves), *(f"+{task}" for task in sorted(trains - serves))]) for trains, serves in groups
    ]
    return " | ".join(sorted(texts))


def _names(tasks: Names) -> str:
    return ", ".join(sorted(tasks))
