"""`frequency`: how often must affinities be measured, and how much time does measuring less often save?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from tagalong.affinity import Affinity
from tagalong.group import select_groups_by_budget
from tagalong.study import TrainingBackend

from ..affinities import EQUATION_1, measure_every_step, off_diagonal, pool_seeds
from ..claims import claim_all_lower, judge_lower, pearson, summarize
from ..experiment_report import Answer, Cell, Claim, Report, ReportTable, Value
from ..figures import draw_bars
from ..measurement_cost import PAPER_COST, SCHEDULES, MeasuringSchedule, speed_up
from ..metrics import error_per_row, grouping_totals, metric_noun, random_totals, train_all_subsets
from ..printed import SPEED

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

    from ..experiment_setup import ExperimentSetup

TITLE = "How often must affinities be measured?"
Gains = dict[str, list[float]]


def run(setup: ExperimentSetup) -> Report:
    """Measures every step and derives sparser schedules from those measurements.

    This is possible because measuring does not affect training.
    """
    with setup.open_backend() as backend:
        train_all_subsets(backend, setup.seeds)
        by_seed = measure_every_step(backend, setup.seeds)
        found = {name: _pool_schedule(by_seed, schedule) for name, schedule in SCHEDULES.items()}
        baseline = np.sum(list(random_totals(backend, setup.budgets, setup.seeds).values()), axis=0)
        baseline = np.where(baseline > 0, baseline, np.nan)  # if random groups make no errors, nothing can be gained
        gains = _gains(setup, backend, found, baseline)
        times = _training_times(backend, setup.seeds[0])
    reference = off_diagonal(found["every 1"], centered=True)
    correlations = {name: pearson(reference, off_diagonal(affinity, centered=True)) for name, affinity in found.items()}
    cost = _measurement_cost(times)
    per_row = error_per_row(setup.chosen) * len(setup.budgets) * 100 / baseline.mean()
    return Report(
        "frequency",
        TITLE,
        tables=[_schedule_table(setup, gains, correlations, times, cost)],
        claims=_claims(gains, metric_noun(setup.chosen), per_row),
        figures={"frequency": _figure(setup, gains)},
        notes=[
            *setup.notes,
            f"{len(found['every 1'].steps) // len(setup.seeds)} measured steps per run; schedules sparser than that "
            "measure only the first step",
            f"a measurement took {cost:.2f} plain steps here; the printed speed-ups (CelebA) follow from {PAPER_COST}"
            if setup.printed_dataset == "celeba"
            else f"a measurement took {cost:.2f} plain steps here",
            "for windows, training ends with the window",
        ],
        numbers={"measurement_in_plain_steps": cost},
    )  # fmt: skip


def apply_schedule(affinity: Affinity, schedule: MeasuringSchedule) -> Affinity:
    """Returns the affinities that a schedule would have measured, given measurements of every step.

    Example:
        >>> affinity = Affinity.from_history(np.zeros((20, 2, 2)), ["a", "b"])
        >>> apply_schedule(affinity, SCHEDULES["middle 25%"]).steps.tolist()
        [8, 9, 10, 11]
    """
    steps = int(affinity.steps[-1]) + 1
    first, last = min(round(schedule.first * steps), steps - 1), round(schedule.last * steps)
    return affinity.between(first, max(last, first + 1)).every(schedule.every)


def _pool_schedule(by_seed: dict[int, Affinity], schedule: MeasuringSchedule) -> Affinity:
    return pool_seeds({seed: apply_schedule(affinity, schedule) for seed, affinity in by_seed.items()})


def _gains(
    setup: ExperimentSetup, backend: TrainingBackend, affinities: dict[str, Affinity], baseline: np.ndarray
) -> Gains:
    """Returns the reduction in the total relative to random groups, in percent, by schedule and seed."""
    gains = {}
    for name, affinity in affinities.items():
        groupings = select_groups_by_budget(affinity, setup.budgets, resamples=0)
        sums = np.sum([grouping_totals(backend, g.groups, setup.seeds) for g in groupings.values()], axis=0)
        gains[name] = (100 * (baseline - sums) / baseline).tolist()
    return gains


def _training_times(backend: TrainingBackend, seed: int) -> dict[str, float]:
    """Returns the training time for each schedule, relative to training without measuring.

    The reference is the time that the same run spends on steps without measuring, so machine load affects both equally.
    """
    times = {"never": 1.0}
    for name, schedule in SCHEDULES.items():
        if schedule.last - schedule.first == 1:
            affinity, _ = backend.affinities([seed], {**EQUATION_1, "every": schedule.every})[seed]
            times[name] = 1 + affinity.settings["overhead"]
    return times


def _measurement_cost(times: dict[str, float]) -> float:
    return max(0.0, (times["every 1"] - times["never"]) / times["never"])


def _schedule_table(
    setup: ExperimentSetup, gains: Gains, correlations: dict[str, float], times: dict[str, float], cost: float
) -> ReportTable:
    rows: list[list[Cell]] = []
    comparable = setup.printed_dataset == "celeba"
    for name, schedule in SCHEDULES.items():
        timed = Value(times["every 1"] / times[name]) if name in times else None
        printed = (*SPEED[name], speed_up(schedule, PAPER_COST))
        gained, faster, modeled = (Value(number) if comparable else None for number in printed)
        row: list[Cell] = [name, summarize(gains[name]), gained, Value(correlations[name], digits=3)]
        rows.append([*row, timed, faster, Value(speed_up(schedule, cost)), modeled])
    less = f"less {metric_noun(setup.chosen)}"
    faster_by = ("speed-up", "printed speed-up", "model", "printed, model")
    columns = ("measured", f"{less}, %", f"printed {less}", "Pearson", *faster_by)
    note = f"{less}: than random groups, over all budgets; Pearson: with every step, less the mean onto each target; "
    note += "speed-up: timed; model: by the cost of a measurement"
    return ReportTable("Quality and speed by schedule", columns, rows, note)


def _claims(gains: Gains, metric: str, per_row: float) -> list[Claim]:
    baseline, rare, often = gains["every 1"], gains["every 100"], gains["every 10"]
    return [
        Claim(
            "measuring every 10 steps is as good as every step",
            judge_not_worse(often, baseline, per_row),
            f"{np.mean(often):.2f}% against {np.mean(baseline):.2f}% less {metric} than random groups; yes needs "
            "both clearly above zero, otherwise there is nothing to lose",
        ),
        claim_all_lower(
            "measuring every 100 steps is worse", {f"less {metric}": (rare, baseline)}, "%", per_row=per_row
        ),
        claim_all_lower(
            "measuring in a quarter of the training is worse than in all of it",
            {name: (found, baseline) for name, found in gains.items() if "%" in name},
            f"% less {metric}",
            per_row=per_row,
        ),
    ]


def judge_not_worse(values: Sequence[float], baseline: Sequence[float], per_row: float = 0.0) -> Answer:
    """Judges whether gains over random groups are clearly positive and not clearly lower than the baseline.

    For `per_row`, see `judge_negative`.

    Example:
        >>> judge_not_worse([5.0, 5.2], [5.1, 5.2]), judge_not_worse([0.2, -0.1], [0.1, -0.2])
        ('yes', 'within noise')
        >>> judge_not_worse([2.0, 2.1], [5.1, 5.2])
        'no'
    """
    worse = judge_lower(values, baseline, per_row=per_row)
    if worse in ("yes", "not tested"):
        return "no" if worse == "yes" else "not tested"
    nothing = [0.0] * len(baseline)
    clear = all(judge_lower(nothing, gains, per_row=per_row) == "yes" for gains in (baseline, values))
    return "yes" if clear else "within noise"


def _figure(setup: ExperimentSetup, gains: Gains) -> Figure:
    series = {"ours": [float(np.mean(gains[name])) for name in SCHEDULES]}
    if setup.printed_dataset == "celeba":
        series["printed (CelebA)"] = [SPEED[name].performance for name in SCHEDULES]
    errors = {"ours": [summarize(gains[name]).stderr or 0.0 for name in SCHEDULES]}
    return draw_bars(
        series,
        list(SCHEDULES),
        title=TITLE,
        ylabel=f"less {metric_noun(setup.chosen)} than random groups, %",
        errors=errors,
    )
