"""Runs in a separate process for `house.py`: profiles one workload, or imports every module.

The checkout to count must be first on PYTHONPATH. Reads a request as JSON from standard input, and writes the answer as
JSON to the file that the request names.
"""

import sys

if __name__ == "__main__":
    sys.path.pop(0)  # this folder has a `markdown.py`, which would hide the package of that name

import builtins
import importlib
import importlib.util
import inspect
import json
import os
import random
import tempfile
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import CodeType, FrameType, ModuleType
from typing import Any

COMPREHENSIONS = ("<listcomp>", "<setcomp>", "<dictcomp>")


def main() -> None:
    request = json.load(sys.stdin)
    what = request["what"]
    answer = import_all(request["modules"]) if what == "imports" else count_visits(what, request["src"])
    Path(request["answer"]).write_text(json.dumps(answer))


def count_visits(name: str, src: str) -> dict[str, int]:
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        work = WORKLOADS[name]()
        found = inspect.getfile(sys.modules["tagalong"])
        if not found.startswith(src + os.sep):
            raise RuntimeError(f"tagalong was imported from {found}, not from {src}")
        visits = Visits(src)
        with visits:
            work()
        os.chdir(os.sep)
    return visits.counts()


class Visits:
    """A context manager that records which functions of a folder are called, and how deep.

    Args:
        src: the folder.
    """

    def __init__(self, src: str) -> None:
        self.prefix = src + os.sep
        self.visited: set[CodeType] = set()
        self.deepest = 0
        self._thread = threading.local()

    def __enter__(self) -> "Visits":
        threading.setprofile(self._hook)
        sys.setprofile(self._hook)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)
        threading.setprofile(None)

    def counts(self) -> dict[str, int]:
        files = {code.co_filename for code in self.visited}
        return {"files": len(files), "functions": len(self.visited), "depth": self.deepest}

    def _hook(self, frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event not in ("call", "return") or not code.co_filename.startswith(self.prefix) or not is_function(code):
            return
        depth = getattr(self._thread, "depth", 0) + (1 if event == "call" else -1)
        self._thread.depth = depth
        if event == "call":
            self.visited.add(code)
            self.deepest = max(self.deepest, depth)


def is_function(code: CodeType) -> bool:
    """Tells whether this is a `def`, a lambda or a generator expression, and not the body of a module or class.

    Comprehensions do not count: since Python 3.12 they are part of the function around them.
    """
    return bool(code.co_flags & inspect.CO_OPTIMIZED) and code.co_name not in COMPREHENSIONS


def run_table(*options: str) -> Callable[[], None]:
    """Prepares `tagalong run` on a table of 200 rows with three targets, with all imports done."""
    from tagalong.cli import main as tagalong

    rng = random.Random(0)
    lines = ["a,b,c,x,y,z"]
    for _ in range(200):
        x, y, z = (rng.gauss(0, 1) for _ in range(3))
        lines.append(f"{x + y:.4f},{x - y + rng.gauss(0, 1):.4f},{int(z > 0)},{x:.4f},{y:.4f},{z:.4f}")
    Path("table.csv").write_text("\n".join(lines) + "\n")
    sys.argv = ["tagalong", "run", "table.csv", "--targets", "a,b,c", "--recipe", "epochs=2", "--out", "run", *options]

    def work() -> None:
        code: Any
        try:
            code = tagalong()
        except SystemExit as exit_:
            code = exit_.code
        if code:
            raise RuntimeError(f"`{' '.join(sys.argv)}` exited with {code}")

    return work


def run_study() -> Callable[[], object]:
    """Prepares `Study.run` on arrays: three tasks, three methods, two seeds."""
    import numpy as np

    from tagalong import Problem, Study, Task
    from tagalong.learn import Recipe

    rng = np.random.default_rng(0)
    inputs = rng.normal(size=(200, 4))
    targets = inputs[:, :3] + 0.3 * rng.normal(size=(200, 3))
    tasks = [Task(name, kind="regression") for name in "abc"]
    study = Study(Problem.from_arrays(inputs, targets, tasks, recipe=Recipe(epochs=2)), out="run")
    return lambda: study.run(methods=["mtl", "stl", "tag"], budgets=[2], seeds=2)


def measured_call() -> Callable[[], object]:
    """Prepares the second measured call of a meter; the first also checks the closure."""
    import torch

    from tagalong import AffinityMeter

    torch.manual_seed(0)
    encoder, heads, rows = torch.nn.Linear(4, 8), torch.nn.Linear(8, 3), torch.randn(16, 4)
    optimizer = torch.optim.SGD([*encoder.parameters(), *heads.parameters()], lr=0.1)
    meter = AffinityMeter(shared=encoder, optimizer=optimizer, every=1)

    def losses() -> dict[str, torch.Tensor]:
        return dict(zip("abc", heads(encoder(rows)).square().mean(0), strict=True))

    torch.stack([*meter(losses).values()]).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    return lambda: meter(losses)


def select() -> Callable[[], object]:
    """Prepares `select_groups` for three networks on a 9×9 array."""
    import numpy as np

    from tagalong import select_groups

    scores = np.random.default_rng(0).standard_normal((9, 9))
    return lambda: select_groups(scores, 3)


METHODS = ("--methods", "mtl,stl,tag", "--budgets", "2", "--seeds", "2")
WORKLOADS: Mapping[str, Callable[[], Callable[[], object]]] = {
    "`tagalong run table.csv`": run_table,
    "`tagalong run table.csv --methods mtl,stl,tag`": lambda: run_table(*METHODS),
    "`Study.run`": run_study,
    "a measured call": measured_call,
    "`select_groups`": select,
}


def import_all(modules: Sequence[str]) -> dict[str, Any]:
    """Imports the modules one after another in this process.

    Returns:
        `edges`: pairs [importer, imported] at run time; `failed`: the error for each module that cannot be imported.
    """
    known = frozenset(modules)
    edges: set[tuple[str, str]] = set()
    plain_import, plain_import_module = builtins.__import__, importlib.import_module

    def recorded_import(
        name: str,
        globals: Mapping[str, Any] | None = None,  # noqa: A002
        locals: Mapping[str, Any] | None = None,  # noqa: A002
        fromlist: Sequence[str] | None = (),
        level: int = 0,
    ) -> ModuleType:
        found = plain_import(name, globals, locals, fromlist or (), level)
        if globals and globals.get("__name__") in known:
            base = importlib.util.resolve_name("." * level + name, globals["__package__"]) if level else name
            edges.update((globals["__name__"], target) for target in _targets(base, fromlist or (), known))
        return found

    def recorded_import_module(name: str, package: str | None = None) -> ModuleType:
        importer = sys._getframe(1).f_globals.get("__name__", "")
        found = plain_import_module(name, package)
        if importer in known and found.__name__ in known:
            edges.add((importer, found.__name__))
        return found

    builtins.__import__, importlib.import_module = recorded_import, recorded_import_module
    try:
        failed = {module: why for module in sorted(known) if (why := _try_import(module))}
    finally:
        builtins.__import__, importlib.import_module = plain_import, plain_import_module
    return {"edges": sorted(edges), "failed": failed}


def _try_import(module: str) -> str:
    """Imports a module; returns the error message if a package that it needs is missing."""
    try:
        importlib.import_module(module)
    except ImportError as error:
        return str(error) or "ImportError"
    return ""


def _targets(base: str, fromlist: Iterable[str], known: frozenset[str]) -> set[str]:
    """Returns the modules that an import statement names: the submodule if there is one, else its package."""
    found = {
        f"{base}.{name}"
        for name in fromlist
        if f"{base}.{name}" in known and isinstance(getattr(sys.modules[base], name, None), ModuleType)
    }
    names_left = len(found) < len(tuple(fromlist)) or not fromlist
    return found | ({base} & known if names_left else set())


if __name__ == "__main__":
    main()
