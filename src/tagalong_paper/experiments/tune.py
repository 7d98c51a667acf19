"""`tune`: tunes MTL's learning rate and batch size, and GradNorm's α, on validation data."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from tagalong.learn import Job
from tagalong.study import Runner

from ..experiment_setup import ExperimentSetup, Key, train_totals
from ..report import Claim, Report, ReportTable

TITLE = "Learning rate, batch size and GradNorm's α, by validation"
LEARNING_RATE_FACTORS = (0.1, 0.2, 1.0, 2.0, 10.0, 20.0)  # for the paper's learning rate, 5e-5 to 1e-2
BATCH_SIZE_FACTORS = (0.5, 1.0, 2.0)
ALPHA_RULES = {alpha: f"gradnorm:{alpha:g}" for alpha in (0.01, 0.1, 0.5, 1.0, 1.5, 2.0, 3.0, 5.0)}
Setting = tuple[int, float]  # batch size and learning rate


def run(setup: ExperimentSetup) -> Report:
    """Trains one network for all tasks in every setting, with one seed."""
    recipe, seed = setup.chosen.recipe, setup.seeds[0]
    rates = [recipe.lr * factor for factor in LEARNING_RATE_FACTORS]
    sizes = list(dict.fromkeys(max(2, round(recipe.batch_size * factor)) for factor in BATCH_SIZE_FACTORS))
    totals: dict[Setting, float] = {}
    for size in sizes:
        with setup.open_runner(batch_size=size) as runner:
            jobs = {(size, rate): replace(runner.job(runner.tasks, seed), lr=rate) for rate in rates}
            totals |= _validation_totals(runner, jobs)
    with setup.open_runner() as runner:
        alphas = validation_totals(runner, seed, ALPHA_RULES)
    best, alpha = lowest(totals, (recipe.batch_size, recipe.lr)), lowest(alphas)
    trained = math.isfinite(totals[best])
    total = f"total {setup.label('validation')}"
    grid = {f"batches of {size}": [setup.summarize([totals[size, rate]]) for rate in rates] for size in sizes}
    tables = [
        ReportTable.of_columns(f"MTL: {total}", {"learning rate": [f"{r:g}" for r in rates], **grid}, "-: diverged"),
        ReportTable.of_columns(
            f"GradNorm: {total}",
            {"α": [f"{a:g}" for a in alphas], "total": [setup.summarize([t]) for t in alphas.values()]},
            "" if all(map(math.isfinite, alphas.values())) else "-: diverged",
        ),
    ]
    return Report(
        "tune",
        TITLE,
        tables,
        claims=[claim_recipe_is_best(totals, best, (recipe.batch_size, recipe.lr))],
        notes=[*setup.notes, f"tuned with seed {seed} only"],
        numbers={
            "lr": best[1] if trained else None,
            "batch_size": best[0] if trained else None,
            "alpha": alpha if math.isfinite(alphas[alpha]) else None,
        },
    )


def validation_totals(runner: Runner, seed: int, rules: Mapping[Key, str]) -> dict[Key, float]:
    """Returns the validation total with each training rule, or infinity if training diverged."""
    return _validation_totals(runner, {key: runner.job(runner.tasks, seed, rule) for key, rule in rules.items()})


def _validation_totals(runner: Runner, jobs: Mapping[Key, Job]) -> dict[Key, float]:
    totals = train_totals(runner, {key: [job] for key, job in jobs.items()}, "settings", "val")
    return {key: float(np.nan_to_num(total[0], nan=math.inf)) for key, total in totals.items()}


def lowest(totals: Mapping[Key, float], preferred: Key | None = None) -> Key:
    """Returns the setting with the lowest total, ignoring rounding errors.

    In a tie, the preferred setting is returned, or the smallest one if it is not among the best.

    Example:
        >>> lowest({(8, 0.1): 3.0, (8, 0.2): 2.0, (16, 0.1): 2.0, (16, 0.2): 2.0}, preferred=(16, 0.2))
        (16, 0.2)
        >>> lowest({0.1: 0.1 + 0.2, 0.5: 0.3, 1.0: 0.4})
        0.1
    """
    return min(totals, key=lambda setting: (round(totals[setting], 9), setting != preferred, setting))


def training_rules(setup: ExperimentSetup, runner: Runner, methods: Sequence[str]) -> dict[str, str]:
    """Returns the training rule of each method: for GradNorm with the α that is best on validation data.

    This reuses the networks of `tune`. For Taskonomy, which is too large for a search, α is 1.5, as in the paper.
    """
    rules = {method: "plain" if method == "mtl" else method for method in methods}
    if "gradnorm" in rules:
        alpha = 1.5
        if setup.problem.name != "taskonomy":
            alpha = lowest(validation_totals(runner, setup.seeds[0], ALPHA_RULES))
        rules["gradnorm"] = ALPHA_RULES[alpha]
    return rules


def claim_recipe_is_best(totals: Mapping[Setting, float], best: Setting, own: Setting) -> Claim:
    """Judges whether the recipe's setting is the best. With one seed, a lower total is not considered clearly better.

    Args:
        totals: the validation total of each setting.
        best: the best setting, as returned by `lowest`.
        own: the recipe's setting.
    """
    text = f"a learning rate of {own[1]:g} with batches of {own[0]} is the best for MTL"
    if not math.isfinite(totals[best]):
        return Claim(text, "not tested", "every setting diverged")
    because = f"the lowest validation total is {totals[best]:.4g}, with {best[1]:g} and batches of {best[0]}; "
    if best == own:
        return Claim(text, "yes", because + "no other is lower, with one seed")
    return Claim(text, "within noise", because + "with one seed it is not clear that this is better")
