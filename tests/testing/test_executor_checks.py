"""Our own executors pass the checks; for broken ones the checks say what is wrong."""

import io
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
import torch

from tagalong.learn import Job
from tagalong.study import Chunk, NetworkResult, train_chunk
from tagalong.testing import FailedChecks, check_executor

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("name", ["serial", "processes:1"])
def test_our_executors_pass_the_checks(name: str) -> None:
    check_executor(name)


class InProcess:
    """Trains one chunk after the other; each class below breaks it in one way."""

    def start(self, problem: Any, device: str) -> None:
        self.problem, self.device = problem, device

    def train(self, chunk: Chunk, number: int, advance: Any) -> list[NetworkResult]:
        return train_chunk(self.problem, chunk, self.device, advance)

    def map(self, chunks: Any, advance: Any) -> Iterator[tuple[Chunk, list[NetworkResult]]]:
        for number, chunk in enumerate(chunks):
            yield chunk, self.train(chunk, number, advance)

    def stop(self) -> None:
        pass


class Backwards(InProcess):
    def map(self, chunks, advance):
        return super().map(chunks[::-1], advance)


class DropsANetwork(InProcess):
    def train(self, chunk, number, advance):
        return super().train(chunk, number, advance)[:2]


class DropsAChunk(InProcess):
    def map(self, chunks, advance):
        return super().map(chunks[1:], advance)


class ReturnsTwice(InProcess):
    def map(self, chunks, advance):
        yield from super().map(chunks, advance)
        yield chunks[0], self.train(chunks[0], 0, lambda n: None)


class ReversesNetworks(InProcess):
    def train(self, chunk, number, advance):
        return super().train(chunk, number, advance)[::-1]


def with_weights(packed: NetworkResult, change: Any) -> NetworkResult:
    assert packed.weights is not None
    state = torch.load(io.BytesIO(packed.weights), weights_only=True)
    content = io.BytesIO()
    torch.save({name: change(tensor) for name, tensor in state.items()}, content)
    return replace(packed, weights=content.getvalue())


class ChangesWeights(InProcess):
    def train(self, chunk, number, advance):
        return [with_weights(packed, lambda t: t * (1 + 1e-7)) for packed in super().train(chunk, number, advance)]


class ForgetsWeights(InProcess):
    def train(self, chunk, number, advance):
        return [replace(packed, weights=None) for packed in super().train(chunk, number, advance)]


class SeedsByPosition(InProcess):
    """Trains the first chunk with another seed if it is a single network."""

    def train(self, chunk, number, advance):
        if number or len(chunk.jobs) > 1:
            return super().train(chunk, number, advance)
        other = replace(chunk, jobs=tuple(replace(job, seed=7) for job in chunk.jobs))
        trained = super().train(other, number, advance)
        return [replace(packed, job=job) for packed, job in zip(trained, chunk.jobs, strict=True)]


class ForgetsTheMeter(InProcess):
    def train(self, chunk, number, advance):
        return super().train(replace(chunk, meter=None), number, advance)


class ReportsNoProgress(InProcess):
    def train(self, chunk, number, advance):
        return super().train(chunk, number, lambda n: None)


class SwallowsErrors(InProcess):
    def map(self, chunks, advance):
        for chunk in chunks:
            with suppress(ValueError):
                yield from super().map([chunk], advance)


class HidesErrors(InProcess):
    def map(self, chunks, advance):
        try:
            yield from super().map(chunks, advance)
        except ValueError:
            failed = True
        else:
            failed = False
        if failed:
            raise RuntimeError("something went wrong")


class StopsOnce(InProcess):
    def stop(self):
        del self.problem


class StartsOnce(InProcess):
    used = False

    def start(self, problem, device):
        if self.used:
            raise RuntimeError("the cluster is gone")
        self.used = True
        super().start(problem, device)


class HasNoMap:
    def start(self, problem: Any, device: str) -> None: ...

    def stop(self) -> None: ...


@pytest.mark.parametrize("executor", [InProcess(), Backwards()])
def test_user_defined_executors_pass_the_checks(executor: Any) -> None:
    check_executor(executor)


@pytest.mark.parametrize(
    ("executor", "message"),
    [
        (DropsANetwork(), "every chunk is returned once.*: one, three missing from a chunk of 3 networks"),
        (DropsAChunk(), "every chunk is returned once.*: a chunk of 3 networks was returned 0 times"),
        (ReturnsTwice(), "every chunk is returned once.*: a chunk of 3 networks was returned 2 times"),
        (
            ReversesNetworks(),
            "every chunk is returned once.*: the networks of a chunk were returned in a different order",
        ),
        (ChangesWeights(), r"networks equal those trained serially: .*`weights` \(.*\) differs by"),
        (ForgetsWeights(), "networks equal those trained serially: two: `weights` is missing"),
        (
            SeedsByPosition(),
            "networks equal those trained serially with the chunks in reverse order: three with seed 1",
        ),
        (ForgetsTheMeter(), "networks equal those trained serially: .*`affinity` is missing"),
        (ReportsNoProgress(), "progress counts every network once: `advance` counted 0 of 6 networks"),
        (SwallowsErrors(), "an error in one chunk reaches the caller: .* found 1 results and no error"),
        (HidesErrors(), r"an error in one chunk reaches the caller: .* must say what went wrong \('no such task'\)"),
        (StopsOnce(), "`stop` may be called at any time, and twice: raised AttributeError"),
        (StartsOnce(), "it can be restarted: raised RuntimeError: the cluster is gone"),
        (HasNoMap(), "it has `start`, `map` and `stop`: raised InvalidInput: `executor` must be a known executor"),
    ],
)
def test_the_error_for_a_broken_executor_says_what_is_wrong(executor: Any, message: str) -> None:
    with pytest.raises(FailedChecks, match=message):
        check_executor(executor)


def test_differences_within_the_tolerance_pass() -> None:
    check_executor(ChangesWeights(), tolerance=1e-6)


def test_processes_that_stop_does_not_end_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    class LeavesAProcess(InProcess):
        def start(self, problem: Any, device: str) -> None:
            super().start(problem, device)
            monkeypatch.setattr("multiprocessing.active_children", lambda: ["a worker"])

    with pytest.raises(FailedChecks, match="`stop` ends all processes: 1 processes are still running"):
        check_executor(LeavesAProcess())


def test_the_check_trains_every_kind_of_network() -> None:
    seen: list[Chunk] = []

    class RecordsChunks(InProcess):
        def map(self, chunks: Any, advance: Any) -> Iterator[tuple[Chunk, list[NetworkResult]]]:
            seen.extend(chunks)
            return super().map(chunks, advance)

    check_executor(RecordsChunks())
    jobs: list[Job] = [job for chunk in seen for job in chunk.jobs]
    assert any(len(chunk.jobs) > 1 for chunk in seen)
    assert any(chunk.meter for chunk in seen)
    assert {job.rule for job in jobs} == {"plain", "uw"}
    assert any(job.epochs for job in jobs)
