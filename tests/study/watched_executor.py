"""An executor for tests, which trains in this process."""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence

import pytest

from tagalong.learn import Job, Problem, Trained
from tagalong.progress import ProgressReporter
from tagalong.study import Chunk
from tagalong.study.executors import Serial


class WatchedExecutor(Serial):
    """Records what it is asked to train, and may be interrupted.

    Args:
        limit: how many chunks are trained before it is interrupted. None: all.
        workers: over how many workers it pretends to share out the chunks of a request.
        pickled: train copies of the problem and the chunks, as another process would.

    Attributes:
        requests: the chunks of each request.
    """

    def __init__(self, limit: int | None = None, workers: int = 1, pickled: bool = False) -> None:
        self.requests: list[Sequence[Chunk]] = []
        self._limit, self._workers, self._pickled = limit, workers, pickled

    def start(self, problem: Problem, device: str) -> int:
        if self._pickled:
            cloudpickle = pytest.importorskip("cloudpickle")
            problem = pickle.loads(cloudpickle.dumps(problem))
        super().start(problem, device)
        return self._workers

    def map(self, chunks: Sequence[Chunk], report: ProgressReporter) -> Iterator[tuple[Chunk, list[Trained]]]:
        self.requests.append(chunks)
        for chunk in chunks:
            if self._limit == 0:
                raise KeyboardInterrupt
            ((_, results),) = super().map([pickle.loads(pickle.dumps(chunk)) if self._pickled else chunk], report)
            self._limit = None if self._limit is None else self._limit - 1
            yield chunk, results

    @property
    def chunks(self) -> list[Chunk]:
        return [chunk for chunks in self.requests for chunk in chunks]

    @property
    def jobs(self) -> list[Job]:
        return [job for chunk in self.chunks for job in chunk.jobs]
