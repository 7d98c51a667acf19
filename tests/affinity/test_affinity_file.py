import hashlib
import io
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from affinity_oracle import Floats, histories, names
from hypothesis import given, settings

from tagalong.affinity import Affinity, AffinityFileError, formats

FIELDS = ("mean", "stderr", "count", "steps", "history", "null")


def assert_same(one: Affinity, other: Affinity) -> None:
    assert one.tasks == other.tasks
    assert one.settings == other.settings
    assert one.skipped.keys() == other.skipped.keys()
    arrays = [(getattr(one, name), getattr(other, name)) for name in FIELDS]
    for ours, theirs in [*arrays, *((one.skipped[key], other.skipped[key]) for key in one.skipped)]:
        assert ours.dtype == theirs.dtype
        np.testing.assert_array_equal(ours, theirs)
        np.testing.assert_array_equal(np.signbit(ours), np.signbit(theirs))


def measured(steps: int = 5, n: int = 3) -> Affinity:
    history = np.random.default_rng(0).standard_normal((steps, n, n)) * 1e-5
    history[0, 0, 1], history[1, 1, 1] = np.nan, -0.0
    return Affinity.from_history(
        history,
        names(n),
        np.arange(steps) * 10,
        null=np.zeros((steps, n)),
        skipped={"missing": np.eye(n, dtype=int)},
        settings={"estimator": "lookahead", "lr": 0.1, "tags": ["ä", None]},
    )


@given(data=histories(missing=True))
@settings(deadline=None)
def test_everything_is_read_back_bit_for_bit(
    data: tuple[Floats, Floats], tmp_path_factory: pytest.TempPathFactory
) -> None:
    affinity = Affinity.from_history(data[0], names(data[0].shape[1]), null=data[1])
    path = tmp_path_factory.getbasetemp() / "affinity.json"
    affinity.save(path)
    assert_same(Affinity.load(path), affinity)


@pytest.mark.parametrize("inline", [True, False])
def test_short_and_long_histories_are_read_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, inline: bool) -> None:
    monkeypatch.setattr(formats, "MAX_INLINE_VALUES", 10**9 if inline else 0)
    measured().save(tmp_path / "affinity.json")
    assert len(list(tmp_path.iterdir())) == (1 if inline else 2)
    assert_same(Affinity.load(tmp_path / "affinity.json"), measured())


def test_an_affinity_without_history_is_read_back(tmp_path: Path) -> None:
    affinity = Affinity.from_matrix([[np.nan, 0.1], [0.3, 1e-300]], ["ä,b", 'c"\n'])
    affinity.save(str(tmp_path / "affinity.json"))
    assert_same(Affinity.load(str(tmp_path / "affinity.json")), affinity)


def test_the_file_is_strict_json_that_names_format_version_and_direction(tmp_path: Path) -> None:
    def reject_constant(name: str) -> None:
        raise AssertionError(name)

    measured().save(tmp_path / "affinity.json")
    document = json.loads((tmp_path / "affinity.json").read_text(), parse_constant=reject_constant)
    assert (document["format"], document["version"]) == ("tagalong-affinity", 1)
    assert document["direction"] == "[source][target]"
    assert document["history"][0][0][1] is None


def test_a_long_history_is_saved_in_an_archive_named_by_its_hash(tmp_path: Path) -> None:
    affinity = measured(steps=1200, n=9)
    affinity.save(tmp_path / "affinity.json")
    entry = json.loads((tmp_path / "affinity.json").read_text())["archive"]
    content = (tmp_path / entry["file"]).read_bytes()
    assert hashlib.sha256(content).hexdigest() == entry["sha256"]
    assert entry["sha256"][:16] in entry["file"]
    assert_same(Affinity.load(tmp_path / "affinity.json"), affinity)


def test_saving_again_removes_the_stale_archive_and_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(formats, "MAX_INLINE_VALUES", 0)
    for path in ("affinity.json", "affinity.json2", "affinity2.json"):
        measured().save(tmp_path / path)
    (tmp_path / "affinity.json.notes.npz").touch()
    measured(steps=7).save(tmp_path / "affinity.json")
    assert len(list(tmp_path.glob("*.npz"))) == 4
    for path in ("affinity.json", "affinity.json2", "affinity2.json"):
        Affinity.load(tmp_path / path)
    monkeypatch.setattr(formats, "MAX_INLINE_VALUES", 10**9)
    measured().save(tmp_path / "affinity.json")
    assert len(list(tmp_path.glob("*.npz"))) == 3


def run_before_first_call(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, other: Callable[[], None]) -> None:
    """Runs `other`, as another process might, just before the first call of a function."""
    real, turns = getattr(owner, name), [other]

    def function(*arguments: Any) -> Any:
        if turns:
            turns.pop()()
        return real(*arguments)

    monkeypatch.setattr(owner, name, function)


@pytest.mark.parametrize("steps", [5, 7])
@pytest.mark.parametrize("moment", ["_remove_stale_archives", "_archive_exists"])
def test_two_processes_that_save_at_once_do_not_remove_the_archive_in_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps: int, moment: str
) -> None:
    path, first, second = tmp_path / "affinity.json", measured(steps=steps), measured(steps=6)
    monkeypatch.setattr(formats, "MAX_INLINE_VALUES", 5 * 9)  # only the shortest history has no archive
    run_before_first_call(monkeypatch, formats, moment, lambda: second.save(path))
    first.save(path)
    found = Affinity.load(path)
    assert_same(found, first if len(found.steps) == steps else second)


def test_a_save_by_another_process_between_archive_and_json_harms_neither(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, replace, put = tmp_path / "affinity.json", os.replace, []
    monkeypatch.setattr(formats, "MAX_INLINE_VALUES", 0)

    def watched(new: Any, file: Any) -> None:
        replace(new, file)
        put.append(file)
        if len(put) == 1:
            measured(steps=7).save(path)

    monkeypatch.setattr(os, "replace", watched)
    measured().save(path)
    assert_same(Affinity.load(path), measured())
    assert len(list(tmp_path.glob("*.npz"))) == 1


def test_a_file_that_is_replaced_while_it_is_read_is_read_completely(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "affinity.json"
    monkeypatch.setattr(formats, "MAX_INLINE_VALUES", 0)
    measured().save(path)
    run_before_first_call(monkeypatch, formats, "_read_archive", lambda: measured(steps=7).save(path))
    assert_same(Affinity.load(path), measured(steps=7))


def test_a_relative_path_without_a_folder_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    measured().save("affinity.json")
    assert_same(Affinity.load("affinity.json"), measured())


@pytest.mark.parametrize("failing", [1, 2])
def test_a_failed_save_leaves_the_old_file_intact(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: int
) -> None:
    monkeypatch.setattr(formats, "MAX_INLINE_VALUES", 0)
    path = tmp_path / "affinity.json"
    measured().save(path)
    before = len(list(tmp_path.iterdir()))
    calls, real = [0], os.replace

    def replace(source: Any, target: Any) -> None:
        calls[0] += 1
        if calls[0] == failing:
            raise OSError("disk full")
        real(source, target)

    monkeypatch.setattr(os, "replace", replace)
    with pytest.raises(OSError, match="disk full"):
        measured(steps=7).save(path)
    assert_same(Affinity.load(path), measured())
    assert not list(tmp_path.glob("*.tmp"))
    assert not list(tmp_path.glob(".*"))
    assert len(list(tmp_path.iterdir())) == before + failing - 1


def test_saved_files_have_the_usual_permissions(tmp_path: Path) -> None:
    (tmp_path / "plain").touch()
    measured().save(tmp_path / "affinity.json")
    assert (tmp_path / "affinity.json").stat().st_mode == (tmp_path / "plain").stat().st_mode


def change(**entries: Any) -> Callable[[bytes], bytes]:
    return lambda content: json.dumps(json.loads(content) | entries).encode()


def drop(*keys: str) -> Callable[[bytes], bytes]:
    return lambda content: json.dumps({k: v for k, v in json.loads(content).items() if k not in keys}).encode()


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda content: b"", "is not valid JSON"),
        (lambda content: content[: len(content) // 2], "is not valid JSON.*truncated"),
        (lambda content: b"\x80\x81" + content, "is not valid JSON"),
        (lambda content: content.replace(b"null", b"NaN", 1), "is not valid JSON.*NaN"),
        (lambda content: b"[" * 100_000, "is not valid JSON"),
        (lambda content: b"[1, 2]", "must have the format .*, found 'list'"),
        (lambda content: b"{}", "must have the format .*, found None"),
        (change(format="other"), "must have the format 'tagalong-affinity', found 'other'"),
        (change(version=2), "must have version 1, found 2"),
        (change(version="one"), "must have version 1, found 'one'; save the affinity again"),
        (drop("mean", "steps"), "is missing required fields: mean, steps"),
        (change(tasks=["x"]), "is damaged: several problems"),
        (change(tasks=7), "is damaged"),
        (change(tasks=["task0", "task0", "task1"]), "is damaged: 'tasks' must be distinct"),
        (change(mean=[[1, 2], [3]]), "is damaged: 'mean' must be an array of numbers"),
        (change(mean=[["1", {}, 2]] * 3), "is damaged: 'mean' must be an array of numbers"),
        (change(history=[[[1, 2, 3]] * 3]), r"is damaged: 'history'.*\(5, 3, 3\) for 3 tasks, found \(1, 3, 3\)"),
        (change(null=[[0, 0, 0]]), "is damaged: 'null' must have shape"),
        (change(steps=[1, 2]), "is damaged"),
        (change(steps=7), "is damaged"),
        (change(skipped=[1]), "is damaged"),
        (change(settings=3), "is damaged"),
        (change(archive=3), "is damaged: the archive must be a file in the same folder, found None"),
        (change(archive={"file": "../x.npz"}), "the archive must be a file in the same folder, found '../x.npz'"),
        (change(archive={"file": "x.npz"}), "stores its history in .*x.npz, which is missing"),
    ],
)
def test_the_error_for_a_damaged_file_says_what_is_wrong(
    tmp_path: Path, damage: Callable[[bytes], bytes], message: str
) -> None:
    path = tmp_path / "affinity.json"
    measured().save(path)
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(AffinityFileError, match=message) as caught:
        Affinity.load(path)
    assert "affinity.json" in str(caught.value)


def test_a_truncated_file_never_loads(tmp_path: Path) -> None:
    path = tmp_path / "affinity.json"
    measured(steps=2, n=2).save(path)
    content = path.read_bytes()
    for length in range(0, len(content) - 2, 7):
        path.write_bytes(content[:length])
        with pytest.raises(AffinityFileError):
            Affinity.load(path)


def archive_of(**arrays: Any) -> bytes:
    content = io.BytesIO()
    np.savez(content, **arrays)
    return content.getvalue()


def test_archives_of_another_file_are_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(formats, "MAX_INLINE_VALUES", 0)
    path = tmp_path / "affinity.json"
    measured().save(path)
    archive = next(tmp_path.glob("*.npz"))
    archive.write_bytes(archive.read_bytes()[:-1])
    with pytest.raises(AffinityFileError, match=r"is not the history saved with .*: the hashes differ"):
        Affinity.load(path)
    archive.unlink()
    with pytest.raises(AffinityFileError, match="stores its history in"):
        Affinity.load(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"no zip", "is not a valid archive"),
        (archive_of(steps=[1]), "is not a valid archive with the arrays steps, history, null"),
        (archive_of(steps=[1], history=np.array([{}]), null=[1]), "is not a valid archive"),
        (archive_of(steps=[1], history=np.zeros((1, 2, 2)), null=np.zeros((1, 3))), "is damaged: 'history'"),
    ],
)
def test_archives_with_other_content_are_rejected(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "affinity.json"
    measured().save(path)
    (tmp_path / "x.npz").write_bytes(content)
    entry = {"file": "x.npz", "sha256": hashlib.sha256(content).hexdigest()}
    path.write_bytes(change(archive=entry)(path.read_bytes()))
    with pytest.raises(AffinityFileError, match=message):
        Affinity.load(path)


def test_a_missing_file_is_a_file_not_found_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        Affinity.load(tmp_path / "none.json")


def test_a_file_in_the_other_direction_is_rejected(tmp_path: Path) -> None:
    path = tmp_path / "affinity.json"
    Affinity.from_matrix([[1, 2], [3, 4]], ["a", "b"]).save(path)
    path.write_text(path.read_text().replace("[source][target]", "[target][source]"))
    with pytest.raises(
        AffinityFileError, match=r"must store affinities in the direction .*, found '\[target\]\[source\]'"
    ):
        Affinity.load(path)


def test_saving_makes_the_folder_and_rejects_a_folder_as_path(tmp_path: Path) -> None:
    affinity = Affinity.from_matrix([[1, 2], [3, 4]], ["a", "b"])
    affinity.save(tmp_path / "runs" / "mine" / "affinity.json")
    assert Affinity.load(tmp_path / "runs" / "mine" / "affinity.json").tasks == ("a", "b")
    with pytest.raises(IsADirectoryError, match="is a folder"):
        affinity.save(tmp_path / "runs")
