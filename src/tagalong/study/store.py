"""The store of trained networks, `run.sqlite`.

Each network is a row that is written once, when its training finishes. Definitions, scores and costs are stored in
plain columns, since thousands of them are read at once. Weights, per-row losses and affinities are stored as binary
blobs. Every row has a checksum of its plain columns, which is verified when the store is opened. Every blob has its own
checksum, which is verified when the blob is read. A damaged network is dropped with a warning and trained again.
"""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial, wraps
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

from torch import Tensor

from tagalong.affinity import Affinity
from tagalong.errors import pluralize
from tagalong.files import READ_ERRORS, add_checksum, damage_logger, remove_checksum
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

P = ParamSpec("P")
T = TypeVar("T")
MAX_PIECE_BYTES = 2**28  # maximum bytes of weights in one blob; larger weights are split
VERSION = 3  # version 2 had no checksums; keys of version 1 depended on module paths, so its networks cannot be found
LOCK_TIMEOUT = 120.0  # seconds to wait for another process to finish writing
SCHEMA = """
CREATE TABLE IF NOT EXISTS networks (
    key TEXT PRIMARY KEY, definition TEXT NOT NULL, scores TEXT NOT NULL, steps INTEGER NOT NULL,
    seconds REAL NOT NULL, parameters INTEGER NOT NULL, best_epoch INTEGER NOT NULL, batch TEXT NOT NULL,
    kept INTEGER NOT NULL DEFAULT 0, curve BLOB, weights BLOB, losses BLOB, checksum TEXT NOT NULL DEFAULT ''
);
CREATE TABLE IF NOT EXISTS affinities (
    key TEXT PRIMARY KEY, network TEXT NOT NULL, settings TEXT NOT NULL, steps INTEGER NOT NULL,
    seconds REAL NOT NULL, affinity BLOB NOT NULL, checksum TEXT NOT NULL DEFAULT ''
);
CREATE TABLE IF NOT EXISTS latencies (
    key TEXT PRIMARY KEY, seconds REAL NOT NULL, checksum TEXT NOT NULL DEFAULT ''
);
"""
RESULT_COLUMNS = "key, definition, scores, steps, seconds, parameters, best_epoch"
# The plain columns of each table, which the checksum of a row covers, and its blobs, which have their own.
CHECKED = {
    "networks": f"{RESULT_COLUMNS}, batch",
    "affinities": "key, network, settings, steps, seconds",
    "latencies": "key, seconds",
}
BLOBS = {"networks": ("curve", "weights", "losses"), "affinities": ("affinity",), "latencies": ()}
COMPUTED_SCHEMA = "CREATE TABLE IF NOT EXISTS computed (key TEXT PRIMARY KEY, content BLOB NOT NULL)"
PIECES_SCHEMA = "CREATE TABLE IF NOT EXISTS pieces (key TEXT, place INTEGER, content BLOB, PRIMARY KEY (key, place))"


class StoreError(ValueError):
    """Raised if a file is not a store of networks, is damaged, or has an unsupported version."""


TRAIN_AGAIN = "delete it to train its networks again, or choose another folder"


def _naming_damage(read: Callable[Concatenate[Store, P], T]) -> Callable[Concatenate[Store, P], T]:
    """Makes a method raise a StoreError if a row has a correct checksum but unexpected content."""

    @wraps(read)
    def wrapped(store: Store, /, *arguments: P.args, **keywords: P.kwargs) -> T:
        try:
            return read(store, *arguments, **keywords)
        except READ_ERRORS as error:
            if isinstance(error, (StoreError, OSError)):
                raise
            raise StoreError(f"{store.path} is damaged ({type(error).__name__} in a row); {TRAIN_AGAIN}") from error

    return wrapped


class Store:
    """The networks of a run.

    Multiple processes can use the same store. Each row is written atomically by the process that finishes first.

    Args:
        path: the file, which is created if it does not exist.
        verify: whether to check for damage and drop rows with a wrong checksum, with a warning.

    Raises:
        StoreError: If the file is not a store, has an unsupported version, or has damage beyond individual rows.
        OSError: If the disk is full.
    """

    def __init__(self, path: Path, verify: bool = True) -> None:
        self.path = Path(path)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        try:
            self._connection = sqlite3.connect(self.path, timeout=LOCK_TIMEOUT)
        except sqlite3.OperationalError as error:
            raise StoreError(f"could not open {self.path} ({error}); choose another folder") from error
        self._connection.text_factory = partial(str, encoding="utf-8", errors="replace")  # damaged text, too
        try:
            self._prepare_tables(verify)
        except (sqlite3.DatabaseError, UnicodeDecodeError) as error:
            self.close()
            raise self._unreadable(error) from error
        except BaseException:
            self.close()
            raise

    def _prepare_tables(self, verify: bool) -> None:
        # No write-ahead log: it is not safe on network file systems.
        (version,) = self._connection.execute("PRAGMA user_version").fetchone()
        if version not in (0, 2, VERSION):
            raise StoreError(self._version_message(version))
        if not version:
            self._connection.executescript(f"BEGIN IMMEDIATE;{SCHEMA}PRAGMA user_version = {VERSION};COMMIT;")
        if version == 2:
            _add_checksums(self._connection)
        if verify:
            self._check_structure()
            for table in CHECKED:
                self._drop_damaged_rows(table)
            self._drop_incomplete_batches()

    def _check_structure(self) -> None:
        """Rebuilds damaged indexes, which are only copies of the keys."""

        def problem() -> str:
            return str(self._connection.execute("PRAGMA integrity_check(1)").fetchone()[0])

        if problem() == "ok":
            return
        self._connection.execute("REINDEX")
        if (found := problem()) != "ok":
            raise StoreError(f"{self.path} is damaged ({' '.join(found.split())}); {TRAIN_AGAIN}")
        damage_logger.warning(
            "%s was damaged and has been repaired; networks that were lost will be trained again", self.path
        )

    def _drop_damaged_rows(self, table: str) -> None:
        rows = self._connection.execute(f"SELECT rowid, checksum, {CHECKED[table]} FROM {table}")
        damaged = [row for row, found, *values in rows if found != _row_checksum(values)]
        if damaged:
            what = "network" if table == "networks" else "measurement"
            damage_logger.warning(
                "%s: %s did not match the checksum and will be computed again if needed",
                self.path,
                pluralize(len(damaged), what),
            )
            self._delete(table, damaged)

    @_naming_damage
    def _drop_incomplete_batches(self) -> None:
        """Drops networks that were trained in the same computation as a damaged one.

        The last bits of a network's results can depend on the other networks, so the whole batch is trained again.
        """
        rows = self._connection.execute("SELECT rowid, key, batch FROM networks").fetchall()
        known = {key for _, key, _ in rows}
        batches = {batch: known.issuperset(json.loads(batch)) for batch in {batch for *_, batch in rows}}
        incomplete = [row for row, _, batch in rows if not batches[batch]]
        if incomplete:
            self._delete("networks", incomplete)
            self._drop_incomplete_batches()  # a network may also be part of a batch of another process

    def _delete(self, table: str, rows: Sequence[int]) -> None:
        if rows:
            with self._connection:
                self._connection.executemany(f"DELETE FROM {table} WHERE rowid = ?", [(row,) for row in rows])
                _drop_pieces(self._connection)

    def _unreadable(self, error: sqlite3.Error | UnicodeDecodeError) -> StoreError | OSError:
        if _is_disk_full(error):
            return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path))
        if isinstance(error, sqlite3.OperationalError) and "malformed" not in str(error):
            return StoreError(f"could not read or write {self.path} ({error}); if it is damaged, {TRAIN_AGAIN}")
        return StoreError(f"{self.path} is not a network store, or it is damaged ({error}); {TRAIN_AGAIN}")

    def _version_message(self, version: int) -> str:
        if version > VERSION:
            return f"{self.path} has version {version}, expected {VERSION}; update tagalong"
        return (
            f"`out`: {self.path.parent} contains a run of an earlier version of tagalong, whose networks cannot be "
            "used; choose another folder, or delete this one"
        )

    def close(self) -> None:
        """Closes the store."""
        self._connection.close()

    def __enter__(self) -> Store:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self.close()
        if isinstance(error, (sqlite3.DatabaseError, UnicodeDecodeError)):
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
                plain = (key, json.dumps(definition, default=repr), _scores_to_json(result), int(result.steps),
                         float(result.seconds), int(result.parameters), int(result.best_epoch), together)  # fmt: skip
                weights = _put_weights(self._connection, key, _add_checksum(result.weights))
                self._insert("networks", plain, add_checksum(result.curve), weights, _add_checksum(result.losses))

    @_naming_damage
    def results(self, keys: Iterable[str]) -> dict[str, NetworkResult]:
        """Returns the results of these networks by key, without their large fields.

        Networks that are not in the store are omitted.
        """
        return {key: _read_result(key, *values) for key, *values in self._select_rows(RESULT_COLUMNS, keys)}

    def __len__(self) -> int:
        return int(self._connection.execute("SELECT count(*) FROM networks").fetchone()[0])

    @_naming_damage
    def spent(self) -> Cost:
        """Returns the total cost of all networks and measurements in the store."""
        sums = "count(*), coalesce(sum(steps), 0), coalesce(sum(seconds), 0.0)"
        (networks,) = self._connection.execute(f"SELECT {sums} FROM networks").fetchall()
        measured = self._connection.execute("SELECT steps, seconds, settings FROM affinities").fetchall()
        return sum((_measurement_cost(*row) for row in measured), Cost(*networks))

    @_naming_damage
    def batch(self, key: str) -> list[Job]:
        """Returns the jobs that were trained in the same computation as this network, in order."""
        ((_, text),) = self._select_rows("key, batch", [key])
        keys = json.loads(text)
        found = {
            other: _read_job(json.loads(definition)) for other, definition in self._select_rows("key, definition", keys)
        }
        return [found[other] for other in keys]

    @_naming_damage
    def weights(self, key: str) -> dict[str, Tensor] | None:
        """Returns the weights of a network, or None if they were not kept."""
        ((_, stored),) = self._select_rows("key, weights", [key])
        content = _get_weights(self._connection, key, stored)
        return None if content is None else unpack_tensors(remove_checksum(content))

    @_naming_damage
    def losses(self, key: str, part: str = "test") -> Losses | None:
        """Returns each task's loss on every row, or None if the losses were not kept."""
        ((_, definition, content),) = self._select_rows("key, definition, losses", [key])
        return (
            None
            if content is None
            else unpack_losses(remove_checksum(content), _read_job(json.loads(definition)).tasks, part)
        )

    def pruned(self, keys: Iterable[str]) -> list[str]:
        """Returns the keys of networks whose weights or losses were dropped or are damaged.

        Diverged networks are not included, since they never had any weights or losses.
        """
        wanted = list(keys)
        self._drop_damaged_blobs(wanted)
        condition = "best_epoch >= 0 AND (weights IS NULL OR losses IS NULL)"
        return [key for key, is_pruned in self._select_rows(f"key, {condition}", wanted) if is_pruned]

    def _drop_damaged_blobs(self, keys: Iterable[str]) -> None:
        damaged = [key for key in keys if not self._has_intact_blobs(key)]
        if damaged:
            damage_logger.warning(
                "%s: the weights of %s are damaged; training again", self.path, pluralize(len(damaged), "network")
            )
            drop = "UPDATE networks SET weights = NULL, losses = NULL WHERE key = ?"
            with self._connection:
                self._connection.executemany(drop, [(key,) for key in damaged])
                _drop_pieces(self._connection)

    def _has_intact_blobs(self, key: str) -> bool:
        return all(
            _is_intact(_get_weights(self._connection, key, weights)) and _is_intact(losses)
            for _, weights, losses in self._select_rows("key, weights, losses", [key])
        )

    def restore(self, key: str, result: NetworkResult) -> None:
        """Restores the weights and losses of a pruned network without changing its scores."""
        with self._connection:
            stored = _put_weights(self._connection, key, _add_checksum(result.weights))
            self._connection.execute(
                "UPDATE networks SET weights = ?, losses = ? WHERE key = ?", (stored, _add_checksum(result.losses), key)
            )

    def keep(self, keys: Iterable[str]) -> None:
        """Marks networks, and those that teach them, so that `prune` keeps their weights and losses."""
        kept: set[str] = set()
        waiting = set(keys)
        while waiting:
            kept |= waiting
            found = [_read_taught(json.loads(text)) for _, text in self._select_rows("key, definition", waiting)]
            waiting = {teacher for taught in found if taught for teacher in taught.teachers} - kept
        with self._connection:
            self._connection.executemany("UPDATE networks SET kept = 1 WHERE key = ?", [(key,) for key in sorted(kept)])

    def prune(self) -> int:
        """Drops the weights and losses of networks that were not marked with `keep`.

        The other columns of these networks are kept.

        Returns:
            The number of networks whose weights were dropped.
        """
        try:
            with self._connection:
                dropped = self._connection.execute(
                    "UPDATE networks SET weights = NULL, losses = NULL WHERE kept = 0 AND weights IS NOT NULL"
                ).rowcount
                _drop_pieces(self._connection)
        except sqlite3.OperationalError as error:
            if not _is_disk_full(error):
                raise
            damage_logger.warning("%s could not be made smaller, since the disk is full", self.path)
            return 0
        if dropped:
            with suppress(sqlite3.OperationalError):  # another process is reading; the file will shrink next time
                self._connection.execute("VACUUM")
        return dropped

    @_naming_damage
    def affinity(self, key: str) -> tuple[Affinity, Cost] | None:
        """Returns a measured affinity and the cost of the training run that measured it, or None if it is missing."""
        found = self._connection.execute(
            "SELECT affinity, steps, seconds, settings FROM affinities WHERE key = ?", (key,)
        ).fetchone()
        if found is not None and not _is_intact(found[0]):
            damage_logger.warning("%s: an affinity is damaged; it is measured again", self.path)
            with self._connection:
                self._connection.execute("DELETE FROM affinities WHERE key = ?", (key,))
            found = None
        if found is None:
            return None
        affinity = unpack_affinity(remove_checksum(found[0]))
        overhead = {name: value for name, value in json.loads(found[3]).items() if name == "overhead"}
        affinity = replace(affinity, settings={**affinity.settings, **overhead})
        return affinity, Cost(1, plain_steps(affinity, found[1]), found[2])

    def add_affinity(self, key: str, network: str, settings: Mapping[str, Any], result: NetworkResult) -> None:
        """Writes the affinity measured while a network was trained.

        Call this method before adding the network itself.
        """
        about: dict[str, Any] = {**settings, "shared": not self.results([network])}
        if result.overhead is not None:
            about["overhead"] = result.overhead
        settings_text = json.dumps(about, sort_keys=True, default=repr)
        plain = (key, network, settings_text, int(result.steps), float(result.seconds))
        with self._connection:
            self._insert("affinities", plain, _add_checksum(result.affinity))

    def has_key_starting_with(self, start: str) -> bool:
        """Whether the store contains a network or measurement whose key starts with `start`."""
        query = "SELECT key FROM (SELECT key FROM networks UNION ALL SELECT key FROM affinities) WHERE key GLOB ?"
        return self._connection.execute(query, (f"{start}*",)).fetchone() is not None

    @_naming_damage
    def latency(self, key: str) -> float | None:
        """Returns the duration of a forward pass in seconds, or None if it was not measured."""
        found = self._connection.execute("SELECT seconds FROM latencies WHERE key = ?", (key,)).fetchone()
        return None if found is None else float(found[0])

    def add_latency(self, key: str, seconds: float) -> None:
        """Writes the duration of a forward pass in seconds."""
        with self._connection:
            self._insert("latencies", (key, float(seconds)))

    def computed(self, key: str) -> bytes | None:
        """Returns the content stored by `add_computed`, or None if it is missing or damaged."""
        if not _has_table(self._connection, "computed"):
            return None
        found = self._connection.execute("SELECT content FROM computed WHERE key = ?", (key,)).fetchone()
        if found is None:
            return None
        if not _is_intact(found[0]):
            damage_logger.warning("%s: a stored result is damaged; it is computed again", self.path)
            with self._connection:
                self._connection.execute("DELETE FROM computed WHERE key = ?", (key,))
            return None
        return remove_checksum(found[0])

    def add_computed(self, key: str, content: bytes) -> None:
        """Stores something that took long to compute, e.g. the outputs of a network, unless the key exists already."""
        with self._connection:
            self._connection.execute(COMPUTED_SCHEMA)
            self._connection.execute("INSERT OR IGNORE INTO computed VALUES (?, ?)", (key, add_checksum(content)))

    def outputs(self, key: str, part: str) -> dict[str, Tensor] | None:
        """Returns the outputs of a network for each task, or None if they were not stored."""
        content = self.computed(_outputs_key(key, part))
        return None if content is None else unpack_tensors(content)

    def add_outputs(self, key: str, part: str, outputs: Mapping[str, Tensor]) -> None:
        """Stores the outputs of a network for each task, or keeps its weights if these take less space.

        In either case, the outputs remain known after `prune`.
        """
        content = pack_tensors(outputs)
        ((_, stored),) = self._select_rows("key, weights", [key])
        weights = _get_weights(self._connection, key, stored)
        if len(content) <= min(len(weights or b""), MAX_PIECE_BYTES):
            self.add_computed(_outputs_key(key, part), content)
        else:
            self.keep([key])

    def _insert(self, table: str, plain: Sequence[Any], *blobs: bytes | int | None) -> None:
        """Adds a row with its checksum as part of the caller's transaction; an existing row is not changed."""
        columns = ", ".join([CHECKED[table], *BLOBS[table], "checksum"])
        values = (*plain, *blobs, _row_checksum(plain))
        self._connection.execute(
            f"INSERT OR IGNORE INTO {table} ({columns}) VALUES ({_sql_placeholders(len(values))})", values
        )

    def _select_rows(self, columns: str, keys: Iterable[str]) -> Iterator[tuple[Any, ...]]:
        wanted = list(keys)
        for start in range(0, len(wanted), 500):  # SQLite limits the number of placeholders
            some = wanted[start : start + 500]
            yield from self._connection.execute(
                f"SELECT {columns} FROM networks WHERE key IN ({_sql_placeholders(len(some))})", some
            ).fetchall()


def _is_disk_full(error: Exception) -> bool:
    return "disk is full" in str(error)


def _has_table(connection: sqlite3.Connection, name: str) -> bool:
    return connection.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (name,)).fetchone() is not None


def _outputs_key(network: str, part: str) -> str:
    return f"{part} outputs of {network}"


def _row_checksum(values: Sequence[Any]) -> str:
    """Returns a checksum of the plain columns of a row; changing the type of a value changes the checksum."""
    return hashlib.sha256(repr(tuple(values)).encode(errors="backslashreplace")).hexdigest()[:32]


def _add_checksum(content: bytes | None) -> bytes | None:
    return None if content is None else add_checksum(content)


def _is_intact(checked: Any) -> bool:
    """Whether a blob is missing or matches its checksum."""
    if checked is None:
        return True
    try:
        remove_checksum(checked)
    except (ValueError, TypeError):
        return False
    return True


def _add_checksums(connection: sqlite3.Connection) -> None:
    """Converts a version 2 store, which has no checksums, in one transaction."""
    connection.execute("BEGIN IMMEDIATE")
    with connection:
        if connection.execute("PRAGMA user_version").fetchone()[0] == VERSION:  # another process was faster
            return
        for table, columns in CHECKED.items():
            connection.execute(f"ALTER TABLE {table} ADD COLUMN checksum TEXT NOT NULL DEFAULT ''")
            for row, *values in connection.execute(f"SELECT rowid, {columns} FROM {table}").fetchall():
                connection.execute(f"UPDATE {table} SET checksum = ? WHERE rowid = ?", (_row_checksum(values), row))
                for blob in BLOBS[table]:
                    _add_checksum_to_blob(connection, table, blob, row, values[0])
        connection.execute(f"PRAGMA user_version = {VERSION}")


def _add_checksum_to_blob(connection: sqlite3.Connection, table: str, column: str, row: int, key: str) -> None:
    (stored,) = connection.execute(f"SELECT {column} FROM {table} WHERE rowid = ?", (row,)).fetchone()
    if isinstance(stored, int):  # weights in pieces
        checked = _add_checksum(_get_weights(connection, key, stored))
        connection.execute("DELETE FROM pieces WHERE key = ?", (key,))
        stored = _put_weights(connection, key, checked)
    else:
        stored = _add_checksum(stored)
    connection.execute(f"UPDATE {table} SET {column} = ? WHERE rowid = ?", (stored, row))


def _sql_placeholders(count: int) -> str:
    return ", ".join("?" * count)


def _read_job(definition: Mapping[str, Any]) -> Job:
    named = {name: definition[name] for name in ("seed", "rule", "width")}
    optional: dict[str, Any] = {name: definition.get(name) for name in ("epochs", "lr", "network")}
    return Job(tuple(definition["tasks"]), **named, **optional, taught=_read_taught(definition))


def _read_taught(definition: Mapping[str, Any]) -> Taught | None:
    document = definition.get("taught")
    if document is None:
        return None
    return Taught.from_document(document | {"unlabelled": document["unlabelled"] is not None})


def _read_result(
    key: str, definition: str, scores: str, steps: int, seconds: float, parameters: int, best_epoch: int
) -> NetworkResult:
    document = json.loads(scores)
    val, test = (
        {task: Score(_nan_if_none(loss), _nan_if_none(error)) for task, (loss, error) in document[part].items()}
        for part in SPLITS
    )
    halves = {task: (_nan_if_none(one), _nan_if_none(two)) for task, (one, two) in document.get("halves", {}).items()}
    job = _read_job(json.loads(definition))
    flattery = {task: float(value) for task, value in document.get("flattery", {}).items()}
    return NetworkResult(job, val, test, steps, seconds, parameters, best_epoch, halves, key, flattery=flattery)


def _scores_to_json(result: NetworkResult) -> str:
    """Formats the scores, the losses on each half of the rows and the flattery, with null for non-finite values."""
    scores: dict[str, Any] = {
        part: {
            task: [_none_if_not_finite(score.loss), _none_if_not_finite(score.error)]
            for task, score in getattr(result, part).items()
        }
        for part in SPLITS
    }
    scores["halves"] = {task: [_none_if_not_finite(loss) for loss in pair] for task, pair in result.halves.items()}
    if all(map(math.isfinite, result.flattery.values())):
        scores["flattery"] = dict(result.flattery)
    return json.dumps(scores, allow_nan=False)


def _nan_if_none(value: float | None) -> float:
    return float("nan") if value is None else float(value)


def _put_weights(connection: sqlite3.Connection, key: str, packed: bytes | None) -> bytes | int | None:
    """Returns the value for a network's weights column: the weights, or the number of pieces if they were split.

    The pieces are written in the caller's transaction.
    """
    if packed is None or len(packed) <= MAX_PIECE_BYTES:
        return packed
    connection.execute(PIECES_SCHEMA)
    places = range(-(-len(packed) // MAX_PIECE_BYTES))
    view = memoryview(packed)
    connection.executemany(
        "INSERT OR IGNORE INTO pieces VALUES (?, ?, ?)",
        ((key, place, view[place * MAX_PIECE_BYTES : (place + 1) * MAX_PIECE_BYTES]) for place in places),
    )
    return len(places)


def _get_weights(connection: sqlite3.Connection, key: str, stored: bytes | int | None) -> bytes | None:
    """Returns the weights of a network, given the value of its weights column."""
    if not isinstance(stored, int):
        return stored
    pieces = connection.execute("SELECT content FROM pieces WHERE key = ? ORDER BY place", (key,))
    return b"".join(content for (content,) in pieces)


def _drop_pieces(connection: sqlite3.Connection) -> None:
    """Removes the pieces of dropped weights."""
    if _has_table(connection, "pieces"):
        connection.execute("DELETE FROM pieces WHERE key NOT IN (SELECT key FROM networks WHERE weights IS NOT NULL)")


def _measurement_cost(steps: int, seconds: float, settings: str) -> Cost:
    """Returns the cost of a measurement.

    If the network is counted separately, only the overhead is included.
    """
    about = json.loads(settings)
    overhead = about.get("overhead", 0.0)
    return Cost(0, 0, seconds * overhead / (1 + overhead)) if about.get("shared") else Cost(1, steps, seconds)


def _none_if_not_finite(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None
