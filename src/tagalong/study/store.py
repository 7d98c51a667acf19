"""The store of a run, `run.sqlite`: a row for each trained network, and what else took long to compute.

A network is written once, when its training finishes. Its definition and results are JSON. Weights, the losses of all
rows and answers on validation and test rows are safetensors, which hold no code.
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
from tagalong.errors import InvalidInput
from tagalong.files import DocumentError, damage_logger, json_safe, report_damage
from tagalong.learn import Job, Trained
from tagalong.score import Score

from .records import Cost

Losses = dict[str, NDArray[np.float32]]
VERSION = 6
AFFINITY_ARRAYS = ("mean", "stderr", "count", "steps", "history", "null")
LOCK_TIMEOUT = 120.0  # seconds to wait for another process to finish writing
MAX_BLOB_BYTES = 10**9  # SQLite's limit
MAX_KEYS = 500  # in one query, since SQLite limits the number of placeholders
SCHEMA = """
CREATE TABLE IF NOT EXISTS networks (
    key TEXT PRIMARY KEY, definition TEXT NOT NULL, results TEXT NOT NULL,
    batch TEXT NOT NULL, place INTEGER NOT NULL,
    steps INTEGER NOT NULL, seconds REAL NOT NULL,
    weights BLOB, losses BLOB, val BLOB, test BLOB, kept INTEGER NOT NULL DEFAULT 0
);
CREATE TABLE IF NOT EXISTS computed (
    key TEXT PRIMARY KEY, content TEXT NOT NULL, arrays BLOB,
    networks INTEGER NOT NULL, steps INTEGER NOT NULL, seconds REAL NOT NULL
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
                weights = None if trained.state is None else pack_tensors(trained.state)
                if weights is not None and len(weights) > MAX_BLOB_BYTES:
                    expected = f"must have at most {MAX_BLOB_BYTES / 1e9:g} GB of weights"
                    raise InvalidInput("networks", expected, f"{len(weights) / 1e9:.1f} GB")
                results = {name: getattr(trained, name) for name in NetworkResults.model_fields}
                if not np.isfinite(list(trained.flattery.values())).all():
                    results["flattery"] = {}
                texts = json.dumps(definition), json.dumps(json_safe(results)), batch
                self._insert(
                    "networks (key, definition, results, batch, place, steps, seconds, weights, losses)",
                    (key, *texts, place, trained.steps, trained.seconds, weights, _pack_losses(trained)),
                )
                for part, outputs in (answers or {}).items():
                    packed = pack_tensors(outputs)
                    self._connection.execute(f"UPDATE networks SET {part} = ? WHERE key = ?", (packed, key))

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
            query = "SELECT key FROM networks WHERE batch = ? ORDER BY place"
            keys = [row[0] for row in self._connection.execute(query, (self._value("batch", key),))]
            results = self.results(keys)
            return [results[other].job for other in keys]

    def weights(self, key: str) -> dict[str, Tensor] | None:
        """Returns the weights of a network, or None if they were not kept."""
        return self._tensors("weights", key)

    def losses(self, key: str, part: str = "test") -> Losses | None:
        """Returns each task's loss on every row of "val" or "test", or None if they are unknown."""
        tensors = self._tensors("losses", key)
        if tensors is None or part not in tensors:
            return None
        return dict(zip(self.results([key])[key].job.tasks, tensors[part].numpy(), strict=True))

    def answers(self, key: str, part: str) -> dict[str, Tensor] | None:
        """Returns the outputs of a network for each task on the rows of "val" or "test", or None if not stored."""
        return self._tensors(part, key)

    def add_answers(self, key: str, part: str, outputs: Mapping[str, Tensor]) -> None:
        """Stores the outputs of a network for each task, or keeps its weights if these take less space.

        In either case, the outputs remain known after `drop_weights`.
        """
        content = pack_tensors(outputs)
        weights = self._value("weights", key)
        if weights is not None and len(weights) < len(content):
            self.keep([key])
            return
        with self._connection:
            self._connection.execute(f"UPDATE networks SET {part} = ? WHERE key = ?", (content, key))

    def without_weights(self, keys: Iterable[str]) -> list[str]:
        """Returns the keys of networks whose weights are not in the store, except for those that diverged."""
        condition = "weights IS NULL AND json_extract(results, '$.best_epoch') >= 0"
        return [key for key, missing in self._select(f"key, {condition}", keys) if missing]

    def add_weights(self, trained: Mapping[str, Trained]) -> None:
        """Writes the weights of networks, given by key, whose weights were dropped."""
        with self._connection:
            self._connection.executemany(
                "UPDATE networks SET weights = ? WHERE key = ? AND weights IS NULL",
                [(pack_tensors(one.state), key) for key, one in trained.items() if one.state is not None],
            )

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
        rows = self._select("key, steps, seconds, kept = 0 AND weights IS NOT NULL", keys)
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
        cost, packed = spent or Cost(), None if arrays is None else pack_tensors(arrays)
        values = key, json.dumps(content), packed, cost.networks, cost.steps, cost.seconds
        with self._connection:
            self._insert("computed (key, content, arrays, networks, steps, seconds)", values)

    def affinity(self, key: str) -> tuple[Affinity, Cost] | None:
        """Returns a measured affinity and the cost of the training run that measured it, or None if it is missing."""
        document = self.computed(key)
        if document is None:
            return None
        packed = self._connection.execute("SELECT arrays FROM computed WHERE key = ?", (key,)).fetchone()[0]
        with self._reading():
            arrays = {name: tensor.numpy() for name, tensor in unpack_tensors(packed).items()}
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

    def _insert(self, columns: str, values: tuple[Any, ...]) -> None:
        """Adds a row as part of the caller's transaction; an existing row is not changed."""
        placeholders = ", ".join("?" * len(values))
        self._connection.execute(f"INSERT OR IGNORE INTO {columns} VALUES ({placeholders})", values)

    def _value(self, column: str, key: str) -> Any:
        return self._connection.execute(f"SELECT {column} FROM networks WHERE key = ?", (key,)).fetchone()[0]

    def _tensors(self, column: str, key: str) -> dict[str, Tensor] | None:
        content = self._value(column, key)
        with self._reading():
            return None if content is None else unpack_tensors(content)

    def _select(self, columns: str, keys: Iterable[str]) -> Iterator[tuple[Any, ...]]:
        wanted = list(keys)
        for start in range(0, len(wanted), MAX_KEYS):
            some = wanted[start : start + MAX_KEYS]
            placeholders = ", ".join("?" * len(some))
            query = f"SELECT {columns} FROM networks WHERE key IN ({placeholders})"
            yield from self._connection.execute(query, some).fetchall()


def _is_disk_full(error: Exception) -> bool:
    return "disk is full" in str(error)


def _pack_losses(trained: Trained) -> bytes | None:
    """Returns the loss of each row of "val" and "test" [tasks, rows], if they are known."""
    parts = {}
    for part, scores in (("val", trained.val), ("test", trained.test)):
        rows = [losses for task in trained.job.tasks if (losses := scores[task].rows) is not None]
        if len(rows) == len(trained.job.tasks):
            with np.errstate(over="ignore"):  # infinite if training nearly diverged
                parts[part] = torch.from_numpy(np.stack(rows).astype(np.float32))
    return pack_tensors(parts) if parts else None


def pack_tensors(tensors: Mapping[str, Tensor]) -> bytes:
    """Serializes named tensors, e.g. a state dict."""
    return save({name: tensor.detach().cpu().clone().contiguous() for name, tensor in tensors.items()})


def unpack_tensors(content: bytes) -> dict[str, Tensor]:
    """Deserializes tensors, without running any code."""
    try:
        return load(content)
    except SafetensorError as error:
        raise ValueError(str(error)) from None
