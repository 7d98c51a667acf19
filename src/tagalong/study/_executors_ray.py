"""Chunks on a Ray cluster: Ray moves the work and tries again after a lost worker; the driver writes the store."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from tagalong.learn import Problem

from ._executors import Advance, Chunk, train_chunk
from ._row import Packed

_problems: dict[str, Problem] = {}  # what a worker has read, by run; one at a time


class Ray:
    """Trains chunks with Ray.

    Uses the connection there is: call `ray.init(address="auto")` first to work on a cluster (every node needs
    tagalong and what the problem imports). Without one it joins the cluster that runs here, as Ray does, or else starts
    Ray on this machine, and leaves it after the study.

    Args:
        retries: how often a chunk is tried again after its worker was lost.
        cpus: that a chunk takes.
        gpus: that a chunk takes; by default 1 if the device is CUDA. Fractions share a GPU.
    """

    def __init__(self, retries: int = 3, cpus: float = 1, gpus: float | None = None) -> None:
        try:
            import ray  # noqa: F401
        except ImportError:
            raise ImportError('executor="ray" needs Ray: pip install "tagalong[ray]"') from None
        self._retries, self._cpus, self._gpus = retries, cpus, gpus
        self._own = False
        self._train: Any = None

    def start(self, problem: Problem, device: str) -> None:
        import ray
        from ray import cloudpickle

        if not ray.is_initialized():
            ray.init(include_dashboard=False, log_to_driver=False)
            self._own = True
        gpus = (1 if device.startswith("cuda") else 0) if self._gpus is None else self._gpus
        remote = ray.remote(num_cpus=self._cpus, num_gpus=gpus, max_retries=self._retries)(_work)
        dumps: Any = cloudpickle.dumps
        content, run = ray.put(dumps(problem)), uuid.uuid4().hex
        self._train = lambda chunk: remote.remote(content, run, chunk, device, self._cpus)

    def map(self, chunks: Sequence[Chunk], advance: Advance) -> Iterator[tuple[Chunk, list[Packed]]]:
        import ray

        waiting = {self._train(chunk): chunk for chunk in chunks}
        try:
            while waiting:
                (reference, *_), _ = ray.wait(list(waiting), num_returns=1)
                packed = ray.get(reference)
                advance(len(packed))
                yield waiting.pop(reference), packed
        finally:
            for reference in waiting:
                ray.cancel(reference)

    def stop(self) -> None:
        import ray

        self._train = None
        if self._own:
            ray.shutdown()
            self._own = False


def _work(content: bytes, run: str, chunk: Chunk, device: str, cpus: float) -> list[Packed]:
    """Runs on a worker."""
    import torch
    from ray import cloudpickle

    torch.set_num_threads(max(1, int(cpus)))
    if run not in _problems:
        _problems.clear()
        _problems[run] = cloudpickle.loads(content)
    if chunk.checkpoint is not None and not chunk.checkpoint.parent.parent.exists():
        chunk = replace(chunk, checkpoint=None)  # this node does not see the folder of the run
    return train_chunk(_problems[run], chunk, device)
