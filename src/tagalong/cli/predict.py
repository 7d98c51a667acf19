"""`tagalong predict`: makes predictions for new rows with the networks that a run recommends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tagalong.errors import InvalidInput, first_few, pluralize

from .options import OUTPUT, JsonOption, OutFile, QuietOption, Run, option, parse_names
from .terminal import print_error, print_line, printable

if TYPE_CHECKING:
    from tagalong.study import Best


def predict(
    run: Run,
    rows: Annotated[
        Path,
        typer.Argument(
            metavar="NEW.csv",
            help="A table with the features used for training, or an npy or npz file.",
            show_default=False,
        ),
    ],
    networks: Annotated[
        int | None,
        option(OUTPUT, "Use what the run recommends for this number of networks; by default, for any.", "NUMBER"),
    ] = None,
    keep: Annotated[
        Sequence[str] | None,
        option(OUTPUT, "Columns of the new rows to copy to the output, such as IDs.", "A,B,…", parser=parse_names),
    ] = None,
    spread: Annotated[
        bool,
        option(
            OUTPUT, "Add columns with the standard deviation over the networks that serve a task.", None, "--spread"
        ),
    ] = False,
    out: OutFile = None,
    json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Predicts every task for new rows, using the networks that a run recommends.

    Predictions are class probabilities for classification and numbers in the original units for regression. The column
    `outside` counts the inputs of a row that are far outside the range of the training rows.

    A run with an encoder or head of your own predicts in Python, with `Best.load(run, problem=problem)`.

    On standard output, control characters in names are replaced with question marks; `--out` and `--json` keep them.

    Examples:
    - `tagalong predict runs/table new.csv --keep id --out answers.csv`: write predictions for new rows to a file
    """
    import pandas as pd

    from tagalong.files import write_atomic
    from tagalong.learn import load_array
    from tagalong.study import Best
    from tagalong.tabular import read_table

    best = Best.load(run, networks=networks)
    inputs: Any = load_array(rows) if rows.suffix.lower() in (".npy", ".npz") else rows
    columns = _prediction_columns(best, best.predict(inputs))
    if spread:
        spreads = _prediction_columns(best, best.spread(inputs))
        columns |= {f"{name} (spread)": values for name, values in spreads.items()}
    outside = best.outside(inputs)
    if outside:
        columns.setdefault("outside", sum(flags.astype(int) for flags in outside.values()))
        names = [name for name, flags in outside.items() if flags.any()]
        if names and not quiet:
            print_error(f"warning: some rows are far outside the range of the training rows, in {first_few(names)}")
    frame = pd.DataFrame(columns)
    if keep is not None:
        table = read_table(rows, as_text=True, keep_empty=True)
        if unusable := [repr(name) for name in keep if name not in table or name in frame]:
            raise InvalidInput("keep", f"must name columns of {rows} that are not predicted", first_few(unusable))
        frame = pd.concat([table[[*keep]].reset_index(drop=True), frame], axis=1)

    if out is not None:
        write_atomic(out, frame.to_csv(index=False, lineterminator="\n"))
    if json:
        print(dumps(frame.to_dict("list")))
    elif out is None:
        print(frame.rename(columns=printable).to_csv(index=False, lineterminator="\n"), end="")
    elif not quiet:
        print_line(f"{pluralize(len(frame), 'row')} written to {out}")


def _prediction_columns(best: Best, predictions: Mapping[str, Any]) -> dict[str, Any]:
    """Returns one column per task, or one column per class for multiclass tasks."""
    columns: dict[str, Any] = {}
    for task in best.tasks:
        # As numbers of Python with the fewest digits that stand for the number in float32.
        values = predictions[task.name].astype(str).astype(float)
        if values.ndim == 1:
            columns[task.name] = values
        else:
            labels = task.labels or range(values.shape[1])
            columns |= {f"{task.name}={label}": values[:, i] for i, label in enumerate(labels)}
    return columns
