"""Our executors keep the promises that are asked of others, and broken ones are told what is wrong."""

import io
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
import torch

from tagalong.learn import Job
from tagalong.study import Chunk, Packed, train_chunk
from tagalong.testing import BrokenPromises, check_executor


@pytest.mark.parametrize("name", ["serial", "processes:1"])
def test_our_executors_keep_their_promises(name: str) -> None:
    check_executor(name)


class Here:
    """One chunk after the other; broken in one way by each class below."""

    def start(self, problem: Any, device: str) -> None:
        self.problem, self.device = problem, device

    def train(self, chunk: Chunk, number: int, advance: Any) -> list[Packed]:
        return train_chunk(self.problem, chunk, self.device, advance)

    def map(self, chunks: Any, advance: Any) -> Iterator[tuple[Chunk, list[Packed]]]:
        for number, chunk in enumerate(chunks):
            yield chunk, self.train(chunk, number, advance)

    def stop(self) -> None:
        pass


class Backwards(Here):
    def map(self, chunks, advance):
        return super().map(chunks[::-1], advance)


class DropsANetwork(Here):
    def train(self, chunk, number, advance):
        return super().train(chunk, number, advance)[:2]


class DropsAChunk(Here):
    def map(self, chunks, advance):
        return super().map(chunks[1:], advance)


class GivesTwice(Here):
    def map(self, chunks, advance):
        yield from super().map(chunks, advance)
        yield chunks[0], self.train(chunks[0], 0, lambda n: None)


class AnotherOrder(Here):
    def train(self, chunk, number, advance):
        return super().train(chunk, number, advance)[::-1]


def with_weights(packed: Packed, change: Any) -> Packed:
    assert packed.weights is not None
    state = torch.load(io.BytesIO(packed.weights), weights_only=True)
    content = io.BytesIO()
    torch.save({name: change(tensor) for name, tensor in state.items()}, content)
    return replace(packed, weights=content.getvalue())


class ChangesWeights(Here):
    def train(self, chunk, number, advance):
        return [with_weights(packed, lambda t: t * (1 + 1e-7)) for packed in super().train(chunk, number, advance)]


class ForgetsWeights(Here):
    def train(self, chunk, number, advance):
        return [replace(packed, weights=None) for packed in super().train(chunk, number, advance)]


class SeedsByPlace(Here):
    """Trains with another seed what comes first, if it is a single network."""

    def train(self, chunk, number, advance):
        if number or len(chunk.jobs) > 1:
            return super().train(chunk, number, advance)
        other = replace(chunk, jobs=tuple(replace(job, seed=7) for job in chunk.jobs))
        trained = super().train(other, number, advance)
        return [replace(packed, job=job) for packed, job in zip(trained, chunk.jobs, strict=True)]


class ForgetsTheMeter(Here):
    def train(self, chunk, number, advance):
        return super().train(replace(chunk, meter=None), number, advance)


class SaysNothing(Here):
    def train(self, chunk, number, advance):
        return super().train(chunk, number, lambda n: None)


class SwallowsErrors(Here):
    def map(self, chunks, advance):
        for chunk in chunks:
            with suppress(ValueError):
                yield from super().map([chunk], advance)


class HidesErrors(Here):
    def map(self, chunks, advance):
        try:
            yield from super().map(chunks, advance)
        except ValueError:
            failed = True
        else:
            failed = False
        if failed:
            raise RuntimeError("something went wrong")


class StopsOnce(Here):
    def stop(self):
        del self.problem


class StartsOnce(Here):
    used = False

    def start(self, problem, device):
        if self.used:
            raise RuntimeError("the cluster is gone")
        self.used = True
        super().start(problem, device)


class HasNoMap:
    def start(self, problem: Any, device: str) -> None: ...

    def stop(self) -> None: ...


@pytest.mark.parametrize("executor", [Here(), Backwards()])
def test_executors_of_ones_own_keep_them_too(executor: Any) -> None:
    check_executor(executor)


@pytest.mark.parametrize(
    ("executor", "sentence"),
    [
        (DropsANetwork(), "every chunk comes back once.*: one, three of a chunk of 3 did not come back"),
        (DropsAChunk(), "every chunk comes back once.*: a chunk of 3 networks came back 0 times"),
        (GivesTwice(), "every chunk comes back once.*: a chunk of 3 networks came back 2 times"),
        (AnotherOrder(), "every chunk comes back once.*: networks of a chunk came back in another order"),
        (ChangesWeights(), r"networks are those trained one after the other: .*`weights` \(.*\) differs by"),
        (ForgetsWeights(), "networks are those trained one after the other: two: `weights` is missing"),
        (
            SeedsByPlace(),
            "networks are those trained one after the other in another order of chunks: three with seed 1",
        ),
        (ForgetsTheMeter(), "networks are those trained one after the other: .*`affinity` is missing"),
        (SaysNothing(), "progress counts every network once: `advance` was told of 0 of 6 networks"),
        (SwallowsErrors(), "an error in one chunk reaches the caller: .* found nothing raised and 1 results"),
        (HidesErrors(), r"an error in one chunk reaches the caller: .* must say what went wrong \('no such task'\)"),
        (StopsOnce(), "`stop` may be called at any time, twice: raised AttributeError"),
        (StartsOnce(), "it can be started again: raised RuntimeError: the cluster is gone"),
        (HasNoMap(), "it has `start`, `map` and `stop`: raised InvalidInput: `executor` must be a known executor"),
    ],
)
def test_broken_executors_are_told_what_is_wrong(executor: Any, sentence: str) -> None:
    with pytest.raises(BrokenPromises, match=sentence):
        check_executor(executor)


def test_small_differences_may_be_allowed() -> None:
    check_executor(ChangesWeights(), tolerance=1e-6)


def test_processes_that_are_left_behind_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    class Leaves(Here):
        def start(self, problem: Any, device: str) -> None:
            super().start(problem, device)
            monkeypatch.setattr("multiprocessing.active_children", lambda: ["a worker"])

    with pytest.raises(BrokenPromises, match="`stop` lets go of what `start` took: 1 processes are left"):
        check_executor(Leaves())


def test_the_chunks_of_the_check_hold_every_kind_of_network() -> None:
    seen: list[Chunk] = []

    class Notes(Here):
        def map(self, chunks: Any, advance: Any) -> Iterator[tuple[Chunk, list[Packed]]]:
            seen.extend(chunks)
            return super().map(chunks, advance)

    check_executor(Notes())
    jobs: list[Job] = [job for chunk in seen for job in chunk.jobs]
    assert any(len(chunk.jobs) > 1 for chunk in seen)
    assert any(chunk.meter for chunk in seen)
    assert {job.rule for job in jobs} == {"plain", "uw"}
    assert any(job.epochs for job in jobs)
