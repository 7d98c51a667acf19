"""Unusual and invalid tables: every command reads the same files and gives the same errors."""

from __future__ import annotations

import gzip
import io
import subprocess
import sys
import tracemalloc
import zipfile
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tagalong.affinity import Affinity
from tagalong.cli import main
from tagalong.errors import InvalidInput, is_installed
from tagalong.group import read_costs, read_table
from tagalong.learn import Problem, Task, read_columns
from tagalong.study import verdict_from_csv
from tagalong.tabular import TableError, read_text
from tagalong.tabular import read_table as read_text_table

Rows = list[list[str]]  # the first is the header
NAMES = ("größe", "b")
SQUARE: Rows = [["source", *NAMES], ["größe", "0.5", "1.5"], ["b", "2.5", "-1e-3"]]
RESULTS: Rows = [["group", *NAMES], ["größe", "1.5", ""], ["b", "", "2.5"], ["größe+b", "3.5", "4.5"]]
COSTS: Rows = [["group", "cost"], ["größe", "0.5"], ["2", "1.5"]]
NUMBERS: Rows = [["größe", "b", "y"], *([f"{row * row % 17}.5", f"{row % 5}.25", f"{row}.75"] for row in range(30))]
LOSSES: Rows = [["network", "seed", "task", "val_loss", "test_loss"]]
for _network in ("größe", "b", "größe+b"):
    LOSSES += [
        [_network, str(seed), task, f"{1 + seed}.5", f"{2 + seed}.25"]
        for seed in (0, 1)
        for task in _network.split("+")
    ]


def read_square(path: Path) -> Any:
    table = read_table(path)
    return table.tasks, table.scores.mean.tolist()


def read_affinity(path: Path) -> Any:
    affinity = Affinity.from_csv(path)
    return affinity.tasks, affinity.mean.tolist()


def read_problem(path: Path) -> Any:
    problem = Problem.from_table(path, [Task("y", "regression")])
    return problem.fingerprint, problem.table.names


def read_new_rows(path: Path) -> Any:
    columns = {name: [float(row[at]) for row in NUMBERS[1:]] for at, name in enumerate(NUMBERS[0])}
    return Problem.from_table(columns, [Task("y", "regression")]).table.inputs(path).tolist()


def read_verdict(path: Path) -> Any:
    results = verdict_from_csv(path, budgets=[2])
    return results.verdict(), results.records


# The input of each command, and the function that reads it.
READERS: dict[str, tuple[Rows, Callable[[Path], Any]]] = {
    "group": (SQUARE, read_square),
    "group, results": (RESULTS, lambda path: read_table(path).scores),
    "group, costs": (COSTS, lambda path: read_costs(path, NAMES)),
    "affinity": (SQUARE, read_affinity),
    "run": (NUMBERS, read_problem),
    "predict": (NUMBERS, read_new_rows),
    "verdict": (LOSSES, read_verdict),
}
every_command = pytest.mark.parametrize("command", READERS)


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
    "utf-16": lambda rows: text_of(rows).encode("utf-16"),
    "utf-16, big end first": lambda rows: b"\xfe\xff" + text_of(rows).encode("utf-16-be"),
    "byte order mark": lambda rows: text_of(rows).encode("utf-8-sig"),
    "semicolons": lambda rows: text_of(rows, ";").encode(),
    "semicolons, decimal commas": lambda rows: text_of(with_decimal_commas(rows), ";").encode(),
    "tabs": lambda rows: text_of(rows, "\t").encode(),
    "tabs, decimal commas": lambda rows: text_of(with_decimal_commas(rows), "\t").encode(),
    "bars": lambda rows: text_of(rows, "|").encode(),
    "quoted": lambda rows: text_of([[f'"{cell}"' for cell in row] for row in rows]).encode(),
    "quoted newlines": lambda rows: text_of(with_quoted_newlines(rows)).encode(),
    "spaces": lambda rows: text_of(rows, " , ").encode(),
    "windows lines": lambda rows: text_of(rows, end="\r\n").encode(),
    "CR alone": lambda rows: text_of(rows, end="\r").encode(),
    "no last line end": lambda rows: text_of(rows).rstrip("\n").encode(),
    "blank lines": lambda rows: ("\n\n" + text_of(rows, end="\n \n\n")).encode(),
    "rows of separators": lambda rows: (text_of(rows) + "," * len(rows[0]) + "\n,\n").encode(),
    "gzip": lambda rows: gzip.compress(text_of(rows).encode()),
    "zip": lambda rows: archive(**{"table.csv": text_of(rows)}),
    "zip from a Mac": lambda rows: archive(**{"a/": "", "a/table.csv": text_of(rows), "__MACOSX/a/._table.csv": "x"}),
    "zip, semicolons, latin-1": lambda rows: archive(**{"table.csv": text_of(rows, ";")}),
}


@pytest.mark.parametrize(
    ("command", "what"),
    # Every new row has a prediction, also one without values.
    [pair for pair in product(READERS, ACCEPTED) if pair != ("predict", "rows of separators")],
)
def test_every_command_reads_unusual_tables(tmp_path: Path, command: str, what: str) -> None:
    rows, read = READERS[command]
    path = tmp_path / "table.csv"
    path.write_bytes(text_of(rows).encode())
    expected = read(path)
    path.write_bytes(ACCEPTED[what](rows))
    assert read(path) == expected


def without_last_cell(rows: Rows, number: int) -> Rows:
    return [row[:-1] if at == number else row for at, row in enumerate(rows)]


def with_another_cell(rows: Rows, number: int) -> Rows:
    return [[*row, "9"] if at == number else row for at, row in enumerate(rows)]


INVALID: dict[str, tuple[Callable[[Rows], bytes], str]] = {
    "empty": (lambda rows: b"", "{file} is empty"),
    "only a mark": (lambda rows: "".encode("utf-8-sig"), "{file} is empty"),
    "only blank lines": (lambda rows: b"\r\n \n\n", "{file} is empty"),
    "only separators": (lambda rows: b",,\n,,\n", "{file} must contain a table, found only delimiters"),
    "header only": (lambda rows: text_of(rows[:1]).encode(), "{file} must have rows below its header, found none"),
    "short row": (
        lambda rows: text_of(without_last_cell(rows, 2)).encode(),
        "{file}, line 3 must have {width} cells, found {less}",
    ),
    "long row": (
        lambda rows: text_of(with_another_cell(rows, 2), "\t").encode(),
        "{file}, line 3 must have {width} cells, found {more}",
    ),
    "long row after commas": (
        lambda rows: text_of(with_another_cell(rows, 2)).encode(),
        "{file}, line 3 must have {width} cells, found {more}; if commas are decimal separators, use points instead "
        "or separate columns with semicolons",
    ),
    "short row after quoted newlines": (
        lambda rows: text_of([*with_quoted_newlines(rows[:2]), rows[2][:-1], *rows[3:]]).encode(),
        "{file}, line 5 must have {width} cells, found {less}",
    ),
    "short row after blank lines": (
        lambda rows: ("\n" + text_of(rows[:2]) + "\n\r\n" + text_of([rows[2][:-1], *rows[3:]])).encode(),
        "{file}, line 6 must have {width} cells, found {less}",
    ),
    "short row after CR alone": (
        lambda rows: text_of(without_last_cell(rows, 2), end="\r").encode(),
        "{file}, line 3 must have {width} cells, found {less}",
    ),
    "repeated column": (
        lambda rows: text_of([[*row, row[-1]] for row in rows]).encode(),
        "{file}, line 1 must have unique column names, found {last!r} more than once; rename the duplicates",
    ),
    "NUL bytes": (
        lambda rows: text_of(rows).replace("5", "5\0").encode(),
        "{file} is not a text file; save the table as a UTF-8 CSV file",
    ),
    "utf-16 without a mark": (
        lambda rows: text_of(rows).encode("utf-16-le"),
        "{file} is not a text file; save the table as a UTF-8 CSV file",
    ),
    "utf-16 cut short": (
        lambda rows: text_of(rows).encode("utf-16")[:-1],
        "{file} is not a text file; save the table as a UTF-8 CSV file",
    ),
    "binary": (lambda rows: bytes(range(256)), "{file} is not a text file; save the table as a UTF-8 CSV file"),
    "zip of two": (
        lambda rows: archive(**{"a.csv": text_of(rows), "b.csv": text_of(rows)}),
        "{file} must be a zip archive with one file, found 2: a.csv, b.csv; extract the one you need",
    ),
    "zip of none": (
        lambda rows: archive(**{"a/": ""}),
        "{file} must be a zip archive with one file, found 0; extract the one you need",
    ),
    "workbook": (
        lambda rows: archive(**{"[Content_Types].xml": "<x/>", "xl/workbook.xml": "<x/>"}),
        "{file} must be a CSV or Parquet file, found a workbook; save it as CSV",
    ),
    "old Excel workbook": (
        lambda rows: b"\xd0\xcf\x11\xe0" + bytes(100),
        "{file} must be a CSV or Parquet file, found an old Excel workbook; save it as CSV",
    ),
    "gzip cut short": (
        lambda rows: gzip.compress(text_of(rows).encode())[:-9],
        "{file} is not a valid gzip file: Compressed file ended before the end-of-stream marker was reached; "
        "is it truncated?",
    ),
}

DAMAGED = "; it is damaged; create or download it again"
UNCLOSED = "is there an unclosed quotation mark?"
LONG = f"must have cells of at most 131,072 characters, found a longer one; {UNCLOSED}"
INVALID |= {
    "empty zip": (
        lambda rows: b"PK\x05\x06" + bytes(18),
        "{file} must be a zip archive with one file, found 0; extract the one you need",
    ),
    "gzip with a changed length": (
        lambda rows: changed(gzip.compress(text_of(rows).encode()), -1),
        "{file} is not a valid gzip file: Incorrect length of data produced" + DAMAGED,
    ),
    "gzip of another method": (
        lambda rows: changed(gzip.compress(text_of(rows).encode()), 2),
        "{file} is not a valid gzip file: Unknown compression method" + DAMAGED,
    ),
    "long first line": (lambda rows: b"x" * 140_000, f"{{file}}, line 1 {LONG}"),
    "long name": (
        lambda rows: text_of([["x" * 140_000, *rows[0][1:]], *rows[1:]]).encode(),
        f"{{file}}, line 1 {LONG}",
    ),
    "long cell": (lambda rows: (text_of(rows) + "x" * 140_000 + ",2\n").encode(), f"{{file}}, line {{end}} {LONG}"),
    "unclosed quotation mark": (
        lambda rows: (text_of(rows) + '"' + text_of(rows[1:])).encode(),
        f"{{file}}, line {{end}} must have {{width}} cells, found 1; {UNCLOSED}",
    ),
}


def changed(content: bytes, at: int) -> bytes:
    """Flips some bits of one byte."""
    flipped = bytearray(content)
    flipped[at] ^= 0x55
    return bytes(flipped)


def expected_words(path: object, rows: Rows, what: str) -> str:
    width = len(rows[0])
    return INVALID[what][1].format(
        file=path, width=width, less=width - 1, more=width + 1, last=rows[0][-1], end=len(rows) + 1
    )


@pytest.mark.parametrize(
    ("command", "what"),
    # A file of costs has two columns, whatever they are called.
    [pair for pair in product(READERS, INVALID) if pair != ("group, costs", "repeated column")],
)
def test_every_command_rejects_invalid_tables_with_the_same_message(tmp_path: Path, command: str, what: str) -> None:
    rows, read = READERS[command]
    path = tmp_path / "table.csv"
    path.write_bytes(INVALID[what][0](rows))
    with pytest.raises(InvalidInput) as caught:
        read(path)
    assert expected_words(path, rows, what) in [problem.render() for problem in caught.value.problems]


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    (folder / "table.csv").write_text(text_of(NUMBERS), encoding="utf-8")
    short = ("--methods", "mtl", "--seeds", "1", "--recipe", "epochs=1", "--device", "cpu", "--quiet")
    assert main(["run", str(folder / "table.csv"), "--targets", "y,b", "--out", str(folder / "out"), *short]) == 0
    return folder / "out"


@pytest.mark.parametrize("what", ["empty", "header only", "short row", "zip of two", "NUL bytes"])
def test_the_command_line_gives_the_same_message(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    run_folder: Path,
    what: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "400")
    commands: dict[str, tuple[Rows, list[str]]] = {
        "group": (SQUARE, ["group", "table.csv", "--budget", "1"]),
        "plan": (SQUARE, ["plan", "table.csv"]),
        "run": (NUMBERS, ["run", "table.csv", "--targets", "y"]),
        "predict": (NUMBERS, ["predict", str(run_folder), "table.csv"]),
        "verdict": (LOSSES, ["verdict", "table.csv"]),
    }
    for command, (rows, arguments) in commands.items():
        Path("table.csv").write_bytes(INVALID[what][0](rows))
        capsys.readouterr()
        assert main(arguments) == 2, command
        assert capsys.readouterr().err.strip() == f"tagalong: {expected_words('table.csv', rows, what)}", command


@every_command
def test_the_error_names_a_missing_file(tmp_path: Path, command: str) -> None:
    path = tmp_path / "none.csv"
    kind = FileNotFoundError if command == "affinity" else TableError
    with pytest.raises(kind, match=r"none\.csv"):
        READERS[command][1](path)


@pytest.mark.parametrize("word", ["", "NA", "n/a", "#N/A", "<NA>", "NaN", "null", "?", "."])
def test_missing_values_are_written_the_same_way_everywhere(tmp_path: Path, word: str) -> None:
    path = tmp_path / "table.csv"
    path.write_text(f"source,a,b\na,{word},1\nb,2,{word}\n")
    np.testing.assert_array_equal(Affinity.from_csv(path).mean, [[np.nan, 1], [2, np.nan]])
    np.testing.assert_array_equal(read_table(path).scores.mean, [[np.nan, 1], [2, np.nan]])
    np.testing.assert_array_equal(read_columns(path)["a"], [np.nan, 2])
    path.write_text(f"group,a,b\na,1,{word}\nb,{word},2\na+b,3,4\n")
    assert read_table(path).scores[frozenset("a")] == {"a": 1.0}
    if word != "NaN":  # for a loss it means that training failed
        path.write_text(f"network,seed,task,val_loss,test_loss\na,0,a,{word},1\n")
        with pytest.raises(TableError, match="is missing required values: val_loss of a"):
            verdict_from_csv(path)


def test_names_stay_text(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_text("source,007,NA\n007,1,2\nNA,3,4\n")
    assert Affinity.from_csv(path).tasks == read_table(path).tasks == ("007", "NA")
    path.write_text("network,seed,task,val_loss,test_loss\n007,0,007,1,1\n")
    assert verdict_from_csv(path).problem.tasks == ("007",)


def test_codes_with_underscores_are_not_numbers(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_text("source,a\na,1_0\n")
    for read in (Affinity.from_csv, read_table):
        with pytest.raises(InvalidInput, match="line 2, column 'a' must be a finite number or empty, found '1_0'"):
            read(path)
    assert read_columns(path)["a"].tolist() == ["1_0"]


@pytest.mark.parametrize(
    ("text", "header", "row"),
    [
        ("a;b\n1,5;2,5\n", ["a", "b"], ["1,5", "2,5"]),
        ("size, cm;mass\n1,80;75,0\n", ["size, cm", "mass"], ["1,80", "75,0"]),  # commas would fit as well
        ('id,"x;y;z"\n1,2\n', ["id", "x;y;z"], ["1", "2"]),
        ("id,x;y;z\n1,2\n", ["id", "x;y;z"], ["1", "2"]),  # semicolons cut the header more often, but not the row
        ('"a,b"\tc\n"1,2"\t3\n', ["a,b", "c"], ["1,2", "3"]),
        ("a\n1\n", ["a"], ["1"]),
    ],
)
def test_the_delimiter_is_the_one_that_fits(tmp_path: Path, text: str, header: list[str], row: list[str]) -> None:
    path = tmp_path / "table.csv"
    path.write_text(text)
    table = read_text_table(path)
    assert (table.header.cells, table.rows[0].cells) == (header, row)


def test_many_wrong_rows_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_text("a;b\n" + "1\n" * 1007)
    with pytest.raises(TableError) as caught:
        read_columns(path)
    *listed, last = caught.value.problems
    assert [problem.argument for problem in listed] == [f"{path}, line {line}" for line in range(2, 7)]
    assert str(last) == f"{path} must have 2 cells in each row, found 1,002 more rows of a different length"


def test_a_file_is_never_mistaken_for_an_argument(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("scores").write_bytes(b"")
    with pytest.raises(TableError, match=r"^the file scores is empty$"):
        read_text("scores")


@pytest.fixture
def frame() -> Any:
    pandas = pytest.importorskip("pandas")
    draw = np.random.default_rng(0)
    size = 80
    frame = pandas.DataFrame(
        {
            "number": draw.normal(size=size),
            "count": pandas.array(draw.integers(0, 9, size), dtype="Int64"),
            "float": pandas.array(draw.normal(size=size), dtype="Float64"),
            "flag": draw.random(size) < 0.5,
            "maybe": pandas.array(draw.random(size) < 0.5, dtype="boolean"),
            "town": pandas.Categorical(draw.choice(["Ulm", "Köln", "007"], size)),
            "code": pandas.Categorical(draw.integers(0, 3, size)),
            "text": draw.choice(["x", "y, z", 'q"'], size),
            "pressure": draw.normal(size=size),
            "ill": draw.choice(["no", "yes"], size),
            "grade": draw.integers(1, 5, size),
        }
    )
    for row, name in enumerate(("number", "count", "float", "maybe", "town", "code", "text", "pressure", "ill")):
        frame.loc[row, name] = None
    return frame


ROLES = {"targets": ["pressure", "ill", "grade"], "categorical": ["town", "code", "text"]}


def test_the_same_data_give_the_same_problem(frame: Any, tmp_path: Path) -> None:
    frame.to_csv(tmp_path / "table.csv", index=False)
    frame.to_csv(tmp_path / "table.tsv", index=False, sep="\t", na_rep="NA")
    frame.to_csv(tmp_path / "table.csv.gz", index=False)
    frame.to_csv(tmp_path / "table.zip", index=False, compression={"method": "zip", "archive_name": "table.csv"})
    sources: dict[str, Any] = {path.name: path for path in tmp_path.iterdir()}
    sources["text"] = str(tmp_path / "table.csv")
    sources["frame"] = frame
    sources["other index"] = frame.set_index(frame.index[::-1])
    sources["objects"] = frame.astype(object)
    sources["columns"] = {name: frame[name].to_list() for name in frame}
    sources["rows"] = frame.to_dict("records")
    problems = {name: Problem.from_table(source, **ROLES) for name, source in sources.items()}
    expected = Problem.from_table(tmp_path / "table.csv", **ROLES)
    assert {name: problem.fingerprint for name, problem in problems.items()} == dict.fromkeys(
        sources, expected.fingerprint
    )
    assert {problem.table.names for problem in problems.values()} == {expected.table.names}
    assert problems["table.tsv"].name == problems["text"].name == "table"


@pytest.mark.skipif(not is_installed("pyarrow"), reason="needs a reader of Parquet")
def test_parquet_gives_the_same_problem(frame: Any, tmp_path: Path) -> None:
    frame.to_parquet(tmp_path / "table.parquet")
    (tmp_path / "table.parquet.gz").write_bytes(gzip.compress((tmp_path / "table.parquet").read_bytes()))
    expected = Problem.from_table(frame, **ROLES)
    for path in sorted(tmp_path.iterdir()):
        problem = Problem.from_table(path, **ROLES)
        assert problem.fingerprint == expected.fingerprint
        assert problem.table.inputs(path).equal(expected.table.inputs(frame))
    (tmp_path / "cut.parquet").write_bytes((tmp_path / "table.parquet").read_bytes()[:-30])
    with pytest.raises(TableError, match=r"cut\.parquet is not a valid Parquet file: .*; is it truncated\?"):
        Problem.from_table(tmp_path / "cut.parquet", **ROLES)


@pytest.mark.skipif(not is_installed("pyarrow"), reason="needs a reader of Parquet")
@every_command
def test_every_command_reads_parquet(tmp_path: Path, command: str) -> None:
    pandas = pytest.importorskip("pandas")
    rows, read = READERS[command]
    path = tmp_path / "table.csv"
    path.write_bytes(text_of(rows).encode())
    expected = read(path)
    frame = pandas.read_csv(path, dtype={"network": str, "task": str, "group": str})
    frame.to_parquet(path)
    assert read(path) == expected
    frame.set_index(rows[0][0]).to_parquet(path)
    assert read(path) == expected


@every_command
def test_the_error_without_a_parquet_reader_says_how_to_install_one(
    tmp_path: Path, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tagalong.tabular.is_installed", lambda package: package == "pandas")
    path = tmp_path / "table.parquet"
    path.write_bytes(b"PAR1" + bytes(50) + b"PAR1")
    with pytest.raises(
        ImportError, match=r"table\.parquet requires .* 'pyarrow'; run pip install 'tagalong\[parquet\]'$"
    ):
        READERS[command][1](path)


def test_tables_are_read_without_pandas(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_bytes(text_of(NUMBERS).encode())
    code = (
        "import sys; from tagalong import Problem; from tagalong.group import read_table\n"
        f"Problem.from_table({str(path)!r}, ['y'])\n"
        "assert 'pandas' not in sys.modules and 'pyarrow' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env={"PYTHONPATH": ":".join(filter(None, sys.path))})


@pytest.mark.parametrize("source", [7, [1, 2], np.zeros((3, 2)), [{"a": 1}, 2]])
def test_invalid_sources_are_rejected(source: Any) -> None:
    with pytest.raises(TableError, match=r"^`data` must be a file, a DataFrame, a mapping from names to columns, or"):
        Problem.from_table(source, ["y"])


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ({}, "`data` must have columns of the same length, found no columns"),
        ([], "`data` must have columns of the same length, found no columns"),
        ({"a": [1], "y": []}, "`data` must have columns of the same length, found 0, 1"),
        ({"a": [], "y": []}, "`data` must have at least one row, found none"),
    ],
)
def test_columns_in_memory_are_checked(source: Any, problem: str) -> None:
    with pytest.raises(TableError) as caught:
        Problem.from_table(source, ["y"])
    assert str(caught.value) == problem


def test_a_file_read_in_pieces_gives_the_same_columns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cells = {
        "number": ["1", "", "2.5e3", " NA ", "-inf", "7", "nan", "?", "9"],
        "late text": ["1.0", "007", "", "3", "4", "5", "x", "8", "9"],
        "code": ["1", "2", "3", "4", "5", "1_0", "7", "8", "9"],
        "truth": ["true", "", "False", "true", "TRUE", "na", "false", "true", "false"],
        "quoted": ["one\nline", 'say "hi"', "a,b", "", "ü", "\r\n", "x", "y", "z"],
    }
    path = tmp_path / "table.csv"
    rows = zip(*cells.values(), strict=True)
    lines = [",".join('"' + cell.replace('"', '""') + '"' for cell in row) for row in (tuple(cells), *rows)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8", newline="")
    whole = read_columns(path)
    monkeypatch.setattr("tagalong.tabular.PIECE_ROWS", 2)
    monkeypatch.setattr("tagalong.tabular.PIECE_CHARACTERS", 5)
    pieces, memory = read_columns(path), read_columns(cells)
    assert list(pieces) == list(cells)
    for name in cells:
        assert pieces[name].dtype == whole[name].dtype == memory[name].dtype
        np.testing.assert_array_equal(pieces[name], memory[name])
        np.testing.assert_array_equal(pieces[name], whole[name])
    assert pieces["late text"].tolist()[:2] == ["1.0", "007"]


def test_reading_takes_a_few_times_the_memory_of_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tagalong.tabular.PIECE_ROWS", 200, raising=False)
    monkeypatch.setattr("tagalong.tabular.PIECE_CHARACTERS", 2**14, raising=False)
    path, random = tmp_path / "table.csv", np.random.default_rng(0)
    names = [f"x{i}" for i in range(20)]
    np.savetxt(path, random.normal(size=(10_000, 20)), fmt="%.4g", delimiter=",", header=",".join(names), comments="")
    tracemalloc.start()
    try:
        columns = read_columns(path)
        assert [columns[name].dtype for name in names] == [np.float64] * 20
        assert tracemalloc.get_traced_memory()[1] < 6 * path.stat().st_size
    finally:
        tracemalloc.stop()


def test_any_changed_byte_of_an_archive_gives_a_sentence_or_the_same_table(tmp_path: Path) -> None:
    path = tmp_path / "table.zip"
    content = archive(**{"table.csv": text_of(NUMBERS)})
    for at in range(len(content)):
        path.write_bytes(changed(content, at))
        try:
            assert read_columns(path).rows == len(NUMBERS) - 1
        except TableError as error:
            assert str(path) in str(error)  # noqa: PT017 - both outcomes are fine


def test_a_path_that_cannot_exist_is_named() -> None:
    with pytest.raises(TableError, match=r"^'a\\x00b\.csv' cannot be the path of a file: embedded null byte$"):
        read_text("a\0b.csv")
    with pytest.raises(TableError, match=r"cannot be read: File name too long$"):
        read_text("a" * 5000 + ".csv")


REPEATED = "a,b,y\n" + "1.5,2.5,3.5\n" * 100_000  # compresses to a thousandth


@pytest.mark.parametrize("pack", [gzip.compress, lambda content: archive(**{"t.csv": content.decode()})])
def test_files_are_limited_by_memory_and_not_by_compression(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pack: Callable[[bytes], bytes]
) -> None:
    path = tmp_path / "table.csv.gz"
    path.write_bytes(pack(REPEATED.encode()))
    assert read_columns(path).rows == 100_000
    monkeypatch.setattr("tagalong.tabular.free_memory", lambda: 4 * 10**6)
    monkeypatch.setattr("tagalong.tabular.PIECE", 2**16)
    with pytest.raises(TableError) as caught:
        read_text(path)
    assert str(caught.value) == (
        f"{path} must fit into memory, of which 4 MB are free, found more than 1 MB; use fewer rows or columns"
    )
    monkeypatch.setattr("tagalong.tabular.free_memory", lambda: 20 * 10**6)
    with pytest.raises(TableError, match=r"of which 20 MB are free, found about 300,003 cells; use fewer rows"):
        read_columns(path)


def test_a_bomb_is_not_unpacked_beyond_the_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "bomb.csv.gz"
    path.write_bytes(gzip.compress(bytes(50 * 2**20), 1))
    monkeypatch.setattr("tagalong.tabular.free_memory", lambda: 8 * 2**20)
    tracemalloc.start()
    try:
        with pytest.raises(TableError, match="must fit into memory"):
            read_columns(path)
        assert tracemalloc.get_traced_memory()[1] < 8 * 2**20
    finally:
        tracemalloc.stop()
