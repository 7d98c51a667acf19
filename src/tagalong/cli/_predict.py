"""`tagalong predict`: new rows through the recommended networks of a run."""

from __future__ import annotations

import csv
import io
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ._sentences import called

if TYPE_CHECKING:
    from tagalong.study import Best

Run = Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a finished run.", show_default=False)]
New = Annotated[
    Path,
    typer.Argument(metavar="NEW.csv", help="Rows with the same feature columns; or an npy or npz.", show_default=False),
]
CsvOption = Annotated[
    Path | None,
    typer.Option("--out", "-o", metavar="FILE.csv", help="Where to write; the screen by default.", show_default=False),
]


def predict(run: Run, new: New, out: CsvOption = None) -> None:
    """Predicts every task for new rows, with the networks that the verdict of a run recommends.

    Probabilities for classes, the data's units for numbers. Opening a run unpickles its networks, which can run code:
    open only runs you trust.
    """
    from tagalong.affinity._atomic import write_atomic
    from tagalong.study import Best

    with called(out=str(run), rows=str(new)):
        best = Best.load(run)
        text = _table(best, best.predict(_rows(new)))
    if out is None:
        sys.stdout.write(text)
        return
    write_atomic(out, text.encode())
    print(f"{text.count(chr(10)) - 1} rows in {out}")


def _rows(path: Path) -> Any:
    if not path.is_file():
        raise ValueError(f"{path}: there is no such file")
    if path.suffix.lower() not in (".npy", ".npz"):
        return path
    from tagalong.learn._scaling import load_array

    return load_array(path)


def _table(best: Best, predictions: Mapping[str, Any]) -> str:
    columns: dict[str, Any] = {}
    for task in best.tasks:
        values = predictions[task.name]
        if values.ndim == 1:
            columns[task.name] = values
        else:
            labels = task.labels or range(values.shape[1])
            columns |= {f"{task.name}={label}": values[:, at] for at, label in enumerate(labels)}
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([f"{value:.6g}" for value in row] for row in zip(*columns.values(), strict=True))
    return text.getvalue()
