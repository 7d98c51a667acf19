"""The paper's experiments on files of Taskonomy's formats, from reading to results; narrow networks, few pixels."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from taskonomy_small import write_taskonomy

from tagalong.cli import main
from tagalong.study import Results
from tagalong_paper import EXPERIMENTS, ExperimentSetup, Value, load_setup, run_experiment
from tagalong_paper.experiments.task_sets import with_destructive_task

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:a large part of the lookahead affinities"),  # one epoch changes little
]


@pytest.fixture(scope="module")
def setup(tmp_path_factory: pytest.TempPathFactory) -> ExperimentSetup:
    data = write_taskonomy(tmp_path_factory.mktemp("taskonomy"), views=2)
    options, recipe = {"data": data, "pixels": 32}, {"epochs": 1}
    out = tmp_path_factory.mktemp("run")
    return load_setup("taskonomy", "small", out=out, options=options, recipe=recipe, device="cpu")


@pytest.mark.parametrize("name", [e.name for e in EXPERIMENTS if e.trains and e.name not in ("main", "tune")])
def test_every_experiment_runs_on_three_tasks(name: str, setup: ExperimentSetup) -> None:
    three = replace(setup, tasks=None if name == "task-sets" else setup.problem.names[:3])
    report = run_experiment(name, three)
    cells = [cell for table in report.tables for row in table.rows for cell in row if isinstance(cell, Value)]
    assert cells
    assert report.claims


def test_main_has_the_methods_of_the_paper_and_its_totals_beside_ours(setup: ExperimentSetup) -> None:
    table = run_experiment("main", setup).table("Total test loss")
    records = Results.load(setup.out / "main-results.json").records
    labels = {(record.method, record.budget) for record in records}
    grouping = ("random", "cs", "hoa", "tag", "optimal", "oracle")
    assert labels == {(name, None) for name in ("mtl", "stl", "gradnorm:1.5")} | {
        (n, k) for n in grouping for k in (2, 3)
    }
    assert setup.seeds == range(1)
    totals = {(r.method, r.budget): sum(score.loss for score in r.test.values()) for r in records}
    printed = {}
    for method, groups, total, *_, paper in table.rows:
        assert isinstance(total, Value)
        assert total.mean == pytest.approx(totals[method, None if groups == "-" else groups])
        printed[method, groups] = paper and str(paper)
    assert (printed["mtl", "-"], printed["tag", 3], printed["random", 2]) == ("0.5940", "0.5246", None)


def test_the_destructive_task_reads_labels_of_other_rows(setup: ExperimentSetup) -> None:
    harmful = with_destructive_task(setup.problem)
    rows = torch.arange(len(harmful.train))
    inputs, targets = harmful.train.batch(rows)
    wanted, own = setup.problem.train.batch(rows)
    assert torch.equal(inputs, wanted)
    order = harmful.train.reader.order
    assert sorted(order.tolist()) == rows.tolist()
    torch.testing.assert_close(targets["destructive"], own["segmentation"][order], equal_nan=True)
    assert harmful.fingerprint != setup.problem.fingerprint


def test_an_invalid_folder_ends_the_command_with_status_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = write_taskonomy(tmp_path / "data", views=1)
    (data / "test_models.txt").unlink()
    command = ["paper", "main", "--problem", "taskonomy", "--with", f"data={data}", "--out", str(tmp_path / "run")]
    assert main(command) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "test_models.txt" in err
    assert not (tmp_path / "run").exists()
