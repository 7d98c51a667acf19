"""Finds the imports between our modules, those that go past doors, and import cycles (see `house.py` for the rules)."""

import ast
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.util import resolve_name
from pathlib import Path

MAIN = "tagalong"
CLIENTS = ("tests", "benchmarks", "examples", "docs")
ALLOWED = {
    ("affinity", "group"): "`Affinity.settled` selects groups",
    ("study", "report"): "`Study.run` writes the report at the end",
}


@dataclass
class Module:
    """A Python file.

    Attributes:
        name: the dotted name; for files outside `src/`, the path.
        package: the package that relative imports start from.
        path: the path relative to the root of the checkout.
    """

    name: str
    package: str
    path: str
    text: str
    tree: ast.Module = field(init=False)

    def __post_init__(self) -> None:
        self.tree = ast.parse(self.text)

    @property
    def lines(self) -> int:
        return len(self.text.splitlines())


@dataclass(frozen=True)
class Import:
    """The names that one import statement imports from one module.

    Attributes:
        names: the imported names; empty if the module itself is imported.
        where: "top", "function" or "typing".
    """

    importer: Module = field(compare=False)
    line: int
    module: str
    names: tuple[str, ...]
    where: str

    def __str__(self) -> str:
        return f"{self.importer.path}:{self.line}: {self.module} {', '.join(self.names)}".rstrip()


def read_house(root: Path) -> dict[str, Module]:
    """Reads the modules of all packages under `src/`, by name."""
    found = {}
    for path in sorted((root / "src").rglob("*.py")):
        parts = path.relative_to(root / "src").with_suffix("").parts
        package = ".".join(parts[:-1])
        name = package if parts[-1] == "__init__" else ".".join(parts)
        found[name] = Module(name, package, path.relative_to(root).as_posix(), path.read_text(encoding="utf-8"))
    return found


def read_client(root: Path, part: str) -> list[Module]:
    """Reads the files of a folder outside `src/`, which have no relative imports."""
    paths = [path.relative_to(root).as_posix() for path in sorted((root / part).rglob("*.py"))]
    return [Module(path, "", path, (root / path).read_text(encoding="utf-8")) for path in paths]


def count_statements(tree: ast.Module) -> int:
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    nodes = list(ast.walk(tree))
    docstrings = sum(isinstance(node, documented) and ast.get_docstring(node) is not None for node in nodes)
    return sum(isinstance(node, ast.stmt) for node in nodes) - docstrings


def imports(module: Module, house: Mapping[str, Module]) -> Iterator[Import]:
    """Yields what a file imports from our packages, in source order."""
    for node, where in import_nodes(module.tree, "top"):
        taken: dict[str, list[str]] = {}
        if isinstance(node, ast.Import):
            taken = {alias.name: [] for alias in node.names}
        else:
            base = "." * node.level + (node.module or "")
            base = resolve_name(base, module.package) if node.level and module.package else base
            for alias in node.names:
                inside = f"{base}.{alias.name}"
                if inside in house and not (base in house and alias.name in exported(house[base])):
                    taken.setdefault(inside, [])
                else:
                    taken.setdefault(base, []).append(alias.name)
        yield from (Import(module, node.lineno, name, tuple(taken[name]), where) for name in taken if name in house)


def import_nodes(node: ast.AST, where: str) -> Iterator[tuple[ast.Import | ast.ImportFrom, str]]:
    if isinstance(node, ast.Import | ast.ImportFrom):
        yield node, where
    elif isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING"):
        for guarded in node.body:
            yield from import_nodes(guarded, "typing")
        for other in node.orelse:
            yield from import_nodes(other, where)
    else:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and where == "top":
            where = "function"
        for child in ast.iter_child_nodes(node):
            yield from import_nodes(child, where)


def exported(module: Module) -> set[str]:
    """Returns the names that a module binds, lazily or not, to something other than a submodule.

    For example, `study.plan` may be a function and a submodule.
    """
    names: set[str] = set()
    for node in ast.walk(module.tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            names.update(alias.asname or alias.name for alias in node.names)
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Dict):
            names.update(key.value for key in node.keys if isinstance(key, ast.Constant) and isinstance(key.value, str))
    return names


def named_modules(module: Module, house: Mapping[str, Module]) -> set[str]:
    """Returns the modules that strings name for `import_module`; empty if the module imports nothing by name."""
    nodes = list(ast.walk(module.tree))
    calls = [node for node in nodes if isinstance(node, ast.Call) and node.args and is_import(node.func)]
    if not calls and "__getattr__" not in top_level_names(module.tree):
        return set()
    strings = {name for node in nodes for name in absolute_names(string_value(node), module.package)}
    strings.discard(module.package)  # more likely an entry point group
    for call in calls:
        first, *others = call.args
        package = string_value(others[0]) if others else ""
        if isinstance(first, ast.JoinedStr):
            starts = tuple(absolute_names(string_value(first.values[0]), package or module.package))
            strings |= {name for name in house if starts and name.startswith(starts)}
        strings |= absolute_names(string_value(first), package or module.package)
    return strings & house.keys() - {module.name}


def is_import(function: ast.expr) -> bool:
    return ast.unparse(function) in ("import_module", "importlib.import_module", "__import__")


def top_level_names(tree: ast.Module) -> set[str]:
    """Returns the functions and variables at the top level of a module."""
    functions = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    targets = [target for node in tree.body if isinstance(node, ast.Assign) for target in node.targets]
    return functions | {node.id for target in targets for node in ast.walk(target) if isinstance(node, ast.Name)}


def string_value(node: ast.AST) -> str:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def absolute_names(name: str, package: str) -> set[str]:
    """Returns the modules that a name may refer to, absolute or within a package; empty if it is not a dotted name."""
    found = {name}
    for relative in (name, f".{name}"):  # tables often omit the leading dot, which f".{table[name]}" adds
        if relative.startswith("."):
            with suppress(ImportError):  # more dots than packages
                found.add(resolve_name(relative, package))
    return found if name.replace(".", "").isidentifier() else set()


def find_importers(house: Mapping[str, Module]) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {name: set() for name in house}
    for module in house.values():
        for taken in imports(module, house):
            found[taken.module] |= {module.name} - {taken.module}
    return found


def room(name: str) -> str:
    package, _, inside = name.partition(".")
    return inside.partition(".")[0] or package if package == MAIN else package


def find_past_doors(root: Path, house: Mapping[str, Module]) -> dict[str, list[Import]]:
    parts = {"src": list(house.values()), **{part: read_client(root, part) for part in CLIENTS}}
    return {
        part: [taken for module in modules for taken in imports(module, house) if is_past_door(taken, house)]
        for part, modules in parts.items()
    }


def is_past_door(taken: Import, house: Mapping[str, Module]) -> bool:
    parts = taken.module.split(".")
    importer = taken.importer.name
    if importer in house and room(importer) == room(taken.module):
        return False
    private = any(name.startswith("_") and not name.startswith("__") for name in (*parts, *taken.names))
    inside = len(parts) > 2 and not (parts[:2] == [MAIN, "integrations"] and len(parts) == 3 and not private)
    if importer in house and importer.partition(".")[0] == MAIN:
        return inside or parts[0] != MAIN
    return inside or private


def run_time_edges(
    house: Mapping[str, Module], ran: Iterable[Sequence[str]]
) -> tuple[set[tuple[str, str]], list[Import]]:
    """Returns pairs of a module and one that it reaches, and the allowed imports that are not among them."""
    edges = {(importer, imported) for importer, imported in ran}
    lazy = []
    for module in house.values():
        edges |= {(module.name, name) for name in named_modules(module, house)}
        for taken in imports(module, house):
            if taken.where == "function" and (room(module.name), room(taken.module)) in ALLOWED:
                lazy.append(taken)
            elif taken.where != "typing":
                edges.add((module.name, taken.module))
    return edges, [taken for taken in lazy if (taken.importer.name, taken.module) not in edges]


def find_cycles(edges: Iterable[tuple[str, str]]) -> list[list[str]]:
    """Returns the sets of two or more nodes that reach each other, largest first."""
    next_to: dict[str, set[str]] = {}
    for start, end in edges:
        next_to.setdefault(start, set()).update({end} - {start})
    reached = {start: reachable(start, next_to) for start in next_to}
    found = {frozenset(end for end in ends if start in reached.get(end, ())) for start, ends in reached.items()}
    return sorted((sorted(cycle) for cycle in found if cycle), key=lambda cycle: (-len(cycle), cycle))


def reachable(start: str, next_to: Mapping[str, Iterable[str]]) -> set[str]:
    found: set[str] = set()
    waiting = [start]
    while waiting:
        new = set(next_to.get(waiting.pop(), ())) - found
        found |= new
        waiting.extend(new)
    return found
