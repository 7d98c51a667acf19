"""An external study writes its page. That of a study is tested with the code on it."""

from pathlib import Path

import pytest
from external_losses import TASKS, tell_all

from tagalong.study import ExternalStudy

pytestmark = pytest.mark.usefixtures("page")


def test_an_external_study_gets_its_page(tmp_path: Path) -> None:
    study = ExternalStudy(TASKS, tmp_path)
    study.plan(methods=["stl"], seeds=2)
    tell_all(study)
    study.results()
    assert (tmp_path / "report.html").exists()
