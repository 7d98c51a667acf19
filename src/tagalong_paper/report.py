"""Reports of experiments: tables, figures, and which of the paper's claims were reproduced."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import numpy as np

from tagalong.files import document_text, json_safe, write_atomic, write_document

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

PLOTLY_SCRIPT = "plotly.min.js"
FORMAT, VERSION = "tagalong-experiment", 1
Answer = Literal["yes", "within noise", "no", "not tested"]
Key = TypeVar("Key")


@dataclass(frozen=True)
class Value:
    """A number in a table.

    Attributes:
        mean: the mean over seeds.
        stderr: the standard error of the mean, or None if there is only one seed.
        served: whether the network serves the task, rather than training it only as a helper.
        digits: the number of decimal places.
    """

    mean: float
    stderr: float | None = None
    served: bool = True
    digits: int = 2

    def __str__(self) -> str:
        if not math.isfinite(self.mean):
            return "-"
        text = f"{self.mean:.{self.digits}f}"
        if self.stderr is not None and math.isfinite(self.stderr):
            text += f" ± {self.stderr:.{self.digits}f}"
        return text if self.served else f"({text})"

    def to_document(self) -> dict[str, Any]:
        """Returns the contents as a JSON document."""
        return {"mean": self.mean, "stderr": self.stderr, "served": self.served}


def summarize(values: Sequence[float] | np.ndarray, *, digits: int = 2, served: bool = True) -> Value:
    """Returns the mean over seeds, with its standard error if there are at least two seeds and finite results."""
    stderr = None
    if len(values) > 1 and np.isfinite(values).all():
        stderr = float(np.std(values, ddof=1) / np.sqrt(len(values)))
    return Value(float(np.mean(values)), stderr, served, digits)


def values_of(
    numbers: Mapping[Key, float], keys: Iterable[Key], *, per: float = 1.0, digits: int = 2
) -> list[Value | None]:
    """Returns a table's column of numbers, with None for missing keys.

    Example:
        >>> [str(cell) for cell in values_of({"a1": 3.0, "a2": 1.0}, ["a1", "a2", "a3"], per=2.0)]
        ['1.50', '0.50', 'None']
    """
    return [Value(numbers[key] / per, digits=digits) if key in numbers else None for key in keys]


Cell = str | int | Value | None


@dataclass(frozen=True)
class ReportTable:
    """A table in a report.

    Columns titled "printed" or "published" contain the paper's numbers, and all others contain ours.

    Attributes:
        title: the title above the table.
        columns: the column headings.
        rows: the rows, each a list with one cell per column.
        note: a note below the table.
    """

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    note: str = ""

    @staticmethod
    def of_columns(title: str, columns: Mapping[str, Iterable[Cell]], note: str = "") -> ReportTable:
        """Makes a table from the cells of each column.

        Example:
            >>> ReportTable.of_columns("Total error", {"method": ["mtl", "stl"], "total": [Value(3.0), None]}).rows
            [('mtl', Value(mean=3.0, stderr=None, served=True, digits=2)), ('stl', None)]
        """
        return ReportTable(title, tuple(columns), list(zip(*columns.values(), strict=True)), note)

    def column(self, name: str) -> list[Cell]:
        """Returns the cells of a column."""
        return [row[list(self.columns).index(name)] for row in self.rows]


@dataclass(frozen=True)
class Claim:
    """A claim in the paper and whether it was reproduced.

    Attributes:
        text: the claim.
        reproduced: "yes" or "no" if the answer is clear by Student's t-test over seeds, otherwise "within noise". "not
            tested" means that there was nothing to compare.
        because: the numbers that explain the answer.
        parts: the comparisons on which the claim is based.
    """

    text: str
    reproduced: Answer
    because: str = ""
    parts: Sequence[str] = ()


@dataclass(frozen=True)
class Report:
    """The results of an experiment.

    Attributes:
        name: the name of the experiment.
        title: the question that the experiment answers.
        tables: the tables.
        claims: the paper's claims that the experiment tests.
        figures: the figures by file name (without extension).
        notes: notes for the reader.
        numbers: additional results for the JSON document, where NaN becomes null.
    """

    name: str
    title: str
    tables: Sequence[ReportTable] = ()
    claims: Sequence[Claim] = ()
    figures: Mapping[str, Figure] = field(default_factory=dict)
    notes: Sequence[str] = ()
    numbers: Mapping[str, Any] = field(default_factory=dict)

    def table(self, start: str) -> ReportTable:
        """Returns the first table whose title starts with the given text."""
        return next(table for table in self.tables if table.title.startswith(start))

    def to_document(self) -> dict[str, Any]:
        """Returns everything except the figures as a JSON document."""
        claims = [
            {"claim": claim.text, "reproduced": claim.reproduced, "because": claim.because, "parts": claim.parts}
            for claim in self.claims
        ]
        tables = []
        for table in self.tables:
            rows = [[cell.to_document() if isinstance(cell, Value) else cell for cell in row] for row in table.rows]
            tables.append({"title": table.title, "columns": table.columns, "rows": rows, "note": table.note})
        document = {"experiment": self.name, "title": self.title, "tables": tables, "claims": claims}
        return dict(json_safe({**document, "notes": self.notes, **self.numbers}))

    @staticmethod
    def from_document(document: Mapping[str, Any]) -> Report:
        """Reads a document as returned by `to_document`, which may also have plotly's documents of figures."""
        from plotly.graph_objects import Figure

        tables = []
        for table in document["tables"]:
            rows = [[Value(**cell) if isinstance(cell, dict) else cell for cell in row] for row in table["rows"]]
            tables.append(ReportTable(table["title"], table["columns"], rows, table["note"]))
        claims = [Claim(*claim.values()) for claim in document["claims"]]
        figures = {name: Figure(figure) for name, figure in document.get("figures", {}).items()}
        return Report(document["experiment"], document["title"], tables, claims, figures, document["notes"])

    def to_json(self) -> str:
        """Returns the JSON text that `save` writes."""
        return document_text(FORMAT, VERSION, self.to_document())

    def save(self, out: Path) -> list[Path]:
        """Writes `NAME.json` and the figures as HTML, with one copy of plotly's script, and returns the files."""
        out.mkdir(parents=True, exist_ok=True)
        files = [out / f"{self.name}.json"]
        write_document(files[0], FORMAT, VERSION, self.to_document())
        if self.figures:
            from plotly.offline import get_plotlyjs

            write_atomic(out / PLOTLY_SCRIPT, get_plotlyjs())
        for name, figure in self.figures.items():
            files.append(out / f"{name}.html")
            write_atomic(files[-1], figure.to_html(include_plotlyjs=PLOTLY_SCRIPT))
        return files
