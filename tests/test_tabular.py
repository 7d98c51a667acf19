"""Unusual and invalid tables: every command reads the same files, and rejects the same ones."""

from __future__ import annotations

import gzip
import io
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from tagalong.affinity import Affinity
from tagalong.cli.group import read_scores
from tagalong.errors import InvalidInput, is_installed
from tagalong.learn import Problem, Task, read_columns
from tagalong.study import verdict_from_csv
from tagalong.tabular import TableError, read_table

Rows = list[list[str]]  # the first is the header
NAMES = ("größe", "b")
SQUARE: Rows = [["source", *NAMES], ["größe", "0.5", "1.5"], ["b", "2.5", "-1e-3"]]
RESULTS: Rows = [["group", *NAMES], ["größe", "1.5", ""], ["b", "", "2.5"], ["größe+b", "3.5", "4.5"]]
NUMBERS: Rows = [["größe", "b", "y"], *([f"{row * row % 17}.5", f"{row % 5}.25", f"{row}.75"] for row in range(30))]
LOSSES: Rows = [["network", "seed", "task", "val_loss", "test_loss"]]
for _network in ("größe", "b", "größe+b"):
    LOSSES += [
        [_network, str(seed), task, f"{1 + seed}.5", f"{2 + seed}.25"]
        for seed in (0, 1)
        for task in _network.split("+")
    ]


def square(path: Path) -> Any:
    table, affinity = read_scores(path), Affinity.from_csv(path)
    assert table.tasks == affinity.tasks
    return table.tasks, table.scores.mean.tolist(), affinity.mean.tolist()


def problem(path: Path) -> Any:
    made = Problem.from_table(path, [Task("y", "regression")])
    return made.fingerprint, made.table.names, made.table.inputs(path).tolist()


def verdict(path: Path) -> Any:
    results = verdict_from_csv(path, budgets=[2])
    return results.verdict().to_document(), results.records


# The input of each command, and the function that reads it.
READERS: dict[str, tuple[Rows, Callable[[Path], Any]]] = {
    "square": (SQUARE, square),
    "results": (RESULTS, lambda path: read_scores(path).scores),
    "run": (NUMBERS, problem),
    "verdict": (LOSSES, verdict),
}


def text_of(rows: Rows, delimiter: str = ",", end: str = "\n") -> str:
    return "".join(delimiter.join(row) + end for row in rows)


def with_decimal_commas(rows: Rows) -> Rows:
    return [rows[0], *([cell.replace(".", ",") for cell in row] for row in rows[1:])]


def with_quoted_newlines(rows: Rows) -> Rows:
    """Spreads every row over two lines: its last cell ends with a line break, which is stripped like other space."""
    return [[*row[:-1], f'"{row[-1]}\n"'] for row in rows]


def archive(**files: str) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive_file:
        for name, text in files.items():
            archive_file.writestr(name, text)
    return packed.getvalue()


ACCEPTED: dict[str, Callable[[Rows], bytes]] = {
    "latin-1": lambda rows: text_of(rows).encode("latin-1"),
    "utf-16, big end first": lambda rows: b"\xfe\xff" + text_of(rows).encode("utf-16-be"),
    "byte order mark": lambda rows: text_of(rows).encode("utf-8-sig"),
    "semicolons, decimal commas": lambda rows: text_of(with_decimal_commas(rows), ";").encode(),
    "tabs, decimal commas": lambda rows: text_of(with_decimal_commas(rows), "\t").encode(),
    "bars": lambda rows: text_of(rows, "|").encode(),
    "quoted newlines": lambda rows: text_of(with_quoted_newlines(rows)).encode(),
    "spaces": lambda rows: text_of(rows, " , ").encode(),
    "CR alone": lambda rows: text_of(rows, end="\r").encode(),
    "blank lines": lambda rows: ("\n\n" + text_of(rows, end="\n \n\n")).encode(),
    "gzip": lambda rows: gzip.compress(text_of(rows).encode()),
    "zip from a Mac": lambda rows: archive(**{"a/": "", "a/table.csv": text_of(rows), "__MACOSX/a/._table.csv": "x"}),
}


@pytest.mark.parametrize("what", ACCEPTED)
def test_unusual_files_give_the_same_table(tmp_path: Path, what: str) -> None:
    path = tmp_path / "table.csv"
    path.write_bytes(text_of(NUMBERS).encode())
    expected = problem(path)
    path.write_bytes(ACCEPTED[what](NUMBERS))
    assert problem(path) == expected


@pytest.mark.parametrize("command", READERS)
def test_every_command_reads_unusual_tables_and_names_what_is_wrong(tmp_path: Path, command: str) -> None:
    rows, read = READERS[command]
    path = tmp_path / "table.csv"
    path.write_bytes(text_of(rows).encode())
    expected = read(path)
    for change in ("semicolons, decimal commas", "gzip"):
        path.write_bytes(ACCEPTED[change](rows))
        assert read(path) == expected
    path.write_bytes(INVALID["short row"][0](rows))
    with pytest.raises(InvalidInput, match=r"table\.csv, line 3"):
        read(path)
    with pytest.raises((TableError, FileNotFoundError), match=r"none\.csv"):
        read(tmp_path / "none.csv")
    if is_installed("pyarrow"):
        path.write_bytes(text_of(rows).encode())
        frame = pd.read_csv(path, dtype={"network": str, "task": str, "group": str})
        frame.set_index(rows[0][0]).to_parquet(tmp_path / "table.parquet")
        assert read(tmp_path / "table.parquet") == expected


# Invalid content, and where its message says the problem is.
INVALID: dict[str, tuple[Callable[[Rows], bytes], str]] = {
    "empty": (lambda rows: b"", "table.csv"),
    "only separators": (lambda rows: b",,\n,,\n", "table.csv"),
    "header only": (lambda rows: text_of(rows[:1]).encode(), "table.csv"),
    "short row": (lambda rows: text_of([*rows[:2], rows[2][:-1]]).encode(), "table.csv, line 3"),
    "long row": (lambda rows: text_of([*rows[:2], [*rows[2], "9"]]).encode(), "table.csv"),
    "unclosed quotation mark": (lambda rows: (text_of(rows[:2]) + '"' + text_of(rows)).encode(), "table.csv"),
    "repeated column": (lambda rows: text_of([[*row, row[-1]] for row in rows]).encode(), "table.csv"),
    "NUL bytes": (lambda rows: text_of(rows).replace("5", "5\0").encode(), "table.csv"),
    "utf-16 without a mark": (lambda rows: text_of(rows).encode("utf-16-le"), "table.csv"),
    "zip of two": (lambda rows: archive(**{"a.csv": text_of(rows), "b.csv": text_of(rows)}), "table.csv"),
    "gzip cut short": (lambda rows: gzip.compress(text_of(rows).encode())[:-9], "table.csv"),
}


@pytest.mark.parametrize("what", INVALID)
def test_an_invalid_table_is_named_with_its_line(tmp_path: Path, what: str) -> None:
    path = tmp_path / "table.csv"
    path.write_bytes(INVALID[what][0](NUMBERS))
    with pytest.raises(InvalidInput) as caught:
        problem(path)
    assert all(str(error).startswith(str(tmp_path / INVALID[what][1])) for error in caught.value.problems)


@pytest.mark.parametrize("word", ["", "NA", "n/a", "#N/A", "<NA>", "NaN", "null", "?", "."])
def test_missing_values_are_written_the_same_way_everywhere(tmp_path: Path, word: str) -> None:
    path = tmp_path / "table.csv"
    path.write_text(f"source,a,b\na,{word},1\nb,2,{word}\n")
    np.testing.assert_array_equal(read_scores(path).scores.mean, [[np.nan, 1], [2, np.nan]])
    np.testing.assert_array_equal(read_columns(path)["a"], [np.nan, 2])
    if word != "NaN":  # for a loss it means that training failed
        path.write_text(f"network,seed,task,val_loss,test_loss\na,0,a,{word},1\n")
        with pytest.raises(TableError, match="val_loss"):
            verdict_from_csv(path)


def test_names_and_codes_stay_text(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_text("source,007,NA\n007,1,2\nNA,3,4\n")
    assert Affinity.from_csv(path).tasks == read_scores(path).tasks == ("007", "NA")
    path.write_text("network,seed,task,val_loss,test_loss\n007,0,007,1,1\n")
    assert verdict_from_csv(path).problem.tasks == ("007",)
    path.write_text("source,a\na,1_0\n")  # which Python reads as 10
    assert read_columns(path)["a"].tolist() == ["1_0"]
    with pytest.raises(InvalidInput, match="line 2, column 'a'"):
        read_scores(path)


@pytest.mark.parametrize(
    ("text", "header", "row"),
    [
        ("a;b\n1,5;2,5\n", ["a", "b"], ["1,5", "2,5"]),
        ("size, cm;mass\n1,80;75,0\n", ["size, cm", "mass"], ["1,80", "75,0"]),
        ('id,"x;y;z"\n1,2\n', ["id", "x;y;z"], ["1", "2"]),
        ('"a,b"\tc\n"1,2"\t3\n', ["a,b", "c"], ["1,2", "3"]),
        ("a\n1\n", ["a"], ["1"]),
    ],
)
def test_the_delimiter_is_the_one_that_fits(tmp_path: Path, text: str, header: list[str], row: list[str]) -> None:
    path = tmp_path / "table.csv"
    path.write_text(text)
    table = read_table(path)
    assert (list(table.columns), table.loc[2].tolist()) == (header, row)


def mixed_frame() -> pd.DataFrame:
    """Columns of every type, each with a missing value."""
    draw, size = np.random.default_rng(0), 80
    frame = pd.DataFrame(
        {
            "number": draw.normal(size=size),
            "count": pd.array(draw.integers(0, 9, size), dtype="Int64"),
            "maybe": pd.array(draw.random(size) < 0.5, dtype="boolean"),
            "town": pd.Categorical(draw.choice(["Ulm", "Köln", "007"], size)),
            "code": pd.Categorical(draw.integers(0, 3, size)),
            "text": draw.choice(["x", "y, z", 'q"'], size),
            "pressure": draw.normal(size=size),
            "ill": draw.choice(["no", "yes"], size),
        }
    )
    for row, name in enumerate(frame):
        frame.loc[row, name] = None
    return frame.assign(flag=draw.random(size) < 0.5)


def test_the_same_data_give_the_same_problem(tmp_path: Path) -> None:
    frame = mixed_frame()
    frame.to_csv(tmp_path / "table.csv", index=False)
    frame.to_csv(tmp_path / "table.tsv.gz", index=False, sep="\t", na_rep="NA")
    if is_installed("pyarrow"):
        frame.to_parquet(tmp_path / "table.parquet")
    sources: dict[str, Any] = {
        **{path.name: path for path in tmp_path.iterdir()},
        "other index": frame.set_index(frame.index[::-1]),
        "objects": frame.astype(object),
        "other package": SimpleNamespace(columns=list(frame.columns), to_pandas=lambda: frame),
        "lists": {name: frame[name].to_list() for name in frame},
        "series": {name: frame[name].sample(frac=1, random_state=0).sort_index() for name in frame},
        "rows": frame.to_dict("records"),
    }
    roles = {"targets": ["pressure", "ill"], "categorical": ["town", "code", "text"]}
    expected = Problem.from_table(frame, **roles)
    for name, source in sources.items():
        made = Problem.from_table(source, **roles)
        assert (made.fingerprint, made.table.names) == (expected.fingerprint, expected.table.names), name


def test_the_error_without_a_parquet_reader_says_how_to_install_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tagalong.tabular.is_installed", lambda package: False)
    with pytest.raises(ImportError, match=r"pip install 'tagalong\[parquet\]'"):
        read_table("table.parquet")


@pytest.mark.parametrize(
    "source", [7, [1, 2], np.zeros((3, 2)), [{"a": 1}, 2], {}, [], {"a": [1], "y": []}, {"a": [], "y": []}]
)
def test_invalid_sources_are_rejected(source: Any) -> None:
    with pytest.raises(TableError, match=r"^`data` "):
        Problem.from_table(source, ["y"])
