"""Networks trained elsewhere that tell predictions: losses, averages of copies, resuming, and errors."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from external_predictions import (
    NAMES,
    ROWS,
    TARGETS,
    TASKS,
    expected_losses,
    losses,
    predictions_of,
    tell_all,
)

from tagalong.errors import InvalidInput
from tagalong.group import Group
from tagalong.learn import MLP, Problem, Recipe, Split, Task, outputs_on
from tagalong.study import ExternalStudy, Results, Study, open_runner, store
from tagalong.study.members import member_seed, serving_network
from tagalong.study.store import pack_tensors

METHODS, OPTIONS = ["stl", "ensemble", "best-of"], {"best-of": {"copies": 4}}


def planned_study(out: Path | None = None) -> ExternalStudy:
    study = ExternalStudy(TASKS, out, targets=TARGETS)
    study.plan(methods=METHODS, budgets=[2, 3], seeds=2, options=OPTIONS)
    return study


@pytest.fixture(scope="module")
def results() -> Results:
    study = planned_study()
    tell_all(study)
    return study.results()


def test_every_copy_is_a_network_with_a_seed_of_its_own() -> None:
    study = planned_study()
    pending = study.pending()
    copies = [(NAMES, member_seed(seed, copy)) for seed in (0, 1) for copy in range(4)]
    alone = [((task,), seed) for seed in (0, 1) for task in NAMES]
    assert len(pending) == len(set(pending))
    assert set(pending) == {*copies, *alone}
    assert pending[0] == (NAMES, 0)
    assert tell_all(study) == len(pending)


@pytest.mark.parametrize("part", ["val", "test"])
def test_losses_are_those_of_the_mean_prediction(results: Results, part: str) -> None:
    for record in results.records:
        members = [
            {task: values for task, values in predicted.items() if task in group.serves}
            for group in record.groups
            for predicted in [
                predictions_of([t for t in NAMES if t in group.trains], member_seed(record.seed, group.copy), part)
            ]
        ]
        found = {task: score.loss for task, score in getattr(record, part).items()}
        assert found == pytest.approx(expected_losses(members, part), rel=1e-12)
    ensemble = results.records_of(("ensemble", 3))[0]
    assert ensemble.groups == tuple(Group(NAMES, NAMES, copy=copy) for copy in range(3))
    assert ensemble.training.networks == 3
    assert all(len(record.groups) == 2 for record in results.records_of(("best-of", 2)))
    assert results.records_of(("best-of", 2))[0].deciding.networks == 4


def test_errors_rows_and_noise_are_known(results: Results) -> None:
    (record, _) = results.records_of(("mtl", None))
    age = np.abs(predictions_of(NAMES, 0, "test")["age"] - TARGETS["test"]["age"])
    assert record.test["age"].error == pytest.approx(np.nanmean(age))
    right = predictions_of(NAMES, 0, "test")["kind"].argmax(1) == TARGETS["test"]["kind"]
    assert record.test["kind"].error == pytest.approx(1 - right.mean())
    copies = {(method, budget) for method in ("ensemble", "best-of") for budget in (2, 3)}
    assert {way.label for way in results.verdict().ways} == {("mtl", None), ("stl", None), *copies}
    assert results.problem.rows == ROWS
    assert all(answer.learnt for answer in results.verdict().per_task)


def test_a_study_that_is_continued_gives_identical_results(results: Results, tmp_path: Path) -> None:
    assert sum(tell_all(planned_study(tmp_path), limit) for limit in (1, 4, 100)) == 14
    again = ExternalStudy(NAMES, tmp_path)  # the targets are in the folder
    assert again.ask() is None
    assert again.results().records == results.records
    assert Results.load(tmp_path).verdict() == results.verdict()


def test_a_continued_study_knows_everything_about_its_tasks(tmp_path: Path) -> None:
    labels = {part: {name: np.arange(10.0) for name in "ab"} for part in ROWS}
    tasks = [Task("a", "regression", weight=2.0, constant_loss=5.0), Task("b", "regression", error="mae")]
    study = ExternalStudy(tasks, tmp_path, targets=labels)
    study.plan(methods=["stl"], seeds=1)
    study.tell(["a", "b"], 0, val=labels["val"], test=labels["test"])
    again = ExternalStudy.load(tmp_path)
    assert again.pending() == [(("a",), 0), (("b",), 0)]


def test_a_process_that_is_killed_while_it_tells_leaves_the_network_pending(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for written in range(3):  # losses, and answers on validation and test rows
        study = planned_study(tmp_path)
        left = [written]

        def pack(tensors: Any, left: list[int] = left) -> bytes:
            if not left[0]:
                raise KeyboardInterrupt
            left[0] -= 1
            return pack_tensors(tensors)

        told = {part: predictions_of(NAMES, 0, part) for part in ROWS}
        with monkeypatch.context() as patch:
            patch.setattr(store, "pack_tensors", pack)
            with pytest.raises(KeyboardInterrupt):
                study.tell(NAMES, 0, **told)
        assert (NAMES, 0) in ExternalStudy(NAMES, tmp_path).pending()


def make_problem() -> Problem:
    draw = torch.Generator().manual_seed(0)

    def some(rows: int) -> Split:
        inputs = torch.randn(rows, 4, generator=draw)
        age = inputs[:, 0] + 0.5 * torch.randn(rows, generator=draw)
        age[::7] = torch.nan
        targets = {"age": age, "ill": (inputs[:, 1] > 0).float(), "kind": inputs[:, 1:].argmax(1).float()}
        return Split(inputs, targets)

    recipe = Recipe(epochs=3, batch_size=32, lr=0.02)
    return Problem("toy", TASKS, some(120), some(60), some(80), MLP(4, (8,), dropout=0.1), recipe=recipe)


def test_predictions_of_a_study_give_the_results_of_the_study(tmp_path: Path) -> None:
    problem = make_problem()
    expected = Study(problem, tmp_path, device="cpu").run(["mtl", "stl", "ensemble"], [2, 3], seeds=2)
    targets = {part: {task: problem.splits[part].targets[task] for task in NAMES} for part in ("val", "test")}
    study = ExternalStudy(problem.tasks, targets=targets, logits=True)
    study.plan(methods=["stl", "ensemble"], budgets=[2, 3], seeds=2)
    with open_runner(problem, tmp_path, device="cpu") as runner:
        while (network := study.ask()) is not None:
            job = runner.job(*network)
            (result,) = runner.networks([job]).values()
            tasks, seed = network
            built = serving_network(problem, Group(tasks, tasks), runner.weights(result.key), seed)
            predicted = {part: outputs_on(built, problem.splits[part].inputs) for part in ("val", "test")}
            study.tell(tasks, seed, **predicted, steps=result.steps, seconds=1.0, parameters=result.parameters)
    results = study.results()
    for part in ("val", "test"):
        for key, found in losses(results, part).items():
            assert found == pytest.approx(losses(expected, part)[key], rel=1e-6)
    ours, theirs = results.verdict(), expected.verdict()
    assert (ours.recommended, ours.groups) == (theirs.recommended, theirs.groups)
    assert ours.reference == theirs.reference


def test_auto_works_with_predictions() -> None:
    study = ExternalStudy(TASKS, targets=TARGETS)
    study.plan(methods=["auto"], budgets=[2], seeds=2, effort=6)
    tell_all(study)
    assert {record.method for record in study.results().records} == {"mtl", "auto"}


def test_a_copy_that_diverged_makes_the_average_unknown(tmp_path: Path) -> None:
    study = planned_study(tmp_path)
    lost = NAMES, member_seed(1, 2)
    study.tell(*lost, val=None, test=None)
    tell_all(study)
    for found in (study.results(), ExternalStudy(NAMES, tmp_path).results()):
        diverged = {(record.method, record.budget, record.seed) for record in found.records if record.diverged}
        assert diverged == {("ensemble", 3, 1)}
        compared = {way.label for way in found.verdict().ways}
        assert ("ensemble", 2) in compared
        assert ("ensemble", 3) not in compared
        assert all(group.copy != 2 for group in found.records_of(("best-of", 3))[1].groups)


def test_copies_of_a_seed_with_which_mtl_diverged_are_not_requested() -> None:
    study = planned_study()
    study.tell(NAMES, 1, val=None, test=None)
    assert tell_all(study) == 7  # of 14
    assert {record.seed for record in study.results().records} == {0}


def test_certain_predictions_have_no_loss() -> None:
    labels = {"ill": np.array([0.0, 1.0, np.nan]), "kind": np.array([0, 2, 1])}
    tasks = [Task("ill"), Task("kind", "multiclass", classes=3)]
    study = ExternalStudy(tasks, targets={"val": labels, "test": labels})
    study.plan(methods=["mtl"], seeds=1)
    told = {"ill": [0, 1, 0.5], "kind": np.eye(3)[[0, 2, 1]]}
    study.tell(["ill", "kind"], 0, val=told, test=told)
    (record,) = study.results().records
    assert [score.loss for score in record.test.values()] == pytest.approx([0.0, 0.0], abs=1e-300)


def test_dense_targets_are_averaged() -> None:
    depth = np.random.default_rng(0).normal(size=(20, 3, 4))
    depth[0] = np.nan
    study = ExternalStudy([Task("depth", "regression")], targets={part: {"depth": depth} for part in ROWS})
    study.plan(methods=["ensemble"], budgets=[1], seeds=1)
    ((tasks, seed),) = study.pending()
    told = {"depth": np.nan_to_num(depth) + np.random.default_rng(1).normal(size=depth.shape)}
    study.tell(tasks, seed, val=told, test=told)
    loss = study.results().records_of(("mtl", None))[0].test["depth"].loss
    assert loss == pytest.approx(np.mean((told["depth"] - depth)[1:] ** 2))


def wrong(part: str = "val", task: str = "ill", **change: Any) -> dict[str, Any]:
    """Returns predictions for all tasks of which those of one task were changed."""
    told = {one: predictions_of(NAMES, 0, one) for one in ROWS}
    told[part][task] = change["to"]
    return told


PROBABILITIES = predictions_of(NAMES, 0, "val")


@pytest.mark.parametrize(
    ("told", "place"),
    [
        (wrong(to=np.full(10, 0.5)), "`val`: the predictions for 'ill'"),
        (wrong(to=PROBABILITIES["ill"] * 2), "'ill'"),
        (wrong(to=-PROBABILITIES["ill"]), "'ill'"),
        (wrong(to=PROBABILITIES["ill"] * np.nan), "'ill'"),
        (wrong(to=np.ones(120)), "'ill'"),
        (wrong(to=0.3), "'ill'"),
        (wrong(to="low"), "'ill'"),
        (wrong(task="kind", to=PROBABILITIES["kind"][:, :2]), "'kind'"),
        (wrong(task="kind", to=PROBABILITIES["kind"] / 2), "'kind'"),
        (wrong("test", "age", to=np.full(90, 1e100)), "`test`: the predictions for 'age'"),
        ({"val": {}, "test": {}}, "`val`"),
        ({"val": None, "test": {}}, "`val`"),
        ({**wrong(to=PROBABILITIES["ill"]), "rows": {}}, "`rows`"),
    ],
)
def test_invalid_predictions_are_rejected(told: dict[str, Any], place: str) -> None:
    study = planned_study()
    with pytest.raises(InvalidInput) as caught:
        study.tell(NAMES, 0, **told)
    assert place in str(caught.value.argument)
    assert (NAMES, 0) in study.pending()


OWN = Task("age", "regression", loss=torch.nn.L1Loss(reduction="none"))


def changed(part: str, task: str, labels: Any) -> dict[str, Any]:
    return {one: {**TARGETS[one], **({task: labels} if one == part else {})} for one in TARGETS}


@pytest.mark.parametrize(
    ("targets", "place"),
    [
        (changed("val", "ill", np.full(120, 2.0)), "`targets`: 'val', 'ill'"),
        (changed("val", "kind", np.full(120, 3)), "'val', 'kind'"),
        (changed("test", "kind", np.full(90, 0.5)), "'test', 'kind'"),
        (changed("test", "age", np.full(90, np.nan)), "'test', 'age'"),
        (changed("test", "age", np.ones(89)), "'test'"),
        (changed("val", "kind", np.ones((120, 3))), "'val', 'kind'"),
        (changed("val", "age", ["x"] * 120), "'val', 'age'"),
        ({"val": TARGETS["val"]}, "targets"),
        ({**TARGETS, "train": {}}, "targets"),
        ({**TARGETS, "val": {"age": [1.0]}}, "'val'"),
    ],
)
def test_invalid_targets_are_rejected(targets: Any, place: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        ExternalStudy(TASKS, targets=targets)
    assert place in str(caught.value.argument)


@pytest.mark.parametrize(
    ("tasks", "options", "argument"),
    [
        (NAMES, {"targets": TARGETS}, "tasks"),
        ([OWN, *TASKS[1:]], {"targets": TARGETS}, "'age'"),
        (NAMES, {"logits": True}, "logits"),
        ("age", {}, "tasks"),
        ([], {}, "tasks"),
        (["age", "age"], {}, "tasks"),
        (["age", 3], {}, "tasks"),
    ],
)
def test_invalid_tasks_are_rejected(tasks: Any, options: dict[str, Any], argument: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        ExternalStudy(tasks, **options)
    assert argument in str(caught.value.argument)


def test_other_targets_than_those_of_the_folder_are_rejected(tmp_path: Path) -> None:
    planned_study(tmp_path)
    with pytest.raises(InvalidInput, match="`targets`"):
        ExternalStudy(TASKS, tmp_path, targets=changed("val", "age", np.arange(120.0)))
