"""Results of whole groups: one line per group, or one line per group and task."""

from __future__ import annotations

from pathlib import Path

from tagalong._names import name_problems, refuse
from tagalong.affinity._csv import DECIMALS, Line

from .._candidate import Candidate
from ._content import TableError
from ._group_names import group_names
from ._table import ScoreTable

GROUP = ("group", "groups", "trains", "network", "networks")
LONG = {"task", "value"}
COST = "cost"


def is_results(lines: list[Line]) -> bool:
    """Whether a column names groups. A square table may have a task of that name: its lines are named alike."""
    header = lines[0][1]
    names = {line[0] for _, line in lines[1:]}
    return any(cell.lower() in GROUP for cell in header) and names != set(header[1:])


def results(path: Path, lines: list[Line]) -> ScoreTable:
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

    def wide(self, body: list[Line]) -> list[Candidate]:
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

    def long(self, body: list[Line]) -> list[Candidate]:
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
            hint = f"; {DECIMALS}" if "," in cell else ""
            where = f"{self._at(number)}, column {self.header[column]!r}"
            self.problems.append(f"{where}: expected a finite number, found {cell!r}{hint}")
            return 1.0
        return value

    def _at(self, number: int) -> str:
        return f"{self.path}, line {number}"
