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
from tagalong_paper import Bench, Value, open_bench, run_experiment
from tagalong_paper.experiments import hyperparameters, tune
from tagalong_paper.experiments.task_sets import with_destructive_task

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
    """What the command prints as JSON."""
    from contextlib import redirect_stdout
    from io import StringIO

    with redirect_stdout(StringIO()) as printed:
        assert main(_command("main", data, out, "--json")) == 0
    return json.loads(printed.getvalue())


@pytest.fixture(scope="module")
def bench(data: Path, out: Path, document: dict) -> Bench:
    """The bench of the same folder, once the command is through."""
    return open_bench(
        "taskonomy", "small", out=out, options={"data": data, **SETTINGS}, recipe={"epochs": 2}, device="cpu"
    )


@pytest.fixture(scope="module")
def records(out: Path, document: dict) -> list[Record]:
    return list(Results.load(out / "main-results.json").records)


def _command(name: str, data: Path, out: Path, *more: str) -> list[str]:
    options = [f"--with={key}={value}" for key, value in {"data": data, **SETTINGS}.items()]
    where = ["--problem", "taskonomy", "--size", "small", "--device", "cpu", "--out", str(out)]
    return ["paper", name, *where, *options, "--recipe", "epochs=2", *more]


def test_the_paper_s_methods_budgets_and_one_run(records: list[Record], bench: Bench) -> None:
    labels = {(record.method.partition(":")[0], record.budget) for record in records}
    grouping = ("random", "cs", "hoa", "tag", "optimal", "oracle")
    alone = {("mtl", None), ("stl", None), ("gradnorm", None)}
    assert labels == alone | {(name, k) for name in grouping for k in (2, 3)}
    assert bench.seeds == range(1)
    assert "gradnorm:1.5" in {record.method for record in records}


def test_every_task_is_served_once_and_optimal_is_best_on_validation(records: list[Record], bench: Bench) -> None:
    mtl = next(record for record in records if record.method == "mtl")
    for record in records:
        if record.groups:
            assert sorted(t for group in record.groups for t in group.serves) == sorted(bench.problem.names)
    for budget in (2, 3):
        of_budget = {r.method: r.change(mtl, "val") for r in records if r.budget == budget}
        assert of_budget["optimal"] == min(of_budget.values())


def test_totals_are_sums_of_test_losses_with_the_paper_s_beside_them(
    records: list[Record], document: dict, bench: Bench
) -> None:
    sheet = next(sheet for sheet in document["tables"] if sheet["title"] == "Total test loss")
    by_label = {(r.method, "-" if r.budget is None else r.budget): r for r in records}
    printed = {}
    for row in sheet["rows"]:
        cells = dict(zip(sheet["columns"], row, strict=True))
        record = by_label[cells["method"], cells["groups"]]
        total = sum(outcome.loss for outcome in record.test.values())
        assert cells["total"]["mean"] == pytest.approx(total)
        printed[cells["method"], cells["groups"]] = cells["printed"] and cells["printed"]["mean"]
    assert printed["mtl", "-"] == 0.594
    assert printed["tag", 3] == 0.5246
    assert printed["random", 2] is None


def test_the_report_says_what_was_read(document: dict) -> None:
    notes = "\n".join(document["notes"])
    assert "read from files: train 4 images of 2 buildings; val 2 images of 1 building" in notes
    assert "tasks: s segmentation, d depth, n normals, t edges, k keypoints" in notes


def test_the_same_command_goes_on_and_shows_tables(
    data: Path, out: Path, document: dict, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(_command("main", data, out)) == 0
    shown = capsys.readouterr()
    assert shown.err == "", "nothing is trained again"
    assert "2 groups, as printed" in shown.out
    assert "0.0586" in shown.out, "four digits, as the paper has them"


def test_capacity_is_mtl_and_gradnorm_at_two_and_three_times(bench: Bench) -> None:
    found = run_experiment("capacity", bench)
    sheet = found.sheet("One larger network")
    assert set(sheet.column("method")) == {"mtl", "gradnorm"}
    assert {str(size) for size in sheet.column("size")} == {
        *("1× channels", "2× channels", "3× channels"),
        *("2× parameters", "3× parameters"),
    }
    printed = dict(
        zip(zip(sheet.column("method"), sheet.column("size"), strict=True), sheet.column("printed"), strict=True)
    )
    assert str(printed["mtl", "2× channels"]) == "0.5892"
    assert np.isfinite([cell.mean for cell in sheet.column("total test loss")]).all()


def test_affinities_have_the_paper_s_short_names(bench: Bench) -> None:
    assert {task: bench.short(task) for task in bench.problem.names} == SHORT
    with bench.lab() as lab:
        affinity = lab.affinity(0, estimator="lookahead", update="sgd")
    assert affinity.tasks == bench.problem.names
    assert np.isfinite(affinity.mean).all()


def without_labels(data: Path) -> str:
    shutil.rmtree(data / "normal" / "allen")
    return (
        "data: the building 'allen' must have rgb, segment_semantic, depth_zbuffer, normal, edge_texture, keypoints2d, "
    )


def missing_building(data: Path) -> str:
    (data / "test_models.txt").write_text("nowhere\n")
    return "lists: test must name buildings that are in data, found 'nowhere'"


def no_images(data: Path) -> str:
    for path in (data / "rgb" / "cedar").iterdir():
        path.unlink()
    return "data: the building 'cedar' must have files point_*_view_*_domain_*.png, found none in "


def wrong_size(data: Path) -> str:
    for view in range(2):
        shutil.copy(data / "odd.png", view_file(data, "dale", view, "rgb"))
    return "data: test must have images that can be used, found none: 2 of 100×60 pixels"


@pytest.mark.parametrize("spoil", [without_labels, missing_building, no_images, wrong_size])
def test_bad_folders_are_refused_in_one_sentence_with_status_2(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], spoil
) -> None:
    from PIL import Image

    copied = Path(shutil.copytree(data, tmp_path / "data"))
    Image.new("RGB", (100, 60)).save(copied / "odd.png")
    said = spoil(copied)
    assert main(_command("main", copied, tmp_path / "run")) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith(f"tagalong: {said}")
    assert shown.err.count("\n") == 1
    assert not (tmp_path / "run").exists()


def test_a_task_that_only_harms_reads_labels_of_other_rows(bench: Bench) -> None:
    spoilt = with_destructive_task(bench.problem)
    rows = torch.arange(len(spoilt.train))
    inputs, targets = spoilt.train.batch(rows)
    wanted, own = bench.problem.train.batch(rows)
    assert torch.equal(inputs, wanted)
    order = spoilt.train.reader.order
    assert sorted(order.tolist()) == rows.tolist()
    torch.testing.assert_close(targets["destructive"], own["segmentation"][order], equal_nan=True)
    assert set(bench.problem.train.only(("depth",)).batch(rows)[1]) == {"depth"}
    assert spoilt.fingerprint != bench.problem.fingerprint


def test_affinities_in_other_company_and_by_schedule(bench: Bench) -> None:
    sets = run_experiment("task-sets", bench)
    assert "2 sets of 4 tasks" in " ".join(sets.notes)
    schedules = run_experiment("frequency", bench).sheets[0]
    assert len(schedules.rows) == 9


def test_numbers_printed_of_celeba_stay_away(bench: Bench) -> None:
    schedules = run_experiment("frequency", bench)
    columns = schedules.sheets[0].column
    assert {*columns("printed less loss"), *columns("printed speed-up")} == {None}
    assert schedules.figures["frequency"].layout.yaxis.title.text.startswith("less loss")
    assert not any("error" in claim.because for claim in schedules.claims)
    assert [bar.name for bar in schedules.figures["frequency"].data] == ["ours"]
    losses = run_experiment("validation", bench)
    assert set(losses.sheet("Pearson of the two").column("printed")) == {None}
    assert {cell.digits for cell in losses.sheet("Groups from either").column("total test loss")} == {4}
    assert hyperparameters._printed(bench, "half the batch", 2) is None


def test_losses_have_four_digits(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        tune, "_validated", lambda lab, seeds, rules: [0.5] * len(rules)
    )  # how totals look, not what they are
    for name in ("no-early-stopping", "tune"):
        for sheet in run_experiment(name, bench).sheets:
            assert {cell.digits for row in sheet.rows for cell in row if isinstance(cell, Value)} == {4}
