"""The atomic writer, and versioned documents."""

import json
import os
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tagalong.errors import InvalidInput
from tagalong.files import (
    DocumentError,
    open_atomic,
    pack_arrays,
    read_document,
    report_damage,
    unpack_arrays,
    write_atomic,
    write_document,
)

KIND = "tagalong-example"


class ExampleFileError(DocumentError):
    pass


def read(path: Path) -> Any:
    return read_document(path, KIND, 2, lambda document: document["loss"], ExampleFileError, "train again")


@pytest.mark.parametrize(("content", "written"), [("ä\n", "ä\n".encode()), (b"\x00\xff", b"\x00\xff")])
def test_text_and_bytes_are_written_as_they_are(tmp_path: Path, content: str | bytes, written: bytes) -> None:
    path = tmp_path / "new" / "folder" / "file"
    write_atomic(path, content)
    assert path.read_bytes() == written
    assert list(path.parent.iterdir()) == [path]


def test_a_stream_that_fails_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_atomic(path, "old")
    with pytest.raises(TypeError), open_atomic(path) as file:
        file.writelines([b"new", 3])
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_readers_see_the_old_file_until_the_new_one_is_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, synced, sync = tmp_path / "file", [], os.fsync
    write_atomic(path, "old")

    def watch(file: int) -> None:
        synced.append(path.read_text())
        sync(file)

    monkeypatch.setattr(os, "fsync", watch)
    with open_atomic(path) as file:
        file.write(b"new")
    assert (synced, path.read_text()) == (["old"], "new")


def test_a_document_holds_format_and_version_and_is_strict_json(tmp_path: Path) -> None:
    content = {"loss": float("nan"), "sizes": (np.int64(3), np.float32(0.5)), "mean": np.array([[1.0, -np.inf]])}
    write_document(tmp_path / "a.json", KIND, 2, content)
    text = (tmp_path / "a.json").read_text()
    assert text.endswith("}\n")
    document = json.loads(text, parse_constant=pytest.fail)
    assert document == {"format": KIND, "version": 2, "loss": None, "sizes": [3, 0.5], "mean": [[1.0, None]]}


def test_objects_need_a_conversion(tmp_path: Path) -> None:
    with pytest.raises(TypeError):
        write_document(tmp_path / "a.json", KIND, 2, {"loss": {1, 2}})
    write_document(tmp_path / "a.json", KIND, 2, {"loss": {1}}, default=repr)
    assert read(tmp_path / "a.json") == "{1}"


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[1]",
        '{"format": "tagalong-example", "version": 2, "loss": ' + "9" * 5000 + "}",
        '{"version": 2, "loss": 0.5}',
        '{"format": "x", "version": 2, "loss": 0.5}',
        '{"format": "tagalong-example", "loss": 0.5}',
        '{"format": "tagalong-example", "version": 1, "loss": 0.5}',
        '{"format": "tagalong-example", "version": "2", "loss": 0.5}',
        '{"format": "tagalong-example", "version": 2}',
    ],
)
def test_a_file_that_cannot_be_read_is_named_in_one_sentence(tmp_path: Path, content: str) -> None:
    path = tmp_path / "a.json"
    path.write_text(content)
    with pytest.raises(ExampleFileError) as caught:
        read(path)
    assert str(caught.value).startswith(f"{path} ")
    assert "\n" not in str(caught.value)


def test_a_missing_file_is_a_file_not_found_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read(tmp_path / "a.json")


def test_errors_about_damaged_files_do_not_refer_to_arguments() -> None:
    with pytest.raises(DocumentError) as caught, report_damage("a.json"):
        raise InvalidInput("tasks", "must be distinct", "'a' twice")
    assert str(caught.value) == "a.json is damaged: 'tasks' must be distinct, found 'a' twice; recreate it"
    with pytest.raises(DocumentError, match=r"a\.json is damaged: BadZipFile: no end"), report_damage("a.json"):
        raise zipfile.BadZipFile("no end")


def test_archives_hold_plain_arrays_only() -> None:
    packed = pack_arrays({"a b": np.arange(3), "c": np.array("text")})
    assert unpack_arrays(packed, ["a b"])["a b"].tolist() == [0, 1, 2]
    assert str(unpack_arrays(packed)["c"]) == "text"
    with pytest.raises(KeyError):
        unpack_arrays(packed, ["d"])
    with pytest.raises(ValueError, match="pickle"):
        unpack_arrays(pack_arrays({"a": np.array([{}])}))
