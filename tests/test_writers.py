"""Every file of the library is written by `tagalong.files`, so that none is ever incomplete."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src"
WRITER = "tagalong/files.py"
# Other ways of writing, as "file: call", each with the reason.
ALLOWED = {
    "tagalong/cli/app.py: os.open": "standard output goes to the null device after its reader has left",
    "tagalong/integrations/sklearn.py: TemporaryDirectory": "the folder of a study that nobody keeps",
    "tagalong/study/best.py: new_folder.rename": "a whole folder is replaced",
    "tagalong/study/best.py: folder.rename": "a whole folder is replaced",
    "tagalong/study/executors.py: TemporaryDirectory": "holds the problem for as long as the workers run",
    "tagalong/study/run_folder.py: logging.FileHandler": "a log grows line by line",
    "tagalong/study/store.py: sqlite3.connect": "a database, which has transactions of its own",
    "tagalong/tabular.py: _with_index(_read_parquet(content, place)).to_csv": "returns the text",
    "tagalong/testing/method_checks.py: TemporaryDirectory": "the folder of a check",
    "tagalong_paper/celeba/cache.py: np.lib.format.open_memmap": "filled chunk by chunk; renamed when it is complete",
    "tagalong_paper/celeba/cache.py: self._record_path.open": "lists the finished chunks and their checksums",
    "tagalong_paper/celeba/decode.py: open": "a worker fills its chunk of a file that is not complete yet",
}
METHODS = {"write_text", "write_bytes", "touch", "tofile", "to_csv", "to_parquet", "write_html", "write_image"}
METHODS |= {"rename", "hardlink_to", "symlink_to", "open_memmap", "memmap", "FileHandler"}
MODULES = {
    "os": {"replace", "rename", "renames", "open", "fdopen", "link", "symlink", "truncate"},
    "shutil": {"copy", "copy2", "copyfile", "copyfileobj", "copytree", "move", "make_archive"},
    "sqlite3": {"connect"},
    "json": {"dump"},
    "pickle": {"dump"},
    "cloudpickle": {"dump"},
    "yaml": {"dump", "safe_dump"},
}
TEMPORARY = {"TemporaryDirectory", "NamedTemporaryFile", "TemporaryFile", "mkstemp", "mkdtemp", "SpooledTemporaryFile"}
# These write to a path or to an open file; the place is their argument of this number.
TO_A_PLACE = {"torch.save": 1, "torch.export.save": 1, "np.save": 0, "np.savez": 0, "np.savez_compressed": 0}
OPENERS = {"open", "ZipFile", "TarFile", "GzipFile"}
OWN_TO_CSV = "planned.to_csv"  # of a plan, which uses the writer


def writing_calls(tree: ast.AST) -> Iterator[str]:
    """Yields calls that write to a file in any other way than through `tagalong.files`, and classes that do."""
    safe = safe_names(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            yield from (name for name in map(ast.unparse, node.bases) if name.rpartition(".")[2] in METHODS)
        if isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            if name in TO_A_PLACE:
                place = node.args[TO_A_PLACE[name]] if len(node.args) > TO_A_PLACE[name] else None
                if not (isinstance(place, ast.Name) and place.id in safe):
                    yield name
            elif name != OWN_TO_CSV and writes(name, node):
                yield name


def safe_names(tree: ast.AST) -> set[str]:
    """Returns the variables that are atomic files or buffers in memory, wherever they are assigned."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.withitem) and ast.unparse(node.context_expr).startswith("open_atomic("):
            names.add(ast.unparse(node.optional_vars or ast.Constant("")))
        elif isinstance(node, ast.Assign) and ast.unparse(node.value) == "io.BytesIO()":
            names |= {ast.unparse(target) for target in node.targets}
    return names


def writes(name: str, call: ast.Call) -> bool:
    module, _, function = name.rpartition(".")
    if function in METHODS or function in TEMPORARY or function in MODULES.get(module, ()):
        return not (module == "yaml" and len(call.args) == 1)  # which returns a text
    if function not in OPENERS:
        return False
    places = call.args[:2] if name.endswith(".open") else call.args[1:2]  # a method's mode may be its first argument
    modes = [*places, *(keyword.value for keyword in call.keywords if keyword.arg == "mode")]
    words = [mode.value for mode in modes if isinstance(mode, ast.Constant) and isinstance(mode.value, str)]
    return any(set(word) <= set("rwaxbt+") and set(word) & set("wax+") for word in words)


def test_files_are_written_only_by_the_writer() -> None:
    found = set()
    for file in sorted(SOURCE.rglob("*.py")):
        path = file.relative_to(SOURCE).as_posix()
        if path != WRITER:
            found |= {f"{path}: {name}" for name in writing_calls(ast.parse(file.read_text(encoding="utf-8")))}
    assert found - ALLOWED.keys() == set(), "use tagalong.files, or allow it with a reason"
    assert ALLOWED.keys() - found == set(), "allowed, and no longer there"


@pytest.mark.parametrize(
    "code",
    [
        "Path('a').write_text('b')",
        "open('a', 'w')",
        "open('a', mode='r+b')",
        "path.open('xb')",
        "json.dump(a, file)",
        "os.replace(a, b)",
        "torch.save(a, folder / 'b')",
        "torch.save(a, path)",
        "np.savez(path, a=1)",
        "np.save('a.npy', a)",
        "frame.to_csv('a.csv')",
        "shutil.copy(a, b)",
        "tempfile.mkstemp()",
        "zipfile.ZipFile(a, 'w')",
        "yaml.safe_dump(a, file)",
        "sqlite3.connect(a)",
    ],
)
def test_other_ways_of_writing_are_found(code: str) -> None:
    assert list(writing_calls(ast.parse(code))) != []


@pytest.mark.parametrize(
    "code",
    [
        "open('a')",
        "open('a', 'rb')",
        "path.open(encoding='utf-8')",
        "with open_atomic(path) as file:\n    torch.save(a, file)",
        "content = io.BytesIO()\nnp.savez(content, a=1)",
        "zipfile.ZipFile(a)",
        "json.dumps(a)",
        "yaml.safe_dump(a)",
        "text.replace('a', 'w')",
    ],
)
def test_reading_and_the_writer_are_not_reported(code: str) -> None:
    assert list(writing_calls(ast.parse(code))) == []
