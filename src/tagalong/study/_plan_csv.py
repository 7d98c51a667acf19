"""A plan as a CSV to fill in, and the rows of a filled one."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from pathlib import Path

from tagalong._names import refuse
from tagalong.affinity._atomic import write_atomic
from tagalong.group import Group
from tagalong.learn._table_read import find_delimiter, read_text

from ._change import Label
from ._plan import Plan
from ._relative import Subset

KEYS = ("network", "seed", "task")
PLANNED = ("serves", "decides")
NEEDED = ("val_loss", "test_loss")
OPTIONAL = ("val_error", "test_error", "test_rows", "steps", "seconds", "parameters")
NUMBERS = tuple(column for column in (*NEEDED, *OPTIONAL) if column != "test_rows")
LISTED = 8
Line = Mapping[str, str]
Networks = dict[tuple[str, int], dict[str, Line]]


def write(plan: Plan, path: Path) -> Path:
    """One row per network, seed and task.

    `serves` says for which methods and budgets the network serves the task, `decides` for which its losses decide.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*KEYS, *PLANNED, *NEEDED, *OPTIONAL[:2]])
    waiting = {label_text(label): set(plan.deciding(label[0])) for label in plan.undecided}
    for tasks, seed in plan.networks:
        subset = frozenset(tasks)
        decides = [label for label, deciding in waiting.items() if subset in deciding]
        for task in tasks:
            serves = [label_text(label) for label, groups in plan.groupings.items() if _serves(groups, subset, task)]
            writer.writerow(["+".join(tasks), seed, task, " ".join(serves), " ".join(decides), "", "", "", ""])
    write_atomic(path, text.getvalue().encode())
    return path


def read_lines(file: Path) -> tuple[list[Line], list[str]]:
    """The rows and the names of the columns, as a spreadsheet may have left them."""
    text = read_text(file, "`path`")
    delimiter = find_delimiter(text)
    try:
        header, *rows = [line for line in csv.reader(io.StringIO(text, newline=""), delimiter=delimiter) if line] or [
            []
        ]
    except csv.Error as error:
        raise ValueError(f"{file} must be a table, found {error}; is a quotation mark left open?") from error
    columns = [column.strip() for column in header]
    lines: list[Line] = [_line(columns, row, delimiter) for row in rows if any(cell.strip() for cell in row)]
    missing = [column for column in (*KEYS, *NEEDED) if column not in columns]
    if missing:
        raise ValueError(f"{file} must have the columns {', '.join((*KEYS, *NEEDED))}, found no {', '.join(missing)}")
    if not lines:
        raise ValueError(f"{file} must have at least one row, found none")
    return lines, columns


def _line(columns: Sequence[str], row: Sequence[str], delimiter: str) -> Line:
    line = {column: cell.strip() for column, cell in zip_longest(columns, row[: len(columns)], fillvalue="")}
    if delimiter != ",":  # where a comma separates no cells, it may be the decimal point
        line |= {column: line[column].replace(",", ".") for column in NUMBERS if column in line}
    return line


def networks_in(lines: Sequence[Line], file: Path) -> Networks:
    """The rows by network and task, refused with everything that is missing or no number."""
    networks: Networks = {}
    empty, problems = [], []
    for number, line in enumerate(lines, 2):
        where = f"{line['network']} (seed {line['seed']}) {line['task']}"
        if not line["seed"].isdigit() or not line["network"] or not line["task"]:
            problems.append(
                f"{file}, line {number}: network, seed (a whole number) and task must be given, found {where}"
            )
            continue
        by_task = networks.setdefault((line["network"], int(line["seed"])), {})
        if line["task"] in by_task:
            problems.append(f"{file}, line {number}: found a second row for {where}")
        by_task[line["task"]] = line
        empty += [f"{column} of {where}" for column in NEEDED if not line[column]]
        problems += [
            f"{file}, line {number}: {column} must be a number, found {line[column]!r}"
            for column in NUMBERS
            if line.get(column) and not _is_number(line[column])
        ]
    if empty:
        more = f" and {len(empty) - LISTED} more" if len(empty) > LISTED else ""
        problems.append(f"{file} is not filled in yet: {', '.join(empty[:LISTED])}{more} missing")
    refuse(problems)
    return networks


def _serves(groups: Sequence[Group], subset: Subset, task: str) -> bool:
    return any(group.trains == subset and task in group.serves for group in groups)


def label_text(label: Label) -> str:
    """A method and budget in one word, such as "tag:2"."""
    return label[0] if label[1] is None else f"{label[0]}:{label[1]}"


def read_label(text: str) -> Label:
    """The method and budget that such a word names."""
    method, _, budget = text.partition(":")
    if budget and not budget.isdigit():
        raise ValueError(f"columns `serves` and `decides` must hold labels such as 'stl' or 'tag:2', found {text!r}")
    return method, int(budget) if budget else None


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
