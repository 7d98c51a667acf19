from pathlib import Path

import pytest
from terminal import Terminal


@pytest.fixture
def tagalong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Terminal:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    return Terminal(capsys)
