"""The recommended networks reproduce their measured losses, from the run's folder alone and without tagalong."""

import importlib.util
import json
import subprocess
import sys
import types
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tagalong.files import checksum
from tagalong.group import Group
from tagalong.learn import MLP, Job, Problem, Recipe, Split, Task, build_network, train
from tagalong.study import Best, ProblemInfo, Record, Results, Score, Study
from tagalong.study.best import keep_best, recommended_record
from tagalong.study.saved_networks import UntrustedCodeError

TASKS = (Task("age", "regression"), Task("ill"), Task("kind", "multiclass", classes=3))
GROUPS = (Group({"age", "ill"}, {"age"}), Group({"ill", "kind"}, {"ill", "kind"}))
JOBS = [Job(tuple(sorted(group.trains)), seed=2) for group in GROUPS]
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
def best(problem: Problem) -> Best:
    trained = [train(problem, Job(tuple(sorted(group.trains)), seed=1)) for group in GROUPS]
    return Best.build(problem, GROUPS, [one.state or {} for one in trained], seed=1)


def test_predictions_are_the_networks_outputs_in_the_units_of_the_data(problem: Problem, best: Best) -> None:
    predicted = best.predict(problem.test.inputs)
    assert list(predicted) == ["age", "ill", "kind"]
    scores = {}
    for group in GROUPS:
        trained = train(problem, Job(tuple(sorted(group.trains)), seed=1))
        scores |= {task: trained.test[task] for task in group.serves}
    age = (predicted["age"].astype(np.float64) - SCALE[0]) / SCALE[1]
    loss = np.square(age - problem.test.targets["age"].numpy()).mean()
    assert loss == pytest.approx(scores["age"].loss, rel=1e-4)
    assert SCALE[1] * np.abs(age - problem.test.targets["age"].numpy()).mean() == pytest.approx(
        scores["age"].error, rel=1e-4
    )
    ill, labels = predicted["ill"].astype(np.float64), problem.test.targets["ill"].numpy()
    assert -np.log(np.where(labels > 0.5, ill, 1 - ill)).mean() == pytest.approx(scores["ill"].loss, rel=1e-4)
    assert predicted["kind"].shape == (60, 3)
    np.testing.assert_allclose(predicted["kind"].sum(1), 1, rtol=1e-5)
    chosen = predicted["kind"][np.arange(60), problem.test.targets["kind"].long().numpy()]
    assert -np.log(chosen.astype(np.float64)).mean() == pytest.approx(scores["kind"].loss, rel=1e-4)


def test_networks_keep_only_the_heads_that_they_serve(best: Best) -> None:
    assert [network.tasks for network in best.networks] == [("age",), ("ill", "kind")]
    assert all(not network.training for network in best.networks)


def test_the_folder_alone_is_enough_in_another_process(problem: Problem, best: Best, tmp_path: Path) -> None:
    best.save(tmp_path)
    best.save(tmp_path)  # again, replacing the first
    again = Best.load(tmp_path, trust=True)
    assert (again.groups, again.seed, again.tasks) == (best.groups, best.seed, best.tasks)
    rows = problem.test.inputs
    for task, values in best.predict(rows).items():
        np.testing.assert_array_equal(again.predict(rows)[task], values)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["networks"]
    weights = torch.load(tmp_path / "networks" / "network-1.pt", weights_only=True)
    assert set(weights) == set(best.networks[0].state_dict())


def test_several_threads_may_save_into_one_folder_at_once(best: Best, tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: best.save(tmp_path), range(64)))
    assert Best.load(tmp_path, trust=True).groups == best.groups
    assert sorted(path.name for path in tmp_path.iterdir()) == ["networks"]


def test_classes_defined_in_a_script_are_saved_with_the_networks(tmp_path: Path) -> None:
    script = """
import sys, torch
from torch import nn
from tagalong.files import checksum
from tagalong.group import Group
from tagalong.learn import Problem, Split, Task, build_network
from tagalong.study import Best

class Own(nn.Linear):
    pass

half = Split(torch.randn(4, 2), {"ill": torch.tensor([0.0, 1.0, 0.0, 1.0])})
problem = Problem("toy", (Task("ill"),), half, half, half, lambda: Own(2, 3))
state = build_network(problem, ["ill"], 0).state_dict()
Best.build(problem, [Group({"ill"}, {"ill"})], [state], 0).save(sys.argv[1])
"""
    subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=True)
    with pytest.raises(
        UntrustedCodeError, match=r"\(code of a script\); if you trust whoever made it, pass `trust=True`"
    ):
        Best.load(tmp_path)
    assert Best.load(tmp_path, trust=True).predict(torch.zeros(5, 2))["ill"].shape == (5,)


def test_the_error_for_networks_without_their_code_says_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = types.ModuleType("lost")
    exec("from torch import nn\nclass Own(nn.Linear): pass", vars(lost))
    half = Split(torch.randn(4, 2), {"ill": torch.tensor([0.0, 1.0, 0.0, 1.0])})
    problem = Problem("toy", (Task("ill"),), half, half, half, lambda: lost.Own(2, 3))
    state = build_network(problem, ["ill"], 0).state_dict()
    with monkeypatch.context() as context:
        context.setitem(sys.modules, "lost", lost)
        Best.build(problem, [Group({"ill"}, {"ill"})], [state], 0).save(tmp_path)
    with pytest.raises(ValueError, match=r"requires code that cannot be imported here \(No module named 'lost'"):
        Best.load(tmp_path, trust=True)


def test_networks_are_printed_without_their_layers(best: Best) -> None:
    assert repr(best) == f"Best(<{GROUPS[0]}>, <{GROUPS[1]}>, seed=1)"


def test_a_folder_without_networks_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"found no networks/networks\.json"):
        Best.load(tmp_path)
    (tmp_path / "networks").mkdir()
    (tmp_path / "networks" / "networks.json").write_text('{"format": "other", "version": 1}')
    with pytest.raises(ValueError, match="must have the format 'tagalong-networks', found 'other'"):
        Best.load(tmp_path)


def test_the_export_needs_only_torch(problem: Problem, best: Best, tmp_path: Path) -> None:
    assert best.export(tmp_path) == []
    torch.save(problem.test.inputs, tmp_path / "rows.pt")
    script = """
import sys, torch
sys.modules["tagalong"] = None  # importing it fails
sys.path.insert(0, sys.argv[1])
from load import load, state_dicts
found = load().predict(torch.load(sys.argv[1] + "/rows.pt"))
torch.save(found, sys.argv[1] + "/found.pt")
assert len(state_dicts()) == 2
"""
    subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=True)
    found = torch.load(tmp_path / "found.pt")
    for task, values in best.predict(problem.test.inputs).items():
        np.testing.assert_allclose(found[task].numpy(), values, rtol=1e-4, atol=1e-5)


def test_exported_networks_convert_raw_rows_as_the_run_does(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    number = [None if rng.random() < 0.2 else float(value) for value in rng.normal(40, 9, 60)]
    town = [["Arle", "7", "true", "12_3", "none", None][value] for value in rng.integers(6, size=60)]
    label = rng.normal(size=60)
    table = {"age": number, "town": town, "code": rng.integers(3, size=60), "sum": label, "twice": 2 * label}
    problem = Problem.from_table(table, ["sum", "twice"], categorical=["town", "code"], recipe=Recipe(epochs=1))
    group = Group({"sum", "twice"}, {"sum", "twice"})
    best = Best.build(problem, [group], [train(problem, Job(problem.names)).state or {}], 0)
    best.export(tmp_path)
    rows: list[dict[str, Any]] = [
        {"town": "Arle", "age": 31, "code": 2, "unused": "x"},
        {"town": "007", "age": "", "code": 2.0},
        {"town": True, "age": float("nan"), "code": "1"},
        {"town": " 12_3 ", "age": " 50.5", "code": "NA"},
        {"town": "none", "age": None, "code": None},
        {"town": "Cork", "age": "0", "code": 9},
    ]
    exported = load_exported(tmp_path)
    assert best.table is not None
    assert torch.equal(exported.inputs(rows), best.table.inputs(rows))
    for task, values in best.predict(rows).items():
        np.testing.assert_allclose(exported.predict(exported.inputs(rows))[task].numpy(), values, rtol=1e-5, atol=1e-6)


def test_exported_networks_scale_raw_arrays_as_the_run_does(tmp_path: Path) -> None:
    rows = np.random.default_rng(0).normal(7, 3, size=(60, 2))
    tasks = [Task("sum", "regression")]
    labels = rows.sum(1, keepdims=True)
    problem = Problem.from_arrays(rows, labels, tasks, recipe=Recipe(epochs=1))
    best = Best.build(problem, [Group({"sum"}, {"sum"})], [train(problem, Job(("sum",))).state or {}], 0)
    best.export(tmp_path)
    exported = load_exported(tmp_path)
    assert best.table is not None
    assert torch.equal(exported.inputs(rows), best.table.inputs(rows))


def load_exported(folder: Path) -> Any:
    spec = importlib.util.spec_from_file_location("exported_loader", folder / "load.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.load()


def test_a_network_that_cannot_be_exported_leaves_weights_and_a_note(tmp_path: Path) -> None:
    problem = make_problem(Unexportable())
    group = Group({"age"}, {"age"})
    trained = train(problem, Job(("age",)))
    notes = Best.build(problem, [group], [trained.state or {}], 0).export(tmp_path)
    assert len(notes) == 1
    assert notes[0].startswith("network 1 (age): torch.export failed")
    assert (tmp_path / "network-1.pt").exists()
    assert not (tmp_path / "network-1.pt2").exists()


def test_raw_rows_are_prepared_like_the_training_rows(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    raw = 1000 + 50 * rng.normal(size=(200, 3))
    targets = {"age": raw[:, 0], "ill": np.where(raw[:, 1] > 1000, "yes", "no")}
    made = Problem.from_arrays(raw, targets, ["age", "ill"], recipe=Recipe(epochs=10, batch_size=32, lr=0.05))
    trained = train(made, Job(("age", "ill")))
    group = Group({"age", "ill"}, {"age", "ill"})
    Best.build(made, [group], [trained.state or {}], 0).save(tmp_path)
    again = Best.load(tmp_path)
    predicted = again.predict(raw)
    assert np.corrcoef(predicted["age"], raw[:, 0])[0, 1] > 0.9
    assert abs(predicted["age"].mean() - 1000) < 20
    assert again.tasks[1].labels == ("no", "yes")
    assert predicted["ill"][raw[:, 1] > 1050].mean() > 0.5 > predicted["ill"][raw[:, 1] < 950].mean()


def records(val: list[float]) -> list[Record]:
    groups = (Group("ab", "ab"),)
    return [
        Record("mtl", None, seed, groups, {task: Score(loss, 0.0) for task in "ab"}, {t: Score(1, 0) for t in "ab"})
        for seed, loss in enumerate(val)
    ]


def test_the_best_seed_on_validation_is_recommended() -> None:
    assert recommended_record(Results(records([1.0, 0.5, 2.0]), problem=ProblemInfo.from_tasks(["a", "b"]))).seed == 1


def test_the_recommended_networks_are_kept(problem: Problem, tmp_path: Path) -> None:
    names = problem.names
    trained = {seed: train(problem, Job(names, seed)) for seed in (0, 1)}
    found = [
        Record(
            "mtl",
            None,
            seed,
            (Group(names, names),),
            {task: Score(score.loss, score.error) for task, score in one.val.items()},
            {task: Score(score.loss, score.error) for task, score in one.test.items()},
            networks=(f"key {seed}",),
        )
        for seed, one in trained.items()
    ]
    results = Results(found, problem=ProblemInfo.of(problem), out=tmp_path)
    keep_best(results, problem, lambda key: trained[int(key[-1])].state or {}).save(tmp_path)
    with pytest.raises(UntrustedCodeError):
        results.best()
    best = results.best(trust=True)
    assert best.seed == recommended_record(results).seed
    assert best.networks[0].tasks == names
    with pytest.raises(ValueError, match="no networks were saved with these results"):
        Results(found, problem=ProblemInfo.of(problem)).best()


@pytest.mark.parametrize("norm", ["weight_norm", "spectral_norm"])
def test_parametrized_layers_can_be_kept(tmp_path: Path, norm: str) -> None:
    problem = make_problem()
    normed = getattr(nn.utils.parametrizations, norm)
    problem = replace(
        problem, encoder=lambda: nn.Sequential(normed(nn.Linear(problem.train.inputs.shape[1], 4)), nn.ReLU())
    )
    trained = train(problem, Job(problem.names))
    best = Best.build(problem, [Group(problem.names, problem.names)], [trained.state], seed=0)
    best.save(tmp_path)
    network = build_network(problem, problem.names, 0)
    network.load_state_dict(trained.state)
    outputs = network.eval()(problem.test.inputs)["age"].squeeze(1).detach()
    again = Best.load(tmp_path, trust=True).networks[0](problem.test.inputs)["age"].squeeze(1).detach()
    torch.testing.assert_close(again, outputs)


def test_damaged_layers_are_never_loaded(tmp_path: Path) -> None:
    problem = make_problem()
    state = train(problem, Job(problem.names)).state
    Best.build(problem, [Group(problem.names, problem.names)], [state], seed=0).save(tmp_path)
    (tmp_path / "networks" / "network-1-layers.pt").write_text("x")
    with pytest.raises(ValueError, match=r"network-1-layers\.pt is damaged"):
        Best.load(tmp_path, trust=True)


def test_wider_networks_of_a_method_can_be_recommended(tmp_path: Path) -> None:
    problem = replace(make_problem(), encoder=MLP(make_problem().train.inputs.shape[1], hidden=(3,)))
    state = train(problem, Job(("age",), width=2.0)).state
    best = Best.build(problem, [Group({"age"}, {"age"})], [state], seed=0, widths=[2.0])
    torch.testing.assert_close(dict(best.networks[0].state_dict()), dict(state))


def test_the_networks_of_every_method_of_a_run_are_available(problem: Problem, tmp_path: Path) -> None:
    study = Study(problem, tmp_path, device="cpu")
    with pytest.raises(ValueError, match="there are no results"):
        study.best()
    study.run(["stl", "random"], budgets=[2], seeds=2)
    rows = problem.test.inputs[:5]
    recommended, saved = study.best(), Best.load(tmp_path, trust=True)
    assert recommended.groups == saved.groups
    for task, values in saved.predict(rows).items():
        np.testing.assert_array_equal(recommended.predict(rows)[task], values)
    assert [set(group.trains) for group in study.best("stl").groups] == [{"age"}, {"ill"}, {"kind"}]
    assert len(study.best("mtl").networks) == 1
    for unknown in [("tag", 2), ("random", 2), ("stl", 2)]:
        with pytest.raises(ValueError, match=r"must identify networks in .*; choose from mtl, stl"):
            study.best(*unknown)
    with pytest.raises(ValueError, match="`problem` must be a Problem"):
        Study(["age", "ill"], tmp_path).best()


def layers_problem(encoder: Any, **options: Any) -> Problem:
    half = Split(torch.randn(4, 6), {"ill": torch.tensor([0.0, 1.0, 0.0, 1.0])})
    return Problem("toy", (Task("ill"),), half, half, half, encoder, **options)


def save_network(problem: Problem, folder: Path, width: float = 1.0) -> Best:
    state = build_network(problem, ["ill"], 0, width).state_dict()
    best = Best.build(problem, [Group({"ill"}, {"ill"})], [state], 0, [width])
    best.save(folder)
    return best


@pytest.mark.parametrize("width", [1.0, 2.5])
def test_networks_of_our_own_encoders_are_saved_without_any_pickle(tmp_path: Path, width: float) -> None:
    best = save_network(layers_problem(MLP(6, (5, 4), dropout=0.1)), tmp_path, width)
    assert sorted(path.name for path in (tmp_path / "networks").iterdir()) == [
        "example.pt",
        "network-1.pt",
        "networks.json",
    ]
    random = torch.random.get_rng_state()
    again = Best.load(tmp_path)
    assert torch.equal(torch.random.get_rng_state(), random)
    assert repr(again.networks) == repr(best.networks)
    np.testing.assert_array_equal(again.predict(torch.ones(3, 6))["ill"], best.predict(torch.ones(3, 6))["ill"])
    again.save(tmp_path)
    assert Best.load(tmp_path).layers == best.layers


def test_a_pickle_of_torch_layers_alone_needs_no_trust(tmp_path: Path) -> None:
    encoder = nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.GELU(), nn.Dropout(0.1))
    best = save_network(layers_problem(encoder), tmp_path)
    np.testing.assert_array_equal(
        Best.load(tmp_path).predict(torch.ones(3, 6))["ill"], best.predict(torch.ones(3, 6))["ill"]
    )


class Exploit:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


def test_code_in_a_strangers_folder_never_runs_without_trust(tmp_path: Path) -> None:
    best = save_network(layers_problem(nn.Linear(6, 4)), tmp_path)
    folder = tmp_path / "networks"
    torch.save(Exploit(tmp_path / "ran"), folder / "network-1-layers.pt")
    document = json.loads((folder / "networks.json").read_text())
    document["checksums"]["network-1-layers.pt"] = checksum((folder / "network-1-layers.pt").read_bytes())
    (folder / "networks.json").write_text(json.dumps(document))
    with pytest.raises(UntrustedCodeError, match=r"pathlib"):
        Best.load(tmp_path)
    assert not (tmp_path / "ran").exists()
    assert best.layers == (None,)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("tagalong.study.store.Store", "tagalong.study.store.Store is not an encoder or a head of tagalong"),
        ("os.system", "os.system is not an encoder or a head of tagalong"),
        ("tagalong.learn.network.Missing", "is not an encoder or a head of tagalong"),
    ],
)
def test_a_document_can_name_only_our_own_encoders(tmp_path: Path, name: str, message: str) -> None:
    save_network(layers_problem(MLP(6, (4,))), tmp_path)
    file = tmp_path / "networks" / "networks.json"
    document = json.loads(file.read_text())
    document["networks"][0]["layers"]["encoder"]["class"] = name
    file.write_text(json.dumps(document))
    with pytest.raises(ValueError, match=message):
        Best.load(tmp_path)
