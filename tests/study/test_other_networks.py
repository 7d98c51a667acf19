"""Networks other than the problem's own in a study: keys, stores, averages, exports, and `auto` with TabM networks."""

import pickle
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tagalong.errors import InvalidInput
from tagalong.group import Group
from tagalong.learn import Job, Problem, Recipe, Task, Taught, count_parameters, relative_step_cost, train
from tagalong.report import write_report
from tagalong.study import Best, Chunk, ExternalBackend, NetworkResult, Results, Store, Study, open_backend
from tagalong.study.executors import Advance, Serial
from tagalong.study.keys import Keys
from tagalong.study.training_backend import split_into_chunks
from tagalong.study.verdict_text import kind_of_networks

TASKS = ("a", "b", "c")
TABM = Group(TASKS, TASKS, network="tabm")
OPTIONS = {"auto": {"sets": False, "mixtures": False}}


@pytest.fixture(autouse=True, scope="module")
def few_members() -> Iterator[None]:
    """TabM networks with 4 members cost about 4 training runs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tagalong.learn.table_networks.MEMBERS", 4)
        yield


@pytest.fixture(scope="module")
def problem() -> Problem:
    return table()


def table(**options: Any) -> Problem:
    """Three tasks with the default network, which learns less in a few epochs than a TabM network."""
    draw = np.random.default_rng(0)
    inputs = draw.normal(size=(400, 4))
    targets = np.stack([np.sin(2 * inputs[:, 0]), inputs[:, 0] * inputs[:, 1] + inputs[:, 2]], 1)
    targets += 0.1 * draw.normal(size=targets.shape)
    values = {"a": targets[:, 0], "b": targets[:, 1], "c": (inputs[:, 3] > 0.5).astype(float)}
    tasks = [Task("a", "regression"), Task("b", "regression"), Task("c", "binary")]
    found = Problem.from_arrays(inputs, values, tasks, split=(0.5, 0.3, 0.2), **options)
    return found if "recipe" in options else replace(found, recipe=replace(found.recipe, epochs=3))


def test_a_key_holds_the_architecture_and_recipe_of_another_network(problem: Problem) -> None:
    keys, tabm = Keys(problem, "cpu"), Keys(table(encoder="tabm"), "cpu")
    job = Job(TASKS, 3)
    plain, other = keys.definition(job), keys.definition(replace(job, network="tabm"))
    assert "network" not in plain
    assert other["network"] == "tabm"
    assert other["architecture"] == tabm.architecture != plain["architecture"] == keys.architecture
    assert other["recipe"] == tabm.definition(job)["recipe"] != plain["recipe"]
    same = ("tasks", "seed", "rule", "width", "data", "losses", "device", "numerics")
    assert {name: other[name] for name in same} == {name: plain[name] for name in same}
    longer = Keys(replace(problem, recipe=replace(problem.recipe, epochs=4)), "cpu")
    found = {one.of(replace(job, network=name)) for one in (keys, tabm, longer) for name in one.problem.alternatives}
    assert len(found | {keys.of(job), tabm.of(job), longer.of(job)}) == 5


def test_the_key_of_the_own_network_does_not_depend_on_alternatives(problem: Problem) -> None:
    without = replace(problem, chosen_network=None)
    assert Keys(without, "cpu").definition(Job(TASKS)) == Keys(problem, "cpu").definition(Job(TASKS))


def test_networks_of_different_kinds_are_in_different_chunks() -> None:
    jobs = [Job(TASKS, seed, network=name) for seed in range(4) for name in (None, "tabm")]
    assert [{job.network for job in some} for some in split_into_chunks(jobs, 8)] == [{None}, {"tabm"}]


def test_a_backend_trains_stores_and_restores_other_networks(problem: Problem, tmp_path: Path) -> None:
    jobs = [Job(TASKS, seed, network=name) for name in (None, "tabm") for seed in range(4)]
    with open_backend(problem, tmp_path, device="cpu") as backend:
        results = backend.networks(jobs)
        before = {job: backend.weights(result.key) for job, result in results.items()}
        outputs = backend.outputs(jobs, "val")
        assert backend.latency(TASKS, network="tabm") != backend.latency(TASKS)
    alone = train(problem, jobs[4])
    assert results[jobs[4]].parameters == alone.parameters == count_parameters(problem.with_network("tabm"), TASKS)
    for name, tensor in (alone.state or {}).items():
        torch.testing.assert_close(before[jobs[4]][name], tensor, rtol=1e-4, atol=1e-5)
    losses = (outputs[jobs[4]]["a"].squeeze(1) - problem.val.targets["a"]).square()  # type: ignore[union-attr]
    assert float(losses.mean()) == pytest.approx(results[jobs[4]].val["a"].loss, rel=1e-5)
    with Store(tmp_path / "run.sqlite") as store:
        assert {result.job for result in store.results(one.key for one in results.values()).values()} == set(jobs)
    with open_backend(problem, tmp_path, device="cpu") as backend:
        backend.store._connection.execute("UPDATE networks SET weights = NULL, losses = NULL")
        for job, result in results.items():
            again = backend.weights(result.key)
            assert all(torch.equal(again[name], tensor) for name, tensor in before[job].items())


class Sending(Serial):
    """Trains chunks as another process would, from copies of the problem and the chunks."""

    def start(self, problem: Problem, device: str) -> None:
        import cloudpickle

        super().start(pickle.loads(cloudpickle.dumps(problem)), device)

    def map(self, chunks: Sequence[Chunk], advance: Advance) -> Iterator[tuple[Chunk, list[NetworkResult]]]:
        sent = pickle.loads(pickle.dumps(list(chunks)))
        return zip(chunks, (results for _, results in super().map(sent, advance)), strict=True)


def test_other_networks_can_be_trained_by_other_processes_and_teach(problem: Problem, tmp_path: Path) -> None:
    found = []
    for name, executor in (("here", Serial()), ("there", Sending())):
        with open_backend(problem, tmp_path / name, device="cpu", executor=executor) as backend:
            teachers = [backend.group_job(replace(TABM, copy=copy), 0) for copy in (0, 1)]
            keys = tuple(result.key for result in backend.networks(teachers).values())
            student = backend.group_job(Group(TASKS, TASKS, taught=Taught(keys)), 0)
            found.append([backend.networks([*teachers, student])[job].val for job in (*teachers, student)])
    assert found[0] == found[1]


def test_groups_of_networks_that_a_problem_does_not_have_are_refused(problem: Problem, tmp_path: Path) -> None:
    own = table(recipe=Recipe(epochs=1))
    with (
        open_backend(own, tmp_path, device="cpu") as backend,
        pytest.raises(InvalidInput, match="`network` must be None, found"),
    ):
        backend.networks([backend.group_job(TABM, 0)])
    expected = "must not require other networks if networks are trained elsewhere, found a TabM network"
    with pytest.raises(InvalidInput, match=expected):
        ExternalBackend(TASKS, {}).group_job(TABM, 0)


def test_the_kind_of_networks_is_tabm_if_any_is() -> None:
    assert kind_of_networks(("auto", 2), [TABM, Group(TASKS, TASKS, taught=Taught(("x",)))]) == "tabm"


def run_study(out: Path, **study: Any) -> Results:
    return Study(table(), out, device="cpu", **study).run(["auto"], [1, 2], seeds=2, effort=14, options=OPTIONS)


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    return run_study(tmp_path_factory.mktemp("whole"))


def test_auto_recommends_a_tabm_network_and_reports_it_as_such(results: Results, problem: Problem) -> None:
    assert results.out is not None
    assert Results.load(results.out).records == results.records
    records = [record for record in results.records if record.label == ("auto", 1)]
    assert [record.groups for record in records] == [(TABM,)] * 2
    mtl = next(record for record in results.records if record.method == "mtl")
    assert records[0].parameters == count_parameters(problem.with_network("tabm"), TASKS) > mtl.parameters
    assert records[0].latency is not None
    with Store(results.out / "run.sqlite") as store:
        (trained,) = store.results(records[0].networks).values()
    assert records[0].training.steps == round(relative_step_cost(problem, "tabm") * trained.steps)
    verdict = results.verdict()
    assert verdict.groups == (TABM,)
    assert (verdict.by_budget[1].kind, verdict.by_budget[1].size) == ("tabm", 1)
    assert (verdict.by_budget[1].latency, verdict.by_budget[1].parameters) == (
        pytest.approx(np.mean([record.latency for record in records])),
        records[0].parameters,
    )
    assert "A TabM network is worth it: the network of auto (budget 1) changes" in str(verdict)
    assert "a, b, c (TabM network)" in str(results)
    log = results.settings["decisions"]["auto"]
    assert "1 TabM network, and" in " ".join(str(results).split())
    assert {one["kind"] for step in log["steps"] for one in step["trained"]} == {"copy", "tabm", "student"}
    assert log["chosen"]["1"]["pool"] == "tabm"


def test_the_page_names_tabm_networks(results: Results) -> None:
    assert results.out is not None
    page = " ".join(re.sub(r"<[^>]*>", " ", write_report(results.out).read_text(encoding="utf-8")).split())
    assert "Use one TabM network for all tasks." in page
    assert "with TabM networks" in page
    assert "TabM networks (auto" in page
    assert "TabM network, trained on all 3 tasks." in page


class Stopping(Serial):
    """Is interrupted after a number of requests."""

    def __init__(self, requests: int) -> None:
        self.left = requests

    def map(self, chunks: Sequence[Chunk], advance: Advance) -> Iterator[tuple[Chunk, list[NetworkResult]]]:
        if not self.left:
            raise KeyboardInterrupt
        self.left -= 1
        yield from super().map(chunks, advance)


@pytest.mark.parametrize("requests", [2, 3, 4], ids=["before TabM", "after TabM", "after some students"])
def test_a_stopped_study_continues_with_the_same_networks(results: Results, tmp_path: Path, requests: int) -> None:
    with pytest.raises(KeyboardInterrupt):
        run_study(tmp_path, executor=Stopping(requests))
    found = [
        [(record.label, record.groups, record.val, record.test, record.networks) for record in one.records]
        for one in (run_study(tmp_path), results)
    ]
    assert found[0] == found[1]


@pytest.mark.parametrize("file", ["loaded", "exported"])
def test_saved_and_exported_tabm_networks_give_the_reported_losses(
    results: Results, problem: Problem, tmp_path: Path, file: str
) -> None:
    assert results.out is not None
    best = Best.load(results.out)
    assert best.groups == (TABM,)
    inputs = problem.test.inputs  # type: ignore[union-attr]
    answers: dict[str, Any] = replace(best, table=None).predict(inputs)
    if file == "exported":
        assert best.export(tmp_path) == []
        torch.save(inputs, tmp_path / "rows.pt")
        script = (
            "import sys, torch\n"
            "sys.modules['tagalong'] = None\n"
            "sys.path.insert(0, sys.argv[1])\n"
            "from load import load\n"
            "rows = torch.load(sys.argv[1] + '/rows.pt')\n"
            "torch.save(load().predict(rows), sys.argv[1] + '/answers.pt')\n"
        )
        subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=True)
        answers = {task: values.numpy() for task, values in torch.load(tmp_path / "answers.pt").items()}
    record = next(one for one in results.records_of(("auto", 1)) if one.seed == best.seed)
    mean, deviation = problem.scales["a"]
    targets = problem.test.targets["a"].numpy()  # type: ignore[union-attr]
    loss = np.mean(((answers["a"] - mean) / deviation - targets) ** 2)
    assert loss == pytest.approx(record.test["a"].loss, rel=1e-5)
