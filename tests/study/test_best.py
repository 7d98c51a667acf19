"""The recommended networks reproduce their measured losses, from the run's folder alone and without tagalong."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from exported import load_exported
from torch import Tensor, nn

from tagalong.errors import InvalidInput
from tagalong.files import DocumentError
from tagalong.group import Group
from tagalong.learn import MLP, Job, Problem, Recipe, Split, Task, Trained, build_network, train
from tagalong.study import Best, Study

TASKS = (Task("age", "regression"), Task("ill"), Task("kind", "multiclass", classes=3))
GROUPS = (Group({"age", "ill"}, {"age"}), Group({"ill", "kind"}, {"ill", "kind"}))
SCALE = (50.0, 10.0)


class Doubling(nn.Module):
    """A user-defined layer with a buffer that is not part of the state."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("twice", torch.tensor(2.0), persistent=False)

    def forward(self, rows: Tensor) -> Tensor:
        return rows * self.twice


class Unexportable(nn.Module):
    """Branches on the values of its input."""

    def forward(self, rows: Tensor) -> Tensor:
        return rows if rows.sum().item() > 1e9 else rows + len(rows.tolist())


def make_problem(extra: nn.Module | None = None) -> Problem:
    draw = torch.Generator().manual_seed(0)

    def some(rows: int) -> Split:
        inputs = torch.randn(rows, 4, generator=draw)
        kind = inputs[:, 1:].argmax(1).float()
        return Split(inputs, {"age": inputs[:, 0], "ill": (inputs[:, 1] > 0).float(), "kind": kind})

    def encoder() -> nn.Module:
        return nn.Sequential(MLP(4, (8,), dropout=0.1)(), extra or Doubling(), nn.BatchNorm1d(8))

    recipe = Recipe(epochs=3, batch_size=32, lr=0.02)
    return Problem("toy", TASKS, some(120), some(60), some(60), encoder, recipe=recipe, scales={"age": SCALE})


@pytest.fixture(scope="module")
def problem() -> Problem:
    return make_problem()


@pytest.fixture(scope="module")
def trained(problem: Problem) -> list[Trained]:
    return [train(problem, Job(tuple(sorted(group.trains)), seed=1)) for group in GROUPS]


@pytest.fixture(scope="module")
def best(problem: Problem, trained: list[Trained]) -> Best:
    return Best.build(problem, GROUPS, [one.state or {} for one in trained], seed=1)


def test_predictions_are_the_networks_outputs_in_the_units_of_the_data(
    problem: Problem, trained: list[Trained], best: Best
) -> None:
    predicted = {task: values.astype(np.float64) for task, values in best.predict(problem.test.inputs).items()}
    targets = {task: labels.numpy() for task, labels in problem.test.targets.items()}
    scores = {task: one.test[task] for group, one in zip(GROUPS, trained, strict=True) for task in group.serves}
    errors = (predicted["age"] - SCALE[0]) / SCALE[1] - targets["age"]
    kinds = predicted["kind"][np.arange(60), targets["kind"].astype(int)]
    losses = {
        "age": np.square(errors).mean(),
        "ill": -np.log(np.where(targets["ill"] > 0.5, predicted["ill"], 1 - predicted["ill"])).mean(),
        "kind": -np.log(kinds).mean(),
    }
    assert list(predicted) == list(losses)
    assert losses == pytest.approx({task: score.loss for task, score in scores.items()}, rel=1e-4)
    assert SCALE[1] * np.abs(errors).mean() == pytest.approx(scores["age"].error, rel=1e-4)
    assert predicted["kind"].shape == (60, 3)
    np.testing.assert_allclose(predicted["kind"].sum(1), 1, rtol=1e-5)


def layers_problem(encoder: Any) -> Problem:
    half = Split(torch.randn(4, 6), {"ill": torch.tensor([0.0, 1.0, 0.0, 1.0])})
    return Problem("toy", (Task("ill"),), half, half, half, encoder)


def save_network(problem: Problem, folder: Path, width: float = 1.0) -> Best:
    state = build_network(problem, ["ill"], 0, width).state_dict()
    best = Best.build(problem, [Group({"ill"}, {"ill"})], [state], 0, [width])
    best.save(folder)
    return best


def test_a_folder_without_networks_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"found no networks/networks\.json"):
        Best.load(tmp_path)


@pytest.mark.parametrize(
    ("entry", "value"), [("shape", [3]), ("dtype", "float33"), ("mean", [0.0, "x"]), ("deviation", [1.0, 1.0, 1.0])]
)
def test_a_scaling_that_was_edited_is_named_when_it_is_read(tmp_path: Path, entry: str, value: Any) -> None:
    inputs = np.random.default_rng(0).normal(size=(60, 2))
    problem = Problem.from_arrays(inputs, inputs[:, :1], [Task("sum", "regression")], recipe=Recipe(epochs=1))
    group = Group({"sum"}, {"sum"})
    Best.build(problem, [group], [train(problem, Job(problem.names)).state or {}], 0).save(tmp_path)
    file = tmp_path / "networks" / "networks.json"
    document = json.loads(file.read_text())
    document["table"][entry] = value
    file.write_text(json.dumps(document))
    with pytest.raises(DocumentError, match=r"networks\.json is damaged"):
        Best.load(tmp_path)


def test_exported_networks_convert_raw_rows_as_the_run_does(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    number = [None if rng.random() < 0.2 else float(value) for value in rng.normal(40, 9, 60)]
    town = [["Arle", "7", "true", "12_3", "none", None][value] for value in rng.integers(6, size=60)]
    label = rng.normal(size=60)
    visit = [f"2020-{month:02}-01" for month in rng.integers(1, 12, 60)]
    table = {"age": number, "town": town, "code": rng.integers(3, size=60), "visit": visit}
    table |= {"sum": label, "twice": 2 * label}
    problem = Problem.from_table(table, ["sum", "twice"], categorical=["town", "code"], recipe=Recipe(epochs=1))
    group = Group({"sum", "twice"}, {"sum", "twice"})
    best = Best.build(problem, [group], [train(problem, Job(problem.names)).state or {}], 0)
    best.export(tmp_path)
    cells: list[dict[str, Any]] = [
        {"town": "Arle", "age": 31, "code": 2, "unused": "x"},
        {"town": "007", "age": "", "code": 2.0},
        {"town": True, "age": float("nan"), "code": "1"},
        {"town": " 12_3 ", "age": " 50.5", "code": "NA"},
        {"town": "none", "age": None, "code": None},
        {"town": "Cork", "age": "0", "code": 9},
        {"town": "Arle", "age": 1e9, "code": 1},
    ]
    rows = [row | {"visit": visit} for row, visit in zip(cells, ["2021-05-05", "", *visit], strict=False)]
    exported = load_exported(tmp_path)
    assert best.table is not None
    assert torch.equal(exported.inputs(rows), best.table.inputs(rows))
    assert torch.equal(exported.inputs(pd.DataFrame(rows)), best.table.inputs(rows))
    for task, values in best.predict(rows).items():
        np.testing.assert_allclose(exported.predict(exported.inputs(rows))[task].numpy(), values, rtol=1e-5, atol=1e-6)


def test_a_network_that_cannot_be_exported_is_named(tmp_path: Path) -> None:
    problem, group = make_problem(Unexportable()), Group({"age"}, {"age"})
    best = Best.build(problem, [group], [build_network(problem, ["age"], 0).state_dict()], 0)
    with pytest.raises(InvalidInput, match="the network for age"):
        best.export(tmp_path)
    assert not (tmp_path / "load.py").exists()


@pytest.mark.parametrize("norm", ["weight_norm", "spectral_norm"])
def test_parametrized_layers_can_be_kept(tmp_path: Path, norm: str) -> None:
    normed = getattr(nn.utils.parametrizations, norm)
    problem = layers_problem(lambda: nn.Sequential(normed(nn.Linear(6, 4)), nn.ReLU()))
    best = save_network(problem, tmp_path)
    rows = torch.ones(3, 6)
    np.testing.assert_allclose(Best.load(tmp_path, problem=problem).predict(rows)["ill"], best.predict(rows)["ill"])


def test_the_networks_of_every_method_of_a_run_are_available(problem: Problem, tmp_path: Path) -> None:
    study = Study(problem, tmp_path, device="cpu")
    with pytest.raises(ValueError, match="there are no results"):
        study.best()
    results, rows = study.run(["stl", "random"], budgets=[2], seeds=2), problem.test.inputs[:5]
    with pytest.raises(ValueError, match="`problem` is needed"):
        study.results().best()
    recommended, saved = study.best(), results.best()
    assert recommended.groups == saved.groups
    assert recommended.seed == saved.seed == results.verdict().chosen.seed
    np.testing.assert_equal(recommended.predict(rows), saved.predict(rows))
    assert [set(group.trains) for group in study.best("stl").groups] == [{"age"}, {"ill"}, {"kind"}]
    assert len(study.best("mtl").networks) == 1
    for unknown in [("tag", 2), ("random", 2), ("stl", 2), (None, 2)]:
        with pytest.raises(ValueError, match=r"`(method|budget)`|must identify networks in .*; choose from mtl, stl"):
            study.best(*unknown)


@pytest.mark.parametrize("width", [1.0, 2.5])
def test_networks_of_our_own_encoders_are_saved_without_any_pickle(tmp_path: Path, width: float) -> None:
    best = save_network(layers_problem(MLP(6, (5, 4), dropout=0.1)), tmp_path, width)
    random = torch.random.get_rng_state()
    again = Best.load(tmp_path)
    assert torch.equal(torch.random.get_rng_state(), random)
    assert repr(again.networks) == repr(best.networks)
    np.testing.assert_array_equal(again.predict(torch.ones(3, 6))["ill"], best.predict(torch.ones(3, 6))["ill"])


@pytest.mark.parametrize("name", ["tagalong.study.store.Store", "os.system", "tagalong.learn.network.Missing"])
def test_a_document_can_name_only_our_own_encoders(tmp_path: Path, name: str) -> None:
    save_network(layers_problem(MLP(6, (4,))), tmp_path)
    file = tmp_path / "networks" / "networks.json"
    document = json.loads(file.read_text())
    document["networks"][0]["layers"]["encoder"]["class"] = name
    file.write_text(json.dumps(document))
    with pytest.raises(ValueError, match="is not an encoder or a head of tagalong"):
        Best.load(tmp_path)
