"""Where networks are trained: here one after the other, in processes of this machine, or on a Ray cluster."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch

from tagalong.learn import Diverged, Job, Problem, Trained, train, train_many

from ._row import Packed, pack

Advance = Callable[[int], None]
CHECKPOINT_SECONDS = 15.0
NAMES = ("serial", "processes", "ray")


@dataclass(frozen=True)
class Chunk:
    """Networks trained as one computation, all of them finished or none.

    Attributes:
        jobs: one network, or several plain ones of one seed and width.
        meter: settings of a meter, for one network.
        checkpoint: where a single network's training under way is kept.
    """

    jobs: tuple[Job, ...]
    meter: Mapping[str, Any] | None = None
    checkpoint: Path | None = None


@runtime_checkable
class Executor(Protocol):
    """Trains chunks somewhere. Only the caller writes the store."""

    def start(self, problem: Problem, device: str) -> None:
        """Gets ready for networks of this problem."""

    def map(self, chunks: Sequence[Chunk], advance: Advance) -> Iterator[tuple[Chunk, list[Packed]]]:
        """Trains all chunks; gives each when it is finished, in any order, and counts networks with `advance`."""

    def stop(self) -> None:
        """Lets go of what `start` took; may be called twice."""


def train_chunk(problem: Problem, chunk: Chunk, device: str, advance: Advance | None = None) -> list[Packed]:
    """Trains the networks of a chunk, in the order of its jobs; those that diverged are there too, see `Row`."""
    advance = advance or (lambda n: None)
    if len(chunk.jobs) == 1:
        packed = _train_one(problem, chunk, device, _after_epochs(problem, getattr(advance, "steps", None)))
        advance(1)
        return [packed]
    stopped = _more(advance)  # as they stop early, long before the last of them is trained
    found: dict[Job, Packed] = {}
    try:
        for trained in train_many(problem, chunk.jobs, device=device, progress=stopped):
            found[trained.job] = pack(trained, problem.val.groups)
    except Diverged as error:
        found |= {trained.job: pack(trained) for trained in error.networks}
    return [found[job] for job in chunk.jobs]


def _more(advance: Advance) -> Callable[[int], None]:
    """Takes how many there are by now, and tells each of them once, also where a second try begins anew."""
    told = 0

    def now(number: int) -> None:
        nonlocal told
        for _ in range(told, number):
            advance(1)
        told = max(told, number)

    return now


def _after_epochs(problem: Problem, steps: Advance | None) -> Callable[[int], None] | None:
    """Tells of the steps of each epoch, if somebody wants to know."""
    each = -(-len(problem.train) // problem.recipe.batch_size)
    return None if steps is None else lambda epoch: steps(each)


def _train_one(problem: Problem, chunk: Chunk, device: str, progress: Callable[[int], None] | None) -> Packed:
    (job,) = chunk.jobs
    begin = partial(_trained, problem, job, device=device, meter=chunk.meter, progress=progress)
    try:
        trained = begin(checkpoint=chunk.checkpoint, checkpoint_every=CHECKPOINT_SECONDS)
    except FileNotFoundError:
        if chunk.checkpoint is None:
            raise
        # A second process on this folder has finished the same network and removed the checkpoint.
        trained = begin()
    return pack(trained, problem.val.groups)


def _trained(problem: Problem, job: Job, **more: Any) -> Trained:
    try:
        return train(problem, job, **more)
    except Diverged as error:
        (diverged,) = error.networks
        return diverged


class Serial:
    """One chunk after the other, in this process."""

    def start(self, problem: Problem, device: str) -> None:
        self._problem, self._device = problem, device

    def map(self, chunks: Sequence[Chunk], advance: Advance) -> Iterator[tuple[Chunk, list[Packed]]]:
        for chunk in chunks:
            yield chunk, train_chunk(self._problem, chunk, self._device, advance)

    def stop(self) -> None:
        pass


def make_executor(executor: str | Executor) -> Executor:
    """The executor of this name, or the one given; "processes:4" has four workers.

    Raises:
        ImportError: with the line to install what the executor needs.
    """
    if executor == "serial":
        return Serial()
    if isinstance(executor, str) and (found := re.fullmatch(r"processes(?::(\d+))?", executor)):
        from ._executors_processes import Processes

        return Processes(None if found[1] is None else int(found[1]))
    if executor == "ray":
        from ._executors_ray import Ray

        return Ray()
    if isinstance(executor, str) or not isinstance(executor, Executor):
        close = difflib.get_close_matches(str(executor), NAMES, 1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        raise ValueError(f"`executor` must be one of {', '.join(map(repr, NAMES))}, found {executor!r}{hint}")
    return executor


def device_name(device: str | torch.device) -> str:
    """The device to train on; "auto" is CUDA where there is one."""
    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        found = torch.device(device)
    except RuntimeError as error:
        raise ValueError(f"`device` must be 'auto', 'cpu', 'cuda', …, found {device!r}") from error
    if found.type == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"`device` must be there, found {str(device)!r} and no CUDA; use 'cpu' or 'auto'")
    if found.type == "cuda" and (found.index or 0) >= torch.cuda.device_count():
        number = torch.cuda.device_count()
        raise ValueError(f"`device` must be there, found {str(device)!r}, and torch sees {number}, from cuda:0")
    if found.type not in ("cpu", "cuda"):
        _try(found)
    return str(found)


def _try(device: torch.device) -> None:
    """Refuses a device that this torch knows by name alone."""
    try:
        torch.zeros(1, device=device).item()
    except (RuntimeError, AssertionError) as error:
        said = re.split(r"\n|\.(?:\s|$)", str(error))[0]  # torch goes on at length
        raise ValueError(f"`device` must be there, found {str(device)!r} ({said}); use 'cpu' or 'auto'") from error
