"""Scores in tables of text: square ones, and results of whole groups."""

from __future__ import annotations

import codecs
import csv
import io
import json
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NoReturn

import numpy as np

from tagalong.affinity import DECIMALS_HINT, Affinity, CsvLine, csv_lines
from tagalong.errors import counted, name_problems, refuse

from .scores import Candidate

SEPARATORS = ("\t", ";", ",", "|")


class TableError(ValueError):
    """A file that should hold scores does not."""


def read_text(path: Path) -> str:
    """The text, without the mark that spreadsheet programs put before it."""
    if path.is_dir():
        raise TableError(f"{path} is a folder; give the name of a file in it")
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise TableError(f"{path}: there is no such file") from None
    except OSError as error:
        raise TableError(f"{path} cannot be read: {error.strerror}") from None
    wide = content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    try:
        text = content.decode("utf-16" if wide else "utf-8-sig")
    except UnicodeDecodeError:
        raise _not_text(path) from None
    if "\0" in text:
        raise _not_text(path)
    if not text.strip():
        raise TableError(f"{path} is empty; expected a table (CSV) or JSON")
    return text


def is_json(text: str) -> bool:
    return text.lstrip().startswith(("{", "["))


def read_lines(path: Path, text: str) -> list[CsvLine]:
    """Cells by line; what separates columns is what the header has most of: tab, semicolon, comma or bar."""
    header = next(line for line in text.splitlines() if line.strip())
    separator = max(SEPARATORS, key=lambda sign: len(next(csv.reader([header], delimiter=sign))))
    try:
        lines = csv_lines(io.StringIO(text, newline=""), separator)
    except csv.Error as error:
        raise TableError(f"{path}: expected a table of separated values, found {error}") from None
    if not lines:
        raise TableError(f"{path} holds only separators; expected a table (CSV) or JSON")
    return lines


def read_json(path: Path, text: str) -> Any:
    """The document; a key given twice is refused rather than lost."""

    def distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        keys = [key for key, _ in pairs]
        twice = sorted({key for key in keys if keys.count(key) > 1}) if len(set(keys)) < len(keys) else []
        if twice:
            raise TableError(f"{path}: names must be distinct, found more than once: {', '.join(map(repr, twice))}")
        return dict(pairs)

    def constant(name: str) -> NoReturn:
        raise TableError(f"{path}: values must be finite numbers or null, found {name}")

    try:
        return json.loads(text, object_pairs_hook=distinct, parse_constant=constant)
    except (json.JSONDecodeError, RecursionError) as error:
        raise TableError(f"{path} starts like JSON and is not: {error}; is it cut short?") from None


def _not_text(path: Path) -> TableError:
    return TableError(f"{path} is not a text file; expected a table (CSV, UTF-8) or JSON")


@dataclass(frozen=True)
class ScoreTable:
    """What `select_groups` takes, with the kind of table it came from.

    Attributes:
        kind: "affinity" (saved by tagalong), "square" (a plain square table), "results" (of groups) or
            "candidates" (results with costs).
        tasks: names, as the file orders them.
        scores: for `select_groups`.
        axis: what the rows of a square table were.
    """

    kind: Literal["affinity", "square", "results", "candidates"]
    tasks: tuple[str, ...]
    scores: Any
    axis: Literal["source", "target"] = "source"

    @property
    def has_singles(self) -> bool:
        """Whether the diagonal of a square table holds anything: single-task results, if the rest are pairs."""
        return isinstance(self.scores, Affinity) and bool(np.isfinite(np.diag(self.scores.mean)).any())

    def only(self, tasks: Iterable[str]) -> ScoreTable:
        """These tasks alone: their part of a square table, or the groups among them."""
        names = tuple(tasks)
        problems = name_problems(names)
        unknown = [task for task in names if task not in self.tasks]
        if unknown:
            known = ", ".join(map(repr, self.tasks))
            problems.append(f"`tasks` must be among {known}, found {', '.join(map(repr, unknown))}")
        refuse(problems)
        return replace(self, tasks=names, scores=_part(self.scores, names))

    def __str__(self) -> str:
        tasks = counted(len(self.tasks), "task")
        if self.kind == "candidates":
            return f"{counted(len(self.scores), 'network')} with their costs for {tasks}"
        if self.kind == "results":
            return f"results of {counted(len(self.scores), 'group')} of {tasks}"
        way = "row helps column" if self.axis == "source" else "column helps row"
        steps = len(self.scores.steps)
        over = f" over {counted(steps, 'measured step')}" if steps else ""
        return f"{'affinity' if self.kind == 'affinity' else 'square table'} of {tasks}{over}, {way}"


def _part(scores: Any, tasks: tuple[str, ...]) -> Any:
    if isinstance(scores, Affinity):
        return scores.only(tasks)
    inside = set(tasks)
    if isinstance(scores, Mapping):
        kept: Any = {group: values for group, values in scores.items() if group <= inside}
    else:
        kept = [entry for entry in scores if isinstance(entry, Candidate) and entry.trains <= inside]
    if not kept:
        raise ValueError(f"`tasks` must leave a group, found none among {', '.join(map(repr, tasks))}")
    return kept


JOINTS = ("+", ";", ",", "|", "&", "/")


def group_names(cell: str, known: Collection[str] | None = None) -> frozenset[str] | None:
    """The names in a cell, None if they make no sense; names that hold a joint are recognised if known.

    Args:
        cell: the text.
        known: the names there are; without them the first joint found splits the cell.

    Example:
        >>> sorted(group_names("age+ill", {"age", "ill"})), sorted(group_names("{age, ill}"))
        (['age', 'ill'], ['age', 'ill'])
    """
    bare = re.sub(r"^[\[({]|[\])}]$", "", cell.strip())
    for text in (cell.strip(), bare):
        if known is not None and text in known:
            return frozenset({text})
    for joint in JOINTS:
        names = [name.strip().strip("'\"") for name in bare.split(joint)]
        if len(names) > 1 and (known is None or all(name in known for name in names)):
            return frozenset(names) if len(set(names)) == len(names) and all(names) else None
    return frozenset({bare}) if known is None and bare else None


GROUP = ("group", "groups", "trains", "network", "networks")
LONG = {"task", "value"}
COST = "cost"


def is_results(lines: list[CsvLine]) -> bool:
    """Whether a column names groups. A square table may have a task of that name: its lines are named alike."""
    header = lines[0][1]
    names = {line[0] for _, line in lines[1:]}
    return any(cell.lower() in GROUP for cell in header) and names != set(header[1:])


def results(path: Path, lines: list[CsvLine]) -> ScoreTable:
    """Reads a table with a column of groups; with a column of costs its lines are candidates."""
    (top, header), body = lines[0], lines[1:]
    refuse(name_problems(tuple(header), f"{path}, line {top}: column names"), TableError)
    at = next(i for i, cell in enumerate(header) if cell.lower() in GROUP)
    lower = [cell.lower() for cell in header]
    cost = lower.index(COST) if COST in lower else None
    if not body:
        raise TableError(f"{path}: expected a line for each group, found only a header")
    problems = [
        f"{path}, line {number}: expected {len(header)} cells, found {len(line)}"
        for number, line in body
        if len(line) != len(header)
    ]
    refuse(problems, TableError)
    reader = _Reader(path, header, at, cost)
    entries = reader.long(body) if set(lower) - {header[at].lower(), COST} == LONG else reader.wide(body)
    refuse(reader.problems, TableError)
    return table_of(path, entries, costs=cost is not None)


def table_of(path: Path, entries: list[Candidate], costs: bool) -> ScoreTable:
    """A table of results, or of candidates where networks have costs; the same group twice needs them."""
    tasks = tuple(dict.fromkeys(task for entry in entries for task in sorted(entry.trains)))
    if costs:
        return ScoreTable("candidates", tasks, entries)
    groups = [entry.trains for entry in entries]
    twice = [", ".join(sorted(group)) for group in dict.fromkeys(groups) if groups.count(group) > 1]
    if twice:
        raise TableError(
            f"{path}: a group must be given once, found {{{twice[0]}}} again; take the mean over runs, or give each "
            "network a cost"
        )
    return ScoreTable("results", tasks, {entry.trains: dict(entry.values) for entry in entries})


class _Reader:
    """Reads lines, and remembers what was wrong with them."""

    def __init__(self, path: Path, header: list[str], group: int, cost: int | None) -> None:
        self.path, self.header, self.group, self.cost = path, header, group, cost
        self.problems: list[str] = []

    def wide(self, body: list[CsvLine]) -> list[Candidate]:
        """One column per task, empty where the group has no result for it."""
        columns = [i for i in range(len(self.header)) if i not in (self.group, self.cost)]
        known = {self.header[i] for i in columns}
        entries = []
        for number, line in body:
            trains = self._trains(number, line, known)
            values = {self.header[i]: self._number(number, i, line[i]) for i in columns if line[i]}
            foreign = sorted(set(values) - trains)
            if foreign and trains:
                found = ", ".join(map(repr, foreign))
                self.problems.append(f"{self._at(number)}: {line[self.group]!r} has a result of {found}, not trained")
            elif trains:
                entries.append(Candidate(trains, values, self._cost(number, line)))
        return entries

    def long(self, body: list[CsvLine]) -> list[Candidate]:
        """One line per group and task: the columns task and value."""
        lower = [cell.lower() for cell in self.header]
        task, value = lower.index("task"), lower.index("value")
        known = {line[task] for _, line in body}
        found: dict[tuple[frozenset[str], float], dict[str, float]] = {}
        for number, line in body:
            trains = self._trains(number, line, known)
            values = found.setdefault((trains, self._cost(number, line)), {})
            if trains and line[task] not in trains:
                self.problems.append(f"{self._at(number)}: {line[self.group]!r} does not train {line[task]!r}")
            elif line[task] in values:
                where = f"{line[task]!r} in {line[self.group]!r}"
                self.problems.append(f"{self._at(number)}: the result of {where} is given twice; take the mean")
            values[line[task]] = self._number(number, value, line[value])
        return (
            [Candidate(trains, values, cost) for (trains, cost), values in found.items()] if not self.problems else []
        )

    def _trains(self, number: int, line: list[str], known: set[str]) -> frozenset[str]:
        names = group_names(line[self.group], known)
        if names is None:
            tasks = ", ".join(map(repr, sorted(known)))
            self.problems.append(
                f"{self._at(number)}: expected tasks ({tasks}) joined by +, found {line[self.group]!r}"
            )
        return names or frozenset()

    def _cost(self, number: int, line: list[str]) -> float:
        return 1.0 if self.cost is None else self._number(number, self.cost, line[self.cost])

    def _number(self, number: int, column: int, cell: str) -> float:
        try:
            value = float(cell)
        except ValueError:
            value = float("nan")
        if not abs(value) < float("inf"):
            hint = f"; {DECIMALS_HINT}" if "," in cell else ""
            where = f"{self._at(number)}, column {self.header[column]!r}"
            self.problems.append(f"{where}: expected a finite number, found {cell!r}{hint}")
            return 1.0
        return value

    def _at(self, number: int) -> str:
        return f"{self.path}, line {number}"
