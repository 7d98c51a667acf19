"""A process that is killed or interrupted at its n-th file operation: at the same point whenever a test is run."""

import os
import random
import signal
import sqlite3
import sys
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from tagalong.study import Record, Results

WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
CHANGES = {"os.link", "os.mkdir", "os.remove", "os.rename", "os.rmdir", "os.symlink", "os.truncate", "shutil.rmtree"}
QUERIES = ("SELECT", "PRAGMA")


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def interrupt() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def along(total: int, times: int) -> list[int]:
    """Operations at which to stop a piece of work and what goes on with it, at random points all along its way.

    What goes on never has less to do than was left, so none of them comes to its end before.
    """
    drawn = sorted(random.Random(0).sample(range(1, total + 1), times))
    return [point - before for before, point in pairwise([0, *drawn])]


def but_times(results: Results) -> list[Record]:
    """All that must not depend on how often a study was stopped, or where it ran."""
    return [
        replace(r, latency=None, deciding=replace(r.deciding, seconds=0), training=replace(r.training, seconds=0))
        for r in results.records
    ]


class FileOperations:
    """Counts what this process is about to change below a folder.

    An operation opens a file for writing, syncs, renames or removes it, makes or removes a folder, opens a database,
    or is an SQL statement other than a query. Only for processes that serve no other purpose: it cannot be undone.

    Args:
        folder: operations elsewhere do not count.
        nth: the operation, from 1, just before which something happens; None only counts.
        then: what happens: `die`, `interrupt` or another function. Statements count for `die` alone, since SQLite
            swallows exceptions that are raised when it tells of them.

    Attributes:
        number: of operations so far.
    """

    def __init__(self, folder: Path, nth: int | None = None, then: Callable[[], None] = die) -> None:
        self.number = 0
        self._folder, self._nth, self._then = os.path.abspath(folder), nth, then
        self._wrote_inside = False
        self._sync, os.fsync = os.fsync, self._counted_sync  # raises no audit event
        self._connect, sqlite3.connect = sqlite3.connect, self._counted_connect  # nor do SQL statements
        sys.addaudithook(self._audit)

    def count(self) -> None:
        """Counts an operation; a test may add some that cannot be seen from here."""
        self.number += 1
        if self.number == self._nth:
            self._then()

    def _audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open":
            path, _, flags = arguments
            if flags & WRITES:
                self._wrote_inside = self._inside(path)
                if self._wrote_inside:
                    self.count()
        elif event in CHANGES and any(map(self._inside, arguments[:2])):
            self.count()

    def _counted_sync(self, file: int) -> None:
        if self._wrote_inside:
            self.count()
        self._sync(file)

    def _counted_connect(self, database: Any, *more: Any, **named: Any) -> sqlite3.Connection:
        if not self._inside(database):
            return self._connect(database, *more, **named)
        self.count()
        connection = self._connect(database, *more, **named)
        if self._then is die:
            # With room for one page, half a transaction is in the file: a kill leaves a journal to be rolled back.
            connection.execute("PRAGMA cache_size = 1")
            connection.set_trace_callback(self._statement)
        return connection

    def _statement(self, sql: str) -> None:
        if not sql.startswith(QUERIES):
            self.count()

    def _inside(self, path: object) -> bool:
        if not isinstance(path, str | bytes | os.PathLike):
            return False
        return f"{os.path.abspath(os.fsdecode(path))}{os.sep}".startswith(f"{self._folder}{os.sep}")
