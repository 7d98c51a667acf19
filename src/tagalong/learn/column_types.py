"""Typed columns of a table: numbers, or text with missing values marked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from tagalong.errors import InvalidInput
from tagalong.tabular import MISSING_WORDS, TableSource, as_numbers, read_table

if TYPE_CHECKING:
    import pandas as pd

BOOLEAN_WORDS = {"true": 1.0, "false": 0.0}
MAX_MAGNITUDE = 1e150  # the square of a larger number overflows
MOSTLY_NUMBERS = 0.9  # the fraction of numbers above which the other cells of a column are taken for typing errors
SHOWN_CELLS, SHOWN_CHARACTERS = 3, 40
MISSING_HINT = "write NA where a value is missing"
# Where day and month could be either, the first format that fits all cells is used.
DATE_FORMATS = ("ISO8601", "%Y/%m/%d", "%d.%m.%Y", "%m/%d/%Y", "%d/%m/%Y")
Column = NDArray[Any]


def read_columns(source: TableSource, argument: str = "data", keep_empty: bool = False) -> pd.DataFrame:
    """Reads the named columns of a table: float64 with NaN for missing values, or text with None.

    Args:
        source: a file, a DataFrame, a mapping from names to columns, or a list with a mapping for each row; see
            `Problem.from_table`.
        argument: the name of the argument, used in messages if the source is not a file.
        keep_empty: whether to keep rows of a file in which every cell is empty.

    Returns:
        The columns. `attrs` contains the `place` of the table for messages, and how many columns are `unnamed`.

    Raises:
        TableError: If the file does not exist or does not contain a table, there are no rows, columns differ in length,
            or a column name is repeated.

    Example:
        >>> columns = read_columns({"age": ["31", "NA"], "town": ["Ulm", ""]})
        >>> columns["age"].tolist(), columns["town"].tolist()
        ([31.0, nan], ['Ulm', None])
    """
    import pandas as pd

    table = read_table(source, argument, keep_empty=keep_empty)
    decimal_comma, names = table.attrs["decimal_comma"], [name for name in table.columns if name]
    columns = pd.DataFrame({name: typed_column(table[name], decimal_comma) for name in names}, index=table.index)
    columns.attrs = {"place": table.attrs["place"], "unnamed": len(table.columns) - len(names)}
    return columns


def typed_column(cells: pd.Series, decimal_comma: bool = False) -> pd.Series:
    """Converts a column to numbers if every cell is a number or missing. True and false count as 1 and 0."""
    import pandas as pd

    if pd.api.types.is_numeric_dtype(cells):
        return pd.Series(cells.to_numpy(np.float64, na_value=np.nan), cells.index)
    text = cells.astype("string").str.strip()
    lower = text.str.lower()
    present = text.notna() & ~lower.isin(MISSING_WORDS)
    text = text.astype(object).where(present, None)
    if present.any() and lower[present].isin(BOOLEAN_WORDS).all():
        return lower.map(BOOLEAN_WORDS).astype(np.float64)
    plain = text.str.replace(",", ".") if decimal_comma else text
    try:
        pd.to_numeric(plain)
    except ValueError:
        return text
    return plain.astype(np.float64)  # unlike `to_numeric`, Python reads all digits


def as_column(raw: Any) -> Column:
    """Converts an array of numbers to float64 and all others to text. Missing values become NaN or None.

    Example:
        >>> as_column(["1", None, "2.5"]), as_column(["a", "", None])
        (array([1. , nan, 2.5]), array(['a', None, None], dtype=object))
    """
    values = raw.detach().cpu().numpy() if isinstance(raw, Tensor) else np.asarray(raw)
    if values.dtype.kind in "fiub":
        return values.astype(np.float64)
    import pandas as pd

    column: Column = typed_column(pd.Series(values.ravel())).to_numpy()
    return column.reshape(values.shape)


def text_cells(column: pd.Series) -> pd.Series:
    """Returns the cells of a text column that are neither numbers nor missing."""
    return column[np.isinf(as_numbers(column, decimal_comma=True))]


def typing_errors(column: pd.Series) -> str | None:
    """Shows the few cells of a column that are not numbers, or returns None if more than a few are not.

    Example:
        >>> typing_errors(read_columns({"age": ["31", "37", "oops", *("40",) * 20]})["age"])
        "'oops' in row 2 (counted from 0)"
    """
    text = text_cells(column)
    if not len(text) or len(text) > (1 - MOSTLY_NUMBERS) * column.count():
        return None
    return show_cells(text)


def show_cells(cells: pd.Series) -> str:
    """Shows the first of these cells and where they are, for messages."""
    unit, note = ("line", "") if cells.index.name == "line" else ("row", " (counted from 0)")
    shown = []
    for row, cell in cells[:SHOWN_CELLS].items():
        text = str(cell)
        text = text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}…"
        shown.append(f"{text!r} in {unit} {row}")
    more = f" and {len(cells) - SHOWN_CELLS:,} more" if len(cells) > SHOWN_CELLS else ""
    return ", ".join(shown) + more + note


def date_format(column: pd.Series) -> str | None:
    """Returns the format of a text column in which all cells are dates, otherwise None."""
    present = column.dropna()
    for dates in DATE_FORMATS:
        if as_days(present[:20], dates).notna().all() and as_days(present, dates).notna().all():
            return dates
    return None


def as_days(column: pd.Series, dates: str) -> pd.Series:
    """Returns the days since 1970 of dates in this format, with NaN for missing cells and for other text.

    Example:
        >>> import pandas as pd
        >>> as_days(pd.Series(["1970-01-02", "1970-01-02T12:00", None, "soon"]), "ISO8601").tolist()
        [1.0, 1.5, nan, nan]
    """
    import pandas as pd

    try:
        moments = pd.to_datetime(column, format=dates, errors="coerce", utc=True)
        return (moments - pd.Timestamp(0, tz="UTC")) / pd.Timedelta(days=1)
    except (ValueError, OverflowError):  # for some dates that are centuries away
        return pd.Series(np.nan, column.index)


def as_levels(column: pd.Series) -> pd.Series:
    """Returns the categories of cells, with NaN for missing ones. 1, 1.0, 01 and True are the same category.

    Example:
        >>> import pandas as pd
        >>> as_levels(pd.Series([7.0, "007", "A1", "True", "12_3", None])).tolist()
        ['7', '7', 'A1', '1', '12_3', nan]
    """
    import pandas as pd

    text = column.dropna().map(str)
    distinct = pd.Series(text.unique(), text.unique(), dtype=object)
    numbers = distinct.str.lower().map(BOOLEAN_WORDS).fillna(as_numbers(distinct))
    levels = distinct.mask(np.isfinite(numbers), numbers.map("{:.17g}".format))
    return text.map(levels).reindex(column.index)


def group_labels(groups: Any, argument: str = "`groups`") -> NDArray[Any]:
    """Returns the group label of each row, converted to a common type so that labels can be sorted."""
    import pandas as pd

    labels = as_column(groups)
    missing = pd.isna(labels)
    if not labels.ndim or missing.any():
        raise InvalidInput(argument, "must have a label for every row", f"{missing.sum()} missing")
    return labels.astype(str) if labels.dtype == object else labels
