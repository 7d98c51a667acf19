"""Trains what is missing, in chunks that are stored whole when they are finished."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

from tagalong._progress import Progress, Teller
from tagalong.learn import Job, why_not_batched

from ._executors import Chunk, Executor
from ._key import Keys
from ._row import Packed
from ._store import Store

logger = logging.getLogger(__name__)
BATCH = {"cpu": 64}  # networks of a chunk, by device: more is no faster there, and a kill costs a chunk
LARGE_BATCH = 4096
SHORT = 32  # letters of a key in file names


class Workshop:
    """Trains networks with an executor and stores them.

    Networks trained side by side can differ in the last bit from the same ones trained in other company. So chunks
    are always the same ones, whichever are finished already, and each is stored whole.
    """

    def __init__(
        self, keys: Keys, store: Store, executor: Executor, device: str, progress: Progress, partial: Path | None
    ) -> None:
        self._keys, self._store, self._device, self._partial = keys, store, device, partial
        self._executor, self._started = executor, False
        self._progress = progress

    def close(self) -> None:
        """Lets the executor go."""
        if self._started:
            self._executor.stop()
            self._started = False

    def train(self, jobs: Sequence[Job], what: str) -> None:
        """Trains and stores these networks."""
        size = BATCH.get(self._keys.device, LARGE_BATCH) if self._batched else 1
        chunks = [self._chunk(some) for some in slices(jobs, size)]
        for _, packed in self._finished(chunks, what):
            self._add(packed)

    def measure(self, jobs: Sequence[Job], settings: Mapping[str, Any], what: str) -> None:
        """Trains these networks with a meter; stores what it measured, and the networks if they are missing."""
        chunks = [Chunk((job,), dict(settings), self._checkpoint(self._keys.measured(job, settings))) for job in jobs]
        for chunk, packed in self._finished(chunks, what):
            (job,), (network,) = chunk.jobs, packed
            if network.affinity is not None:  # nothing is measured where training diverges
                self._store.add_affinity(self._keys.measured(job, settings), self._keys.of(job), settings, network)
            self._add([replace(network, seconds=network.seconds / (1 + (network.overhead or 0.0)))])  # plainly trained

    def restore(self, keys: Iterable[str]) -> None:
        """Brings weights and row losses back that an earlier run did not keep, by the same training again."""
        bare = set(self._store.bare(keys))
        batches = dict.fromkeys(tuple(self._store.batch(key)) for key in sorted(bare))
        chunks = [self._chunk(batch) for batch in batches]
        for _, packed in self._finished(chunks, "networks whose weights were not kept"):
            for network in packed:
                if (key := self._keys.of(network.job)) in bare:
                    self._store.restore(key, network)

    def tidy(self) -> None:
        """Removes what kills have left of trainings that are finished by now."""
        for path in () if self._partial is None else list(self._partial.glob("*")):
            if self._store.finished(path.name.lstrip(".")[:SHORT]):
                path.unlink(missing_ok=True)

    @cached_property
    def _batched(self) -> bool:
        reason = why_not_batched(self._keys.problem, device=self._device)
        if reason is not None:
            logger.warning("networks of %s are trained one by one: %s", self._keys.problem.name, reason)
        return reason is None

    def _chunk(self, jobs: Sequence[Job]) -> Chunk:
        return Chunk(tuple(jobs), checkpoint=self._checkpoint(self._keys.of(jobs[0])) if len(jobs) == 1 else None)

    def _checkpoint(self, key: str) -> Path | None:
        return None if self._partial is None else self._partial / f"{key[:SHORT]}.pt"

    def _add(self, packed: Iterable[Packed]) -> None:
        self._store.add({self._keys.of(n.job): (self._keys.definition(n.job), n) for n in packed})

    def _finished(self, chunks: Sequence[Chunk], what: str) -> Iterable[tuple[Chunk, list[Packed]]]:
        if not chunks:
            return
        if not self._started:
            self._executor.start(self._keys.problem, self._device)
            self._started = True
        self._progress.start(sum(len(chunk.jobs) for chunk in chunks), what)
        teller = Teller(self._progress)
        try:
            for chunk, packed in self._executor.map(chunks, teller):
                teller.finished(sum(network.steps for network in packed))
                yield chunk, packed
        finally:
            self._progress.done()


def slices(jobs: Sequence[Job], size: int) -> list[list[Job]]:
    """Plain networks of one seed and width in full slices of this size, the last one shorter; others alone.

    Example:
        >>> jobs = [Job((task,), seed) for seed in (0, 1) for task in "abc"]
        >>> [[job.tasks[0] for job in some] for some in slices(jobs, 2)]
        [['a', 'b'], ['c'], ['a', 'b'], ['c']]
    """
    together: dict[tuple[Any, ...], list[Job]] = {}
    for job in jobs:
        together.setdefault((job.seed, job.width, job.epochs, None if job.rule == "plain" else job), []).append(job)
    return [same[at : at + size] for same in together.values() for at in range(0, len(same), size)]
