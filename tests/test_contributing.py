"""CONTRIBUTING.md describes the source as it is; test_docs.py runs its examples."""

import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src"
TEXT = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
EXAMPLES = {
    "A method": "check_method(",
    "An estimator": "check_estimator(",
    "A problem": "check_problem(",
    "A solver": "assert not found.proven",
    "An integration": "assert all(torch.equal(",
    "An executor": "check_executor(",
}
LINE = re.compile(r"( *)- (?:\*\*`([^`]+/)`\*\*|`([^`]+)`)(?:: (.*))?")


@pytest.fixture
def house_tree(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    import house_tree

    return house_tree


def descriptions(text: str) -> dict[str, str]:
    """Returns what the tree says about each path."""
    tree = text.partition("<!-- tree -->\n")[2].partition("<!-- end of tree -->")[0]
    found: dict[str, str] = {}
    folders: list[str] = []
    for line in filter(None, tree.splitlines()):
        read = LINE.fullmatch(line)
        assert read, line
        indent, folder, file, description = read.groups()
        del folders[len(indent) // 4 :]
        path = "".join(folders) + (folder or file)
        assert path not in found, path
        found[path] = description or ""
        folders += [folder] if folder else []
    return found


def files(source: Path) -> set[str]:
    """Returns all files except `__init__.py`, and their folders."""
    source_files = [path for path in source.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    folders = {folder for path in source_files for folder in path.relative_to(source).parents} - {Path()}
    return {path.relative_to(source).as_posix() for path in source_files if path.name != "__init__.py"} | {
        f"{folder.as_posix()}/" for folder in folders
    }


def test_the_tree_lists_every_file_and_nothing_else() -> None:
    listed = descriptions(TEXT)
    assert sorted(files(SOURCE) - listed.keys()) == [], "run: python docs/house_tree.py"
    assert sorted(listed.keys() - files(SOURCE)) == [], "run: python docs/house_tree.py"


def test_the_tree_says_what_the_files_say(house_tree: ModuleType) -> None:
    assert house_tree.with_tree(TEXT, SOURCE) == TEXT, "run: python docs/house_tree.py"


def test_every_file_is_described_by_a_sentence() -> None:
    assert [path for path, description in descriptions(TEXT).items() if not re.search(r"[.?!]$", description)] == []


def test_the_script_adds_new_files_and_removes_deleted_ones(tmp_path: Path) -> None:
    for name, text in {
        "CONTRIBUTING.md": "# Before\n<!-- tree -->\n- **`gone/`**\n<!-- end of tree -->\n# After\n",
        "docs/house_tree.py": (ROOT / "docs" / "house_tree.py").read_text(encoding="utf-8"),
        "src/house/__init__.py": '"""A house."""\n',
        "src/house/room/__init__.py": '"""A room.\n\nIt has a door.\n"""\n',
        "src/house/room/window.py": '"""A window."""\n',
        "src/house/room/view.js": "// Outside.\n",
        "src/house/room/static/many.npz": "",
        "src/house/moved/__pycache__/gone.pyc": "",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    command = [sys.executable, str(tmp_path / "docs" / "house_tree.py")]
    stale = subprocess.run([*command, "--check"], capture_output=True, text=True, check=False)
    assert stale.returncode == 1
    assert "the tree in CONTRIBUTING.md is out of date" in stale.stderr
    subprocess.run(command, check=True)
    subprocess.run([*command, "--check"], check=True)
    written = (tmp_path / "CONTRIBUTING.md").read_text(encoding="utf-8")
    assert written.startswith("# Before\n<!-- tree -->\n")
    assert written.endswith("<!-- end of tree -->\n# After\n")
    assert descriptions(written) == {
        "house/": "A house.",
        "house/room/": "A room.",
        "house/room/static/": "Scripts and styles of the page.",
        "house/room/static/many.npz": "Data.",
        "house/room/view.js": "Outside.",
        "house/room/window.py": "A window.",
    }


def test_paths_that_contributing_names_exist() -> None:
    outside_tree = re.sub(r"<!-- tree -->.*<!-- end of tree -->|^```.*?^```$", "", TEXT, flags=re.DOTALL | re.MULTILINE)
    names = re.findall(r"`([\w/.]+(?:/[\w.]+|\.py|\.md|\.toml|\.yaml))`", outside_tree)
    assert len(names) > 10
    missing = [name for name in names if not ((ROOT / name).exists() or (SOURCE / "tagalong" / name).exists())]
    assert missing == []


def test_every_package_is_in_the_layers() -> None:
    layers = re.search(r"^## Layers.*?^```text\n(.*?)^```", TEXT, re.DOTALL | re.MULTILINE)
    assert layers is not None
    rooms = {path.stem for path in (SOURCE / "tagalong").iterdir() if not path.name.startswith(("_", "py.typed"))}
    assert set(re.findall(r"\w+", layers[1])) == rooms


@pytest.mark.parametrize(("heading", "check"), EXAMPLES.items())
def test_every_example_ends_with_its_check(heading: str, check: str) -> None:
    section = TEXT.partition(f"\n### {heading}\n")[2].partition("\n### ")[0]
    blocks = re.findall(r"^```python\n(.*?)^```", section, re.DOTALL | re.MULTILINE)
    assert check in blocks[-1]
