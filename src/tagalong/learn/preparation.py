"""Converts raw rows to the inputs of models, both for training rows and for new rows."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tagalong.errors import InvalidInput, collect, first_few, raise_problems
from tagalong.tabular import TableSource, as_numbers

from .column_types import (
    MAX_MAGNITUDE,
    MISSING_HINT,
    as_days,
    as_levels,
    read_columns,
    show_cells,
)
from .rows import MAX_CHUNK_ROWS
from .targets import Label

if TYPE_CHECKING:
    import pandas as pd

MAX_LEVELS = 50
OTHER_LEVEL = "other or missing"
FAR = 0.5  # how far outside the range of the training rows a number is flagged, relative to the width of the range
NORMAL_QUARTILES = 1.349  # the distance of the quartiles of a normal distribution, in standard deviations
Classes = Mapping[str, Sequence[Label]]
Array = NDArray[np.float64]


def read_preparation(document: Mapping[str, Any]) -> Preparation:
    """Restores a `Scaling` or a `Table` from a JSON document.

    Raises:
        ValueError: the document is invalid; the message names the entry.
    """
    from tagalong.documents import build  # pydantic is loaded only where documents enter

    for preparation in (Scaling, Table):
        if document.get("kind") == preparation.kind:
            return build(preparation, document, "table")
    raise InvalidInput("document", "must be of kind 'scaling' or 'table'", repr(document.get("kind")))


class Preparation(ABC):
    """Converts rows as users have them to the inputs of networks.

    Attributes:
        kind: the name of the class in JSON documents.
        classes: the original labels of each task whose labels were encoded as 0, 1, ….
    """

    kind: ClassVar[str]
    classes: Classes

    @abstractmethod
    def read(self, rows: Any) -> Tensor:
        """Returns raw rows as numbers."""

    @abstractmethod
    def raw(self, data: Any) -> Tensor:
        """Returns raw rows for data that were read before: typed columns, or a tensor."""

    @abstractmethod
    def prepare(self, raw: Tensor) -> Tensor:
        """Returns the inputs of networks for raw rows."""

    @property
    @abstractmethod
    def ranges(self) -> Sequence[tuple[str, float, float]]:
        """The name and the range in the training rows of each column of raw rows."""

    def inputs(self, rows: Any) -> Tensor:
        """Returns the inputs of networks; see `read`."""
        return self.prepare(self.read(rows))

    def outside(self, rows: Any) -> dict[str, NDArray[np.bool_]]:
        """Returns, for each column of numbers, which rows are far outside the range of the training rows."""
        flags, raw = {}, self.read(rows).double().numpy()
        for column, (name, low, high) in enumerate(self.ranges):
            margin = FAR * (high - low)
            flags[name] = (raw[:, column] < low - margin) | (raw[:, column] > high + margin)
        return flags

    def to_document(self) -> dict[str, Any]:
        """Returns a JSON document that `read_preparation` can read."""
        return {"kind": self.kind, **asdict(self)}  # type: ignore[call-overload] # subclasses are dataclasses


@dataclass(frozen=True, eq=False)
class Scaling(Preparation):
    """Standardizes array inputs with the mean and standard deviation of each feature in the training rows.

    Attributes:
        shape: the shape of one row.
        dtype: the name of the inputs' torch dtype, e.g. "float32".
        mean: the mean of each feature, or None if inputs are not standardized.
        deviation: the standard deviation of each feature, or 1 for constant features.
        low: the smallest value of each feature in the training rows, or None if inputs are not standardized.
        high: the largest value of each feature.
        classes: the original labels of each task whose labels were encoded as 0, 1, ….

    Example:
        >>> Scaling((1,), "float32", [10.0], [2.0]).inputs([[14.0]])
        tensor([[2.]])
    """

    kind = "scaling"
    shape: tuple[int, ...]
    dtype: str = "float32"
    mean: list[Any] | None = None
    deviation: list[Any] | None = None
    low: list[Any] | None = None
    high: list[Any] | None = None
    classes: Classes = field(default_factory=dict)

    @staticmethod
    def fitted(inputs: Tensor, rows: NDArray[np.int64], *, classes: Classes, keep_float64: bool = False) -> Scaling:
        """Fits the scaling to the given input rows. Only flat inputs that are not integers are standardized.

        Inputs of networks are float32, except for float64 tensors that are to be kept, and integers.
        """
        dtype = inputs.dtype
        if inputs.is_floating_point() and not (keep_float64 and dtype == torch.float64):
            dtype = torch.float32
        shape, name = tuple(inputs.shape[1:]), str(dtype).removeprefix("torch.")
        if inputs.dim() != 2 or not inputs.is_floating_point():
            return Scaling(shape, name, classes=classes)
        chosen = inputs[torch.as_tensor(rows)].double()
        deviation = chosen.std(0, correction=0)
        # Because of rounding, the deviation of a constant column may be tiny relative to its values instead of zero.
        rounding = 1e-13 if inputs.dtype == torch.float64 else 1e-7
        deviation[deviation <= rounding * chosen.abs().amax(0)] = 1.0
        low, high = chosen.amin(0).tolist(), chosen.amax(0).tolist()
        return Scaling(shape, name, chosen.mean(0).tolist(), deviation.tolist(), low, high, classes)

    @property
    def ranges(self) -> list[tuple[str, float, float]]:
        limits = zip(self.low or (), self.high or (), strict=True)
        return [(str(number), low, high) for number, (low, high) in enumerate(limits)]

    def read(self, rows: Any) -> Tensor:
        """Returns raw rows as a tensor.

        Args:
            rows: the numbers [rows, …] as a tensor, an array or a DataFrame, or the path to an npy or npz file.

        Raises:
            InvalidInput: If the rows have the wrong shape or contain non-finite values.
        """
        raw = read_inputs(load_array(rows) if isinstance(rows, (str, Path)) else rows, argument="rows")
        if tuple(raw.shape[1:]) != self.shape:
            raise InvalidInput("rows", f"must have the shape {list(self.shape)} each", str(list(raw.shape[1:])))
        return raw

    def raw(self, data: Tensor) -> Tensor:
        return data

    def prepare(self, raw: Tensor) -> Tensor:
        dtype: torch.dtype = getattr(torch, self.dtype)
        if self.mean is None:
            return raw.to(dtype)
        mean, deviation = (torch.tensor(values, dtype=torch.float64) for values in (self.mean, self.deviation))
        inputs = ((raw.double() - mean) / deviation).to(dtype)
        if not inputs.isfinite().all():
            found = f"values up to {float(raw.abs().max()):g}"
            raise InvalidInput("rows", "must have a scale similar to that of the training rows", found)
        return inputs


def load_array(path: str | Path, argument: str = "rows") -> NDArray[Any]:
    """Loads the array in an npy file, or the only array in an npz file."""
    try:
        with Path(path).open("rb") as file:  # NumPy would leave it open after some errors
            loaded: Any = np.load(file, allow_pickle=False)
            if not isinstance(loaded, np.ndarray):
                (name,) = loaded.files
                loaded = loaded[name]
            return np.asarray(loaded)
    except Exception as error:  # pickles and archives raise errors of many kinds
        found = f"{path} ({type(error).__name__})"
        raise InvalidInput(argument, "must be an npy or npz file with exactly one array of numbers", found) from error


def read_inputs(inputs: Any, keep_integers: bool = False, argument: str = "inputs") -> Tensor:
    """Returns the inputs as a tensor of finite numbers.

    Flat inputs keep their full precision, since they are standardized later.

    Args:
        inputs: the inputs [rows, …] as a tensor, an array, a DataFrame or nested lists.
        keep_integers: whether to keep integers instead of converting them to floats.
        argument: the name of the argument, for error messages.

    Raises:
        InvalidInput: If the inputs contain text or non-finite values, or have the wrong shape.
    """
    tensor = inputs.detach() if isinstance(inputs, Tensor) else _as_tensor(inputs, argument)
    if tensor.dim() < 2 or not tensor.numel():
        shape = f"shape {list(tensor.shape)}"
        raise InvalidInput(argument, "must have at least two dimensions and one row", shape, "try reshape(-1, 1)")
    if not tensor.is_floating_point():
        kept = (keep_integers or tensor.dim() > 2) and tensor.dtype != torch.bool
        return tensor if kept else tensor.double()
    finite = torch.cat([part.isfinite().flatten(1).all(1) for part in tensor.split(MAX_CHUNK_ROWS)])
    if not finite.all():
        found = f"NaN or inf in {int((~finite).sum())} rows"
        if tensor.dim() == 2:
            columns = (~tensor.isfinite()).any(0).nonzero().flatten().tolist()
            names = list(getattr(inputs, "columns", range(tensor.shape[1])))
            found += f" of column {first_few([repr(names[column]) for column in columns])}"
        raise InvalidInput(argument, "must be finite", found, "impute or remove these values")
    if tensor.dim() == 2 and (largest := float(tensor.abs().max())) > MAX_MAGNITUDE:
        raise InvalidInput(argument, f"must be at most {MAX_MAGNITUDE:g} in magnitude", f"{largest:g}")
    is_precise = tensor.dtype == torch.float64 and (isinstance(inputs, Tensor) or tensor.dim() == 2)
    return tensor if is_precise else tensor.float()


def _as_tensor(inputs: Any, argument: str) -> Tensor:
    try:
        array = np.asarray(inputs)
        if array.dtype.kind in "OSTU":  # such as a DataFrame with columns of different types
            array = array.astype(np.float64)
    except (TypeError, ValueError) as error:
        raise InvalidInput(argument, "must be an array of numbers", str(error), "try Problem.from_table") from error

    # Convert to a type that torch supports.
    if array.dtype.kind == "f":
        array = array.astype(np.float32 if array.dtype.itemsize <= 4 else np.float64, copy=False)
    elif array.dtype.kind in "iu" and array.dtype != np.uint8:
        array = array.astype(np.float64 if array.dtype == np.uint64 else np.int64)
    elif array.dtype.kind not in "iub":
        raise InvalidInput(argument, "must be an array of numbers", f"the dtype {array.dtype}")
    return torch.as_tensor(array if array.flags.writeable else array.copy())


@dataclass(frozen=True, eq=False)
class Table(Preparation):
    """The feature columns of a table, with all that was computed from its training rows.

    Attributes:
        columns: the feature columns, in the order of the inputs.
        classes: the original labels of each task whose labels were encoded as 0, 1, ….

    Example:
        >>> columns = read_columns({"age": [20, 40, 60, ""], "sex": ["m", "f", "f", "m"]})
        >>> table = Table.fitted(columns, np.arange(4), roles={"age": "number", "sex": "category"}, classes={})
        >>> table.names
        ('age', 'age missing', 'sex = f', 'sex = m', 'sex = other or missing')
        >>> table.read([{"age": "60", "sex": "m"}, {"age": "", "sex": "x"}])
        tensor([[60.,  1.],
                [nan, nan]], dtype=torch.float64)
    """

    kind = "table"
    columns: tuple[NumberColumn | CategoryColumn, ...]
    classes: Classes = field(default_factory=dict)

    @staticmethod
    def fitted(
        columns: pd.DataFrame,
        rows: NDArray[np.int64],
        *,
        roles: Mapping[str, str],
        squash: bool = True,
        classes: Classes,
    ) -> Table:
        """Fits the columns to the training rows. Columns that are constant in these rows are dropped.

        Args:
            columns: the typed columns; see `read_columns`.
            rows: the numbers of the training rows.
            roles: the role of each column that is used: "number", "category", or the format of dates.
            squash: see `NumberColumn`.
            classes: see `Table`.
        """
        train = columns.iloc[rows]
        fitted: list[NumberColumn | CategoryColumn | None] = []
        for name in sorted(roles, key=lambda name: roles[name] == "category"):
            if roles[name] == "category":
                fitted.append(CategoryColumn.fitted(name, train[name]))
            else:
                dates = None if roles[name] == "number" else roles[name]
                fitted.append(NumberColumn.fitted(name, train[name], dates, squash))
        varying = tuple(column for column in fitted if column is not None)
        if not varying:
            constant = ", ".join(map(repr, roles))
            raise InvalidInput("features", "must vary in the training rows", f"only constant columns: {constant}")
        return Table(varying, classes)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the inputs of networks."""
        return tuple(name for column in self.columns for name in column.names)

    @property
    def blocks(self) -> tuple[tuple[bool, int], ...]:
        """For each column, whether it contains categories, and how many of the inputs of networks it became."""
        return tuple((isinstance(column, CategoryColumn), len(column.names)) for column in self.columns)

    def read(self, rows: TableSource) -> Tensor:
        """Returns raw rows [rows, columns]: numbers, days, and codes of categories, with NaN where missing.

        Args:
            rows: a file, a DataFrame, a mapping from names to columns, or a list of mappings, one per row; see
                `Problem.from_table`. Columns that are not features are ignored.

        Raises:
            InvalidInput: If feature columns are missing or contain text instead of numbers.
        """
        return self.raw(read_columns(rows, "rows", keep_empty=True))

    def raw(self, data: pd.DataFrame) -> Tensor:
        place = data.attrs["place"]
        absent = [repr(column.name) for column in self.columns if column.name not in data]
        if absent:
            expected = "must have the same columns as the training table"
            raise InvalidInput(place, expected, f"no {', '.join(absent)}")
        problems: list[InvalidInput] = []
        raw = [collect(problems, column.read, data[column.name], place) for column in self.columns]
        raise_problems(problems)
        return torch.from_numpy(np.stack(raw, axis=1))

    def prepare(self, raw: Tensor) -> Tensor:
        inputs = [column.inputs(own) for column, own in zip(self.columns, raw.numpy().T, strict=True)]
        return torch.from_numpy(np.concatenate(inputs, axis=1)).float()

    @property
    def ranges(self) -> list[tuple[str, float, float]]:
        return [(column.name, column.low, column.high) for column in self.columns]


@dataclass(frozen=True)
class NumberColumn:
    """A column of numbers or dates. Missing values are replaced with the median and may be marked by an indicator.

    Networks take numbers on a robust scale, clipped smoothly and then standardized, since a few huge values must not
    ruin the others. A column with two values becomes 0 and 2, a standard deviation of at most 1: standardized, the few
    ones among many zeros, as in molecular fingerprints, would be as loud as all other inputs of their row.

    Attributes:
        name: the name of the column.
        median: the median of the training rows.
        center: what is subtracted before numbers are clipped.
        spread: the standard deviation before numbers are clipped, for a normal distribution that has their quartiles.
        mean: the mean after clipping.
        deviation: the standard deviation after clipping.
        low: the smallest number in the training rows.
        high: the largest number in the training rows.
        indicator: whether another input marks missing values.
        squashed: whether numbers are clipped; see `squash_numbers`.
        dates: the format of dates, or None for numbers; see `as_days`.
    """

    name: str
    median: float
    center: float
    spread: float
    mean: float
    deviation: float
    low: float
    high: float
    indicator: bool
    squashed: bool = True
    dates: str | None = None

    @staticmethod
    def fitted(name: str, column: pd.Series, dates: str | None = None, squash: bool = True) -> NumberColumn | None:
        """Fits the column to the training rows. Returns None if it is constant in these rows."""
        values = np.asarray(column if dates is None else as_days(column, dates), dtype=np.float64)
        known = values[~np.isnan(values)]
        if len(np.unique(known)) < 2 or not known.std():
            return None
        median = float(np.median(known))
        filled = np.where(np.isnan(values), median, values)
        low, high, indicator = float(known.min()), float(known.max()), len(known) < len(values)
        center, spread, mean, deviation = float(filled.mean()), float(filled.std()), 0.0, 1.0
        if squash and len(np.unique(known)) == 2:
            center, spread, deviation = low, (high - low) / 2, float(squash_numbers(np.array(2.0))) / 2
        elif squash:
            low_quartile, high_quartile = np.quantile(known, [0.25, 0.75])
            center = median
            spread = float(high_quartile - low_quartile) / NORMAL_QUARTILES or float(known.std())
            squashed = squash_numbers((filled - center) / spread)
            mean, deviation = float(squashed.mean()), float(squashed.std()) or 1.0
        return NumberColumn(name, median, center, spread, mean, deviation, low, high, indicator, squash, dates)

    @property
    def names(self) -> tuple[str, ...]:
        return (self.name, f"{self.name} missing") if self.indicator else (self.name,)

    def read(self, column: pd.Series, place: str) -> Array:
        """Returns the numbers of a typed column. Error messages name `place` as its source."""
        if self.dates is not None:
            values, expected = as_days(column, self.dates), f"must have dates in the format {self.dates}"
        else:
            values = as_numbers(column, decimal_comma=True) if column.dtype == object else column
            expected = "must have finite numbers"
        wrong = column[column.notna() & ~np.isfinite(values)]
        if len(wrong):
            raise InvalidInput(f"{place}: column {self.name!r}", expected, show_cells(wrong), MISSING_HINT)
        return np.asarray(values, dtype=np.float64)

    def inputs(self, raw: Array) -> Array:
        """Returns the inputs of networks [rows, 1 or 2]."""
        missing = np.isnan(raw)
        scaled = (np.where(missing, self.median, raw) - self.center) / self.spread
        if self.squashed:
            scaled = squash_numbers(scaled)
        scaled = (scaled - self.mean) / self.deviation
        return np.stack([scaled, missing], axis=1) if self.indicator else scaled[:, None]


@dataclass(frozen=True)
class CategoryColumn:
    """A one-hot encoded column, with an input for each level, and one for all other and missing values.

    Attributes:
        name: the name of the column.
        levels: the most frequent levels in the training rows.
    """

    low: ClassVar[float] = -math.inf
    high: ClassVar[float] = math.inf
    name: str
    levels: tuple[str, ...]

    @staticmethod
    def fitted(name: str, train: pd.Series) -> CategoryColumn | None:
        """Fits the column to the training rows. Returns None if all values are missing."""
        counts = as_levels(train).value_counts().sort_index().sort_values(ascending=False, kind="stable")
        return CategoryColumn(name, tuple(sorted(counts.index[:MAX_LEVELS]))) if len(counts) else None

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(f"{self.name} = {level}" for level in (*self.levels, OTHER_LEVEL))

    def read(self, column: pd.Series, place: str) -> Array:
        """Returns the number of each cell's level, with NaN for other and missing values."""
        codes = {level: float(code) for code, level in enumerate(self.levels)}
        return np.asarray(as_levels(column).map(codes), dtype=np.float64)

    def inputs(self, raw: Array) -> Array:
        """Returns the inputs of networks [rows, levels + 1]."""
        codes = np.where(np.isnan(raw), len(self.levels), raw).astype(int)
        one_hot: Array = np.eye(len(self.levels) + 1)[codes]
        return one_hot


def raw_view(inputs: Tensor, blocks: Sequence[tuple[bool, int]]) -> Tensor:
    """Returns what trees prefer to the inputs of networks: numbers with NaN where missing, and codes of categories.

    The order of numbers is that of the table; only their scale differs, which trees do not see.

    Args:
        inputs: the inputs of networks [rows, inputs].
        blocks: see `Table.blocks`.

    Returns:
        One column per column of the table [rows, columns]. The code of "other or missing" is NaN.
    """
    sizes, columns = [size for _, size in blocks], []
    for (is_category, size), block in zip(blocks, inputs.split(sizes, 1), strict=True):
        if is_category:
            values = block.argmax(1).to(inputs.dtype)
            missing = values == size - 1
        else:
            values, missing = block[:, 0], block[:, 1:].sum(1) > 0.5
        columns.append(values.masked_fill(missing, math.nan))
    return torch.stack(columns, 1)


def squash_numbers(values: Array) -> Array:
    """Clips numbers smoothly: x / √(1 + (x/3)²), which is x for small numbers and at most 3 for large ones.

    Example:
        >>> squash_numbers(np.array([0.1, 1.0, 1e200])).round(2).tolist()
        [0.1, 0.95, 3.0]
    """
    return values / np.hypot(1, values / 3)
