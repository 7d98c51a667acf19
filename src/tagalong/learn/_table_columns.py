"""How one column of a table becomes inputs: a number, or a category."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ._split import Rows
from ._table_read import TRUTH
from ._targets import Column, as_number

MOST_LEVELS = 50
OTHER = "other or missing"


@dataclass(frozen=True)
class NumberColumn:
    """Missing values become the median, the whole is standardised; a second input says what was missing.

    Attributes:
        name: of the column.
        median: of the train rows.
        mean: of the train rows, medians filled in.
        deviation: of the same.
        indicator: whether there is the second input: only where train rows lack values.
    """

    name: str
    median: float
    mean: float
    deviation: float
    indicator: bool

    @staticmethod
    def fitted(name: str, column: Column, rows: Rows) -> NumberColumn | None:
        """From the train rows; None where they hold no two different values."""
        train = column[rows].astype(np.float64)
        missing = np.isnan(train)
        if len(np.unique(train[~missing])) < 2:
            return None
        median = float(np.median(train[~missing]))
        filled = np.where(missing, median, train)
        deviation = float(filled.std())  # of numbers too small to be squared it is 0
        return NumberColumn(name, median, float(filled.mean()), deviation, bool(missing.any())) if deviation else None

    @property
    def names(self) -> tuple[str, ...]:
        """Of the inputs."""
        return (self.name, f"{self.name} missing") if self.indicator else (self.name,)

    def values(self, column: Column) -> NDArray[np.float64]:
        """[rows, inputs]."""
        if column.dtype == object:
            found = next(value for value in column if value is not None)
            raise ValueError(f"`rows`: column {self.name!r} must be numbers, found {found!r}")
        if np.isinf(column).any():
            raise ValueError(f"`rows`: column {self.name!r} must be finite, found inf in {np.isinf(column).sum()} rows")
        missing = np.isnan(column)
        scaled = (np.where(missing, self.median, column) - self.mean) / self.deviation
        if np.abs(scaled).max(initial=0.0) > np.finfo(np.float32).max:
            found = float(np.abs(column[~missing]).max())
            raise ValueError(f"`rows`: column {self.name!r} must be near the rows learnt from, found {found:g}")
        return np.stack([scaled, missing], axis=1) if self.indicator else scaled[:, None]

    def to_document(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {"kind": "number", **asdict(self)}


@dataclass(frozen=True)
class CategoryColumn:
    """One input per level that the train rows have, and one for everything else, missing values included.

    Attributes:
        name: of the column.
        levels: the most frequent ones of the train rows.
    """

    name: str
    levels: tuple[str, ...]

    @staticmethod
    def fitted(name: str, column: Column, rows: Rows) -> CategoryColumn | None:
        """From the train rows; None where they hold no level."""
        counts = Counter(level for level in as_levels(column[rows]) if level is not None)
        most = sorted(counts, key=lambda level: (-counts[level], level))[:MOST_LEVELS]
        return CategoryColumn(name, tuple(sorted(most))) if most else None

    @property
    def names(self) -> tuple[str, ...]:
        """Of the inputs."""
        return tuple(f"{self.name} = {level}" for level in (*self.levels, OTHER))

    def values(self, column: Column) -> NDArray[np.float64]:
        """[rows, levels]."""
        place = {_level(level): number for number, level in enumerate(self.levels)}
        chosen = [place.get(level, len(place)) if level is not None else len(place) for level in as_levels(column)]
        return np.eye(len(place) + 1)[chosen]

    def to_document(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {"kind": "category", "name": self.name, "levels": list(self.levels)}


def as_levels(column: Column) -> list[str | None]:
    """Categories as text: whole numbers without a point, whether a file wrote 1 or 1.0.

    Cell by cell: the same cell is the same level whatever the rest of the column holds.

    Example:
        >>> as_levels(np.array([7.0, np.nan])), as_levels(np.array(["007", "A1", "True"], dtype=object))
        (['7', None], ['7', 'A1', '1'])
    """
    return [None if value is None or value != value else _level(value) for value in column.tolist()]


def _level(value: object) -> str:
    text = str(value)
    try:
        return f"{TRUTH[text.lower()] if text.lower() in TRUTH else as_number(text):.17g}"
    except ValueError:
        return text


def column_from_document(document: dict[str, Any]) -> NumberColumn | CategoryColumn:
    """What `to_document` described."""
    settings = {key: value for key, value in document.items() if key != "kind"}
    if document["kind"] == "number":
        return NumberColumn(**settings)
    return CategoryColumn(settings["name"], tuple(settings["levels"]))
