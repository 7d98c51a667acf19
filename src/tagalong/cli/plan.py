"""`tagalong plan` and `tagalong verdict`: for networks that you train with your own script."""

from __future__ import annotations

from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from tagalong.errors import InvalidInput, first_few, pluralize

from . import options
from .arguments import check_exists, check_folder, integer_option, parse_budgets, parse_methods, parse_pairs
from .group_options import AxisChoice, AxisOption
from .messages import name_arguments
from .run import show_results
from .terminal import print_line, print_text, screen

if TYPE_CHECKING:
    from tagalong.affinity import Affinity
    from tagalong.study import ExternalStudy, Results

DEFAULT_BUDGETS = (2, 3)
DEFAULT_FOLDER = Path("runs/own")
Files = Annotated[
    list[Path],
    typer.Argument(
        metavar="FILE",
        help="An affinity in JSON or CSV format, with sources as rows. Cosine affinities are used for cs, all others "
        "for tag.",
        show_default=False,
    ),
]
RunsOption = Annotated[
    int | None,
    options.make_option(
        options.COMPARISON,
        "--runs",
        metavar="NUMBER",
        parser=integer_option,
        text="Train at most this many networks in all; no limit by default.",
    ),
]
TargetsFileOption = Annotated[
    Path | None,
    options.make_option(
        options.TABLE,
        "--targets-file",
        metavar="FILE",
        text="An npz file with the labels of validation and test rows. Losses are then computed from predictions.",
    ),
]
LogitsOption = Annotated[
    bool,
    options.make_option(options.TABLE, "--logits", text="Predictions for classes are logits instead of probabilities."),
]
ResultsFile = Annotated[
    Path,
    typer.Argument(
        metavar="FILE",
        help="A table or JSON file with the results of networks, the folder of a run, or its results.json.",
        show_default=False,
    ),
]


def plan(
    files: Files,
    budgets: options.BudgetsOption = None,
    methods: options.MethodsOption = None,
    seeds: options.SeedsOption = None,
    runs: RunsOption = None,
    targets_file: TargetsFileOption = None,
    kinds: options.KindsOption = None,
    logits: LogitsOption = False,
    axis: AxisOption = AxisChoice.source,
    out: options.OutOption = None,
    json: options.JsonOption = False,
    quiet: options.QuietOption = False,
) -> None:
    """Writes a table of the networks to train, including one for all tasks, for you to fill in with their losses.

    Train the networks with your own script, fill in their validation and test losses, and run `tagalong verdict`. Those
    that settle most come first. With few `--runs`, half of them look for the best groups, and the others judge these.
    With `--targets-file`, fill in the names of files with predictions instead of losses. Answers of several networks
    can then be averaged, as with `--methods ensemble` or `best-of`.

    Example:
        `tagalong plan affinity.json --budgets 2,3 --runs 12`: list the networks to train with your own script
    """
    from tagalong.study import ExternalStudy, read_targets

    check_folder(out)
    if seeds is not None and seeds < 1:
        raise InvalidInput("seeds", "must be a positive integer", str(seeds))
    affinities = [_read_affinity(file, axis.value) for file in files]
    tasks = affinities[0].tasks
    if budgets is None:
        sizes = [budget for budget in DEFAULT_BUDGETS if budget <= len(tasks)]
    else:
        sizes = parse_budgets(budgets, len(tasks))
    names = None if methods is None else parse_methods(methods)
    folder = out or DEFAULT_FOLDER
    if targets_file is None:
        study = ExternalStudy(tasks, folder, logits=logits)
    else:
        known_tasks, labels = read_targets(targets_file, tasks, None if kinds is None else parse_pairs(kinds, "kinds"))
        study = ExternalStudy(known_tasks, folder, targets=labels, logits=logits)
    names_of_files = ", ".join(map(str, files))
    with name_arguments(scores=names_of_files, affinity=names_of_files, targets="--targets-file"):
        study.plan(affinities, budgets=sizes, methods=names, seeds=3 if seeds is None else seeds, runs=runs)
    _show_next_round(study, json=json, quiet=quiet)


def _read_affinity(file: Path, axis: Literal["source", "target"]) -> Affinity:
    from .score_files import read_table

    check_exists(file, "an affinity: saved by tagalong, or a square table")
    table = read_table(file, axis)
    if table.kind not in ("affinity", "square"):
        raise InvalidInput(file, "must contain an affinity", "group results", "use tagalong verdict instead")
    affinity: Affinity = table.scores
    return affinity


def verdict(
    file: ResultsFile,
    targets_file: TargetsFileOption = None,
    kinds: options.KindsOption = None,
    logits: LogitsOption = False,
    budgets: options.BudgetsOption = None,
    out: options.OutOption = None,
    json: options.JsonOption = False,
    quiet: options.QuietOption = False,
) -> None:
    """Compares networks that you trained yourself, tells you whether grouping is worth it, and what to train next.

    FILE has one row per network, seed and task, with the columns network (e.g. age+ill), seed, task, val_loss and
    test_loss, as written by `tagalong plan`. Results are added to the plan in the same folder or in `--out`. Without a
    plan, the groups are chosen by validation losses and judged by test losses.

    Example:
        `tagalong verdict runs/own/plan.csv`: compare the networks, and write a report
    """
    from tagalong.report import write_report
    from tagalong.study import ExternalStudy, Results, compare_networks, has_plan, read_networks

    check_folder(out)
    check_exists(file, "a filled-in plan, or a finished run's folder or results.json")
    folder = out or (file if file.is_dir() else file.parent)
    is_run = file.is_dir() or (file.suffix.lower() == ".json" and not file.read_bytes().lstrip().startswith(b"["))
    given = {"budgets": budgets, "targets_file": targets_file, "kinds": kinds, "logits": logits or None}
    for name in (name for name, value in given.items() if value is not None and (has_plan(folder) or is_run)):
        raise InvalidInput(name, "can only be used with a table that has no plan", str(file), f"omit `{name}`")

    if has_plan(folder):
        study = ExternalStudy.load(folder)
        if file.is_file() and file.name != "results.json":
            study.tell_file(file)
        _show_next_round(study, json=json, quiet=quiet, results=study.results_so_far())
        return
    if is_run:
        with name_arguments(path=str(file)):
            results = Results.load(file)
    else:
        pairs = None if kinds is None else parse_pairs(kinds, "kinds")
        study, networks = read_networks(file, targets_file=targets_file, kinds=pairs, logits=logits)
        sizes = None if budgets is None else parse_budgets(budgets, len(study.tasks))
        results = compare_networks(study, networks, sizes, file.stem)
    if out is not None:
        if (out / "run.sqlite").exists():
            raise InvalidInput("out", "must not be the folder of a run", str(out), "its results would be overwritten")
        results.settings.setdefault("command", ["tagalong", "verdict", str(file), "--out", str(out)])
        results.save(out / "results.json")
        write_report(out)
    if json:
        print(dumps(results.to_document(), indent=1, allow_nan=False))
        return
    show_results(results)
    if out is not None and not quiet:
        print_line(screen(), f"report: {out / 'report.html'}")


def _show_next_round(study: ExternalStudy, *, json: bool, quiet: bool, results: Results | None = None) -> None:
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
        if table is not None:
            print_text(str(table))
        return
    console = screen()
    if table is not None:
        count = pluralize(len(following.networks), "network")
        place = f"round {following.round} of {following.rounds}"
        print_line(console, f"{place}: train {count} for {', '.join(following.methods)}; enter the results, then run:")
        print_line(console, f"tagalong verdict {table}")
    elif settling:
        names = [f"{'+'.join(tasks)} (seed {seed})" for tasks, seed in settling]
        print_line(console, f"To settle it, train {pluralize(len(names), 'more network')}: {first_few(names)}.")
    if results is not None and study.out is not None:
        print_line(console, f"report: {study.out / 'report.html'}")
