"""Errata are stored as data. What follows from the printed numbers is recomputed here, and nothing may be missing."""

import math
from collections.abc import Iterator

import numpy as np
import pytest

from tagalong.group import select_groups
from tagalong.learn import count_parameters
from tagalong.problems import load_problem
from tagalong_paper import PRINTED, PrintedGrouping, PublishedMatrix, run_experiment, selections
from tagalong_paper.experiments.frequency import PAPER_COST, SCHEDULES, speed_ups
from tagalong_paper.experiments.matrix import PAPER_GROUPS, natural_groups
from tagalong_paper.printed import BASELINES, CAPACITY, DATASETS, OPTIMAL, PARTNER, SPEED, SPREAD

TABLE = run_experiment("errata").table("Errata")
ROUNDING_UNIT = {"celeba": 0.01, "taskonomy": 0.0001}


def erratum(where: str, printed: str = "") -> list[str]:
    """Returns the only erratum with this place, and these words in what is printed."""
    (row,) = [row for row in TABLE.rows if where == row[0] and printed in row[1]]
    return row


def groupings() -> Iterator[tuple[str, str, PrintedGrouping]]:
    for key, by_budget in PRINTED.items():
        dataset, _, method = key.partition("_")
        for budget, grouping in by_budget.items():
            yield dataset, f"{method.upper()} {budget} groups", grouping
    for dataset, by_budget in OPTIMAL.items():
        for budget, grouping in by_budget.items():
            yield dataset, f"Optimal {budget} groups", grouping


def served_results(grouping: PrintedGrouping) -> dict[str, float]:
    """Returns each task's result in bold, choosing the best result if several or none are in bold."""
    served = {}
    for task in {task for group in grouping.groups for task in group.results}:
        bold = [group.results[task] for group in grouping.groups if task in group.bold]
        served[task] = min(bold or [group.results[task] for group in grouping.groups if task in group.results])
    return served


def test_the_totals_that_are_not_sums_of_their_columns_are_listed() -> None:
    rows = [(dataset, method.upper(), line) for dataset, lines in BASELINES.items() for method, line in lines.items()]
    for dataset, larger in CAPACITY.items():
        rows += [(dataset, f"{method.upper()} ({times}×)", line) for (method, times), line in larger.items()]
    wrong = []
    for dataset, where, grouping in [*rows, *groupings()]:
        results = served_results(grouping).values()
        noise = ROUNDING_UNIT[dataset] / math.sqrt(12) * math.sqrt(len(results) + 1)
        if abs(sum(results) - grouping.total) > 3 * noise:
            digits = 2 if dataset == "celeba" else 4
            total, right = f"total {grouping.total:.{digits}f}", f"{sum(results):.{digits}f}"
            wrong.append((f"{DATASETS[dataset]}, {where}", total, right))
    assert len(wrong) == 6
    assert wrong == [tuple(row[:3]) for row in TABLE.rows if row[1].startswith("total ")]


def test_the_tasks_in_bold_twice_or_never_are_listed() -> None:
    wrong = set()
    for dataset, where, grouping in groupings():
        for task in served_results(grouping):
            times = sum(task in group.bold for group in grouping.groups)
            if times != 1:
                wrong.add((f"{DATASETS[dataset]}, {where}", f"{task} in bold {'twice' if times else 'nowhere'}"))
    assert wrong == {tuple(row[:2]) for row in TABLE.rows if "in bold" in row[1]}


def test_the_network_that_is_printed_with_two_results_is_listed() -> None:
    networks: dict[tuple[str, frozenset[str]], list[tuple[str, dict[str, float]]]] = {}
    for dataset, where, grouping in groupings():
        for group in grouping.groups:
            networks.setdefault((dataset, frozenset(group.results)), []).append((where, dict(group.results)))
    repeated = [places for places in networks.values() if len(places) > 1]
    (places,) = [places for places in repeated if any(results != places[0][1] for _, results in places)]
    row = erratum(f"CelebA, {' and '.join(where for where, _ in places)}")
    for _, results in places:
        assert ", ".join(f"{task} {result:.2f}" for task, result in results.items()) in row[1]
    assert f"the {len(repeated) - 1} other networks" in row[3]


def test_groupings_that_do_not_follow_from_their_matrices_are_listed() -> None:
    remarks = [
        (f"{one.matrix.dataset}, {one.matrix.method} {one.budget} groups", remark)
        for one in selections()
        for remark in one.remarks
    ]
    assert len(remarks) == 2
    assert remarks == [(row[0], row[2]) for row in TABLE.rows if row[1] == "as in its table"]


def test_headlines_are_recomputed() -> None:
    mtl, stl = (BASELINES["taskonomy"][method].total for method in ("mtl", "stl"))
    tag, hoa = (PRINTED[f"taskonomy_{method}"] for method in ("tag", "hoa"))
    row = erratum("abstract and section 5.1")
    assert row[2] == f"{1 - (tag[2].total + tag[3].total) / 2 / mtl:.1%}"
    assert f"{1 - stl / mtl:.2%} is what STL gains" in row[3]
    assert erratum("section 5.1", "TAG surpasses HOA")[2] == f"{1 - tag[2].total / hoa[2].total:.1%}"
    celeba = np.mean([grouping.total for grouping in PRINTED["celeba_tag"].values()])
    assert erratum("section 5.2", "average total error 49.574")[2] == f"{celeba:.3f}"
    assert run_experiment("errata").claims[0].because == f"{row[2]}: {row[3]}"


def test_gains_are_too_large_for_accuracy() -> None:
    task = max(PARTNER["best"], key=PARTNER["best"].__getitem__)
    lines = [*BASELINES["celeba"].values(), *CAPACITY["celeba"].values()]
    lines += [grouping for dataset, _, grouping in groupings() if dataset == "celeba"]
    worst = max(group.results[task] for line in lines for group in line.groups if task in group.results)
    row = erratum("tables of partners, schedules and hyperparameters")
    assert row[1].endswith(f"{PARTNER['best'][task]:.2f}% for {task}")
    assert f"is {worst:.2f}%" in row[3]
    assert f"only {worst / (100 - worst):.2%}" in row[3]


def costs_of(name: str, printed: float) -> tuple[float, float]:
    """Returns the range of measurement costs that round to a printed speed-up."""
    schedule = SCHEDULES[name]
    fraction = (schedule.last - schedule.first) / schedule.every
    low, high = ((ratio * schedule.last - 1) / (1 - ratio * fraction) for ratio in (printed - 0.005, printed + 0.005))
    return low, high


def test_one_number_gives_every_printed_speed_up() -> None:
    ours, printed = speed_ups(PAPER_COST), SPEED["speed-up"]
    assert ours == pytest.approx(printed, abs=0.01)
    # If every step of a shorter training run is measured, the speed-up does not depend on the cost of a measurement.
    ranges = [costs_of(name, ratio) for name, ratio in printed.items() if SCHEDULES[name][:2] != (1, 0.0)]
    low, high = max(low for low, _ in ranges), min(high for _, high in ranges)
    assert low < high
    row = erratum("table of speed-ups")
    same = sum(f"{ours[name]:.2f}" == f"{ratio:.2f}" for name, ratio in printed.items())
    assert f"9 of 9 follow from one number to within 0.01, {same} to the last digit" == row[2]
    assert f"between {low:.4f} and {high:.4f}" in row[3]


def test_the_table_of_differences_follows_from_the_matrix_with_one_factor() -> None:
    spread = PublishedMatrix("celeba_tag").affinity.spread().values
    factor = np.median([spread[task] / printed for task, printed in SPREAD.items()])
    same = sum(abs(spread[task] / factor - printed) <= 0.0051 for task, printed in SPREAD.items())
    row = erratum("table of differences in affinity")
    assert f"divided by {factor:.1f}: {same} of 9" in row[2]
    assert f"a8 has {spread['a8'] / spread['a3']:.2f} of the next smallest" in row[3]
    pearson = np.corrcoef(list(PARTNER["best"].values()), list(PARTNER["chosen"].values()))[0, 1]
    assert f"chosen partner {pearson:.2f}" in row[3]


def test_n_times_the_channels_are_more_than_n_networks() -> None:
    problem = load_problem("faces", rows=100, size="full")
    sizes = [count_parameters(problem, problem.names, times) for times in (1.0, 2.0, 3.0, 4.0)]
    listed = [f"{times}× channels: {size / sizes[0]:.1f}×" for times, size in enumerate(sizes, 1) if times > 1]
    assert erratum("appendix, larger networks")[2] == ", ".join(listed)


def test_redundant_groups_of_the_published_selector_are_counted() -> None:
    enough = []
    for matrix in map(PublishedMatrix, PRINTED):
        tasks = len(matrix.affinity.tasks)
        best = select_groups(matrix.affinity, tasks, **matrix.options)
        needed = len(best.groups)
        if needed < tasks:
            fewer = select_groups(matrix.affinity, needed - 1, **matrix.options)
            assert fewer.value < best.value
            enough.append(f"{matrix.dataset}, {matrix.method}: {needed} of {tasks}")
    assert erratum("published code that selects groups")[2].endswith(": " + "; ".join(enough))


def test_the_published_matrices_hold_the_groups_that_the_paper_names() -> None:
    for dataset, groups in PAPER_GROUPS.items():
        assert set(natural_groups(PublishedMatrix(f"{dataset}_tag").affinity)) == set(map(frozenset, groups))


def test_the_printed_groups_are_the_best_except_for_one() -> None:
    selected = {(one.matrix.key, one.budget): one for one in selections()}
    assert len(selected) == 15
    assert [key for key, one in selected.items() if not one.same] == [("celeba_tag", 2)]
    assert all(one.unique for one in selected.values())
    report = run_experiment("selection")
    assert [claim.reproduced for claim in report.claims].count("no") == 2
