"""Networks other than the problem's own in a study: keys, stores, averages, exports, and `auto` with TabM networks."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from exported import load_exported
from watched_executor import WatchedExecutor

from tagalong.errors import InvalidInput
from tagalong.group import Group
from tagalong.learn import Job, Problem, Recipe, Task, Taught, count_parameters, relative_step_cost, train
from tagalong.report import write_report
from tagalong.study import (
    Best,
    Choice,
    Decision,
    Elsewhere,
    Method,
    Results,
    Runner,
    Store,
    Study,
    family_of,
    open_runner,
)
from tagalong.study.executors import Serial
from tagalong.study.keys import Keys
from tagalong.study.runner import split_into_chunks

TASKS = ("a", "b", "c")
TABM = Group(TASKS, TASKS, network="tabm")


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
    keys, tabm, job = Keys(problem, "cpu"), Keys(table(encoder="tabm"), "cpu"), Job(TASKS, 3)
    plain, other = keys.definition(job), keys.definition(replace(job, network="tabm"))
    assert "network" not in plain
    assert other["network"] == "tabm"
    assert other["architecture"] == tabm.architecture != plain["architecture"] == keys.architecture
    assert other["recipe"] == tabm.definition(job)["recipe"] != plain["recipe"]
    same = ("tasks", "seed", "rule", "width", "data", "losses", "device", "numerics")
    assert {name: other[name] for name in same} == {name: plain[name] for name in same}


def test_the_key_of_the_own_network_does_not_depend_on_alternatives(problem: Problem) -> None:
    without = replace(problem, chosen_network=None)
    assert Keys(without, "cpu").definition(Job(TASKS)) == Keys(problem, "cpu").definition(Job(TASKS))


def test_networks_of_different_kinds_are_in_different_chunks() -> None:
    jobs = [Job(TASKS, seed, network=name) for seed in range(4) for name in (None, "tabm")]
    assert [{job.network for job in some} for some in split_into_chunks(jobs, 8)] == [{None}, {"tabm"}]


def test_a_runner_trains_stores_and_restores_other_networks(problem: Problem, tmp_path: Path) -> None:
    jobs = [Job(TASKS, seed, network=name) for name in (None, "tabm") for seed in range(3)]
    with open_runner(problem, tmp_path, device="cpu") as runner:
        results = runner.networks(jobs)
        before = {job: runner.weights(result.key) for job, result in results.items()}
    assert {result.job for result in results.values()} == set(jobs)
    alone = train(problem, jobs[3])
    assert results[jobs[3]].parameters == alone.parameters == count_parameters(problem.with_network("tabm"), TASKS)
    for name, tensor in alone.state.items():
        torch.testing.assert_close(before[jobs[3]][name], tensor, rtol=1e-4, atol=1e-5)
    with open_runner(problem, tmp_path, device="cpu") as runner:
        runner.store._connection.execute("DELETE FROM arrays")
        for job, result in results.items():
            again = runner.weights(result.key)
            assert all(torch.equal(again[name], tensor) for name, tensor in before[job].items())


def test_other_networks_can_be_trained_by_other_processes_and_teach(problem: Problem, tmp_path: Path) -> None:
    found = []
    for name, executor in (("here", Serial()), ("there", WatchedExecutor(pickled=True))):
        with open_runner(problem, tmp_path / name, device="cpu", executor=executor) as runner:
            teachers = [runner.group_job(replace(TABM, copy=copy), 0) for copy in (0, 1)]
            keys = tuple(result.key for result in runner.networks(teachers).values())
            student = runner.group_job(Group(TASKS, TASKS, taught=Taught(keys)), 0)
            found.append([runner.networks([*teachers, student])[job].val for job in (*teachers, student)])
    assert found[0] == found[1]


def test_groups_of_networks_that_a_problem_does_not_have_are_refused(problem: Problem, tmp_path: Path) -> None:
    own = table(recipe=Recipe(epochs=1))
    with (
        open_runner(own, tmp_path, device="cpu") as runner,
        pytest.raises(InvalidInput, match="`network`"),
    ):
        runner.networks([runner.group_job(TABM, 0)])
    with pytest.raises(InvalidInput, match="`methods`"):
        Runner(problem, executor=Elsewhere()).group_job(TABM, 0)


class TabMMethod(Method):
    """Uses one TabM network."""

    name, budgeted = "own", False

    def decide(self, runner: Runner, budgets: Sequence[int], seeds: Sequence[int]) -> Decision:
        return Decision.pooled({None: Choice((TABM,))}, seeds)


def run_study(out: Path, **study: Any) -> Results:
    return Study(table(), out, device="cpu", **study).run([TabMMethod()], [1, 2], seeds=2)


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    return run_study(tmp_path_factory.mktemp("whole"))


def test_a_recommended_tabm_network_is_reported_as_such(results: Results, problem: Problem) -> None:
    assert Results.load(results.out).records == results.records
    records, (mtl, *_) = results.records_of(("own", None)), results.records_of(("mtl", None))
    assert [record.groups for record in records] == [(TABM,)] * 2
    assert records[0].parameters == count_parameters(problem.with_network("tabm"), TASKS) > mtl.parameters
    with Store(results.out / "run.sqlite") as store:
        (trained,) = store.results(records[0].networks).values()
    assert records[0].training.steps == round(relative_step_cost(problem, "tabm") * trained.steps)
    verdict = results.verdict()
    one = verdict.by_budget[1]
    assert verdict.groups == (TABM,)
    assert (family_of(one.label, one.groups), one.models, one.cost.parameters) == ("tabm", 1, records[0].parameters)
    assert one.relative_cost > 3
    assert "TabM network" in write_report(results.out).read_text(encoding="utf-8").partition("<script")[0]


def test_saved_and_exported_tabm_networks_give_the_reported_losses(
    results: Results, problem: Problem, tmp_path: Path
) -> None:
    best, inputs = Best.load(results.out), problem.test.inputs
    assert best.groups == (TABM,)
    best.export(tmp_path)
    record = next(one for one in results.records_of(("own", None)) if one.seed == best.seed)
    mean, deviation = problem.scales["a"]
    for networks in (replace(best, table=None), load_exported(tmp_path)):
        answers = np.asarray(networks.predict(inputs)["a"], dtype=np.float64)
        loss = np.mean(((answers - mean) / deviation - problem.test.targets["a"].numpy()) ** 2)
        assert loss == pytest.approx(record.test["a"].loss, rel=1e-5)
