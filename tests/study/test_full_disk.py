"""A study on a full disk says what could not be written, and loses nothing else."""

import errno
import logging
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


@pytest.mark.parametrize("name", LAST_FILES)
def test_what_cannot_be_written_at_the_end_is_said_and_the_rest_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    one = study(tmp_path)
    with monkeypatch.context() as patch:
        fill_disk(patch, lambda path: path.name == LAST_FILES[name])
        results = run(one)
    sentence = f"{tmp_path / name} could not be written: {FULL}"
    assert any(said.startswith(sentence) for said in one.unwritten)
    assert any(record.levelno == logging.ERROR and sentence in record.message for record in caplog.records)
    assert "Traceback" not in caplog.text
    expected = set(LAST_FILES) - {name} - ({"report.html"} if name == "results.json" else set())  # made from it
    assert {path.name for path in tmp_path.iterdir()} & set(LAST_FILES) == expected
    assert records_without_times(run(one)) == records_without_times(results)
    assert one.unwritten == ()
    assert {path.name for path in tmp_path.iterdir()} >= set(LAST_FILES)
    Best.load(tmp_path)


@pytest.mark.parametrize("name", ["settings.json", "affinity.json", "groupings.json"])
def test_the_error_names_a_file_that_cannot_be_written_earlier(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    with monkeypatch.context() as patch:
        fill_disk(patch, lambda path: path.name == name)
        with pytest.raises(OSError, match=FULL) as caught:
            run(study(tmp_path))
    assert caught.value.filename == str(tmp_path / name)
    run(study(tmp_path))


@pytest.mark.parametrize("pages", [2, 12, 20])
def test_the_error_names_a_store_without_space_and_finished_networks_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pages: int
) -> None:
    with monkeypatch.context() as patch:
        fill_database(patch, pages)
        with pytest.raises(OSError, match=FULL) as caught:
            run(study(tmp_path / "full"))
    assert caught.value.errno == errno.ENOSPC
    assert caught.value.filename == str(tmp_path / "full" / "run.sqlite")
    again, clean = run(study(tmp_path / "full")), run(study(tmp_path / "clean"))
    assert records_without_times(again) == records_without_times(clean)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_log_that_cannot_be_written_is_said_once_and_without_a_traceback(capfd: pytest.CaptureFixture[str]) -> None:
    logger = logging.getLogger("tagalong.study")
    with log_to_file(Path("/dev/full")) as unwritten:
        logger.info("first")
        logger.info("second")
    assert unwritten == [f"/dev/full could not be written: {FULL}"]
    assert capfd.readouterr().err == ""
