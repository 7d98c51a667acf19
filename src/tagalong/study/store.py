"""The store of a run, `run.sqlite`: a row for each trained network, and what else took long to compute.

A network is written once, when its training finishes. Its definition and results are JSON. Weights, the losses of all
rows and answers on validation and test rows are safetensors, which hold no code, in a table of their own.
"""

from __future__ import annotations

import errno
import json
import os
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import BaseModel, BeforeValidator
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from tagalong.affinity import Affinity
from tagalong.files import DocumentError, damage_logger, json_safe, report_damage
from tagalong.learn import Job, Trained
from tagalong.score import Score

from .records import Cost

Losses = dict[str, NDArray[np.float32]]
VERSION = 7
AFFINITY_ARRAYS = ("mean", "stderr", "count", "steps", "history", "null")
LOCK_TIMEOUT = 120.0  # seconds to wait for another process to finish writing
PIECE_BYTES = 2**28  # of large arrays, since SQLite limits the size of a value to a billion bytes
MAX_KEYS = 500  # in one query, since SQLite limits the number of placeholders
# The arrays of a network are called "weights", and "val", "test", "val losses" and "test losses" by task.
SCHEMA = """
CREATE TABLE IF NOT EXISTS networks (
    key TEXT PRIMARY KEY, definition TEXT NOT NULL, results TEXT NOT NULL,
    batch TEXT NOT NULL, place INTEGER NOT NULL,
    steps INTEGER NOT NULL, seconds REAL NOT NULL, kept INTEGER NOT NULL DEFAULT 0
);
CREATE TABLE IF NOT EXISTS computed (
    key TEXT PRIMARY KEY, content TEXT NOT NULL,
    networks INTEGER NOT NULL, steps INTEGER NOT NULL, seconds REAL NOT NULL
);
CREATE TABLE IF NOT EXISTS arrays (
    key TEXT NOT NULL, name TEXT NOT NULL, piece INTEGER NOT NULL, content BLOB NOT NULL,
    PRIMARY KEY (key, name, piece)
);
"""
TRAIN_AGAIN = "delete it to train its networks again, or choose another folder"
LossOrNull = Annotated[float, BeforeValidator(lambda value: float("nan") if value is None else value)]


class StoreError(DocumentError):
    """Raised if a file is not a store of networks, is damaged, or has an unknown version."""


class NetworkResults(BaseModel):
    """The column `results`: the fields of a `Trained` that have no column of their own."""

    job: Job
    val: dict[str, Score]
    test: dict[str, Score]
    steps: int
    seconds: float
    parameters: int
    best_epoch: int
    flattery: dict[str, float]
    halves: dict[str, tuple[LossOrNull, LossOrNull]]


class Store:
    """The networks of a run.

    Several processes can use the same store. Each row is written in one transaction by the process that finishes first,
    and is not changed by the others.

    Args:
        path: the file, which is created if it does not exist, or None for a store in memory.

    Raises:
        StoreError: If the file is not a store, is damaged or has an unknown version.
        OSError: If the disk is full.
    """

    def __init__(self, path: str | Path | None = None) -> None:
        self.path = Path(":memory:" if path is None else path)
        if path is not None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
        try:
            self._connection = sqlite3.connect(self.path, timeout=LOCK_TIMEOUT)
        except sqlite3.OperationalError as error:
            raise StoreError("", f"could not open {self.path} ({error})", hint="choose another folder") from error
        try:
            # No write-ahead log: it is not safe on network file systems.
            self._create_tables()
        except sqlite3.DatabaseError as error:
            self.close()
            raise self._unusable(error) from error
        except BaseException:
            self.close()
            raise

    def _create_tables(self) -> None:
        if not self._version():
            self._connection.executescript(f"BEGIN IMMEDIATE;{SCHEMA}PRAGMA user_version = {VERSION};COMMIT;")
        if (version := self._version()) != VERSION:
            raise StoreError(str(self.path), f"must have version {VERSION}", str(version), TRAIN_AGAIN)

    def _version(self) -> int:
        return int(self._connection.execute("PRAGMA user_version").fetchone()[0])

    def _unusable(self, error: sqlite3.Error) -> StoreError | OSError:
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
            raise self._unusable(error) from error

    def add(
        self,
        finished: Mapping[str, tuple[Mapping[str, Any], Trained]],
        answers: Mapping[str, Mapping[str, Tensor]] | None = None,
        *,
        replace: bool = False,
    ) -> None:
        """Writes the networks of one computation in one transaction.

        Args:
            finished: the definition and the result of each network, by key, in the order of the computation. Training
                the same batch again gives bit-identical results.
            answers: the outputs of a network on the rows of "val" and "test", if they are known.
            replace: whether to replace existing rows instead of keeping them.
        """
        batch = next(iter(finished), "")  # named by its first network
        with self._connection:
            for place, (key, (definition, trained)) in enumerate(finished.items()):
                if replace:
                    self._connection.execute("DELETE FROM networks WHERE key = ?", (key,))
                    self._connection.execute("DELETE FROM arrays WHERE key = ?", (key,))
                results = {name: getattr(trained, name) for name in NetworkResults.model_fields}
                if not np.isfinite(list(trained.flattery.values())).all():
                    results["flattery"] = {}
                texts = json.dumps(definition), json.dumps(json_safe(results)), batch
                is_new = self._insert(
                    "networks (key, definition, results, batch, place, steps, seconds)",
                    (key, *texts, place, trained.steps, trained.seconds),
                )
                if is_new:
                    arrays = {"weights": trained.state, **_row_losses(trained), **(answers or {})}
                    self._insert_arrays(key, arrays)

    def results(self, keys: Iterable[str]) -> dict[str, Trained]:
        """Returns the results of the networks that are in the store, by key, without arrays and weights."""
        with self._reading():
            return {
                key: Trained(key=key, **dict(NetworkResults.model_validate_json(text)))
                for key, text in self._select("key, results", keys)
            }

    def known_keys(self) -> list[str]:
        """Returns the keys of all networks."""
        return [key for (key,) in self._connection.execute("SELECT key FROM networks").fetchall()]

    def __len__(self) -> int:
        return int(self._connection.execute("SELECT count(*) FROM networks").fetchone()[0])

    def spent(self) -> Cost:
        """Returns the total cost of all networks and measurements in the store."""
        costs = (
            "SELECT 1 AS networks, steps, seconds FROM networks UNION ALL SELECT networks, steps, seconds FROM computed"
        )
        sums = "coalesce(sum(networks), 0), coalesce(sum(steps), 0), coalesce(sum(seconds), 0.0)"
        return Cost(*self._connection.execute(f"SELECT {sums} FROM ({costs})").fetchone())

    def batch(self, key: str) -> list[Job]:
        """Returns the jobs that were trained in the same computation as this network, in order."""
        with self._reading():
            of_key = "(SELECT batch FROM networks WHERE key = ?)"
            query = f"SELECT key FROM networks WHERE batch = {of_key} ORDER BY place"
            keys = [row[0] for row in self._connection.execute(query, (key,))]
            results = self.results(keys)
            return [results[other].job for other in keys]

    def weights(self, key: str) -> dict[str, Tensor] | None:
        """Returns the weights of a network, or None if they were not kept."""
        return self.arrays(key, "weights")

    def losses(self, key: str, part: str = "test") -> Losses | None:
        """Returns each task's loss on every row of "val" or "test", or None if they are unknown."""
        losses = self.arrays(key, f"{part} losses")
        return None if losses is None else {task: rows.numpy() for task, rows in losses.items()}

    def answers(self, key: str, part: str) -> dict[str, Tensor] | None:
        """Returns the outputs of a network for each task on the rows of "val" or "test", or None if not stored."""
        return self.arrays(key, part)

    def add_answers(self, key: str, part: str, outputs: Mapping[str, Tensor]) -> None:
        """Stores the outputs of a network for each task, or keeps its weights if these take less space.

        In either case, the outputs remain known after `drop_weights`.
        """
        query = "SELECT sum(length(content)) FROM arrays WHERE key = ? AND name = 'weights'"
        (size,) = self._connection.execute(query, (key,)).fetchone()
        if size is not None and size < len(pack_tensors(outputs)):
            self.keep([key])
            return
        with self._connection:
            self._insert_arrays(key, {part: outputs})

    def without_weights(self, keys: Iterable[str]) -> list[str]:
        """Returns the keys of networks whose weights are not in the store, except for those that diverged."""
        results = self.results(keys)
        stored = self._stored_weights(results)
        return [key for key, trained in results.items() if key not in stored and not trained.diverged]

    def add_weights(self, trained: Mapping[str, Trained]) -> None:
        """Writes the weights of networks, given by key, whose weights were dropped."""
        with self._connection:
            for key, network in trained.items():
                self._insert_arrays(key, {"weights": network.state})

    def keep(self, keys: Iterable[str]) -> None:
        """Marks networks, and those that teach them, so that `drop_weights` keeps their weights."""
        kept: set[str] = set()
        waiting = set(keys)
        while waiting:
            kept |= waiting
            jobs = [trained.job for trained in self.results(waiting).values()]
            waiting = {teacher for job in jobs if job.taught for teacher in job.taught.teachers} - kept
        with self._connection:
            self._connection.executemany("UPDATE networks SET kept = 1 WHERE key = ?", [(key,) for key in sorted(kept)])

    def drop_weights(self, keys: Iterable[str]) -> Cost:
        """Drops the weights of networks, except for those that were marked with `keep`.

        Returns:
            What training these networks again would cost.
        """
        rows = list(self._select("key, steps, seconds", keys, condition="kept = 0"))
        stored = self._stored_weights(key for key, _, _ in rows)
        dropped = {key: Cost(1, steps, seconds) for key, steps, seconds in rows if key in stored}
        try:
            with self._connection:
                self._connection.executemany(
                    "DELETE FROM arrays WHERE key = ? AND name = 'weights'", [(key,) for key in dropped]
                )
            with suppress(sqlite3.OperationalError):  # another process is reading; the file will shrink next time
                self._connection.execute("VACUUM")
        except sqlite3.OperationalError as error:
            if not _is_disk_full(error):
                raise
            damage_logger.warning("%s could not be made smaller, since the disk is full", self.path)
            return Cost()
        return sum(dropped.values(), Cost())

    def computed(self, key: str) -> Any:
        """Returns the JSON document stored by `add_computed`, or None if it is missing."""
        row = self._connection.execute("SELECT content FROM computed WHERE key = ?", (key,)).fetchone()
        with self._reading():
            return None if row is None else json.loads(row[0])

    def add_computed(
        self, key: str, content: Any, arrays: Mapping[str, Tensor] | None = None, spent: Cost | None = None
    ) -> None:
        """Stores a JSON document that took long to compute, unless the key exists already.

        Args:
            key: the key.
            content: the document.
            arrays: large arrays that belong to it.
            spent: what it adds to `spent`.
        """
        cost = spent or Cost()
        values = key, json.dumps(content), cost.networks, cost.steps, cost.seconds
        with self._connection:
            if self._insert("computed (key, content, networks, steps, seconds)", values):
                self._insert_arrays(key, {"arrays": arrays})

    def arrays(self, key: str, name: str = "arrays") -> dict[str, Tensor] | None:
        """Returns arrays of a network or a computation, or None if there are none of this name."""
        query = "SELECT content FROM arrays WHERE key = ? AND name = ? ORDER BY piece"
        content = b"".join(piece for (piece,) in self._connection.execute(query, (key, name)))
        with self._reading():
            return unpack_tensors(content) if content else None

    def affinity(self, key: str) -> tuple[Affinity, Cost] | None:
        """Returns a measured affinity and the cost of the training run that measured it, or None if it is missing."""
        document = self.computed(key)
        if document is None:
            return None
        tensors = self.arrays(key)
        with self._reading():
            arrays = {name: tensor.numpy() for name, tensor in (tensors or {}).items()}
            skipped = {reason: arrays.pop(f"skipped {reason}") for reason in document["skipped"]}
            affinity = Affinity(document["tasks"], **arrays, skipped=skipped, settings=document["settings"])
            return affinity, Cost(**document["cost"])

    def add_affinity(self, key: str, affinity: Affinity, cost: Cost, spent: Cost) -> None:
        """Stores a measured affinity.

        Args:
            key: the key.
            affinity: the affinity.
            cost: the cost of the training run that measured it.
            spent: what it adds to `spent`, apart from its network if that is stored, too.
        """
        arrays = {name: torch.tensor(getattr(affinity, name)) for name in AFFINITY_ARRAYS}
        arrays |= {f"skipped {reason}": torch.tensor(counts) for reason, counts in affinity.skipped.items()}
        about = {"tasks": affinity.tasks, "settings": dict(affinity.settings), "skipped": list(affinity.skipped)}
        self.add_computed(key, about | {"cost": asdict(cost)}, arrays, spent)

    def has_key_starting_with(self, start: str) -> bool:
        """Whether the store contains a network or computation whose key starts with `start`."""
        query = "SELECT 1 FROM (SELECT key FROM networks UNION ALL SELECT key FROM computed) WHERE key GLOB ?"
        return self._connection.execute(query, (f"{start}*",)).fetchone() is not None

    def _insert(self, columns: str, values: tuple[Any, ...]) -> bool:
        """Adds a row as part of the caller's transaction, and returns whether it is new; others are not changed."""
        placeholders = ", ".join("?" * len(values))
        cursor = self._connection.execute(f"INSERT OR IGNORE INTO {columns} VALUES ({placeholders})", values)
        return cursor.rowcount > 0

    def _insert_arrays(self, key: str, arrays: Mapping[str, Mapping[str, Tensor] | None]) -> None:
        """Adds named arrays as part of the caller's transaction; existing ones are not changed."""
        for name, tensors in arrays.items():
            content = memoryview(b"" if tensors is None else pack_tensors(tensors))
            for piece, start in enumerate(range(0, len(content), PIECE_BYTES)):
                values = key, name, piece, content[start : start + PIECE_BYTES]
                self._insert("arrays (key, name, piece, content)", values)

    def _stored_weights(self, keys: Iterable[str]) -> set[str]:
        return {key for (key,) in self._select("key", keys, "arrays", "name = 'weights'")}

    def _select(
        self, columns: str, keys: Iterable[str], table: str = "networks", condition: str = "TRUE"
    ) -> Iterator[tuple[Any, ...]]:
        wanted = list(keys)
        for start in range(0, len(wanted), MAX_KEYS):
            some = wanted[start : start + MAX_KEYS]
            placeholders = ", ".join("?" * len(some))
            query = f"SELECT {columns} FROM {table} WHERE {condition} AND key IN ({placeholders})"
            yield from self._connection.execute(query, some).fetchall()


def _is_disk_full(error: Exception) -> bool:
    return "disk is full" in str(error)


def _row_losses(trained: Trained) -> dict[str, dict[str, Tensor]]:
    """Returns each task's loss on every row of "val" and "test", where the losses of all tasks are known."""
    losses = {}
    for part, scores in (("val losses", trained.val), ("test losses", trained.test)):
        with np.errstate(over="ignore"):  # infinite if training nearly diverged
            rows = {task: score.rows.astype(np.float32) for task, score in scores.items() if score.rows is not None}
        if len(rows) == len(scores):
            losses[part] = {task: torch.from_numpy(by_row) for task, by_row in rows.items()}
    return losses


def pack_tensors(tensors: Mapping[str, Tensor]) -> bytes:
    """Serializes named tensors, e.g. a state dict."""
    return save({name: tensor.detach().cpu().clone().contiguous() for name, tensor in tensors.items()})


def unpack_tensors(content: bytes) -> dict[str, Tensor]:
    """Deserializes tensors, without running any code."""
    try:
        return load(content)
    except SafetensorError as error:
        raise ValueError(str(error)) from None
