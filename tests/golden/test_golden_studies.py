"""Studies: records, networks and verdicts, resuming, exported networks, networks trained elsewhere, and estimators.

The entries "verdict …", "recommended …", "records of auto" and "trained networks" follow from rules that may change on
purpose.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from studying import (
    WatchedExecutor,
    arrays_problem,
    describe_affinities,
    describe_errors,
    describe_groups,
    describe_networks,
    describe_predictions,
    describe_records,
    describe_verdict,
    fill_in,
    fitted_classifier,
    fitted_regressor,
    load_networks,
    networks_of,
    open_external,
    read_verdict,
    run_study,
    table_problem,
    write_plan,
)

METHODS = ["mtl", "stl", "tag", "hoa", "ensemble", "best-of", "auto"]
METHODS += ["random", "cs", "optimal", "oracle", "uw", "constant", "boosting"]
KINDS = {"age": "regression", "ill": "binary", "pay": "regression", "rich": "binary"}
# Weights are drawn in single precision, so on a processor without FMA numbers differ by up to 3e-7 of themselves.
DOUBLE = {"rtol": 2e-6, "atol": 1e-7}
SINGLE = {"rtol": 1e-4, "atol": 1e-5}  # networks of tables are also trained in single precision
TOLD = {"rtol": 1e-6}  # losses of rows are kept in single precision


class BrokenOff(Exception):
    """Ends a study in between."""


def break_off() -> None:
    raise BrokenOff


def survey() -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Draws 300 rows. Age and ill share one signal, pay and rich another; each task lacks 15% of its labels."""
    draw = np.random.default_rng(0)
    inputs = draw.normal(size=(300, 6))
    body = inputs[:, 0] * inputs[:, 1] + inputs[:, 2]
    purse = np.abs(inputs[:, 3]) + inputs[:, 4] - 1
    signals = {"age": body, "ill": body + inputs[:, 5], "pay": purse, "rich": purse - inputs[:, 5]}
    targets = {}
    for task, truth in signals.items():
        values = truth + 0.5 * draw.normal(size=300)
        if KINDS[task] == "binary":
            values = (values > 0).astype(float)
        values[draw.random(300) < 0.15] = np.nan
        targets[task] = values
    return inputs, targets


def survey_problem() -> Any:
    inputs, targets = survey()
    rows = np.arange(300)
    return arrays_problem(inputs, targets, KINDS, (rows[:160], rows[160:230], rows[230:]))


def run_survey(out: Path, executor: WatchedExecutor) -> Any:
    return run_study(survey_problem(), out, METHODS, [2, 3], executor, effort=15)


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A study of all methods, the networks that it trained, and its folder, which tests must not change."""
    out, executor = tmp_path_factory.mktemp("survey"), WatchedExecutor()
    results = run_survey(out, executor)
    return SimpleNamespace(out=out, results=results, executor=executor, records=describe_records(results))


@pytest.mark.parametrize("method", METHODS)
def test_records(study, golden, method):
    golden(f"records of {method}", study.records[method], **DOUBLE)


def test_measured_affinities(study, golden):
    golden("measured affinities", describe_affinities(study.out), rtol=1e-5, atol=1e-7)


def test_errors(study, golden):
    golden("test errors of ensemble", describe_errors(study.results, "ensemble"), **DOUBLE)


def test_no_network_is_trained_twice(study, golden):
    assert len(set(study.executor.stored)) == len(study.executor.stored)
    golden("trained networks", study.executor.count())


def test_verdict(study, golden):
    golden("verdict of the study", describe_verdict(study.results.verdict()), **DOUBLE)


def test_recommended_networks(study, golden):
    networks = load_networks(study.out)
    predictions = describe_predictions(networks.predict(survey()[0][:3]))
    golden("recommended networks", {"networks": describe_groups(networks.groups), "predictions": predictions}, **DOUBLE)


def test_a_finished_study_trains_nothing_when_it_is_run_again(study, tmp_path):
    out, executor = shutil.copytree(study.out, tmp_path / "copy"), WatchedExecutor()
    assert describe_records(run_survey(out, executor)) == study.records
    assert executor.stored == []


def test_a_study_that_was_broken_off_three_times_equals_the_unbroken_one(study, tmp_path):
    stored = []
    for limit in (25, 25, 10):
        executor = WatchedExecutor(limit, break_off)
        with pytest.raises(BrokenOff):
            run_survey(tmp_path, executor)
        assert 0 < len(executor.stored) <= limit
        stored += executor.stored
    executor = WatchedExecutor()
    results = run_survey(tmp_path, executor)
    assert describe_records(results) == study.records
    assert describe_verdict(results.verdict()) == describe_verdict(study.results.verdict())
    assert executor.stored
    assert sorted(stored + executor.stored) == sorted(study.executor.stored)


def kill_survey(out: str, limit: str) -> None:
    """Runs the study and kills this process before it stores more networks than the limit."""
    run_survey(Path(out), WatchedExecutor(int(limit), lambda: os.kill(os.getpid(), signal.SIGKILL)))


@pytest.mark.slow
def test_a_study_whose_process_was_killed_equals_the_unbroken_one(study, tmp_path):
    script = "import sys, test_golden_studies; test_golden_studies.kill_survey(*sys.argv[1:])"
    path = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-c", script, tmp_path, "45"]
    killed = subprocess.run(command, cwd=Path(__file__).parent, env={**os.environ, **path})
    assert killed.returncode == -signal.SIGKILL
    executor = WatchedExecutor()
    assert describe_records(run_survey(tmp_path, executor)) == study.records
    assert 0 < len(executor.stored) < len(study.executor.stored)
    assert not set(executor.stored) - set(study.executor.stored)


# Networks of a table

TOWNS = ["Arle", "Brix", "Cove"]
NEW_ROWS: list[dict[str, Any]] = [
    {"height": 1.2, "weight": -0.4, "town": "Arle"},
    {"height": None, "weight": 0.3, "town": "Brix"},
    {"height": -0.7, "weight": 2.5, "town": "Delf"},  # no training row has this town
    {"height": 0.1, "weight": 0.9, "town": None},
    {"height": None, "weight": -1.5, "town": "Delf"},
]


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A study of a table with text and missing cells, in which `stl` is not recommended."""
    draw = np.random.default_rng(1)
    height, weight, town = draw.normal(size=200), draw.normal(size=200), draw.integers(3, size=200)
    fit = height + 0.5 * draw.normal(size=200)
    columns = {
        "height": [None if number % 9 == 0 else value for number, value in enumerate(height.tolist())],
        "weight": weight.tolist(),
        "town": ["" if number % 11 == 0 else TOWNS[place] for number, place in enumerate(town)],
        "fit": ["" if number % 13 == 0 else value for number, value in enumerate(fit.tolist())],
        "ill": np.where(weight + (town == 1) + 0.5 * draw.normal(size=200) > 0.3, "yes", "no").tolist(),
        "team": np.array(["red", "green", "blue"])[(town + (fit > 1)) % 3].tolist(),
    }
    kinds = {"fit": "regression", "ill": "binary", "team": "multiclass"}
    rows = np.arange(200)
    problem = table_problem(columns, kinds, ["town"], inputs=7, split=(rows[:120], rows[120:160], rows[160:]))
    out = tmp_path_factory.mktemp("table")
    results = run_study(problem, out, ["mtl", "stl", "ensemble"], [2], WatchedExecutor())
    return SimpleNamespace(
        records=describe_records(results),
        apart=networks_of(problem, out, "stl"),
        copies=networks_of(problem, out, "ensemble", 2),
    )


def test_records_of_a_table(table, golden):
    golden("records of the table", table.records, **SINGLE)


@pytest.mark.parametrize("method", ["apart", "copies"])
def test_predictions_for_unseen_categories_and_missing_cells(table, golden, method):
    golden(f"predictions of {method}", describe_predictions(getattr(table, method).predict(NEW_ROWS)), **SINGLE)


def test_spread_of_copies(table, golden):
    golden("spread of copies", describe_predictions(table.copies.spread(NEW_ROWS)), **SINGLE)


def test_saved_networks_predict_the_same(table, tmp_path):
    table.copies.save(tmp_path)
    expected, found = (networks.predict(NEW_ROWS) for networks in (table.copies, load_networks(tmp_path)))
    assert describe_predictions(found) == describe_predictions(expected)


CLEAN_PROCESS = """
import json, sys
for name in ("tagalong", "pandas", "sklearn", "scipy"):
    sys.modules[name] = None
sys.path.insert(0, sys.argv[1])
from load import load
networks = load()
predictions = networks.predict(networks.inputs(json.loads(sys.argv[2])))
print(json.dumps({task: values.tolist() for task, values in predictions.items()}))
"""


def test_exported_networks_predict_the_same_without_tagalong(table, tmp_path):
    table.copies.export(tmp_path)
    command = [sys.executable, "-I", "-c", CLEAN_PROCESS, tmp_path, json.dumps(NEW_ROWS)]
    process = subprocess.run(command, capture_output=True, text=True, check=True)
    found, expected = json.loads(process.stdout), table.copies.predict(NEW_ROWS)
    assert found.keys() == expected.keys()
    for task, values in expected.items():
        np.testing.assert_allclose(found[task], values, rtol=1e-5, atol=1e-6)


# Networks that are trained elsewhere

ROWS = {"val": np.arange(40), "test": np.arange(40, 80)}
LEVELS = {"age": 1.0, "ill": 0.7, "pay": 1.6, "rich": 0.9}
INFLUENCES = {  # of training a task (first) on the relative loss of another one (second)
    "age": {"ill": -0.20, "pay": 0.02, "rich": 0.31},
    "ill": {"age": -0.13, "pay": -0.09, "rich": -0.04},
    "pay": {"age": 0.05, "ill": -0.08, "rich": 0.33},
    "rich": {"age": 0.24, "ill": 0.17, "pay": 0.19},
}
AFFINITIES = [  # which suggest other groups
    [0.00, 0.02, 0.30, -0.10],
    [0.05, 0.00, 0.10, 0.25],
    [0.28, -0.10, 0.00, -0.20],
    [-0.05, 0.22, 0.13, 0.00],
]


def difficulty(tasks: tuple[str, ...], task: str) -> float:
    return LEVELS[task] * (1 + sum(INFLUENCES[other][task] for other in tasks if other != task))


def row_losses(tasks: tuple[str, ...], seed: int, part: str) -> dict[str, np.ndarray]:
    """Returns the loss of every row, from a formula."""
    noise = (1 + 0.4 * np.sin(ROWS[part])) * (1 + 0.02 * np.sin(3 * seed + len(tasks) + ROWS[part]))
    return {task: difficulty(tasks, task) * noise for task in tasks}


def mean_losses(tasks: tuple[str, ...], seed: int, part: str) -> dict[str, float]:
    return {task: float(losses.mean()) for task, losses in row_losses(tasks, seed, part).items()}


def labels(part: str) -> dict[str, np.ndarray]:
    """Returns the labels of all rows, of which some are missing."""
    values = {}
    for number, (task, kind) in enumerate(KINDS.items()):
        truth = np.sin(2.3 * ROWS[part] + number)
        values[task] = (truth > 0).astype(float) if kind == "binary" else truth
        values[task][(ROWS[part] + number) % 9 == 0] = np.nan
    return values


def predictions(tasks: tuple[str, ...], seed: int, part: str) -> dict[str, np.ndarray]:
    """Returns what a network predicts for each row: the truth, an error of all networks, and one of this seed."""
    values = {}
    for task in tasks:
        number = list(KINDS).index(task)
        common, own = np.sin(9.1 * ROWS[part]), np.sin((5.7 + seed % 13) * ROWS[part] + number)
        value = np.sin(2.3 * ROWS[part] + number) + difficulty(tasks, task) * (0.3 * common + 0.4 * own)
        values[task] = 1 / (1 + np.exp(-2 * value)) if KINDS[task] == "binary" else value
    return values


def save_parts(file: Path, arrays: Mapping[str, Mapping[str, np.ndarray]]) -> None:
    """Writes the validation and test arrays of all tasks."""
    np.savez(file, **{f"{part}_{task}": arrays[part][task] for part in arrays for task in arrays[part]})


def check_answer(golden: Any, name: str, results: Any) -> None:
    golden(f"records of {name}", describe_records(results), **TOLD)
    golden(f"verdict of {name}", describe_verdict(results.verdict()), **TOLD)


def test_asking_and_telling_losses(golden, tmp_path):
    def reopened() -> Any:  # knows only what is in the folder
        return open_external(KINDS, tmp_path, ["stl", "hoa", "random"])

    golden("networks to train first", sorted(describe_networks(reopened().pending())))
    told, already_open = [], reopened()
    while (network := (external := reopened()).ask()) is not None:
        assert network in external.pending()
        tasks, seed = network
        val, test = mean_losses(tasks, seed, "val"), mean_losses(tasks, seed, "test")
        external.tell(tasks, seed, val=val, test=test, rows=row_losses(tasks, seed, "test"), steps=10)
        assert network not in already_open.pending() + reopened().pending()
        told.append(network)
    assert already_open.ask() is None
    assert len(set(told)) == len(told)
    golden("networks told", sorted(describe_networks(told)))
    check_answer(golden, "told losses", reopened().results())


def test_asking_and_telling_predictions(golden, tmp_path):
    methods, options = ["ensemble", "best-of", "optimal"], {"best-of": {"copies": 4}}
    targets = {part: labels(part) for part in ("val", "test")}
    while (external := open_external(KINDS, tmp_path, methods, targets, options)).ask() is not None:
        for tasks, seed in reversed(external.pending()):  # in any order
            external.tell(tasks, seed, val=predictions(tasks, seed, "val"), test=predictions(tasks, seed, "test"))
    check_answer(golden, "told predictions", external.results())


def test_a_planned_table_of_losses(golden, tmp_path):
    path = tmp_path / "plan.csv"
    networks = write_plan(AFFINITIES, list(KINDS), ["stl", "tag", "optimal"], path)
    golden("planned networks", sorted(describe_networks(networks)))

    def losses(tasks: tuple[str, ...], seed: int, task: str) -> Mapping[str, float]:
        return {f"{part}_loss": mean_losses(tasks, seed, part)[task] for part in ("val", "test")}

    fill_in(path, losses)
    check_answer(golden, "a table of losses", read_verdict(path))


def test_a_planned_table_of_prediction_files(golden, tmp_path):
    path = tmp_path / "plan.csv"
    save_parts(tmp_path / "targets.npz", {part: labels(part) for part in ("val", "test")})
    networks = write_plan(AFFINITIES, list(KINDS), ["tag", "ensemble"], path, tmp_path / "targets.npz")
    golden("planned networks with copies", sorted(describe_networks(networks)))

    def file_of(tasks: tuple[str, ...], seed: int, task: str) -> Mapping[str, str]:
        file = tmp_path / f"{'+'.join(tasks)}-{seed}.npz"
        save_parts(file, {part: predictions(tasks, seed, part) for part in ("val", "test")})
        return {"predictions": file.name}

    fill_in(path, file_of)
    check_answer(golden, "a table of predictions", read_verdict(path))


# Estimators of scikit-learn


def test_regressor(golden):
    inputs, targets = survey()
    model = fitted_regressor(inputs[:120], np.stack([targets["age"], targets["pay"]], axis=1)[:120])
    golden("predictions of the regressor", model.predict(inputs[-4:]).tolist(), **DOUBLE)


def test_classifier(golden):
    inputs, targets = survey()
    teams = np.where(targets["age"] > 1, 2, targets["age"] > -1).astype(float)
    model = fitted_classifier(inputs[:120], np.stack([teams, targets["rich"]], axis=1)[:120])
    probabilities = [values.tolist() for values in model.predict_proba(inputs[-4:])]
    golden("probabilities of the classifier", probabilities, **DOUBLE)
    golden("classes of the classifier", model.predict(inputs[-4:]).tolist())
