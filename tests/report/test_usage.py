"""The code on the page, which is executed as a reader would."""

import html
import re
import shlex
from pathlib import Path

import numpy as np
import pytest
from fake_run import make_run

from tagalong import Problem, Recipe, Study, Task
from tagalong.cli import main
from tagalong.report import write_report


def code_on(page: Path, identifier: str) -> str:
    found = re.search(rf'<code id="{identifier}">(.*?)</code>', page.read_text(encoding="utf-8"), re.DOTALL)
    assert found is not None
    return html.unescape(found[1])


def make_problem(kind: str, folder: Path) -> Problem:
    """A table or an array with two tasks, and a file of new rows next to it."""
    recipe, rows = Recipe(epochs=1), np.random.default_rng(0).normal(size=(60, 3)).round(3)
    if kind == "array":
        np.save(folder / "new.npy", rows[:5, :1])
        tasks = [Task(name, kind="regression") for name in ("b", "c")]
        return Problem.from_arrays(rows[:, :1], rows[:, 1:], tasks, recipe=recipe)
    (folder / "new.csv").write_text("\n".join(["a", *map(str, rows[:5, 0])]))
    columns = dict(zip("abc", rows.T.tolist(), strict=True))
    return Problem.from_table(columns, targets=["b", "c"], recipe=recipe)


@pytest.mark.parametrize("kind", ["table", "array"])
def test_the_code_on_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    monkeypatch.chdir(tmp_path)
    folder = "runs/it's mine"
    Study(make_problem(kind, tmp_path), folder).run(methods=["mtl"], seeds=1)
    page = tmp_path / folder / "report.html"
    names: dict = {}
    exec(code_on(page, "use-python"), names)
    assert {task: values.shape for task, values in names["predictions"].items()} == {"b": (5,), "c": (5,)}
    assert (tmp_path / "exported" / "load.py").exists()
    program, *arguments = shlex.split(code_on(page, "use-command"))
    assert program == "tagalong"
    assert main(arguments) == 0
    table = np.genfromtxt("predictions.csv", delimiter=",", names=True)
    np.testing.assert_allclose(table["b"], names["predictions"]["b"], rtol=1e-6)


def test_there_is_no_code_without_networks_and_damaged_ones_are_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    make_run(tmp_path, [*"abc"])
    assert 'id="use"' not in write_report(tmp_path).read_text(encoding="utf-8")
    (tmp_path / "networks").mkdir()
    (tmp_path / "networks" / "networks.json").write_text("{")
    assert 'id="use"' not in write_report(tmp_path).read_text(encoding="utf-8")
    assert "networks.json" in caplog.text
