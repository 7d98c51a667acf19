"""Two runs side by side."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tagalong.study import Results
    from tagalong.study._summary import Line

    Pair = tuple[Line | None, Line | None]


@dataclass(frozen=True)
class Compared:
    """What two runs say of the same methods and budgets.

    Attributes:
        first: results of one run.
        second: of the other.
        lines: for every method and budget, the line of either run; None where a run lacks it.
        remarks: why numbers may not be comparable.
    """

    first: Results
    second: Results
    lines: Mapping[tuple[str, int | None], Pair]
    remarks: tuple[str, ...]

    def to_document(self) -> dict[str, Any]:
        """As JSON can hold it."""
        return {
            "verdicts": [results.verdict().to_document() for results in (self.first, self.second)],
            "remarks": list(self.remarks),
            "lines": [
                {"method": method, "budget": budget, "runs": [_plain(line) for line in pair]}
                for (method, budget), pair in self.lines.items()
            ],
        }


def compare_runs(first: Results, second: Results) -> Compared:
    """Puts the methods and budgets of two runs side by side, in the order of the first."""
    tables = [{(line.method, line.budget): line for line in results.table()} for results in (first, second)]
    labels = dict.fromkeys([*tables[0], *tables[1]])
    lines: dict[tuple[str, int | None], Pair] = {
        label: (tables[0].get(label), tables[1].get(label)) for label in labels
    }
    return Compared(first, second, lines, tuple(_remarks(first, second)))


def _remarks(first: Results, second: Results) -> list[str]:
    remarks = []
    if set(first.problem.tasks) != set(second.problem.tasks):
        remarks.append("the runs have different tasks, so their changes are means over different tasks")
    elif first.problem.fingerprint != second.problem.fingerprint:
        remarks.append("the runs have different data")
    differing = [name for name in ("recipe", "architecture") if first.settings.get(name) != second.settings.get(name)]
    if differing:
        remarks.append(f"the runs differ in their {' and '.join(differing)}, so mtl is another network in each")
    return remarks


def _plain(line: Line | None) -> dict[str, Any] | None:
    names = ("change", "change_stderr", "total", "total_stderr", "deciding_cost", "training_cost")
    if line is None:
        return None
    found = {name: getattr(line, name) for name in names}
    return found | {"total": None} if line.diverged else found
