"""Piecewise-linear codes of numbers, which let a network treat parts of a column's range differently.

Gorishniy, Rubachev and Babenko, "On embeddings for numerical features in tabular deep learning", NeurIPS 2022,
https://arxiv.org/abs/2203.05556.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from tagalong.errors import InvalidInput

Edges = Sequence[Sequence[float]]  # for each column, the ascending edges of its bins


class PiecewiseLinear(nn.Module):
    """Appends a code for each bin of each column: 0 below the bin, 1 above it, and linear within.

    The columns themselves are kept, so that values outside all bins can still be told apart.

    Args:
        edges: the edges of each column's bins. A column without edges has no bins.

    Example:
        >>> PiecewiseLinear([[0, 1, 3], []])(torch.tensor([[2.0, 7.0]]))
        tensor([[2.0000, 7.0000, 1.0000, 0.5000]])
    """

    def __init__(self, edges: Edges) -> None:
        super().__init__()
        bins = [(column, low, high) for column, own in enumerate(edges) for low, high in pairwise(own)]
        columns, lows, highs = zip(*bins, strict=True) if bins else ((), (), ())
        self.register_buffer("columns", torch.tensor(columns, dtype=torch.int64))
        self.register_buffer("lows", torch.tensor(lows))
        self.register_buffer("widths", torch.tensor(highs) - torch.tensor(lows))
        self.columns: Tensor
        self.lows: Tensor
        self.widths: Tensor

    def forward(self, values: Tensor) -> Tensor:
        """Returns the columns and codes [..., columns + bins], given columns [..., columns]."""
        codes = (values.index_select(-1, self.columns) - self.lows) / self.widths
        return torch.cat([values, codes.clamp(0, 1)], -1)


def count_bins(edges: Edges) -> int:
    """Returns the number of bins of all columns."""
    return sum(max(0, len(own) - 1) for own in edges)


def checked_edges(edges: Edges, features: int) -> tuple[tuple[float, ...], ...]:
    """Returns the edges as tuples.

    Raises:
        InvalidInput: If there are edges, but not for each feature, or edges are not ascending.
    """
    found = tuple(tuple(map(float, own)) for own in edges)
    if found and len(found) != features:
        raise InvalidInput("edges", f"must be empty or a list for each of the {features} features", str(len(found)))
    for column, own in enumerate(found):
        if not bool((torch.tensor(own).diff() > 0).all()):
            raise InvalidInput(f"`edges[{column}]`", "must be ascending, in single precision", repr(own))
    return found


def describe_edges(edges: Edges) -> str:
    """Returns the end of an encoder's `repr`, which is empty if there are no bins."""
    return f", bins={count_bins(edges)}" if count_bins(edges) else ""


def quantile_edges(inputs: Tensor, bins: int) -> tuple[tuple[float, ...], ...]:
    """Returns edges between which the values of each column are distributed as evenly as possible.

    Columns with fewer than three distinct values get no edges, since a line passes through all of their values.

    Args:
        inputs: the inputs [rows, columns] of the training rows.
        bins: the largest number of bins of a column. Equal quantiles, e.g. of a column with many zeros, count once.

    Example:
        >>> quantile_edges(torch.tensor([[1.0, 0.0], [2.0, 1.0], [3.0, 0.0], [7.0, 1.0]]), bins=3)
        ((1.0, 2.0, 3.0, 7.0), ())
    """
    shares = torch.linspace(0, 1, bins + 1, dtype=torch.float64)
    found = []
    for column in inputs.double().unbind(1):
        known = column[column.isfinite()]
        distinct = known.unique()
        edges = distinct if len(distinct) <= bins + 1 else known.quantile(shares).unique()
        edges = edges.float().unique()  # in the precision of the layer, in which close edges may be equal
        found.append(tuple(edges.tolist()) if len(edges) > 2 else ())
    return tuple(found)
