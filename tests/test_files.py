"""The atomic writer, and versioned documents."""

import errno
import json
import os
import zipfile
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kill_at import die
from tagalong.errors import InvalidInput
from tagalong.files import (
    UNVERSIONED,
    DocumentError,
    add_checksum,
    open_atomic,
    owner_mark,
    pack_arrays,
    read_document,
    remove_checksum,
    remove_leftovers,
    report_damage,
    unpack_arrays,
    write_atomic,
    write_document,
)

KIND = "tagalong-example"


class ExampleFileError(DocumentError):
    pass


def read(path: Path, versions: tuple[int, ...] = (2,)) -> Any:
    return read_document(path, KIND, versions, lambda document: document["loss"], ExampleFileError, "train again")


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
    found = json.loads(text, parse_constant=pytest.fail)
    assert len(found.pop("checksum")) == 16
    assert found == {"format": KIND, "version": 2, "loss": None, "sizes": [3, 0.5], "mean": [[1.0, None]]}


def test_objects_need_a_conversion(tmp_path: Path) -> None:
    with pytest.raises(TypeError):
        write_document(tmp_path / "a.json", KIND, 2, {"loss": {1, 2}})
    write_document(tmp_path / "a.json", KIND, 2, {"loss": {1}}, default=repr)
    assert read(tmp_path / "a.json") == "{1}"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "is not valid JSON: Expecting value: line 1 column 1 (char 0); is it truncated?"),
        ('{"loss": NaN}', "is not valid JSON: the constant NaN; is it truncated?"),
        ("[1]", "must have the format 'tagalong-example', found 'list'; choose another file"),
        ("{}", "must have the format 'tagalong-example', found None; choose another file"),
        ('{"format": "x", "version": 2}', "must have the format 'tagalong-example', found 'x'; choose another file"),
        ('{"format": "tagalong-example"}', "must have version 2, found None; train again"),
        ('{"format": "tagalong-example", "version": 1}', "must have version 2, found 1; train again"),
        ('{"format": "tagalong-example", "version": 3}', "must have version 2, found 3; update tagalong"),
        ('{"format": "tagalong-example", "version": "2"}', "must have version 2, found '2'; train again"),
        ('{"format": "tagalong-example", "version": 2}', "is damaged: KeyError: 'loss'; train again"),
    ],
)  # fmt: skip
def test_the_error_for_an_unreadable_file_says_why_and_what_to_do(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "a.json"
    path.write_text(content)
    with pytest.raises(ExampleFileError) as caught:
        read(path)
    assert str(caught.value) == f"{path} {message}"


def test_several_versions_can_be_read(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    write_document(path, KIND, 1, {"loss": 0.5})
    assert read(path, (1, 2)) == 0.5
    with pytest.raises(ExampleFileError, match="must have version 2 or 3, found 1"):
        read(path, (3, 2))


def test_a_document_without_a_format_is_read_if_that_is_allowed(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text('{"loss": 0.5}')
    assert read(path, (UNVERSIONED, 2)) == 0.5
    path.write_text('{"format": "other", "loss": 0.5}')
    with pytest.raises(ExampleFileError, match="found 'other'"):
        read(path, (UNVERSIONED, 2))


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
    packed = pack_arrays({"a b": np.arange(3), "c": np.array("text")}, compress=True)
    assert unpack_arrays(packed, ["a b"])["a b"].tolist() == [0, 1, 2]
    assert str(unpack_arrays(packed)["c"]) == "text"
    with pytest.raises(KeyError):
        unpack_arrays(packed, ["d"])
    with pytest.raises(ValueError, match="pickle"):
        unpack_arrays(pack_arrays({"a": np.array([{}])}))


def test_an_edited_document_is_read_with_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "a.json"
    write_document(path, KIND, 2, {"loss": 0.25, "task": "age"})
    document = json.loads(path.read_text())
    path.write_text(json.dumps(dict(reversed(document.items()))))  # the order and white space do not matter
    assert (read(path), caplog.text) == (0.25, "")
    path.write_text(json.dumps(document | {"loss": 0.75}))
    assert read(path) == 0.75
    assert f"{path} has been edited or damaged since it was written" in caplog.text
    caplog.clear()
    path.write_text(json.dumps({"format": KIND, "version": 2, "loss": 0.75}))  # written by hand, without a checksum
    assert (read(path), caplog.text) == (0.75, "")


@pytest.mark.parametrize("position", [0, 10, 20, 40, -1])
def test_checked_content_with_a_changed_byte_is_rejected(position: int) -> None:
    checked = bytearray(add_checksum(b"weights and more"))
    assert remove_checksum(bytes(checked)) == b"weights and more"
    checked[position] ^= 1
    with pytest.raises(ValueError, match="the checksum does not match"):
        remove_checksum(bytes(checked))
    with pytest.raises(ValueError, match="the checksum does not match"):
        remove_checksum(b"")


def test_a_full_disk_is_reported_with_the_name_of_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(file: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left") as caught:
        write_atomic(tmp_path / "file", "new")
    assert caught.value.filename == str(tmp_path / "file")
    assert not list(tmp_path.iterdir())


def die_while_writing(path: Path) -> None:
    with open_atomic(path):
        die()


def test_leftovers_of_killed_processes_are_removed_and_files_of_running_ones_are_kept(
    processes: ForkServerContext, tmp_path: Path
) -> None:
    killed = processes.Process(target=die_while_writing, args=(tmp_path / "killed.csv",))
    killed.start()
    killed.join()
    (left,) = tmp_path.iterdir()
    assert left.name.startswith(".killed.csv.")
    with open_atomic(tmp_path / "running.csv") as file:
        file.write(b"new")
        remove_leftovers(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["running.csv"]


def test_a_process_id_in_use_again_does_not_protect_leftovers(tmp_path: Path) -> None:
    machine, process, start, _ = owner_mark().split("-")
    if start == "0":
        pytest.skip("the start of a process is not known on this system")
    (tmp_path / f".networks.{machine}-{process}-{int(start) - 1}-0a1b2c3d.before").mkdir()
    remove_leftovers(tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("mark", ["0a1b2c3d-1-1-0a1b2c3d", "0a1b2c3d" * 4], ids=["another machine", "no owner"])
def test_leftovers_whose_owner_cannot_be_looked_up_are_removed_after_a_day(tmp_path: Path, mark: str) -> None:
    path = tmp_path / f".file.{mark}.tmp"
    path.touch()
    remove_leftovers(tmp_path)
    assert path.exists()
    os.utime(path, (0, 0))
    remove_leftovers(tmp_path)
    assert not path.exists()


def test_nothing_else_is_a_leftover(tmp_path: Path) -> None:
    names = ["file.tmp", ".hidden", ".file.tmp", f"file.{owner_mark()}.tmp", "tagalong-notes", ".networks.old"]
    for name in names:
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (0, 0))
    remove_leftovers(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == set(names)


def test_every_byte_of_a_compressed_archive_may_be_damaged() -> None:
    packed = pack_arrays({"losses": np.arange(40.0)}, compress=True)
    intact = unpack_arrays(packed)["losses"].tolist()
    for place in range(len(packed)):
        damaged = bytearray(packed)
        damaged[place] ^= 255
        try:
            with report_damage("told.npz"):
                assert unpack_arrays(bytes(damaged), ["losses"])["losses"].tolist() == intact
        except DocumentError as error:
            assert str(error).startswith("told.npz is damaged")  # noqa: PT017 - some bytes mean nothing


def test_a_document_must_be_a_regular_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.json")
    with pytest.raises(OSError, match=r"Not a regular file: '.*a\.json'"):
        read_document(tmp_path / "a.json", "tagalong-example", (1,), dict)


def test_an_integer_of_thousands_of_digits_is_an_error_without_advice_to_raise_the_limit(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text(f'{{"format": "{KIND}", "version": 2, "loss": {"9" * 5000}}}')
    with pytest.raises(DocumentError, match=r"^\S*a\.json is not valid JSON: an integer has thousands of digits"):
        read(path)
