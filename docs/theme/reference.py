"""Adds the API reference: a page for each package of `tagalong` and `tagalong_paper`, made from docstrings."""

import ast
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

SOURCE = Path(__file__).parents[2] / "src"
PACKAGES = {
    package: f"tagalong.{package}"
    for package in (
        *("affinity", "measure", "group", "learn", "study", "problems", "report", "integrations"),
        *("cli", "registry", "errors", "files", "tabular", "progress", "versions"),
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
    pages = {"index": front_page()} | {page: module_page(module) for page, module in (PACKAGES | PAPER).items()}
    for name, content in pages.items():
        files.append(File.generated(config, f"api/{name}.md", content=content))
    return files


def front_page() -> str:
    """Returns the first page: the names that `tagalong` itself exports, its packages, and the paper's packages."""
    names = exported("tagalong")
    packages = {name: package for package, module in PACKAGES.items() for name in exported(module) or defined(module)}
    page = ["# tagalong", docstring("tagalong"), "| `from tagalong import …` | package |\n| --- | --- |"]
    page[-1] += "".join(
        f"\n| [`{n}`][tagalong.{packages[n]}.{n}] | `{packages[n]}` |" for n in sorted(names) if n in packages
    )
    return "\n\n".join([*page, "## Packages", module_table(PACKAGES), "## The paper", module_table(PAPER)])


def module_table(pages: dict[str, str]) -> str:
    """Returns a table of modules with the first line of their docstrings."""
    rows = [f"| [`{module}`]({page}.md) | {docstring(module).splitlines()[0]} |" for page, module in pages.items()]
    return "\n".join(["| module | content |", "| --- | --- |", *rows])


def module_page(module: str) -> str:
    """Returns the page of a module; names that `tagalong` itself exports come first, the others by name."""
    first = exported("tagalong")
    page = [f"# {module.removeprefix('tagalong.')}", docstring(module)]
    names = [f"{module}.{name}" for name in exported(module) or defined(module)]
    if module == "tagalong.integrations":
        names = [f"{module}.{part}.{name}" for part in ADAPTERS for name in defined(f"{module}.{part}")]
    names.sort(key=lambda name: (name.split(".")[-1] not in first, name.lower()))
    return "\n\n".join([*page, *(f"::: {name}" for name in names)])


def module_file(module: str) -> Path:
    """Returns the file that defines what a module exports."""
    path = SOURCE.joinpath(*module.split("."))
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def exported(module: str) -> list[str]:
    """Returns the names that a module re-exports, including those imported on demand."""
    imports = [
        node
        for node in ast.walk(ast.parse(module_file(module).read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom)
    ]
    return [alias.name for node in imports for alias in node.names if alias.name == alias.asname]


def defined(module: str) -> list[str]:
    """Returns the public classes and functions of a module."""
    body = ast.parse(module_file(module).read_text(encoding="utf-8")).body
    kinds = (ast.ClassDef, ast.FunctionDef)
    return [node.name for node in body if isinstance(node, kinds) and not node.name.startswith("_")]


def docstring(module: str) -> str:
    return ast.get_docstring(ast.parse(module_file(module).read_text(encoding="utf-8"))) or ""
