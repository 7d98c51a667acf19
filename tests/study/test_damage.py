"""Damaged, edited and strangers' files of a run give one sentence, and never run code."""

import io
import json
import pickle
import random
import shutil
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pytest
import torch
from external_losses import TASKS, tell
from study_small import small_problem
from watched_executor import WatchedExecutor

from kill_at import records_without_times
from tagalong.affinity import Affinity
from tagalong.errors import InvalidInput
from tagalong.files import DocumentError, checksum, open_atomic
from tagalong.learn import engine
from tagalong.study import Best, ExternalStudy, Results, StoreError, Study, executors, read_run

pytestmark = pytest.mark.usefixtures("one_thread")

PROBLEM = small_problem("ab")


def continue_run(out: Path, **study: Any) -> Results:
    return Study(PROBLEM, out, device="cpu", **study).run(["mtl", "tag"], [2], 2)


@pytest.fixture(scope="module")
def intact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("intact")
    continue_run(out)
    return out


@pytest.fixture(scope="module")
def external(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns the folder of a study of networks trained elsewhere."""
    out = tmp_path_factory.mktemp("external")
    study = ExternalStudy(TASKS, out)
    study.plan(Affinity.from_matrix(np.eye(4), TASKS), methods=["tag"], seeds=1)
    tell(study, study.pending()[0])
    return out


def read_external(folder: Path) -> object:
    return ExternalStudy(TASKS, folder).ask()


def predict(folder: Path) -> object:
    return Best.load(folder).predict(PROBLEM.test.inputs[:3])


def check(folder: Path) -> object:
    return Study(PROBLEM, folder, device="cpu").check(["mtl"])


# A reader of each document, and an entry with a value that it rejects.
DOCUMENTS: dict[str, tuple[Callable[[Path], object], Sequence[str | int], Any]] = {
    "results.json": (read_run, ("records", 1, "seed"), "x"),
    "settings.json": (check, ("problem", "fingerprint"), 3),
    "groupings.json": (read_run, ("groupings", 1, "grouping", "value"), "x"),
    "affinity.json": (read_run, ("mean", 0, 1), "x"),
    "networks/networks.json": (predict, ("tasks", 0, "kind"), "ordinal"),
    "external/settings.json": (read_external, ("trained_elsewhere", "seeds", 0), None),
}


def copied(folder: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(folder, tmp_path / "copy"))


def edit(path: Path, place: Sequence[str | int], value: Any) -> None:
    document = json.loads(path.read_text())
    inside = document
    for name in place[:-1]:
        inside = inside[name]
    inside[place[-1]] = value
    path.write_text(json.dumps(document))


@pytest.mark.parametrize("damage", ["truncated", "unknown version", "edited entry"])
@pytest.mark.parametrize("file", DOCUMENTS)
def test_a_document_that_cannot_be_read_is_named_in_one_sentence(
    intact: Path, external: Path, tmp_path: Path, file: str, damage: str
) -> None:
    folder = copied(external if file.startswith("external") else intact, tmp_path)
    path, (read, place, value) = folder / file.removeprefix("external/"), DOCUMENTS[file]
    if damage == "truncated":
        path.write_bytes(path.read_bytes()[:-20])
    elif damage == "unknown version":
        edit(path, ["version"], 99)
    else:
        edit(path, place, value)
    with pytest.raises(InvalidInput) as caught:
        read(folder)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert damage != "unknown version" or "99" in str(caught.value)


@pytest.mark.parametrize(
    ("file", "place", "value"),
    [
        ("networks/networks.json", ("tasks", 0, "scale"), [1.0]),
        ("external/settings.json", ("trained_elsewhere", "tasks", 0), {}),
        ("external/settings.json", ("trained_elsewhere", "affinities"), {}),
        ("external/settings.json", ("trained_elsewhere", "budgets"), [9]),
    ],
)
def test_entries_that_do_not_fit_the_others_are_found_when_a_file_is_read(
    intact: Path, external: Path, tmp_path: Path, file: str, place: Sequence[str | int], value: Any
) -> None:
    folder = copied(external if file.startswith("external") else intact, tmp_path)
    path = folder / file.removeprefix("external/")
    edit(path, place, value)
    with pytest.raises(DocumentError, match=str(place[-1] if file.startswith("external") else "damaged")) as caught:
        read_external(folder) if file.startswith("external") else Best.load(folder)
    assert str(path) in str(caught.value)


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


def flipped(content: bytes) -> bytes:
    place = random.Random(0).randrange(len(content))
    return content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]


@pytest.mark.parametrize("dump", [None, pickled, pickle.dumps])
def test_damaged_weights_never_predict_and_strangers_pickles_never_run(
    intact: Path, tmp_path: Path, dump: Callable[[Any], bytes] | None
) -> None:
    folder, ran = copied(intact, tmp_path) / "networks", tmp_path / "ran"
    (path,) = folder.glob("*.safetensors")
    content = flipped(path.read_bytes()) if dump is None else dump(Exploit(ran))
    if dump is not None:
        path = path.with_name(f"weights-{checksum(content)[:16]}.safetensors")
        edit(folder / "networks.json", ["weights"], path.name)
    path.write_bytes(content)
    with pytest.raises(InvalidInput, match="safetensors is damaged"):
        predict(folder)
    assert not ran.exists()


def test_a_pickle_in_a_strangers_store_never_runs(intact: Path, tmp_path: Path) -> None:
    folder, ran = copied(intact, tmp_path), tmp_path / "ran"
    with closing(sqlite3.connect(folder / "run.sqlite")) as connection, connection:
        connection.execute("UPDATE arrays SET content = ?", (pickled(Exploit(ran)),))
    with pytest.raises(StoreError, match=r"run\.sqlite is damaged"):
        Study(PROBLEM, folder, device="cpu").best()
    assert not ran.exists()


@pytest.mark.parametrize("damage", ["truncated", "pickle"])
def test_damaged_and_strangers_checkpoints_are_ignored_with_a_warning(
    intact: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, damage: str
) -> None:
    @contextmanager
    def save_and_stop(path: Path) -> Iterator[BinaryIO]:
        with open_atomic(path) as file:
            yield file
        raise KeyboardInterrupt

    out, ran = tmp_path / "run", tmp_path / "ran"
    monkeypatch.setattr(executors, "CHECKPOINT_SECONDS", 0.0)
    with monkeypatch.context() as patch:
        patch.setattr(engine, "open_atomic", save_and_stop)
        with pytest.raises(KeyboardInterrupt):
            continue_run(out)
    (checkpoint,) = (out / "partial").iterdir()
    stranger = pickled({"of": "anything", "best": Exploit(ran)})
    checkpoint.write_bytes(stranger if damage == "pickle" else checkpoint.read_bytes()[:-20])
    results = continue_run(out)
    assert not ran.exists()
    assert f"could not use {checkpoint}" in caplog.text
    assert records_without_times(results) == records_without_times(Results.load(intact))


def test_a_run_that_was_moved_predicts_and_continues_without_training(intact: Path, tmp_path: Path) -> None:
    (tmp_path / "else where").mkdir()
    moved = Path(shutil.move(copied(intact, tmp_path), tmp_path / "else where" / "moved"))
    np.testing.assert_equal(predict(moved), predict(intact))
    executor = WatchedExecutor()
    assert records_without_times(continue_run(moved, executor=executor)) == records_without_times(Results.load(intact))
    assert executor.jobs == []
