"""The notebook docs/tour.ipynb: it runs, and its stored outputs are those of its code."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow

nbclient = pytest.importorskip("nbclient", reason="needs the packages of tagalong[test]")
nbformat = pytest.importorskip("nbformat", reason="needs the packages of tagalong[test]")
pytest.importorskip("ipykernel", reason="needs the packages of tagalong[test]")

PATH = Path(__file__).parent.parent / "docs" / "tour.ipynb"
FIGURE = "application/vnd.plotly.v1+json"


def stored() -> Any:
    return nbformat.read(PATH, as_version=4)


def outputs(notebook: Any) -> list[list[Any]]:
    return [cell.outputs for cell in notebook.cells if cell.cell_type == "code"]


def kinds(output: Any) -> set[str]:
    """Returns what a viewer could show; the pictures of figures and their names are added after a run."""
    return {output.output_type, *output.get("data", {})} - {"image/png", "text/plain"}


def test_the_notebook_is_valid_and_was_run_from_top_to_bottom() -> None:
    notebook = stored()
    nbformat.validate(notebook)
    counts = [cell.execution_count for cell in notebook.cells if cell.cell_type == "code"]
    assert counts == list(range(1, len(counts) + 1))
    assert not re.search(r"/(home|root|tmp|work)/", PATH.read_text(encoding="utf-8"))


def test_every_figure_has_a_picture_for_viewers_that_run_no_scripts() -> None:
    figures = [output for cell in outputs(stored()) for output in cell if FIGURE in output.get("data", {})]
    assert len(figures) == 2
    for figure in figures:
        assert figure.data["image/png"].startswith("iVBORw0KGgo")  # the signature of PNG files
        assert figure.data["text/plain"]
    scripts = [output for cell in outputs(stored()) for output in cell if "<script" in json.dumps(output)]
    assert scripts == []


@pytest.mark.filterwarnings("ignore::DeprecationWarning:jupyter_core|jupyter_client|zmq|nbclient")
def test_the_notebook_runs_and_shows_what_is_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compares kinds of outputs, and the text that does not depend on how a processor rounds."""
    for variable in ("IPYTHONDIR", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR"):
        monkeypatch.setenv(variable, str(tmp_path / variable.lower()))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    (tmp_path / "work").mkdir()
    before, again = stored(), stored()
    nbclient.NotebookClient(
        again, kernel_name="python3", resources={"metadata": {"path": str(tmp_path / "work")}}
    ).execute()
    for old, new in zip(outputs(before), outputs(again), strict=True):
        assert [kinds(output) for output in new] == [kinds(output) for output in old]
    printed = ["".join(output.get("text", "") for output in cell) for cell in outputs(again)]
    assert printed[2] == "".join(output.text for output in outputs(before)[2])  # the problem, before any training
    assert printed[3].startswith(("Verdict: ", "Provisional verdict: "))
    assert "3 rows written" in printed[8]
    assert "all networks exported" in printed[9]
    assert (tmp_path / "work" / "runs" / "tour" / "report.html").is_file()
