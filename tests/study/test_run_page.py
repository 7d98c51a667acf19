"""Every run writes its page, and a run whose page cannot be drawn keeps its results."""

from pathlib import Path

import pytest
from external_losses import TASKS, tell_all
from study_small import small_problem

from tagalong.study import ExternalStudy, Results, Study

pytestmark = pytest.mark.usefixtures("page")


def run(out: Path) -> Results:
    return Study(small_problem(), out).run(methods=["mtl", "stl", "tag"], budgets=[2], seeds=2)


def test_a_run_ends_with_its_page(tmp_path: Path) -> None:
    run(tmp_path)
    assert "Which tasks should train together?" in (tmp_path / "report.html").read_text(encoding="utf-8")


def test_an_external_study_gets_its_page(tmp_path: Path) -> None:
    study = ExternalStudy(TASKS, tmp_path)
    study.plan(methods=["stl"], seeds=2)
    tell_all(study)
    study.results()
    assert (tmp_path / "report.html").exists()
