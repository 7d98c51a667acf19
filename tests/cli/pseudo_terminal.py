"""Runs commands on a pseudo-terminal and replays what its screen shows."""

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from typing import NamedTuple

from terminal import environment

CONTROL = re.compile(r"\x1b\[\??([\d;]*)([A-Za-z])")


class TerminalOutput(NamedTuple):
    """The final lines on the screen, the widest line ever shown, and the raw output."""

    status: int
    lines: list[str]
    widest: int
    raw: str


def run_on_terminal(*arguments: str, columns: int = 80, **more: str) -> TerminalOutput:
    """Runs `tagalong …` with all its streams on a terminal of this width."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    env = {name: value for name, value in environment().items() if name not in ("COLUMNS", "LINES", "NO_COLOR")}
    process = subprocess.Popen(
        [sys.executable, "-m", "tagalong", *arguments],
        env={**env, "TERM": "xterm-256color", **more},
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    sent = b""
    while more_bytes := _read(ours):
        sent += more_bytes
    os.close(ours)
    raw = sent.decode()
    return TerminalOutput(process.wait(), *replay(raw), raw)


def _read(screen: int) -> bytes:
    try:
        return os.read(screen, 65536)
    except OSError:  # the other end was closed
        return b""


def replay(raw: str) -> tuple[list[str], int]:
    """Replays output on a screen; returns its final lines and the width of the widest line ever shown."""
    lines, row, column, widest, at = [""], 0, 0, 0, 0
    while at < len(raw):
        control = CONTROL.match(raw, at)
        if control is not None:
            number, letter = control.groups()
            if letter == "A":
                row = max(0, row - int(number or 1))
            elif letter == "K":
                lines[row] = "" if number == "2" else lines[row][:column]
            at = control.end()
            continue
        sign, at = raw[at], at + 1
        if sign == "\r":
            column = 0
        elif sign == "\n":
            row += 1
            lines += [""] * (row == len(lines))
        else:
            lines[row] = lines[row][:column].ljust(column) + sign + lines[row][column + 1 :]
            column += 1
            widest = max(widest, column)
    return lines, widest
