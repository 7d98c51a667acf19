"""The store of trained networks, `run.sqlite`.

Each network is a row that is written once, when its training finishes. Definitions, scores and costs are stored in
plain columns, since thousands of them are read at once. Weights, per-row losses and affinities are stored as binary
blobs.
"""

from __future__ import annotations

import errno
import json
import math
import os
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor

from tagalong.affinity import Affinity
from tagalong.errors import InvalidInput
from tagalong.files import DocumentError, damage_logger, json_safe, report_damage
from tagalong.learn import Job, Taught
from tagalong.score import Score

from .network_result import (
    SPLITS,
    Losses,
    NetworkResult,
    pack_tensors,
    plain_steps,
    unpack_affinity,
    unpack_losses,
    unpack_tensors,
)
from .records import Cost

VERSION = 4
LOCK_TIMEOUT = 120.0  # seconds to wait for another process to finish writing
MAX_BLOB_BYTES = 10**9  # SQLite's limit
MAX_KEYS = 500  # in one query, since SQLite limits the number of placeholders
SCHEMA = """
CREATE TABLE IF NOT EXISTS networks (
    key TEXT PRIMARY KEY, definition TEXT NOT NULL, scores TEXT NOT NULL, steps INTEGER NOT NULL,
    seconds REAL NOT NULL, parameters INTEGER NOT NULL, best_epoch INTEGER NOT NULL, batch TEXT NOT NULL,
    weights BLOB, losses BLOB, kept INTEGER NOT NULL DEFAULT 0
);
CREATE TABLE IF NOT EXISTS affinities (
    key TEXT PRIMARY KEY, network TEXT NOT NULL, settings TEXT NOT NULL, steps INTEGER NOT NULL,
    seconds REAL NOT NULL, affinity BLOB NOT NULL
);
CREATE TABLE IF NOT EXISTS latencies (key TEXT PRIMARY KEY, seconds REAL NOT NULL);
CREATE TABLE IF NOT EXISTS computed (key TEXT PRIMARY KEY, content BLOB NOT NULL);
"""
RESULT_COLUMNS = "key, definition, scores, steps, seconds, parameters, best_epoch"
TRAIN_AGAIN = "delete it to train its networks again, or choose another folder"


class StoreError(DocumentError):
    """Raised if a file is not a store of networks, is damaged, or has an unknown version."""


class Store:
    """The networks of a run.

    Multiple processes can use the same store. Each row is written atomically by the process that finishes first.

    Args:
        path: the file, which is created if it does not exist.

    Raises:
        StoreError: If the file is not a store, is damaged or has an unknown version.
        OSError: If the disk is full.
    """

    def __init__(self, path: Path) -> None:
        self.path = Path(path)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        try:
            self._connection = sqlite3.connect(self.path, timeout=LOCK_TIMEOUT)
        except sqlite3.OperationalError as error:
            raise StoreError("", f"could not open {self.path} ({error})", hint="choose another folder") from error
        try:
            self._prepare_tables()
        except sqlite3.DatabaseError as error:
            self.close()
            raise self._unreadable(error) from error
        except BaseException:
            self.close()
            raise

    def _prepare_tables(self) -> None:
        # No write-ahead log: it is not safe on network file systems.
        (version,) = self._connection.execute("PRAGMA user_version").fetchone()
        if version not in (0, VERSION):
            raise StoreError(str(self.path), f"must have version {VERSION}", str(version), TRAIN_AGAIN)
        if not version:
            self._connection.executescript(f"BEGIN IMMEDIATE;{SCHEMA}PRAGMA user_version = {VERSION};COMMIT;")

    def _unreadable(self, error: sqlite3.Error) -> StoreError | OSError:
        if _is_disk_full(error):
            return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path))
        return StoreError("", f"could not read or write {self.path} ({error})", hint=f"if it is damaged, {TRAIN_AGAIN}")

    def _reading(self) -> AbstractContextManager[None]:
        return report_damage(self.path, StoreError, TRAIN_AGAIN)

    def close(self) -> None:
        """Closes the store."""
        self._connection.close()

    def __enter__(self) -> Store:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self.close()
        if isinstance(error, sqlite3.DatabaseError):
            raise self._unreadable(error) from error

    def add(
        self, finished: Mapping[str, tuple[Mapping[str, Any], NetworkResult]], batch: Sequence[str] | None = None
    ) -> None:
        """Writes finished networks in one transaction. Existing rows are not changed.

        Args:
            finished: the definition and the result of each network, by key.
            batch: the keys of all networks that were trained in the same computation, in order. Training the same batch
                again gives bit-identical results. Defaults to the networks in `finished`.
        """
        together = json.dumps(list(finished if batch is None else batch))
        with self._connection:
            for key, (definition, result) in finished.items():
                if (size := len(result.weights or b"")) > MAX_BLOB_BYTES:
                    expected = f"must have at most {MAX_BLOB_BYTES / 1e9:g} GB of weights"
                    raise InvalidInput("networks", expected, f"{size / 1e9:.1f} GB")
                texts = key, json.dumps(definition, default=repr), _scores_to_json(result)
                numbers = int(result.steps), float(result.seconds), int(result.parameters), int(result.best_epoch)
                self._insert(
                    "networks",
                    f"{RESULT_COLUMNS}, batch, weights, losses",
                    (*texts, *numbers, together, result.weights, result.losses),
                )

    def results(self, keys: Iterable[str]) -> dict[str, NetworkResult]:
        """Returns the results of these networks by key, without their large fields.

        Networks that are not in the store are omitted.
        """
        with self._reading():
            return {key: _read_result(key, *values) for key, *values in self._select_rows(RESULT_COLUMNS, keys)}

    def __len__(self) -> int:
        return int(self._connection.execute("SELECT count(*) FROM networks").fetchone()[0])

    def spent(self) -> Cost:
        """Returns the total cost of all networks and measurements in the store."""
        sums = "count(*), coalesce(sum(steps), 0), coalesce(sum(seconds), 0.0)"
        networks = Cost(*self._connection.execute(f"SELECT {sums} FROM networks").fetchone())
        measured = self._connection.execute("SELECT steps, seconds, settings FROM affinities").fetchall()
        with self._reading():
            return sum((_measurement_cost(*row) for row in measured), networks)

    def batch(self, key: str) -> list[Job]:
        """Returns the jobs that were trained in the same computation as this network, in order."""
        with self._reading():
            keys = json.loads(self._value("batch", key))
            rows = self._select_rows("key, definition", keys)
            jobs = {other: _read_job(json.loads(definition)) for other, definition in rows}
            return [jobs[other] for other in keys]

    def weights(self, key: str) -> dict[str, Tensor] | None:
        """Returns the weights of a network, or None if they were not kept."""
        with self._reading():
            content = self._value("weights", key)
            return None if content is None else unpack_tensors(content)

    def losses(self, key: str, part: str = "test") -> Losses | None:
        """Returns each task's loss on every row, or None for a network that diverged."""
        with self._reading():
            content = self._value("losses", key)
            tasks = _read_job(json.loads(self._value("definition", key))).tasks
            return None if content is None else unpack_losses(content, tasks, part)

    def without_weights(self, keys: Iterable[str]) -> list[str]:
        """Returns the keys of networks whose weights were dropped. Diverged networks never had any."""
        condition = "best_epoch >= 0 AND weights IS NULL"
        return [key for key, dropped in self._select_rows(f"key, {condition}", keys) if dropped]

    def add_weights(self, trained: Mapping[str, NetworkResult]) -> None:
        """Writes the weights of networks, given by key, whose weights were dropped."""
        with self._connection:
            self._connection.executemany(
                "UPDATE networks SET weights = ? WHERE key = ? AND weights IS NULL",
                [(result.weights, key) for key, result in trained.items()],
            )

    def keep(self, keys: Iterable[str]) -> None:
        """Marks networks, and those that teach them, so that `drop_weights` keeps their weights."""
        kept: set[str] = set()
        waiting = set(keys)
        while waiting:
            kept |= waiting
            with self._reading():
                rows = self._select_rows("key, definition", waiting)
                lessons = [_read_taught(json.loads(text)) for _, text in rows]
            waiting = {teacher for taught in lessons if taught for teacher in taught.teachers} - kept
        with self._connection:
            self._connection.executemany("UPDATE networks SET kept = 1 WHERE key = ?", [(key,) for key in sorted(kept)])

    def drop_weights(self, keys: Iterable[str]) -> Cost:
        """Drops the weights of networks, except for those that were marked with `keep`.

        Returns:
            What training these networks again would cost.
        """
        rows = self._select_rows("key, steps, seconds, kept = 0 AND weights IS NOT NULL", keys)
        dropped = {key: Cost(1, steps, seconds) for key, steps, seconds, unmarked in rows if unmarked}
        try:
            with self._connection:
                self._connection.executemany(
                    "UPDATE networks SET weights = NULL WHERE key = ? AND kept = 0", [(key,) for key in dropped]
                )
            with suppress(sqlite3.OperationalError):  # another process is reading; the file will shrink next time
                self._connection.execute("VACUUM")
        except sqlite3.OperationalError as error:
            if not _is_disk_full(error):
                raise
            damage_logger.warning("%s could not be made smaller, since the disk is full", self.path)
            return Cost()
        return sum(dropped.values(), Cost())

    def affinity(self, key: str) -> tuple[Affinity, Cost] | None:
        """Returns a measured affinity and the cost of the training run that measured it, or None if it is missing."""
        row = self._connection.execute(
            "SELECT affinity, steps, seconds, settings FROM affinities WHERE key = ?", (key,)
        ).fetchone()
        if row is None:
            return None
        content, steps, seconds, settings = row
        with self._reading():
            affinity = unpack_affinity(content)
            overhead = {name: value for name, value in json.loads(settings).items() if name == "overhead"}
            affinity = replace(affinity, settings={**affinity.settings, **overhead})
            return affinity, Cost(1, plain_steps(affinity, steps), seconds)

    def add_affinity(self, key: str, network: str, settings: Mapping[str, Any], result: NetworkResult) -> None:
        """Writes the affinity measured while a network was trained.

        Call this method before adding the network itself.
        """
        about: dict[str, Any] = {**settings, "shared": not self.results([network])}
        if result.overhead is not None:
            about["overhead"] = result.overhead
        settings_text = json.dumps(about, sort_keys=True, default=repr)
        values = key, network, settings_text, int(result.steps), float(result.seconds), result.affinity
        with self._connection:
            self._insert("affinities", "key, network, settings, steps, seconds, affinity", values)

    def has_key_starting_with(self, start: str) -> bool:
        """Whether the store contains a network or measurement whose key starts with `start`."""
        query = "SELECT key FROM (SELECT key FROM networks UNION ALL SELECT key FROM affinities) WHERE key GLOB ?"
        return self._connection.execute(query, (f"{start}*",)).fetchone() is not None

    def latency(self, key: str) -> float | None:
        """Returns the duration of a forward pass in seconds, or None if it was not measured."""
        row = self._connection.execute("SELECT seconds FROM latencies WHERE key = ?", (key,)).fetchone()
        return None if row is None else float(row[0])

    def add_latency(self, key: str, seconds: float) -> None:
        """Writes the duration of a forward pass in seconds."""
        with self._connection:
            self._insert("latencies", "key, seconds", (key, float(seconds)))

    def computed(self, key: str) -> bytes | None:
        """Returns the content stored by `add_computed`, or None if it is missing."""
        row = self._connection.execute("SELECT content FROM computed WHERE key = ?", (key,)).fetchone()
        return None if row is None else row[0]

    def add_computed(self, key: str, content: bytes) -> None:
        """Stores something that took long to compute, e.g. the outputs of a network, unless the key exists already."""
        with self._connection:
            self._insert("computed", "key, content", (key, content))

    def outputs(self, key: str, part: str) -> dict[str, Tensor] | None:
        """Returns the outputs of a network for each task, or None if they were not stored."""
        with self._reading():
            content = self.computed(_outputs_key(key, part))
            return None if content is None else unpack_tensors(content)

    def add_outputs(self, key: str, part: str, outputs: Mapping[str, Tensor]) -> None:
        """Stores the outputs of a network for each task, or keeps its weights if these take less space.

        In either case, the outputs remain known after `drop_weights`.
        """
        content = pack_tensors(outputs)
        if len(content) <= len(self._value("weights", key) or b""):
            self.add_computed(_outputs_key(key, part), content)
        else:
            self.keep([key])

    def _insert(self, table: str, columns: str, values: Sequence[Any]) -> None:
        """Adds a row as part of the caller's transaction; an existing row is not changed."""
        placeholders = ", ".join("?" * len(values))
        self._connection.execute(f"INSERT OR IGNORE INTO {table} ({columns}) VALUES ({placeholders})", values)

    def _value(self, column: str, key: str) -> Any:
        return self._connection.execute(f"SELECT {column} FROM networks WHERE key = ?", (key,)).fetchone()[0]

    def _select_rows(self, columns: str, keys: Iterable[str]) -> Iterator[tuple[Any, ...]]:
        wanted = list(keys)
        for start in range(0, len(wanted), MAX_KEYS):
            some = wanted[start : start + MAX_KEYS]
            placeholders = ", ".join("?" * len(some))
            query = f"SELECT {columns} FROM networks WHERE key IN ({placeholders})"
            yield from self._connection.execute(query, some).fetchall()


def _is_disk_full(error: Exception) -> bool:
    return "disk is full" in str(error)


def _outputs_key(network: str, part: str) -> str:
    return f"{part} outputs of {network}"


def _read_job(definition: Mapping[str, Any]) -> Job:
    named = {name: definition[name] for name in ("seed", "rule", "width")}
    optional: dict[str, Any] = {name: definition.get(name) for name in ("epochs", "lr", "network")}
    return Job(tuple(definition["tasks"]), **named, **optional, taught=_read_taught(definition))


def _read_taught(definition: Mapping[str, Any]) -> Taught | None:
    document = definition.get("taught")
    if document is None:
        return None
    return Taught(**(document | {"unlabelled": document["unlabelled"] is not None}))


def _read_result(
    key: str, definition: str, scores: str, steps: int, seconds: float, parameters: int, best_epoch: int
) -> NetworkResult:
    document = json.loads(scores)
    val, test = (
        {task: Score(_nan_if_none(loss), _nan_if_none(error)) for task, (loss, error) in document[part].items()}
        for part in SPLITS
    )
    halves = {task: (_nan_if_none(one), _nan_if_none(two)) for task, (one, two) in document["halves"].items()}
    job = _read_job(json.loads(definition))
    flattery = {task: float(value) for task, value in document["flattery"].items()}
    return NetworkResult(job, val, test, steps, seconds, parameters, best_epoch, halves, key, flattery=flattery)


def _scores_to_json(result: NetworkResult) -> str:
    """Formats the scores, the losses on each half of the rows and the flattery, with null for non-finite values."""
    scores: dict[str, Any] = {
        part: {task: [score.loss, score.error] for task, score in getattr(result, part).items()} for part in SPLITS
    }
    finite = all(map(math.isfinite, result.flattery.values()))
    return json.dumps(json_safe(scores | {"halves": result.halves, "flattery": result.flattery if finite else {}}))


def _nan_if_none(value: float | None) -> float:
    return float("nan") if value is None else float(value)


def _measurement_cost(steps: int, seconds: float, settings: str) -> Cost:
    """Returns the cost of a measurement.

    If the network is counted separately, only the overhead is included.
    """
    about = json.loads(settings)
    overhead = about.get("overhead", 0.0)
    return Cost(0, 0, seconds * overhead / (1 + overhead)) if about.get("shared") else Cost(1, steps, seconds)
