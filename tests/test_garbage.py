"""Whatever a file holds, reading it succeeds or ends with one sentence and exit status 2, never with a traceback."""

import contextlib
import io
import json
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from tagalong import Affinity, ExternalStudy, Problem
from tagalong.cli import main
from tagalong.study import Best, Store
from tagalong_paper.truth import TruthTable

TASKS = ("p", "q", "r")
QUICK = "--methods mtl,stl --seeds 1 --recipe epochs=1 --device cpu --quiet"
RUN = f"run table.csv --targets p,q,r {QUICK} --out run"
ARRAY_RUN = f"run table.csv --targets p,q,r --features-file rows.npy {QUICK} --out arrays"
COMMANDS = {
    "group scores.csv --budget 2": ("scores.csv",),
    "group long.json --budget 2": ("long.json",),
    "plan long.json --budgets 2 --out new": ("long.json",),
    "verdict own/plan.csv --json": ("own/plan.csv", "own/settings.json", "own/run.sqlite"),
    "report run": ("run/results.json", "run/groupings.json"),
    "predict run table.csv": ("table.csv", "run/networks/networks.json", "run/networks/*.safetensors"),
    "predict arrays rows.npy": ("rows.npy",),
    ARRAY_RUN: ("rows.npy",),
    RUN: ("table.csv", "run/run.sqlite", "run/settings.json"),
}
READERS: dict[str, tuple[Callable[[Path], Any], str]] = {
    "Problem.from_table": (lambda path: Problem.from_table(path, ["p", "q"]), "table.csv"),
    "Best.load": (lambda path: Best.load(path.parents[1]), "run/networks/networks.json"),
    "Store": (lambda path: Store(path).close(), "run/run.sqlite"),
    "ExternalStudy": (lambda path: ExternalStudy(TASKS, path.parent).results(), "external/settings.json"),
    "TruthTable.load": (TruthTable.load, "truth.npz"),
}
STRANGE = (
    None,
    [],
    {},
    True,
    "",
    "a" * 5000,
    "\x1b[31m",
    -1,
    0,
    0.5,
    1e308,
    10**400,
    float("nan"),
    [[]],
    {"a": [None]},
)
CELLS = st.sampled_from(
    ["", "p", "q", "p+q", "group", "cost", "task", "1", "-2.5", "nan", "inf", "1,5", '"', "9" * 400]
)
TABLES = st.lists(st.lists(CELLS, min_size=1, max_size=5).map(",".join), max_size=6).map("\n".join)
FEW = settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(scope="module")
def intact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("intact")
    draw = np.random.default_rng(0)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        np.savetxt("table.csv", draw.normal(size=(80, 5)), "%.3f", ",", header="x,y,p,q,r", comments="")
        np.save("rows.npy", draw.normal(size=(80, 2)))
        affinity = Affinity.from_history(draw.normal(size=(30, 3, 3)), TASKS)
        affinity.save("long.json")
        affinity.to_csv("scores.csv")
        assert main(["plan", "long.json", "--budgets", "2", "--seeds", "1", "--out", "own"]) == 0
        Path("own/plan.csv").write_text(Path("own/plan.csv").read_text().replace(",,,,\n", ",1.5,1.5,,\n"))
        assert main(RUN.split()) == main(ARRAY_RUN.split()) == 0
        assert [command for command in COMMANDS if main(command.split())] == []
        for page in folder.rglob("report.html"):  # most of all bytes
            page.unlink()
        external = ExternalStudy(TASKS, "external")
        external.plan()
        external.tell(TASKS, 0, val=dict.fromkeys(TASKS, 1.0), test=dict.fromkeys(TASKS, 1.0))
        logs = draw.normal(size=(2, 7, 3))
        TruthTable(TASKS, logs, logs, logs[:, None], (0.5,), np.ones((2, 7)), {}, {}).save("truth.npz")
    return folder


def damaged(content: bytes, draw: Callable[[Any], Any]) -> bytes:
    kinds = ["bytes", "table", "truncated", "flipped"] + ["entry"] * content.startswith(b"{")
    kind, place = draw(st.sampled_from(kinds)), draw(st.integers(0, len(content) - 1))
    if kind == "entry":
        document = json.loads(content)
        parent, key = draw(st.sampled_from(list(entries(document))))
        parent[key] = draw(st.sampled_from(STRANGE))
        return json.dumps(document).encode()
    if kind == "truncated":
        return content[:place]
    if kind == "flipped":
        return content[:place] + bytes([content[place] ^ 255]) + content[place + 1 :]
    return draw(TABLES).encode() if kind == "table" else draw(st.binary(max_size=60))


def entries(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yields every place in a document as (container, key)."""
    for key in value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        yield value, key
        yield from entries(value[key])


@contextlib.contextmanager
def with_garbage(intact: Path, file: str, data: st.DataObject) -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.chdir(shutil.copytree(intact, f"{folder}/copy"))
        path = next(Path().glob(file))
        path.write_bytes(damaged(path.read_bytes(), data.draw))
        yield path


@FEW
@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize(
    ("command", "file"), [(command, file) for command, files in COMMANDS.items() for file in files]
)
@given(data=st.data())
def test_a_command_succeeds_or_says_in_one_sentence_what_is_wrong(
    intact: Path, command: str, file: str, data: st.DataObject
) -> None:
    out, err = io.StringIO(), io.StringIO()
    with with_garbage(intact, file, data), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = main(command.split())
    assert status in (0, 2), err.getvalue()
    assert "Traceback" not in err.getvalue()
    assert status == 0 or "tagalong: " in err.getvalue()


@FEW
@pytest.mark.parametrize("reader", READERS)
@given(data=st.data())
def test_a_reader_succeeds_or_raises_an_error_of_ours(intact: Path, reader: str, data: st.DataObject) -> None:
    read, file = READERS[reader]
    with with_garbage(intact, file, data) as path, contextlib.suppress(FileNotFoundError):
        try:
            read(path.absolute())
        except ValueError as error:
            assert type(error).__module__.startswith("tagalong"), repr(error)  # noqa: PT017 - success is fine too
