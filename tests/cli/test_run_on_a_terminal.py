"""`tagalong run` on a terminal of 80 columns and with its output in a file."""

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from terminal import Terminal, environment

pytestmark = pytest.mark.slow

RUN = ("run", "table.csv", "--targets", "p,q", "--methods", "mtl,stl", "--seeds", "1", "--recipe", "epochs=2")
STYLE = re.compile(r"\x1b\[[\d;?]*[A-Za-z]")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    drawn = np.random.default_rng(0).normal(size=(80, 4))
    np.savetxt(tmp_path / "table.csv", drawn, "%.3f", ",", header="x,y,p,q", comments="")
    return tmp_path


def read_until_closed(screen: int) -> Iterator[bytes]:
    try:
        while sent := os.read(screen, 65536):
            yield sent
    except OSError:  # the other end was closed
        return


def test_a_terminal_shows_progress_bars_and_lines_that_fit(folder: Path) -> None:
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 80, 0, 0))
    env = {name: value for name, value in environment().items() if name not in ("COLUMNS", "LINES", "NO_COLOR")}
    command = [sys.executable, "-m", "tagalong", *RUN]
    streams = {"stdin": theirs, "stdout": theirs, "stderr": theirs}
    process = subprocess.Popen(command, env={**env, "TERM": "xterm-256color"}, cwd=folder, **streams)
    os.close(theirs)
    raw = b"".join(read_until_closed(ours)).decode()
    os.close(ours)
    assert process.wait() == 0, raw
    assert re.search(r"━+.* \d/\d networks", raw)
    lines = [line.split("\r")[-1] for line in STYLE.sub("", raw).replace("\r\n", "\n").split("\n")]
    assert max(map(len, lines)) <= 80
    assert "runs/table/report.html" in lines[-3]


def test_a_file_gets_no_control_characters_and_no_bars(tagalong: Terminal, folder: Path) -> None:
    status, out, err = tagalong(*RUN)
    assert status == 0
    assert all(sign.isprintable() or sign == "\n" for sign in out + err)
    assert "━" not in out + err
    assert "stl: 2 of 2 networks" in err
