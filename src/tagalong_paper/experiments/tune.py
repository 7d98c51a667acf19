"""`tune`: tunes MTL's learning rate and batch size, and GradNorm's α, on validation data."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from tagalong.learn import Job
from tagalong.study import TrainingBackend, train_side_by_side

from ..experiment_report import Cell, Claim, Report, ReportTable, Value
from ..figures import draw_lines
from ..metrics import metric_digits, metric_label, total_result

if TYPE_CHECKING:
    from ..experiment_setup import ExperimentSetup

TITLE = "Learning rate, batch size and GradNorm's α, by validation"
LEARNING_RATE_FACTORS = (0.1, 0.2, 1.0, 2.0, 10.0, 20.0)  # for the paper's learning rate, 5e-5 to 1e-2
BATCH_SIZE_FACTORS = (0.5, 1.0, 2.0)
ALPHAS = (0.01, 0.1, 0.5, 1.0, 1.5, 2.0, 3.0, 5.0)
ALPHA_RULES = tuple(f"gradnorm:{alpha:g}" for alpha in ALPHAS)


def run(setup: ExperimentSetup) -> Report:
    """Trains one network for all tasks in every setting, with one seed."""
    recipe, seeds = setup.chosen.recipe, setup.seeds[:1]
    rates = [recipe.lr * times for times in LEARNING_RATE_FACTORS]
    sizes = dict.fromkeys(max(2, round(recipe.batch_size * times)) for times in BATCH_SIZE_FACTORS)
    with setup.open_backend() as backend:
        grid = {size: [backend.variant(lr=rate, batch_size=size) for rate in rates] for size in sizes}
        plain = {variant: _jobs(variant, seeds, ["plain"]) for variants in grid.values() for variant in variants}
        train_side_by_side({**plain, backend: _jobs(backend, seeds, ALPHA_RULES)}, "settings")
        found = {
            size: [_validation_totals(variant, seeds, ["plain"])[0] for variant in variants]
            for size, variants in grid.items()
        }
        alphas = alpha_totals(backend, seeds)
    best = best_setting(rates, found, recipe.lr, recipe.batch_size)
    measure = metric_label(setup.chosen, "validation")
    digits = metric_digits(setup.chosen)
    return Report(
        "tune",
        TITLE,
        tables=[_grid_table(rates, found, measure, digits), _alpha_table(alphas, measure, digits)],
        claims=[claim_recipe_is_best(recipe.lr, recipe.batch_size, best)],
        figures={
            "tune-learning-rate": draw_lines(
                {f"batches of {size}": (rates, values) for size, values in found.items()},
                title="MTL by learning rate", xlabel="learning rate", ylabel=f"total {measure}", log_x=True,
            ),
            "tune-alpha": draw_lines(
                {"GradNorm": (list(alphas), list(alphas.values()))},
                title="GradNorm by α", xlabel="α", ylabel=f"total {measure}", log_x=True,
            ),
        },
        notes=[*setup.notes, f"tuned with seed {seeds[0]} only"],
        numbers=_best_settings(best, alphas),
    )  # fmt: skip


def _best_settings(best: tuple[float, int, float], alphas: dict[float, float]) -> dict[str, float | None]:
    """Returns the settings with the lowest validation total. A setting is None if all networks diverged."""
    known, alpha = math.isfinite(best[0]), best_alpha(alphas)
    return {
        "lr": best[2] if known else None,
        "batch_size": best[1] if known else None,
        "alpha": alpha if math.isfinite(alphas[alpha]) else None,
    }


def best_setting(
    learning_rates: Sequence[float], totals: Mapping[int, Sequence[float]], learning_rate: float, batch_size: int
) -> tuple[float, int, float]:
    """Returns the lowest total with its batch size and learning rate.

    In a tie, the recipe's setting is preferred, then the smallest batch size and learning rate.

    Args:
        learning_rates: the learning rates that were tried.
        totals: the total for each learning rate, by batch size.
        learning_rate: the recipe's learning rate.
        batch_size: the recipe's batch size.

    Example:
        >>> best_setting([0.1, 0.2], {8: [3.0, 2.0], 16: [2.0, 2.0]}, 0.2, 16)
        (2.0, 16, 0.2)
    """
    settings = [
        (total, batch_size, learning_rate)
        for batch_size in totals
        for total, learning_rate in zip(totals[batch_size], learning_rates, strict=True)
    ]
    own = (batch_size, learning_rate)
    return min(settings, key=lambda one: (round(one[0], 9), not _same_setting(one[1:], own), one[1:]))


def _same_setting(first: tuple[int, float], second: tuple[int, float]) -> bool:
    return first[0] == second[0] and bool(np.isclose(first[1], second[1], atol=0))


def alpha_totals(backend: TrainingBackend, seeds: Sequence[int]) -> dict[float, float]:
    """Returns GradNorm's validation total for each α, or infinity if training diverged."""
    return dict(zip(ALPHAS, _validation_totals(backend, seeds, ALPHA_RULES), strict=True))


def best_alpha(totals: dict[float, float]) -> float:
    """Returns the α with the lowest total, or the smallest such α in a tie. Ignores rounding errors.

    Example:
        >>> best_alpha({0.1: 0.1 + 0.2, 0.5: 0.3, 1.0: 0.4})
        0.1
    """
    return min(totals, key=lambda alpha: (round(totals[alpha], 9), alpha))


def tuned_gradnorm(setup: ExperimentSetup, backend: TrainingBackend) -> str:
    """Returns GradNorm's training rule with the α that is best on validation data. Reuses the networks of `tune`.

    For Taskonomy, which is too large for a search, α is 1.5, as in the paper.
    """
    if setup.problem.name == "taskonomy":
        return "gradnorm:1.5"
    return f"gradnorm:{best_alpha(alpha_totals(backend, setup.seeds[:1])):g}"


def training_rules(setup: ExperimentSetup, backend: TrainingBackend, methods: Sequence[str]) -> dict[str, str]:
    """Returns the training rule of each method, with the tuned α for GradNorm."""
    tuned = {"mtl": "plain"} | ({"gradnorm": tuned_gradnorm(setup, backend)} if "gradnorm" in methods else {})
    return {method: tuned.get(method, method) for method in methods}


def _validation_totals(backend: TrainingBackend, seeds: Sequence[int], rules: Sequence[str]) -> list[float]:
    rows = backend.networks(_jobs(backend, seeds, rules), "settings", diverged=True)
    totals = {job: total_result(backend.problem, row.val) for job, row in rows.items()}
    means = [float(np.mean([totals[job] for job in _jobs(backend, seeds, [rule])])) for rule in rules]
    return [mean if math.isfinite(mean) else math.inf for mean in means]


def _jobs(backend: TrainingBackend, seeds: Sequence[int], rules: Sequence[str]) -> list[Job]:
    return [backend.job(backend.problem.names, seed, rule) for rule in rules for seed in seeds]


def _grid_table(learning_rates: list[float], totals: dict[int, list[float]], label: str, digits: int) -> ReportTable:
    rows: list[list[Cell]] = [
        [f"{learning_rate:g}", *(Value(values[place], digits=digits) for values in totals.values())]
        for place, learning_rate in enumerate(learning_rates)
    ]
    columns = ("learning rate", *(f"batches of {batch_size}" for batch_size in totals))
    return ReportTable(f"MTL: total {label}", columns, rows, "-: diverged")


def _alpha_table(totals: dict[float, float], label: str, digits: int) -> ReportTable:
    rows = [(f"{alpha:g}", Value(value, digits=digits)) for alpha, value in totals.items()]
    note = "" if all(map(math.isfinite, totals.values())) else "-: diverged"
    return ReportTable(f"GradNorm: total {label}", ("α", "total"), rows, note)


def claim_recipe_is_best(learning_rate: float, batch_size: int, best: tuple[float, int, float]) -> Claim:
    """Judges whether the recipe's setting is the best. With one seed, a lower total is not considered clearly better.

    Args:
        learning_rate: the recipe's learning rate.
        batch_size: the recipe's batch size.
        best: the best setting, as returned by `best_setting`.
    """
    text = f"a learning rate of {learning_rate:g} with batches of {batch_size} is the best for MTL"
    if not np.isfinite(best[0]):
        return Claim(text, "not tested", "every setting diverged")
    because = f"the lowest validation total is {best[0]:.4g}, with {best[2]:g} and batches of {best[1]}; "
    if _same_setting(best[1:], (batch_size, learning_rate)):
        return Claim(text, "yes", because + "no other is lower, with one seed")
    return Claim(text, "within noise", because + "with one seed it is not clear that this is better")
