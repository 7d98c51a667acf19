"""Tables and JSON files with the results of networks trained elsewhere, and files with predictions and labels."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from external_losses import TASKS, losses_of, rows_of, tell_all
from external_predictions import (
    NAMES,
    ROWS,
    TARGETS,
    TASKS as PREDICTED,
    Arrays,
    logits_of,
    losses,
    predictions_of,
    tell_all as tell_all_predictions,
)

from tagalong.affinity import Affinity
from tagalong.errors import InvalidInput
from tagalong.learn import Task
from tagalong.study import ExternalStudy, Results, verdict_from_csv
from tagalong.study.external_files import read_parts, read_targets

AFFINITY = Affinity.from_matrix([[0, 5, 0, 0], [5, 0, 0, 0], [0, 0, 0, 5], [0, 0, 5, 0]], TASKS)


def planned(folder: Path, methods: tuple[str, ...] = ("stl", "tag")) -> Path:
    study = ExternalStudy(TASKS, folder)
    study.plan(AFFINITY, methods=methods, budgets=[2, 3])
    path = study.write_table()
    assert path is not None
    return path


def fill_in(path: Path) -> Path:
    """Fills in a table as a user would."""
    table = pd.read_csv(path)
    for at, network, seed, task in table[["network", "seed", "task"]].itertuples():
        for part in ("val", "test"):
            table.loc[at, f"{part}_loss"] = losses_of(tuple(network.split("+")), seed, part)[task]
    table.to_csv(path, index=False)
    return path


@pytest.mark.parametrize("methods", [("stl", "tag"), ("hoa",)])
def test_tables_give_the_results_of_ask_and_tell(tmp_path: Path, methods: tuple[str, ...]) -> None:
    study = ExternalStudy(TASKS)
    study.plan(AFFINITY, methods=methods, budgets=[2, 3])
    tell_all(study, rows=False)
    expected = study.results()
    path: Path | None = planned(tmp_path, methods)
    while path is not None:
        by_table = ExternalStudy.load(tmp_path)
        by_table.tell_file(fill_in(path))
        path = by_table.write_table()
    found = by_table.results()
    scores = {(one.label, one.seed): (one.groups, one.val, one.test) for one in found.records}
    assert scores == {(one.label, one.seed): (one.groups, one.val, one.test) for one in expected.records}
    ours, theirs = found.verdict(), expected.verdict()
    assert (ours.recommended, ours.groups) == (theirs.recommended, theirs.groups)
    assert ours.gain.high == pytest.approx(theirs.gain.high)


def test_a_table_may_be_filled_in_step_by_step(tmp_path: Path) -> None:
    path = planned(tmp_path)
    table = pd.read_csv(fill_in(path))
    table.loc[table.network != "a+b+c+d", ["val_loss", "test_loss"]] = np.nan
    table.to_csv(path, index=False)
    table = pd.read_csv(path)
    study = ExternalStudy.load(tmp_path)
    study.tell_file(path)
    trained = set(table.dropna(subset=["val_loss"]).groupby(["network", "seed"]).groups)
    pending = {("+".join(tasks), seed) for tasks, seed in study.pending()}
    assert trained
    assert not pending & trained
    assert study.write_table() == path  # which is not overwritten
    assert pd.read_csv(path).equals(table)


def test_a_json_file_has_the_arguments_of_tell(tmp_path: Path) -> None:
    planned(tmp_path)
    study, expected = ExternalStudy.load(tmp_path), ExternalStudy(TASKS)
    expected.plan(AFFINITY, methods=["stl", "tag"], budgets=[2, 3])
    tell_all(expected)
    entries = [
        {
            "tasks": tasks,
            "seed": seed,
            "val": losses_of(tasks, seed, "val"),
            "test": losses_of(tasks, seed, "test"),
            "rows": {task: rows.tolist() for task, rows in rows_of(tasks, seed, "test").items()},
            "steps": 10,
            "seconds": 1.0,
            "parameters": 100,
        }
        for tasks, seed in study.pending()
    ]
    (tmp_path / "told.json").write_text(json.dumps(entries))
    study.tell_file(tmp_path / "told.json")
    assert study.results().records == expected.results().records
    tasks, seed = entries[3]["tasks"], entries[3]["seed"]
    for wrong, place in (
        ({"seed": "x"}, r"\[3\]\.seed"),
        ({"val": {}}, rf"{re.escape('+'.join(tasks))}.*{seed}.*`val`"),
    ):
        changed = [*entries[:3], entries[3] | wrong]
        (tmp_path / "told.json").write_text(json.dumps(changed))
        with pytest.raises(InvalidInput, match=place):
            study.tell_file(tmp_path / "told.json")


def test_a_table_needs_no_plan(tmp_path: Path) -> None:
    path = fill_in(planned(tmp_path / "plan", ("optimal",)))
    results = verdict_from_csv(path, budgets=[2])
    assert {record.label for record in results.records} == {("mtl", None), ("stl", None), ("chosen", 2)}
    assert results.verdict().recommended == ("chosen", 2)
    assert results.problem.name == "plan"


HEADER = "network,seed,task,val_loss,test_loss\n"


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("network,seed,task\nab,0,a\n", "results.csv"),
        (HEADER, "results.csv"),
        (HEADER + "a,0,a,,\n", "results.csv"),
        (HEADER + "a,x,a,1,1\n", "results.csv, line 2"),
        (HEADER + "a,0,a,1,1\na,0,a,1,1\n", "results.csv, line 3"),
        (HEADER + "a,0,a,low,1\n", "results.csv, line 2, column 'val_loss'"),
        (HEADER + "a,0,a,nan,1\n", "results.csv"),
        (HEADER + "a,0,a,1,1\nb,0,b,1,1\n", "results"),
        (HEADER + "a+b,0,a,1,1\na+b,0,b,1,1\nb+a,1,a,1,1\n", "results.csv"),
        (HEADER + "a+b,0,a,1,1\na+b,0,b,1,1\nb+a,0,a,2,2\nb+a,0,b,2,2\n", "results.csv, line 4"),
    ],
)
def test_invalid_tables_are_rejected(tmp_path: Path, text: str, place: str) -> None:
    (tmp_path / "results.csv").write_text(text)
    with pytest.raises(InvalidInput) as caught:
        verdict_from_csv(tmp_path / "results.csv")
    assert str(caught.value.argument).endswith(place)


# Predictions

METHODS, OPTIONS = ["stl", "ensemble", "best-of"], {"best-of": {"copies": 4}}


def write_parts(path: Path, parts: dict[str, Any]) -> Path:
    np.savez(path, **{f"{part}_{task}": values for part, one in parts.items() for task, values in one.items()})
    return path


def name_predictions(path: Path, predict: Callable[..., Arrays] = predictions_of) -> pd.DataFrame:
    """Writes the predictions of the networks in a table, and fills in the names of their files."""
    table = pd.read_csv(path)
    table["predictions"] = [f"{row.network}-{row.seed}.npz" for row in table.itertuples()]
    for network, seed, file in set(table[["network", "seed", "predictions"]].itertuples(index=False)):
        write_parts(path.parent / file, {part: predict(network.split("+"), seed, part) for part in ROWS})
    table.to_csv(path, index=False)
    return table


@pytest.fixture(scope="module")
def expected() -> Results:
    study = ExternalStudy([PREDICTED[0], Task("ill"), PREDICTED[2]], targets=TARGETS)  # a table has no class weights
    study.plan(methods=METHODS, budgets=[2, 3], seeds=2, options=OPTIONS)
    tell_all_predictions(study)
    return study.results()


@pytest.mark.parametrize("logits", [False, True])
def test_files_of_predictions_give_the_results_of_ask_and_tell(tmp_path: Path, expected: Results, logits: bool) -> None:
    tasks, labels = read_targets(write_parts(tmp_path / "targets.npz", TARGETS), NAMES, {"kind": "multiclass"})
    study = ExternalStudy(tasks, tmp_path, targets=labels, logits=logits)
    study.plan(methods=METHODS, budgets=[2, 3], seeds=2, options=OPTIONS)
    path = study.write_table()
    assert path is not None
    name_predictions(path, logits_of if logits else predictions_of)
    study.tell_file(path)
    results = study.results()
    assert {key: pytest.approx(found, rel=1e-9) for key, found in losses(results).items()} == losses(expected)
    ours, theirs = results.verdict(), expected.verdict()
    assert (ours.recommended, ours.groups) == (theirs.recommended, theirs.groups)
    assert ours.gain.high == pytest.approx(theirs.gain.high, rel=1e-6)
    assert results.problem.kinds == {"age": "regression", "ill": "binary", "kind": "multiclass"}


def test_a_table_without_a_plan_may_name_predictions(tmp_path: Path) -> None:
    path = tmp_path / "results.csv"
    networks = [(name, seed, task) for name in ("age+ill+kind", *NAMES) for seed in (0, 1) for task in name.split("+")]
    pd.DataFrame(networks, columns=["network", "seed", "task"]).to_csv(path, index=False)
    table = name_predictions(path)
    targets = write_parts(tmp_path / "targets.npz", TARGETS)
    results = verdict_from_csv(path, targets_file=targets)
    assert {record.method for record in results.records} == {"mtl", "stl", "chosen"}
    assert results.problem.kinds["kind"] == "multiclass"  # by the shape of its predictions
    assert (
        verdict_from_csv(path, targets_file=targets, kinds={"ill": "regression"}).problem.kinds["ill"] == "regression"
    )
    with pytest.raises(InvalidInput, match="`kinds`"):
        verdict_from_csv(path, targets_file=targets, kinds={"ill": "yes/no"})
    table.loc[table.network == "age", "predictions"] = "nan"
    table.to_csv(path, index=False)
    (stl,) = {record.diverged for record in verdict_from_csv(path, targets_file=targets).records_of(("stl", None))}
    assert stl


def test_damaged_files_are_named(tmp_path: Path) -> None:
    (tmp_path / "parts.npz").write_bytes(b"PK not an archive")
    with pytest.raises(InvalidInput, match=r"parts\.npz"):
        read_parts(tmp_path / "parts.npz", ["age"])
    with pytest.raises(InvalidInput, match=r"missing\.npz"):
        read_parts(tmp_path / "missing.npz", ["age"])
    np.savez(tmp_path / "parts.npz", val_size=[1.0], test_age=[1.0])
    with pytest.raises(InvalidInput, match=r"parts\.npz .*'val_age'.*'val_size'"):
        read_parts(tmp_path / "parts.npz", ["age"])
