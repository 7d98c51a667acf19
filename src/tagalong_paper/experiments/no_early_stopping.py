"""`no-early-stopping`: trains for all epochs and keeps the final weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tagalong.errors import pluralize

from ..claims import claim_all_lower, summarize
from ..experiment_report import Cell, Report, ReportTable
from ..figures import draw_bars
from ..metrics import error_per_row, metric_digits, metric_label, total_result
from .tune import training_rules

if TYPE_CHECKING:
    from ..experiment_setup import ExperimentSetup

TITLE = "Do training augmentations beat MTL when nothing stops early?"
METHODS = ("mtl", "uw", "gradnorm", "pcgrad", "pcgrad-uw")


def run(setup: ExperimentSetup, methods: Sequence[str] | None = None) -> Report:
    """Trains MTL, UW, GradNorm and PCGrad with and without early stopping.

    Args:
        setup: the problem, the seeds and the output folder.
        methods: one or more of "uw", "gradnorm", "pcgrad" and "pcgrad-uw". Defaults to all four methods. "mtl" is
            always included.
    """
    with setup.open_backend() as backend:
        rules = training_rules(setup, backend, list(dict.fromkeys(["mtl", *(methods or METHODS)])))
    stopped = _totals(setup, rules, "with early stopping")
    trained = _totals(setup, rules, "all epochs", patience=None, keep="last")
    digits = metric_digits(setup.chosen)
    rows: list[list[Cell]] = [
        [name, *(summarize(found[name], digits=digits) for found in (stopped, trained))] for name in rules
    ]
    columns = ("method", "best weights", "last weights")
    last = {name: (values, trained["mtl"]) for name, values in trained.items() if name != "mtl"}
    both, per_row = {name: (stopped[name], trained[name]) for name in rules}, error_per_row(setup.chosen)
    return Report(
        "no-early-stopping",
        TITLE,
        tables=[
            ReportTable(f"Total {metric_label(setup.chosen)}", columns, rows, "the paper prints no numbers for this")
        ],
        claims=[
            claim_all_lower("without early stopping every method does worse", both, per_row=per_row),
            claim_all_lower("without it each augmentation beats MTL", last, per_row=per_row),
        ],
        figures={
            "no-early-stopping": draw_bars(
                {
                    name: [summarize(found[rule]).mean for rule in rules]
                    for name, found in _label_totals(stopped, trained)
                },
                list(rules),
                title=TITLE,
                ylabel=f"total {metric_label(setup.chosen)}",
                errors={
                    name: [summarize(found[rule]).stderr or 0.0 for rule in rules]
                    for name, found in _label_totals(stopped, trained)
                },
            )
        },
        notes=[*setup.notes, f"without early stopping: {pluralize(setup.chosen.recipe.epochs, 'epoch')} each"],
    )


def _label_totals(*totals: dict[str, list[float]]) -> list[tuple[str, dict[str, list[float]]]]:
    return list(zip(("early stopping, best weights", "all epochs, last weights"), totals, strict=True))


def _totals(setup: ExperimentSetup, rules: dict[str, str], description: str, **recipe: Any) -> dict[str, list[float]]:
    with setup.open_backend(**recipe) as backend:
        jobs = {
            name: [backend.job(backend.problem.names, seed, rule) for seed in setup.seeds]
            for name, rule in rules.items()
        }
        rows = backend.networks([job for some in jobs.values() for job in some], description, diverged=True)
        return {name: [total_result(backend.problem, rows[job].test) for job in some] for name, some in jobs.items()}
