"""A plan as a CSV to fill in, and the rows of a filled one."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path

from tagalong._names import refuse
from tagalong.affinity._atomic import write_atomic
from tagalong.group import Group

from ._change import Label
from ._plan import Plan
from ._relative import Subset

KEYS = ("network", "seed", "task")
PLANNED = ("serves", "decides")
NEEDED = ("val_loss", "test_loss")
OPTIONAL = ("val_error", "test_error", "test_rows", "steps", "seconds", "parameters")
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
    """The rows and the names of the columns."""
    with open(file, newline="", encoding="utf-8-sig") as opened:
        reader = csv.DictReader(opened)
        lines: list[Line] = [{key: (value or "").strip() for key, value in line.items() if key} for line in reader]
        columns = [column.strip() for column in reader.fieldnames or ()]
    missing = [column for column in (*KEYS, *NEEDED) if column not in columns]
    if missing:
        raise ValueError(f"{file} must have the columns {', '.join((*KEYS, *NEEDED))}, found no {', '.join(missing)}")
    if not lines:
        raise ValueError(f"{file} must have at least one row, found none")
    return lines, columns


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
            for column in (*NEEDED, *OPTIONAL)
            if line.get(column) and column != "test_rows" and not _is_number(line[column])
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
