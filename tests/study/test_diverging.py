"""Networks that diverge are stored as diverged, are never chosen, and stop only the methods that need them."""

import json
import math
from collections.abc import Iterator, Sequence
from itertools import combinations
from pathlib import Path

import pytest
import torch
from diverging_small import DIVERGING, NAMES, diverges, diverging_problem

from tagalong.group import Group
from tagalong.learn import Diverged, Job
from tagalong.report import write_report
from tagalong.study import (
    Choice,
    Chunk,
    Decision,
    Method,
    NetworkResult,
    Results,
    SearchLog,
    Store,
    Study,
    TrainingBackend,
    make_executor,
)
from tagalong.study.best import keep_best, recommended_record
from tagalong.study.executors import Advance, Serial
from tagalong.study.relative_losses import relative_losses

SUBSETS = [some for size in range(1, 5) for some in combinations(NAMES, size)]
METHODS = ["mtl", "stl", "tag", "hoa", "optimal", "oracle", "random", "auto"]


class RecordingExecutor(Serial):
    """Trains serially and records the jobs."""

    def __init__(self) -> None:
        self.jobs: list[Job] = []

    def map(self, chunks: Sequence[Chunk], advance: Advance) -> Iterator[tuple[Chunk, list[NetworkResult]]]:
        self.jobs += [job for chunk in chunks for job in chunk.jobs]
        return super().map(chunks, advance)


@pytest.fixture(params=["serial", "processes:2"])
def executor(request: pytest.FixtureRequest, forked_workers: None) -> str:
    if request.param != "serial":
        pytest.importorskip("cloudpickle")
    return str(request.param)


@pytest.mark.parametrize("batched", [True, False], ids=["batched", "one by one"])
def test_diverged_networks_are_stored_as_diverged_and_not_trained_again(
    executor: str, batched: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    problem = diverging_problem(batched=batched)
    jobs = [Job(tasks) for tasks in SUBSETS]
    with (
        Store(tmp_path / "run.sqlite") as store,
        TrainingBackend(problem, store, executor=make_executor(executor)) as backend,
    ):
        rows = backend.networks(jobs, "all subsets", diverged=True)
        assert [job.tasks for job, row in rows.items() if row.diverged] == DIVERGING
        assert all(row.steps > 0 and row.seconds > 0 and row.parameters > 0 for row in rows.values())
        for job, row in rows.items():
            assert {math.isnan(outcome.loss) for outcome in row.val.values()} == {row.diverged}
            assert {math.isnan(outcome.loss) for outcome in row.test.values()} == {row.diverged}
            assert (store.weights(row.key) is None) == row.diverged, job
        assert backend.cost(jobs).networks == len(jobs) == store.spent().networks
        assert store.pruned([row.key for row in rows.values()]) == []
    said = "all subsets: wild with seed 0; a, wild with seed 0; b, wild with seed 0; a, b, wild with seed 0 diverged"
    assert [record.message for record in caplog.records if "diverged" in record.message] == [
        f"{said} and will rank below all other results"
    ]
    again = RecordingExecutor()
    with Store(tmp_path / "run.sqlite") as store, TrainingBackend(problem, store, executor=again) as backend:
        with pytest.raises(Diverged, match=r"networks: a, wild with seed 0 diverged; lower `recipe.lr`"):
            backend.networks([Job(("a", "wild")), Job(("a", "b"))])
        backend.restore(backend.keys.of(job) for job in jobs)
        assert again.jobs == []


def test_dropped_weights_are_restored_even_if_others_of_the_batch_diverged(tmp_path: Path) -> None:
    problem, jobs = diverging_problem(), [Job(tasks) for tasks in SUBSETS]
    with Store(tmp_path / "run.sqlite") as store, TrainingBackend(problem, store, executor=Serial()) as backend:
        rows = backend.networks(jobs, diverged=True)
        key = rows[Job(("a", "b"))].key
        before = store.weights(key)
        store.prune()
        assert store.pruned([row.key for row in rows.values()])
        for name, tensor in backend.weights(key).items():
            assert torch.equal(tensor, before[name]), name


def test_a_study_continues_and_reports_what_diverged(executor: str, tmp_path: Path) -> None:
    problem = diverging_problem()
    results = Study(problem, tmp_path, executor=executor).run(METHODS, budgets=[2, 3], seeds=2, effort=12)
    diverged = {(record.method, record.budget) for record in results.records if record.diverged}
    assert diverged == {("stl", None), ("random", 2), ("random", 3)}
    for record in results.records:
        assert record.training.steps > 0
        if (record.method, record.budget) not in diverged:
            assert not {tuple(sorted(group.trains)) for group in record.groups} & set(DIVERGING)
            assert math.isfinite(record.total())
    lines = {(line.method, line.budget): line for line in results.table()}
    assert {label for label, line in lines.items() if line.diverged} == diverged
    assert lines["stl", None].diverged == lines["stl", None].seeds == 2
    assert lines["stl", None].change is None
    assert lines["optimal", 2].change < 0
    assert lines["optimal", 2].random_change is None
    assert set(results.verdict().diverged) == diverged
    text = str(results)
    (row,) = [line.split() for line in text.splitlines() if line.startswith("stl")]
    assert row[:3] == ["stl", "4", "diverged"]
    assert "Diverged: with at least one seed, a network had no finite validation loss" in " ".join(text.split())
    assert "nan" not in text
    assert str(Results.load(tmp_path)) == text
    assert json.loads((tmp_path / "results.json").read_text())["verdict"]["diverged"][0] == ["stl", None]
    log = (tmp_path / "run.log").read_text()
    assert "WARNING tagalong.study.backend: all pairs: wild with seed 0; a, wild with seed 0; " in log
    assert not list(tmp_path.glob("partial/*"))


def test_the_page_of_a_run_reports_what_diverged(tmp_path: Path) -> None:
    results = Study(diverging_problem(), tmp_path).run(["stl", "auto"], budgets=[2], seeds=2, effort=12)
    page = write_report(tmp_path).read_text(encoding="utf-8")
    table, _, taught = page.partition('id="lessons"')
    assert "Diverged: with at least one seed, a network had no finite validation loss" in table
    cell = '<td data-sort="">diverged</td>'
    assert cell in table
    tried = [one for one in results.search_log.trainings if one.diverged]
    assert taught.count("<td>diverged</td>") == len(tried) > 0
    assert "NaN" not in page.partition("<script")[0]


def test_a_second_run_trains_nothing_and_gives_the_same_text(tmp_path: Path) -> None:
    problem = diverging_problem()
    first = Study(problem, tmp_path).run(METHODS, budgets=[2], seeds=2, effort=12)
    executor = RecordingExecutor()
    second = Study(problem, tmp_path, executor=executor).run(METHODS, budgets=[2], seeds=2, effort=12)
    assert executor.jobs == []
    assert str(second) == str(first)


def test_auto_counts_and_reports_diverged_networks_and_never_chooses_them(tmp_path: Path) -> None:
    problem = diverging_problem()
    results = Study(problem, tmp_path).run(["auto"], budgets=[2, 3], seeds=2, effort=13)
    log = results.settings["decisions"]["auto"]
    tried = SearchLog(log).trainings
    diverged = [one for one in tried if one.diverged]
    assert {one.tasks for one in diverged} <= set(DIVERGING)
    assert len({one.tasks for one in diverged}) == len(diverged) > 0, "one divergence is enough to know"
    assert all(one.change is None for one in diverged)
    assert log["spent"] == pytest.approx(log["measuring"] + len(tried))
    assert f"({len(diverged)} diverged)" in " ".join(str(results).split())
    groups = {group.trains for record in results.records for group in record.groups}
    assert not {tuple(sorted(trains)) for trains in groups} & set(DIVERGING)
    assert results.verdict().candidate == ("auto", 2)
    assert results.verdict().validation < 0


def test_an_early_look_that_diverges_is_reported_too(tmp_path: Path) -> None:
    study = Study(diverging_problem(), tmp_path)
    results = study.run(["auto"], budgets=[2], seeds=2, effort=12, options={"auto": {"screen": 0.5}})
    looks = [one for one in results.search_log.trainings if one.fraction < 1]
    assert {one.tasks for one in looks if one.diverged} & set(DIVERGING)
    assert not {one.tasks for one in looks if not one.diverged} & set(DIVERGING)


def test_a_grouping_that_diverges_with_one_seed_is_not_a_candidate(tmp_path: Path) -> None:
    """The results of the remaining seeds alone would be biased."""
    problem = diverging_problem(share=0.5)
    bad = next(seed for seed in range(20) if diverges(problem, "wild", seed=seed))
    good = next(seed for seed in range(20) if not diverges(problem, "wild", seed=seed))
    results = Study(problem, tmp_path).run(["stl"], seeds=[bad, good])
    assert [record.diverged for record in results.records_of(("stl", None))] == [True, False]
    (line,) = [line for line in results.table() if line.method == "stl"]
    assert (line.seeds, line.diverged, line.change, line.total_stderr) == (2, 1, None, None)
    verdict = results.verdict()
    assert (verdict.candidate, verdict.recommended, verdict.diverged) == (None, ("mtl", None), (("stl", None),))
    assert "one network: no grouping was tried, but for stl, which diverged." in verdict.sentence
    assert recommended_record(results, ("stl", None)).seed == good


def test_a_method_that_diverged_with_every_seed_has_no_networks_to_load(tmp_path: Path) -> None:
    problem = diverging_problem()
    results = Study(problem, tmp_path).run(["stl"], seeds=1)
    with pytest.raises(
        ValueError, match="'stl' has no usable networks: with every seed, at least one network diverged"
    ):
        keep_best(results, problem, lambda key: {}, label=("stl", None))


class FixedGroups(Method):
    """Always chooses the same groups."""

    budgeted = False

    def __init__(self, name: str, *groups: str) -> None:
        self.name, self.groups = name, [group.split() for group in groups]

    def decide(self, backend: TrainingBackend, budgets: Sequence[int], seeds: Sequence[int]) -> Decision:
        return Decision.pooled({None: Choice(tuple(Group(some, some) for some in self.groups))}, seeds)


def test_if_the_candidate_diverges_with_fresh_seeds_the_next_one_is_confirmed(tmp_path: Path) -> None:
    problem = diverging_problem(share=0.5)
    luck = [diverges(problem, "wild", seed=seed) for seed in range(40)]
    first = next(seed for seed in range(40) if luck[seed : seed + 2] == [False, True])
    methods = [FixedGroups("bold", "a b", "calm", "wild"), FixedGroups("timid", "a b", "calm wild")]
    alone = Study(problem, tmp_path / "alone").run(methods, seeds=[first]).verdict()
    assert alone.candidate == ("bold", None), "else the test shows nothing"
    results = Study(problem, tmp_path / "both").run(methods, seeds=[first], confirm=1)
    verdict = results.verdict()
    assert (verdict.candidate, verdict.diverged) == (("timid", None), (("bold", None),))
    assert [record.seed for record in results.records_of(("timid", None))] == [first, first + 1]
    assert verdict.estimate == results.records_of(("timid", None))[1].change(results.records_of(("mtl", None))[1])


class NeedsADivergingNetwork(Method):
    """Requests a network that diverges."""

    name, budgeted = "asking", False

    def decide(self, backend: TrainingBackend, budgets: Sequence[int], seeds: Sequence[int]) -> Decision:
        backend.networks([backend.job(["wild"], seed) for seed in seeds], "what asking asks")
        raise AssertionError("it must not come here")


def test_a_method_that_cannot_decide_is_reported_and_the_others_continue(tmp_path: Path) -> None:
    results = Study(diverging_problem(), tmp_path).run([NeedsADivergingNetwork(), "optimal"], budgets=[2], seeds=2)
    lines = {line.method: line for line in results.table()}
    assert (lines["asking"].diverged, lines["asking"].groups) == (2, ())
    assert lines["optimal"].change < 0
    assert "asking could not select groups: what asking asks: wild with seed 0; wild with seed 1 diverged" in (
        tmp_path / "run.log"
    ).read_text(encoding="utf-8")
    groupings = json.loads((tmp_path / "groupings.json").read_text(encoding="utf-8"))["groupings"]
    assert {one["method"] for one in groupings} == {"mtl", "optimal"}
    assert str(Results.load(tmp_path)) == str(results)


def test_a_diverged_network_is_worse_than_any_other_and_a_diverged_reference_is_replaced(tmp_path: Path) -> None:
    problem = diverging_problem()
    subsets = [frozenset(some) for some in SUBSETS]
    with Store(tmp_path / "run.sqlite") as store, TrainingBackend(problem, store, executor=Serial()) as backend:
        table = relative_losses(backend, subsets, [0], split="val", reference="alone")
        together = relative_losses(backend, subsets, [0], split="val", reference="together")
    diverged = {frozenset(some) for some in DIVERGING}
    best = max(value for some, values in table.items() if some not in diverged for value in values.values())
    for some in diverged:
        # A group of four is predicted from three pairs: one that diverged must outweigh all else.
        assert min(table[some].values()) / 3 > len(NAMES) * best
    assert table[frozenset(["calm", "wild"])]["wild"] == together[frozenset(["calm", "wild"])]["wild"]
    assert table[frozenset("a")]["a"] == 1
