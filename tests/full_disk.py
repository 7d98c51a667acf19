"""Makes writing fail as on a full disk."""

import errno
import os
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from tagalong.study import store

FULL = os.strerror(errno.ENOSPC)


def fill_disk(monkeypatch: pytest.MonkeyPatch, cannot_write: Callable[[Path], bool] = lambda path: True) -> None:
    """Makes every file for which `cannot_write` is true impossible to write, after its last byte."""
    replace = os.replace

    def fail(finished: Path, path: Path) -> None:
        if cannot_write(path):
            raise OSError(errno.ENOSPC, FULL)
        replace(finished, path)

    monkeypatch.setattr(os, "replace", fail)


def fill_database(monkeypatch: pytest.MonkeyPatch, pages: int) -> None:
    """Gives the store of networks room for a number of pages only."""

    def connect(path: Path, **options: float) -> sqlite3.Connection:
        connection = real(path, **options)
        connection.execute(f"PRAGMA max_page_count = {pages}")
        return connection

    real = sqlite3.connect
    monkeypatch.setattr(store.sqlite3, "connect", connect)
