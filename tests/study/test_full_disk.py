"""A study on a full disk or in a read-only folder says what could not be written, and loses nothing else."""

import errno
import logging
import sqlite3
from pathlib import Path

import pytest
from study_small import small_problem

from full_disk import FULL, fill_database, fill_disk
from kill_at import records_without_times
from tagalong.study import Best, Results, StoreError, Study, store

pytestmark = pytest.mark.usefixtures("one_thread")
LAST_FILES = {"networks": "networks.json", "results.json": "results.json", "report.html": "report.html"}


def study(out: Path) -> Study:
    return Study(small_problem(), out, device="cpu")


def run(one: Study) -> Results:
    return one.run(methods=["mtl", "stl", "tag"], budgets=[2], seeds=2)


@pytest.mark.usefixtures("page")
def test_what_cannot_be_written_at_the_end_is_said_and_the_rest_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    one = study(tmp_path)
    for name, file in LAST_FILES.items():
        with monkeypatch.context() as patch:
            fill_disk(patch, lambda path, file=file: path.name == file)
            results = run(one)
        sentence = f"{tmp_path / name} could not be written: {FULL}"
        assert any(said.startswith(sentence) for said in one.unwritten)
        assert any(record.levelno == logging.ERROR and sentence in record.message for record in caplog.records)
        assert "Traceback" not in caplog.text
    assert records_without_times(run(one)) == records_without_times(results)
    assert one.unwritten == ()
    assert {path.name for path in tmp_path.iterdir()} >= set(LAST_FILES)
    Best.load(tmp_path)


def test_the_error_names_a_store_without_space_and_finished_networks_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        fill_database(patch, pages=12)
        with pytest.raises(OSError, match=FULL) as caught:
            run(study(tmp_path / "full"))
    assert caught.value.errno == errno.ENOSPC
    assert caught.value.filename == str(tmp_path / "full" / "run.sqlite")
    again, clean = run(study(tmp_path / "full")), run(study(tmp_path / "clean"))
    assert records_without_times(again) == records_without_times(clean)


def test_a_read_only_folder_still_answers_and_says_what_it_cannot_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = study(tmp_path)
    results, connect = run(one), sqlite3.connect

    def connect_read_only(path: Path, **options: float) -> sqlite3.Connection:
        return connect(f"file:{path}?mode=ro", uri=True, **options)

    monkeypatch.setattr(store.sqlite3, "connect", connect_read_only)
    assert one.best().groups == results.verdict().groups
    with pytest.raises(StoreError, match=r"run\.sqlite.*readonly"):
        one.run(methods=["optimal"], budgets=[2], seeds=2)
