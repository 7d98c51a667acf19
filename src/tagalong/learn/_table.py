"""How rows of a table become inputs of a network, kept for rows that come later."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ._scaling import Classes, Preparation, Scaling
from ._split import Rows
from ._table_columns import CategoryColumn, NumberColumn, column_from_document
from ._table_read import Columns, read_columns


@dataclass(frozen=True, eq=False)
class Table:
    """The feature columns of a table, with what was learnt from the train rows: medians, scales, levels.

    Attributes:
        columns: in the order of the inputs.
        classes: for tasks whose labels were coded 0, 1, …, the label each number stands for.

    Example:
        >>> table = Table((NumberColumn("age", 40, 40, 10, True), CategoryColumn("sex", ("f", "m"))))
        >>> table.inputs([{"age": "60", "sex": "m"}, {"age": "", "sex": "x"}])
        tensor([[2., 0., 0., 1., 0.],
                [0., 1., 0., 0., 1.]])
    """

    columns: tuple[NumberColumn | CategoryColumn, ...]
    classes: Classes = field(default_factory=dict)

    @staticmethod
    def fitted(
        columns: Columns, numbers: Sequence[str], categories: Sequence[str], rows: Rows, classes: Classes
    ) -> Table:
        """From the train rows; columns that say nothing there are left out."""
        made: list[NumberColumn | CategoryColumn | None] = [
            NumberColumn.fitted(name, columns[name], rows) for name in numbers
        ]
        made += [CategoryColumn.fitted(name, columns[name], rows) for name in categories]
        return Table(tuple(column for column in made if column is not None), classes)

    @property
    def names(self) -> tuple[str, ...]:
        """What each input is."""
        return tuple(name for column in self.columns for name in column.names)

    def inputs(self, rows: Any) -> Tensor:
        """Inputs of a network; columns that are not features may be there or not.

        Args:
            rows: the path of a CSV file, a DataFrame, columns by name, or a list of rows by name. Missing numbers
                become the median, unknown categories "other".

        Raises:
            ValueError: feature columns are absent, or hold text where numbers were.
        """
        columns = read_columns(rows, "`rows`", keep_empty=True)
        absent = [column.name for column in self.columns if column.name not in columns]
        if absent:
            raise ValueError(f"`rows` must have the columns {', '.join(map(repr, absent))}, found none of that name")
        return torch.as_tensor(
            np.concatenate([column.values(columns[column.name]) for column in self.columns], axis=1),
            dtype=torch.float32,
        )

    def to_document(self) -> dict[str, Any]:
        """Plain values for JSON."""
        classes = {task: list(labels) for task, labels in self.classes.items()}
        return {"kind": "table", "columns": [column.to_document() for column in self.columns], "classes": classes}

    @staticmethod
    def from_document(document: Mapping[str, Any]) -> Table:
        """The table that `to_document` described."""
        return Table(tuple(map(column_from_document, document["columns"])), document["classes"])


def read_preparation(document: Mapping[str, Any]) -> Preparation:
    """A `Scaling` or a `Table` from its document."""
    kinds: dict[str, Any] = {"scaling": Scaling, "table": Table}
    if document.get("kind") not in kinds:
        raise ValueError(f"`document` must be of kind 'scaling' or 'table', found {document.get('kind')!r}")
    prepared: Preparation = kinds[document["kind"]].from_document(document)
    return prepared
