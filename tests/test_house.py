"""The statistics of the source tree, on checkouts small enough to count by hand."""

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent
BENCHMARKS = ROOT / "benchmarks"


@pytest.fixture
def imports(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import house_imports

    return house_imports


@pytest.fixture
def probe(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import house_probe

    return house_probe


def write_checkout(root: Path, files: Mapping[str, str]) -> Path:
    """Writes a checkout with these files under `src/tagalong`; paths from its root begin with a slash."""
    for name, text in {"__init__.py": "", **files}.items():
        path = root / name[1:] if name.startswith("/") else root / "src" / "tagalong" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def count(root: Path, *options: str) -> dict[str, Any]:
    out = root / "counts.json"
    command = [sys.executable, str(BENCHMARKS / "house.py"), "--tree", str(root), "--only-read", "--json", str(out)]
    done = subprocess.run([*command, *options], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return {**json.loads(out.read_text()), "printed": done.stdout}


def doors(imports: ModuleType, root: Path) -> dict[str, list[str]]:
    found = imports.find_past_doors(root, imports.read_house(root))
    return {
        part: [f"{taken.importer.path}: {taken.module}" for taken in taken_there] for part, taken_there in found.items()
    }


def cycles(imports: ModuleType, root: Path) -> list[list[str]]:
    edges, _ = imports.run_time_edges(imports.read_house(root), [])
    found: list[list[str]] = imports.find_cycles(edges)
    return found


def test_statements_are_counted_without_docstrings(imports: ModuleType) -> None:
    text = '"""Top."""\nx = 1\ndef f():\n    """Inner."""\n    if x:\n        return 2\n'
    text += 'class C:\n    "Own."\n    "no docstring"\n'
    assert imports.count_statements(imports.Module("m", "", "m.py", text).tree) == 6


def test_files_lines_and_importers_are_counted(tmp_path: Path) -> None:
    files = {
        "attic/__init__.py": "from ._box import Box as Box\n",
        "attic/_box.py": "class Box: ...\n",
        "attic/_trunk.py": "\n" * 100,
        "cellar.py": "from typing import TYPE_CHECKING\n\nif TYPE_CHECKING:\n    from .attic import Box\n",
        "kitchen.py": "def cook():\n    from tagalong.attic import Box\n",
    }
    found = count(write_checkout(tmp_path, files), "--alone")
    assert (found["files"], found["lines"], found["largest_lines"], found["median_lines"]) == (6, 108, 100, 1.5)
    assert (found["short"], found["short_with_content"]) == (5, 3)
    assert found["one_importer"] == 1  # the box; the attic has two importers, the others none
    assert found["visits"] == {}


def test_an_import_of_a_module_inside_another_room_goes_past_its_door(imports: ModuleType, tmp_path: Path) -> None:
    files = {
        "_names.py": "",
        "attic/__init__.py": "from ._box import Box as Box\nfrom ._box import plan as plan\n",
        "attic/_box.py": "from tagalong._names import _shorten\nfrom . import _trunk\nfrom .plan import x\n",
        "attic/_trunk.py": "",
        "attic/plan.py": "",
        "cellar/__init__.py": "from tagalong.attic import Box, plan\nimport tagalong.attic\n",
        "cellar/_absolute.py": "from tagalong.attic._box import Box, plan\n",
        "cellar/_relative.py": "from ..attic import Box, _trunk\n",
        "cellar/_plain.py": "import tagalong.attic._box as box\n",
        "cellar/_lazy.py": "def f():\n    from tagalong.attic.plan import x\n",
        "cellar/_typed.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from ..attic._box import Box\n",
    }
    assert doors(imports, write_checkout(tmp_path, files))["src"] == [
        "src/tagalong/cellar/_absolute.py: tagalong.attic._box",
        "src/tagalong/cellar/_lazy.py: tagalong.attic.plan",
        "src/tagalong/cellar/_plain.py: tagalong.attic._box",
        "src/tagalong/cellar/_relative.py: tagalong.attic._trunk",
        "src/tagalong/cellar/_typed.py: tagalong.attic._box",
    ]


def test_clients_import_nothing_private(imports: ModuleType, tmp_path: Path) -> None:
    files = {
        "_names.py": "",
        "_version.py": "",
        "files.py": "import tagalong_paper\n",
        "attic/__init__.py": "",
        "attic/box.py": "",
        "integrations/__init__.py": "",
        "integrations/loops.py": "",
        "/src/tagalong_paper/__init__.py": "from tagalong import __version__\nfrom .deep._inner import x\n",
        "/src/tagalong_paper/deep/__init__.py": "from .. import _private\nfrom tagalong._names import shorten\n",
        "/src/tagalong_paper/deep/_inner.py": "from tagalong.files import read\n",
        "/src/tagalong_paper/_private.py": "",
        "/tests/attic/test_box.py": "from tagalong.attic import Box, _hidden\nimport tagalong.attic.box\n",
        "/tests/test_loops.py": "from tagalong.integrations.loops import Loop\nfrom tagalong_paper import _private\n",
        "/docs/images/figure.py": "from tagalong.attic import Box\nfrom tagalong import attic, files\n",
    }
    found = doors(imports, write_checkout(tmp_path, files))
    assert found == {
        "src": ["src/tagalong/files.py: tagalong_paper", "src/tagalong_paper/deep/__init__.py: tagalong._names"],
        "tests": [
            "tests/attic/test_box.py: tagalong.attic",
            "tests/attic/test_box.py: tagalong.attic.box",
            "tests/test_loops.py: tagalong_paper._private",
        ],
        "benchmarks": [],
        "examples": [],
        "docs": [],
    }


def test_imports_in_functions_close_cycles_and_those_for_types_do_not(imports: ModuleType, tmp_path: Path) -> None:
    files = {
        "a.py": "from . import b\n",
        "b.py": "def f():\n    from .c import x\n",
        "c.py": "class C:\n    from tagalong import a\n",
        "d.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from .e import x\nelse:\n    x = 1\n",
        "e.py": "import typing\nfrom .d import x\nif typing.TYPE_CHECKING:\n    from .a import b\n",
    }
    assert cycles(imports, write_checkout(tmp_path, files)) == [["tagalong.a", "tagalong.b", "tagalong.c"]]


@pytest.mark.parametrize(
    "text",
    [
        "from importlib import import_module\nimport_module('tagalong.attic')\n",
        "import importlib\ndef f():\n    importlib.import_module('..attic', __package__)\n",
        "import importlib\ndef f():\n    importlib.import_module('.attic', 'tagalong')\n",
        "import importlib\nHOMES = {'Box': '.attic'}\ndef f(x): importlib.import_module(f'.{HOMES[x]}', __package__)\n",
        "from importlib import import_module\ndef f(x): import_module(f'tagalong.at{x}')\n",
        "from tagalong import lazy\nHOMES = {'Box': 'tagalong.attic'}\n__getattr__, __dir__ = lazy(HOMES)\n",
        "def f(): __import__('tagalong.attic')\n",
    ],
)
def test_a_name_for_import_module_closes_a_cycle(imports: ModuleType, tmp_path: Path, text: str) -> None:
    files = {"attic.py": "from .cellar import shelf\n", "cellar/__init__.py": "", "cellar/shelf.py": text}
    assert cycles(imports, write_checkout(tmp_path, files)) == [["tagalong.attic", "tagalong.cellar.shelf"]]


def test_strings_are_ignored_if_nothing_is_imported_by_name(imports: ModuleType, tmp_path: Path) -> None:
    files = {
        "attic.py": "from .cellar import shelf\n",
        "cellar/__init__.py": "",
        "cellar/shelf.py": "x = 'tagalong.attic'\n",
    }
    assert cycles(imports, write_checkout(tmp_path, files)) == []


def test_a_lazy_door_reaches_what_it_names_and_a_child_may_not_use_it(imports: ModuleType, tmp_path: Path) -> None:
    lazy = "HOMES = {'Box': '_box'}\ndef __getattr__(name):\n    return import_module('.' + HOMES[name], __name__)\n"
    files = {
        "attic/__init__.py": lazy,
        "attic/_box.py": "from ._trunk import lid\n",
        "attic/_trunk.py": "def f():\n    from tagalong.attic import Box\n",
    }
    assert cycles(imports, write_checkout(tmp_path, files)) == [
        ["tagalong.attic", "tagalong.attic._box", "tagalong.attic._trunk"]
    ]
    write_checkout(tmp_path, {"attic/_trunk.py": "import tagalong.attic._lid\n", "attic/_lid.py": ""})
    assert cycles(imports, tmp_path) == []  # its package is imported on the way, but not by name


def test_allowed_lazy_imports_are_reported_apart(imports: ModuleType, tmp_path: Path) -> None:
    files = {
        "affinity/__init__.py": "def settled():\n    from tagalong.group import select\n",
        "group/__init__.py": "from tagalong.affinity import settled\n",
    }
    house = imports.read_house(write_checkout(tmp_path, files))
    edges, allowed = imports.run_time_edges(house, [])
    assert imports.find_cycles(edges) == []
    assert [str(taken) for taken in allowed] == ["src/tagalong/affinity/__init__.py:2: tagalong.group select"]
    edges, allowed = imports.run_time_edges(house, [("tagalong.affinity", "tagalong.group")])  # it really happened
    assert imports.find_cycles(edges) == [["tagalong.affinity", "tagalong.group"]]
    assert allowed == []


def test_cycles_that_show_only_at_import_time_are_found(tmp_path: Path) -> None:
    files = {
        "attic/__init__.py": "import importlib\ncellar = importlib.import_module('tagalong.' + 'cel' + 'lar')\n",
        "cellar.py": "def f():\n    from tagalong.attic import cellar\n",
        "roof.py": "import a_package_that_nobody_has\n",
    }
    found = count(write_checkout(tmp_path, files), "--alone", "--list")
    assert found["cycles"] == [["tagalong.attic", "tagalong.cellar"]]
    assert found["room_cycles"] == [["attic", "cellar"]]
    assert list(found["not_imported"]) == ["tagalong.roof"]
    assert "cycle: tagalong.attic tagalong.cellar" in found["printed"]


def test_two_checkouts_are_shown_side_by_side(tmp_path: Path) -> None:
    now = write_checkout(tmp_path / "now", {"attic.py": ""})
    before = write_checkout(tmp_path / "before", {"attic.py": "", "cellar.py": "x = 1\n"})
    assert "| before | now |" in count(now, "--against", str(before))["printed"].splitlines()[0]
    lines = count(now)["printed"].splitlines()
    assert lines[0].split() == ["|", "|", "523576c", "|", "now", "|"]
    assert lines[2].split() == ["|", "files", "|", "381", "|", "2", "|"]


def test_visits_count_functions_of_the_tree_and_how_deep_they_call(probe: ModuleType, tmp_path: Path) -> None:
    text = """
def outer(): return [inner(x) for x in range(3)] + list(inner(x) for x in range(3))
def inner(x): return (lambda: x)()
def never(): return 0
class C: y = inner(1)
"""
    path = write_checkout(tmp_path, {"attic.py": text}) / "src" / "tagalong" / "attic.py"
    names: dict[str, Any] = {}
    exec(compile(text, str(path), "exec"), names)
    visits = probe.Visits(str(tmp_path / "src"))
    with visits:
        names["outer"]()
    assert visits.counts() == {"files": 1, "functions": 4, "depth": 4}  # outer, the generator, inner, the lambda
    again = probe.Visits(str(tmp_path / "elsewhere"))
    with again:
        names["outer"]()
    assert again.counts() == {"files": 0, "functions": 0, "depth": 0}


@pytest.mark.parametrize(
    "work", ["`tagalong run table.csv --methods mtl,stl,tag`", "a measured call", "`select_groups`"]
)
def test_workloads_can_be_traced_in_this_tree(tmp_path: Path, work: str) -> None:
    asked = {"what": work, "src": str(ROOT.resolve() / "src"), "answer": str(tmp_path / "answer.json")}
    command = [sys.executable, str(BENCHMARKS / "house_probe.py")]
    done = subprocess.run(command, input=json.dumps(asked), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "answer.json").read_text())
    assert found["functions"] >= found["files"] > 3
    assert found["depth"] > 3


def test_this_tree_has_no_import_past_a_door_and_no_cycle(tmp_path: Path) -> None:
    counted = tmp_path / "house.json"
    command = [sys.executable, str(BENCHMARKS / "house.py"), "--tree", str(ROOT), "--only-read", "--alone"]
    subprocess.run([*command, "--json", str(counted)], check=True, capture_output=True)
    found = json.loads(counted.read_text())
    assert found["past_doors"]["src"] == 0
    assert found["cycles"] == found["room_cycles"] == []
    assert found["not_imported"] == {}
    assert len(found["allowed"]) == 2
