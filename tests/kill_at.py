"""Kills or interrupts a process at its n-th file operation, so at the same point in every test run."""

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


def stopping_points(total: int, times: int) -> list[int]:
    """Returns the operations at which to stop a piece of work and its continuations, at random points throughout.

    A continuation never has less to do than was left, so none of them finishes before it is stopped.
    """
    drawn = sorted(random.Random(0).sample(range(1, total + 1), times))
    return [point - before for before, point in pairwise([0, *drawn])]


def records_without_times(results: Results) -> list[Record]:
    """Returns the records without times: what must not depend on interruptions or on where the study ran."""
    return [
        replace(r, latency=None, deciding=replace(r.deciding, seconds=0), training=replace(r.training, seconds=0))
        for r in results.records
    ]


class FileOperations:
    """Counts the changes that this process makes below a folder, just before each.

    An operation opens a file for writing, syncs, renames or removes it, makes or removes a folder, opens a database,
    or is an SQL statement other than a query. Counting cannot be undone, so it needs a process of its own.

    Args:
        folder: operations elsewhere do not count.
        nth: the operation, from 1, just before which something happens; None only counts.
        then: what happens: `die`, `interrupt` or another function. SQL statements count only for `die`, since SQLite
            swallows exceptions raised in its trace callback.

    Attributes:
        number: of operations so far.
    """

    def __init__(self, folder: Path, nth: int | None = None, then: Callable[[], None] = die) -> None:
        self.number = 0
        self._folder, self._nth, self._then = os.path.abspath(folder), nth, then
        self._wrote_inside, self._process = False, os.getpid()
        self._sync, os.fsync = os.fsync, self._counted_sync  # raises no audit event
        self._connect, sqlite3.connect = sqlite3.connect, self._counted_connect  # nor do SQL statements
        sys.addaudithook(self._audit)

    def count(self) -> None:
        """Counts an operation; tests may call it for operations that are not detected."""
        if os.getpid() != self._process:  # a forked worker
            return
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
