"""The reference: a page for each room of `tagalong` and each door of `tagalong_paper`, made from docstrings."""

import ast
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

SOURCE = Path(__file__).parents[2] / "src"
ROOMS = {
    room: f"tagalong.{room}"
    for room in (
        *("affinity", "measure", "group", "learn", "study", "problems", "report", "integrations"),
        *("cli", "plugins", "testing", "errors", "files", "tabular", "progress", "versions"),
    )
}
PAPER = {
    "paper": "tagalong_paper",
    "truth": "tagalong_paper.truth",
    "celeba": "tagalong_paper.celeba",
    "taskonomy": "tagalong_paper.taskonomy",
}
ADAPTERS = ("lightning", "sklearn", "transformers")


def on_files(files: Files, config: Any) -> Files:
    pages = {"index": front_page()} | {page: module_page(module) for page, module in (ROOMS | PAPER).items()}
    for name, content in pages.items():
        files.append(File.generated(config, f"api/{name}.md", content=content))
    return files


def front_page() -> str:
    """The names that `tagalong` itself exports, the rooms, and the paper's packages."""
    names = exported(door("tagalong"))
    homes = {name: room for room, module in ROOMS.items() for name in exported(door(module)) or defined(door(module))}
    page = ["# tagalong", docstring(door("tagalong")), "| `from tagalong import …` | room |\n| --- | --- |"]
    page[-1] += "".join(f"\n| [`{n}`][tagalong.{homes[n]}.{n}] | `{homes[n]}` |" for n in sorted(names) if n in homes)
    return "\n\n".join([*page, "## Rooms", questions(ROOMS), "## The paper", questions(PAPER)])


def questions(pages: dict[str, str]) -> str:
    """A table of modules, with the first line that each says about itself."""
    rows = [
        f"| [`{module}`]({page}.md) | {docstring(door(module)).splitlines()[0]} |" for page, module in pages.items()
    ]
    return "\n".join(["| module | what it is about |", "| --- | --- |", *rows])


def module_page(module: str) -> str:
    """What `tagalong` itself exports comes first; the rest by name."""
    first = exported(door("tagalong"))
    page = [f"# {module.removeprefix('tagalong.')}", docstring(door(module))]
    names = [f"{module}.{name}" for name in exported(door(module)) or defined(door(module))]
    if module == "tagalong.integrations":
        names = [f"{module}.{part}.{name}" for part in ADAPTERS for name in defined(door(f"{module}.{part}"))]
    names.sort(key=lambda name: (name.split(".")[-1] not in first, name.lower()))
    return "\n\n".join([*page, *(f"::: {name}" for name in names)])


def door(module: str) -> Path:
    """The file that says what a module offers."""
    path = SOURCE.joinpath(*module.split("."))
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


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
