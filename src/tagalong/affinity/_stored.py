"""An affinity as text and as files."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal, TypeVar

from ._atomic import write_atomic
from ._build import of_matrix
from ._check import AffinityFileError
from ._csv import csv_text, read_csv
from ._file import read, write
from ._record import Record
from ._table import table

PathLike = str | os.PathLike[str]
S = TypeVar("S", bound="Stored")


class Stored(Record):
    """A record that can be read, by people and from files."""

    def __str__(self) -> str:
        return table(self)

    def __repr__(self) -> str:
        estimator = self.settings.get("estimator")
        known = f", estimator={estimator!r}" if estimator else ""
        return f"{type(self).__name__}({len(self.tasks)} tasks, {len(self.steps)} steps{known})"

    def _repr_html_(self) -> str:
        from ._html import html_table  # only in notebooks

        return html_table(self)

    def to_csv(self, path: PathLike | None = None) -> str:
        """The matrix as comma-separated values: a header of targets, then one line per source.

        Args:
            path: where to write it as well, if given.

        Returns:
            The text. Numbers are in full; the cell of a pair never measured is empty.

        Example:
            >>> from tagalong.affinity import Affinity
            >>> affinity = Affinity.from_matrix([[1.0, 0.5], [0.0, float("nan")]], ["age", "ill"])
            >>> print(affinity.to_csv(), end="")
            source,age,ill
            age,1.0,0.5
            ill,0.0,
        """
        text = csv_text(self)
        if path is not None:
            write_atomic(Path(path), text.encode())
        return text

    @classmethod
    def from_csv(cls: type[S], path: PathLike, axis: Literal["source", "target"] = "source") -> S:
        """Reads a square table with names in the first line and the first column.

        Args:
            path: the file. Space around cells is dropped, empty cells are NaN, and columns may come in
                another order than rows.
            axis: what the lines are; "target" if each line holds the affinities onto one task.

        Raises:
            AffinityFileError: with every problem found, by line.

        Example:
            >>> import tempfile, pathlib
            >>> from tagalong.affinity import Affinity
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     path = pathlib.Path(folder, "table.csv")
            ...     _ = path.write_text("onto,age,ill\\nage,1,2\\nill,3,4\\n")
            ...     Affinity.from_csv(path, axis="target").mean.tolist()
            [[1.0, 3.0], [2.0, 4.0]]
        """
        matrix, names = read_csv(Path(path), axis)
        return cls(**of_matrix(matrix, names, axis))

    def save(self, path: PathLike) -> None:
        """Writes everything, whole or not at all; `load` gives it back bit for bit.

        The file is versioned JSON. A history of more than 100,000 numbers goes into an archive beside it,
        `<name>.<hash>.npz`, which the JSON names; archives of earlier saves are removed.

        Args:
            path: the file, usually `affinity.json`.

        Example:
            >>> import tempfile, pathlib
            >>> from tagalong.affinity import Affinity
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     path = pathlib.Path(folder, "affinity.json")
            ...     Affinity.from_matrix([[1, 2], [3, 4]], ["age", "ill"]).save(path)
            ...     Affinity.load(path)
            Affinity(2 tasks, 0 steps)
        """
        write(self, Path(path))

    @classmethod
    def load(cls: type[S], path: PathLike) -> S:
        """Reads what `save` wrote.

        Raises:
            FileNotFoundError: there is no such file.
            AffinityFileError: the file is damaged, of another format or of a newer version, or its archive
                is missing or belongs to another save.
        """
        fields = read(Path(path))
        try:
            return cls(**fields)
        except (TypeError, ValueError, AttributeError) as error:
            raise AffinityFileError(f"{path} is damaged: {error}") from error
