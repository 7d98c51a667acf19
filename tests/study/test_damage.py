"""Damage to the files of a run is detected, and strangers' files never run code."""

import io
import json
import logging
import os
import pickle
import random
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from study_small import small_problem

from kill_at import records_without_times
from old_run import to_version_2
from tagalong.errors import InvalidInput
from tagalong.files import add_checksum, checksum, document_text
from tagalong.learn import Job, trainer
from tagalong.study import Best, Results, Store, StoreError, Study, executors
from tagalong.study.store import _row_checksum

pytestmark = pytest.mark.slow

PROBLEM = small_problem("ab")
ROWS = PROBLEM.test.inputs[:3]
FLIPS = 70


@pytest.fixture(autouse=True)
def _no_page(monkeypatch: pytest.MonkeyPatch, one_thread: None) -> None:
    """Leaves out the report, which takes longer than everything else."""
    monkeypatch.setattr("tagalong.study.study.write_run_report", lambda out: None)


def continue_run(out: Path) -> Results:
    return Study(PROBLEM, out, device="cpu").run(["mtl", "stl", "tag"], [2], 2)


@pytest.fixture(scope="module")
def intact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "intact"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tagalong.study.study.write_run_report", lambda out: None)
        continue_run(out)
    return out


@pytest.fixture
def copy(intact: Path, tmp_path: Path) -> Callable[[], Path]:
    """Returns a function that makes a fresh copy of the run."""
    numbers = iter(range(1000))
    return lambda: Path(shutil.copytree(intact, tmp_path / f"copy{next(numbers)}"))


def flip(path: Path, rng: random.Random, count: int) -> None:
    content = bytearray(path.read_bytes())
    for _ in range(count):
        content[rng.randrange(len(content))] ^= rng.randrange(1, 256)
    path.write_bytes(content)


def predictions(out: Path) -> dict[str, list[float]]:
    return {task: values.tolist() for task, values in Best.load(out).predict(ROWS).items()}


@pytest.fixture
def trainings(monkeypatch: pytest.MonkeyPatch) -> list[Job]:
    """Collects the networks that are trained from now on."""
    found: list[Job] = []
    train = executors.train_chunk

    def train_and_note(problem: Any, chunk: executors.Chunk, *more: Any) -> Any:
        found.extend(chunk.jobs)
        return train(problem, chunk, *more)

    monkeypatch.setattr(executors, "train_chunk", train_and_note)
    return found


@pytest.mark.parametrize("count", [1, 16])
def test_a_store_with_flipped_bytes_is_refused_or_gives_the_same_numbers(
    intact: Path, copy: Callable[[], Path], count: int, caplog: pytest.LogCaptureFixture
) -> None:
    expected = records_without_times(Results.load(intact)), predictions(intact)
    rng, refused, mended = random.Random(count), 0, 0
    for _ in range(FLIPS if count == 1 else FLIPS // 5):
        out = copy()
        flip(out / "run.sqlite", rng, count)
        caplog.clear()
        try:
            found = records_without_times(continue_run(out)), predictions(out)
        except StoreError as error:
            assert str(out / "run.sqlite") in str(error)  # noqa: PT017 - not every flip is an error
            refused += 1
        else:
            assert found == expected
            mended += str(out / "run.sqlite") in caplog.text
        shutil.rmtree(out)
    assert mended
    assert refused or count == 1


@pytest.mark.parametrize("file", ["network-1.pt", "example.pt", "networks.json"])
def test_networks_with_flipped_bytes_never_predict_silently(
    copy: Callable[[], Path], file: str, caplog: pytest.LogCaptureFixture
) -> None:
    rng = random.Random(0)
    for count in [1] * 10 + [16] * 10:
        out = copy()
        flip(out / "networks" / file, rng, count)
        caplog.clear()
        try:
            predictions(out)
        except InvalidInput as error:
            # a checksum in the document may be the damaged part
            assert file in str(error) or "checksum does not match" in str(error)  # noqa: PT017 - may still be valid
        else:
            assert f"{file} has been edited or damaged" in caplog.text


@pytest.mark.parametrize("file", ["results.json", "settings.json", "groupings.json", "affinity.json"])
def test_documents_with_flipped_bytes_are_never_read_silently(
    copy: Callable[[], Path], file: str, caplog: pytest.LogCaptureFixture
) -> None:
    from tagalong.study.finished_run import read_run
    from tagalong.study.run_folder import check_folder

    rng = random.Random(0)
    for count in [1] * 10 + [16] * 10:
        out = copy()
        flip(out / file, rng, count)
        caplog.clear()
        try:
            check_folder(out, PROBLEM.fingerprint) if file == "settings.json" else read_run(out)
        except InvalidInput as error:
            assert file in str(error) or "different problem" in str(error)  # noqa: PT017 - may still be valid
        else:
            assert f"{file} has been edited or damaged" in caplog.text


def pause(out: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Interrupts a study after its first checkpoint, which is returned."""

    def save_and_stop(path: Path, training: Any) -> None:
        save(path, training)
        raise KeyboardInterrupt

    save = trainer.save_checkpoint
    monkeypatch.setattr(executors, "CHECKPOINT_SECONDS", 0.0)
    with monkeypatch.context() as patch:
        patch.setattr(trainer, "save_checkpoint", save_and_stop)
        with pytest.raises(KeyboardInterrupt):
            continue_run(out)
    (checkpoint,) = (out / "partial").iterdir()
    return checkpoint


@pytest.mark.parametrize("count", [1, 16])
def test_a_checkpoint_with_flipped_bytes_is_ignored_with_a_warning(
    intact: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, count: int
) -> None:
    checkpoint = pause(tmp_path, monkeypatch)
    flip(checkpoint, random.Random(count), count)
    results = continue_run(tmp_path)
    assert f"could not use {checkpoint} (the checksum does not match)" in caplog.text
    assert records_without_times(results) == records_without_times(Results.load(intact))


class Exploit:
    """Creates a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


def pickled(value: Any) -> bytes:
    content = io.BytesIO()
    torch.save(value, content)
    return content.getvalue()


def test_a_pickle_in_a_strangers_checkpoint_never_runs(
    intact: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    checkpoint, ran = pause(tmp_path / "run", monkeypatch), tmp_path / "ran"
    checkpoint.write_bytes(add_checksum(pickled({"of": "anything", "best": Exploit(ran)})))
    results = continue_run(tmp_path / "run")
    assert not ran.exists()
    assert f"could not use {checkpoint} (it contains more than tensors and plain values)" in caplog.text
    assert records_without_times(results) == records_without_times(Results.load(intact))


@pytest.mark.parametrize("dump", [pickled, pickle.dumps])
@pytest.mark.parametrize("file", ["network-1.pt", "example.pt"])
def test_a_pickle_in_a_strangers_networks_never_runs(
    copy: Callable[[], Path], tmp_path: Path, file: str, dump: Callable[[Any], bytes]
) -> None:
    folder, ran = copy() / "networks", tmp_path / "ran"
    (folder / file).write_bytes(dump(Exploit(ran)))
    document = json.loads((folder / "networks.json").read_text())
    document["checksums"][file] = checksum((folder / file).read_bytes())
    content = {name: value for name, value in document.items() if name not in ("format", "version", "checksum")}
    (folder / "networks.json").write_text(document_text(document["format"], document["version"], content))
    with pytest.raises(InvalidInput, match=rf"{file} is damaged: it contains more than tensors; run the study again"):
        Best.load(folder)
    assert not ran.exists()


def change_row(path: Path, table: str, **changed: Any) -> None:
    """Changes all rows of a table, with valid checksums."""
    from tagalong.study.store import CHECKED

    connection = sqlite3.connect(path)
    assignments = ", ".join(f"{column} = ?" for column in changed)
    with connection:
        connection.execute(f"UPDATE {table} SET {assignments}", list(changed.values()))
        for row, *values in connection.execute(f"SELECT rowid, {CHECKED[table]} FROM {table}").fetchall():
            connection.execute(f"UPDATE {table} SET checksum = ? WHERE rowid = ?", (_row_checksum(values), row))
    connection.close()


@pytest.mark.parametrize(
    ("table", "changed"),
    [
        ("networks", {"scores": "[]"}),
        ("networks", {"scores": "{"}),
        ("networks", {"definition": "{}"}),
        ("networks", {"definition": '{"tasks": 1, "seed": 0, "rule": "plain", "width": 1.0}'}),
        ("networks", {"losses": add_checksum(b"no archive")}),
        ("networks", {"batch": "{"}),
        ("affinities", {"affinity": add_checksum(b"no archive")}),
        ("affinities", {"settings": "[]"}),
    ],
)
def test_a_strangers_store_with_valid_checksums_and_strange_content_is_an_error(
    copy: Callable[[], Path], table: str, changed: dict[str, Any]
) -> None:
    out = copy()
    change_row(out / "run.sqlite", table, **changed)
    with pytest.raises(StoreError, match=rf"{out / 'run.sqlite'} .*delete it to train"):
        continue_run(out)


def test_a_pickle_in_a_strangers_store_never_runs(copy: Callable[[], Path], tmp_path: Path) -> None:
    out, ran = copy(), tmp_path / "ran"
    arrays = io.BytesIO()
    np.savez(arrays, val=np.array([Exploit(ran)]), test=np.array([Exploit(ran)]), allow_pickle=True)
    for column, content in (("weights", pickled(Exploit(ran))), ("losses", arrays.getvalue())):
        change_row(out / "run.sqlite", "networks", **{column: add_checksum(content)})
        with pytest.raises(StoreError, match=r"run.sqlite is damaged"):
            continue_run(out)
    assert not ran.exists()


def test_a_run_that_was_moved_predicts_and_continues_without_training(
    intact: Path, tmp_path: Path, trainings: list[Job]
) -> None:
    moved = Path(shutil.move(shutil.copytree(intact, tmp_path / "copy"), tmp_path / "else where" / "moved"))
    assert predictions(moved) == predictions(intact)
    assert records_without_times(continue_run(moved)) == records_without_times(Results.load(intact))
    assert not trainings


def test_a_store_of_version_2_is_converted_and_continues_without_training(
    intact: Path, copy: Callable[[], Path], trainings: list[Job], caplog: pytest.LogCaptureFixture
) -> None:
    out = copy()
    to_version_2(out / "run.sqlite")
    assert records_without_times(continue_run(out)) == records_without_times(Results.load(intact))
    assert predictions(out) == predictions(intact)
    assert not trainings
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
    with Store(out / "run.sqlite") as store, Store(intact / "run.sqlite") as other:
        dumped = [list(one._connection.iterdump()) for one in (store, other)]
    assert sorted(dumped[0][2:]) == sorted(dumped[1][2:]) or len(dumped[0]) == len(dumped[1])


def make_folder(path: Path) -> None:
    path.mkdir()


@pytest.mark.parametrize(("make", "reason"), [(make_folder, "Is a directory"), (os.mkfifo, "Not a regular file")])
@pytest.mark.parametrize("file", ["network-1.pt", "example.pt"])
def test_a_file_of_a_network_that_cannot_be_read_is_named(
    copy: Callable[[], Path], file: str, make: Callable[[Path], None], reason: str
) -> None:
    path = copy() / "networks" / file
    path.unlink()
    make(path)
    with pytest.raises(InvalidInput, match=rf"^\S*{file} cannot be read: {reason}$"):
        Best.load(path.parent)


def test_a_checkpoint_that_is_no_file_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint = pause(tmp_path, monkeypatch)
    checkpoint.unlink()
    os.mkfifo(checkpoint)
    with pytest.raises(ValueError, match=rf"{checkpoint} must be a file, found a pipe or device"):
        continue_run(tmp_path)
