"""Copies of a network are averaged: with which seeds they train, how they are scored, saved and resumed."""

import json
import subprocess
import sys
from dataclasses import replace
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from study_small import Students
from torch import nn

from tagalong.errors import InvalidInput
from tagalong.group import Group
from tagalong.learn import (
    MLP,
    Job,
    Problem,
    Recipe,
    Split,
    TabM,
    TabMHeads,
    Task,
    average_outputs,
    build_network,
    score_outputs,
    train,
)
from tagalong.study import (
    Backend,
    Best,
    Choice,
    Decision,
    Method,
    NetworkResult,
    Results,
    Study,
    open_backend,
)
from tagalong.study.candidates import comparable_records, find_candidates, picked_record
from tagalong.study.decisions import effort_notes
from tagalong.study.keys import Keys
from tagalong.study.members import member_seed
from tagalong.study.methods import BestOf, ensemble
from tagalong.study.methods.ensemble import best_set
from tagalong.study.records import by_label
from tagalong.study.text import networks_list

TASKS = (
    Task("age", "regression"),
    Task("ill", class_weights=(1.0, 2.0)),
    Task("kind", "multiclass", classes=3),
)
SCALE = (50.0, 10.0)
METHODS, BUDGETS = ["mtl", "ensemble"], [2, 3]


def make_problem(tasks: tuple[Task, ...] = TASKS, lr: float = 0.02, **network: Any) -> Problem:
    draw = torch.Generator().manual_seed(0)

    def some(rows: int) -> Split:
        inputs = torch.randn(rows, 4, generator=draw)
        kind = inputs[:, 1:].argmax(1).float()
        age = inputs[:, 0] + 0.5 * torch.randn(rows, generator=draw)
        age[::7] = torch.nan
        targets = {"age": age, "ill": (inputs[:, 1] > 0).float(), "kind": kind}
        return Split(inputs, {task.name: targets[task.name] for task in tasks})

    recipe = Recipe(epochs=4, batch_size=32, lr=lr)
    scales = {task.name: SCALE for task in tasks if task.kind == "regression"}
    network = network or {"encoder": MLP(4, (8,), dropout=0.1)}
    return Problem("toy", tasks, some(150), some(60), some(80), recipe=recipe, scales=scales, **network)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("copies")


@pytest.fixture(scope="module")
def results(folder: Path) -> Results:
    return Study(make_problem(), folder, device="cpu").run(METHODS, BUDGETS, seeds=2, confirm=1)


def best_of(folder: Path, budget: int) -> Best:
    return Study(make_problem(), folder, device="cpu").best("ensemble", budget)


def losses_of(predicted: dict[str, Any], problem: Problem, part: str = "test") -> dict[str, float]:
    """The losses, computed from predictions alone in float64."""
    targets = {task: values.double().numpy() for task, values in getattr(problem, part).targets.items()}
    age = (np.asarray(predicted["age"], dtype=np.float64) - SCALE[0]) / SCALE[1]
    ill = np.asarray(predicted["ill"], dtype=np.float64)
    kind = np.asarray(predicted["kind"], dtype=np.float64)[np.arange(len(ill)), targets["kind"].astype(int)]
    return {
        "age": float(np.nanmean((age - targets["age"]) ** 2)),
        "ill": float(np.mean(np.where(targets["ill"] > 0, -2 * np.log(ill), -np.log(1 - ill)))),
        "kind": float(np.mean(-np.log(kind))),
    }


def reported_losses(results: Results, budget: int, seed: int) -> dict[str, float]:
    (record,) = [one for one in results.records_of(("ensemble", budget)) if one.seed == seed]
    return {task: score.loss for task, score in record.test.items()}


def test_copies_train_with_seeds_of_their_own() -> None:
    seeds = [member_seed(seed, copy) for seed in range(200) for copy in range(50)]
    assert len(set(seeds)) == len(seeds)
    assert [member_seed(seed, 0) for seed in (0, 1, 17)] == [0, 1, 17]
    assert set(range(10_000)).isdisjoint(member_seed(seed, copy) for seed in range(200) for copy in range(1, 50))


def test_records_share_no_network(results: Results) -> None:
    for budget in BUDGETS:
        records = results.records_of(("ensemble", budget))
        keys = [key for record in records for key in record.networks]
        assert len(set(keys)) == len(keys) == budget * len(records)
    assert {record.seed for record in results.records if record.method == "ensemble"} == {0, 1, 2}
    small, large = (results.records_of(("ensemble", budget))[0] for budget in BUDGETS)
    assert small.networks == large.networks[:2]
    assert small.networks[0] == results.records_of(("mtl", None))[0].networks[0]


def test_the_losses_of_a_record_are_those_of_its_networks_averaged(results: Results) -> None:
    problem = make_problem()
    record = results.records_of(("ensemble", 2))[1]
    assert record.groups == tuple(Group(problem.names, problem.names, copy=copy) for copy in (0, 1))
    states = [train(problem, Job(problem.names, member_seed(record.seed, copy))).state or {} for copy in (0, 1)]
    retrained = Best.build(problem, record.groups, states, record.seed)
    expected = losses_of(retrained.predict(problem.test.inputs), problem)
    assert reported_losses(results, 2, record.seed) == pytest.approx(expected, rel=1e-4)


def test_every_network_is_counted_once(results: Results) -> None:
    (together,) = results.records_of(("mtl", None))[:1]
    for budget in BUDGETS:
        record = results.records_of(("ensemble", budget))[0]
        assert record.training.networks == budget
        assert record.deciding.networks == 0
        assert record.parameters == budget * together.parameters
        assert together.latency is not None
        assert record.latency == pytest.approx(budget * together.latency)


def test_the_rows_of_an_average_have_its_mean_loss(results: Results, folder: Path) -> None:
    record = results.records_of(("ensemble", 3))[0]
    with open_backend(make_problem(), folder, device="cpu") as backend:
        for part in ("val", "test"):
            rows = backend.row_losses(record, part)
            scores = getattr(record, part)
            assert {task: np.nanmean(one, dtype=float) for task, one in rows.items()} == pytest.approx(
                {task: scores[task].loss for task in rows}, rel=1e-6
            )
            assert np.isnan(rows["age"][::7]).all()
    assert ("ensemble", 3) in results.noise


class Committee(Method):
    """The network for all tasks, averaged with networks for single tasks."""

    name, budgeted, averages = "committee", False, True

    def decide(self, backend: Any, budgets: Any, seeds: Any) -> Decision:
        names = backend.tasks
        groups = (
            Group(names, names),
            Group({names[0]}, {names[0]}),
            Group(names[:2], {names[1]}, copy=4),
            Group(names[1:], {names[2]}),
        )
        return Decision.pooled({None: Choice(groups)}, seeds)


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Results:
    methods = ["mtl", Committee(), Students()]
    return Study(make_problem(), tmp_path_factory.mktemp("mixed"), device="cpu").run(methods, seeds=1)


TABM = {"encoder": TabM(4, (8,), dropout=0.1, members=3), "head": TabMHeads(3)}


@pytest.fixture(scope="module")
def tabm(tmp_path_factory: pytest.TempPathFactory) -> Results:
    """Copies of TabM, whose members are averaged within each copy."""
    return Study(make_problem(**TABM), tmp_path_factory.mktemp("tabm"), device="cpu").run(METHODS, [2], seeds=1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("label", "run"),
    [
        (("ensemble", 2), "results"),
        (("ensemble", 3), "results"),
        (("committee", None), "mixed"),
        (("students", None), "mixed"),
        (("ensemble", 2), "tabm"),
    ],
    ids=str,
)
def test_saved_and_exported_averages_give_the_reported_losses_in_another_process(
    request: pytest.FixtureRequest, tmp_path: Path, label: tuple[str, int | None], run: str
) -> None:
    found: Results = request.getfixturevalue(run)
    assert found.out is not None
    problem = make_problem(**TABM if run == "tabm" else {})
    best = Study(problem, found.out, device="cpu").best(*label)
    best.save(tmp_path)
    assert best.export(tmp_path / "export") == []
    torch.save(problem.test.inputs, tmp_path / "rows.pt")
    loaded = """
import sys, torch
from tagalong.study import Best
best, rows = Best.load(sys.argv[1]), torch.load(sys.argv[1] + "/rows.pt")
torch.save({"predict": best.predict(rows), "spread": best.spread(rows)}, sys.argv[1] + "/loaded.pt")
"""
    exported = """
import sys, torch
sys.modules["tagalong"] = None  # importing it fails
sys.path.insert(0, sys.argv[1] + "/export")
from load import load
networks, rows = load(), torch.load(sys.argv[1] + "/rows.pt")
torch.save({"predict": networks.predict(rows), "spread": networks.spread(rows)}, sys.argv[1] + "/exported.pt")
"""
    (record,) = [one for one in found.records_of(label) if one.seed == best.seed]
    expected = {task: score.loss for task, score in record.test.items()}
    assert losses_of(best.predict(problem.test.inputs), problem) == pytest.approx(expected, rel=1e-6)
    for script, file in ((loaded, "loaded.pt"), (exported, "exported.pt")):
        subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=True)
        answers = torch.load(tmp_path / file, weights_only=False)
        assert losses_of(answers["predict"], problem) == pytest.approx(expected, rel=1e-6)
        for task, spread in best.spread(problem.test.inputs).items():
            np.testing.assert_allclose(np.asarray(answers["spread"][task]), spread, rtol=1e-3, atol=1e-5)


def test_the_spread_is_the_standard_deviation_over_networks(results: Results, folder: Path) -> None:
    problem, best = make_problem(), best_of(folder, 2)
    singles = [
        Best((group,), (network,), best.tasks, best.seed, best.table, best.example, (layers,))
        for group, network, layers in zip(best.groups, best.networks, best.layers, strict=True)
    ]
    members = [single.predict(problem.test.inputs) for single in singles]
    for task, spread in best.spread(problem.test.inputs).items():
        first, second = (member[task].astype(np.float64) for member in members)
        np.testing.assert_allclose(spread, np.abs(first - second) / 2, rtol=1e-3, atol=1e-6)
        mean = best.predict(problem.test.inputs)[task]
        np.testing.assert_allclose(mean, (first + second) / 2, rtol=1e-5, atol=1e-6)
    for spread in singles[0].spread(problem.test.inputs).values():
        assert not spread.any()


class Refusing:
    """An executor that trains nothing."""

    def start(self, problem: Problem, device: str) -> None:
        raise AssertionError("a network would be trained")

    def map(self, chunks: Any, advance: Any) -> Any:
        raise AssertionError("a network would be trained")

    def stop(self) -> None:
        pass


def test_a_finished_run_trains_nothing_again(results: Results, folder: Path) -> None:
    study = Study(make_problem(), folder, device="cpu", executor=Refusing())
    again = study.run(METHODS, BUDGETS, seeds=2, confirm=1)
    assert [record.networks for record in again.records] == [record.networks for record in results.records]
    assert [record.test for record in again.records] == [record.test for record in results.records]


def test_a_run_of_other_methods_is_continued(tmp_path: Path) -> None:
    study = Study(make_problem(), tmp_path, device="cpu")
    old = study.run(["mtl"], seeds=2).records
    found = study.run(["mtl", "ensemble"], [2], seeds=2).records_of(("ensemble", 2))
    assert [record.networks[0] for record in found] == [record.networks[0] for record in old]
    with open_backend(make_problem(), tmp_path, device="cpu") as backend:
        assert len(backend.store) == 4


def test_weights_that_were_dropped_are_trained_again(tmp_path: Path) -> None:
    study = Study(make_problem(), tmp_path, device="cpu")
    before = study.run(["mtl", "ensemble"], [2], seeds=1)
    with open_backend(make_problem(), tmp_path, device="cpu") as backend:
        backend.store._connection.execute("UPDATE networks SET kept = 0")
    after = study.run(["mtl", "ensemble"], [2], seeds=1)
    for old, new in zip(before.records, after.records, strict=True):
        assert {task: score.loss for task, score in new.test.items()} == pytest.approx(
            {task: score.loss for task, score in old.test.items()}, rel=1e-6
        )


def test_the_average_of_a_task_changes_no_key() -> None:
    job = Job(("age", "ill", "kind"), 0)
    named = make_problem((replace(TASKS[0], average="outputs"), *TASKS[1:]))
    assert Keys(named, "cpu").of(job) == Keys(make_problem(), "cpu").of(job)


def test_documents_keep_copies_and_old_ones_are_unchanged(results: Results, tmp_path: Path) -> None:
    document = results.to_document()
    for record in document["records"]:
        copies = [group.get("copy") for group in record["groups"]]
        assert copies == ([None, 1, 2][: record["budget"]] if record["method"] == "ensemble" else [None] * len(copies))
    again = Results.load(results.save(tmp_path / "results.json"))
    assert [record.groups for record in again.records] == [record.groups for record in results.records]
    assert json.dumps(again.to_document()) == json.dumps(document)
    assert Group("ab", "a").to_document() == {"trains": ["a", "b"], "serves": ["a"], "cost": 1}


def test_a_network_averaged_with_itself_is_an_error_in_a_document(results: Results, tmp_path: Path) -> None:
    document = results.to_document()
    record = next(one for one in document["records"] if one["method"] == "ensemble")
    record["groups"][1]["copy"] = 0
    (tmp_path / "results.json").write_text(json.dumps(document))
    with pytest.raises(ValueError, match="must serve a task by different networks or copies"):
        Results.load(tmp_path)


def test_the_verdict_pairs_an_average_with_one_network_of_the_same_seed(results: Results) -> None:
    verdict = results.verdict()
    assert verdict.candidate is not None
    assert verdict.candidate[0] == "ensemble"
    assert verdict.row_stderr is not None
    (fresh,) = [record for record in results.records_of(verdict.candidate) if record.seed == 2]
    (together,) = [record for record in results.records_of(("mtl", None)) if record.seed == 2]
    assert verdict.estimate == pytest.approx(fresh.change(together))
    assert fresh.networks[0] == together.networks[0]
    assert verdict.training_cost == pytest.approx(fresh.training.steps / together.training.steps)


def conflicting_problem() -> Problem:
    """Two tasks that need different directions from an encoder with a single linear unit."""
    draw = torch.Generator().manual_seed(0)

    def some(rows: int) -> Split:
        inputs = torch.randn(rows, 4, generator=draw)
        noise = 0.3 * torch.randn(rows, 2, generator=draw)
        return Split(inputs, {"a": inputs[:, 0] + noise[:, 0], "b": inputs[:, 1] + noise[:, 1]})

    tasks = (Task("a", "regression"), Task("b", "regression"))
    recipe = Recipe(epochs=12, batch_size=32, lr=0.05)
    return Problem("conflict", tasks, some(200), some(200), some(300), partial(nn.Linear, 4, 1), recipe=recipe)


@pytest.fixture(scope="module")
def confirmed(tmp_path_factory: pytest.TempPathFactory) -> Results:
    study = Study(conflicting_problem(), tmp_path_factory.mktemp("confirmed"), device="cpu")
    methods = ["mtl", "stl", "best-of"]
    return study.run(methods, [2], seeds=2, confirm=3, effort=6)


def test_records_of_different_seeds_share_no_network(confirmed: Results) -> None:
    assert {record.seed for record in confirmed.records} == {0, 1, 2, 3, 4}
    for record in confirmed.records:
        others = {key for other in confirmed.records if other.seed != record.seed for key in other.networks}
        assert record.networks
        assert not others & set(record.networks), record.label


def test_fresh_seeds_compare_groups_with_one_network_and_with_copies(confirmed: Results) -> None:
    verdict = confirmed.verdict()
    assert verdict.candidate == ("stl", None)
    assert verdict.copies == ("best-of", 2)
    fresh = {record.label for record in confirmed.records if record.seed > 1}
    assert fresh == {("mtl", None), ("stl", None), ("best-of", 2)}
    stl, mtl, copies = (confirmed.records_of(label)[2:] for label in (("stl", None), ("mtl", None), ("best-of", 2)))
    assert verdict.confirmed
    assert verdict.estimate == pytest.approx(np.mean([one.change(other) for one, other in zip(stl, mtl, strict=True)]))
    by_hand = np.mean([one.change(other) for one, other in zip(stl, copies, strict=True)])
    assert verdict.change_from_copies is not None
    assert verdict.change_from_copies.estimate == pytest.approx(by_hand)
    assert verdict.better_than_copies is True
    assert {budget: one.label for budget, one in verdict.by_budget.items()} == {1: ("mtl", None), 2: ("stl", None)}
    assert verdict.by_budget[2].latency is not None


def test_best_of_picks_no_copies_for_fresh_seeds(confirmed: Results) -> None:
    """With fresh seeds, it is judged by its plan, any two copies, as other methods are."""
    first, second, *fresh = confirmed.records_of(("best-of", 2))
    assert all(record.deciding.networks == 3 for record in (first, second)), "6 for 2 seeds"
    assert [record.groups for record in fresh] == [first.groups] * 3


def test_the_noise_of_every_comparison_is_known_after_a_study(confirmed: Results) -> None:
    noise = confirmed.row_noise
    assert set(noise.recipe) == set(noise.networks) == {("stl", None), ("best-of", 2)}
    assert set(noise.copies) == set(noise.networks_from_copies) == {("stl", None)}
    verdict = confirmed.verdict()
    assert verdict.networks_from_copies is not None
    picked, copy = (picked_record(confirmed.records_of(label)) for label in (("stl", None), ("best-of", 2)))
    assert picked.seed == verdict.networks_seed
    assert verdict.networks_from_copies.estimate == pytest.approx(picked.change(copy))
    assert verdict.networks_from_copies.high - verdict.networks_from_copies.estimate == pytest.approx(
        1.959964 * noise.networks_from_copies["stl", None]
    )
    assert verdict.networks is not None
    half = 1.959964 * noise.networks["stl", None]
    assert verdict.networks.high - verdict.networks.estimate == pytest.approx(half)
    assert confirmed.best().seed == verdict.networks_seed
    assert confirmed.best().groups == verdict.groups


def test_a_larger_network_competes_with_two(tmp_path: Path) -> None:
    found = Study(make_problem(), tmp_path, device="cpu").run(["mtl", "mtl-big2", "ensemble"], [2], seeds=2)
    sizes = {label: one.size for label, one in find_candidates(by_label(found.records)).items()}
    assert sizes == {("mtl-big2", None): 2, ("ensemble", 2): 2}
    assert set(found.row_noise.copies) == {("mtl-big2", None)}
    together, wide = found.records_of(("mtl", None)), found.records_of(("mtl-big2", None))
    assert found.learning.p_values, "networks of both sizes are compared with the constant"
    assert [some[0].label for some in comparable_records(found.records)][:2] == [("mtl", None), ("mtl-big2", None)]
    assert not {one.networks for one in together} & {one.networks for one in wide}
    assert set(found.verdict().by_budget) == {1, 2}
    assert len(Study(make_problem(), tmp_path, device="cpu").best("mtl-big2").networks) == 1


def test_a_frame_counts_the_members_of_a_task(results: Results) -> None:
    frame = results.to_frame()
    members = frame.groupby(["method", "budget"], dropna=False)["members"].unique()
    assert {int(one) for one in members["ensemble", 3]} == {3}
    assert {int(one) for one in members["mtl"].iloc[0]} == {1}


def test_the_text_says_that_answers_are_averaged(results: Results) -> None:
    lines = networks_list(results.records_of(("ensemble", 2))[0].groups, 100)
    assert lines == [
        "  1. age, ill, kind",
        "  2. age, ill, kind (copy 1)",
        "  The answers of networks that serve the same task are averaged.",
    ]


def test_a_diverged_copy_makes_the_average_unknown(tmp_path: Path) -> None:
    problem = make_problem()
    with open_backend(problem, tmp_path, device="cpu") as backend:
        groups = [Group(problem.names, problem.names, copy=copy) for copy in (0, 1)]
        jobs = [backend.group_job(group, 0) for group in groups]
        keys = [result.key for result in backend.networks(jobs).values()]
        backend.store._connection.execute("UPDATE networks SET best_epoch = -1 WHERE key = ?", (keys[1],))
        assert all(np.isnan(one.loss) for one in backend.average_scores(groups, keys, "test").values())


def make_head(features: int) -> nn.Module:
    return nn.Sequential(nn.Linear(features, 1), nn.Flatten(0))


OWN = Task("age", "custom", loss=nn.MSELoss(reduction="none"), head=make_head)


def test_a_task_with_its_own_loss_must_name_its_average(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"'ensemble' needs to know how to average the answers .*'age' with a loss"):
        Study(make_problem((OWN, *TASKS[1:])), tmp_path, device="cpu").run(["ensemble"], [2], seeds=1)
    problem = make_problem((replace(OWN, average="outputs"), *TASKS[1:]))
    results = Study(problem, tmp_path, device="cpu").run(["ensemble"], [2], seeds=1)
    best = Study(problem, tmp_path, device="cpu").best("ensemble", 2)
    best.save(tmp_path)
    predicted = Best.load(tmp_path, trust=True).predict(problem.test.inputs)["age"]
    loss = np.nanmean((predicted.astype(float) - problem.test.targets["age"].numpy()) ** 2)
    assert loss == pytest.approx(results.records_of(("ensemble", 2))[0].test["age"].loss, rel=1e-6)


def test_networks_of_different_tasks_may_be_averaged(mixed: Results) -> None:
    problem = make_problem()
    assert mixed.out is not None
    best = Study(problem, mixed.out, device="cpu").best("committee")
    (record,) = mixed.records_of(("committee", None))
    found = losses_of(best.predict(problem.test.inputs), problem)
    assert found == pytest.approx({task: score.loss for task, score in record.test.items()}, rel=1e-6)
    (together,) = mixed.records_of(("mtl", None))
    assert all(record.test[task].loss != together.test[task].loss for task in problem.names)


class Repeats(Committee):
    name = "repeats"

    def decide(self, backend: Any, budgets: Any, seeds: Any) -> Decision:
        groups = (Group(backend.tasks, backend.tasks),) * 2
        return Decision.pooled({None: Choice(groups)}, seeds)


def test_a_network_is_not_averaged_with_itself(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="the groups of 'repeats' must serve a task by different networks"):
        Study(make_problem(), tmp_path, device="cpu").run(["mtl", Repeats()], seeds=1)


@pytest.mark.cuda
def test_averages_on_a_gpu_give_the_losses_of_their_predictions(tmp_path: Path) -> None:
    problem = make_problem()
    study = Study(problem, tmp_path, device="cuda")
    results = study.run(["mtl", "ensemble"], [2], seeds=1)
    found = losses_of(study.best("ensemble", 2).predict(problem.test.inputs), problem)
    assert found == pytest.approx(reported_losses(results, 2, 0), rel=1e-5)


@pytest.fixture(scope="module")
def best_of_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of `best-of` with five copies for each seed."""
    out = tmp_path_factory.mktemp("best-of")
    options = {"best-of": {"copies": 5}}
    Study(make_problem(), out, device="cpu").run(["mtl", "best-of"], [1, 2, 3, 6], seeds=2, options=options)
    return out


def test_best_of_averages_the_copies_that_are_best_together_on_validation(best_of_folder: Path) -> None:
    problem, results = make_problem(), Results.load(best_of_folder)
    for seed in (0, 1):
        states = [train(problem, Job(problem.names, member_seed(seed, copy))).state or {} for copy in range(5)]
        whole = Group(problem.names, problem.names)
        members = [Best.build(problem, [whole], [state], seed).predict(problem.val.inputs) for state in states]

        def value(chosen: Any, members: Any = members) -> float:
            mean = {task: np.mean([members[copy][task] for copy in chosen], axis=0) for task in problem.names}
            losses = losses_of(mean, problem, "val")
            single = [losses_of(member, problem, "val") for member in members]
            return float(np.mean([losses[task] / np.mean([one[task] for one in single]) for task in losses]))

        for budget in (1, 2, 3):
            (record,) = [one for one in results.records_of(("best-of", budget)) if one.seed == seed]
            best = min(combinations(range(5), budget), key=value)
            assert tuple(group.copy for group in record.groups) == best
            assert (record.deciding.networks, record.training.networks) == (5, budget)


def test_a_budget_above_the_number_of_copies_averages_as_many_copies(best_of_folder: Path) -> None:
    for record in Results.load(best_of_folder).records_of(("best-of", 6)):
        assert [group.copy for group in record.groups] == list(range(6))
        assert (record.deciding.networks, record.training.networks) == (5, 6)


def test_a_continued_best_of_trains_nothing_again_not_even_for_another_budget(best_of_folder: Path) -> None:
    before = Results.load(best_of_folder)
    study = Study(make_problem(), best_of_folder, device="cpu", executor=Refusing())
    options = {"best-of": {"copies": 5}}
    after = study.run(["mtl", "best-of"], [1, 2, 3, 5, 6], seeds=2, options=options)
    for budget in (1, 2, 3, 6):
        label = ("best-of", budget)
        assert [one.networks for one in after.records_of(label)] == [one.networks for one in before.records_of(label)]


def test_best_of_needs_a_number_of_copies(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="`copies` of 'best-of' must be a positive integer, found 0"):
        Study(make_problem(), tmp_path).run(["best-of"], [2], options={"best-of": {"copies": 0}})
    with pytest.raises(InvalidInput, match=r"`effort` must be a number of training runs .*, found 'much'"):
        Study(make_problem(), tmp_path).run(["best-of"], [2], effort="much")


def test_auto_and_best_of_spend_the_same_number_of_trainings(tmp_path: Path) -> None:
    results = Study(make_problem(), tmp_path, device="cpu").run(["auto", "best-of"], [2], seeds=3, effort=7)
    about = results.settings["decisions"]
    assert about["auto"]["effort"] == about["best-of"]["trainings"] == 7
    assert about["best-of"]["copies"] == [3, 2, 2]
    assert [record.deciding.networks for record in results.records_of(("best-of", 2))] == [3, 2, 2]
    sentence = "auto and best-of each spend 7 trainings on deciding; best-of chooses from 2 or 3 copies"
    assert sentence in " ".join(str(results).split())


def test_a_single_copy_per_seed_is_named_as_such() -> None:
    decision = Decision({}, about={"copies": [1, 1], "trainings": 2})
    (note,) = effort_notes({"best-of": (BestOf(), decision)})
    assert note == "best-of spends 2 trainings on deciding; best-of chooses from 1 copy of one network for each seed."


class Timed(Backend):
    """A backend in which every training takes the same time."""

    def find_results(self, jobs: Any, what: str) -> Any:
        return {job: NetworkResult(job, {}, {}, 10, 0.5, 1) for job in jobs}

    def measure_affinity(self, seeds: Any, settings: Any, method: str = "") -> Any:
        raise NotImplementedError


@pytest.mark.parametrize(
    ("effort", "copies"), [("10s", [7, 7, 6]), ("1min", [40] * 3), ("quick", [7, 7, 6]), (1, [1] * 3), (7.9, [3, 2, 2])]
)
def test_an_effort_is_shared_by_all_seeds(effort: Any, copies: list[int]) -> None:
    assert list(BestOf(effort=effort)._copies_by_seed(Timed("ab"), [0, 1, 2]).values()) == copies


def mean_error(errors: Any) -> Any:
    """A function that returns the mean squared error of the average of each set of networks."""
    return lambda sets: (errors[sets].mean(1) ** 2).mean(1)


@pytest.mark.parametrize("size", [1, 2, 3])
def test_few_sets_are_all_compared(size: int) -> None:
    values = mean_error(np.random.default_rng(size).normal(size=(8, 30)))
    sets = list(combinations(range(8), size))
    assert best_set(values, 8, size) == min(sets, key=lambda chosen: values(np.array([chosen]))[0])


@pytest.mark.parametrize("seed", range(10))
def test_the_local_search_finds_the_best_set_or_one_that_is_almost_as_good(
    monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    values = mean_error(rng.normal(size=(1, 40)) + rng.normal(size=(12, 40)) * rng.uniform(0.5, 1.5, size=(12, 1)))
    every = values(np.array(list(combinations(range(12), 3))))
    monkeypatch.setattr(ensemble, "MAX_ENUMERATED_SETS", 0)
    chosen = best_set(values, 12, 3)
    value = values(np.array([chosen]))[0]
    swapped = [{*chosen} - {member} | {other} for member in chosen for other in range(12) if other not in chosen]
    assert value <= values(np.array([sorted(one) for one in swapped])).min()
    assert value <= 1.05 * every.min()
    assert np.mean(every < value) <= 0.02


def test_outputs_are_those_of_the_trained_networks(tmp_path: Path) -> None:
    problem = make_problem()
    with open_backend(problem, tmp_path, device="cpu") as backend:
        jobs = [backend.job(problem.names, 0), backend.job(["age", "kind"], 1)]
        found, targets = backend.outputs(jobs, "val"), backend.targets("val")
        for job in jobs:
            network = build_network(problem, job.tasks, job.seed)
            network.load_state_dict(backend.weights(backend.keys.of(job)))
            expected = network.eval()(problem.val.inputs)
            assert list(found[job]) == list(job.tasks)
            for task, values in found[job].items():
                torch.testing.assert_close(values, expected[task].detach(), rtol=0, atol=0)
        torch.testing.assert_close(targets["age"], problem.val.targets["age"], equal_nan=True)
        scores = backend.average_scores(
            [Group(job.tasks, job.tasks) for job in jobs], backend_keys(backend, jobs), "val"
        )
        for task in ("age", "kind"):
            averaging = problem.task(task).averaging
            assert averaging is not None
            outputs = average_outputs([found[job][task] for job in jobs], averaging)
            loss = score_outputs(problem.task(task), outputs, targets[task]).loss
            assert loss == pytest.approx(scores[task].loss, rel=1e-12)


def backend_keys(backend: Any, jobs: Any) -> list[str]:
    return [result.key for result in backend.networks(jobs).values()]


@pytest.mark.parametrize("larger", ["outputs", "weights"])
def test_outputs_are_known_after_pruning(tmp_path: Path, larger: str) -> None:
    problem = replace(make_problem(), encoder=MLP(4, (1,) if larger == "outputs" else (64,)))
    with open_backend(problem, tmp_path, device="cpu") as backend:
        job = backend.job(problem.names, 0)
        before = backend.outputs([job], "train")
    with open_backend(problem, tmp_path, device="cpu", executor=Refusing()) as backend:
        key = backend.keys.of(job)
        assert (backend.store.outputs(key, "train") is None) == (larger == "outputs")
        assert (backend.store.weights(key) is None) == (larger == "weights")
        after = backend.outputs([job], "train")
    for task, values in before[job].items():
        torch.testing.assert_close(after[job][task], values, rtol=0, atol=0)


def test_networks_trained_elsewhere_have_no_outputs() -> None:
    with pytest.raises(InvalidInput, match="must not need the outputs of networks"):
        Timed("ab").outputs([], "val")
    with pytest.raises(InvalidInput, match="must not need the targets"):
        Timed("ab").targets("val")
