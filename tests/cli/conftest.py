import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from terminal import Terminal


@pytest.fixture(autouse=True)
def heard() -> Iterator[None]:
    """Ctrl-C reaches commands also where the tests themselves were started deaf to it, as by a shell's `&`."""
    before = signal.getsignal(signal.SIGINT)
    if before is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def tagalong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Terminal:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    return Terminal(capsys)
