"""What a study found: every record, the table, the verdict and the trained answer; as a file and as HTML."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, fields
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tagalong.caution import caution
from tagalong.errors import refuse
from tagalong.files import read_document, write_atomic
from tagalong.group import Group
from tagalong.rendering import join, table, tag

from .records import Cost, Outcome, ProblemInfo, Record
from .summary import Line, summarise
from .text import HEADINGS, cells, legend
from .uncertainty import TOGETHER, Label
from .verdict import Verdict, decide

if TYPE_CHECKING:
    from .best import Best


class Results:
    """What a study found.

    Args:
        records: one per method, budget and seed.
        problem: what it is about.
        noise: for each method and budget the row standard error of its change against `mtl`, see `row_stderr`.
        settings: what the study was asked; `price_per_hour` among them gives money, `confirming_seeds` are seeds that
            no choice has seen, see `decide`; `diverged_seeds` are left out, since `mtl` diverged with them.
        out: the folder of the run, where the recommended networks lie.
    """

    def __init__(
        self,
        records: Sequence[Record],
        *,
        problem: ProblemInfo,
        noise: Mapping[Label, float] | None = None,
        settings: Mapping[str, Any] | None = None,
        out: str | Path | None = None,
    ) -> None:
        self.records = tuple(records)
        self.problem = problem
        self.noise = dict(noise or {})
        self.settings = dict(settings or {})
        self.out = None if out is None else Path(out)
        refuse(self._problems())

    def _problems(self) -> list[str]:
        if not self.records:
            return ["`records` must hold at least one record, found none"]
        problems, seen = [], set()
        for record in self.records:
            label = (record.method, record.budget, record.seed)
            for part in ("val", "test"):
                found = set(getattr(record, part))
                if found != set(self.problem.tasks):
                    odd = ", ".join(sorted(found ^ set(self.problem.tasks)))
                    problems.append(f"`records`: {label} must have a {part} outcome for every task, odd: {odd}")
            if label in seen:
                problems.append(f"`records` must be distinct, found {label} more than once")
            seen.add(label)
        return problems

    def table(self) -> list[Line]:
        """One line per method and budget, means over seeds."""
        return summarise(self.records, self.settings.get("price_per_hour"))

    @cached_property
    def _verdict(self) -> Verdict:
        return self._decided(0.0)

    def _decided(self, at_least: float) -> Verdict:
        confirming = self.settings.get("confirming_seeds", ())
        left_out = self.settings.get("diverged_seeds", ())
        return decide(self.records, self.noise, at_least=at_least, confirming=confirming, left_out=left_out)

    def verdict(self, *, at_least: float = 0.0) -> Verdict:
        """Is any grouping worth it?

        Args:
            at_least: grouping must lower the losses by more than this share, on average over tasks.
        """
        return self._decided(at_least) if at_least else self._verdict

    def best(self) -> Best:
        """The recommended networks, trained, with the heads they serve only; read from the folder of the run."""
        from .best import Best

        if self.out is None:
            raise ValueError("these results have no folder with networks; give `out=` to the study")
        return Best.load(self.out)

    def records_of(self, label: Label) -> list[Record]:
        """The records of a method and budget, by seed."""
        found = [record for record in self.records if (record.method, record.budget) == label]
        return sorted(found, key=lambda record: record.seed)

    def to_document(self) -> dict[str, Any]:
        """Everything, with the verdict, as JSON can hold it."""

        return to_document(self)

    def save(self, path: str | Path) -> Path:
        """Writes the results as JSON, whole or not at all; gives the file.

        Args:
            path: the file, or a folder that gets a `results.json`.
        """

        return write(self, Path(path))

    @staticmethod
    def load(path: str | Path) -> Results:
        """Reads what `save` wrote; a folder means the `results.json` in it."""

        return read(Path(path))

    def __str__(self) -> str:
        from .text import results_text

        return results_text(self)

    def _repr_html_(self) -> str:

        return html_table(self)

    def __repr__(self) -> str:
        methods = ", ".join(dict.fromkeys(record.method for record in self.records))
        return f"Results({self.problem.name!r}, {len(self.problem.tasks)} tasks: {methods})"


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


def html_table(results: Results) -> str:
    """The verdict, then one row per method and budget."""
    lines = results.table()
    rows = [cells(line) for line in lines]
    used = [column for column in range(len(HEADINGS)) if column < 2 or any(row[column] for row in rows)]
    title = f"{results.problem.name}: {len(results.problem.tasks)} tasks"
    made = table(
        [HEADINGS[column] for column in used], [[row[column] for column in used] for row in rows], caption=title
    )
    parts = [made, tag("small", " ".join(legend(lines)))]
    if any((line.method, line.budget) == TOGETHER for line in lines):
        parts.insert(0, tag("p", *_broken(str(results.verdict()))))
    return join(parts)


def _broken(text: str) -> list[object]:
    """Lines with breaks between them."""
    return [part for line in text.splitlines() for part in (line, tag("br"))]
