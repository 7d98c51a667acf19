"""`frequency`: how often must affinities be measured, and what does it save?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from tagalong.affinity import Affinity
from tagalong.group import select_groups_by_budget
from tagalong.study import Lab

from ..affinities import EQUATION_1, between_tasks, every_step, pooled
from ..claims import all_lower, lower, pearson, value
from ..figures import bars
from ..printed import SPEED
from ..report import Appeared, Cell, Claim, Report, Sheet, Value
from ..speed import PAPER_COST, SCHEDULES, Schedule, speed_up
from ..totals import grouping_totals, noun_of, one_row, random_totals, train_subsets

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

    from ..bench import Bench

TITLE = "How often must affinities be measured?"
Gains = dict[str, list[float]]


def run(bench: Bench) -> Report:
    """Measures at every step, and reads every sparser schedule off that history: the meter leaves no trace."""
    with bench.lab() as lab:
        train_subsets(lab, bench.seeds)
        full = every_step(lab, bench.seeds)
        found = {name: _pooled(full, schedule) for name, schedule in SCHEDULES.items()}
        usual = np.sum(list(random_totals(lab, bench.budgets, bench.seeds).values()), axis=0)
        usual = np.where(usual > 0, usual, np.nan)  # where random groups make no errors, none are gone
        gains = _gains(bench, lab, found, usual)
        times = _measured_times(lab, bench.seeds[0])
    reference = between_tasks(found["every 1"], centred=True)
    alike = {name: pearson(reference, between_tasks(affinity, centred=True)) for name, affinity in found.items()}
    cost = _cost_of_a_measurement(times)
    return Report(
        "frequency",
        TITLE,
        sheets=[_sheet(bench, gains, alike, times, cost)],
        claims=_claims(gains, noun_of(bench.chosen), one_row(bench.chosen) * len(bench.budgets) * 100 / usual.mean()),
        figures={"frequency": _figure(bench, gains)},
        notes=[
            *bench.about,
            f"{len(found['every 1'].steps) // len(bench.seeds)} measured steps per run; schedules sparser than that "
            "measure the first step alone",
            f"a measurement took {cost:.2f} plain steps here; the printed speed-ups (CelebA) follow from {PAPER_COST}"
            if bench.printed == "celeba"
            else f"a measurement took {cost:.2f} plain steps here",
            "windows: training ends with the window",
        ],
        numbers={"measurement_in_plain_steps": cost},
    )  # fmt: skip


def scheduled(affinity: Affinity, schedule: Schedule) -> Affinity:
    """What this schedule would have measured, from a history of every step.

    Example:
        >>> affinity = Affinity.from_history(np.zeros((20, 2, 2)), ["a", "b"])
        >>> scheduled(affinity, SCHEDULES["middle 25 %"]).steps.tolist()
        [8, 9, 10, 11]
    """
    steps = int(affinity.steps[-1]) + 1
    first, last = min(round(schedule.first * steps), steps - 1), round(schedule.last * steps)
    return affinity.between(first, max(last, first + 1)).every(schedule.every)


def _pooled(full: dict[int, Affinity], schedule: Schedule) -> Affinity:
    return pooled({seed: scheduled(affinity, schedule) for seed, affinity in full.items()})


def _gains(bench: Bench, lab: Lab, found: dict[str, Affinity], usual: np.ndarray) -> Gains:
    """By schedule and seed, how much of random groups' total over all budgets is gone, in percent."""
    gains = {}
    for name, affinity in found.items():
        groupings = select_groups_by_budget(affinity, bench.budgets, resamples=0)
        sums = np.sum([grouping_totals(lab, g.groups, bench.seeds) for g in groupings.values()], axis=0)
        gains[name] = (100 * (usual - sums) / usual).tolist()
    return gains


def _measured_times(lab: Lab, seed: int) -> dict[str, float]:
    """The time of trainings that measured so often, in trainings that did not.

    Each is compared with its own steps without measuring: whatever else the machine does meanwhile slows down both.
    """
    times = {"never": 1.0}
    for name, schedule in SCHEDULES.items():
        if schedule.last - schedule.first == 1:
            affinity, _ = lab.affinities([seed], {**EQUATION_1, "every": schedule.every})[seed]
            times[name] = 1 + affinity.settings["overhead"]
    return times


def _cost_of_a_measurement(times: dict[str, float]) -> float:
    return max(0.0, (times["every 1"] - times["never"]) / times["never"])


def _sheet(bench: Bench, gains: Gains, alike: dict[str, float], times: dict[str, float], cost: float) -> Sheet:
    rows: list[list[Cell]] = []
    comparable = bench.printed == "celeba"
    for name, schedule in SCHEDULES.items():
        timed = Value(times["every 1"] / times[name]) if name in times else None
        printed = (*SPEED[name], speed_up(schedule, PAPER_COST))
        gained, faster, modelled = (Value(number) if comparable else None for number in printed)
        row: list[Cell] = [name, value(gains[name]), gained, Value(alike[name], digits=3)]
        rows.append([*row, timed, faster, Value(speed_up(schedule, cost)), modelled])
    less = f"less {noun_of(bench.chosen)}"
    faster_by = ("speed-up", "printed speed-up", "model", "printed, model")
    columns = ("measured", f"{less}, %", f"printed {less}", "Pearson", *faster_by)
    note = f"{less}: than random groups, over all budgets; Pearson: with every step, less the mean onto each target; "
    note += "speed-up: timed; model: by the cost of a measurement"
    return Sheet("Quality and speed by schedule", columns, rows, note)


def _claims(gains: Gains, noun: str, row: float) -> list[Claim]:
    usual, rare, often = gains["every 1"], gains["every 100"], gains["every 10"]
    return [
        Claim(
            "every 10 steps are as good as every step",
            as_good(often, usual, row),
            f"{np.mean(often):.2f} % against {np.mean(usual):.2f} % less {noun} than random groups; yes needs both "
            "clearly above zero, else there is nothing to lose",
        ),
        all_lower("every 100 steps are worse", {f"less {noun}": (rare, usual)}, " %", row=row),
        all_lower(
            "a quarter of the training is worse than all of it",
            {name: (found, usual) for name, found in gains.items() if "%" in name},
            f" % less {noun}",
            row=row,
        ),
    ]


def as_good(mine: Sequence[float], usual: Sequence[float], row: float = 0.0) -> Appeared:
    """Whether gains over random groups are kept: not clearly lower, with gains that are clear in the first place.

    For `row` see `negative`.

    Example:
        >>> as_good([5.0, 5.2], [5.1, 5.2]), as_good([0.2, -0.1], [0.1, -0.2]), as_good([2.0, 2.1], [5.1, 5.2])
        ('yes', 'within noise', 'no')
    """
    worse = lower(mine, usual, row=row)
    if worse in ("yes", "not tested"):
        return "no" if worse == "yes" else "not tested"
    nothing = [0.0] * len(usual)
    clear = all(lower(nothing, gains, row=row) == "yes" for gains in (usual, mine))
    return "yes" if clear else "within noise"


def _figure(bench: Bench, gains: Gains) -> Figure:
    series = {"ours": [float(np.mean(gains[name])) for name in SCHEDULES]}
    if bench.printed == "celeba":
        series["printed (CelebA)"] = [SPEED[name].performance for name in SCHEDULES]
    errors = {"ours": [value(gains[name]).stderr or 0.0 for name in SCHEDULES]}
    return bars(
        series, list(SCHEDULES), title=TITLE, value=f"less {noun_of(bench.chosen)} than random groups, %", errors=errors
    )
