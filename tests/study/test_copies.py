"""Copies of a network are averaged: with which seeds they train, how they are scored, saved and resumed."""

from dataclasses import replace
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.stats
import torch
from exported import load_exported
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
    first_half,
    skill_units,
    train,
)
from tagalong.study import (
    Best,
    Choice,
    Decision,
    Method,
    Results,
    Runner,
    Store,
    Study,
    make_method,
    open_runner,
)
from tagalong.study.keys import Keys
from tagalong.study.members import member_seed
from tagalong.study.methods.ensemble import copies

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
    return Study(make_problem(), folder, device="cpu").run(METHODS, BUDGETS, seeds=2)


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


def test_records_share_no_network(results: Results) -> None:
    for budget in BUDGETS:
        records = results.records_of(("ensemble", budget))
        keys = [key for record in records for key in record.networks]
        assert len(set(keys)) == len(keys) == budget * len(records)
    small, large = (results.records_of(("ensemble", budget))[0] for budget in BUDGETS)
    assert small.networks == large.networks[:2]
    assert small.networks[0] == results.records_of(("mtl", None))[0].networks[0]


def test_every_network_is_counted_once(results: Results) -> None:
    (together,) = results.records_of(("mtl", None))[:1]
    for budget in BUDGETS:
        record = results.records_of(("ensemble", budget))[0]
        assert (record.training.networks, record.deciding.networks) == (budget, 0)
        assert record.parameters == budget * together.parameters
        assert record.latency == pytest.approx(budget * together.latency)
    members = results.to_frame().groupby(["method", "budget"], dropna=False)["members"].first()
    assert [members["mtl"].item(), members["ensemble", 2], members["ensemble", 3]] == [1, 2, 3]


def test_the_rows_of_an_average_have_its_mean_loss(results: Results, folder: Path) -> None:
    record = results.records_of(("ensemble", 3))[0]
    with open_runner(make_problem(), folder, device="cpu") as runner:
        for part in ("val", "test"):
            rows = runner.row_losses(record, part)
            scores = getattr(record, part)
            assert {task: np.nanmean(one, dtype=float) for task, one in rows.items()} == pytest.approx(
                {task: scores[task].loss for task in rows}, rel=1e-6
            )
            assert np.isnan(rows["age"][::7]).all()


class Committee(Method):
    """The network for all tasks, averaged with networks for single tasks."""

    name, budgeted, averages = "committee", False, True

    def decide(self, runner: Any, budgets: Any, seeds: Any) -> Decision:
        names = runner.tasks
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


@pytest.mark.parametrize(
    ("label", "run"),
    [
        (("ensemble", 3), "results"),
        (("committee", None), "mixed"),
        (("students", None), "mixed"),
        (("ensemble", 2), "tabm"),
    ],
    ids=str,
)
def test_saved_and_exported_averages_give_the_reported_losses(
    request: pytest.FixtureRequest, tmp_path: Path, label: tuple[str, int | None], run: str
) -> None:
    results: Results = request.getfixturevalue(run)
    problem = make_problem(**TABM if run == "tabm" else {})
    best = Study(problem, results.out, device="cpu").best(*label)
    best.save(tmp_path)
    best.export(tmp_path / "export")
    rows, spread = problem.test.inputs, best.spread(problem.test.inputs)
    (record,) = [record for record in results.records_of(label) if record.seed == best.seed]
    reported = {task: score.loss for task, score in record.test.items()}
    for networks in (best, Best.load(tmp_path), load_exported(tmp_path / "export")):
        assert losses_of(networks.predict(rows), problem) == pytest.approx(reported, rel=1e-6)
    for task, deviation in Best.load(tmp_path).spread(rows).items():
        np.testing.assert_allclose(deviation, spread[task], rtol=1e-3, atol=1e-5)


def test_the_spread_is_the_standard_deviation_over_networks(results: Results, folder: Path) -> None:
    problem, best = make_problem(), best_of(folder, 2)
    singles = [
        Best((group,), (network,), best.tasks, best.seed, best.table, best.example, (layers,), (1.0,))
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


def test_the_average_of_a_task_changes_no_key() -> None:
    job = Job(("age", "ill", "kind"), 0)
    named = make_problem((replace(TASKS[0], average="outputs"), *TASKS[1:]))
    assert Keys(named, "cpu").of(job) == Keys(make_problem(), "cpu").of(job)


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


def test_fresh_seeds_judge_the_recipe(confirmed: Results) -> None:
    verdict = confirmed.verdict()
    assert (verdict.recommended, verdict.reference, verdict.seeds) == (("stl", None), ("mtl", None), 3)
    for record in confirmed.records:
        others = {key for other in confirmed.records if other.seed != record.seed for key in other.networks}
        assert not others & set(record.networks), record.label
    fresh = [confirmed.records_of(label)[2:] for label in (("stl", None), ("mtl", None))]
    skills = np.array([[confirmed.scale.mean(record) for record in records] for records in fresh])
    assert skills.shape == (2, 3)
    assert verdict.recipe.estimate == pytest.approx((skills[0] - skills[1]).mean(), rel=1e-5)
    assert len(confirmed.records_of(("best-of", 2))) == 2, "only what is recommended is trained again"


def test_the_gain_of_the_networks_that_you_get_is_computed_by_hand(confirmed: Results) -> None:
    """Every quantity again, from the files of the run and by loops over rows."""
    verdict, problem = confirmed.verdict(), conflicting_problem()
    label, seed = verdict.chosen.label, verdict.chosen.seed
    record = next(one for one in confirmed.records_of(label) if one.seed == seed)
    plain = confirmed.records_of(("mtl", None))[:2]
    train = {task: problem.train.targets[task].double().numpy() for task in ("a", "b")}
    parts = [problem.train, problem.val, problem.test]
    mine, theirs = np.zeros(300), np.zeros((2, 300))
    with Store(confirmed.out / "run.sqlite") as store, Runner(problem, store) as runner:
        for task, labels in train.items():
            everything = np.concatenate([part.targets[task].double().numpy() for part in parts])
            unit = np.mean((everything - labels.mean()) ** 2)
            constant = (problem.test.targets[task].double().numpy() - labels.mean()) ** 2
            mine += (constant - runner.row_losses(record)[task]) / unit / 2
            for place, one in enumerate(plain):
                theirs[place] += (constant - runner.row_losses(one)[task]) / unit / 2
    difference = mine - theirs.mean(0)
    by_seed = theirs.mean(1)
    rows, seeds = difference.std(ddof=1) / np.sqrt(300), by_seed.std(ddof=1) / np.sqrt(2)
    welch = scipy.stats.t.ppf(0.975, (rows**2 + seeds**2) ** 2 / seeds**4) * np.hypot(rows, seeds)
    assert verdict.gain.estimate == pytest.approx(difference.mean(), rel=1e-4)
    assert verdict.gain.high - verdict.gain.estimate == pytest.approx(max(welch, 12.7062 * seeds), rel=1e-3)
    assert verdict.skill == pytest.approx(mine.mean(), rel=1e-4)
    assert confirmed.best().groups == verdict.groups
    assert confirmed.best().seed == seed


def test_a_copy_is_picked_on_one_half_of_the_rows_and_judged_on_the_other(tmp_path: Path) -> None:
    problem = conflicting_problem()
    with open_runner(problem, tmp_path, device="cpu") as runner:
        choice = make_method("best-of", {"best-of": {"copies": 5}}).decide(runner, [1], [0]).choices[1, 0]
        jobs = [runner.group_job(group, 0) for group in copies(problem.names, range(5))]
        outputs = runner.outputs(jobs, "val")
    losses = {}
    for task in problem.names:
        answers = np.stack([outputs[job][task].double().numpy().reshape(-1) for job in jobs])
        losses[task] = (answers - problem.val.targets[task].double().numpy()) ** 2
    first = first_half(200, None).numpy()
    for half, other in ((first, ~first), (~first, first)):
        units = skill_units(problem)
        best = np.argmin(sum(losses[task][:, other].mean(1) / units[task] for task in problem.names))
        for task in problem.names:
            np.testing.assert_allclose(choice.val_rows[task][half], losses[task][best, half], rtol=1e-6)


def make_head(features: int) -> nn.Module:
    return nn.Sequential(nn.Linear(features, 1), nn.Flatten(0))


OWN = Task("age", "custom", loss=nn.MSELoss(reduction="none"), head=make_head)


def test_a_task_with_its_own_loss_must_name_its_average(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"'ensemble' needs to know how to average the answers .*'age' with a loss"):
        Study(make_problem((OWN, *TASKS[1:])), tmp_path, device="cpu").run(["ensemble"], [2], seeds=1)
    study = Study(make_problem((replace(OWN, average="outputs"), *TASKS[1:])), tmp_path, device="cpu")
    results = study.run(["ensemble"], [2], seeds=1)
    predicted = study.best("ensemble", 2).predict(study.problem.test.inputs)["age"]
    loss = np.nanmean((predicted.astype(float) - study.problem.test.targets["age"].numpy()) ** 2)
    assert loss == pytest.approx(results.records_of(("ensemble", 2))[0].test["age"].loss, rel=1e-6)


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
    units = skill_units(problem)
    for seed in (0, 1):
        states = [train(problem, Job(problem.names, member_seed(seed, copy))).state or {} for copy in range(5)]
        whole = Group(problem.names, problem.names)
        members = [Best.build(problem, [whole], [state], seed).predict(problem.val.inputs) for state in states]

        def value(chosen: Any, members: Any = members) -> float:
            mean = {task: np.mean([members[copy][task] for copy in chosen], axis=0) for task in problem.names}
            losses = losses_of(mean, problem, "val")
            return sum(losses[task] / units[task] for task in losses)

        for budget in (1, 2, 3):
            (record,) = [one for one in results.records_of(("best-of", budget)) if one.seed == seed]
            best = min(combinations(range(5), budget), key=value)
            assert tuple(group.copy for group in record.groups) == best
            assert (record.deciding.networks, record.training.networks) == (5, budget)
    for record in results.records_of(("best-of", 6)):
        assert [group.copy for group in record.groups] == list(range(6)), "as many as the budget, though 5 were tried"
