"""What each column of a table is for, and every reason why it cannot be."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from tagalong._names import name_problems

from ._table_read import Columns
from ._targets import LARGEST, Column


@dataclass(frozen=True)
class Wanted:
    """What was asked for, by the argument's name: see `Problem.from_csv`."""

    targets: tuple[str, ...]
    features: tuple[str, ...] | None
    ignore: tuple[str, ...]
    categorical: tuple[str, ...]
    split_column: str | None
    group_column: str | None


@dataclass(frozen=True)
class Roles:
    """The feature columns of a table.

    Attributes:
        numbers: columns that are numbers.
        categories: columns that are one-hot.
    """

    numbers: tuple[str, ...]
    categories: tuple[str, ...]


def find_roles(columns: Columns, wanted: Wanted) -> tuple[Roles, list[str]]:
    """Sorts the columns into numbers and categories; with what is wrong.

    Wrong are columns that are not there, that have two roles, or are text that nothing settles.
    """
    absent = absent_problems(columns, wanted)
    apart = {*wanted.targets, *wanted.ignore, wanted.split_column, wanted.group_column}
    chosen = wanted.features if wanted.features is not None else [name for name in columns if name not in apart]
    chosen = [*chosen, *(name for name in wanted.categorical if name not in apart)]
    features = tuple(name for name in dict.fromkeys(chosen) if name in columns)
    roles = Roles(
        tuple(name for name in features if name not in wanted.categorical),
        tuple(name for name in features if name in wanted.categorical),
    )
    problems = name_problems(wanted.targets, "`targets`") + absent + _doubled(wanted)
    if not features and not absent:
        problems.append("`features` must name a column, found none left beside `targets` and `ignore`")
    return roles, problems + _not_numbers(columns, roles.numbers)


def _not_numbers(columns: Columns, numbers: Sequence[str]) -> list[str]:
    problems = [_unsettled(name, columns[name]) for name in numbers if columns[name].dtype == object]
    sizes = {name: np.abs(columns[name]) for name in numbers if columns[name].dtype != object}
    problems += [
        f"`features`: column {name!r} must be finite, found inf in {int(np.isinf(size).sum())} rows"
        for name, size in sizes.items()
        if np.isinf(size).any()
    ]
    return problems + [
        f"`features`: column {name!r} must be at most {LARGEST:g} in size, found {np.nanmax(size):g}"
        for name, size in sizes.items()
        if LARGEST < np.nanmax(size, initial=0.0) < np.inf
    ]


def absent_problems(columns: Columns, wanted: Wanted) -> list[str]:
    """Names that the table lacks, with what may have been meant."""
    singles = {"split_column": wanted.split_column, "group_column": wanted.group_column}
    asked: dict[str, Sequence[str]] = {
        "targets": wanted.targets,
        "features": wanted.features or (),
        "ignore": wanted.ignore,
        "categorical": wanted.categorical,
        **{argument: [name] for argument, name in singles.items() if name is not None},
    }
    return [
        f"`{argument}` must name columns of the table, found {name!r}; {closest(name, columns)}"
        for argument, names in asked.items()
        for name in names
        if name not in columns
    ]


def closest(name: str, known: Iterable[str]) -> str:
    """What may have been meant, or all there is."""
    known = list(known)
    near = difflib.get_close_matches(str(name), known, n=1)
    if near:
        return f"did you mean {near[0]!r}?"
    return f"there are {', '.join(known[:20])}" + (f" and {len(known) - 20} more" if len(known) > 20 else "")


def _doubled(wanted: Wanted) -> list[str]:
    """Targets among the features would be given away; the others make no sense."""
    uses = {
        "features": wanted.features or (),
        "categorical": wanted.categorical,
        "ignore": wanted.ignore,
        "split_column": (wanted.split_column,),
        "group_column": (wanted.group_column,),
    }
    problems = [
        f"`{argument}` must not name a target, found {name!r}"
        for argument, names in uses.items()
        for name in names
        if name in wanted.targets
    ]
    return problems + [
        f"`ignore` must not name what `{argument}` names, found {name!r}"
        for argument in ("features", "categorical")
        for name in uses[argument]
        if name in wanted.ignore
    ]


def _unsettled(name: str, column: Column) -> str:
    levels = sorted({value for value in column if value is not None})
    found = f"{len(levels)} different texts such as {levels[0]!r}"
    return f"column {name!r} must be numbers, found {found}; add it to `categorical` or to `ignore`"
