"""Converts raw rows to the inputs of models, both for training rows and for new rows."""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias
from zipfile import ZIP_DEFLATED

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tagalong.errors import InvalidInput, first_few, raise_problems
from tagalong.files import READ_ERRORS
from tagalong.tabular import TableSource

from .column_types import (
    MAX_MAGNITUDE,
    MISSING_HINT,
    as_column,
    as_days,
    as_level,
    is_missing,
    read_columns,
    show_cell,
    text_cells,
    typing_errors,
)
from .rows import MAX_CHUNK_ROWS
from .targets import Label

if TYPE_CHECKING:
    import pandas as pd

MAX_LEVELS = 50
OTHER_LEVEL = "other or missing"
FAR = 0.5  # how far outside the range of the training rows a number is flagged, relative to the width of the range
SQUASHED = 3.0  # no scaled number is larger; see `squash`
TRUSTED = ["numpy.dtype"]  # what skops does not trust by default; loading it runs no code
Preparation: TypeAlias = "Scaling | Table"  # converts rows as users have them to inputs
Classes = Mapping[str, Sequence[Label]]
Array = NDArray[np.float64]


def read_preparation(document: Mapping[str, Any]) -> Preparation:
    """Restores a `Scaling` or a `Table` from a JSON document, without running code from it.

    Raises:
        ValueError: the document is invalid; the message names the entry.
    """
    from tagalong.documents import build  # pydantic is loaded only where documents enter

    if document.get("kind") == "table":
        return Table.from_document(document)
    if document.get("kind") != "scaling":
        raise InvalidInput("document", "must be of kind 'scaling' or 'table'", repr(document.get("kind")))
    return build(Scaling, document, "table")


@dataclass(frozen=True, eq=False)
class Scaling:
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

    shape: tuple[int, ...]
    dtype: str = "float32"
    mean: list[Any] | None = None
    deviation: list[Any] | None = None
    low: list[Any] | None = None
    high: list[Any] | None = None
    classes: Classes = field(default_factory=dict)

    @staticmethod
    def fitted(
        inputs: Tensor, rows: NDArray[np.int64], standardize: bool, classes: Classes, dtype: torch.dtype = torch.float32
    ) -> Scaling:
        """Fits the scaling to the given input rows and sets the dtype of the scaled inputs."""
        shape, name = tuple(inputs.shape[1:]), str(dtype).removeprefix("torch.")
        if not standardize:
            return Scaling(shape, name, classes=classes)
        chosen = inputs[torch.as_tensor(rows)].double()
        deviation = chosen.std(0, correction=0)
        # Because of rounding, the deviation of a constant column may be tiny relative to its values instead of zero.
        rounding = 1e-13 if inputs.dtype == torch.float64 else 1e-7
        deviation[deviation <= rounding * chosen.abs().amax(0)] = 1.0
        low, high = chosen.amin(0).tolist(), chosen.amax(0).tolist()
        return Scaling(shape, name, chosen.mean(0).tolist(), deviation.tolist(), low, high, classes)

    def read(self, rows: Any) -> Tensor:
        """Returns raw rows as a tensor.

        Args:
            rows: the numbers [rows, …] as a tensor, an array or a DataFrame, or the path to an npy or npz file.

        Raises:
            InvalidInput: If the rows have the wrong shape or contain non-finite values.
        """
        raw = read_inputs(load_array(rows) if isinstance(rows, (str, Path)) else rows, argument="rows")
        if tuple(raw.shape[1:]) != self.shape:
            expected = f"must have the shape [rows, {', '.join(map(str, self.shape))}]"
            raise InvalidInput("rows", expected, f"[rows, {', '.join(map(str, raw.shape[1:]))}]")
        return raw

    def smooth(self, raw: Tensor) -> Tensor:
        """Scales the inputs and converts them to `dtype`."""
        dtype: torch.dtype = getattr(torch, self.dtype)
        if self.mean is None:
            return raw.to(dtype)
        mean, deviation = (torch.tensor(values, dtype=torch.float64) for values in (self.mean, self.deviation))
        return ((raw.double() - mean) / deviation).to(dtype)

    def outside(self, raw: Tensor) -> Tensor:
        """Returns which numbers [rows, features] are far outside the range of the training rows."""
        if self.low is None:
            return torch.zeros(len(raw), 0, dtype=torch.bool)
        low, high = (torch.tensor(values, dtype=torch.float64) for values in (self.low, self.high))
        return _is_far(raw.double(), low, high)

    def inputs(self, rows: Any) -> Tensor:
        """Returns the inputs of networks for raw rows; see `read`."""
        raw = self.read(rows)
        inputs = self.smooth(raw)
        if inputs.is_floating_point() and not inputs.isfinite().all():
            raise InvalidInput(
                "rows",
                "must have a scale similar to that of the training rows",
                f"values up to {float(raw.abs().max()):g}",
            )
        return inputs

    def to_document(self) -> dict[str, Any]:
        """Returns a JSON document that `read_preparation` can read."""
        document = {"kind": "scaling", **vars(self)}
        return document | {"classes": {task: list(labels) for task, labels in self.classes.items()}}


def _is_far(raw: Tensor, low: Tensor, high: Tensor) -> Tensor:
    margin = FAR * (high - low)
    return (raw < low - margin) | (raw > high + margin)


def load_array(path: str | Path, argument: str = "rows") -> NDArray[Any]:
    """Loads the array in an npy file, or the only array in an npz file."""
    expected = "must be an npy or npz file with exactly one array of numbers"
    if not isinstance(path, (str, PathLike)):
        raise InvalidInput(argument, expected, repr(path))
    if not Path(path).is_file():
        raise InvalidInput(argument, expected, f"no file at {path}")
    try:
        with Path(path).open("rb") as file:  # NumPy would leave it open after some errors
            loaded: Any = np.load(file, allow_pickle=False)
            if isinstance(loaded, np.ndarray):
                return loaded
            (name,) = loaded.files
            array = loaded[name]
    except MemoryError as error:
        raise InvalidInput(argument, "must fit into memory", str(error)) from error
    except READ_ERRORS as error:
        raise InvalidInput(argument, expected, f"a different format in {path}") from error
    if not isinstance(array, np.ndarray):
        raise InvalidInput(argument, expected, f"another file in {path}")
    return array


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
    names = list(getattr(inputs, "columns", []))
    tensor = inputs.detach() if isinstance(inputs, Tensor) else _as_tensor(inputs, names, argument)
    shape = str(list(tensor.shape))
    if tensor.dim() < 2:
        raise InvalidInput(argument, "must have at least two dimensions", f"shape {shape}", "try reshape(-1, 1)")
    if not tensor.numel():
        raise InvalidInput(argument, "must not be empty", f"shape {shape}")
    if tensor.is_complex():
        raise InvalidInput(argument, "must be real numbers", "complex numbers")
    if not tensor.is_floating_point():
        kept = (keep_integers or tensor.dim() > 2) and tensor.dtype != torch.bool
        return tensor if kept else tensor.double()

    finite = torch.cat([part.isfinite().flatten(1).all(1) for part in tensor.split(MAX_CHUNK_ROWS)])
    if not finite.all():
        found = f"NaN or inf in {int((~finite).sum())} rows"
        if tensor.dim() == 2:
            columns = (~tensor[~finite].isfinite()).any(0).nonzero().flatten().tolist()
            found += f" of column {first_few([repr(names[at]) if names else str(at) for at in columns], 10)}"
        raise InvalidInput(argument, "must be finite", found, "impute or remove these values")
    if tensor.dim() == 2 and (largest := float(tensor.abs().max())) > MAX_MAGNITUDE:
        raise InvalidInput(argument, f"must be at most {MAX_MAGNITUDE:g} in magnitude", f"{largest:g}")
    precise = tensor.dtype == torch.float64 and (isinstance(inputs, Tensor) or tensor.dim() == 2)
    return tensor if precise else tensor.float()


def _as_tensor(inputs: Any, names: list[Any], argument: str) -> Tensor:
    try:
        array = np.asarray(inputs)
    except ValueError as error:
        raise InvalidInput(argument, "must be an array of numbers", "rows of different lengths") from error
    if array.ndim == 2 and array.dtype.kind in "OSTU":
        # A DataFrame with columns of different types is converted to objects.
        columns = [as_column(column) for column in array.T]
        text = [repr(names[at]) if names else str(at) for at, own in enumerate(columns) if own.dtype == object]
        if text:
            found = f"text in column {first_few(text, 10)}"
            raise InvalidInput(argument, "must be numeric", found, "try Problem.from_table")
        array = np.stack(columns, axis=1)
    if array.dtype.kind not in "fiub":
        raise InvalidInput(argument, "must be an array of numbers", f"{type(inputs).__name__} with dtype {array.dtype}")

    # Convert to a type that torch supports.
    if array.dtype.kind == "f" and (array.dtype.itemsize > 8 or not array.dtype.isnative):
        array = array.astype(np.float64 if array.dtype.itemsize > 8 else array.dtype.newbyteorder("="))
    elif array.dtype.kind in "iu" and array.dtype != np.uint8:
        too_large = array.dtype == np.uint64 and array.max(initial=0) > np.iinfo(np.int64).max
        array = array.astype(np.float64 if too_large else np.int64)
    return torch.as_tensor(array if array.flags.writeable else array.copy())


@dataclass(frozen=True, eq=False)
class Table:
    """The feature columns of a table, with all that was computed from its training rows.

    Missing numbers are replaced with the median and marked by an indicator. Networks take numbers on a robust scale,
    clipped smoothly (see `squash`), since a few huge values must not ruin the others. A category becomes one input for
    each level, and one for all other and missing values.

    Attributes:
        numbers: the names of the columns with numbers or dates.
        dates: the format of each column of dates; see `as_days`.
        levels: the levels of each column of categories, of which the most frequent in the training rows are kept.
        encoder: scikit-learn's `ColumnTransformer`, which imputes numbers, appends indicators and one-hot codes.
        ranges: arrays with a value for each number: its "median", "spread" (which is the standard deviation of a normal
            distribution), "low" and "high" in the training rows, and its "mean" and "deviation" after smooth clipping.
        classes: the original labels of each task whose labels were encoded as 0, 1, ….

    Example:
        >>> columns = read_columns({"age": [20, 40, 60, ""], "sex": ["m", "f", "f", "m"]})
        >>> table = Table.fitted(columns, ["age"], {}, ["sex"], np.arange(4), {})
        >>> table.names
        ('age', 'age missing', 'sex = f', 'sex = m', 'sex = other or missing')
        >>> table.read([{"age": "60", "sex": "m"}, {"age": "", "sex": "x"}])
        tensor([[60.,  1.],
                [nan, nan]], dtype=torch.float64)
    """

    numbers: tuple[str, ...]
    dates: Mapping[str, str]
    levels: Mapping[str, Sequence[str]]
    encoder: Any
    ranges: Mapping[str, Array]
    classes: Classes = field(default_factory=dict)

    @staticmethod
    def fitted(
        columns: pd.DataFrame,
        numbers: Sequence[str],
        dates: Mapping[str, str],
        categories: Sequence[str],
        rows: NDArray[np.int64],
        classes: Classes,
    ) -> Table:
        """Fits the columns to the training rows. Columns that are constant in these rows are dropped."""
        from sklearn.compose import ColumnTransformer
        from sklearn.impute import SimpleImputer
        from sklearn.preprocessing import OneHotEncoder

        train = columns.iloc[rows]
        varying = tuple(name for name in numbers if train[name].nunique() > 1)
        levels = {}
        for name in categories:
            frequent = train[name].dropna().map(as_level).value_counts().sort_index().nlargest(MAX_LEVELS)
            if len(frequent):
                levels[name] = tuple(sorted(frequent.index))

        codes = [[*range(len(own)), np.nan] for own in levels.values()]
        one_hot = OneHotEncoder(categories=codes, sparse_output=False)
        encoder = ColumnTransformer(
            [
                ("numbers", SimpleImputer(strategy="median", add_indicator=True), [*range(len(varying))]),
                ("levels", one_hot, [*range(len(varying), len(varying) + len(levels))]),
            ]
        )
        table = Table(varying, {name: dates[name] for name in varying if name in dates}, levels, encoder, {}, classes)
        if not varying and not levels:
            return table

        raw = table.read_columns(train).numpy()
        known, filled = raw[:, : len(varying)], encoder.fit_transform(raw)[:, : len(varying)]
        quartiles = [np.nanquantile(column, [0.25, 0.5, 0.75]) for column in known.T]
        low_quartile, median, high_quartile = np.reshape(quartiles, (-1, 3)).T
        spread = (high_quartile - low_quartile) / 1.349  # of a normal distribution: its standard deviation
        spread = _nonzero(np.where(spread > 0, spread, np.nanstd(known, axis=0)))
        squashed = squash((filled - median) / spread)
        ranges = {"median": median, "spread": spread, "low": filled.min(0), "high": filled.max(0)}
        ranges |= {"mean": squashed.mean(0), "deviation": _nonzero(squashed.std(0))}
        return Table(table.numbers, table.dates, levels, encoder, ranges, classes)

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the columns of the raw view."""
        return (*self.numbers, *self.levels)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the inputs of networks."""
        return (
            *self.numbers,
            *(f"{name} missing" for name in self.imputed),
            *(f"{name} = {level}" for name, own in self.levels.items() for level in (*own, OTHER_LEVEL)),
        )

    @property
    def imputed(self) -> tuple[str, ...]:
        """The names of the numbers that are missing in some training rows."""
        if not self.numbers:
            return ()
        return tuple(self.numbers[at] for at in self.encoder.named_transformers_["numbers"].indicator_.features_)

    def read(self, rows: TableSource) -> Tensor:
        """Returns the raw view [rows, columns] of a table. Columns that are not features are ignored.

        Args:
            rows: a file, a DataFrame, a mapping from names to columns, or a list of mappings, one per row; see
                `Problem.from_table`.

        Raises:
            InvalidInput: If feature columns are missing or contain text instead of numbers.
        """
        if isinstance(rows, (np.ndarray, Tensor)):
            names = first_few([repr(name) for name in self.columns])
            raise InvalidInput("rows", f"must be a table with the columns {names}", "an array")
        return self.read_columns(read_columns(rows, "rows", keep_empty=True))

    def read_columns(self, columns: pd.DataFrame) -> Tensor:
        """Returns the raw view [rows, columns] of typed columns."""
        place = columns.attrs["place"]
        absent = [repr(name) for name in self.columns if name not in columns]
        if absent:
            expected = "must have the same columns as the training table"
            raise InvalidInput(place, expected, f"no {', '.join(absent)}")
        problems = []
        raw = np.full((len(columns), len(self.columns)), np.nan)
        for at, name in enumerate(self.columns):
            column, where = columns[name], f"{place}: column {name!r}"
            if name in self.levels:
                codes = {level: code for code, level in enumerate(self.levels[name])}
                raw[:, at] = [math.nan if is_missing(cell) else codes.get(as_level(cell), math.nan) for cell in column]
            elif name in self.dates:
                raw[:, at] = as_days(column, self.dates[name])
                wrong = column[column.notna() & np.isnan(raw[:, at])]
                if len(wrong):
                    found = f"{show_cell(str(wrong.iloc[0]))} and other cells"
                    problems.append(InvalidInput(where, f"must have dates in the format {self.dates[name]}", found))
            elif column.dtype == object:
                cells = typing_errors(column) or f"{show_cell(text_cells(column).iloc[0])} and other texts"
                problems.append(InvalidInput(where, "must be numeric", cells, MISSING_HINT))
            else:
                raw[:, at] = column
                if np.isinf(raw[:, at]).any():
                    problems.append(InvalidInput(where, "must be finite", f"inf in {np.isinf(column).sum()} rows"))
        raise_problems(problems)
        return torch.from_numpy(raw)

    def smooth(self, raw: Tensor) -> Tensor:
        """Returns the inputs of networks for the raw view of rows."""
        encoded, numbers, own = self.encoder.transform(raw.numpy()), len(self.numbers), self.ranges
        squashed = squash((encoded[:, :numbers] - own["median"]) / own["spread"])
        encoded[:, :numbers] = (squashed - own["mean"]) / own["deviation"]
        return torch.from_numpy(encoded).float()

    def outside(self, raw: Tensor) -> Tensor:
        """Returns which numbers [rows, numbers] are far outside the range of the training rows."""
        low, high = torch.from_numpy(self.ranges["low"]), torch.from_numpy(self.ranges["high"])
        return _is_far(raw[:, : len(self.numbers)], low, high)

    def inputs(self, rows: TableSource) -> Tensor:
        """Returns the inputs of networks for a table; see `read`."""
        return self.smooth(self.read(rows))

    def to_document(self) -> dict[str, Any]:
        """Returns a JSON document that `read_preparation` can read, with arrays and models in the format of skops."""
        import skops.io

        parts = {"encoder": self.encoder, "ranges": dict(self.ranges)}
        models = base64.b64encode(skops.io.dumps(parts, compression=ZIP_DEFLATED))
        return {
            "kind": "table",
            "numbers": list(self.numbers),
            "dates": dict(self.dates),
            "levels": {name: list(own) for name, own in self.levels.items()},
            "models": models.decode(),
            "classes": {task: list(labels) for task, labels in self.classes.items()},
        }

    @staticmethod
    def from_document(document: Mapping[str, Any]) -> Table:
        """Restores a table; skops loads only types of scikit-learn and NumPy."""
        import skops.io

        try:
            models = skops.io.loads(base64.b64decode(document["models"], validate=True), trusted=TRUSTED)
            numbers, dates, levels = (document[name] for name in ("numbers", "dates", "levels"))
            return Table(tuple(numbers), dates, levels, models["encoder"], models["ranges"], document["classes"])
        except Exception as error:  # skops does not say which errors damaged files raise
            raise ValueError(f"table must be a preparation of tagalong, found {error}") from error


def squash(values: Array) -> Array:
    """Clips numbers smoothly: x / √(1 + (x/3)²), which is x for small numbers and at most 3 for large ones.

    Example:
        >>> squash(np.array([0.1, 1.0, 1e200])).round(2).tolist()
        [0.1, 0.95, 3.0]
    """
    return values / np.hypot(1, values / SQUASHED)


def _nonzero(values: Array) -> Array:
    return np.where(values > 0, values, 1.0)
