"""Results as a file: valid JSON that names its version, the same again when read."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from tagalong._caution import caution
from tagalong.affinity._atomic import write_atomic
from tagalong.group import Group

from ._document import read_document
from ._info import ProblemInfo
from ._record import Cost, Outcome, Record
from ._results import Results
from ._summary import Line

FORMAT = "tagalong-results"
VERSION = 1
FILE = "results.json"
PLAIN = ("method", "budget", "seed", "parameters", "latency", "honest")


class ResultsFileError(ValueError):
    """A file that should hold results does not."""


def write(results: Results, path: Path) -> Path:
    """Whole or not at all; table and verdict go along for other programmes, and are not read back."""
    path = path / FILE if path.is_dir() or not path.suffix else path
    text = json.dumps(to_document(results), allow_nan=False, indent=1)
    write_atomic(path, (text + "\n").encode())
    return path


def read(path: Path) -> Results:
    """The results in a file, or in the `results.json` of a folder."""
    file = path / FILE if path.is_dir() else path
    if not file.exists():
        raise ResultsFileError(f"`path` must be a results file or the folder of a finished run, found no {file}")
    results: Results = read_document(
        file, FORMAT, VERSION, lambda document: from_document(document, file.parent), ResultsFileError
    )
    return results


def to_document(results: Results) -> dict[str, Any]:
    """What JSON can hold; NaN becomes null."""
    document: dict[str, Any] = {"format": FORMAT, "version": VERSION}
    document["caution"] = caution(results.problem.tasks)
    document["problem"] = results.problem.to_document()
    document["settings"] = results.settings
    document["noise"] = [
        {"method": method, "budget": budget, "row_stderr": value} for (method, budget), value in results.noise.items()
    ]
    document["records"] = [_record_document(record) for record in results.records]
    document["table"] = [_line_document(line) for line in results.table()]
    if any((record.method, record.budget) == ("mtl", None) for record in results.records):
        document["verdict"] = results.verdict().to_document()
    finite: dict[str, Any] = _finite(document)
    return finite


def from_document(document: Mapping[str, Any], out: Path | None = None) -> Results:
    """The results in a document that `to_document` made."""
    noise = {(entry["method"], entry["budget"]): _number(entry["row_stderr"]) for entry in document["noise"]}
    return Results(
        [_record(entry) for entry in document["records"]],
        problem=ProblemInfo.from_document(document["problem"]),
        noise=noise,
        settings=document["settings"],
        out=out,
    )


def _record_document(record: Record) -> dict[str, Any]:
    document = {name: getattr(record, name) for name in PLAIN}
    document["groups"] = _groups_document(record.groups)
    for part in ("val", "test"):
        document[part] = {task: asdict(outcome) for task, outcome in getattr(record, part).items()}
    document |= {"deciding": asdict(record.deciding), "training": asdict(record.training)}
    return document | {"networks": list(record.networks)}


def _line_document(line: Line) -> dict[str, Any]:
    document = {one.name: getattr(line, one.name) for one in fields(line)}
    costs = {name: asdict(document[name]) for name in ("deciding", "training")}
    return document | costs | {"groups": _groups_document(line.groups)}


def _groups_document(groups: Iterable[Group]) -> list[dict[str, Any]]:
    return [{"trains": sorted(group.trains), "serves": sorted(group.serves), "cost": group.cost} for group in groups]


def _record(entry: Mapping[str, Any]) -> Record:
    return Record(
        groups=tuple(Group(group["trains"], group["serves"], group["cost"]) for group in entry["groups"]),
        val=_outcomes(entry["val"]),
        test=_outcomes(entry["test"]),
        deciding=Cost(**entry["deciding"]),
        training=Cost(**entry["training"]),
        networks=tuple(entry["networks"]),
        **{name: entry[name] for name in PLAIN},
    )


def _outcomes(entries: Mapping[str, Any]) -> dict[str, Outcome]:
    return {task: Outcome(_number(entry["loss"]), _number(entry["error"])) for task, entry in entries.items()}


def _number(value: float | None) -> float:
    return math.nan if value is None else value


def _finite(value: Any) -> Any:
    """The same with null for numbers that JSON lacks."""
    if isinstance(value, Mapping):
        return {key: _finite(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
