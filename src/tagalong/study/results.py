"""What a study found: every record, the table, the verdict and the trained answer; as a file and as HTML."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, fields
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tagalong.disclaimer import disclaimer
from tagalong.errors import counted, refuse
from tagalong.files import DocumentError, json_safe, read_document, write_document
from tagalong.group import Group
from tagalong.rendering import join, table, tag

from .records import TOGETHER, Cost, Label, Outcome, ProblemInfo, Record
from .search_log import SearchLog
from .summary import Line, TaskChange, summarise, task_change
from .text import HEADINGS, NARROWEST, WIDTH, cells, label_text, legend, methods_table, networks_list, tasks_table
from .verdict import Verdict, decide

if TYPE_CHECKING:
    from .best import Best

FORMAT, VERSION, FILE = "tagalong-results", 1, "results.json"
PLAIN = ("method", "budget", "seed", "parameters", "latency", "honest")


class ResultsFileError(DocumentError):
    """A file that should hold results does not."""


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
        found = [record for record in self.records if record.label == label]
        return sorted(found, key=lambda record: record.seed)

    def changes_by_task(self, method: str, budget: int | None = None) -> dict[str, TaskChange]:
        """What a method changes for each task against `mtl`, from pairs of the same seed.

        Args:
            method: its name.
            budget: how many networks it was allowed; None for methods without a budget.

        Raises:
            ValueError: there is no such method with this budget, or nothing of `mtl` with the same seeds.
        """
        together = {record.seed: record for record in self.records_of(TOGETHER)}
        mine = self.records_of((method, budget))
        pairs = [(record, together[record.seed]) for record in mine if record.seed in together]
        if not pairs:
            known = ", ".join(sorted({record.method for record in self.records}))
            raise ValueError(
                f"`method` and `budget` must be in the results, beside mtl, found {method!r}, {budget!r}; "
                f"methods: {known}"
            )
        return {task: task_change(task, pairs) for task in self.problem.tasks}

    def to_document(self) -> dict[str, Any]:
        """Everything, with table and verdict, as JSON can hold it; NaN becomes null."""
        document: dict[str, Any] = {"format": FORMAT, "version": VERSION}
        document["caution"] = disclaimer(self.problem.tasks)
        document["problem"] = self.problem.to_document()
        document["settings"] = self.settings
        document["noise"] = [
            {"method": method, "budget": budget, "row_stderr": value} for (method, budget), value in self.noise.items()
        ]
        document["records"] = [_record_document(record) for record in self.records]
        document["table"] = [_line_document(line) for line in self.table()]
        if any(record.label == TOGETHER for record in self.records):
            document["verdict"] = self.verdict().to_document()
        finite: dict[str, Any] = json_safe(document)
        return finite

    def save(self, path: str | Path) -> Path:
        """Writes the results as JSON, whole or not at all; gives the file.

        Table and verdict go along for other programmes, and are not read back.

        Args:
            path: the file, or a folder that gets a `results.json`.
        """
        file = Path(path)
        file = file / FILE if file.is_dir() or not file.suffix else file
        write_document(file, FORMAT, VERSION, self.to_document())
        return file

    @staticmethod
    def load(path: str | Path) -> Results:
        """Reads what `save` wrote; a folder means the `results.json` in it."""
        file = Path(path)
        file = file / FILE if file.is_dir() else file
        if not file.exists():
            raise ResultsFileError("path", "must be a results file or the folder of a finished run", f"no {file}")
        return read_document(
            file,
            FORMAT,
            (VERSION,),
            lambda document: _from_document(document, file.parent),
            ResultsFileError,
            "run the study again",
        )

    @property
    def search_log(self) -> SearchLog | None:
        """How `auto` came to its groups; None where it was not asked, or had nothing to decide."""
        told = self.settings.get("decisions", {}).get("auto")
        return SearchLog(told) if told and told.get("steps") else None

    def to_text(self, width: int = WIDTH) -> str:
        """The table of all methods, the tasks one by one for the best grouping, then the verdict.

        Args:
            width: columns of the screen; prose takes no more than a hundred.
        """
        width = max(width, NARROWEST)
        lines, prose = self.table(), min(width, WIDTH)
        tasks, seeds = len(self.problem.tasks), max(line.seeds for line in lines)
        title = f"{self.problem.name}: {counted(tasks, 'task')}, {counted(seeds, 'seed')}"
        made, left_out = methods_table(lines, width)
        parts = [title, "", *made, "", *legend(lines, prose, left_out)]
        by_label = {line.label: line for line in lines}
        if TOGETHER in by_label:
            verdict = self.verdict()
            if verdict.candidate is not None:
                together, mine = by_label[TOGETHER], by_label[verdict.candidate]
                parts += ["", f"By task, mtl and the groups of {label_text(verdict.candidate)}:"]
                parts += tasks_table(self.problem, together, mine, width)
                if not verdict.worth_it:
                    parts += ["", "The groups:", *networks_list(verdict.candidate_groups, prose)]
            parts += ["", verdict.to_text(prose)]
        if self.search_log is not None:
            parts += ["", self.search_log.to_text(prose)]
        return "\n".join(parts)

    def __str__(self) -> str:
        return self.to_text()

    def _repr_html_(self) -> str:
        return _html(self)

    def __repr__(self) -> str:
        methods = ", ".join(dict.fromkeys(record.method for record in self.records))
        return f"Results({self.problem.name!r}, {len(self.problem.tasks)} tasks: {methods})"


def _from_document(document: Mapping[str, Any], out: Path) -> Results:
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


def _html(results: Results) -> str:
    """The verdict, then one row per method and budget."""
    lines = results.table()
    rows = [cells(line) for line in lines]
    used = [column for column in range(len(HEADINGS)) if column < 2 or any(row[column] for row in rows)]
    title = f"{results.problem.name}: {len(results.problem.tasks)} tasks"
    made = table(
        [HEADINGS[column] for column in used], [[row[column] for column in used] for row in rows], caption=title
    )
    parts = [made, tag("small", " ".join(legend(lines)))]
    if any(line.label == TOGETHER for line in lines):
        parts.insert(0, tag("p", *_broken(str(results.verdict()))))
    return join(parts)


def _broken(text: str) -> list[object]:
    """Lines with breaks between them."""
    return [part for line in text.splitlines() for part in (line, tag("br"))]
