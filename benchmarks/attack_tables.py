"""Random tables: unusual delimiters, encodings, quotes, headers and cells, ragged rows, and damaged compression."""

import gzip
import io
import random
import zipfile
from collections.abc import Callable

import numpy as np

from attack_damage import BYTE_DAMAGES

COLUMNS = ("x", "y", "age", "weight", "ill")
TARGETS = COLUMNS[2:]
Rows = list[list[str]]
STRANGE_CELLS = (
    *("", " ", "oops", "nan", "inf", "-inf", "1e400", "1e308", "-1e308", "9" * 400, "1,5", "1.5.5", "0x10", "1_000"),
    *("2024-01-31", "true", "−1", "٣", "\x00", "a\x00b", "\x1b[31mred\x1b[0m", "\u202e", "\ud7ff", "\ufeff", "\x85"),
    *('"', '""', 'a"b', "'", "a\nb", "a\r\nb", "\t", "=1+1", "x" * 200_000, "{}", "[1]", "#N/A", "?"),
)
STRANGE_NAMES = (
    *("", " ", "age", "AGE", "1", "nan", "a,b", 'a"b', "a\nb", "a\x00b", "\x1b]0;title\x07", "\x1b[2J", "é" * 300),
    *("n" * 150_000, "__class__", "../x", "<script>", "\u202eabc", "network", "split"),
)


def plain_rows(rng: random.Random, count: int = 60) -> Rows:
    """Draws the header and the rows of an ordinary table."""
    rows = [list(COLUMNS)]
    for _ in range(count):
        x, y, noise = (rng.gauss(0, 1) for _ in range(3))
        numbers = (x, y, 50 + 5 * x + noise, 70 + 5 * y - noise)
        rows.append([*(f"{number:.4f}" for number in numbers), str(int(x + y + noise > 0))])
    return rows


def table_text(rows: Rows, delimiter: str = ",", end: str = "\n", quoted: bool = True) -> str:
    """Formats rows as text; cells with a delimiter, a quote or a line break are quoted unless `quoted` is False."""

    def cell(text: str) -> str:
        needs_quotes = quoted and any(character in text for character in (delimiter, '"', "\n", "\r"))
        return '"' + text.replace('"', '""') + '"' if needs_quotes else text

    return "".join(delimiter.join(map(cell, row)) + end for row in rows)


def change_cells(rows: Rows, rng: random.Random) -> None:
    for _ in range(rng.choice((1, 1, 5, 50))):
        row = rng.choice(rows)
        row[rng.randrange(len(row))] = rng.choice(STRANGE_CELLS)


def change_column(rows: Rows, rng: random.Random) -> None:
    column, cells = rng.randrange(len(COLUMNS)), rng.choices(STRANGE_CELLS, k=rng.choice((1, 1, 3)))
    for row in rows[1:]:
        row[column] = rng.choice(cells)


def change_header(rows: Rows, rng: random.Random) -> None:
    rows[0][rng.randrange(len(COLUMNS))] = rng.choice(STRANGE_NAMES)


def make_ragged(rows: Rows, rng: random.Random) -> None:
    for _ in range(rng.choice((1, 3, 30))):
        row = rng.choice(rows)
        row[:] = row[: rng.randrange(len(row) + 1)] if rng.random() < 0.5 else [*row, *rng.choices(STRANGE_CELLS, k=2)]
        row[:] = row or [""]


def drop_rows(rows: Rows, rng: random.Random) -> None:
    del rows[rng.choice((0, 1, 2, 3, 6)) :]
    rows[:] = rows or [[""]]


def repeat_rows(rows: Rows, rng: random.Random) -> None:
    rows[1:] = [rows[-1]] * len(rows[1:])


CHANGES: tuple[Callable[[Rows, random.Random], None], ...] = (
    *(change_cells, change_cells, change_column, change_header, make_ragged, drop_rows, repeat_rows),
    lambda rows, rng: None,
)


def random_table(rng: random.Random) -> tuple[str, bytes]:
    """Draws the file name and the content of a table with one or more oddities."""
    rows = plain_rows(rng)
    rng.choice(CHANGES)(rows, rng)
    text = table_text(rows, rng.choice(",,,;\t| :"), rng.choice(("\n", "\n", "\r\n", "\r")), rng.random() < 0.7)
    encoding = rng.choice(("utf-8", "utf-8", "utf-8-sig", "latin-1", "utf-16", "utf-16-le", "utf-32", "cp500"))
    name, content = _compressed(text.encode(encoding, "replace"), rng)
    if rng.random() < 0.5:
        content = rng.choice(BYTE_DAMAGES)(content, rng)
    return name, content


def _compressed(content: bytes, rng: random.Random) -> tuple[str, bytes]:
    kind = rng.choice(("csv", "csv", "csv", "tsv", "txt", "csv.gz", "csv.gz", "zip", "parquet", "npy", "npz"))
    if kind == "csv.gz":
        content = gzip.compress(content, mtime=0)
    elif kind == "zip":
        file = io.BytesIO()
        with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
            for number in range(rng.choice((1, 1, 0, 2))):
                archive.writestr(f"table{number}.csv", content)
        content = file.getvalue()
    return f"odd.{kind}", content


ARRAYS: tuple[object, ...] = (
    *(1.0, [], [[]], [[1.0]], [["a", "b"]], [[1e308, -1e308]], [[float("nan"), float("inf")]], [[1, 2, 3]]),
    *(
        [[1 + 2j, 0]],
        [[True, False]],
        [{"x": 1}],
        [None],
        np.zeros((0, 2)),
        np.zeros((2, 2, 2)),
        np.zeros((3, 2), "f2"),
    ),
    *(np.array([(1.0, 2)], [("x", "f8"), ("y", "i4")]), np.array([["2024-01-31"] * 2], "M8[D]"), [[2**70, 1]]),
    *(np.array([[b"a", b"b"]]), np.zeros((2, 2), ">f8"), np.zeros((2, 2), "i8")),
)


def random_array(rng: random.Random) -> tuple[str, bytes]:
    """Draws the file name and the content of an array file."""
    array, file = np.array(rng.choice(ARRAYS)), io.BytesIO()
    kind = rng.choice(("npy", "npz"))
    if kind == "npy":
        np.save(file, array, allow_pickle=True)
    else:
        np.savez(file, **{f"rows{number}": array for number in range(rng.choice((1, 1, 0, 2)))})
    content = file.getvalue()
    return f"odd.{kind}", rng.choice(BYTE_DAMAGES)(content, rng) if rng.random() < 0.3 else content
