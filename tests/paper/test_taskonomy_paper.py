"""The paper's experiments on files of Taskonomy's formats, from reading to results; narrow networks, few pixels."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from taskonomy_small import view_file, write_taskonomy

from tagalong.cli import main
from tagalong.study import Record, Results
from tagalong_paper import ExperimentSetup, Value, load_setup, run_experiment
from tagalong_paper.experiments import hyperparameters, tune
from tagalong_paper.experiments.task_sets import with_destructive_task

pytestmark = pytest.mark.slow

SHORT = {"segmentation": "s", "depth": "d", "normals": "n", "edges": "t", "keypoints": "k"}
SETTINGS = {"pixels": 32}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_taskonomy(tmp_path_factory.mktemp("taskonomy"), views=2)


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("run")


@pytest.fixture(scope="module")
def document(data: Path, out: Path) -> dict:
    """Returns what the command prints as JSON."""
    from contextlib import redirect_stdout
    from io import StringIO

    with redirect_stdout(StringIO()) as printed:
        assert main(_command("main", data, out, "--json")) == 0
    return json.loads(printed.getvalue())


@pytest.fixture(scope="module")
def setup(data: Path, out: Path, document: dict) -> ExperimentSetup:
    """Returns the setup of the same folder, after the command has finished."""
    return load_setup(
        "taskonomy", "small", out=out, options={"data": data, **SETTINGS}, recipe={"epochs": 2}, device="cpu"
    )


@pytest.fixture(scope="module")
def records(out: Path, document: dict) -> list[Record]:
    return list(Results.load(out / "main-results.json").records)


def _command(name: str, data: Path, out: Path, *more: str) -> list[str]:
    options = [f"--with={key}={value}" for key, value in {"data": data, **SETTINGS}.items()]
    where = ["--problem", "taskonomy", "--size", "small", "--device", "cpu", "--out", str(out)]
    return ["paper", name, *where, *options, "--recipe", "epochs=2", *more]


def test_methods_budgets_and_seeds_are_those_of_the_paper(records: list[Record], setup: ExperimentSetup) -> None:
    labels = {(record.method.partition(":")[0], record.budget) for record in records}
    grouping = ("random", "cs", "hoa", "tag", "optimal", "oracle")
    alone = {("mtl", None), ("stl", None), ("gradnorm", None)}
    assert labels == alone | {(name, k) for name in grouping for k in (2, 3)}
    assert setup.seeds == range(1)
    assert "gradnorm:1.5" in {record.method for record in records}


def test_every_task_is_served_once_and_optimal_is_best_on_validation(
    records: list[Record], setup: ExperimentSetup
) -> None:
    mtl = next(record for record in records if record.method == "mtl")
    for record in records:
        if record.groups:
            assert sorted(t for group in record.groups for t in group.serves) == sorted(setup.problem.names)
    for budget in (2, 3):
        of_budget = {r.method: r.change(mtl, "val") for r in records if r.budget == budget}
        assert of_budget["optimal"] == min(of_budget.values())


def test_totals_are_sums_of_test_losses_next_to_the_printed_ones(
    records: list[Record], document: dict, setup: ExperimentSetup
) -> None:
    table = next(table for table in document["tables"] if table["title"] == "Total test loss")
    by_label = {(r.method, "-" if r.budget is None else r.budget): r for r in records}
    printed = {}
    for row in table["rows"]:
        cells = dict(zip(table["columns"], row, strict=True))
        record = by_label[cells["method"], cells["groups"]]
        total = sum(outcome.loss for outcome in record.test.values())
        assert cells["total"]["mean"] == pytest.approx(total)
        printed[cells["method"], cells["groups"]] = cells["printed"] and cells["printed"]["mean"]
    assert printed["mtl", "-"] == 0.594
    assert printed["tag", 3] == 0.5246
    assert printed["random", 2] is None


def test_notes_of_the_report_describe_the_data(document: dict) -> None:
    notes = "\n".join(document["notes"])
    assert "read from files: train 4 images of 2 buildings; val 2 images of 1 building" in notes
    assert "tasks: s segmentation, d depth, n normals, t edges, k keypoints" in notes


def test_a_second_run_trains_nothing_and_shows_tables(
    data: Path, out: Path, document: dict, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(_command("main", data, out)) == 0
    shown = capsys.readouterr()
    assert shown.err == "", "nothing is trained again"
    assert "2 groups, as printed" in shown.out
    assert "0.0586" in shown.out, "four digits, as the paper has them"


def test_capacity_has_mtl_and_gradnorm_at_two_and_three_times(setup: ExperimentSetup) -> None:
    found = run_experiment("capacity", setup)
    table = found.table("One larger network")
    assert set(table.column("method")) == {"mtl", "gradnorm"}
    assert {str(size) for size in table.column("size")} == {
        *("1× channels", "2× channels", "3× channels"),
        *("2× parameters", "3× parameters"),
    }
    printed = dict(
        zip(zip(table.column("method"), table.column("size"), strict=True), table.column("printed"), strict=True)
    )
    assert str(printed["mtl", "2× channels"]) == "0.5892"
    assert np.isfinite([cell.mean for cell in table.column("total test loss")]).all()


def test_tasks_have_the_short_names_of_the_paper(setup: ExperimentSetup) -> None:
    assert {task: setup.short_name(task) for task in setup.problem.names} == SHORT
    with setup.open_backend() as backend:
        affinity = backend.affinities([0], {"estimator": "lookahead", "update": "sgd"})[0][0]
    assert affinity.tasks == setup.problem.names
    assert np.isfinite(affinity.mean).all()


def without_labels(data: Path) -> str:
    shutil.rmtree(data / "normal" / "allen")
    return (
        "data: the building 'allen' must have the domains rgb, segment_semantic, depth_zbuffer, normal, edge_texture, "
        "keypoints2d, "
    )


def missing_building(data: Path) -> str:
    (data / "test_models.txt").write_text("nowhere\n")
    return "lists: test must name buildings that are in data, found 'nowhere'"


def no_images(data: Path) -> str:
    for path in (data / "rgb" / "cedar").iterdir():
        path.unlink()
    return "data: the building 'cedar' must have files named point_*_view_*_domain_*.png, found none in "


def wrong_size(data: Path) -> str:
    for view in range(2):
        shutil.copy(data / "odd.png", view_file(data, "dale", view, "rgb"))
    return "data: test must have usable images, found none: 2 of 100×60 pixels"


@pytest.mark.parametrize("damage", [without_labels, missing_building, no_images, wrong_size])
def test_an_invalid_folder_is_a_one_line_error_with_status_2(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], damage
) -> None:
    from PIL import Image

    copied = Path(shutil.copytree(data, tmp_path / "data"))
    Image.new("RGB", (100, 60)).save(copied / "odd.png")
    message = damage(copied)
    assert main(_command("main", copied, tmp_path / "run")) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith(f"tagalong: {message}")
    assert shown.err.count("\n") == 1
    assert not (tmp_path / "run").exists()


def test_the_destructive_task_reads_labels_of_other_rows(setup: ExperimentSetup) -> None:
    harmful = with_destructive_task(setup.problem)
    rows = torch.arange(len(harmful.train))
    inputs, targets = harmful.train.batch(rows)
    wanted, own = setup.problem.train.batch(rows)
    assert torch.equal(inputs, wanted)
    order = harmful.train.reader.order
    assert sorted(order.tolist()) == rows.tolist()
    torch.testing.assert_close(targets["destructive"], own["segmentation"][order], equal_nan=True)
    assert set(setup.problem.train.only(("depth",)).batch(rows)[1]) == {"depth"}
    assert harmful.fingerprint != setup.problem.fingerprint


def test_task_sets_and_frequency_run_on_taskonomy(setup: ExperimentSetup) -> None:
    sets = run_experiment("task-sets", setup)
    assert "2 sets of 4 tasks" in " ".join(sets.notes)
    schedules = run_experiment("frequency", setup).tables[0]
    assert len(schedules.rows) == 9


def test_reports_on_taskonomy_have_no_printed_numbers_of_celeba(setup: ExperimentSetup) -> None:
    schedules = run_experiment("frequency", setup)
    columns = schedules.tables[0].column
    assert {*columns("printed less loss"), *columns("printed speed-up")} == {None}
    assert schedules.figures["frequency"].layout.yaxis.title.text.startswith("less loss")
    assert not any("error" in claim.because for claim in schedules.claims)
    assert [bar.name for bar in schedules.figures["frequency"].data] == ["ours"]
    losses = run_experiment("validation", setup)
    assert set(losses.table("Pearson of the two").column("printed")) == {None}
    assert {cell.digits for cell in losses.table("Groups from either").column("total test loss")} == {4}
    assert hyperparameters._printed_value(setup, "half the batch", 2) is None


def test_losses_have_four_digits(setup: ExperimentSetup, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        tune, "_validation_totals", lambda backend, seeds, rules: [0.5] * len(rules)
    )  # how totals look, not what they are
    for name in ("no-early-stopping", "tune"):
        for table in run_experiment(name, setup).tables:
            assert {cell.digits for row in table.rows for cell in row if isinstance(cell, Value)} == {4}
