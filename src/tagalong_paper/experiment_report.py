"""Reports of experiments: tables, figures, and which of the paper's claims were reproduced."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from tagalong.files import document_text, json_safe, write_atomic, write_document

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

PLOTLY_SCRIPT = "plotly.min.js"
FORMAT, VERSION = "tagalong-experiment", 1
Answer = Literal["yes", "within noise", "no", "not tested"]


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
        document: dict[str, Any] = json_safe({"mean": self.mean, "stderr": self.stderr, "served": self.served})
        return document


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
    columns: tuple[str, ...]
    rows: Sequence[Sequence[Cell]]
    note: str = ""

    def column(self, name: str) -> list[Cell]:
        """Returns the cells of a column."""
        return [row[self.columns.index(name)] for row in self.rows]

    def to_document(self) -> dict[str, Any]:
        """Returns the contents as a JSON document."""
        rows = [[cell.to_document() if isinstance(cell, Value) else cell for cell in row] for row in self.rows]
        return {"title": self.title, "columns": list(self.columns), "rows": rows, "note": self.note}


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

    def to_document(self) -> dict[str, Any]:
        """Returns the contents as a JSON document."""
        return {"claim": self.text, "reproduced": self.reproduced, "because": self.because, "parts": list(self.parts)}


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

    @property
    def has_printed_columns(self) -> bool:
        """Whether any table has a column with the paper's numbers."""
        return any(column.startswith("printed") for table in self.tables for column in table.columns)

    def to_document(self) -> dict[str, Any]:
        """Returns everything except the figures as a JSON document."""
        return {
            "experiment": self.name,
            "title": self.title,
            "tables": [table.to_document() for table in self.tables],
            "claims": [claim.to_document() for claim in self.claims],
            "notes": list(self.notes),
            **json_safe(self.numbers),
        }

    def to_json(self) -> str:
        """Returns the JSON text that `save` writes."""
        return document_text(FORMAT, VERSION, self.to_document())

    def save(self, out: Path) -> list[Path]:
        """Writes `NAME.json` and the figures as HTML, with one copy of plotly's script, and returns the files."""
        out.mkdir(parents=True, exist_ok=True)
        files = [out / f"{self.name}.json"]
        write_document(files[0], FORMAT, VERSION, self.to_document())
        if self.figures:
            _write_script(out)
        for name, figure in self.figures.items():
            files.append(out / f"{name}.html")
            write_atomic(files[-1], figure.to_html(include_plotlyjs=PLOTLY_SCRIPT))
        return files


def _write_script(out: Path) -> None:
    """Writes plotly's script atomically. Plotly itself does not replace a partially written script."""
    from plotly.offline import get_plotlyjs

    script, content = out / PLOTLY_SCRIPT, get_plotlyjs().encode()
    if not script.exists() or script.stat().st_size != len(content):
        write_atomic(script, content)
