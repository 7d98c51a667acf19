"""Does an executor keep the promises of `tagalong.study.Executor`?"""

from __future__ import annotations

import io
import json
import multiprocessing
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from tagalong.learn import Job
from tagalong.study import Chunk, Executor, Packed, make_executor, train_chunk

from .promises import Promises, expect, reseeded, small_problem

NAMES = ("one", "two", "three")
CHUNKS = (
    Chunk(tuple(Job(tasks, 0) for tasks in (("two",), NAMES, ("one", "three")))),  # one computation
    Chunk((Job(NAMES, 1),), {"estimator": "lookahead", "update": "sgd", "every": 2}),
    Chunk((Job(("one", "two"), 1, "uw"),)),
    Chunk((Job(("three",), 1, epochs=1),)),
)
UNKNOWN = "no such task"


def check_executor(executor: str | Executor, *, device: str = "cpu", tolerance: float = 0.0) -> None:
    """Trains a handful of small networks with an executor, and checks what `Executor` promises.

    Every chunk comes back once, its networks in the order of its jobs, the same as trained here one after the other,
    in whatever order chunks are given; progress counts every network; an error in one chunk reaches the caller with
    its sentence; after `stop`, which may be called twice, no process is left, and the executor can be started again.

    Args:
        executor: "serial", "processes:2", …, or your own.
        device: where it trains; the networks to compare with are trained on this machine's CPU.
        tolerance: by how much losses and weights may differ from those; 0: not by a single bit.

    Raises:
        BrokenPromises: lists every promise that is not kept.

    Example:
        >>> check_executor("serial")
    """
    promises = Promises(f"executor {executor if isinstance(executor, str) else type(executor).__name__!r}")
    with promises.that("it has `start`, `map` and `stop`"):
        made = make_executor(executor)
        with reseeded(0):
            problem = small_problem(NAMES)
            expected = {chunk.jobs: train_chunk(problem, chunk, "cpu") for chunk in CHUNKS}
            _check(promises, made, device, expected, tolerance)
    promises.settle()


def _check(
    promises: Promises, executor: Executor, device: str, expected: Mapping[Any, list[Packed]], tolerance: float
) -> None:
    problem, children = small_problem(NAMES), set(multiprocessing.active_children())
    try:
        with promises.that("it trains"):
            executor.start(problem, device)
            _check_training(promises, executor, CHUNKS, expected, tolerance, "")
            _check_training(promises, executor, CHUNKS[::-1], expected, tolerance, " in another order of chunks")
        with promises.that("an error in one chunk reaches the caller"):
            _check_error(executor)
    finally:
        with promises.that("`stop` may be called at any time, twice"):
            executor.stop()
            executor.stop()
    with promises.that("`stop` lets go of what `start` took"):
        left = set(multiprocessing.active_children()) - children
        expect(not left, f"{len(left)} processes are left")
    try:
        with promises.that("it can be started again"):
            executor.start(problem, device)
            _check_training(promises, executor, CHUNKS[-1:], expected, tolerance, " after a new start")
    finally:
        executor.stop()


def _check_training(
    promises: Promises,
    executor: Executor,
    chunks: Sequence[Chunk],
    expected: Mapping[Any, list[Packed]],
    tolerance: float,
    when: str,
) -> None:
    told: list[int] = []
    with promises.that(f"every chunk comes back once, its networks in the order of its jobs{when}"):
        given = [(chunk.jobs, list(packed)) for chunk, packed in executor.map(list(chunks), told.append)]
        found = dict(given)
        _check_complete(chunks, given)
    with promises.that(f"networks are those trained one after the other{when}"):
        for chunk in chunks:
            for mine, theirs in zip(expected[chunk.jobs], found.get(chunk.jobs, []), strict=False):
                _check_network(mine, theirs, tolerance)
    with promises.that(f"progress counts every network once{when}"):
        number = sum(len(chunk.jobs) for chunk in chunks)
        expect(sum(told) == number, f"`advance` was told of {sum(told)} of {number} networks")


def _check_complete(chunks: Sequence[Chunk], given: Sequence[tuple[tuple[Job, ...], list[Packed]]]) -> None:
    for chunk in chunks:
        times = [packed for jobs, packed in given if jobs == chunk.jobs]
        expect(len(times) == 1, f"a chunk of {len(chunk.jobs)} networks came back {len(times)} times")
        jobs = [network.job for network in times[0]]
        wanted = list(chunk.jobs)
        lost = [", ".join(job.tasks) for job in wanted if job not in jobs]
        expect(not lost, f"{'; '.join(lost)} of a chunk of {len(wanted)} did not come back")
        expect(jobs == wanted, "networks of a chunk came back in another order")
    expect(len(given) == len(chunks), f"{len(given)} chunks came back for {len(chunks)}")


def _check_network(mine: Packed, theirs: Packed, tolerance: float) -> None:
    name = f"{', '.join(mine.job.tasks)} with seed {mine.job.seed}"
    for what in ("steps", "parameters", "best_epoch"):
        a, b = getattr(mine, what), getattr(theirs, what)
        expect(a == b, f"{name}: `{what}` is {b}, expected {a}")
    for what, a, b in _numbers(mine, theirs):
        expect(a.shape == b.shape, f"{name}: {what} has the shape {list(b.shape)}, expected {list(a.shape)}")
        if tolerance:
            same = np.allclose(a, b, rtol=tolerance, atol=tolerance, equal_nan=True)
        else:
            same = np.array_equal(a, b, equal_nan=True)
        gap = float(np.nanmax(np.abs(a - b))) if a.size else 0.0
        expect(same, f"{name}: {what} differs by {gap:.1e}, allowed is {tolerance:g}")


def _numbers(mine: Packed, theirs: Packed) -> list[tuple[str, Any, Any]]:
    """What can be compared number by number."""
    found = [("the loss or error", _scores(mine), _scores(theirs))]
    found.append(("the curve", np.frombuffer(mine.curve, np.float32), np.frombuffer(theirs.curve, np.float32)))
    for what in ("weights", "losses", "affinity"):
        a, b = getattr(mine, what), getattr(theirs, what)
        expect((a is None) == (b is None), f"{', '.join(mine.job.tasks)}: `{what}` is {'there' if b else 'missing'}")
        if a is not None:
            found += [(f"`{what}` ({name})", x, y) for name, x, y in _paired(_arrays(a, what), _arrays(b, what), what)]
    return found


def _paired(mine: dict[str, Any], theirs: dict[str, Any], what: str) -> list[tuple[str, Any, Any]]:
    expect(mine.keys() == theirs.keys(), f"`{what}` has {sorted(theirs)}, expected {sorted(mine)}")
    return [(name, mine[name], theirs[name]) for name in mine]


def _arrays(content: bytes, what: str) -> dict[str, Any]:
    if what == "weights":
        state = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
        return {name: tensor.numpy() for name, tensor in state.items()}
    with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
        return {name: arrays[name] for name in arrays.files if arrays[name].dtype.kind in "fiu"}


def _scores(packed: Packed) -> Any:
    parts = json.loads(packed.scores)
    pairs = [parts[part][task] for part in ("val", "test") for task in packed.job.tasks]
    return np.array(pairs, dtype=np.float64)


def _check_error(executor: Executor) -> None:
    wrong = Chunk((Job((UNKNOWN,), 0),))
    try:
        found = [chunk for chunk, _ in executor.map([wrong, CHUNKS[-1]], lambda n: None)]
    except Exception as error:
        expect(UNKNOWN in _said(error), f"the error must say what went wrong ({UNKNOWN!r}), found: {error!r}")
        return
    raise AssertionError(f"a chunk that cannot be trained must raise, found nothing raised and {len(found)} results")


def _said(error: BaseException | None) -> str:
    """What an error says, and those that it came from."""
    texts = []
    while error is not None:
        texts.append(str(error))
        error = error.__cause__ or error.__context__
    return "\n".join(texts)
