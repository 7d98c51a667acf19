"""`capacity`: no limit on latency. One larger network for all tasks against groups of small ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from tagalong.learn import Capacity, capacities, count_parameters
from tagalong.study import Lab, compare_methods

from ..claims import all_lower, value
from ..figures import Point, error_against_cost
from ..printed import CAPACITY
from ..report import Cell, Claim, Report, Sheet, Value
from ..totals import Label, digits_of, measure_of, one_row, total, totals
from .tune import rules_of

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

    from ..bench import Bench

TITLE = "Is one larger network as good as several small ones?"
METHODS = ("mtl", "uw", "gradnorm")
Found = dict[tuple[str, str, float], list[float]]
Grouped = dict[Label, list[float]]


def run(bench: Bench, methods: Sequence[str] | None = None) -> Report:
    """Trains larger networks with n× the channels and n× the parameters.

    Args:
        bench: where it runs.
        methods: of "mtl", "uw" and "gradnorm"; by default all, on Taskonomy MTL and GradNorm, as in the paper.
    """
    chosen = methods or [method for method in METHODS if method != "uw" or bench.printed != "taskonomy"]
    times = [float(k) for k in bench.budgets]
    with bench.lab() as lab:
        rules = rules_of(bench, lab, chosen)
        sizes = [Capacity("channels", 1.0, 1.0, count_parameters(bench.chosen, bench.chosen.names), 1.0)]
        sizes += capacities(bench.chosen, times=times)
        # First, since it ends where MTL diverges: larger networks take hours.
        compared = compare_methods(lab, ["tag", "hoa"], bench.budgets, bench.seeds)
        records = [record for record in compared if record.budget is not None]
        found = _totals(lab, rules, sizes, bench.seeds)
    grouped = totals(bench.chosen, records)
    reached = {(one.method, one.budget): one.parameters / sizes[0].parameters for one in records}
    return Report(
        "capacity",
        TITLE,
        sheets=[_larger(bench, sizes, found), _groups(bench, grouped, reached)],
        claims=_claims(found, grouped, times, one_row(bench.chosen)),
        figures={"capacity": _figure(bench, points(sizes, found, grouped, reached))},
        notes=[*bench.about, "parameters are against MTL's; the paper counts n× the channels, and n groups, as n×"],
        numbers={"rules": rules},
    )


def _totals(lab: Lab, rules: Mapping[str, str], sizes: Sequence[Capacity], seeds: Sequence[int]) -> Found:
    jobs = {
        (method, size.by, size.times): [lab.job(lab.problem.names, seed, rule, size.width) for seed in seeds]
        for method, rule in rules.items()
        for size in sizes
    }
    rows = lab.networks([job for some in jobs.values() for job in some], "larger networks", diverged=True)
    return {label: [total(lab.problem, rows[job].test) for job in some] for label, some in jobs.items()}


def _larger(bench: Bench, sizes: Sequence[Capacity], found: Found) -> Sheet:
    rows: list[list[Cell]] = []
    known, digits = CAPACITY.get(bench.printed or "", {}), digits_of(bench.chosen)
    for (method, by, times), values in found.items():
        size = next(size for size in sizes if (size.by, size.times) == (by, times))
        printed = known.get((method, int(times))) if by == "channels" and len(bench.chosen.names) >= 5 else None
        comparable = printed is not None and len(printed.results) == len(bench.chosen.names)
        shown = Value(printed.total, digits=digits) if printed is not None and comparable else None
        rows.append([method, f"{times:g}× {by}", Value(size.reached), value(values, digits=digits), shown])
    columns = ("method", "size", "parameters, ×", f"total {measure_of(bench.chosen)}", "printed")
    return Sheet("One larger network", columns, rows)


def _groups(bench: Bench, grouped: Grouped, reached: Mapping[Label, float]) -> Sheet:
    digits = digits_of(bench.chosen)
    rows = [(*label, Value(reached[label]), value(values, digits=digits)) for label, values in grouped.items()]
    columns = ("method", "groups", "parameters, ×", f"total {measure_of(bench.chosen)}")
    return Sheet("Groups of networks of the usual size", columns, rows)


def _claims(found: Found, grouped: Grouped, times: Sequence[float], row: float) -> list[Claim]:
    groups = {
        f"{group} against {method} at {n:g}× {by}": (grouped[group, k], found[method, by, n])
        for group, k in grouped
        for method, by, n in found
        if n == k
    }
    wider = {
        f"{method} at {n:g}× channels": (found[method, "channels", 1.0], found[method, "channels", n])
        for method in dict.fromkeys(method for method, *_ in found)
        for n in times
    }
    return [
        all_lower("groups of TAG and HOA do better than larger networks", groups, row=row),
        all_lower("more channels do worse than the usual ones (said of CelebA)", wider, row=row),
    ]


def _figure(bench: Bench, drawn: Sequence[Point]) -> Figure:
    return error_against_cost(
        drawn,
        title=TITLE,
        cost="parameters, against MTL's",
        error=f"total {measure_of(bench.chosen)}",
        note=f"{bench.problem.name}, {bench.size}; beside each point its size or groups; equal ones stand side by side",
    )


def points(sizes: Sequence[Capacity], found: Found, grouped: Grouped, reached: Mapping[Label, float]) -> list[Point]:
    """What the figure shows: no point where a total is not a number, as after a training that diverged."""
    larger: dict[tuple[str, float], float] = {(size.by, size.times): size.reached for size in sizes}
    made = [
        Point(f"{method}, {by}", f"{times:g}×", larger[by, times], value(values).mean, value(values).stderr)
        for (method, by, times), values in found.items()
    ]
    for (method, k), values in grouped.items():
        made.append(Point(method, str(k), reached[method, k], value(values).mean, value(values).stderr))
    return [point for point in made if np.isfinite(point.error)]
