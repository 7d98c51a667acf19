"""Many networks at once: those of one seed and width are trained together as one computation."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence

import torch

from tagalong._names import refuse

from ._batchable import why_not_batched
from ._network import build_network
from ._problem import Problem
from ._room import networks_at_once
from ._together import Together
from ._trained import Job, Trained
from ._trainer import Diverged, _problems, train

log = logging.getLogger("tagalong.learn")


def train_many(
    problem: Problem,
    jobs: Sequence[Job],
    *,
    device: torch.device | str = "cpu",
    memory: int | None = None,
    progress: Callable[[int], None] | None = None,
) -> Iterator[Trained]:
    """Trains many networks, to the same results as `train` one by one, in a fraction of the time.

    Networks of one seed and width become one batched computation: same rows, initial weights and dropout masks, each
    with its own early stopping and best weights. What cannot be batched (see `why_not_batched`) is trained one by one.

    Args:
        problem: what is learnt.
        jobs: the networks, of any tasks, seeds, rules and widths.
        device: where.
        memory: bytes that networks trained together may take; None: what is free, on a CPU no more than helps.
        progress: called with the number of networks finished so far.

    Yields:
        The trained networks, as soon as those trained with them are finished; not in the order of the jobs.

    Raises:
        Diverged: some networks never had a finite validation loss; raised when all others are out.

    Example:
        >>> from tagalong.learn import Recipe, Task
        >>> inputs = torch.rand(60, 3)
        >>> tasks = [Task("sum", kind="regression"), Task("above")]
        >>> targets = {"sum": inputs.sum(1), "above": (inputs[:, 0] > 0.5).float()}
        >>> problem = Problem.from_arrays(inputs, targets, tasks, recipe=Recipe(epochs=2))
        >>> jobs = [Job(("sum",)), Job(("above",)), Job(("sum", "above"))]
        >>> [(trained.job.tasks, trained.steps) for trained in train_many(problem, jobs)]
        [(('sum',), 2), (('above',), 2), (('sum', 'above'), 2)]
    """
    where = torch.device(device)
    refuse(list(dict.fromkeys(found for job in jobs for found in _problems(problem, job, where))))
    return _trained(problem, list(jobs), where, memory, progress or (lambda finished: None))


def _trained(
    problem: Problem, jobs: list[Job], device: torch.device, memory: int | None, progress: Callable[[int], None]
) -> Iterator[Trained]:
    diverged: list[Trained] = []
    done = 0
    for chunk in _chunks(problem, jobs, device, memory):

        def stopped(number: int, done: int = done) -> None:
            progress(done + number)

        finished = _train_chunk(problem, chunk, device, stopped)
        diverged += [trained for trained in finished if trained.diverged]
        done += len(chunk)
        progress(done)
        yield from (trained for trained in finished if not trained.diverged)
    if diverged:
        listed = "; ".join(f"{', '.join(one.job.tasks)} with seed {one.job.seed}" for one in diverged)
        raise Diverged(f"training diverged from the first epoch, lower `recipe.lr`: {listed}", diverged)


def _train_chunk(
    problem: Problem, jobs: list[Job], device: torch.device, stopped: Callable[[int], None]
) -> list[Trained]:
    """The networks of a chunk, diverged ones too; in halves, where memory was less than it seemed."""
    if len(jobs) == 1:
        try:
            return [train(problem, jobs[0], device=device)]
        except Diverged as error:
            return list(error.networks)
    try:
        with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
            return Together(problem, jobs, device).run(stopped)
    except torch.OutOfMemoryError:
        log.warning("%d networks at once did not fit into memory; trying half as many", len(jobs))
    torch.cuda.empty_cache()
    half = len(jobs) // 2
    first = _train_chunk(problem, jobs[:half], device, stopped)
    return first + _train_chunk(problem, jobs[half:], device, lambda number: stopped(half + number))


def _chunks(problem: Problem, jobs: list[Job], device: torch.device, memory: int | None) -> Iterator[list[Job]]:
    """Jobs that are trained together: of one seed and width, as many as fit, in chunks of about one size."""
    kinds: dict[tuple[str, float, int | None], list[Job]] = {}
    for job in jobs:
        kinds.setdefault((job.rule, job.width, job.epochs), []).append(job)
    for alike in kinds.values():
        by_seed: dict[int, list[Job]] = {}
        for job in alike:
            by_seed.setdefault(job.seed, []).append(job)
        most = max(len(group) for group in by_seed.values())
        size = 1 if most == 1 else _size(problem, alike, device, memory)
        for group in by_seed.values():
            yield from _evenly(group, size)


def _size(problem: Problem, jobs: list[Job], device: torch.device, memory: int | None) -> int:
    reason = why_not_batched(problem, jobs, device=device)
    if reason is not None:
        level = logging.INFO if jobs[0].rule != "plain" else logging.WARNING
        log.log(level, "%d networks of %s are trained one by one: %s", len(jobs), problem.name, reason)
        return 1
    wanted = {name for job in jobs for name in job.tasks}
    network = build_network(problem, wanted, jobs[0].seed, jobs[0].width).to(device)
    return networks_at_once(problem, network, device, memory)


def _evenly(jobs: list[Job], size: int) -> Iterator[list[Job]]:
    parts = -(-len(jobs) // size)
    for part in range(parts):
        yield jobs[part * len(jobs) // parts : (part + 1) * len(jobs) // parts]
