"""How to use the recommended networks in code and on the command line."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

from tagalong.rendering import Html, tag
from tagalong.study import Run


def usage_section(run: Run) -> Html | None:
    """Returns code that loads the networks, predicts and exports, or None if the run has no networks to load."""
    if run.inputs is None:
        return None
    rows = "new.csv" if run.inputs == "table" else "new.npy"
    python, command = usage_code(run.folder, rows), usage_command(run.folder, rows)
    like = "a table with the same columns" if rows.endswith(".csv") else "an array of inputs like those of the problem"
    lead = f"{rows} is {like}. If several networks answer a task, predict averages their answers."
    return tag(
        "section",
        tag("h2", "Use it in code", id="use-title"),
        tag("p", lead, class_="lead"),
        code_block(python, "Python code", "use-python"),
        tag("p", "On the command line, without writing code:"),
        code_block(command, "command", "use-command"),
        id="use",
        aria_labelledby="use-title",
    )


def usage_code(folder: Path, rows: str) -> str:
    """Returns Python code that loads the networks of a run, predicts and exports."""
    given = f'"{rows}"' if rows.endswith(".csv") else f'np.load("{rows}")'
    lines = [
        *([] if rows.endswith(".csv") else ["import numpy as np"]),
        "from tagalong import Results",
        "",
        f"best = Results.load({json.dumps(str(folder), ensure_ascii=False)}).best()  # the recommended networks",
        f"predictions = best.predict({given})  # a dict from task to array",
        'best.export("exported")  # weights, programs and load.py, which needs only torch',
    ]
    return "\n".join(lines)


def usage_command(folder: Path, rows: str) -> str:
    """Returns the command that predicts new rows with the networks of a run."""
    return f"tagalong predict {shlex.quote(str(folder))} {rows} --out predictions.csv"


def code_block(code: str, name: str, identifier: str) -> Html:
    """Returns code with a button that copies it and says so. Without JavaScript, there is no button."""
    button = tag(
        "button",
        "Copy",
        tag("span", f" the {name}", class_="unseen"),
        type="button",
        data_copies=identifier,
        hidden=True,
    )
    return tag(
        "div",
        tag("pre", tag("code", code, id=identifier), tabindex="0", role="region", aria_label=name.capitalize()),
        button,
        tag("span", role="status", class_="copied"),
        class_="code",
    )
