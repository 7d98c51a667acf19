"""`tagalong plan` and `tagalong verdict`: for networks that you train with your own script."""

from __future__ import annotations

from collections.abc import Sequence
from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tagalong.errors import InvalidInput, first_few, pluralize

from .group import read_scores
from .options import (
    COMPARISON,
    DATA,
    AxisOption,
    BudgetsOption,
    ComparisonOptions,
    JsonOption,
    KindsOption,
    OutFolder,
    QuietOption,
    given,
    option,
)
from .run import show_results
from .terminal import print_line

if TYPE_CHECKING:
    from tagalong.affinity import Affinity
    from tagalong.study import ExternalStudy, Results

TargetsFileOption = Annotated[
    Path | None,
    option(
        DATA,
        "An npz file with the labels of validation and test rows. Losses are then computed from predictions.",
        "FILE",
        "--targets-file",
    ),
]
LogitsOption = Annotated[
    bool, option(DATA, "Predictions for classes are logits instead of probabilities.", None, "--logits")
]


def plan(
    affinity: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE",
            help="An affinity in JSON or CSV format, with sources as rows. Cosine affinities are used for cs, all "
            "others for tag.",
            show_default=False,
        ),
    ],
    comparison: ComparisonOptions,
    runs: Annotated[
        int | None,
        option(COMPARISON, "Train at most this many networks in all; no limit by default.", "NUMBER"),
    ] = None,
    targets: TargetsFileOption = None,
    kinds: KindsOption = None,
    logits: LogitsOption = False,
    axis: AxisOption = "source",
    out: OutFolder = None,
    json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Writes a table of the networks to train, including one for all tasks, for you to fill in with their losses.

    Train the networks with your own script, fill in their validation and test losses, and run `tagalong verdict`. Those
    that settle most come first. With few `--runs`, half of them look for the best groups, and the others judge these.
    With `--targets-file`, fill in the names of files with predictions instead of losses. Answers of several networks
    can then be averaged, as with `--methods ensemble` or `best-of`.

    Examples:
    - `tagalong plan affinity.json --budgets 2,3 --runs 12`: list the networks to train with your own script
    """
    from tagalong.study import ExternalStudy, read_targets

    affinities: list[Affinity] = []
    for file in affinity:
        table = read_scores(file, axis)
        if table.kind not in ("affinity", "square"):
            raise InvalidInput(file, "must contain an affinity", "group results", "use tagalong verdict instead")
        affinities.append(table.scores)
    tasks: Any = affinities[0].tasks
    labels = None
    if targets is not None:
        tasks, labels = read_targets(targets, tasks, kinds)
    study = ExternalStudy(tasks, out or Path("runs/own"), targets=labels, logits=logits)
    study.plan(affinities, **given(comparison), runs=runs)
    _show_next_round(study, None, json=json, quiet=quiet)


def verdict(
    path: Annotated[
        Path,
        typer.Argument(metavar="FILE", help="A table or JSON file with the results of networks.", show_default=False),
    ],
    targets: TargetsFileOption = None,
    kinds: KindsOption = None,
    logits: LogitsOption = False,
    budgets: BudgetsOption = None,
    out: OutFolder = None,
    json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Compares networks that you trained yourself, tells you whether grouping is worth it, and what to train next.

    FILE has one row per network, seed and task, with the columns network (e.g. age+ill), seed, task, val_loss and
    test_loss, as written by `tagalong plan`. Results are added to the plan in the same folder or in `--out`. Without a
    plan, the groups are chosen by validation losses and judged by test losses.

    Examples:
    - `tagalong verdict runs/own/plan.csv`: compare the networks, and write a report
    """
    from tagalong.study import ExternalStudy, compare_networks, has_plan, read_networks

    folder = out or (path if path.is_dir() else path.parent)
    if has_plan(folder):
        if budgets or targets or kinds or logits:
            names = "`budgets`, `targets`, `kinds` and `logits`"
            raise InvalidInput(names, "can only be used with a table that has no plan", str(path))
        study = ExternalStudy.load(folder)
        if not path.is_dir():
            study.tell_file(path)
        _show_next_round(study, study.results_so_far(), json=json, quiet=quiet)
        return
    study, networks = read_networks(path, targets_file=targets, kinds=kinds, logits=logits)
    results = compare_networks(study, networks, budgets, path.stem)
    if out is not None:
        write_results(results, out)
    if json:
        print(dumps(results.to_document(), indent=1, allow_nan=False))
        return
    show_results(results)
    if out is not None and not quiet:
        print_line(f"report: {out / 'report.html'}")


def write_results(results: Results, out: Path) -> None:
    """Writes the results and their report to a folder of their own."""
    from tagalong.report import write_report

    if (out / "run.sqlite").exists():
        raise InvalidInput("out", "must not be the folder of a run", str(out), "its results would be overwritten")
    results.save(out / "results.json")
    write_report(out)


def _show_next_round(study: ExternalStudy, results: Results | None, *, json: bool, quiet: bool) -> None:
    """Shows the results so far, and which networks to train next or, in the end, which would settle the verdict."""
    table, following = study.write_table(), study.next_round()
    settling = [] if table is not None or results is None else study.settling()
    if json:
        document: dict[str, Any] = {} if results is None else results.to_document()
        document |= {"round": following.round, "rounds": following.rounds, "file": table and str(table)}
        for name, networks in (("networks", following.networks), ("settling", settling)):
            document[name] = [{"tasks": list(tasks), "seed": seed} for tasks, seed in networks]
        print(dumps(document, indent=1, allow_nan=False))
        return
    if results is not None:
        show_results(results)
    if quiet:
        return
    if table is not None:
        count = pluralize(len(following.networks), "network")
        place = f"round {following.round} of {following.rounds}"
        print_line(f"{place}: train {count} for {', '.join(following.methods)}: {_names(following.networks, 3)}")
        print_line(f"enter the results, then run: tagalong verdict {table}")
    if settling:
        print_line(f"To settle it, train {pluralize(len(settling), 'more network')}: {_names(settling, 5)}.")
    if results is not None and study.out is not None:
        print_line(f"report: {study.out / 'report.html'}")


def _names(networks: Sequence[tuple[tuple[str, ...], int]], limit: int) -> str:
    return first_few([f"{'+'.join(tasks)} (seed {seed})" for tasks, seed in networks], limit)
