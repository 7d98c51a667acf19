"""The files of a report are complete at every moment, even if two processes write them."""

import os
from pathlib import Path

import plotly.graph_objects as go
import pytest
from plotly.offline import get_plotlyjs

from tagalong_paper import Report


def report(title: str) -> Report:
    return Report("matrix", title, figures={"matrix-ours": go.Figure(layout={"title": {"text": title}})})


def test_a_truncated_script_is_written_again(tmp_path: Path) -> None:
    (tmp_path / "plotly.min.js").write_bytes(get_plotlyjs().encode()[:1000])
    report("whole").save(tmp_path)
    assert (tmp_path / "plotly.min.js").read_bytes() == get_plotlyjs().encode()


def test_a_complete_script_is_not_written_again(tmp_path: Path) -> None:
    report("first").save(tmp_path)
    before = (tmp_path / "plotly.min.js").stat().st_ino
    report("second").save(tmp_path)
    assert (tmp_path / "plotly.min.js").stat().st_ino == before


def test_figures_share_one_script(tmp_path: Path) -> None:
    _, figure = report("shared").save(tmp_path)
    assert '<script charset="utf-8" src="plotly.min.js">' in figure.read_text(encoding="utf-8")


def test_every_file_is_replaced_atomically(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = {file.name: file.read_bytes() for file in report("before").save(tmp_path)}
    found, replace = {}, os.replace

    def watched(new: Path, file: Path) -> None:
        found[file.name] = file.read_bytes()
        replace(new, file)

    monkeypatch.setattr(os, "replace", watched)
    files = report("after").save(tmp_path)
    assert found == before
    assert [file.read_bytes() for file in files] != list(before.values())
