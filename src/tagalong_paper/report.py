"""Reports of experiments: tables, figures, and which of the paper's claims were reproduced, given the noise."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from tagalong.files import document_text, json_safe, write_atomic, write_document

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

PLOTLY_SCRIPT = "plotly.min.js"
FORMAT, VERSION = "tagalong-experiment", 1
Answer = Literal["yes", "within noise", "no", "not tested"]
Key = TypeVar("Key")
Floats = Sequence[float] | NDArray[np.float64]
CONFIDENCE = 0.95
TOLERANCE = 1e-9  # smaller differences are rounding errors, even if all seeds agree exactly
WEAKEST_FIRST: tuple[Answer, ...] = ("no", "not tested", "within noise", "yes")
COUNTED = {"yes": "clearly", "within noise": "within noise", "not tested": "not tested", "no": "clearly not"}
# A claim lists at most this many comparisons; more are only counted. The JSON file lists all of them.
MAX_LISTED_COMPARISONS = 4


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


def summarize(values: Floats, *, digits: int = 2, served: bool = True) -> Value:
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


def judge_lower(values: Floats, reference: Floats, comparisons: int = 1, per_row: float = 0.0) -> Answer:
    """Judges whether results are clearly lower than others, seed by seed. "no" means that they are clearly higher.

    The answer is "not tested" if a result is not finite, e.g. because training diverged. For `comparisons` and
    `per_row`, see `judge_negative`.

    Example:
        >>> judge_lower([1.0, 1.1], [2.0, 2.2]), judge_lower([1.0, 2.5], [2.0, 2.8])
        ('yes', 'within noise')
        >>> judge_lower([3.0, 3.1], [2.0, 2.1])
        'no'
    """
    return judge_negative(np.subtract(values, reference), comparisons, per_row)


def judge_negative(values: Floats, comparisons: int = 1, per_row: float = 0.0) -> Answer:
    """Judges whether the numbers are clearly below zero. A single seed never gives a clear answer.

    Args:
        values: the numbers, one per seed.
        comparisons: the number of comparisons in the claim. A single "no" refutes the claim, and one of many
            comparisons can easily exceed zero by chance. The answer "no" is therefore subject to a Bonferroni
            correction. The answer "yes" needs no correction, since all comparisons must agree.
        per_row: the amount that one misclassified test row adds to a number, if errors are counted. All seeds share the
            test rows, so a difference of a few rows may be due to chance even if all seeds agree. The standard error of
            a difference of n rows is therefore at least √n rows.

    Example:
        >>> judge_negative([-1.0, -1.1]), judge_negative([-1.0]), judge_negative([-1.0, float("nan")])
        ('yes', 'within noise', 'not tested')
        >>> judge_negative([1.0, 1.1]), judge_negative([1.0, 1.1], comparisons=10)
        ('no', 'within noise')
        >>> judge_negative([-1.0, -1.1], per_row=0.5), judge_negative([-1.0, -1.1], per_row=0.1)
        ('within noise', 'yes')
    """
    if not np.isfinite(values).all():
        return "not tested"
    if np.size(values) < 2:
        return "within noise"
    from tagalong.study import half_width, seed_stderr  # loads torch

    mean = float(np.mean(values))
    confidence = CONFIDENCE if mean < 0 else 1 - (1 - CONFIDENCE) / comparisons
    by_rows = math.sqrt(abs(mean) * per_row)
    half = half_width(by_rows, seed_stderr(list(values)), len(values), confidence)
    if abs(mean) <= max(half, TOLERANCE):
        return "within noise"
    return "yes" if mean < 0 else "no"


def claim_all_lower(
    text: str, pairs: Mapping[str, tuple[Floats, Floats]], unit: str = "", *, per_row: float = 0.0
) -> Claim:
    """Judges the claim that the first value of every pair is lower than the second. The weakest comparison decides.

    Args:
        text: the claim.
        pairs: the comparisons by name. Each comparison consists of two lists with one value per seed.
        unit: the unit of the values, to include in the explanation.
        per_row: the amount that one misclassified test row adds to a value. See `judge_negative`.
    """
    if not pairs:
        return Claim(text, "not tested", "nothing to compare")
    answers, parts = [], []
    for name, sides in pairs.items():
        answers.append(judge_lower(*sides, len(pairs), per_row))
        ours, theirs = (f"{np.mean(side):.4g}" if np.isfinite(side).all() else "no number" for side in sides)
        parts.append(f"{name}: {ours} against {theirs}{unit} ({answers[-1]})")
    because = "; ".join(parts)
    if len(parts) > MAX_LISTED_COMPARISONS:
        counts = [f"{answers.count(answer)} {word}" for answer, word in COUNTED.items() if answer in answers]
        because = f"of {len(parts)} comparisons {', '.join(counts)}"
    return Claim(text, min(answers, key=WEAKEST_FIRST.index), because, parts)


def pearson(first: Floats, second: Floats) -> float:
    """Returns the correlation over pairs of finite numbers, or NaN if it is undefined.

    Example:
        >>> round(pearson([1, 2, 3], [2, 4, 7]), 3), pearson([1, 2], [2, 4])
        (0.993, nan)
    """
    x, y = np.asarray(first, float), np.asarray(second, float)
    finite = np.isfinite(x) & np.isfinite(y)
    if finite.sum() < 3 or not (np.ptp(x[finite]) and np.ptp(y[finite])):
        return float("nan")
    return float(np.corrcoef(x[finite], y[finite])[0, 1])


def claim_correlation(text: str, correlation: float, *, yes: float, no: float | None = None, over: str = "") -> Claim:
    """Judges the claim that a correlation is high. The explanation states the thresholds.

    Args:
        text: the claim.
        correlation: the correlation.
        yes: the minimum correlation for the answer "yes".
        no: the threshold below which the answer is "no". Defaults to `yes`.
        over: a description of the data, to include in the explanation.

    Example:
        >>> claims = [claim_correlation("high", r, yes=0.9, no=0.7) for r in (0.95, 0.8, 0.6)]
        >>> [claim.reproduced for claim in claims]
        ['yes', 'within noise', 'no']
    """
    if np.isnan(correlation):
        return Claim(text, "not tested", f"too few distinct numbers to correlate{over}")
    because = f"Pearson {correlation:.2f}{over}; {yes:g} or more counts as yes"
    if no is not None:
        because += f", below {no:g} as no"
    if correlation >= yes:
        return Claim(text, "yes", because)
    return Claim(text, "no" if no is None or correlation < no else "within noise", because)


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
