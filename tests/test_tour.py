"""The notebook docs/tour.ipynb runs, and its stored outputs are those of its code."""

import re
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow

nbclient = pytest.importorskip("nbclient", reason="needs the packages of tagalong[test]")
nbformat = pytest.importorskip("nbformat", reason="needs the packages of tagalong[test]")
pytest.importorskip("ipykernel", reason="needs the packages of tagalong[test]")

PATH = Path(__file__).parent.parent / "docs" / "tour.ipynb"


def code_cells(notebook: Any) -> list[Any]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def kinds(output: Any) -> set[str]:
    """Returns what a viewer could show; the pictures of figures and their names are added after a run."""
    return {output.output_type, *output.get("data", {})} - {"image/png", "text/plain"}


@pytest.mark.filterwarnings("ignore::DeprecationWarning:jupyter_core|jupyter_client|zmq|nbclient")
def test_the_notebook_runs_and_shows_what_is_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compares kinds of outputs, and the text that does not depend on how a processor rounds."""
    for variable in ("IPYTHONDIR", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR"):
        monkeypatch.setenv(variable, str(tmp_path / variable.lower()))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    (tmp_path / "work").mkdir()
    stored, again = (nbformat.read(PATH, as_version=4) for _ in range(2))
    nbformat.validate(stored)
    cells = code_cells(stored)
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    assert not re.search(r"/(home|root|tmp|work)/", PATH.read_text(encoding="utf-8"))
    resources = {"metadata": {"path": str(tmp_path / "work")}}
    nbclient.NotebookClient(again, kernel_name="python3", resources=resources).execute()
    for old, new in zip(cells, code_cells(again), strict=True):
        assert [kinds(output) for output in new.outputs] == [kinds(output) for output in old.outputs]
        if "plotly" in str(old.outputs):  # figures need a picture for viewers that run no scripts
            assert "image/png" in old.outputs[0].data
    old, new = (["".join(output.get("text", "") for output in cell.outputs) for cell in code_cells(notebook)]
                for notebook in (stored, again))  # fmt: skip
    assert new[2] == old[2]  # the problem, before any training
    assert "Use " in new[3]
    assert "3 rows written" in new[8]
    assert new[9] == old[9]
    assert (tmp_path / "work" / "runs" / "tour" / "report.html").is_file()
