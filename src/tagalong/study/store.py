"""The store of trained networks, `run.sqlite`: each network is a row that is written once, when it is finished.

Definitions, scores and costs are plain columns, since they are read by the thousand; weights, losses of rows and
affinities are packed as bytes.
"""

from __future__ import annotations

import io
import json
import math
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from tagalong.affinity import Affinity
from tagalong.files import pack_arrays, unpack_arrays
from tagalong.learn import Job, Trained
from tagalong.score import Score

from .records import Cost

Losses = dict[str, NDArray[np.float32]]
PARTS = ("val", "test")
AFFINITY = ("mean", "stderr", "count", "steps", "history", "null")
PIECE = 2**28  # bytes of weights in one blob; larger ones are split
VERSION = 2  # keys of version 1 depended on the release and on module paths, so their networks cannot be found
PATIENCE = 120.0  # seconds to wait for another process that writes
SCHEMA = """
CREATE TABLE IF NOT EXISTS networks (
    key TEXT PRIMARY KEY, definition TEXT NOT NULL, scores TEXT NOT NULL, steps INTEGER NOT NULL,
    seconds REAL NOT NULL, parameters INTEGER NOT NULL, best_epoch INTEGER NOT NULL, batch TEXT NOT NULL,
    kept INTEGER NOT NULL DEFAULT 0, curve BLOB, weights BLOB, losses BLOB
);
CREATE TABLE IF NOT EXISTS affinities (
    key TEXT PRIMARY KEY, network TEXT NOT NULL, settings TEXT NOT NULL, steps INTEGER NOT NULL,
    seconds REAL NOT NULL, affinity BLOB NOT NULL
);
CREATE TABLE IF NOT EXISTS latencies (key TEXT PRIMARY KEY, seconds REAL NOT NULL);
"""
COLUMNS = "key, definition, scores, steps, seconds, parameters, best_epoch"
PIECES_SCHEMA = "CREATE TABLE IF NOT EXISTS pieces (key TEXT, place INTEGER, content BLOB, PRIMARY KEY (key, place))"


@dataclass(frozen=True)
class NetworkResult:
    """The result of training a network; workers return it and the store keeps it.

    The large parts are bytes; they are None or empty in what `Store.results` returns, which does not read them.

    Attributes:
        job: what was trained.
        val: validation score of each task.
        test: test score of each task.
        steps: total number of training steps.
        seconds: training time.
        parameters: number of parameters of encoder and heads; 0 if unknown.
        best_epoch: the epoch whose weights were kept; -1 if training diverged.
        halves: the loss of each task on each half of the validation rows; empty if unknown.
        key: the key in the store, see `Keys`; empty outside it.
        curve: the validation losses of each epoch, float32.
        weights: a state dict.
        losses: validation and test loss of every row.
        affinity: the measured affinity, if there was a meter; measuring again gives the same bytes.
        overhead: seconds of measuring per second of training; unlike `affinity`, it varies from run to run.
    """

    job: Job
    val: Mapping[str, Score]
    test: Mapping[str, Score]
    steps: int
    seconds: float
    parameters: int
    best_epoch: int = 0
    halves: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    key: str = ""
    curve: bytes = field(default=b"", repr=False)
    weights: bytes | None = field(default=None, repr=False)
    losses: bytes | None = field(default=None, repr=False)
    affinity: bytes | None = field(default=None, repr=False)
    overhead: float | None = None

    @property
    def cost(self) -> Cost:
        """The cost of training this network."""
        return Cost(1, self.steps, self.seconds)

    @property
    def diverged(self) -> bool:
        """Whether no validation loss was finite: then all scores are NaN, and there are no weights."""
        return self.best_epoch < 0


class StoreError(ValueError):
    """A file is not a store of networks, is damaged, or has another version."""


class Store:
    """The networks of a run.

    Several processes may open the same store: each row is written atomically by the first process that has it.

    Args:
        path: the file; created if it does not exist.
    """

    def __init__(self, path: Path) -> None:
        self.path = Path(path)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        try:
            self._connection = sqlite3.connect(self.path, timeout=PATIENCE)
        except sqlite3.OperationalError as error:
            raise StoreError(f"{self.path}: {error}; choose another folder") from error
        try:
            self._prepare()
        except BaseException:
            self.close()
            raise

    def _prepare(self) -> None:
        # No write-ahead log: it is not safe on network file systems.
        try:
            (version,) = self._connection.execute("PRAGMA user_version").fetchone()
            if version not in (0, VERSION):
                raise StoreError(self._version_message(version))
            if not version:
                self._connection.executescript(f"BEGIN IMMEDIATE;{SCHEMA}PRAGMA user_version = {VERSION};COMMIT;")
        except sqlite3.DatabaseError as error:
            if isinstance(error, sqlite3.OperationalError):
                raise
            raise StoreError(
                f"{self.path} is not a store of networks ({error}); remove it, or choose another folder"
            ) from error

    def _version_message(self, version: int) -> str:
        if version > VERSION:
            return f"{self.path} has version {version}, expected {VERSION}; update tagalong"
        return (
            f"`out`: {self.path.parent} holds a run of an earlier tagalong, whose networks this one cannot use; "
            "choose another folder, or delete this one"
        )

    def close(self) -> None:
        """Closes the file."""
        self._connection.close()

    def __enter__(self) -> Store:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self.close()
        if isinstance(error, sqlite3.DatabaseError):
            advice = "if it is damaged, remove it or choose another folder"
            raise StoreError(f"{self.path} cannot be read or written ({error}); {advice}") from error

    def add(
        self, finished: Mapping[str, tuple[Mapping[str, Any], NetworkResult]], batch: Sequence[str] | None = None
    ) -> None:
        """Writes finished networks in one transaction; rows that already exist are not changed.

        Args:
            finished: the definition and the result of each network, by key.
            batch: keys of all networks that were trained as one computation, in order; training the same batch
                again gives the same numbers to the last bit. None: the batch is `finished`.
        """
        together = json.dumps(list(finished if batch is None else batch))
        with self._connection:
            values = [
                (key, json.dumps(definition, default=repr), _scores_text(result), result.steps, result.seconds,
                 result.parameters, result.best_epoch, together, result.curve,
                 _put_weights(self._connection, key, result.weights), result.losses)
                for key, (definition, result) in finished.items()
            ]  # fmt: skip
            self._connection.executemany(
                f"INSERT OR IGNORE INTO networks ({COLUMNS}, batch, curve, weights, losses) VALUES ({_marks(11)})",
                values,
            )

    def results(self, keys: Iterable[str]) -> dict[str, NetworkResult]:
        """Returns the results of those networks that are in the store, by key, without their large parts."""
        return {key: _read_result(key, *values) for key, *values in self._select(COLUMNS, keys)}

    def __len__(self) -> int:
        return int(self._connection.execute("SELECT count(*) FROM networks").fetchone()[0])

    def spent(self) -> Cost:
        """Returns the cost of all networks and measurements in the store."""
        sums = "count(*), coalesce(sum(steps), 0), coalesce(sum(seconds), 0.0)"
        (networks,) = self._connection.execute(f"SELECT {sums} FROM networks").fetchall()
        measured = self._connection.execute("SELECT steps, seconds, settings FROM affinities").fetchall()
        return sum((_measurement_cost(*row) for row in measured), Cost(*networks))

    def batch(self, key: str) -> list[Job]:
        """Returns the jobs that were trained as one computation with this network, in order."""
        ((_, text),) = self._select("key, batch", [key])
        keys = json.loads(text)
        found = {other: _job(json.loads(definition)) for other, definition in self._select("key, definition", keys)}
        return [found[other] for other in keys]

    def weights(self, key: str) -> dict[str, Tensor] | None:
        """Returns the weights of a network; None if they are not kept."""
        ((_, held),) = self._select("key, weights", [key])
        content = _get_weights(self._connection, key, held)
        return None if content is None else _unpack_weights(content)

    def losses(self, key: str, part: str = "test") -> Losses | None:
        """Returns the loss of every row by task; None if they are not kept."""
        ((_, definition, content),) = self._select("key, definition, losses", [key])
        return None if content is None else _unpack_losses(content, _job(json.loads(definition)).tasks, part)

    def pruned(self, keys: Iterable[str]) -> list[str]:
        """Returns the keys of networks whose weights or losses were dropped; diverged networks never had any."""
        condition = "best_epoch >= 0 AND (weights IS NULL OR losses IS NULL)"
        return [key for key, is_pruned in self._select(f"key, {condition}", keys) if is_pruned]

    def restore(self, key: str, result: NetworkResult) -> None:
        """Writes weights and losses of a pruned network again; its scores are not changed."""
        with self._connection:
            held = _put_weights(self._connection, key, result.weights)
            self._connection.execute(
                "UPDATE networks SET weights = ?, losses = ? WHERE key = ?", (held, result.losses, key)
            )

    def keep(self, keys: Iterable[str]) -> None:
        """Marks networks so that `prune` keeps their weights and losses."""
        with self._connection:
            self._connection.executemany("UPDATE networks SET kept = 1 WHERE key = ?", [(key,) for key in keys])

    def prune(self) -> int:
        """Drops weights and losses of networks that are not marked by `keep`; their rows stay.

        Returns:
            The number of networks whose weights were dropped.
        """
        with self._connection:
            dropped = self._connection.execute(
                "UPDATE networks SET weights = NULL, losses = NULL WHERE kept = 0 AND weights IS NOT NULL"
            ).rowcount
            _drop_pieces(self._connection)
        if dropped:
            with suppress(sqlite3.OperationalError):  # another process reads: the file shrinks next time
                self._connection.execute("VACUUM")
        return dropped

    def affinity(self, key: str) -> tuple[Affinity, Cost] | None:
        """Returns a measured affinity and the cost of the training that it was measured in."""
        found = self._connection.execute(
            "SELECT affinity, steps, seconds, settings FROM affinities WHERE key = ?", (key,)
        ).fetchone()
        if found is None:
            return None
        affinity = _unpack_affinity(found[0])
        timed = {name: value for name, value in json.loads(found[3]).items() if name == "overhead"}
        affinity = replace(affinity, settings={**affinity.settings, **timed})
        return affinity, Cost(1, plain_steps(affinity, found[1]), found[2])

    def add_affinity(self, key: str, network: str, settings: Mapping[str, Any], result: NetworkResult) -> None:
        """Writes the affinity that was measured while a network trained; if the network is new, it is added later."""
        about: dict[str, Any] = {**settings, "shared": not self.results([network])}
        if result.overhead is not None:
            about["overhead"] = result.overhead
        values = (key, network, json.dumps(about, sort_keys=True, default=repr), result.steps, result.seconds)
        with self._connection:
            self._connection.execute(
                "INSERT OR IGNORE INTO affinities (key, network, settings, steps, seconds, affinity) "
                f"VALUES ({_marks(6)})",
                (*values, result.affinity),
            )

    def has_key_starting_with(self, start: str) -> bool:
        """Whether the store has a network or a measurement whose key starts with `start`."""
        query = "SELECT key FROM (SELECT key FROM networks UNION ALL SELECT key FROM affinities) WHERE key GLOB ?"
        return self._connection.execute(query, (f"{start}*",)).fetchone() is not None

    def latency(self, key: str) -> float | None:
        """Returns the seconds of a forward pass, if it was timed before."""
        found = self._connection.execute("SELECT seconds FROM latencies WHERE key = ?", (key,)).fetchone()
        return None if found is None else float(found[0])

    def add_latency(self, key: str, seconds: float) -> None:
        """Writes the seconds of a forward pass."""
        with self._connection:
            self._connection.execute("INSERT OR IGNORE INTO latencies VALUES (?, ?)", (key, seconds))

    def _select(self, columns: str, keys: Iterable[str]) -> Iterator[tuple[Any, ...]]:
        wanted = list(keys)
        for start in range(0, len(wanted), 500):  # SQLite limits the number of marks
            some = wanted[start : start + 500]
            yield from self._connection.execute(
                f"SELECT {columns} FROM networks WHERE key IN ({_marks(len(some))})", some
            ).fetchall()


def _marks(number: int) -> str:
    return ", ".join("?" * number)


def _job(definition: Mapping[str, Any]) -> Job:
    named = {name: definition[name] for name in ("seed", "rule", "width")}
    return Job(tuple(definition["tasks"]), **named, epochs=definition.get("epochs"))


def _read_result(
    key: str, definition: str, scores: str, steps: int, seconds: float, parameters: int, best_epoch: int
) -> NetworkResult:
    document = json.loads(scores)
    val, test = (
        {task: Score(_number(loss), _number(error)) for task, (loss, error) in document[part].items()} for part in PARTS
    )
    halves = {task: (_number(one), _number(two)) for task, (one, two) in document.get("halves", {}).items()}
    job = _job(json.loads(definition))
    return NetworkResult(job, val, test, steps, seconds, parameters, best_epoch, halves, key)


def _scores_text(result: NetworkResult) -> str:
    """Formats scores and halves as JSON, with null for numbers that are not finite."""
    scores: dict[str, Any] = {
        part: {task: [_or_none(score.loss), _or_none(score.error)] for task, score in getattr(result, part).items()}
        for part in PARTS
    }
    scores["halves"] = {task: [_or_none(loss) for loss in pair] for task, pair in result.halves.items()}
    return json.dumps(scores, allow_nan=False)


def _number(value: float | None) -> float:
    return float("nan") if value is None else float(value)


def _put_weights(connection: sqlite3.Connection, key: str, content: bytes | None) -> bytes | int | None:
    """Returns what to write into the row of a network: its weights, or the number of pieces that hold them.

    Pieces are written as part of the caller's transaction.
    """
    if content is None or len(content) <= PIECE:
        return content
    connection.execute(PIECES_SCHEMA)
    places = range(-(-len(content) // PIECE))
    view = memoryview(content)
    connection.executemany(
        "INSERT OR IGNORE INTO pieces VALUES (?, ?, ?)",
        ((key, place, view[place * PIECE : (place + 1) * PIECE]) for place in places),
    )
    return len(places)


def _get_weights(connection: sqlite3.Connection, key: str, held: bytes | int | None) -> bytes | None:
    """Returns the weights of a network, given what its row holds."""
    if not isinstance(held, int):
        return held
    pieces = connection.execute("SELECT content FROM pieces WHERE key = ? ORDER BY place", (key,))
    return b"".join(content for (content,) in pieces)


def _drop_pieces(connection: sqlite3.Connection) -> None:
    """Removes pieces that belong to no row."""
    if connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'pieces'").fetchone():
        connection.execute("DELETE FROM pieces WHERE key NOT IN (SELECT key FROM networks WHERE weights IS NOT NULL)")


def _measurement_cost(steps: int, seconds: float, settings: str) -> Cost:
    """Returns the cost of a measurement: of the whole training, or only of measuring if the network is in the store."""
    about = json.loads(settings)
    overhead = about.get("overhead", 0.0)
    return Cost(0, 0, seconds * overhead / (1 + overhead)) if about.get("shared") else Cost(1, steps, seconds)


def plain_steps(affinity: Affinity, steps: int, runs: int = 1) -> int:
    """Converts the steps of a training with a meter to plain steps of the same cost.

    A plain step costs three forward passes (the backward pass counts as two). Measuring n tasks takes n backward
    passes, and with lookahead n more forward passes.

    Args:
        affinity: the measured affinity.
        steps: number of steps of the training.
        runs: number of trainings that share the measured steps equally.

    Example:
        >>> import numpy as np
        >>> affinity = Affinity.from_history(np.zeros((10, 3, 3)), ["age", "ill", "fit"])
        >>> plain_steps(affinity, 100)
        123
    """
    n = len(affinity.tasks)
    passes = 1 + (3 if affinity.settings.get("estimator", "lookahead") == "lookahead" else 2) * n
    return round(steps + len(affinity.steps) * (passes - 3) / 3 / runs)


def pack(trained: Trained, groups: Tensor | None = None) -> NetworkResult:
    """Packs a trained network into text and bytes.

    Args:
        trained: the network.
        groups: the group of each validation row; rows of one group are put into the same half.
    """
    val, test = (
        {task: Score(score.loss, score.error) for task, score in getattr(trained, part).items()} for part in PARTS
    )
    affinity, overhead = trained.affinity, None
    if affinity is not None:
        timeless = dict(affinity.settings)
        overhead = timeless.pop("overhead", None)
        affinity = replace(affinity, settings=timeless)
    return NetworkResult(
        job=trained.job,
        val=val,
        test=test,
        steps=int(trained.steps),
        seconds=float(trained.seconds),
        parameters=int(trained.parameters),
        best_epoch=int(trained.best_epoch),
        halves=halve_rows({task: score.rows for task, score in trained.val.items()}, groups),
        curve=_single(trained.curve).tobytes(),
        weights=None if trained.state is None else _pack_weights(trained.state),
        losses=_pack_losses(trained),
        affinity=None if affinity is None else _pack_affinity(affinity),
        overhead=overhead,
    )


def _single(losses: ArrayLike) -> NDArray[np.float32]:
    with np.errstate(over="ignore"):  # infinite if training nearly diverged
        return np.asarray(losses).astype(np.float32)


def halve_rows(
    losses: Mapping[str, NDArray[np.float32] | None], groups: Tensor | None = None
) -> dict[str, tuple[float, float]]:
    """Returns the mean loss of each task on each half of the rows; empty if losses of rows are unknown.

    Args:
        losses: the loss of every row, by task; NaN if a row has no label.
        groups: the group of each row; rows of one group are put into the same half.

    Example:
        >>> halve_rows({"age": np.array([1.0, 2.0, 3.0, float("nan")])})
        {'age': (2.0, 2.0)}
    """
    rows = {task: values for task, values in losses.items() if values is not None}
    if len(rows) < len(losses) or not rows:
        return {}
    number = np.arange(len(next(iter(rows.values()))))
    if groups is not None:
        number = np.unique(groups.numpy(), return_inverse=True)[1]
    first = number % 2 == 0
    return {task: (_mean(values[first]), _mean(values[~first])) for task, values in rows.items()}


def _mean(losses: NDArray[np.float32]) -> float:
    present = losses[np.isfinite(losses)].astype(np.float64)
    return float(present.mean()) if len(present) else math.nan


def _or_none(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


def _pack_weights(state: Mapping[str, Tensor]) -> bytes:
    """Packs a state dict into bytes."""
    content = io.BytesIO()
    torch.save({name: tensor.detach().cpu().clone() for name, tensor in state.items()}, content)
    return content.getvalue()


def _unpack_weights(content: bytes) -> dict[str, Tensor]:
    """Unpacks a state dict."""
    state: dict[str, Tensor] = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    return state


def _pack_losses(trained: Trained) -> bytes | None:
    arrays = {}
    for part in PARTS:
        rows = [getattr(trained, part)[task].rows for task in trained.job.tasks]
        if any(losses is None for losses in rows):
            return None
        arrays[part] = _single(np.stack(rows))
    return pack_arrays(arrays)


def _unpack_losses(content: bytes, tasks: tuple[str, ...], part: str) -> Losses:
    """Unpacks the loss of every row of a part, by task."""
    return dict(zip(tasks, unpack_arrays(content, [part])[part], strict=True))


def _pack_affinity(affinity: Affinity) -> bytes:
    """Packs an affinity into bytes."""
    about = {"tasks": affinity.tasks, "settings": dict(affinity.settings), "skipped": list(affinity.skipped)}
    arrays: dict[str, Any] = {name: getattr(affinity, name) for name in AFFINITY}
    arrays |= {f"skipped {i}": counts for i, counts in enumerate(affinity.skipped.values())}
    return pack_arrays(arrays | {"about": np.array(json.dumps(about))})


def _unpack_affinity(content: bytes) -> Affinity:
    """Unpacks an affinity, bit for bit as it was packed."""
    arrays = unpack_arrays(content)
    about = json.loads(str(arrays["about"]))
    skipped = {why: arrays[f"skipped {i}"] for i, why in enumerate(about["skipped"])}
    fields = {name: arrays[name] for name in AFFINITY}
    return Affinity(tasks=tuple(about["tasks"]), settings=about["settings"], skipped=skipped, **fields)
