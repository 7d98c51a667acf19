"""Writes the tree of src/ into CONTRIBUTING.md: a line for each package and file, with the first line of its docstring.

python docs/house_tree.py          rewrites the tree
python docs/house_tree.py --check  writes nothing; fails if the tree is out of date
"""

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TREE = re.compile(r"(?<=<!-- tree -->\n).*(?=<!-- end of tree -->)", re.DOTALL)
DOOR = "__init__.py"
# Descriptions of files and folders without a docstring, by the end of their names.
KINDS = {
    "static": "Scripts and styles of the page.",
    "tables": "The truth tables.",
    "py.typed": "Tells type checkers that the package is typed.",
    "LICENSE": "Its licence.",
    ".min.js": "The drawing library, as published.",
    ".css": "The look of the page.",
    ".csv": "Data.",
    ".json": "Data.",
    ".npz": "Data.",
    ".yaml": "Data.",
}


def main(page: Path = ROOT / "CONTRIBUTING.md", source: Path = ROOT / "src") -> None:
    text = page.read_text(encoding="utf-8")
    new = with_tree(text, source)
    if new == text:
        return
    if "--check" in sys.argv[1:]:
        sys.exit(f"the tree in {page.name} is out of date: python docs/house_tree.py")
    page.write_text(new, encoding="utf-8")


def with_tree(text: str, source: Path) -> str:
    """Returns the page with the tree of this source."""
    packages = sorted(door.parent for door in source.glob(f"*/{DOOR}"))
    tree = "\n".join(line for package in packages for line in lines(package))
    return TREE.sub(lambda _: f"\n{tree}\n\n", text)


def lines(folder: Path, depth: int = 0) -> Iterator[str]:
    """Yields a nested list: the folder, described by its `__init__.py`, then its files and folders by name."""
    door = folder / DOOR
    yield item(f"**`{folder.name}/`**", describe(door if door.exists() else folder), depth)
    for path in sorted(folder.iterdir(), key=lambda path: path.name.lower()):
        if path.is_dir() and any(map(is_source, path.rglob("*"))):
            yield from lines(path, depth + 1)
        elif is_source(path) and path.name != DOOR:
            yield item(f"`{path.name}`", describe(path), depth + 1)


def is_source(path: Path) -> bool:
    """Returns whether this is a source file, and not bytecode, which stays when a module moves."""
    return path.is_file() and path.suffix != ".pyc"


def item(name: str, text: str, depth: int) -> str:
    return f"{'    ' * depth}- {name}{': ' * bool(text)}{text}"


def describe(path: Path) -> str:
    """Returns the first line of a docstring, the comment on the first line of a script, or what kind of file it is."""
    text = path.read_text(encoding="utf-8") if path.suffix in (".py", ".js") else ""
    comment = re.match(r"// (.*)", text)
    if comment:
        return comment[1]
    if path.suffix == ".py":
        return (ast.get_docstring(ast.parse(text)) or "").partition("\n")[0]
    return next((kind for end, kind in KINDS.items() if path.name.endswith(end)), "")


if __name__ == "__main__":
    main()
