"""Checks that an executor does what `tagalong.study.Executor` specifies."""

from __future__ import annotations

import io
import multiprocessing
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from tagalong.learn import Job
from tagalong.study import Chunk, Executor, NetworkResult, make_executor, train_chunk

from .checks import Checks, expect, temporary_seed
from .small_problem import small_problem

TASK_NAMES = ("one", "two", "three")
JOB_CHUNKS = (
    Chunk(tuple(Job(tasks, 0) for tasks in (("two",), TASK_NAMES, ("one", "three")))),  # trained as one batch
    Chunk((Job(TASK_NAMES, 1),), {"estimator": "lookahead", "update": "sgd", "every": 2}),
    Chunk((Job(("one", "two"), 1, "uw"),)),
    Chunk((Job(("three",), 1, epochs=1),)),
)
UNKNOWN_TASK = "no such task"


def check_executor(executor: str | Executor, *, device: str = "cpu", tolerance: float = 0.0) -> None:
    """Trains a few small networks with an executor, and checks the results.

    Every chunk must be returned once, with its networks in the order of the jobs. The networks must equal those trained
    serially on this machine, regardless of the order of the chunks. Progress must count every network. An error in a
    chunk must reach the caller with its message. After `stop`, which may be called twice, no processes may be running,
    and the executor must be able to start again.

    Args:
        executor: a name such as "serial" or "processes:2", or a custom executor.
        device: the device that the executor trains on. The reference networks are trained on this machine's CPU.
        tolerance: the maximum difference in losses and weights from the reference; 0 requires bit-for-bit equality.

    Raises:
        FailedChecks: If at least one check fails; the error message lists all failed checks.

    Example:
        >>> check_executor("serial")
    """
    checks = Checks(f"executor {executor if isinstance(executor, str) else type(executor).__name__!r}")
    with checks.check("it has `start`, `map` and `stop`"):
        made = make_executor(executor)
        with temporary_seed(0):
            problem = small_problem(TASK_NAMES)
            expected = {chunk.jobs: train_chunk(problem, chunk, "cpu") for chunk in JOB_CHUNKS}
            _check_lifecycle(checks, made, device, expected, tolerance)
    checks.raise_failures()


def _check_lifecycle(
    checks: Checks, executor: Executor, device: str, expected: Mapping[Any, list[NetworkResult]], tolerance: float
) -> None:
    problem, children = small_problem(TASK_NAMES), set(multiprocessing.active_children())
    try:
        with checks.check("it trains"):
            executor.start(problem, device)
            _check_training(checks, executor, JOB_CHUNKS, expected, tolerance, "")
            _check_training(
                checks, executor, JOB_CHUNKS[::-1], expected, tolerance, " with the chunks in reverse order"
            )
        with checks.check("an error in one chunk reaches the caller"):
            _check_error(executor)
    finally:
        with checks.check("`stop` may be called at any time, and twice"):
            executor.stop()
            executor.stop()
    with checks.check("`stop` ends all processes"):
        left = set(multiprocessing.active_children()) - children
        expect(not left, f"{len(left)} processes are still running")
    try:
        with checks.check("it can be restarted"):
            executor.start(problem, device)
            _check_training(checks, executor, JOB_CHUNKS[-1:], expected, tolerance, " after a restart")
    finally:
        executor.stop()


def _check_training(
    checks: Checks,
    executor: Executor,
    chunks: Sequence[Chunk],
    expected: Mapping[Any, list[NetworkResult]],
    tolerance: float,
    suffix: str,
) -> None:
    advances: list[int] = []
    with checks.check(f"every chunk is returned once, with its networks in the order of its jobs{suffix}"):
        returned = [(chunk.jobs, list(packed)) for chunk, packed in executor.map(list(chunks), advances.append)]
        found = dict(returned)
        _check_complete(chunks, returned)
    with checks.check(f"networks equal those trained serially{suffix}"):
        for chunk in chunks:
            for reference, result in zip(expected[chunk.jobs], found.get(chunk.jobs, []), strict=False):
                _check_network(reference, result, tolerance)
    with checks.check(f"progress counts every network once{suffix}"):
        number = sum(len(chunk.jobs) for chunk in chunks)
        expect(sum(advances) == number, f"`advance` counted {sum(advances)} of {number} networks")


def _check_complete(chunks: Sequence[Chunk], returned: Sequence[tuple[tuple[Job, ...], list[NetworkResult]]]) -> None:
    for chunk in chunks:
        times = [packed for jobs, packed in returned if jobs == chunk.jobs]
        expect(len(times) == 1, f"a chunk of {len(chunk.jobs)} networks was returned {len(times)} times")
        jobs = [network.job for network in times[0]]
        wanted = list(chunk.jobs)
        lost = [", ".join(job.tasks) for job in wanted if job not in jobs]
        expect(not lost, f"{'; '.join(lost)} missing from a chunk of {len(wanted)} networks")
        expect(jobs == wanted, "the networks of a chunk were returned in a different order")
    expect(len(returned) == len(chunks), f"{len(returned)} chunks were returned, expected {len(chunks)}")


def _check_network(reference: NetworkResult, result: NetworkResult, tolerance: float) -> None:
    name = f"{', '.join(reference.job.tasks)} with seed {reference.job.seed}"
    for what in ("steps", "parameters", "best_epoch"):
        a, b = getattr(reference, what), getattr(result, what)
        expect(a == b, f"{name}: `{what}` is {b}, expected {a}")
    for what, a, b in _arrays_to_compare(reference, result):
        expect(a.shape == b.shape, f"{name}: {what} has shape {list(b.shape)}, expected {list(a.shape)}")
        if tolerance:
            same = np.allclose(a, b, rtol=tolerance, atol=tolerance, equal_nan=True)
        else:
            same = np.array_equal(a, b, equal_nan=True)
        gap = float(np.nanmax(np.abs(a - b))) if a.size else 0.0
        expect(same, f"{name}: {what} differs by {gap:.1e}, more than the tolerance of {tolerance:g}")


def _arrays_to_compare(reference: NetworkResult, result: NetworkResult) -> list[tuple[str, Any, Any]]:
    """Returns the pairs of arrays to compare, with their names."""
    found = [("the loss or error", _score_array(reference), _score_array(result))]
    found.append(("the curve", np.frombuffer(reference.curve, np.float32), np.frombuffer(result.curve, np.float32)))
    for what in ("weights", "losses", "affinity"):
        a, b = getattr(reference, what), getattr(result, what)
        expect(
            (a is None) == (b is None),
            f"{', '.join(reference.job.tasks)}: `{what}` is {'present' if b else 'missing'}",
        )
        if a is not None:
            found += [
                (f"`{what}` ({name})", x, y)
                for name, x, y in _pair_arrays(_read_arrays(a, what), _read_arrays(b, what), what)
            ]
    return found


def _pair_arrays(reference: dict[str, Any], result: dict[str, Any], what: str) -> list[tuple[str, Any, Any]]:
    expect(
        reference.keys() == result.keys(),
        f"`{what}` has {sorted(result)}, expected {sorted(reference)}",
    )
    return [(name, reference[name], result[name]) for name in reference]


def _read_arrays(content: bytes, what: str) -> dict[str, Any]:
    if what == "weights":
        state = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
        return {name: tensor.numpy() for name, tensor in state.items()}
    with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
        return {name: arrays[name] for name in arrays.files if arrays[name].dtype.kind in "fiu"}


def _score_array(result: NetworkResult) -> Any:
    scores = [part[task] for part in (result.val, result.test) for task in result.job.tasks]
    return np.array([(score.loss, score.error) for score in scores], dtype=np.float64)


def _check_error(executor: Executor) -> None:
    wrong = Chunk((Job((UNKNOWN_TASK,), 0),))
    try:
        found = [chunk for chunk, _ in executor.map([wrong, JOB_CHUNKS[-1]], lambda n: None)]
    except Exception as error:
        expect(
            UNKNOWN_TASK in _error_messages(error),
            f"the error must say what went wrong ({UNKNOWN_TASK!r}), found: {error!r}",
        )
        return
    raise AssertionError(f"a chunk that cannot be trained must raise an error, found {len(found)} results and no error")


def _error_messages(error: BaseException | None) -> str:
    """Returns the messages of an error and all its causes."""
    texts = []
    while error is not None:
        texts.append(str(error))
        error = error.__cause__ or error.__context__
    return "\n".join(texts)
