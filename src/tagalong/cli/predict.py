"""`tagalong predict`: makes predictions for new rows with the networks that a run recommends."""

from __future__ import annotations

import csv
import io
import sys
from collections.abc import Mapping, Sequence
from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tagalong.errors import first_few, pluralize

from . import options
from .arguments import check_exists
from .messages import name_arguments, print_error
from .terminal import print_text, printable

if TYPE_CHECKING:
    from tagalong.study import Best

New = Annotated[
    Path,
    typer.Argument(
        metavar="NEW.csv",
        help="A table with the features used for training, or an npy or npz file.",
        show_default=False,
    ),
]
CsvOption = Annotated[
    Path | None,
    options.make_option(
        options.OUTPUT, "--out", "-o", metavar="FILE.csv", text="Output file; standard output by default."
    ),
]

SpreadOption = Annotated[
    bool,
    options.make_option(
        options.OUTPUT,
        "--spread",
        text="Add columns with the standard deviation over the networks that serve a task.",
    ),
]


def predict(
    run: options.Run,
    new: New,
    out: CsvOption = None,
    spread: SpreadOption = False,
    json: options.JsonOption = False,
    quiet: options.QuietOption = False,
) -> None:
    """Predicts every task for new rows, using the networks that a run recommends.

    Predictions are class probabilities for classification and numbers in the original units for regression. The column
    `outside` counts the inputs of a row that are far outside the range of the training rows.

    A run with an encoder or head of your own predicts in Python, with `Best.load(run, problem=problem)`.

    On standard output, control characters in names are replaced with question marks; `--out` and `--json` keep them.

    Example:
        `tagalong predict runs/table new.csv --out answers.csv`: write predictions for new rows to a file
    """
    from tagalong.files import write_atomic
    from tagalong.study import Best

    with name_arguments(out=str(run), rows=str(new)):
        best = Best.load(run)
        check_exists(new, "a table with the features, or an npy or npz file")
        rows = _load_rows(new)
        columns = _prediction_columns(best, best.predict(rows))
        if spread:
            if not quiet:
                _note_lone_networks(best)
            spreads = _prediction_columns(best, best.spread(rows))
            columns |= {f"{name} (spread)": values for name, values in spreads.items()}
        outside = best.outside(rows)
    if outside:
        columns.setdefault("outside", sum(flags.astype(int) for flags in outside.values()))
        if not quiet:
            _note_outside(outside)
    if out is not None:
        write_atomic(out, _to_csv(columns, list(columns)))
    if json:
        print(dumps({name: [float(_shortest_text(value)) for value in values] for name, values in columns.items()}))
    elif out is None:
        sys.stdout.write(_to_csv(columns, list(map(printable, columns))))
    elif not quiet:
        print_text(f"{pluralize(len(next(iter(columns.values()))), 'row')} written to {out}")


def _note_lone_networks(best: Best) -> None:
    """Says for which tasks a spread of 0 does not mean that networks agree."""
    alone = [task.name for task in best.tasks if sum(task.name in group.serves for group in best.groups) == 1]
    if alone:
        tasks = "every task" if len(alone) == len(best.tasks) else first_few(alone)
        print_error(f"a single network answers {printable(tasks)}, so the spread there is always 0")


def _note_outside(outside: Mapping[str, Any]) -> None:
    """Says how many rows have inputs far outside those of the training rows, and in which columns."""
    names = [printable(name) for name, flags in outside.items() if flags.any()]
    if names:
        rows = pluralize(int(sum(flags.astype(int) for flags in outside.values()).astype(bool).sum()), "row")
        where = f"in {first_few(names)}; the column 'outside' counts them"
        print_error(f"{rows} with numbers far outside the range of the training rows, {where}")


def _load_rows(path: Path) -> Any:
    """Loads an array. The path of a table is returned unchanged, since reading the table requires the run's columns."""
    if path.suffix.lower() not in (".npy", ".npz"):
        return path
    from tagalong.learn import load_array

    return load_array(path)


def _prediction_columns(best: Best, predictions: Mapping[str, Any]) -> dict[str, Any]:
    """Returns one column per task, or one column per class for multiclass tasks."""
    columns: dict[str, Any] = {}
    for task in best.tasks:
        values = predictions[task.name]
        if values.ndim == 1:
            columns[task.name] = values
        else:
            labels = task.labels or range(values.shape[1])
            columns |= {f"{task.name}={label}": values[:, i] for i, label in enumerate(labels)}
    return columns


def _to_csv(columns: Mapping[str, Any], header: Sequence[str]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(map(_shortest_text, row) for row in zip(*columns.values(), strict=True))
    return text.getvalue()


def _shortest_text(value: Any) -> str:
    """Returns the shortest text that stands for this very number in float32, so that no digit of a loss is lost."""
    from numpy import float32, integer

    return str(value) if isinstance(value, integer) else str(float32(value))
