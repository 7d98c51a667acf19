"""Affinities in JSON and CSV files: everything is read back, and other files are refused."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from affinity_oracle import Floats, histories, names
from hypothesis import given, settings, strategies as st
from hypothesis.extra import numpy as npst

from tagalong.affinity import CAUTION, Affinity
from tagalong.errors import InvalidInput

FIELDS = ("mean", "stderr", "count", "steps", "history", "null")


def assert_same(one: Affinity, other: Affinity) -> None:
    assert (one.tasks, one.settings) == (other.tasks, other.settings)
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


def test_an_affinity_without_history_is_read_back(tmp_path: Path) -> None:
    affinity = Affinity.from_matrix([[np.nan, 0.1], [0.3, 1e-300]], ["ä,b", 'c"\n'])
    affinity.save(str(tmp_path / "new" / "affinity.json"))
    assert_same(Affinity.load(str(tmp_path / "new" / "affinity.json")), affinity)
    with pytest.raises(IsADirectoryError):
        affinity.save(tmp_path / "new")


def test_the_file_is_strict_json_that_names_format_version_direction_and_caution(tmp_path: Path) -> None:
    measured().save(tmp_path / "affinity.json")
    document = json.loads((tmp_path / "affinity.json").read_text(), parse_constant=pytest.fail)
    assert (document["format"], document["version"]) == ("tagalong-affinity", 1)
    assert document["direction"] == "[source][target]"
    assert document["caution"] == CAUTION
    assert document["mean"] == measured().mean.tolist()


def test_a_failed_save_leaves_the_old_file_intact(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measured().save(path := tmp_path / "affinity.json")

    def fail(source: Any, target: Any) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="disk full"):
        measured(6).save(path)
    assert_same(Affinity.load(path), measured())
    assert [entry.name for entry in tmp_path.iterdir()] == ["affinity.json"]


def change(**entries: Any) -> Callable[[bytes], bytes]:
    return lambda content: json.dumps(json.loads(content) | entries).encode()


@pytest.mark.parametrize(
    ("damage", "part"),
    [
        (lambda content: content[: len(content) // 2], "JSON"),
        (lambda content: b"\x80\x81" + content, "JSON"),
        (lambda content: content.replace(b"null", b"NaN", 1), "JSON"),
        (lambda content: b"[" * 100_000, "JSON"),
        (lambda content: b"[1, 2]", "format"),
        (change(format="other"), "format"),
        (change(version=2), "version 1, found 2"),
        (change(direction="[target][source]"), "direction"),
        (lambda content: content.replace(b'"mean"', b'"means"'), "mean"),
        (change(tasks=7), "damaged"),
        (change(tasks=["task0", "task0", "task1"]), "'tasks'"),
        (change(mean=[[1, 2]]), "'mean'"),
        (change(per_step="UEsDBBQAAAA="), "damaged"),
        (change(per_step=7), "damaged"),
        (change(skipped=[1]), "damaged"),
        (change(settings=3), "damaged"),
    ],
)
def test_damaged_files_are_refused(tmp_path: Path, damage: Callable[[bytes], bytes], part: str) -> None:
    path = tmp_path / "affinity.json"
    measured().save(path)
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(InvalidInput, match=part) as caught:
        Affinity.load(path)
    assert "affinity.json" in str(caught.value)


def test_the_error_for_a_missing_file_names_it(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        Affinity.load(tmp_path / "affinity.json")
    with pytest.raises(InvalidInput, match=r"table\.csv"):
        Affinity.from_csv(tmp_path / "table.csv")


task_names = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0\r\t;|"), min_size=1).filter(
    lambda name: name == name.strip()
)


@given(data=st.data())
@settings(deadline=None)
def test_a_saved_table_is_read_back_exactly(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    tasks = data.draw(st.lists(task_names | st.just("source"), min_size=1, max_size=4, unique=True))
    values = st.floats(allow_infinity=False)
    matrix = data.draw(npst.arrays(np.float64, (len(tasks), len(tasks)), elements=values))
    path = tmp_path_factory.getbasetemp() / "table.csv"
    affinity = Affinity.from_matrix(matrix, tasks)
    assert affinity.to_csv(path) == affinity.to_csv()
    other = Affinity.from_csv(path)
    assert other.tasks == affinity.tasks
    np.testing.assert_array_equal(other.mean, affinity.mean)


def read_csv(tmp_path: Path, text: str, axis: str = "source") -> Affinity:
    path = tmp_path / "table.csv"
    path.write_bytes(text.encode())
    return Affinity.from_csv(path, axis=axis)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "axis", "matrix"),
    [
        ("source,a,b\na,1,2\nb,3,4\n", "source", [[1, 2], [3, 4]]),
        ("target,a,b\na,1,2\nb,3,4\n", "target", [[1, 3], [2, 4]]),
        (",b,a\na,2,1\nb,4,3\n", "source", [[1, 2], [3, 4]]),
        ("\ufeff, a ,b\r\n\r\na, 1.5,\r\n b,-2e-3, 4\r\n,,\r\n", "source", [[1.5, np.nan], [-2e-3, 4]]),
    ],
)
def test_tables_made_elsewhere_are_read(tmp_path: Path, text: str, axis: str, matrix: Any) -> None:
    affinity = read_csv(tmp_path, text, axis)
    assert affinity.tasks == ("a", "b")
    np.testing.assert_array_equal(affinity.mean, matrix)


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("", "table.csv"),
        ("1,2,3\n4,5,6\n7,8,9\n", "table.csv"),
        (",a,b\na,1,2\n", "'b'"),
        (",a,b\na,1,2\nb,1\n", "line 3"),
        (",a,b\na,1,2\na,1,2\n", "'a', 'b'"),
        (",a,b\na,1,y\nb,x,inf\n", "line 2, column 'b'(.|\n)*line 3, column 'a'(.|\n)*line 3, column 'b'"),
        ("target,a,b\na,1,2\nb,3,4\n", "axis"),
    ],
)
def test_errors_say_where(tmp_path: Path, text: str, place: str) -> None:
    with pytest.raises(InvalidInput, match=place) as caught:
        read_csv(tmp_path, text)
    assert "table.csv" in str(caught.value)
