"""`run.sqlite`: every trained network is a row, written when it is finished and never twice.

What is read by the thousand (definition, scores, costs) are plain columns; weights, losses of rows and affinities are
packed as bytes.
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
PIECE = 2**28  # bytes of weights in one blob; larger ones are cut
VERSION = 2  # 1: keys that held the release and where classes were, so that no network is found again
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
    """What is known of a trained network; workers send it and the store keeps it.

    The large parts are bytes, and None (or empty) where they are not at hand: `Store.results` does not read them.

    Attributes:
        job: what was trained.
        val: validation score of each task.
        test: test score of each task.
        steps: taken in all.
        seconds: spent.
        parameters: of encoder and heads; 0 if unknown.
        best_epoch: whose weights were kept; -1 where training diverged.
        halves: the loss of each task on either half of the validation rows; empty if unknown.
        key: in the store, see `Keys`; empty outside it.
        curve: the validation losses of each epoch, float32.
        weights: a state dict.
        losses: validation and test loss of every row.
        affinity: what a meter measured, if there was one; the same bytes whenever it is measured.
        overhead: seconds of measuring per second of training, which are not.
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
        """What this network took."""
        return Cost(1, self.steps, self.seconds)

    @property
    def diverged(self) -> bool:
        """Whether no validation loss was finite: then all scores are NaN, and there are no weights."""
        return self.best_epoch < 0


class StoreError(ValueError):
    """A file that should be a store of networks is not, is damaged, or is of another version."""


class Store:
    """The networks of a run. Several processes may have it open: each row is written whole, once, by the first of them.

    Args:
        path: the file; made if it is not there.
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
                raise StoreError(self._unlike(version))
            if not version:
                self._connection.executescript(f"BEGIN IMMEDIATE;{SCHEMA}PRAGMA user_version = {VERSION};COMMIT;")
        except sqlite3.DatabaseError as error:
            if isinstance(error, sqlite3.OperationalError):
                raise
            raise StoreError(
                f"{self.path} is not a store of networks ({error}); remove it, or choose another folder"
            ) from error

    def _unlike(self, version: int) -> str:
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
        """Writes finished networks in one go, all of them or none; what is there already stays.

        Args:
            finished: by key, the definition and the network.
            batch: keys of all networks that were trained as one computation, in order: training the same ones
                again gives the same numbers to the last bit. None: those given.
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
        """The networks that are there, by key, without their large parts."""
        return {key: _read_result(key, *values) for key, *values in self._select(COLUMNS, keys)}

    def __len__(self) -> int:
        return int(self._connection.execute("SELECT count(*) FROM networks").fetchone()[0])

    def spent(self) -> Cost:
        """What all networks and measurements in the store took."""
        sums = "count(*), coalesce(sum(steps), 0), coalesce(sum(seconds), 0.0)"
        (networks,) = self._connection.execute(f"SELECT {sums} FROM networks").fetchall()
        measured = self._connection.execute("SELECT steps, seconds, settings FROM affinities").fetchall()
        return sum((_metered(*row) for row in measured), Cost(*networks))

    def batch(self, key: str) -> list[Job]:
        """What was trained together with this network, in order."""
        ((_, text),) = self._select("key, batch", [key])
        keys = json.loads(text)
        found = {other: _job(json.loads(definition)) for other, definition in self._select("key, definition", keys)}
        return [found[other] for other in keys]

    def weights(self, key: str) -> dict[str, Tensor] | None:
        """The weights of a network; None if they are not kept."""
        ((_, held),) = self._select("key, weights", [key])
        content = _get_weights(self._connection, key, held)
        return None if content is None else _unpack_weights(content)

    def losses(self, key: str, part: str = "test") -> Losses | None:
        """The loss of every row by task; None if they are not kept."""
        ((_, definition, content),) = self._select("key, definition, losses", [key])
        return None if content is None else _unpack_losses(content, _job(json.loads(definition)).tasks, part)

    def bare(self, keys: Iterable[str]) -> list[str]:
        """Those of these networks whose weights or losses are gone; diverged ones have never had any."""
        gone = "best_epoch >= 0 AND (weights IS NULL OR losses IS NULL)"
        return [key for key, bare in self._select(f"key, {gone}", keys) if bare]

    def restore(self, key: str, result: NetworkResult) -> None:
        """Puts weights and losses back; scores stay."""
        with self._connection:
            held = _put_weights(self._connection, key, result.weights)
            self._connection.execute(
                "UPDATE networks SET weights = ?, losses = ? WHERE key = ?", (held, result.losses, key)
            )

    def keep(self, keys: Iterable[str]) -> None:
        """From now on weights and losses of these networks survive `prune`."""
        with self._connection:
            self._connection.executemany("UPDATE networks SET kept = 1 WHERE key = ?", [(key,) for key in keys])

    def prune(self) -> int:
        """Drops weights and losses of networks that no result recommends; their rows stay. Returns how many."""
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
        """What a meter measured, and what the metered training took."""
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
        """Writes what a meter measured while a network was trained; that network is added after it, if it is new."""
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

    def finished(self, start: str) -> bool:
        """Whether a network or a measurement whose key starts like this is there."""
        query = "SELECT key FROM (SELECT key FROM networks UNION ALL SELECT key FROM affinities) WHERE key GLOB ?"
        return self._connection.execute(query, (f"{start}*",)).fetchone() is not None

    def latency(self, key: str) -> float | None:
        """A forward pass that was timed before, in seconds."""
        found = self._connection.execute("SELECT seconds FROM latencies WHERE key = ?", (key,)).fetchone()
        return None if found is None else float(found[0])

    def add_latency(self, key: str, seconds: float) -> None:
        """Writes how long a forward pass took."""
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
    """Scores and halves as JSON; null for numbers that JSON does not know."""
    scores: dict[str, Any] = {
        part: {task: [_or_none(score.loss), _or_none(score.error)] for task, score in getattr(result, part).items()}
        for part in PARTS
    }
    scores["halves"] = {task: [_or_none(loss) for loss in pair] for task, pair in result.halves.items()}
    return json.dumps(scores, allow_nan=False)


def _number(value: float | None) -> float:
    return float("nan") if value is None else float(value)


def _put_weights(connection: sqlite3.Connection, key: str, content: bytes | None) -> bytes | int | None:
    """What the row of a network holds: its weights, or how many pieces there are; part of the caller's transaction."""
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
    """The weights of a network, from what its row holds."""
    if not isinstance(held, int):
        return held
    pieces = connection.execute("SELECT content FROM pieces WHERE key = ? ORDER BY place", (key,))
    return b"".join(content for (content,) in pieces)


def _drop_pieces(connection: sqlite3.Connection) -> None:
    """Removes pieces that no row asks for any more."""
    if connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'pieces'").fetchone():
        connection.execute("DELETE FROM pieces WHERE key NOT IN (SELECT key FROM networks WHERE weights IS NOT NULL)")


def _metered(steps: int, seconds: float, settings: str) -> Cost:
    """Returns what a metered training took, without its network where that one is in the store."""
    about = json.loads(settings)
    overhead = about.get("overhead", 0.0)
    return Cost(0, 0, seconds * overhead / (1 + overhead)) if about.get("shared") else Cost(1, steps, seconds)


def plain_steps(affinity: Affinity, steps: int, runs: int = 1) -> int:
    """Returns how many plain steps a metered training of this many steps is worth.

    A plain step is three forward passes (the backward pass counts as two). Measuring n tasks takes n backward passes,
    and n more forward passes where every step is looked ahead.

    Args:
        affinity: what was measured.
        steps: of the training.
        runs: number of trainings that were measured; each has an equal share.

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
    """A trained network as text and bytes.

    Args:
        trained: the network.
        groups: which validation rows belong together, so that halves do not share any.
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
    with np.errstate(over="ignore"):  # infinite where training nearly diverged
        return np.asarray(losses).astype(np.float32)


def halve_rows(
    losses: Mapping[str, NDArray[np.float32] | None], groups: Tensor | None = None
) -> dict[str, tuple[float, float]]:
    """Returns the mean loss of each task on either half of the rows; empty where some rows are unknown.

    Args:
        losses: of every row by task, NaN where there is no label.
        groups: which rows belong together; they end up in the same half.

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
    """A state dict as bytes."""
    content = io.BytesIO()
    torch.save({name: tensor.detach().cpu().clone() for name, tensor in state.items()}, content)
    return content.getvalue()


def _unpack_weights(content: bytes) -> dict[str, Tensor]:
    """The state dict again."""
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
    """The loss of every row of a part, by task."""
    return dict(zip(tasks, unpack_arrays(content, [part])[part], strict=True))


def _pack_affinity(affinity: Affinity) -> bytes:
    """An affinity as bytes."""
    about = {"tasks": affinity.tasks, "settings": dict(affinity.settings), "skipped": list(affinity.skipped)}
    arrays: dict[str, Any] = {name: getattr(affinity, name) for name in AFFINITY}
    arrays |= {f"skipped {i}": counts for i, counts in enumerate(affinity.skipped.values())}
    return pack_arrays(arrays | {"about": np.array(json.dumps(about))})


def _unpack_affinity(content: bytes) -> Affinity:
    """The affinity again, bit for bit."""
    arrays = unpack_arrays(content)
    about = json.loads(str(arrays["about"]))
    skipped = {why: arrays[f"skipped {i}"] for i, why in enumerate(about["skipped"])}
    fields = {name: arrays[name] for name in AFFINITY}
    return Affinity(tasks=tuple(about["tasks"]), settings=about["settings"], skipped=skipped, **fields)
