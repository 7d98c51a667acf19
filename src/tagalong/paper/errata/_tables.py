"""Tables whose totals are not the sums of their columns, tasks served twice or never, and misprinted numbers."""

from __future__ import annotations

import math
from collections.abc import Iterator

from .._printed import PRINTED, Printed, PrintedGroup
from .._selection import selections
from ..printed import BASELINES, CAPACITY, OPTIMAL
from ._erratum import Erratum

UNIT = {"celeba": 0.01, "taskonomy": 0.0001}  # of the last printed digit
NAMES = {"celeba": "CelebA", "taskonomy": "Taskonomy"}


def columns_and_totals() -> list[Erratum]:
    """Totals that differ from their columns by more than three standard deviations of rounding."""
    found = []
    for dataset, where, columns, total in _lines():
        digits = 2 if dataset == "celeba" else 4
        noise = UNIT[dataset] / math.sqrt(12) * math.sqrt(len(columns) + 1)
        if abs(sum(columns) - total) > 3 * noise:
            found.append(
                Erratum(
                    f"{NAMES[dataset]}, {where}",
                    f"total {total:.{digits}f}",
                    f"{sum(columns):.{digits}f}",
                    "the sum of the printed columns",
                )
            )
    return found


def _lines() -> Iterator[tuple[str, str, list[float], float]]:
    for dataset in BASELINES:
        for method, line in BASELINES[dataset].items():
            yield dataset, method.upper(), list(line.results.values()), line.total
        for (method, times), line in CAPACITY[dataset].items():
            yield dataset, f"{method.upper()} ({times}×)", list(line.results.values()), line.total
    for dataset, method, budget, printed in _groupings():
        yield dataset, f"{method} {budget} groups", list(served(printed).values()), printed.total


def _groupings() -> Iterator[tuple[str, str, int, Printed]]:
    for key, by_budget in PRINTED.items():
        dataset, _, method = key.partition("_")
        for budget, printed in by_budget.items():
            yield dataset, method.upper(), budget, printed
    for dataset, by_budget in OPTIMAL.items():
        for budget, printed in by_budget.items():
            yield dataset, "Optimal", budget, printed


def served(printed: Printed) -> dict[str, float]:
    """Each task where it is in bold: where it is best if twice, and where it is at all if never."""
    tasks = dict.fromkeys(task for group in printed.groups for task in group.results)
    found = {}
    for task in tasks:
        bold = [group.results[task] for group in printed.groups if task in group.bold]
        found[task] = min(bold or [group.results[task] for group in printed.groups if task in group.results])
    return found


def served_wrongly() -> list[Erratum]:
    """Tasks in bold twice or never, and groupings that are not the best for the published matrices."""
    found = []
    for dataset, method, budget, printed in _groupings():
        for task in served(printed):
            times = sum(task in group.bold for group in printed.groups)
            if times != 1:
                found.append(
                    Erratum(
                        f"{NAMES[dataset]}, {method} {budget} groups",
                        f"{task} in bold {'twice' if times else 'nowhere'}",
                        "once",
                        "every task is served by exactly one network",
                    )
                )
    for one in selections():
        where = f"{one.problem.dataset}, {one.problem.method} {one.budget} groups"
        why = "the published matrix, solved exactly"
        found += [Erratum(where, "as in its table", remark, why) for remark in one.remarks]
    return found


def printed_twice() -> list[Erratum]:
    """Networks for the same tasks that are printed with different results."""
    of: dict[tuple[str, frozenset[str]], list[tuple[str, PrintedGroup]]] = {}
    for dataset, method, budget, printed in _groupings():
        for group in printed.groups:
            of.setdefault((dataset, frozenset(group.results)), []).append((f"{method} {budget} groups", group))
    repeated = {network: places for network, places in of.items() if len(places) > 1}
    unlike = {
        network: places
        for network, places in repeated.items()
        if any(group.results != places[0][1].results for _, group in places)
    }
    why = f"the {len(repeated) - len(unlike)} other networks in several tables have the same results in each"
    return [
        Erratum(
            f"{NAMES[dataset]}, {' and '.join(where for where, _ in places)}",
            f"for {{{', '.join(sorted(tasks))}}} " + "; and ".join(_listed(group) for _, group in places),
            "one network has one result",
            why,
        )
        for (dataset, tasks), places in unlike.items()
    ]


def _listed(group: PrintedGroup) -> str:
    return ", ".join(f"{task} {found:.2f}" for task, found in group.results.items())


def misprints() -> list[Erratum]:
    """Numbers that cannot be meant."""
    wrong = (
        ("CelebA tables", "± 0.0.003, 0.0.021, 0.0.015, 0.0.013, 0.0.000", "± 0.003, …", "two points in a number"),
        ("Taskonomy, CS and TAG", "s 0.532 and 0.528", "0.0532 and 0.0528", "as in Optimal's line; the totals need it"),
        ("Taskonomy, MTL (2×)", "s 0.00536, k 0.11.73", "0.0536 and 0.1173", "as the total 0.5892 needs"),
        ("section 5.2", "Pearson's correlation of 0.93 %", "0.93", "a correlation is no percentage"),
        ("section 5.2", "efficiency increased by 319 %", "3.19×, an increase of 219 %", "the table's speed-up"),
    )  # fmt: skip
    return [Erratum(*entry) for entry in wrong]
