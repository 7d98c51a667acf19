"""What `--help` says beside the options: what the program does, and examples of every command."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from typer.core import TyperCommand, TyperGroup

PURPOSE = """Which tasks should train together?

Measures who helps whom in one training run, chooses the networks to train for a budget, trains and compares them with
the alternatives, and says whether grouping is worth it.
"""

EXAMPLES: dict[str, Sequence[tuple[str, str]]] = {
    "demo": (
        ("tagalong demo", "everything, on a health survey"),
        ("tagalong demo faces --fast --out runs/try", "five tasks of drawn faces, in a folder of your choice"),
    ),
    "problems": (("tagalong problems --json", "what can be run by name, for a script"),),
    "run": (
        ("tagalong run nhanes --methods mtl,tag,hoa --budgets 2-4", "a problem by its name"),
        ("tagalong run table.csv --targets age,ill,weight --ignore id", "a table of your own"),
    ),
    "report": (
        ("tagalong report runs/table --open", "the page of a run, in the browser"),
        ("tagalong report runs/table runs/other", "two runs side by side"),
    ),
    "predict": (("tagalong predict runs/table new.csv --out answers.csv", "with the recommended networks"),),
    "group": (
        ("tagalong group affinity.csv --budget 3", "at most three networks"),
        ("tagalong group losses.csv --objective min --compare mine.yaml", "what a grouping made by hand loses"),
    ),
    "plan": (("tagalong plan affinity.json --budgets 2,3", "what to train with your own script"),),
    "verdict": (("tagalong verdict plan.csv --out runs/own", "what came of it, with a page"),),
    "leaderboard": (("tagalong leaderboard --tables nhanes,faces", "which affinity predicts what truly helps"),),
    "paper": (
        ("tagalong paper", "all experiments, in a line each"),
        ("tagalong paper selection", "the groupings that the paper printed, and the best ones"),
        ("tagalong paper main --seeds 2", "the main figure on drawn faces, in seconds"),
    ),
}

FILES = (
    ("report.html", "the page: one file that fetches nothing and can be mailed"),
    ("results.json", "every result, the table and the verdict"),
    ("affinity.json, groupings.json", "who helps whom, and the groups of each method and budget"),
    ("networks/", "the recommended networks, for `tagalong predict`"),
    ("settings.json, run.log", "what was asked, versions, seeds, and what happened when"),
    ("run.sqlite, partial/", "trained networks: the same command goes on from there"),
)
STATUS = (
    ("0", "all went well"),
    ("1", "a worker process died, or nobody reads what is printed"),
    ("2", "wrong input, said in a sentence before anything is trained"),
    ("130", "stopped by Ctrl-C; what is finished is kept, and the same command goes on"),
)
ENVIRONMENT = (
    ("COLUMNS", "how wide tables may be, instead of the width of the terminal"),
    ("NO_COLOR", "if set, nothing is coloured; files and pipes never are"),
)


def examples(command: str) -> str:
    """The examples of a command, below its options."""
    return _section("Examples" if len(EXAMPLES[command]) > 1 else "Example", EXAMPLES[command])


def manual() -> str:
    """Below the list of commands: one example of each, the files of a run, exit codes, environment."""
    first = [lines[0] for lines in EXAMPLES.values()]
    sections = (
        _section("Examples", first),
        _section("Files of a run (`--out`, by default `runs/` and its name)", FILES),
        _section("Exit status", STATUS),
        _section("Environment", ENVIRONMENT),
        "`tagalong COMMAND --help` tells more; `tagalong --install-completion` teaches your shell.",
    )
    return "\n\n".join(sections)


def _section(title: str, lines: Sequence[tuple[str, str]]) -> str:
    return f"**{title}**\n\n" + "\n".join(f"- `{word}`: {said}" for word, said in lines)


class Command(TyperCommand):
    """A command whose help shows flags without the type that they do not take."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Options and arguments."""
        return _plain(super().get_params(ctx))


class Commands(TyperGroup):
    """Several of them, likewise."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Options and arguments."""
        return _plain(super().get_params(ctx))


def _plain(parameters: Sequence[Any]) -> list[Any]:
    for parameter in parameters:
        if getattr(parameter, "is_flag", False):
            parameter.metavar = ""
    return list(parameters)
