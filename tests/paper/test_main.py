"""The main comparison at small size: what must hold whatever the data."""

import importlib
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import reduce
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tagalong.affinity import Affinity
from tagalong.group import select_groups
from tagalong.learn import Job, train
from tagalong.study import Record, Results
from tagalong_paper import Bench, Report, Value, run_experiment
from tagalong_paper.experiments import main, tune
from tagalong_paper.totals import in_percent, result, totals

Reports = Callable[..., Report]
Partition = list[frozenset[str]]


@pytest.fixture(scope="module")
def records(report: Reports, bench: Bench) -> list[Record]:
    report("main")
    return list(Results.load(bench.out / "main-results.json").records)


def test_every_method_is_there_at_every_budget(records: list[Record], bench: Bench) -> None:
    labels = {(record.method.partition(":")[0], record.budget) for record in records}
    alone = {(name, None) for name in ("mtl", "stl", "uw", "pcgrad", "pcgrad-uw", "gradnorm")}
    grouping = ("random", "cs", "hoa", "tag", "tag+pcgrad", "optimal", "oracle")
    assert labels == alone | {(name, k) for name in grouping for k in bench.budgets}
    assert {record.seed for record in records} == set(bench.seeds)


def test_every_task_is_served_exactly_once(records: list[Record], bench: Bench) -> None:
    for record in records:
        if record.groups:
            served = sorted(task for group in record.groups for task in group.serves)
            assert served == sorted(bench.chosen.names), record
            assert record.budget is None or len(record.groups) <= record.budget
        assert set(record.test) == set(record.val) == set(bench.chosen.names)


PLAIN = ("random", "cs", "hoa", "tag", "optimal", "oracle")


def test_no_grouping_of_plain_networks_beats_optimal_on_validation(records: list[Record], bench: Bench) -> None:
    mtl = {record.seed: record for record in records if record.method == "mtl"}

    def change(method: str, budget: int | None) -> float:
        found = [record for record in records if (record.method, record.budget) == (method, budget)]
        return float(np.mean([record.change(mtl[record.seed], "val") for record in found]))

    for budget in bench.budgets:
        others: list[tuple[str, int | None]] = [("mtl", None), *((method, budget) for method in PLAIN)]
        for other in others:
            assert change("optimal", budget) <= change(*other) + 1e-9, (budget, other)


def test_no_grouping_of_plain_networks_has_a_lower_total_than_the_paper_s_optimal(
    records: list[Record], bench: Bench
) -> None:
    found = {label: float(np.mean(values)) for label, values in totals(bench.chosen, records).items()}
    for budget in bench.budgets:
        others: list[tuple[str, int | None]] = [("mtl", None), *((method, budget) for method in PLAIN)]
        for other in others:
            assert found["oracle", budget] <= found[other] + 1e-9, (budget, other)


def partitions(names: tuple[str, ...], blocks: int) -> Iterator[Partition]:
    """Every way to part the names into so many blocks."""
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


def test_random_is_the_mean_over_all_groupings(records: list[Record], bench: Bench) -> None:
    with bench.lab() as lab:
        rows = lab.networks(lab.job(subset, seed) for subset in lab.subsets() for seed in bench.seeds)
        for budget, count in zip(bench.budgets, (15, 25, 10), strict=True):
            found = list(partitions(bench.chosen.names, budget))
            assert len(found) == count
            for record in records:
                if (record.method, record.budget) == ("random", budget):
                    for task in bench.chosen.names:
                        blocks = [next(block for block in part if task in block) for part in found]
                        errors = [rows[lab.job(block, record.seed)].test[task].error for block in blocks]
                        losses = [rows[lab.job(block, record.seed)].val[task].loss for block in blocks]
                        assert record.test[task].error == pytest.approx(np.mean(errors))
                        assert record.val[task].loss == pytest.approx(np.mean(losses))


def test_costs_add_up(records: list[Record], bench: Bench) -> None:
    with bench.lab() as lab:
        for record in records:
            jobs = [lab.job(group.trains, record.seed, "plain") for group in record.groups]
            if record.method in ("mtl", "stl", "cs", "tag", "hoa", "optimal", "oracle"):
                assert record.training.steps == sum(lab.networks([job])[job].steps for job in jobs)
                assert record.training.networks == len(jobs)
            largest = {"hoa": 2, "optimal": None, "oracle": None}
            if record.method in largest:
                subsets = lab.subsets(largest=largest[record.method])
                assert record.deciding == lab.cost(lab.job(subset, record.seed) for subset in subsets)
            if record.method in ("mtl", "stl", "uw"):
                assert record.deciding.steps == 0
            if record.method in ("tag", "cs"):
                n, steps = len(bench.chosen.names), lab.cost([lab.job(bench.chosen.names, record.seed)]).steps
                measured, passes = (-(-steps // 10), 1 + 3 * n) if record.method == "tag" else (steps, 1 + 2 * n)
                assert record.deciding.steps == round(steps + measured * (passes - 3) / 3)
                assert record.deciding.networks == 1
            if record.method == "random":
                assert record.deciding == lab.cost([lab.job(bench.chosen.names, record.seed)])


def test_it_says_why_random_groups_cost_something_to_decide(report: Reports) -> None:
    assert any("counts as one training for random groups, as in the paper" in note for note in report("main").notes)


def test_totals_are_sums_of_errors_in_percent(records: list[Record], report: Reports, bench: Bench) -> None:
    assert in_percent(bench.chosen)
    sheet = report("main").sheet("Total")
    for row in sheet.rows:
        budget = None if row[1] == "-" else row[1]
        mine = [record for record in records if (record.method, record.budget) == (row[0], budget)]
        sums = [sum(100 * record.test[task].error for task in bench.chosen.names) for record in mine]
        assert isinstance(row[2], Value)
        assert row[2].mean == pytest.approx(np.mean(sums))
        assert row[2].stderr == pytest.approx(np.std(sums, ddof=1) / np.sqrt(len(sums)))


def test_per_task_tables_show_what_the_networks_reach(records: list[Record], report: Reports, bench: Bench) -> None:
    budget = bench.budgets[0]
    sheet = report("main").sheet(f"{budget} groups")
    for method in ("tag", "optimal"):
        rows = [row for row in sheet.rows if row[0] == method]
        found = [record for record in records if (record.method, record.budget) == (method, budget)]
        for place, task in enumerate(bench.chosen.names, start=1):
            served = [row[place] for row in rows if isinstance(row[place], Value) and row[place].served]
            assert len(served) == 1
            assert served[0].mean == pytest.approx(np.mean([result(bench.chosen, r.test[task]) for r in found]))


def test_the_paper_s_gain_of_pcgrad_stands_beside_ours(report: Reports, bench: Bench) -> None:
    sheet = report("main").sheet("What PCGrad adds")
    assert sheet.column("groups") == list(bench.budgets)
    assert [str(cell) for cell in sheet.column("printed")] == ["0.85", "0.18", "-0.08"]


def test_gradnorm_is_the_one_that_tune_prefers(records: list[Record], report: Reports) -> None:
    (rule,) = {record.method for record in records if record.method.startswith("gradnorm")}
    assert rule == f"gradnorm:{report('tune').numbers['alpha']:g}"
    assert float(rule.partition(":")[2]) in tune.ALPHAS


def test_as_published_only_the_step_differs(report: Reports) -> None:
    ours, published = report("main").sheet("Total"), report("main", as_published=True).sheet("Total")
    kept = [place for place, row in enumerate(ours.rows) if not str(row[0]).startswith("tag")]
    assert len(kept) < len(ours.rows)
    assert [ours.rows[place] for place in kept] == [published.rows[place] for place in kept]


def test_as_published_tag_groups_by_steps_with_momentum_per_learning_rate(report: Reports, bench: Bench) -> None:
    report("main", as_published=True)
    records = Results.load(bench.out / "main-as-published-results.json").records
    job = Job(bench.chosen.names)
    plain: dict[str, Any] = {"estimator": "lookahead", "update": "sgd", "every": 10}
    published = plain | {"update": "optimizer", "per_lr": True}
    measured = {}
    for name, meter in {"plain": plain, "published": published}.items():
        trained = [train(bench.chosen, replace(job, seed=seed), meter=meter).affinity for seed in bench.seeds]
        measured[name] = reduce(Affinity.merge, [affinity for affinity in trained if affinity is not None])
    larger = np.abs(measured["published"].mean) / np.abs(measured["plain"].mean)
    assert np.median(larger) > 1 / (2 * bench.chosen.recipe.lr), "per learning rate"
    differ = 0
    for budget in bench.budgets:
        tag = next(one for one in records if (one.method, one.budget) == ("tag", budget))
        chosen = {name: set(select_groups(affinity, budget).groups) for name, affinity in measured.items()}
        assert set(tag.groups) == chosen["published"], budget
        differ += chosen["published"] != chosen["plain"]
    assert differ, "else the step of equation 1 would do as well here"


def test_networks_that_diverge_leave_gaps_and_claims_that_are_not_tested(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "study"))
    wild = importlib.import_module("diverging_small").diverging_problem()
    found = run_experiment("main", Bench(wild, tmp_path, seeds=(0, 1), size="small", device="cpu"))
    document = json.loads(found.save(tmp_path)[0].read_text())
    by_seed = {(one["method"], one["budget"]): one["by_seed"] for one in document["totals"]}
    assert by_seed["stl", None] == [None, None]
    assert all(total is not None for total in by_seed["oracle", 2])
    answers = {claim.text: claim for claim in found.claims}
    assert answers["TAG does better than STL"].appeared == "not tested"
    assert "against no number (not tested)" in answers["TAG does better than STL"].because
    assert answers["TAG does better than MTL"].appeared != "not tested"
    assert found.sheet("Total").note.endswith("no total where a network diverged")
    assert not any("nan" in claim.because for claim in found.claims)


@pytest.mark.parametrize(
    ("printed", "count", "appeared"),
    [
        ("celeba", 5, "not tested"),
        (None, 2, "not tested"),
        (None, 9, "no"),
        ("celeba", 9, "no"),
        ("taskonomy", 5, "no"),
    ],
)
def test_with_fewer_tasks_than_the_paper_s_its_speed_up_is_not_tested(
    printed: str | None, count: int, appeared: str
) -> None:
    bench: Any = SimpleNamespace(printed=printed, budgets=(2,), chosen=SimpleNamespace(names=("task",) * count))
    lines = [SimpleNamespace(method=name, budget=2, deciding_cost=cost) for name, cost in (("hoa", 5.0), ("tag", 2.0))]
    results: Any = SimpleNamespace(table=lambda: lines)
    assert main._faster(bench, results).appeared == appeared
