"""The public API as text: what each door exports, one line per function, class and member.

    python tests/api/snapshot.py           prints the snapshot of this tree, as JSON
    python tests/api/snapshot.py --diff    shows what was added, renamed, removed or changed since the stored one

An object is identified by the door that exports it, never by the module that defines it: code may move freely behind
a door. Griffe reads the source without importing it, so optional packages do not have to be installed.
"""

from __future__ import annotations

import argparse
import ast
import json
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import griffe
from compare import SAME, STORED, Snapshot, compare, read_changes, read_snapshot

SOURCE = Path(__file__).parents[2] / "src"

# The packages and modules whose names are public. Add new doors here. Keep removed ones until a new snapshot replaces
# the stored one, since changes.yaml must account for what they exported.
DOORS = (
    "tagalong",
    "tagalong.affinity",
    "tagalong.cli",
    "tagalong.errors",
    "tagalong.files",
    "tagalong.group",
    "tagalong.group.tables",
    "tagalong.integrations.lightning",
    "tagalong.integrations.sklearn",
    "tagalong.integrations.transformers",
    "tagalong.learn",
    "tagalong.learn.balance",
    "tagalong.measure",
    "tagalong.measure.steps",
    "tagalong.paper",
    "tagalong.paper.errata",
    "tagalong.paper.figures",
    "tagalong.paper.printed",
    "tagalong.paper.theory",
    "tagalong.plugins",
    "tagalong.problems",
    "tagalong.progress",
    "tagalong.report",
    "tagalong.report.page",
    "tagalong.study",
    "tagalong.study.methods",
    "tagalong.study.search",
    "tagalong.testing",
    "tagalong.truth",
    "tagalong_paper",
    "tagalong_paper.celeba",
    "tagalong_paper.errata",
    "tagalong_paper.figures",
    "tagalong_paper.printed",
    "tagalong_paper.taskonomy",
    "tagalong_paper.theory",
    "tagalong_paper.truth",
)

# Special methods are public (`meter(closure)`, `len(table)`), except those that only Python itself calls.
_HIDDEN = {"__getstate__", "__init_subclass__", "__post_init__", "__reduce__", "__setstate__"}
_MARKS = {griffe.ParameterKind.var_positional: "*", griffe.ParameterKind.var_keyword: "**"}


def take_snapshot(doors: Sequence[str] = DOORS, source: Path = SOURCE) -> Snapshot:
    """Describes everything that the doors export.

    Args:
        doors: packages and modules by their dotted names; those that do not exist export nothing.
        source: the folder of the top-level packages.

    Returns:
        `{"door.name": description}`, and likewise for members of classes, sorted by name.
    """
    tree = _Tree(doors, source)
    homes: dict[str, list[str]] = {}
    for name, target in tree.exported.items():
        homes.setdefault(target, []).append(name)
    lines: dict[str, str] = {}
    for target, names in homes.items():
        main, *others = sorted(names, key=lambda name: (-name.count("."), name))
        lines |= dict.fromkeys(others, SAME + main)
        lines |= dict(_describe(tree, main, target))
    return dict(sorted(lines.items()))


class _Tree:
    """The source as griffe reads it, with imports followed the way Python follows them.

    Griffe itself drops `from .plan import plan`, since the submodule and its function have the same name.
    """

    def __init__(self, doors: Sequence[str], source: Path) -> None:
        self.packages: dict[str, Any] = {}
        together = griffe.ModulesCollection()
        for top in sorted({door.split(".")[0] for door in doors}):
            if (source / top).is_dir():
                self.packages[top] = griffe.load(
                    top, search_paths=[source], modules_collection=together, allow_inspection=False
                )
        self.exported = {
            f"{door}.{name}": self.home(f"{door}.{name}")
            for door in doors
            if (module := self.module(door)) is not None
            for name in _exports(module)
        }
        self.public = set(self.exported.values())

    def module(self, path: str) -> Any:
        top, *rest = path.split(".")
        found = self.packages.get(top)
        for part in rest:
            found = found.members.get(part) if found is not None else None
            found = found if found is not None and not found.is_alias and found.is_module else None
        return found

    def home(self, path: str) -> str:
        """Returns where an object is defined, as far as imports can be followed."""
        parent, _, name = path.rpartition(".")
        module = self.module(parent)
        imported = module.imports.get(name) if module is not None else None
        return path if imported in (None, path) else self.home(imported)

    def find(self, path: str) -> Any:
        """Returns the object defined at this path; None if it is not in this tree."""
        parent, _, name = path.rpartition(".")
        module = self.module(parent)
        return module.members.get(name) if module is not None else None

    def bases(self, cls: Any) -> Iterator[tuple[str, Any]]:
        """Yields the name of each base class, with the class itself if it is in this tree."""
        for base in cls.bases:
            named = base.left if isinstance(base, griffe.ExprSubscript) else base
            yield str(named).rpartition(".")[2], self.find(self.home(getattr(named, "canonical_path", str(named))))

    def public_bases(self, cls: Any) -> Iterator[str]:
        """Yields the names of public bases; a private base is replaced by its own bases."""
        for name, base in self.bases(cls):
            if base is not None and base.path not in self.public:
                yield from self.public_bases(base)
            elif name not in ("Generic", "object"):
                yield name

    def members(self, cls: Any) -> dict[str, str]:
        """Returns the public members, including those inherited from classes in this tree."""
        found: dict[str, str] = {}
        for _, base in reversed(list(self.bases(cls))):
            found |= {} if base is None else self.members(base)
        own = {name: member for name, member in cls.members.items() if not member.is_alias}
        found |= {name: "attribute" for name in _assigned(cls) if not name.startswith("_")}
        return found | {name: self.line(member) for name, member in own.items() if _is_public_member(name, member)}

    def line(self, found: Any) -> str:
        if found.is_class:
            return "class"
        if not found.is_function:
            return "property" if "property" in found.labels else "attribute"
        parameters = list(found.parameters)
        kinds = [kind for kind in ("classmethod", "staticmethod") if kind in found.labels]
        if found.parent.is_class and kinds != ["staticmethod"]:
            del parameters[0]  # self or cls
        return f"{'async ' if 'async' in found.labels else ''}{(*kinds, 'def')[0]}({self.signature(parameters)})"

    def signature(self, parameters: Sequence[griffe.Parameter]) -> str:
        words: list[str] = []
        before = None
        for parameter in parameters:
            kind = parameter.kind
            if before is griffe.ParameterKind.positional_only and kind is not before:
                words.append("/")
            bare = before not in (griffe.ParameterKind.keyword_only, griffe.ParameterKind.var_positional)
            if kind is griffe.ParameterKind.keyword_only and bare:
                words.append("*")
            default = None if kind in _MARKS else parameter.default
            words.append(_MARKS.get(kind, "") + parameter.name + ("" if default is None else f"={self.value(default)}"))
            before = kind
        return ", ".join([*words, "/"] if before is griffe.ParameterKind.positional_only else words)

    def value(self, default: Any) -> str:
        """Returns a default as text; a constant by its value, since its name is an implementation detail."""
        constant = self.find(self.home(default.canonical_path)) if isinstance(default, griffe.ExprName) else None
        if constant is None or constant.is_alias or not constant.is_attribute or constant.value is None:
            return str(default)
        return self.value(constant.value)


def _exports(module: Any) -> set[str]:
    """Returns the names in `__all__`; without it, names defined here or imported as `name as name`."""
    if module.exports is not None:
        return {str(name) for name in module.exports}
    own = {name for name, member in module.members.items() if not member.is_alias and not member.is_module}
    source = ast.parse(module.filepath.read_text(encoding="utf-8"))
    imports = [node for node in ast.walk(source) if isinstance(node, ast.ImportFrom)]
    imported = {alias.name for node in imports for alias in node.names if alias.asname == alias.name}
    return {name for name in own | imported if not name.startswith("_")}


def _is_public_member(name: str, member: Any) -> bool:
    special = name.startswith("__") and name.endswith("__")
    return (special and member.is_function and name not in _HIDDEN) or not name.startswith("_")


def _describe(tree: _Tree, name: str, target: str) -> Iterator[tuple[str, str]]:
    found = tree.find(target)
    if found is None:  # from another package, or from a multiple assignment, which griffe misses
        yield name, "attribute" if tree.module(target.rpartition(".")[0]) else f"imported from {target}"
    elif found.is_class:
        bases = list(dict.fromkeys(tree.public_bases(found)))
        yield name, f"class({', '.join(bases)})"
        if "NamedTuple" in bases:
            yield f"{name}.__init__", _fields(found)
        for member, line in tree.members(found).items():
            yield f"{name}.{member}", line
    else:
        yield name, tree.line(found)


def _assigned(cls: Any) -> set[str]:
    """Returns the attributes that methods set on `self`; griffe misses `self.a, self.b = a, b`."""
    stored = [node for node in ast.walk(ast.parse(textwrap.dedent(cls.source))) if isinstance(node, ast.Attribute)]
    return {
        node.attr
        for node in stored
        if isinstance(node.ctx, ast.Store) and isinstance(node.value, ast.Name) and node.value.id == "self"
    }


def _fields(cls: Any) -> str:
    """Returns the signature of a named tuple."""
    own = [member for member in cls.members.values() if not member.is_alias and member.is_attribute]
    fields = [member for member in own if member.annotation is not None and "property" not in member.labels]
    return f"def({', '.join(f.name if f.value is None else f'{f.name}={f.value}' for f in fields)})"


def main() -> None:
    parser = argparse.ArgumentParser(description="Prints the public API of this tree as JSON.")
    parser.add_argument("--source", type=Path, default=SOURCE, help="folder that contains the packages (default: src)")
    parser.add_argument("--diff", action="store_true", help="show differences from the stored snapshot instead")
    options = parser.parse_args()
    present = take_snapshot(source=options.source)
    if options.diff:
        print(compare(read_snapshot(STORED), present, read_changes()))
    else:
        print(json.dumps(present, indent=1, ensure_ascii=False))


if __name__ == "__main__":
    main()
