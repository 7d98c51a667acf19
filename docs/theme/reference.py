"""The reference: a page for each room with everything that it exports, by docstrings."""

import ast
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

SOURCE = Path(__file__).parents[2] / "src" / "tagalong"
ROOMS = (
    *("affinity", "measure", "group", "learn", "study", "problems", "report", "integrations"),
    *("paper", "truth", "cli", "plugins", "testing"),
)
ADAPTERS = ("lightning", "sklearn", "transformers")


def on_files(files: Files, config: Any) -> Files:
    pages = {"index": front_page()} | {room: room_page(room) for room in ROOMS}
    for name, content in pages.items():
        files.append(File.generated(config, f"api/{name}.md", content=content))
    return files


def front_page() -> str:
    """The names that `tagalong` itself exports, and the rooms."""
    names = exported(SOURCE / "__init__.py")
    homes = {name: room for room in ROOMS for name in exported(door(room))}
    page = ["# tagalong", docstring(SOURCE / "__init__.py"), "| `from tagalong import …` | room |\n| --- | --- |"]
    page[-1] += "".join(f"\n| [`{n}`][tagalong.{homes[n]}.{n}] | `{homes[n]}` |" for n in sorted(names) if n in homes)
    questions = [f"| [`tagalong.{r}`]({r}.md) | {docstring(door(r)).splitlines()[0]} |" for r in ROOMS]
    return "\n\n".join([*page, "## Rooms", "\n".join(["| room | what it is about |", "| --- | --- |", *questions])])


def room_page(room: str) -> str:
    """What `tagalong` itself exports comes first; the rest by name."""
    first = exported(SOURCE / "__init__.py")
    page = [f"# {room}", docstring(door(room))]
    names = [f"{room}.{name}" for name in exported(door(room)) or defined(door(room))]
    if room == "integrations":
        names = [f"{room}.{part}.{name}" for part in ADAPTERS for name in defined(SOURCE / room / f"{part}.py")]
    names.sort(key=lambda name: (name.split(".")[-1] not in first, name.lower()))
    return "\n\n".join([*page, *(f"::: tagalong.{name}" for name in names)])


def door(room: str) -> Path:
    """The file that says what a room offers."""
    folder = SOURCE / room
    return folder / "__init__.py" if folder.is_dir() else SOURCE / f"{room}.py"


def exported(module: Path) -> list[str]:
    """The names that a module imports as themselves, those on demand included."""
    imports = [
        node for node in ast.walk(ast.parse(module.read_text(encoding="utf-8"))) if isinstance(node, ast.ImportFrom)
    ]
    return [alias.name for node in imports for alias in node.names if alias.name == alias.asname]


def defined(module: Path) -> list[str]:
    """The public classes and functions of a module."""
    body = ast.parse(module.read_text(encoding="utf-8")).body
    kinds = (ast.ClassDef, ast.FunctionDef)
    return [node.name for node in body if isinstance(node, kinds) and not node.name.startswith("_")]


def docstring(module: Path) -> str:
    return ast.get_docstring(ast.parse(module.read_text(encoding="utf-8"))) or ""
