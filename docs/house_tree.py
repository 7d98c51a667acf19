"""Writes the tree of src/ into CONTRIBUTING.md: a line for each package and file, from its docstring.

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
INIT = "__init__.py"
# Descriptions of files and folders without a docstring, by the end of their names.
DESCRIPTIONS = {
    "static": "Scripts and styles of the page.",
    "tables": "The truth tables.",
    "py.typed": "Tells type checkers that the package is typed.",
    "LICENSE": "Its license.",
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
    packages = sorted(init.parent for init in source.glob(f"*/{INIT}"))
    tree = "\n".join(line for package in packages for line in list_folder(package))
    return TREE.sub(lambda _: f"\n{tree}\n\n", text)


def list_folder(folder: Path, depth: int = 0) -> Iterator[str]:
    """Yields a nested list: the folder, described by its `__init__.py`, then its content in the order of `ls`."""
    init = folder / INIT
    yield format_item(f"**`{folder.name}/`**", describe(init if init.exists() else folder), depth)
    for path in sorted(folder.iterdir(), key=lambda path: path.name.lower()):
        if path.is_dir() and any(map(is_source, path.rglob("*"))):
            yield from list_folder(path, depth + 1)
        elif is_source(path) and path.name != INIT:
            yield format_item(f"`{path.name}`", describe(path), depth + 1)


def is_source(path: Path) -> bool:
    """Tells whether this is a source file; compiled files stay behind when a module moves."""
    return path.is_file() and path.suffix != ".pyc"


def format_item(name: str, text: str, depth: int) -> str:
    return f"{'    ' * depth}- {name}{': ' * bool(text)}{text}"


def describe(path: Path) -> str:
    """Returns the first line of a module's docstring or of a script's comment, or the description of other files."""
    text = path.read_text(encoding="utf-8") if path.suffix in (".py", ".js") else ""
    comment = re.match(r"// (.*)", text)
    if comment:
        return comment[1]
    if path.suffix == ".py":
        return (ast.get_docstring(ast.parse(text)) or "").partition("\n")[0]
    return next((text for end, text in DESCRIPTIONS.items() if path.name.endswith(end)), "")


if __name__ == "__main__":
    main()
