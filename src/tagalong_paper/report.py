"""What an experiment leaves: tables, figures, and which of the paper's claims appeared."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from tagalong.files import json_safe, write_atomic, write_document

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

SCRIPT = "plotly.min.js"
Appeared = Literal["yes", "within noise", "no", "not tested"]


@dataclass(frozen=True)
class Value:
    """A number of a table.

    Attributes:
        mean: over seeds.
        stderr: its standard error; None with one seed.
        served: False for the result of a task where it only helps.
        digits: after the point.
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
        """As JSON can hold it."""
        made: dict[str, Any] = json_safe({"mean": self.mean, "stderr": self.stderr, "served": self.served})
        return made


Cell = str | int | Value | None


@dataclass(frozen=True)
class Sheet:
    """A table. Columns headed "printed" or "published" hold the paper's numbers, all others ours.

    Attributes:
        title: above it.
        columns: headings.
        rows: cells, one for each column.
        note: below it.
    """

    title: str
    columns: tuple[str, ...]
    rows: Sequence[Sequence[Cell]]
    note: str = ""

    def column(self, name: str) -> list[Cell]:
        """The cells below a heading."""
        return [row[self.columns.index(name)] for row in self.rows]

    def to_document(self) -> dict[str, Any]:
        """As JSON can hold it."""
        rows = [[cell.to_document() if isinstance(cell, Value) else cell for cell in row] for row in self.rows]
        return {"title": self.title, "columns": list(self.columns), "rows": rows, "note": self.note}


@dataclass(frozen=True)
class Claim:
    """Something the paper says, and whether it appeared here.

    Attributes:
        text: the claim.
        appeared: "yes" and "no" where the numbers are clear, by Student's t over seeds; "within noise" in between.
        because: the numbers behind the answer.
        parts: every comparison that it rests on, one by one.
    """

    text: str
    appeared: Appeared
    because: str = ""
    parts: Sequence[str] = ()

    def to_document(self) -> dict[str, Any]:
        """As JSON can hold it."""
        return {"claim": self.text, "appeared": self.appeared, "because": self.because, "parts": list(self.parts)}


@dataclass(frozen=True)
class Report:
    """What an experiment found.

    Attributes:
        name: of the experiment.
        title: what it asks.
        sheets: its tables.
        claims: what the paper says about it.
        figures: by file name, without ending.
        notes: what a reader must know.
        numbers: further results, as JSON can hold them but for NaN, which becomes null there.
    """

    name: str
    title: str
    sheets: Sequence[Sheet] = ()
    claims: Sequence[Claim] = ()
    figures: Mapping[str, Figure] = field(default_factory=dict)
    notes: Sequence[str] = ()
    numbers: Mapping[str, Any] = field(default_factory=dict)

    def sheet(self, start: str) -> Sheet:
        """The table whose title starts so."""
        return next(sheet for sheet in self.sheets if sheet.title.startswith(start))

    @property
    def holds_printed(self) -> bool:
        """Whether a table has a column of the paper's numbers."""
        return any(column.startswith("printed") for sheet in self.sheets for column in sheet.columns)

    def to_document(self) -> dict[str, Any]:
        """Everything but the figures, as JSON can hold it."""
        return {
            "experiment": self.name,
            "title": self.title,
            "tables": [sheet.to_document() for sheet in self.sheets],
            "claims": [claim.to_document() for claim in self.claims],
            "notes": list(self.notes),
            **json_safe(self.numbers),
        }

    def save(self, out: Path) -> list[Path]:
        """Writes `NAME.json` and the figures as HTML; gives the files. Figures share one copy of plotly's script."""
        out.mkdir(parents=True, exist_ok=True)
        files = [out / f"{self.name}.json"]
        write_document(files[0], "tagalong-experiment", 1, self.to_document())
        if self.figures:
            _write_script(out)
        for name, figure in self.figures.items():
            files.append(out / f"{name}.html")
            write_atomic(files[-1], figure.to_html(include_plotlyjs=SCRIPT))
        return files


def _write_script(out: Path) -> None:
    """Plotly's own way would keep a script that a kill cut off, and let others read half of one."""
    from plotly.offline import get_plotlyjs

    script, content = out / SCRIPT, get_plotlyjs().encode()
    if not script.exists() or script.stat().st_size != len(content):
        write_atomic(script, content)
