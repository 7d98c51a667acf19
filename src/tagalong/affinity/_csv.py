"""An affinity matrix as a table of commas: a header of targets, then one line per source."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from tagalong._names import name_problems, refuse

from ._check import AffinityFileError, Floats
from ._record import Record

Line = tuple[int, list[str]]


def csv_text(affinity: Record) -> str:
    """The matrix with names; numbers in full, an empty cell where nothing was measured."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["source", *affinity.tasks])
    for task, row in zip(affinity.tasks, affinity.mean.tolist(), strict=True):
        writer.writerow([task, *("" if np.isnan(value) else repr(value) for value in row)])
    return text.getvalue()


DECIMALS = "if decimals are written with a comma, write them with a point"
OTHER_WAY = {"source": ("target", "onto"), "target": ("source",)}


def read_csv(path: Path, axis: str) -> tuple[Floats, tuple[str, ...]]:
    """Matrix and names, both in the order of the rows; columns in another order are put right."""
    return square(path, _lines(path), axis)


def square(path: Path, lines: list[Line], axis: str) -> tuple[Floats, tuple[str, ...]]:
    """The same from lines that have been read; `path` is where from."""
    if not lines:
        raise AffinityFileError(f"{path}: expected a header line of task names, found an empty file")
    (top, header), body = lines[0], lines[1:]
    columns, rows = tuple(header[1:]), tuple(line[0] for _, line in body)
    problems = _header_problems(path, top, columns, rows)
    if header[0].lower() in OTHER_WAY.get(axis, ()):
        problems.append(
            f"{path}, line {top}: the first cell, {header[0]!r}, says what the lines are, but they are read as "
            f"`axis={axis!r}`; pass the other axis or change the cell"
        )
    refuse(problems, AffinityFileError)
    problems = _row_problems(path, body, rows, columns)
    matrix = np.array([_numbers(path, line, columns, problems) for line in body])
    refuse(problems, AffinityFileError)
    return matrix[:, [columns.index(name) for name in rows]], rows


def _lines(path: Path) -> list[Line]:
    try:
        # utf-8-sig: spreadsheet programs put a mark before the first name.
        with open(path, encoding="utf-8-sig", newline="") as file:
            return cells(file)
    except (UnicodeDecodeError, csv.Error) as error:
        raise AffinityFileError(f"{path}: expected a text file of comma-separated values, found {error}") from error


def cells(text: Iterable[str], delimiter: str = ",") -> list[Line]:
    """Lines that are not blank, with their numbers, cells without the space around them."""
    reader = csv.reader(text, delimiter=delimiter)
    lines = [(reader.line_num, [cell.strip() for cell in line]) for line in reader]
    return [(number, line) for number, line in lines if any(line)]


def _header_problems(path: Path, top: int, columns: tuple[str, ...], rows: tuple[str, ...]) -> list[str]:
    where = f"{path}, line {top}"
    expected = f"{where}: expected a header line: a first cell, then one task name per column, found"
    if not columns:
        return [f"{expected} one cell; are the columns separated by commas?"]
    if all(_is_number(name) for name in columns) and set(columns) != set(rows):
        return [f"{expected} numbers; put the task names in the first line and the first column"]
    return name_problems(columns, f"{where}: column names")


def _row_problems(path: Path, body: list[Line], rows: tuple[str, ...], columns: tuple[str, ...]) -> list[str]:
    problems = name_problems(rows, f"{path}: row names") if rows else []
    if len(rows) != len(columns):
        problems.append(f"{path}: expected as many rows as columns, found {len(rows)} and {len(columns)}")
    for number, line in body:
        if line[0] and line[0] not in columns:
            expected = f"one of the column names {', '.join(map(repr, columns))}"
            problems.append(f"{path}, line {number}: expected as row name {expected}, found {line[0]!r}")
    for name in columns:
        if name not in rows:
            problems.append(f"{path}: expected a row for the column {name!r}, found none")
    return problems


def _numbers(path: Path, line: Line, columns: tuple[str, ...], problems: list[str]) -> list[float]:
    number, (_, *values) = line
    where = f"{path}, line {number}"
    if len(values) != len(columns):
        hint = f"; {DECIMALS}" if len(values) == 2 * len(columns) else ""
        problems.append(f"{where}: expected {len(columns)} values, found {len(values)}{hint}")
        return [np.nan] * len(columns)
    for name, cell in zip(columns, values, strict=True):
        if cell and not (_is_number(cell) and not np.isinf(float(cell))):
            hint = f"; {DECIMALS}" if _is_number(cell.replace(",", ".")) and "," in cell else ""
            problems.append(f"{where}, column {name!r}: expected a finite number or nothing, found {cell!r}{hint}")
            return [np.nan] * len(columns)
    return [float(cell) if cell else np.nan for cell in values]


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True
