"""`no-early-stopping`: all epochs, and the weights of the last one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tagalong.errors import counted

from ..claims import all_lower, value
from ..figures import bars
from ..report import Cell, Report, Sheet
from ..totals import digits_of, measure_of, one_row, total
from .tune import rules_of

if TYPE_CHECKING:
    from ..bench import Bench

TITLE = "Do training augmentations beat MTL when nothing stops early?"
METHODS = ("mtl", "uw", "gradnorm", "pcgrad", "pcgrad-uw")


def run(bench: Bench, methods: Sequence[str] | None = None) -> Report:
    """MTL, UW, GradNorm and PCGrad with early stopping and the best weights, and without either.

    Args:
        bench: where it runs.
        methods: of "uw", "gradnorm", "pcgrad" and "pcgrad-uw", all by default; MTL is always there.
    """
    with bench.lab() as lab:
        rules = rules_of(bench, lab, list(dict.fromkeys(["mtl", *(methods or METHODS)])))
    stopped = _totals(bench, rules, "with early stopping")
    trained = _totals(bench, rules, "all epochs", patience=None, keep="last")
    digits = digits_of(bench.chosen)
    rows: list[list[Cell]] = [
        [name, *(value(found[name], digits=digits) for found in (stopped, trained))] for name in rules
    ]
    columns = ("method", "best weights", "last weights")
    last = {name: (values, trained["mtl"]) for name, values in trained.items() if name != "mtl"}
    both, row = {name: (stopped[name], trained[name]) for name in rules}, one_row(bench.chosen)
    return Report(
        "no-early-stopping",
        TITLE,
        sheets=[Sheet(f"Total {measure_of(bench.chosen)}", columns, rows, "the paper prints no numbers for this")],
        claims=[
            all_lower("without early stopping every method does worse", both, row=row),
            all_lower("without it each augmentation beats MTL", last, row=row),
        ],
        figures={
            "no-early-stopping": bars(
                {name: [value(found[rule]).mean for rule in rules] for name, found in _named(stopped, trained)},
                list(rules),
                title=TITLE,
                value=f"total {measure_of(bench.chosen)}",
                errors={
                    name: [value(found[rule]).stderr or 0.0 for rule in rules]
                    for name, found in _named(stopped, trained)
                },
            )
        },
        notes=[*bench.about, f"without early stopping: {counted(bench.chosen.recipe.epochs, 'epoch')} each"],
    )


def _named(*found: dict[str, list[float]]) -> list[tuple[str, dict[str, list[float]]]]:
    return list(zip(("early stopping, best weights", "all epochs, last weights"), found, strict=True))


def _totals(bench: Bench, rules: dict[str, str], what: str, **recipe: Any) -> dict[str, list[float]]:
    with bench.lab(**recipe) as lab:
        jobs = {name: [lab.job(lab.problem.names, seed, rule) for seed in bench.seeds] for name, rule in rules.items()}
        rows = lab.networks([job for some in jobs.values() for job in some], what, diverged=True)
        return {name: [total(lab.problem, rows[job].test) for job in some] for name, some in jobs.items()}
