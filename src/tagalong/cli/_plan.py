"""`tagalong plan`: which networks to train with an own script."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tagalong._names import counted

from . import _study_options as options
from ._arguments import names, whole_budgets
from ._terminal import say, screen

if TYPE_CHECKING:
    from tagalong.affinity import Affinity

Files = Annotated[
    list[Path],
    typer.Argument(
        metavar="FILE",
        help="An affinity: JSON or CSV, the row helps the column. One of cosines decides cs, any other tag.",
        show_default=False,
    ),
]
CsvOption = Annotated[
    Path | None,
    typer.Option(
        "--out",
        "-o",
        metavar="FILE.csv",
        help="Where to write; plan.csv by default.",
        rich_help_panel=options.OUTPUT,
        show_default=False,
    ),
]


def plan(
    files: Files,
    budgets: options.BudgetsOption = None,
    methods: options.MethodsOption = None,
    seeds: options.SeedsOption = None,
    out: CsvOption = None,
    json: options.JsonOption = False,
    quiet: options.QuietOption = False,
) -> None:
    """Writes the list of networks to train, all together included, as a table to fill in with losses.

    Train each with your own script, fill in its validation and test losses, and ask `tagalong verdict`.

    Example:
        `tagalong plan affinity.json --budgets 2,3`: what to train with your own script
    """
    from tagalong.study import plan as make_plan

    if seeds is not None and seeds < 1:
        raise ValueError(f"`seeds` must be a number from 1, found {seeds}")
    affinities = [_affinity(file) for file in files]
    tasks = len(affinities[0].tasks)
    wanted = [2, 3] if budgets is None else whole_budgets(budgets, tasks)
    usual = [budget for budget in wanted if budget <= tasks] if budgets is None else wanted
    chosen = None if methods is None else names(methods)
    made = make_plan(affinities, usual, chosen, 3 if seeds is None else seeds)
    path = made.to_csv(out or Path("plan.csv"))
    if json:
        from json import dumps

        networks = [{"tasks": list(tasks), "seed": seed} for tasks, seed in made.networks]
        print(dumps({"file": str(path), "networks": networks}, indent=1))
        return
    if quiet:
        print(path)
        return
    console = screen()
    say(
        console,
        f"{counted(len(made.networks), 'network')} to train, for {', '.join(made.methods)}; fill in {path}, then",
    )
    say(console, f"tagalong verdict {path}")


def _affinity(file: Path) -> Affinity:
    from tagalong.group import read_table

    table = read_table(file)
    if table.kind not in ("affinity", "square"):
        raise ValueError(f"{file} must hold an affinity, found results of groups; see tagalong verdict")
    affinity: Affinity = table.scores
    return affinity
