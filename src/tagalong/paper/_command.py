"""`tagalong paper`: what the paper printed, computed again."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from tagalong.cli import Command, Commands, JsonOption, OutOption, QuietOption, check_folder, put, say, screen, table

from ._command_experiments import training_command
from ._experiments import EXPERIMENTS, run_experiment

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rich.table import Table

    from tagalong.group import Group

    from ._report import Report
    from ._selection import Selection

paper = typer.Typer(name="paper", cls=Commands, invoke_without_command=True, rich_markup_mode="markdown")


@paper.callback()
def _parts(context: typer.Context) -> None:
    """Computes and trains again what the paper printed (Fifty et al., NeurIPS 2021), and says where it differs.

    Examples:
        `tagalong paper`: all experiments, in a line each
        `tagalong paper selection`: the groupings that the paper printed, and the best ones
        `tagalong paper main --seeds 2`: the main figure on drawn faces, in seconds
    """
    if context.invoked_subcommand is None:
        console, width = screen(), max(len(experiment.name) for experiment in EXPERIMENTS)
        for experiment in EXPERIMENTS:
            start = f"tagalong paper {experiment.name:<{width}}  "
            say(console, start + experiment.summary, hang=len(start))


@paper.command(cls=Command, epilog="Example: `tagalong paper selection --json`")
def selection(out: OutOption = None, json: JsonOption = False, quiet: QuietOption = False) -> None:
    """The 15 groupings that the paper prints beside the best ones for the published matrices."""
    from json import dumps

    from ._command_page import show_files
    from ._selection import selections

    check_folder(out)
    found = selections()
    text = dumps({"selections": [_document(one) for one in found]}, indent=1, allow_nan=False)
    file = None if out is None else _saved(text, out)
    if json:
        print(text)
        return
    _show(found, quiet)
    if file is not None and not quiet:
        show_files(screen(), [file])


def _saved(text: str, out: Path) -> Path:
    from tagalong.affinity._atomic import write_atomic

    out.mkdir(parents=True, exist_ok=True)
    write_atomic(out / "selection.json", (text + "\n").encode())
    return out / "selection.json"


@paper.command(cls=Command, epilog="Example: `tagalong paper errata --json`")
def errata(out: OutOption = None, json: JsonOption = False, quiet: QuietOption = False) -> None:
    """Every disagreement with the printed numbers, and why."""
    check_folder(out)
    _computed(run_experiment("errata"), out, json, quiet)


@paper.command(cls=Command, epilog="Example: `tagalong paper theory --json`")
def theory(out: OutOption = None, json: JsonOption = False, quiet: QuietOption = False) -> None:
    """Lemma 1 and each printed version of Proposition 1 put to the test, and the counterexample's four panels."""
    check_folder(out)
    _computed(run_experiment("theory"), out, json, quiet)


def _computed(report: Report, out: Path | None, json: bool, quiet: bool) -> None:
    """What nothing was trained for; files are only written where a folder is named."""
    from ._command_page import show_report

    files = [] if out is None else report.save(out)
    if json:
        from json import dumps

        print(dumps(report.to_document(), indent=1, allow_nan=False))
        return
    show_report(report, files, quiet)


for _experiment in EXPERIMENTS:
    if _experiment.trains:
        _help = f"{_experiment.summary[0].upper()}{_experiment.summary[1:]}".rstrip(".?")
        paper.command(
            _experiment.name,
            cls=Command,
            help=_help + ("?" if _experiment.summary.endswith("?") else "."),
            epilog=f"Example: `tagalong paper {_experiment.name} --seeds 1 --out runs/try`",
        )(training_command(_experiment))


def _show(found: tuple[Selection, ...], quiet: bool) -> None:
    console = screen()
    for problem in () if quiet else dict.fromkeys(one.problem for one in found):
        say(console, f"{problem.dataset}, {problem.method}")
        put(console, _table([one for one in found if one.problem == problem]))
        console.print()
    for one in found:
        for remark in one.remarks:
            say(console, f"* {one.problem.dataset}, {one.problem.method}, {one.budget} networks: {remark}")
    same = [one for one in found if one.same and one.unique]
    say(console, f"{len(same)} of {len(found)} printed groupings are the optimum, proven and unique.")
    if not quiet:
        say(console, "Totals are sums of scores in the published matrices; +task is trained along as a helper.")


def _table(found: list[Selection]) -> Table:
    made = table("budget", "printed", "total", "best", "total ", numbers=("budget", "total", "total "))
    for one in found:
        printed = "\n".join(_short(frozenset(group.results), group.bold) for group in one.printed.groups)
        best = "\n".join(_short(group.trains, group.serves) for group in _in_order(one))
        budget = f"{'* ' if one.remarks else ''}{one.budget}"
        made.add_row(budget, printed, _number(one.given.value), best, _number(one.best.value))
    return made


def _in_order(one: Selection) -> Iterable[Group]:
    """The best networks in the order of the printed ones that they are most like."""
    order = [set(group.results) for group in one.printed.groups]
    place = {group: min(range(len(order)), key=lambda i: len(order[i] ^ group.trains)) for group in one.best.groups}
    return sorted(one.best.groups, key=lambda group: place[group])


def _short(trains: frozenset[str], serves: frozenset[str]) -> str:
    helpers = sorted(trains - serves)
    return " ".join([*sorted(serves), *(f"+{task}" for task in helpers)])


def _number(value: float) -> str:
    return f"{value:.3f}" if abs(value) >= 100 else f"{value:.4f}"


def _document(one: Selection) -> dict[str, Any]:
    return {
        "dataset": one.problem.dataset,
        "method": one.problem.method,
        "budget": one.budget,
        "objective": one.best.objective,
        "printed": {
            "groups": [{"trains": sorted(g.results), "bold": sorted(g.bold)} for g in one.printed.groups],
            "value": one.given.value,
            "total_test_result": one.printed.total,
        },
        "best": {
            "groups": [{"trains": sorted(g.trains), "serves": sorted(g.serves)} for g in one.best.groups],
            "value": one.best.value,
            "status": one.best.status,
            "unique": one.unique,
        },
        "same": one.same,
        "remarks": one.remarks,
    }
