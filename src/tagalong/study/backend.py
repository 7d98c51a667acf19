"""Trained networks of one problem: looked up where they are stored, else trained in chunks and stored."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from itertools import combinations
from pathlib import Path
from typing import Any

from torch import Tensor

from tagalong.affinity import Affinity
from tagalong.learn import Diverged, Job, Problem, why_not_batched
from tagalong.progress import NoProgress, Progress, ProgressReporter

from .executors import Chunk, Executor, device_name, make_executor
from .keys import Keys
from .records import Cost, Record
from .relative_losses import Subset
from .run_folder import log_to, store_problem
from .store import Losses, NetworkResult, Store

logger = logging.getLogger(__name__)
BATCH = {"cpu": 64}  # networks of a chunk, by device: more is no faster there, and a kill costs a chunk
LARGE_BATCH = 4096
SHORT = 32  # letters of a key in file names
MOST_NAMED = 5  # networks in a sentence


def check_lab(out: str | os.PathLike[str], *, executor: str | Executor = "serial", device: str = "auto") -> None:
    """Refuses what `open_lab` would refuse, before time is spent on loading a problem.

    Args:
        out: as for `open_lab`.
        executor: as for `open_lab`.
        device: as for `open_lab`.

    Raises:
        ValueError: there is no such executor or device, or the networks in the folder cannot be used.
    """
    make_executor(executor)
    device_name(device)
    if wrong := store_problem(Path(out)):
        raise ValueError(wrong)


@contextmanager
def open_lab(
    problem: Problem,
    out: str | os.PathLike[str],
    *,
    executor: str | Executor = "serial",
    device: str = "auto",
    progress: Progress | None = None,
) -> Iterator[Lab]:
    """A laboratory whose networks are kept in a folder: `run.sqlite`, and `run.log` for what is logged.

    At the end the executor is let go. Where nothing was raised, weights that no result keeps are dropped
    (`Store.keep`), and so are checkpoints of trainings that are finished.

    Args:
        problem: what is learnt. Other problems may share the folder.
        out: the folder; made if it is not there.
        executor: as for a `Study`.
        device: as for a `Study`.
        progress: is told how many networks there are to train and how many are done.

    Example:
        >>> import numpy as np, tempfile
        >>> from tagalong.learn import Recipe, Task
        >>> X, Y = np.random.default_rng(0).normal(size=(2, 100, 2))
        >>> tasks = [Task(name, kind="regression") for name in ("age", "height")]
        >>> problem = Problem.from_arrays(X, Y, tasks, recipe=Recipe(epochs=1))
        >>> with tempfile.TemporaryDirectory() as out, open_lab(problem, out, device="cpu") as lab:
        ...     rows = lab.networks([lab.job(["age"], seed=0), lab.job(["age", "height"], seed=0)])
        >>> [sorted(row.test) for row in rows.values()]
        [['age'], ['age', 'height']]
    """
    made, where, folder = make_executor(executor), device_name(device), Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    with (
        log_to(folder / "run.log"),
        Store(folder / "run.sqlite") as store,
        Lab(problem, store, executor=made, device=where, progress=progress, partial=folder / "partial") as lab,
    ):
        yield lab
        store.prune()
        lab.tidy()


class Lab:
    """Trained networks of one problem: looked up where they are in the store, else trained and stored.

    Networks trained side by side can differ in the last bit from the same ones trained in other company. So chunks
    are always the same ones, whichever are finished already, and each is stored whole.

    Args:
        problem: what is learnt.
        store: where finished networks are.
        executor: trains; see `make_executor`.
        device: where networks are trained.
        progress: is told how many networks there are to train and how many are done.
        partial: the folder of checkpoints; None: there are none.

    Attributes:
        problem: what is learnt.
        store: where finished networks are.
        keys: of networks.
        device: where networks are trained.
    """

    def __init__(
        self,
        problem: Problem,
        store: Store,
        *,
        executor: Executor,
        device: str = "cpu",
        progress: Progress | None = None,
        partial: Path | None = None,
    ) -> None:
        self.problem, self.store, self.device = problem, store, device
        self.keys = Keys(problem, device)
        self._executor, self._started = executor, False
        self._progress, self._partial = progress or NoProgress(), partial
        self._rows: dict[Job, NetworkResult] = {}
        self._asked: set[Job] = set()
        self._lost: set[Job] = set()

    def close(self) -> None:
        """Lets the executor go."""
        if self._started:
            self._executor.stop()
            self._started = False

    def __enter__(self) -> Lab:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def job(self, tasks: Iterable[str], seed: int, rule: str = "plain", width: float = 1.0) -> Job:
        """A network for these tasks, which come in the order of the problem."""
        wanted = set(tasks)
        return Job(tuple(name for name in self.problem.names if name in wanted), seed, rule, float(width))

    def subsets(self, largest: int | None = None, smallest: int = 1) -> list[Subset]:
        """Sets of tasks by size, then in the order of the problem."""
        names = self.problem.names
        sizes = range(smallest, (len(names) if largest is None else min(largest, len(names))) + 1)
        return [frozenset(chosen) for size in sizes for chosen in combinations(names, size)]

    def networks(
        self, jobs: Iterable[Job], what: str = "networks", *, diverged: bool = False
    ) -> dict[Job, NetworkResult]:
        """These networks, trained if they are not there yet. One that diverged is kept as such, not trained again.

        Args:
            jobs: which.
            what: to tell whoever watches.
            diverged: give those that diverged too, see `NetworkResult.diverged`.

        Raises:
            Diverged: some did, and nobody asked for such; all others are stored.
        """
        wanted = list(dict.fromkeys(jobs))
        self._asked.update(wanted)
        missing = self.missing(wanted)
        if missing:
            logger.info("%s: training %d of %d networks", what, len(missing), len(wanted))
            self._train(missing, what)
            if still := self.missing(missing):
                raise RuntimeError(f"{len(still)} networks were trained and not found again in {self.store.path}")
        lost = [job for job in wanted if self._rows[job].diverged]
        if lost and not diverged:
            raise Diverged(f"{what}: {_named(lost)} diverged; lower `recipe.lr`")
        if new := [job for job in lost if job not in self._lost]:
            logger.warning("%s: %s diverged, which counts as worse than any other result", what, _named(new))
            self._lost.update(new)
        return {job: self._rows[job] for job in wanted}

    def sound(self, seeds: Iterable[int]) -> tuple[int, ...]:
        """Those of these seeds with which one network for all tasks, which all else is compared with, is trained well.

        Raises:
            Diverged: there is none.
        """
        jobs = {seed: self.job(self.problem.names, seed) for seed in seeds}
        rows = self.networks(jobs.values(), "all tasks together", diverged=True)
        found = tuple(seed for seed, job in jobs.items() if not rows[job].diverged)
        if not found:
            listed = f"seed{'' if len(jobs) == 1 else 's'} {', '.join(map(str, jobs))}"
            raise Diverged(
                f"one network for all tasks diverged with {listed}, and everything is compared with it; "
                "lower `recipe.lr`"
            )
        return found

    def asked(self, jobs: Iterable[Job]) -> bool:
        """Whether all of these were asked for in this run; what earlier runs left does not count."""
        return self._asked.issuperset(jobs)

    def missing(self, jobs: Iterable[Job]) -> list[Job]:
        """Those of these networks that are not there yet."""
        unseen = {self.keys.of(job): job for job in jobs if job not in self._rows}
        self._rows |= {unseen[key]: row for key, row in self.store.results(unseen).items()}
        return [job for job in unseen.values() if job not in self._rows]

    def cost(self, jobs: Iterable[Job]) -> Cost:
        """What these networks took, each counted once, whoever else uses them."""
        return sum((row.cost for row in self.networks(jobs, diverged=True).values()), Cost())

    def affinity(self, seed: int, **settings: Any) -> Affinity:
        """What a meter with these settings measures while all tasks train in one network."""
        return self.affinities([seed], settings)[seed][0]

    def affinities(self, seeds: Sequence[int], settings: Mapping[str, Any]) -> dict[int, tuple[Affinity, Cost]]:
        """Affinities by seed, with what each metered training took; measured if they are not there yet.

        The meter leaves no trace, so the network trained on the way is stored too, if it is missing. Seeds with which
        it diverges are left out.

        Raises:
            Diverged: it does with every seed.
        """
        jobs = {seed: self.job(self.problem.names, seed) for seed in seeds}
        keys = {seed: self.keys.measured(job, settings) for seed, job in jobs.items()}
        missing = [jobs[seed] for seed in seeds if self.store.affinity(keys[seed]) is None]
        untrained = self.missing(missing)
        missing = [job for job in missing if job in untrained or not self._rows[job].diverged]
        if missing:
            self._measure(missing, settings, f"measuring affinities ({settings.get('estimator', 'lookahead')})")
        found = {seed: self.store.affinity(key) for seed, key in keys.items()}
        known = {seed: measured for seed, measured in found.items() if measured is not None}
        if not known:
            raise Diverged(f"affinities: {_named(list(jobs.values()))} diverged; lower `recipe.lr`")
        return known

    def row_losses(self, record: Record, part: str = "test") -> Losses:
        """The loss of every row of each task, where a record serves it; NaN where a label is missing."""
        self.restore(record.networks)
        found: Losses = {}
        for group, key in zip(record.groups, record.networks, strict=True):
            losses = self.store.losses(key, part)
            assert losses is not None
            found |= {task: losses[task] for task in group.serves}
        return {task: found[task] for task in self.problem.names if task in found}

    def weights(self, key: str) -> dict[str, Tensor]:
        """The weights of a network, trained again if they were not kept."""
        self.restore([key])
        state = self.store.weights(key)
        assert state is not None
        return state

    def width(self, key: str) -> float:
        """How wide a network is."""
        return self.store.results([key])[key].job.width

    def restore(self, keys: Iterable[str]) -> None:
        """Brings weights and row losses back that an earlier run did not keep, by the same training again."""
        bare = set(self.store.bare(keys))
        batches = dict.fromkeys(tuple(self.store.batch(key)) for key in sorted(bare))
        chunks = [self._chunk(batch) for batch in batches]
        for _, packed in self._finished(chunks, "networks whose weights were not kept"):
            for network in packed:
                if (key := self.keys.of(network.job)) in bare:
                    self.store.restore(key, network)

    def tidy(self) -> None:
        """Removes what kills have left of trainings that are finished by now."""
        for path in () if self._partial is None else list(self._partial.glob("*")):
            if self.store.finished(path.name.lstrip(".")[:SHORT]):
                path.unlink(missing_ok=True)

    def _train(self, jobs: Sequence[Job], what: str) -> None:
        """Trains and stores these networks."""
        size = BATCH.get(self.keys.device, LARGE_BATCH) if self._batched else 1
        chunks = [self._chunk(some) for some in slices(jobs, size)]
        for _, packed in self._finished(chunks, what):
            self._add(packed)

    def _measure(self, jobs: Sequence[Job], settings: Mapping[str, Any], what: str) -> None:
        """Trains these networks with a meter; stores what it measured, and the networks if they are missing."""
        chunks = [Chunk((job,), dict(settings), self._checkpoint(self.keys.measured(job, settings))) for job in jobs]
        for chunk, packed in self._finished(chunks, what):
            (job,), (network,) = chunk.jobs, packed
            if network.affinity is not None:  # nothing is measured where training diverges
                self.store.add_affinity(self.keys.measured(job, settings), self.keys.of(job), settings, network)
            self._add([replace(network, seconds=network.seconds / (1 + (network.overhead or 0.0)))])  # plainly trained

    @cached_property
    def _batched(self) -> bool:
        reason = why_not_batched(self.problem, device=self.device)
        if reason is not None:
            logger.warning("networks of %s are trained one by one: %s", self.problem.name, reason)
        return reason is None

    def _chunk(self, jobs: Sequence[Job]) -> Chunk:
        return Chunk(tuple(jobs), checkpoint=self._checkpoint(self.keys.of(jobs[0])) if len(jobs) == 1 else None)

    def _checkpoint(self, key: str) -> Path | None:
        return None if self._partial is None else self._partial / f"{key[:SHORT]}.pt"

    def _add(self, packed: Iterable[NetworkResult]) -> None:
        self.store.add({self.keys.of(n.job): (self.keys.definition(n.job), n) for n in packed})

    def _finished(self, chunks: Sequence[Chunk], what: str) -> Iterable[tuple[Chunk, list[NetworkResult]]]:
        if not chunks:
            return
        if not self._started:
            self._executor.start(self.problem, self.device)
            self._started = True
        self._progress.start(sum(len(chunk.jobs) for chunk in chunks), what)
        reporter = ProgressReporter(self._progress)
        try:
            for chunk, packed in self._executor.map(chunks, reporter):
                reporter.finished(sum(network.steps for network in packed))
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


def _named(jobs: Sequence[Job]) -> str:
    some = "; ".join(f"{', '.join(job.tasks)} with seed {job.seed}" for job in jobs[:MOST_NAMED])
    return some if len(jobs) <= MOST_NAMED else f"{some}; and {len(jobs) - MOST_NAMED} more"
