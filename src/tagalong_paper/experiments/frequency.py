"""`frequency`: how often must affinities be measured, and how much time does measuring less often save?"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tagalong.affinity import Affinity
from tagalong.group import select_groups
from tagalong.study import compare_methods

from ..experiment_setup import (
    EQUATION_1,
    ExperimentSetup,
    all_subset_jobs,
    grouping_totals,
    off_diagonal,
    pool_seeds,
    totals_by_method,
)
from ..figures import draw_bars
from ..printed import SPEED
from ..report import (
    Answer,
    Claim,
    Floats,
    Report,
    ReportTable,
    Value,
    claim_all_lower,
    judge_lower,
    pearson,
    summarize,
    values_of,
)

TITLE = "How often must affinities be measured?"
# The cost of measuring n = 9 tasks, in training steps. It explains the nine printed speed-ups.
PAPER_COST = 3.216
NOTE = (
    "{0}: than random groups, over all budgets; Pearson: with every step, less the mean onto each target; "
    "speed-up: timed; model: by the cost of a measurement"
)


class MeasuringSchedule(NamedTuple):
    """A schedule for measuring affinities.

    Training stops at the end of the measurement window, as the printed numbers imply.

    Attributes:
        every: the number of steps between measurements.
        first: the start of the measurement window, as a fraction of training.
        last: the end of the measurement window, as a fraction of training.
    """

    every: int = 1
    first: float = 0.0
    last: float = 1.0

    def cost(self, measurement: float) -> float:
        """Returns the cost relative to training without measuring, given the cost of one measurement in steps."""
        return self.last + (self.last - self.first) / self.every * measurement

    def apply(self, affinity: Affinity) -> Affinity:
        """Returns the affinities that this schedule would have measured, given measurements of every step.

        Example:
            >>> affinity = Affinity.from_history(np.zeros((20, 2, 2)), ["a", "b"])
            >>> SCHEDULES["middle 25%"].apply(affinity).steps.tolist()
            [8, 9, 10, 11]
        """
        steps = int(affinity.steps[-1]) + 1
        first, last = min(round(self.first * steps), steps - 1), round(self.last * steps)
        return affinity.between(first, max(last, first + 1)).every(self.every)


SCHEDULES = {
    **{f"every {n}": MeasuringSchedule(n) for n in (1, 5, 10, 25, 50, 100)},
    "first 25%": MeasuringSchedule(first=0.0, last=0.25),
    "middle 25%": MeasuringSchedule(first=0.375, last=0.625),
    "last 25%": MeasuringSchedule(first=0.75, last=1.0),
}


def speed_ups(measurement: float) -> dict[str, float]:
    """Returns the speed-up of each schedule over measuring every step.

    Args:
        measurement: the cost of one measurement, in training steps.

    Example:
        >>> round(speed_ups(PAPER_COST)["every 10"], 2)
        3.19
    """
    costs = {name: schedule.cost(measurement) for name, schedule in SCHEDULES.items()}
    return {name: costs["every 1"] / cost for name, cost in costs.items()}


def run(setup: ExperimentSetup) -> Report:
    """Measures every step and derives sparser schedules from those measurements.

    This is possible because measuring does not affect training.
    """
    seeds, budgets = setup.seeds, setup.budgets
    with setup.open_runner() as runner:
        measured = setup.measure(runner, every=1)  # first, since it also trains the networks for all tasks
        runner.networks(all_subset_jobs(runner, seeds), "all subsets", diverged=True)
        random = compare_methods(runner, ["random"], budgets, seeds, {"random": {"exact": True}})
        random_totals = totals_by_method(setup.chosen, random)
        baseline = np.sum([random_totals["random", k] for k in budgets], axis=0)
        baseline = np.where(baseline > 0, baseline, np.nan)  # if random groups make no errors, nothing can be gained
        gains, correlations, times = {}, {}, {}
        reference = off_diagonal(pool_seeds(measured), centered=True)
        for name, schedule in SCHEDULES.items():
            affinity = pool_seeds({seed: schedule.apply(by_seed) for seed, by_seed in measured.items()})
            correlations[name] = Value(pearson(reference, off_diagonal(affinity, centered=True)), digits=3)
            groupings = select_groups(affinity, budgets, resamples=0).values()
            totals = np.sum([grouping_totals(runner, grouping.groups, seeds) for grouping in groupings], axis=0)
            gains[name] = 100 * (baseline - totals) / baseline
            if schedule.last - schedule.first == 1:
                # Relative to the time that the same run spends on steps without measuring, so machine load affects
                # both equally.
                timed, _ = runner.affinities(seeds[:1], {**EQUATION_1, "every": schedule.every})[seeds[0]]
                times[name] = 1 + timed.settings["overhead"]
    cost = max(0.0, times["every 1"] - 1)
    values = {name: summarize(gain) for name, gain in gains.items()}
    less = f"less {setup.noun}"
    printed, paper = (SPEED, speed_ups(PAPER_COST)) if setup.printed_dataset == "celeba" else ({}, {})
    performance = printed.get("performance", {})
    bars = {"ours": list(values.values())}
    if printed:
        bars["printed (CelebA)"] = [Value(performance[name]) for name in SCHEDULES]
    per_row = setup.per_row * len(budgets) * 100 / baseline.mean()
    often, always = gains["every 10"], gains["every 1"]
    steps = sum(len(affinity.steps) for affinity in measured.values()) // len(seeds)
    paper_cost = f"; the printed speed-ups (CelebA) follow from {PAPER_COST}" if printed else ""
    return Report(
        "frequency",
        TITLE,
        tables=[
            ReportTable.of_columns(
                "Quality and speed by schedule",
                {
                    "measured": SCHEDULES,
                    f"{less}, %": values.values(),
                    f"printed {less}": values_of(performance, SCHEDULES),
                    "Pearson": correlations.values(),
                    "speed-up": values_of({name: times["every 1"] / time for name, time in times.items()}, SCHEDULES),
                    "printed speed-up": values_of(printed.get("speed-up", {}), SCHEDULES),
                    "model": values_of(speed_ups(cost), SCHEDULES),
                    "printed, model": values_of(paper, SCHEDULES),
                },
                NOTE.format(less),
            )
        ],
        claims=[
            Claim(
                "measuring every 10 steps is as good as every step",
                judge_not_worse(often, always, per_row),
                f"{often.mean():.2f}% against {always.mean():.2f}% {less} than random groups; yes needs both "
                "clearly above zero, otherwise there is nothing to lose",
            ),
            claim_all_lower(
                "measuring every 100 steps is worse", {less: (gains["every 100"], always)}, "%", per_row=per_row
            ),
            claim_all_lower(
                "measuring in a quarter of the training is worse than in all of it",
                {name: (gain, always) for name, gain in gains.items() if "%" in name},
                f"% {less}",
                per_row=per_row,
            ),
        ],
        figures={"frequency": draw_bars(bars, list(SCHEDULES), title=TITLE, ylabel=f"{less} than random groups, %")},
        notes=[
            *setup.notes,
            f"{steps} measured steps per run; schedules sparser than that measure only the first step",
            f"a measurement took {cost:.2f} plain steps here{paper_cost}",
            "for windows, training ends with the window",
        ],
        numbers={"measurement_in_plain_steps": cost},
    )


def judge_not_worse(values: Floats, baseline: Floats, per_row: float = 0.0) -> Answer:
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
    nothing = np.zeros(len(values))
    clear = all(judge_lower(nothing, gains, per_row=per_row) == "yes" for gains in (baseline, values))
    return "yes" if clear else "within noise"
