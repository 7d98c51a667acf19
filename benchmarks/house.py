"""Counts files, the code that a command runs through, imports past doors, and import cycles of a checkout. The rules:

Files are the `.py` files under `src/`. Statements are `ast.stmt` nodes, nested ones included, without docstrings. Lines
include blank ones. The importers of a file are the other files under `src/` with an import statement for it: at the
top, in a function or under TYPE_CHECKING.

Visits are counted by a profile hook in a separate process for each workload in `house_probe.WORKLOADS`.
Functions are the distinct code objects of files under `src/` that are called: `def`, lambdas and generator expressions,
but not the bodies of modules and classes, nor comprehensions, which Python 3.12 inlines. Files are those that contain
at least one of these functions; depth is the maximum number of such calls on the stack. The hook is installed after
the code to run has been imported (for a command, `tagalong.cli`). Child processes are not counted. Where behavior
depends on timing, a run may visit a function or two more or fewer.

Rooms are the packages and modules directly in `tagalong`, and its `__init__`; any other package under `src/` is one
room. The door of a room is its `__init__`. An import goes past a door if it names a module *inside* another room,
wherever the statement is; it counts once per statement and module. For clients (`tagalong_paper`, `tests`,
`benchmarks`, `examples`, `docs`) a module or name with a leading underscore is past the door too. Public modules of
`integrations` are doors, since each needs a package that may be missing. Any import of a client by `tagalong` counts.
Code in strings does not.

A cycle is a set of two or more modules that reach each other (a strongly connected component). A module reaches the
modules that it imports at run time, when every module is imported once; those that it imports inside functions; and
those that it names for `import_module`. The latter are found if it calls `import_module` or has a `__getattr__`: every
string in it that is the name of a module, absolute or relative to its package, and every module whose name starts like
an f-string passed to `import_module`. So a lazy `__init__` reaches the submodules it names. Imports under
TYPE_CHECKING, the implicit import of parent packages, and entry points do not count; `from package import submodule`
reaches the submodule only. Imports inside functions between the rooms in `house_imports.ALLOWED` are left out and
reported separately.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from house_imports import (
    ALLOWED,
    count_statements,
    find_cycles,
    find_importers,
    find_past_doors,
    read_house,
    room,
    run_time_edges,
)
from house_probe import WORKLOADS
from markdown import progress, table

ROOT = Path(__file__).resolve().parent.parent
BEFORE = ROOT / "benchmarks" / "house_523576c.json"
SHORT = 60
NO_CONTENT = ("__init__.py", "__main__.py", "_version.py")


@dataclass
class Counts:
    """The counts of a checkout; `past_doors` has the imports past doors by top-level folder."""

    tree: str
    files: int
    statements: int
    lines: int
    short: int
    short_with_content: int
    one_importer: int
    median_lines: float
    largest_lines: int
    past_doors: dict[str, int]
    cycles: list[list[str]]
    room_cycles: list[list[str]]
    allowed: list[str]
    not_imported: dict[str, str]
    visits: dict[str, dict[str, int]]


def main() -> None:
    options = arguments()
    found = count(options.tree.resolve(), visits=not options.only_read)
    columns = [found]
    if not options.alone:
        before = options.against
        columns.insert(0, load(before) if before.is_file() else count(before.resolve(), visits=not options.only_read))
    print(format_table(columns))
    if options.list:
        print("", *list_details(options.tree.resolve(), found), sep="\n")
    if options.json:
        options.json.write_text(json.dumps(asdict(found), indent=1) + "\n")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tree", type=Path, default=ROOT, help="the checkout to count; this one by default")
    parser.add_argument(
        "--against", type=Path, default=BEFORE, help="another checkout, or a file that --json wrote for one"
    )
    parser.add_argument("--alone", action="store_true", help="count one checkout, without a comparison")
    parser.add_argument("--only-read", action="store_true", help="import every module, but count no visits")
    parser.add_argument("--list", action="store_true", help="also list every import past a door and every cycle")
    parser.add_argument("--json", type=Path, help="also write the counts of --tree to this file")
    options = parser.parse_args()
    for given in (options.tree, *(() if options.alone else (options.against,))):
        if not given.exists():
            parser.error(f"{given} does not exist")
    return options


def load(path: Path) -> Counts:
    return Counts(**json.loads(path.read_text()))


def count(root: Path, visits: bool = True) -> Counts:
    """Counts a checkout; the rules are at the top of this file."""
    house = read_house(root)
    sizes = {module.path: module.lines for module in house.values()}
    short = [path for path, lines in sizes.items() if lines < SHORT]
    progress(f"{root.name}: importing every module")
    ran = probe(root, {"what": "imports", "modules": [name for name in house if not name.endswith("__main__")]})
    edges, allowed = run_time_edges(house, ran["edges"])
    return Counts(
        tree="this tree" if root == ROOT else root.name,
        files=len(house),
        statements=sum(count_statements(module.tree) for module in house.values()),
        lines=sum(sizes.values()),
        short=len(short),
        short_with_content=sum(not path.endswith(NO_CONTENT) for path in short),
        one_importer=sum(len(importers) == 1 for importers in find_importers(house).values()),
        median_lines=median(sizes.values()),
        largest_lines=max(sizes.values()),
        past_doors={part: len(found) for part, found in find_past_doors(root, house).items()},
        cycles=find_cycles(edges),
        room_cycles=find_cycles((room(a), room(b)) for a, b in edges),
        allowed=[f"{taken} ({ALLOWED[room(taken.importer.name), room(taken.module)]})" for taken in allowed],
        not_imported=ran["failed"],
        visits=count_visits(root) if visits else {},
    )


def count_visits(root: Path) -> dict[str, dict[str, int]]:
    found = {}
    for workload in WORKLOADS:
        progress(f"{root.name}: {workload}")
        found[workload] = probe(root, {"what": workload})
    return found


def probe(root: Path, request: Mapping[str, Any]) -> Any:
    """Runs `house_probe.py` with the checkout first on the path, without writing bytecode into it."""
    src = str(root / "src")
    path = os.pathsep.join(filter(None, (src, os.environ.get("PYTHONPATH"))))
    environment = os.environ | {"PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory() as folder:
        answer = Path(folder, "answer.json")
        done = subprocess.run(
            [sys.executable, str(Path(__file__).with_name("house_probe.py"))],
            input=json.dumps({**request, "src": src, "answer": str(answer)}),
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            sys.exit(f"{request['what']} failed in {root}:\n{done.stderr}")
        return json.loads(answer.read_text())


def format_table(columns: Sequence[Counts]) -> str:
    found = [cells(column) for column in columns]
    lines = [(name, *(column[name] for column in found)) for name in found[0]]
    return table(["", *(column.tree for column in columns)], lines)


def cells(counts: Counts) -> dict[str, str]:
    """Returns the label and the text of each row of the table."""
    found: dict[str, float | str] = {
        "files": counts.files,
        "statements": counts.statements,
        "lines": counts.lines,
        f"files under {SHORT} lines": counts.short,
        f"the same without {', '.join(f'`{name}`' for name in NO_CONTENT)}": counts.short_with_content,
        "files with exactly one importer": counts.one_importer,
        "lines of the median file": counts.median_lines,
        "lines of the largest file": counts.largest_lines,
    }
    for workload in WORKLOADS:
        visits = counts.visits.get(workload)
        shown = f"{visits['files']:,} / {visits['functions']:,} / {visits['depth']:,}" if visits else "–"
        found[f"{workload}: files / functions / depth"] = shown
    found |= {f"imports past doors, `{part}`": number for part, number in counts.past_doors.items()}
    found["cycles at run time"] = len(counts.cycles)
    found["modules in them"] = sum(map(len, counts.cycles))
    found["cycles between rooms"] = len(counts.room_cycles)
    found["rooms in them"] = sum(map(len, counts.room_cycles))
    found["lazy imports allowed by design"] = len(counts.allowed)
    return {name: value if isinstance(value, str) else f"{value:,g}" for name, value in found.items()}


def list_details(root: Path, counts: Counts) -> Iterator[str]:
    for found in find_past_doors(root, read_house(root)).values():
        yield from (f"past a door: {taken}" for taken in found)
    yield from (f"cycle: {' '.join(cycle)}" for cycle in counts.cycles)
    yield from (f"cycle between rooms: {' '.join(cycle)}" for cycle in counts.room_cycles)
    yield from (f"allowed: {taken}" for taken in counts.allowed)
    yield from (f"not imported: {module}: {why}" for module, why in counts.not_imported.items())


if __name__ == "__main__":
    main()
