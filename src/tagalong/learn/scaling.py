"""How arrays become inputs of a network, kept so that new rows are treated like the train rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol
from zipfile import BadZipFile

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tagalong.errors import refuse

from .targets import LARGEST, Label, as_column

Classes = Mapping[str, Sequence[Label]]
ROWS_AT_ONCE = 4096


class Preparation(Protocol):
    """How raw rows become inputs; what `Problem.table` holds.

    Attributes:
        classes: for tasks whose labels were coded 0, 1, …, the label each number stands for.
    """

    @property
    def classes(self) -> Classes: ...

    def inputs(self, rows: Any) -> Tensor:
        """Inputs of a network from raw rows."""

    def to_document(self) -> dict[str, Any]:
        """Plain values for JSON; `read_preparation` reads them back."""


@dataclass(frozen=True, eq=False)
class Scaling:
    """Inputs that come as arrays: each feature minus its mean, over its deviation, both from the train rows.

    Attributes:
        shape: of one row.
        dtype: of the inputs, as torch names it.
        mean: of each feature; None where inputs are left as they are.
        deviation: of each feature; 1 where it is constant.
        classes: see `Preparation`.

    Example:
        >>> Scaling((1,), "float32", [10.0], [2.0]).inputs([[14.0]])
        tensor([[2.]])
    """

    shape: tuple[int, ...]
    dtype: str = "float32"
    mean: Sequence[float] | None = None
    deviation: Sequence[float] | None = None
    classes: Classes = field(default_factory=dict)

    @staticmethod
    def fitted(
        inputs: Tensor, rows: NDArray[np.int64], standardise: bool, classes: Classes, dtype: torch.dtype = torch.float32
    ) -> Scaling:
        """The scaling of these rows of the inputs, which become `dtype`."""
        shape, name = tuple(inputs.shape[1:]), str(dtype).removeprefix("torch.")
        if not standardise:
            return Scaling(shape, name, classes=classes)
        chosen = inputs[torch.as_tensor(rows)].double()
        deviation = chosen.std(0, correction=0)
        # Rounding leaves a constant column a deviation that is tiny beside its values, but not zero.
        rounding = 1e-13 if inputs.dtype == torch.float64 else 1e-7
        constant = deviation <= rounding * chosen.abs().amax(0)
        deviation = torch.where(constant, torch.ones_like(deviation), deviation)
        return Scaling(shape, name, chosen.mean(0).tolist(), deviation.tolist(), classes)

    def inputs(self, rows: Any) -> Tensor:
        """Inputs of a network.

        Args:
            rows: [rows, …] numbers: a tensor, an array, a DataFrame, or the path of an npy or npz file.

        Raises:
            ValueError: rows of another shape, or values that are not finite.
        """
        raw = read_inputs(load_array(rows) if isinstance(rows, (str, Path)) else rows, argument="`rows`")
        if tuple(raw.shape[1:]) != self.shape:
            found = list(raw.shape[1:])
            raise ValueError(
                f"`rows` must have the shape [rows, {', '.join(map(str, self.shape))}], found rows of {found}"
            )
        inputs = self.apply(raw)
        if inputs.is_floating_point() and not inputs.isfinite().all():
            raise ValueError(f"`rows` must be near the rows learnt from, found {float(raw.abs().max()):g}")
        return inputs

    def apply(self, raw: Tensor) -> Tensor:
        """Scaled, in the dtype of the inputs."""
        dtype: torch.dtype = getattr(torch, self.dtype)
        if self.mean is None or self.deviation is None:
            return raw.to(dtype)
        mean, deviation = (torch.tensor(values, dtype=torch.float64) for values in (self.mean, self.deviation))
        return ((raw.double() - mean) / deviation).to(dtype)

    def to_document(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "kind": "scaling",
            "shape": list(self.shape),
            "dtype": self.dtype,
            "mean": None if self.mean is None else list(self.mean),
            "deviation": None if self.deviation is None else list(self.deviation),
            "classes": {task: list(labels) for task, labels in self.classes.items()},
        }

    @staticmethod
    def from_document(document: Mapping[str, Any]) -> Scaling:
        """The scaling that `to_document` described."""
        return Scaling(
            tuple(document["shape"]), document["dtype"], document["mean"], document["deviation"], document["classes"]
        )


def load_array(path: str | Path, argument: str = "`rows`") -> NDArray[Any]:
    """The array of an npy file, or the only array of an npz file."""
    if not Path(path).is_file():
        raise ValueError(f"{argument} must be an npy or npz file, found none at {path}")
    with Path(path).open("rb") as file:  # numpy would leave it open after some errors
        try:
            loaded = np.load(file, allow_pickle=False)
        except (ValueError, EOFError, BadZipFile) as error:
            found = f"something else at {path}"
            raise ValueError(f"{argument} must be an npy or npz file of numbers, found {found}") from error
        if isinstance(loaded, np.ndarray):
            return loaded
        if len(loaded.files) != 1:
            raise ValueError(f"{argument} must hold one array, found {len(loaded.files)}: {', '.join(loaded.files)}")
        only: NDArray[Any] = loaded[loaded.files[0]]
        return only


def read_inputs(inputs: Any, whole: bool = False, argument: str = "`inputs`") -> Tensor:
    """Inputs as a tensor of finite numbers; flat ones keep every digit, since they are yet to be standardised.

    Args:
        inputs: [rows, …]: a tensor, an array, a DataFrame, nested lists.
        whole: keep whole numbers as they are.
        argument: what to call the inputs in errors.

    Raises:
        ValueError: text, values that are not finite (the columns are named), a wrong shape.
    """
    columns = list(inputs.columns) if hasattr(inputs, "columns") else None
    tensor = inputs.detach() if isinstance(inputs, Tensor) else _as_tensor(inputs, columns, argument)
    if tensor.dim() < 2:
        found = f"the shape {list(tensor.shape)}"
        raise ValueError(f"{argument} must be [rows, features] or [rows, …], found {found}; try reshape(-1, 1)")
    if tensor.is_complex():
        raise ValueError(f"{argument} must be real numbers, found complex ones")
    if tensor.is_floating_point():
        refuse(_not_finite(tensor, columns, argument))
        kept = tensor.dtype == torch.float64 and (isinstance(inputs, Tensor) or tensor.dim() == 2)
        return tensor if kept else tensor.float()
    return tensor if (whole or tensor.dim() > 2) and tensor.dtype != torch.bool else tensor.double()


def _as_tensor(inputs: Any, columns: list[Any] | None, argument: str) -> Tensor:
    array = np.asarray(inputs)
    if array.dtype.kind in "fiub":
        if array.dtype.kind in "iu" and array.dtype != np.uint8:
            array = array.astype(np.int64)
        return torch.as_tensor(array if array.flags.writeable else array.copy())
    if array.ndim == 2:
        # A DataFrame with some columns of another kind comes as objects.
        read = [as_column(column) for column in array.T]
        text = [_column_name(number, columns) for number, column in enumerate(read) if column.dtype == object]
        if not text:
            return torch.as_tensor(np.stack(read, axis=1))
        raise ValueError(f"{argument} must be numbers, found text in column {', '.join(text)}; try `Problem.from_csv`")
    raise ValueError(f"{argument} must be an array of numbers, found {type(inputs).__name__} of {array.dtype}")


def _not_finite(tensor: Tensor, columns: list[Any] | None, argument: str) -> list[str]:
    if tensor.dim() > 2:
        whole = torch.cat([torch.isfinite(part).flatten(1).all(1) for part in tensor.split(ROWS_AT_ONCE)])
        rows = (~whole).nonzero().flatten().tolist()
        return (
            [f"{argument} must be finite, found NaN or inf in {len(rows)} rows, the first is {rows[0]}"] if rows else []
        )
    counts = (~torch.isfinite(tensor)).sum(0).tolist()
    named = [f"{_column_name(number, columns)} ({count} rows)" for number, count in enumerate(counts) if count]
    if not named:
        largest = float(tensor.abs().max()) if tensor.numel() else 0.0
        return [f"{argument} must be at most {LARGEST:g} in size, found {largest:g}"] if largest > LARGEST else []
    shown = ", ".join(named[:10]) + (f" and {len(named) - 10} more" if len(named) > 10 else "")
    return [f"{argument} must be finite, found NaN or inf in column {shown}; fill them in or leave them out"]


def _column_name(number: int, columns: list[Any] | None) -> str:
    return str(number) if columns is None else repr(columns[number])
