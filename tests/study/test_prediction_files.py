"""A plan filled in with predictions: npz files and tables, the verdict of ask and tell, and errors."""

import csv
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from external_predictions import NAMES, ROWS, TARGETS, TASKS, Arrays, logits_of, losses, predictions_of, tell_all

from tagalong.affinity import Affinity
from tagalong.learn import Task
from tagalong.study import ExternalStudy, Results, plan, verdict_from_csv
from tagalong.study.members import member_seed

AFFINITY = Affinity.from_matrix([[0, 5, 1], [5, 0, 0], [1, 0, 0]], NAMES)
METHODS = ["stl", "tag", "ensemble", "best-of"]
OPTIONS = {"best-of": {"copies": 4}}
Predict = Callable[..., Arrays]


def write_npz(path: Path, parts: dict[str, Any]) -> Path:
    np.savez(path, **{f"{part}_{task}": values for part, one in parts.items() for task, values in one.items()})
    return path


def write_table(path: Path, parts: dict[str, Any]) -> Path:
    """Writes a table with a column for each task, or for each class; missing labels are empty."""
    header, rows = ["split"], []
    for part, one in parts.items():
        columns: dict[str, Any] = {}
        for task, values in one.items():
            many = {f"{task}:{number}": column for number, column in enumerate(np.asarray(values).T)}
            columns |= many if np.ndim(values) == 2 else {task: values}
        header[1:] = columns
        rows += [[part, *("" if np.isnan(x) else repr(float(x)) for x in row)] for row in zip(*columns.values())]  # noqa: B905
    with open(path, "w", newline="") as file:
        csv.writer(file).writerows([header, *rows])
    return path


def fill_in(folder: Path, write: Callable[..., Path], suffix: str, predict: Predict = predictions_of) -> Path:
    """Writes a plan and the predictions of its networks, and fills in the names of their files."""
    path = plan(AFFINITY, [2, 3], METHODS, 2, options=OPTIONS).to_csv(folder / "plan.csv")
    lines = read_lines(path)
    for line in lines:
        tasks, seed = tuple(line["network"].split("+")), int(line["seed"])
        line["predictions"] = f"{line['network']}-{seed}.{suffix}"
        if not (folder / line["predictions"]).exists():
            write(folder / line["predictions"], {part: predict(tasks, seed, part) for part in ROWS})
    write_lines(path, lines)
    return path


def read_lines(path: Path) -> list[dict[str, str]]:
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def write_lines(path: Path, lines: list[dict[str, str]]) -> None:
    with open(path, "w", newline="") as file:
        writer = csv.DictWriter(file, list(lines[0]))
        writer.writeheader()
        writer.writerows(lines)


@pytest.fixture(scope="module")
def expected() -> Results:
    tasks = [TASKS[0], Task("ill"), TASKS[2]]  # a table has no class weights
    study = ExternalStudy(tasks, targets=TARGETS)
    study.plan(AFFINITY, methods=METHODS, budgets=[2, 3], seeds=2, options=OPTIONS)
    tell_all(study)
    return study.results()


@pytest.mark.parametrize(("write", "suffix"), [(write_npz, "npz"), (write_table, "csv")])
@pytest.mark.parametrize("logits", [False, True])
def test_a_plan_filled_in_gives_the_results_of_ask_and_tell(
    tmp_path: Path, expected: Results, write: Callable[..., Path], suffix: str, logits: bool
) -> None:
    path = fill_in(tmp_path, write, suffix, logits_of if logits else predictions_of)
    targets = write(tmp_path / f"targets.{suffix}", TARGETS)
    results = verdict_from_csv(path, targets_file=targets, logits=logits)
    assert {key: pytest.approx(found, rel=1e-9) for key, found in losses(results).items()} == losses(expected)
    assert [record.groups for record in results.records_of(("best-of", 2))] == [
        record.groups for record in expected.records_of(("best-of", 2))
    ]
    assert results.noise == pytest.approx(expected.noise, rel=1e-6)
    assert results.verdict().unlearnt == expected.verdict().unlearnt
    assert results.problem.kinds == {"age": "regression", "ill": "binary", "kind": "multiclass"}


def test_a_network_that_diverged_needs_no_predictions(tmp_path: Path) -> None:
    path = fill_in(tmp_path, write_npz, "npz")
    lines = read_lines(path)
    for line in lines:
        if line["copy"] == "2":
            line |= {"predictions": "", "val_loss": "nan", "test_loss": "nan"}
    write_lines(path, lines)
    results = verdict_from_csv(path, targets_file=write_npz(tmp_path / "targets.npz", TARGETS))
    diverged = {(record.method, record.budget) for record in results.records if record.diverged}
    assert diverged == {("ensemble", 3)}


def test_a_table_without_a_plan_is_judged_by_predictions(tmp_path: Path) -> None:
    path = fill_in(tmp_path, write_npz, "npz")
    kept = ("network", "seed", "task", "predictions")
    lines = [{name: line[name] for name in kept} for line in read_lines(path) if line["copy"] == "0"]
    write_lines(path, lines)
    results = verdict_from_csv(path, targets_file=write_npz(tmp_path / "targets.npz", TARGETS))
    assert {record.method for record in results.records} == {"mtl", "stl", "chosen"}
    assert results.noise


def test_kinds_may_be_given(tmp_path: Path) -> None:
    path, targets = fill_in(tmp_path, write_npz, "npz"), write_npz(tmp_path / "targets.npz", TARGETS)
    results = verdict_from_csv(path, targets_file=targets, kinds={"ill": "regression"})
    assert results.problem.kinds["ill"] == "regression"
    with pytest.raises(ValueError, match=r"`kinds`.*'ill' must be one of binary"):
        verdict_from_csv(path, targets_file=targets, kinds={"ill": "odd"})


FIRST = "age+ill+kind-0"


def change(folder: Path, name: str, part: str, task: str, values: Any) -> None:
    """Replaces an array in an npz file, or adds one."""
    with np.load(folder / f"{name}.npz") as arrays:
        np.savez(folder / f"{name}.npz", **{**arrays, f"{part}_{task}": values})


def drop(folder: Path, name: str) -> None:
    with np.load(folder / f"{FIRST}.npz") as arrays:
        np.savez(folder / f"{FIRST}.npz", **{key: arrays[key] for key in arrays if key != name})


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda f: (f / f"{FIRST}.npz").unlink(), rf"{re.escape(FIRST)}.npz must be an npz file"),
        (lambda f: (f / f"{FIRST}.npz").write_bytes(b"PK"), rf"{re.escape(FIRST)}.npz is damaged"),
        (lambda f: change(f, FIRST, "val", "weight", np.ones(3)), "unknown task, found 'val_weight'"),
        (lambda f: drop(f, "test_ill"), "found none for test of 'ill'"),
        (lambda f: change(f, FIRST, "val", "age", np.ones(7)), "'age' must have 120 rows"),
        (lambda f: change(f, FIRST, "val", "ill", np.full(120, 1.5)), "between 0 and 1, found 1.5"),
        (lambda f: change(f, FIRST, "val", "age", np.full(120, np.nan)), "'age' must be finite"),
        (lambda f: change(f, FIRST, "val", "age", np.full(120, "x")), "'val_age' must be an array of numbers"),
        (lambda f: change(f, "targets", "val", "kind", np.full(120, 3)), "'kind' must be classes from 0 to 2"),
        (lambda f: change(f, "targets", "test", "ill", np.ones(80)), "as many rows for every task"),
        (lambda f: (f / "targets.npz").unlink(), "targets.npz must be an npz file or a table"),
    ],
)
def test_invalid_files_are_explained(tmp_path: Path, damage: Callable[[Path], object], message: str) -> None:
    path = fill_in(tmp_path, write_npz, "npz")
    targets = write_npz(tmp_path / "targets.npz", TARGETS)
    damage(tmp_path)
    with pytest.raises(ValueError, match=message):
        verdict_from_csv(path, targets_file=targets)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("split,age", "part,age", "must have a column 'split'"),
        ("split,age", "split,weight", "unknown task, found 'weight'"),
        ("kind:2", "kind:3", "must have the columns 'kind:0', 'kind:1', 'kind:2'"),
        ("kind:2", "kind=2", "unknown task, found 'kind=2'"),
        ("\nval,", "\ntrain,", "column 'split' must contain val or test in each row, found 'train'"),
        ("\ntest,", "\ntest,x", "column 'age' must contain numbers"),
        ("kind:2", "kind", "must have the columns 'kind:0', 'kind:1', 'kind:2'"),
    ],
)
def test_invalid_tables_are_explained(tmp_path: Path, old: str, new: str, message: str) -> None:
    path = fill_in(tmp_path, write_table, "csv")
    table = tmp_path / f"{FIRST}.csv"
    table.write_text(table.read_bytes().decode().replace("\r", "").replace(old, new, 1))
    with pytest.raises(ValueError, match=message):
        verdict_from_csv(path, targets_file=write_table(tmp_path / "targets.csv", TARGETS))


def with_losses(path: Path, **more: str) -> Path:
    write_lines(path, [{**line, "val_loss": "1.0", "test_loss": "1.0", **more} for line in read_lines(path)])
    return path


@pytest.mark.parametrize("method", ["ensemble", "best-of"])
def test_averages_need_predictions(tmp_path: Path, method: str) -> None:
    path = with_losses(plan(AFFINITY, [2], [method], 2).to_csv(tmp_path / "plan.csv"))
    with pytest.raises(ValueError, match=f"for {method}.*, so their predictions are required"):
        verdict_from_csv(path)


@pytest.mark.parametrize("option", [{"logits": True}, {"kinds": {"ill": "binary"}}])
def test_options_of_predictions_need_targets(tmp_path: Path, option: dict[str, Any]) -> None:
    path = with_losses(plan(AFFINITY, [2], ["tag"], 1).to_csv(tmp_path / "plan.csv"))
    with pytest.raises(ValueError, match=f"`{next(iter(option))}` can only be used together with `targets_file`"):
        verdict_from_csv(path, **option)
    with pytest.raises(ValueError, match="`targets_file` is required, since the table names predictions"):
        verdict_from_csv(with_losses(path, predictions="x.npz"))


@pytest.mark.parametrize(
    ("cells", "message"),
    [
        ({"predictions": ""}, r"column 'predictions' must name a file for each network, but not for age\+ill\+kind"),
        ({"copy": "x"}, "column 'copy' must contain the number of the copy of age.* found '0', 'x'"),
        ({"seed": "12345"}, "column 'seed' must be the seed that the plan lists for copy 1 of age"),
    ],
)
def test_invalid_cells_are_explained(tmp_path: Path, cells: dict[str, str], message: str) -> None:
    path = fill_in(tmp_path, write_npz, "npz")
    lines = read_lines(path)
    seed = str(member_seed(0, 1)) if "seed" in cells else "0"
    chosen = [line for line in lines if line["seed"] == seed and line["network"] == "age+ill+kind"]
    for line in chosen[:1] if "copy" in cells else chosen:
        line |= cells
    write_lines(path, lines)
    with pytest.raises(ValueError, match=message):
        verdict_from_csv(path, targets_file=write_npz(tmp_path / "targets.npz", TARGETS))
