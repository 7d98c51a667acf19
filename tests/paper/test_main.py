"""The main comparison at small size: what must hold whatever the data."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import reduce
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tagalong.affinity import Affinity
from tagalong.group import select_groups
from tagalong.learn import Job, train
from tagalong.study import Record, Results
from tagalong_paper import ExperimentSetup, Report, Value
from tagalong_paper.experiment_setup import task_result, totals_by_method
from tagalong_paper.experiments import main

pytestmark = pytest.mark.slow

Reports = Callable[..., Report]
GROUPING = ("random", "cs", "hoa", "tag", "optimal", "oracle")


@pytest.fixture(scope="module")
def records(report: Reports, setup: ExperimentSetup) -> list[Record]:
    report("main")
    return list(Results.load(setup.out / "main-results.json").records)


def test_no_grouping_of_plain_networks_beats_the_best_by_the_same_measure(
    records: list[Record], setup: ExperimentSetup
) -> None:
    mtl = {record.seed: record for record in records if record.method == "mtl"}
    changes: dict[Any, list[float]] = {}
    for record in records:
        changes.setdefault((record.method, record.budget), []).append(record.change(mtl[record.seed], "val"))
    totals = totals_by_method(setup.chosen, records)
    for k in setup.budgets:
        for other in [("mtl", None), *((method, k) for method in GROUPING)]:
            assert np.mean(changes["optimal", k]) <= np.mean(changes[other]) + 1e-9, other
            assert np.mean(totals["oracle", k]) <= np.mean(totals[other]) + 1e-9, other


def partitions(names: tuple[str, ...], blocks: int) -> Iterator[list[frozenset[str]]]:
    """Yields every partition of the names into this number of blocks."""
    if len(names) < blocks or blocks == 0:
        if not names and not blocks:
            yield []
        return
    first, rest = names[0], names[1:]
    for part in partitions(rest, blocks - 1):
        yield [frozenset({first}), *part]
    for part in partitions(rest, blocks):
        for place in range(len(part)):
            yield [*part[:place], part[place] | {first}, *part[place + 1 :]]


def test_random_is_the_mean_over_all_groupings(records: list[Record], setup: ExperimentSetup) -> None:
    with setup.open_runner() as runner:
        rows = runner.networks(runner.job(subset, seed) for subset in runner.subsets() for seed in setup.seeds)
        for record in (record for record in records if record.method == "random"):
            every = list(partitions(setup.chosen.names, record.budget))
            for task in setup.chosen.names:
                blocks = [next(block for block in part if task in block) for part in every]
                errors = [rows[runner.job(block, record.seed)].test[task].error for block in blocks]
                assert record.test[task].error == pytest.approx(np.mean(errors))


def test_costs_add_up(records: list[Record], setup: ExperimentSetup) -> None:
    n = len(setup.chosen.names)
    with setup.open_runner() as runner:
        for record in records:
            jobs = [runner.job(group.trains, record.seed, "plain") for group in record.groups]
            steps = runner.cost([runner.job(setup.chosen.names, record.seed)]).steps
            if record.method in ("mtl", "stl", *GROUPING[1:]):
                assert record.training.steps == sum(runner.networks([job])[job].steps for job in jobs)
            largest = {"hoa": 2, "optimal": None, "oracle": None}
            measured = {"tag": (-(-steps // 10), 1 + 3 * n), "cs": (steps, 1 + 2 * n), "random": (0, 3)}
            if record.method in largest:
                subsets = runner.subsets(largest=largest[record.method])
                assert record.deciding == runner.cost(runner.job(subset, record.seed) for subset in subsets)
            elif record.method in measured:
                count, passes = measured[record.method]
                assert record.deciding.steps == round(steps + count * (passes - 3) / 3)
            elif record.method in ("mtl", "stl", "uw"):
                assert record.deciding.steps == 0


def test_tables_show_the_results_of_the_networks(
    records: list[Record], report: Reports, setup: ExperimentSetup
) -> None:
    for method, groups, total, *_ in report("main").table("Total").rows:
        mine = [
            record
            for record in records
            if (record.method, record.budget) == (method, None if groups == "-" else groups)
        ]
        sums = [sum(100 * record.test[task].error for task in setup.chosen.names) for record in mine]
        assert isinstance(total, Value)
        assert (total.mean, total.stderr) == pytest.approx((np.mean(sums), np.std(sums, ddof=1) / np.sqrt(len(sums))))
    table = report("main").table("2 groups")
    mine = [record for record in records if (record.method, record.budget) == ("tag", 2)]
    for task, short in zip(setup.chosen.names, setup.short_names(), strict=True):
        (served,) = [
            cell
            for row, cell in zip(table.rows, table.column(short), strict=True)
            if row[0] == "tag" and cell and cell.served
        ]
        assert served.mean == pytest.approx(np.mean([task_result(setup.chosen, record.test[task]) for record in mine]))


def test_as_published_tag_groups_by_steps_with_momentum_per_learning_rate(
    report: Reports, setup: ExperimentSetup
) -> None:
    ours, published = report("main").table("Total"), report("main", as_published=True).table("Total")
    differing = {row[0] for row, other in zip(ours.rows, published.rows, strict=True) if row != other}
    assert differing <= {"tag", "tag+pcgrad"}, "only TAG's step differs"
    records = Results.load(setup.out / "main-as-published-results.json").records
    settings: dict[str, Any] = {"estimator": "lookahead", "update": "optimizer", "per_lr": True, "every": 10}
    job = Job(setup.chosen.names)
    trained = [train(setup.chosen, replace(job, seed=seed), meter=settings).affinity for seed in setup.seeds]
    affinity = reduce(Affinity.merge, [one for one in trained if one is not None])
    for budget in setup.budgets:
        tag = next(one for one in records if (one.method, one.budget) == ("tag", budget))
        assert set(tag.groups) == set(select_groups(affinity, budget).groups)


@pytest.mark.parametrize(
    ("printed", "count", "reproduced"),
    [("celeba", 5, "not tested"), (None, 2, "not tested"), (None, 9, "no"), ("taskonomy", 5, "no")],
)
def test_the_speed_up_is_not_tested_with_fewer_tasks_than_in_the_paper(
    printed: str | None, count: int, reproduced: str
) -> None:
    setup: Any = SimpleNamespace(printed_dataset=printed, chosen=SimpleNamespace(names=("task",) * count))
    lines: Any = [SimpleNamespace(method=name, deciding_cost=cost) for name, cost in (("hoa", 5.0), ("tag", 2.0))]
    assert main.judge_speed(setup, lines).reproduced == reproduced
