"""A study on a full disk or in a read-only folder says what could not be written, and loses nothing else."""

import errno
import logging
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from study_small import small_problem

from full_disk import FULL, fill_database, fill_disk
from kill_at import records_without_times
from tagalong.study import Best, Results, Study
from tagalong.study.run_folder import log_to_file

pytestmark = pytest.mark.usefixtures("one_thread")
LAST_FILES = {"networks": "networks.json", "results.json": "results.json", "report.html": "report.html"}


def study(out: Path) -> Study:
    return Study(small_problem(), out, device="cpu")


def run(one: Study) -> Results:
    return one.run(methods=["mtl", "stl", "tag"], budgets=[2], seeds=2)


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


@pytest.fixture
def unprivileged() -> Iterator[Path]:
    """Returns an empty folder, in which root has no more rights than other users."""
    with tempfile.TemporaryDirectory() as folder:
        user = os.geteuid()
        if user == 0:
            os.chown(folder, 65534, -1)
            os.seteuid(65534)
        yield Path(folder)
        os.seteuid(user)


def test_a_finished_run_in_a_read_only_folder_can_be_used_and_not_continued(unprivileged: Path) -> None:
    results, problem = run(study(unprivileged)), small_problem()
    for path in [unprivileged, *unprivileged.rglob("*")]:
        path.chmod(0o555 if path.is_dir() else 0o444)
    assert records_without_times(study(unprivileged).results()) == records_without_times(results)
    assert Best.load(unprivileged).predict(problem.test.inputs).keys() == set(problem.names)
    with pytest.raises(OSError, match="Permission denied"):
        run(study(unprivileged))
    unprivileged.chmod(0o755)
    (unprivileged / "networks").chmod(0o755)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_log_that_cannot_be_written_is_said_once_and_without_a_traceback(capfd: pytest.CaptureFixture[str]) -> None:
    logger = logging.getLogger("tagalong.study")
    with log_to_file(Path("/dev/full")) as unwritten:
        logger.info("first")
        logger.info("second")
    assert unwritten == [f"/dev/full could not be written: {FULL}"]
    assert capfd.readouterr().err == ""
