"""`tagalong predict`: makes predictions for new rows with the recommended networks of a run."""

from __future__ import annotations

import csv
import io
import sys
from collections.abc import Mapping, Sequence
from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tagalong.errors import pluralize

from . import options
from .messages import name_arguments
from .terminal import print_text, printable

if TYPE_CHECKING:
    from tagalong.study import Best

New = Annotated[
    Path,
    typer.Argument(
        metavar="NEW.csv", help="A table with the same features, or an npy or npz file.", show_default=False
    ),
]
CsvOption = Annotated[
    Path | None,
    options.make_option(
        options.OUTPUT, "--out", "-o", metavar="FILE.csv", text="Output file; standard output by default."
    ),
]


def predict(
    run: options.Run,
    new: New,
    out: CsvOption = None,
    json: options.JsonOption = False,
    quiet: options.QuietOption = False,
) -> None:
    """Predicts every task for new rows, with the networks recommended by the verdict of a run.

    Predictions are probabilities for classes, and numbers in the units of the data for regressions. Opening a run
    unpickles its networks, which can execute code: only open runs that you trust.

    On standard output, control characters in names are replaced with question marks; `--out` and `--json` keep them.

    Example:
        `tagalong predict runs/table new.csv --out answers.csv`: write predictions for new rows to a file
    """
    from tagalong.files import write_atomic
    from tagalong.study import Best

    with name_arguments(out=str(run), rows=str(new)):
        best = Best.load(run)
        columns = _columns(best, best.predict(_rows(new)))
    if out is not None:
        write_atomic(out, _table(columns, list(columns)))
    if json:
        print(dumps({name: [float(f"{value:.6g}") for value in values] for name, values in columns.items()}))
    elif out is None:
        sys.stdout.write(_table(columns, list(map(printable, columns))))
    elif not quiet:
        print_text(f"{pluralize(len(next(iter(columns.values()))), 'row')} written to {out}")


def _rows(path: Path) -> Any:
    """Loads an array; the path of a table is returned as is, since reading it requires the columns of the run."""
    if path.suffix.lower() not in (".npy", ".npz"):
        return path
    from tagalong.learn import load_array

    return load_array(path)


def _columns(best: Best, predictions: Mapping[str, Any]) -> dict[str, Any]:
    """Returns one column per task, or one per class for multiclass tasks."""
    columns: dict[str, Any] = {}
    for task in best.tasks:
        values = predictions[task.name]
        if values.ndim == 1:
            columns[task.name] = values
        else:
            labels = task.labels or range(values.shape[1])
            columns |= {f"{task.name}={label}": values[:, i] for i, label in enumerate(labels)}
    return columns


def _table(columns: Mapping[str, Any], header: Sequence[str]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    writer.writerows([f"{value:.6g}" for value in row] for row in zip(*columns.values(), strict=True))
    return text.getvalue()
