"""What the shell offers when Tab is pressed: names, without loading what bears them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from tagalong.plugins import find_plugins

# Written down, because the rooms that know them import torch, for which nobody waits at a Tab.
PROBLEMS = ("nhanes", "faces", "qm9")
METHODS = ("mtl", "stl", "random", "cs", "tag", "hoa", "optimal", "oracle", "auto", "uw", "gradnorm", "pcgrad")
TABLES = (".csv", ".tsv", ".txt")


def complete_problems(incomplete: str) -> list[str]:
    """Problems by name, those of other packages too; and tables."""
    names = [*PROBLEMS, *find_plugins("problems"), *_files(incomplete, lambda path: path.suffix in TABLES)]
    return _starting(names, incomplete)


def complete_methods(incomplete: str) -> list[str]:
    """Methods between commas, and what may stand on top of groups after a plus."""
    before, comma, last = incomplete.rpartition(",")
    first, plus, _ = last.rpartition("+")
    names = [*METHODS, *find_plugins("methods")]
    return _starting([f"{before}{comma}{first}{plus}{name}" for name in names], incomplete)


def complete_runs(incomplete: str) -> list[str]:
    """Folders of finished runs, and folders on the way there."""
    return _starting(_files(incomplete, Path.is_dir), incomplete)


def one_of(*names: str) -> Callable[[str], list[str]]:
    """One of a few words."""

    def complete(incomplete: str) -> list[str]:
        return _starting(names, incomplete)

    return complete


def _files(incomplete: str, wanted: Callable[[Path], bool]) -> list[str]:
    folder = Path(incomplete).parent if not incomplete.endswith("/") else Path(incomplete)
    start = incomplete[: incomplete.rfind("/") + 1]
    if not folder.is_dir():
        return []
    return [f"{start}{path.name}" for path in sorted(folder.iterdir()) if wanted(path) and path.name[0] != "."]


def _starting(names: Iterable[str], incomplete: str) -> list[str]:
    return list(dict.fromkeys(name for name in names if name.startswith(incomplete)))
