"""Every run writes its page, and a run whose page cannot be drawn keeps its results."""

import logging
from pathlib import Path

import pytest
from study_small import small_problem

from tagalong.study import ExternalStudy, Results, Study
from tagalong.study.run_folder import write_run_report


def run(out: Path) -> Results:
    return Study(small_problem(), out).run(methods=["mtl", "stl", "tag"], budgets=[2], seeds=2)


def test_a_run_ends_with_its_page(tmp_path: Path) -> None:
    run(tmp_path)
    assert "Which tasks should train together?" in (tmp_path / "report.html").read_text(encoding="utf-8")


def test_results_are_kept_if_the_page_cannot_be_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(folder: Path) -> Path:
        raise RuntimeError("no ink")

    monkeypatch.setattr("tagalong.report.write_report", broken)
    (tmp_path / "report.html").write_text("of an earlier run")
    with caplog.at_level(logging.ERROR):
        results = run(tmp_path)
    assert "no ink" in caplog.text
    assert "the results are safe" in caplog.text
    assert Results.load(tmp_path).table() == results.table()
    assert not (tmp_path / "report.html").exists()


def test_an_external_study_gets_its_page(tmp_path: Path) -> None:
    study = ExternalStudy(["a", "b", "c"], tmp_path)
    study.plan(methods=["stl"], seeds=2)
    while (following := study.ask()) is not None:
        tasks, seed = following
        losses = {task: 1.0 + 0.1 * seed + 0.05 * len(tasks) for task in tasks}
        study.tell(tasks, seed, val=losses, test=losses)
    study.results()
    assert (tmp_path / "report.html").exists()


def test_an_unreadable_file_is_named_instead_of_the_page_that_is_made_from_it(tmp_path: Path) -> None:
    for name in ("results.json", "report.html"):
        (tmp_path / name).mkdir()
    sentence = write_run_report(tmp_path)
    assert sentence == f"{tmp_path / 'report.html'} could not be written: {tmp_path / 'results.json'}: Is a directory"
