"""`no-early-stopping`: trains for all epochs and keeps the final weights."""

from __future__ import annotations

from collections.abc import Sequence

from tagalong.errors import pluralize

from ..experiment_setup import ExperimentSetup, train_totals
from ..figures import draw_bars
from ..report import Report, ReportTable, claim_all_lower
from .tune import training_rules

AUGMENTATIONS = ("uw", "gradnorm", "pcgrad", "pcgrad-uw")
TITLE = "Do training augmentations beat MTL when nothing stops early?"


def run(setup: ExperimentSetup, methods: Sequence[str] | None = None) -> Report:
    """Trains MTL, UW, GradNorm and PCGrad with and without early stopping.

    Args:
        setup: the problem, the seeds and the output folder.
        methods: one or more of "uw", "gradnorm", "pcgrad" and "pcgrad-uw". Defaults to all four methods. "mtl" is
            always included.
    """
    with setup.open_runner() as runner:
        rules = training_rules(setup, runner, list(dict.fromkeys(["mtl", *(methods or AUGMENTATIONS)])))
        jobs = {name: [runner.job(runner.tasks, seed, rule) for seed in setup.seeds] for name, rule in rules.items()}
        stopped = train_totals(runner, jobs, "with early stopping")
    with setup.open_runner(patience=None, keep="last") as runner:
        trained = train_totals(runner, jobs, "all epochs")
    label = f"total {setup.label()}"
    bars = {
        "early stopping, best weights": list(map(setup.summarize, stopped.values())),
        "all epochs, last weights": list(map(setup.summarize, trained.values())),
    }
    best, last = bars.values()
    worse = {name: (stopped[name], trained[name]) for name in rules}
    augmented = {name: (trained[name], trained["mtl"]) for name in rules if name != "mtl"}
    return Report(
        "no-early-stopping",
        TITLE,
        tables=[
            ReportTable.of_columns(
                label.capitalize(),
                {"method": rules, "best weights": best, "last weights": last},
                "the paper prints no numbers for this",
            )
        ],
        claims=[
            claim_all_lower("without early stopping every method does worse", worse, per_row=setup.per_row),
            claim_all_lower("without it each augmentation beats MTL", augmented, per_row=setup.per_row),
        ],
        figures={"no-early-stopping": draw_bars(bars, list(rules), title=TITLE, ylabel=label)},
        notes=[*setup.notes, f"without early stopping: {pluralize(setup.chosen.recipe.epochs, 'epoch')} each"],
    )
