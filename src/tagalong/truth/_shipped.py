"""The truth tables that come with the package."""

from __future__ import annotations

from functools import cache
from importlib.resources import as_file, files

from tagalong.learn._table_roles import closest

from ._table import TruthTable

FOLDER = "tables"


@cache
def truth_names() -> tuple[str, ...]:
    """The names of the tables."""
    shipped = files(__package__).joinpath(FOLDER).iterdir()
    return tuple(sorted(file.name.removesuffix(".npz") for file in shipped if file.name.endswith(".npz")))


def load_truth(name: str) -> TruthTable:
    """A table by its name.

    Raises:
        ValueError: there is none of this name.

    Example:
        >>> load_truth("nhanes").tasks[:2]
        ('systolic', 'diastolic')
    """
    if name not in truth_names():
        raise ValueError(f"`name` must be a truth table, found {name!r}; {closest(name, truth_names())}")
    with as_file(files(__package__).joinpath(FOLDER, f"{name}.npz")) as path:
        return TruthTable.load(path)
