"""`tune`: learning rate and batch size of MTL, and GradNorm's α, on validation; nothing else is tuned."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from tagalong.study import Lab

from ..figures import lines
from ..report import Cell, Claim, Report, Sheet, Value
from ..totals import digits_of, measure_of, total

if TYPE_CHECKING:
    from ..bench import Bench

TITLE = "Learning rate, batch size and GradNorm's α, by validation"
RATES = (0.1, 0.2, 1.0, 2.0, 10.0, 20.0)  # times the recipe's: 5e-5 … 1e-2 for the paper's 5e-4
BATCHES = (0.5, 1.0, 2.0)  # times the recipe's
ALPHAS = (0.01, 0.1, 0.5, 1.0, 1.5, 2.0, 3.0, 5.0)


def run(bench: Bench) -> Report:
    """Trains all tasks together with every setting, one seed each."""
    recipe, seeds = bench.chosen.recipe, bench.seeds[:1]
    found: dict[int, list[float]] = {}
    rates = [recipe.lr * times for times in RATES]
    for times in BATCHES:
        size = max(2, round(recipe.batch_size * times))
        found[size] = []
        for rate in rates:
            with bench.lab(lr=rate, batch_size=size) as lab:
                found[size] += _validated(lab, seeds, ["plain"])
    with bench.lab() as lab:
        alphas = alpha_totals(lab, seeds)
    best = best_setting(rates, found, recipe.lr, recipe.batch_size)
    measure = measure_of(bench.chosen, "validation")
    digits = digits_of(bench.chosen)
    return Report(
        "tune",
        TITLE,
        sheets=[_grid(rates, found, measure, digits), _alphas(alphas, measure, digits)],
        claims=[claim(recipe.lr, recipe.batch_size, best)],
        figures={
            "tune-learning-rate": lines(
                {f"batches of {size}": (rates, values) for size, values in found.items()},
                title="MTL by learning rate", across="learning rate", value=f"total {measure}", logarithmic=True,
            ),
            "tune-alpha": lines(
                {"GradNorm": (list(alphas), list(alphas.values()))},
                title="GradNorm by α", across="α", value=f"total {measure}", logarithmic=True,
            ),
        },
        notes=[*bench.about, f"tuned with seed {seeds[0]} alone"],
        numbers=_preferred(best, alphas),
    )  # fmt: skip


def _preferred(best: tuple[float, int, float], alphas: dict[float, float]) -> dict[str, float | None]:
    """What validation prefers; nothing where every training diverged."""
    known, alpha = math.isfinite(best[0]), best_alpha(alphas)
    return {
        "lr": best[2] if known else None,
        "batch_size": best[1] if known else None,
        "alpha": alpha if math.isfinite(alphas[alpha]) else None,
    }


def best_setting(
    rates: Sequence[float], found: Mapping[int, Sequence[float]], rate: float, size: int
) -> tuple[float, int, float]:
    """The lowest total, with its batch size and learning rate: the recipe's own among equals, else the smallest.

    Args:
        rates: the learning rates tried.
        found: by batch size, the total with each of them.
        rate: the recipe's.
        size: the recipe's.

    Example:
        >>> best_setting([0.1, 0.2], {8: [3.0, 2.0], 16: [2.0, 2.0]}, 0.2, 16)
        (2.0, 16, 0.2)
    """
    tried = [(total, many, at) for many in found for total, at in zip(found[many], rates, strict=True)]
    own = (size, rate)
    return min(tried, key=lambda one: (round(one[0], 9), not _same(one[1:], own), one[1:]))


def _same(one: tuple[int, float], other: tuple[int, float]) -> bool:
    return one[0] == other[0] and bool(np.isclose(one[1], other[1], atol=0))


def alpha_totals(lab: Lab, seeds: Sequence[int]) -> dict[float, float]:
    """The total on validation for each α of GradNorm; infinite where training diverged."""
    return dict(zip(ALPHAS, _validated(lab, seeds, [f"gradnorm:{alpha:g}" for alpha in ALPHAS]), strict=True))


def best_alpha(found: dict[float, float]) -> float:
    """The α with the lowest total, the smallest of equals, whatever the order in which errors were summed.

    Example:
        >>> best_alpha({0.1: 0.1 + 0.2, 0.5: 0.3, 1.0: 0.4})
        0.1
    """
    return min(found, key=lambda alpha: (round(found[alpha], 9), alpha))


def tuned_gradnorm(bench: Bench, lab: Lab) -> str:
    """GradNorm with the α that validation prefers, as a rule; the networks are those of `tune`.

    Taskonomy is too large to search: the paper takes 1.5 there.
    """
    if bench.problem.name == "taskonomy":
        return "gradnorm:1.5"
    return f"gradnorm:{best_alpha(alpha_totals(lab, bench.seeds[:1])):g}"


def rules_of(bench: Bench, lab: Lab, methods: Sequence[str]) -> dict[str, str]:
    """How each of these methods trains all tasks together; GradNorm with the tuned α."""
    tuned = {"mtl": "plain"} | ({"gradnorm": tuned_gradnorm(bench, lab)} if "gradnorm" in methods else {})
    return {method: tuned.get(method, method) for method in methods}


def _validated(lab: Lab, seeds: Sequence[int], rules: Sequence[str]) -> list[float]:
    jobs = {rule: [lab.job(lab.problem.names, seed, rule) for seed in seeds] for rule in rules}
    rows = lab.networks([job for some in jobs.values() for job in some], "settings", diverged=True)
    means = (float(np.mean([total(lab.problem, rows[job].val) for job in some])) for some in jobs.values())
    return [mean if math.isfinite(mean) else math.inf for mean in means]


def _grid(rates: list[float], found: dict[int, list[float]], measure: str, digits: int) -> Sheet:
    rows: list[list[Cell]] = [
        [f"{rate:g}", *(Value(values[place], digits=digits) for values in found.values())]
        for place, rate in enumerate(rates)
    ]
    columns = ("learning rate", *(f"batches of {size}" for size in found))
    return Sheet(f"MTL: total {measure}", columns, rows, "-: diverged")


def _alphas(found: dict[float, float], measure: str, digits: int) -> Sheet:
    rows = [(f"{alpha:g}", Value(value, digits=digits)) for alpha, value in found.items()]
    note = "" if all(map(math.isfinite, found.values())) else "-: diverged"
    return Sheet(f"GradNorm: total {measure}", ("α", "total"), rows, note)


def claim(rate: float, size: int, best: tuple[float, int, float]) -> Claim:
    """Whether the recipe's setting is the best: tuned with one seed, so another that is lower is not clearly so.

    Args:
        rate: the recipe's learning rate.
        size: the recipe's batch size.
        best: what `best_setting` found.
    """
    text = f"a learning rate of {rate:g} with batches of {size} is the best for MTL"
    if not np.isfinite(best[0]):
        return Claim(text, "not tested", "every setting diverged")
    because = f"lowest total on validation {best[0]:.4g}, with {best[2]:g} and batches of {best[1]}; "
    if _same(best[1:], (size, rate)):
        return Claim(text, "yes", because + "nothing is lower, with one seed")
    return Claim(text, "within noise", because + "with one seed it is not clear that this is better")
