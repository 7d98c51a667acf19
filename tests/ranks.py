"""Runs work on several processes of one group, for tests of data parallelism."""

import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from forkserver import forkserver


def on_ranks(world: int, folder: Path, work: Callable[..., Any], *arguments: Any, backend: str = "gloo") -> list[Any]:
    """Returns the results of ``work(rank, *arguments)`` on every rank; they must be picklable."""
    forkserver()
    mp.start_processes(_rank, (world, str(folder), backend, work, arguments), world, start_method="forkserver")
    return [pickle.loads((folder / f"{rank}.pickle").read_bytes()) for rank in range(world)]


def _rank(
    rank: int, world: int, folder: str, backend: str, work: Callable[..., Any], arguments: tuple[Any, ...]
) -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1", RANK=str(rank), WORLD_SIZE=str(world), LOCAL_RANK=str(rank))
    torch.set_num_threads(1)
    if backend == "nccl":
        torch.cuda.set_device(rank)
    dist.init_process_group(backend, store=dist.FileStore(f"{folder}/store", world), rank=rank, world_size=world)
    found = work(rank, *arguments)
    Path(folder, f"{rank}.pickle").write_bytes(pickle.dumps(found))
    if dist.is_initialized():
        dist.barrier()
    os._exit(0)  # everything is written; gloo's threads may abort a successful process as they are torn down
