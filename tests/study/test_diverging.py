"""Networks that diverge are stored as diverged, are never chosen, and stop only the methods that need them."""

import json
import math
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path

import pytest
import torch
from diverging_small import DIVERGING, NAMES, diverges, diverging_problem
from watched_executor import WatchedExecutor

from tagalong.errors import InvalidInput
from tagalong.learn import Diverged, Job
from tagalong.report import write_report
from tagalong.study import (
    Decision,
    Method,
    Results,
    Runner,
    Study,
    make_executor,
    open_runner,
)
from tagalong.study.relative_losses import relative_losses

SUBSETS = [subset for size in range(1, 5) for subset in combinations(NAMES, size)]


@pytest.mark.usefixtures("forked_workers")
@pytest.mark.parametrize(("executor", "batched"), [("serial", True), ("serial", False), ("processes:2", True)], ids=str)
def test_diverged_networks_are_stored_as_diverged_and_not_trained_again(
    executor: str, batched: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    if executor != "serial":
        pytest.importorskip("cloudpickle")
    problem, jobs = diverging_problem(batched=batched), [Job(tasks) for tasks in SUBSETS]
    kept = {"device": "cpu", "keep": "recommended"}
    with open_runner(problem, tmp_path, executor=make_executor(executor), **kept) as runner:
        rows = runner.networks(jobs, diverged=True)
        assert [job.tasks for job, row in rows.items() if row.diverged] == DIVERGING
        for row in rows.values():
            assert row.steps > 0
            assert row.parameters > 0
            assert {math.isnan(score.loss) for score in [*row.val.values(), *row.test.values()]} == {row.diverged}
            assert (runner.store.weights(row.key) is None) == row.diverged
        assert runner.cost(jobs).networks == len(jobs) == runner.store.spent().networks
        key = rows[Job(("a", "b"))].key
        before = runner.store.weights(key)
    assert len([record for record in caplog.records if "diverged" in record.message]) == 1, "a single warning"
    again = WatchedExecutor()
    with open_runner(problem, tmp_path, device="cpu", executor=again) as runner:
        with pytest.raises(Diverged, match=r"wild with seed 0 diverged; lower `recipe.lr`"):
            runner.networks([Job(("a", "wild")), Job(("a", "b"))])
        assert again.jobs == []
        # Weights that were dropped are trained again, as a batch some of whose networks diverge.
        assert runner.store.weights(key) is None
        for name, tensor in runner.weights(key).items():
            assert torch.equal(tensor, before[name]), name


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Results:
    methods = ["mtl", "stl", "tag", "hoa", "optimal", "oracle", "random", "auto"]
    out = tmp_path_factory.mktemp("diverging")
    return Study(diverging_problem(), out, device="cpu").run(methods, budgets=[2, 3], seeds=2, effort=13)


def test_a_study_continues_and_reports_what_diverged(study: Results) -> None:
    diverged = {("stl", None), ("random", 2), ("random", 3)}
    assert {record.label for record in study.records if record.diverged} == diverged
    assert not diverged & {way.label for way in study.verdict().ways}
    assert "stl" in " ".join(study.verdict().notes)
    for record in study.records:
        assert record.training.steps > 0
        if record.label not in diverged:
            assert not {tuple(sorted(group.trains)) for group in record.groups} & set(DIVERGING)
            assert math.isfinite(record.total())
    lines = {(line.method, line.budget): line for line in study.table()}
    assert (lines["stl", None].diverged, lines["stl", None].seeds, lines["stl", None].skill) == (2, 2, None)
    assert lines["optimal", 2].skill > lines["mtl", None].skill
    with pytest.raises(InvalidInput, match="'stl' has no usable networks"):
        Study(diverging_problem(), study.out, device="cpu").best("stl")


def test_text_log_and_page_mark_what_diverged(study: Results) -> None:
    assert "stl: diverged" in str(study)
    assert "wild with seed 0" in (study.out / "run.log").read_text()
    page = write_report(study.out).read_text(encoding="utf-8").partition("<script")[0]
    assert "<td>diverged</td>" in page
    assert "NaN" not in page


def test_a_grouping_that_diverges_with_one_seed_is_not_a_candidate(tmp_path: Path) -> None:
    """The results of the remaining seeds alone would be biased."""
    problem = diverging_problem(share=0.5)
    bad = next(seed for seed in range(20) if diverges(problem, "wild", seed=seed))
    good = next(seed for seed in range(20) if not diverges(problem, "wild", seed=seed))
    study = Study(problem, tmp_path, device="cpu")
    results = study.run(["stl"], seeds=[bad, good])
    assert [record.diverged for record in results.records_of(("stl", None))] == [True, False]
    (line,) = [line for line in results.table() if line.method == "stl"]
    assert (line.seeds, line.diverged, line.skill) == (2, 1, None)
    assert results.verdict().recommended == ("mtl", None)
    assert study.best("stl").seed == good


class NeedsADivergingNetwork(Method):
    name, budgeted = "needy", False

    def decide(self, runner: Runner, budgets: Sequence[int], seeds: Sequence[int]) -> Decision:
        runner.networks([runner.job(["wild"], seed) for seed in seeds])
        raise AssertionError("it must not come here")


def test_a_method_that_cannot_decide_is_reported_and_the_others_continue(tmp_path: Path) -> None:
    study = Study(diverging_problem(), tmp_path, device="cpu")
    results = study.run([NeedsADivergingNetwork(), "optimal"], budgets=[2], seeds=2)
    lines = {line.method: line for line in results.table()}
    assert (lines["needy"].diverged, lines["needy"].groups) == (2, ())
    assert lines["optimal"].skill > lines["mtl"].skill
    assert "needy could not select groups" in (tmp_path / "run.log").read_text(encoding="utf-8")
    groupings = json.loads((tmp_path / "groupings.json").read_text(encoding="utf-8"))["groupings"]
    assert {grouping["method"] for grouping in groupings} == {"mtl", "optimal"}
    assert str(Results.load(tmp_path)) == str(results)


def test_a_diverged_network_is_worse_than_any_other_and_a_diverged_reference_is_replaced(tmp_path: Path) -> None:
    subsets, diverged = list(map(frozenset, SUBSETS)), set(map(frozenset, DIVERGING))
    with open_runner(diverging_problem(), tmp_path, device="cpu") as runner:
        alone = relative_losses(runner, subsets, [0], split="val", reference="alone")
        together = relative_losses(runner, subsets, [0], split="val", reference="together")
    best = max(value for subset, values in alone.items() if subset not in diverged for value in values.values())
    for subset in diverged:
        # A group of four is predicted from three pairs: one that diverged must outweigh all else.
        assert min(alone[subset].values()) / 3 > len(NAMES) * best
    assert alone[frozenset(["calm", "wild"])]["wild"] == together[frozenset(["calm", "wild"])]["wild"]
    assert alone[frozenset("a")]["a"] == 1
