"""What cannot be measured on several ranks raises an error on every rank, and no rank waits for the others."""

import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import parallel
import pytest
import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.nn.parallel import DistributedDataParallel

from ranks import on_ranks
from tagalong import AffinityMeter

pytestmark = pytest.mark.skipif(not dist.is_available(), reason="torch without torch.distributed")


def meter_of(model: DistributedDataParallel, **options: Any) -> AffinityMeter:
    return AffinityMeter(model.module.encoder, **({"lr": 0.1, "every": 1} | options))


def broken(rank: int, model: DistributedDataParallel, batch: parallel.Batch) -> None:
    meter_of(model)(lambda: parallel.losses(model, batch) if rank else batch.x.sum())


def unrepeatable(rank: int, model: DistributedDataParallel, batch: parallel.Batch) -> None:
    factors = iter(range(1, 100))

    def closure() -> dict[str, Any]:
        factor = 1 if rank else next(factors)
        return {t: loss * factor for t, (loss, _) in parallel.losses(model, batch).items()}

    meter_of(model, tasks=parallel.TASKS)(closure)


def other_tasks(rank: int, model: DistributedDataParallel, batch: parallel.Batch) -> None:
    meter_of(model, tasks=["a", "b", "c"] if rank else ["c", "b", "a"])(lambda: parallel.losses(model, batch))


def other_calls(rank: int, model: DistributedDataParallel, batch: parallel.Batch) -> None:
    meter = meter_of(model, tasks=parallel.TASKS, every=1 + rank)
    for _ in range(2 + rank):
        meter(lambda: parallel.losses(model, batch))


def joined(rank: int, model: DistributedDataParallel, batch: parallel.Batch) -> None:
    with model.join():
        meter_of(model)(lambda: parallel.losses(model, batch))


def sharded(rank: int, model: DistributedDataParallel, batch: parallel.Batch) -> None:
    inner = parallel.network()
    fully_shard(inner.encoder)
    AffinityMeter(inner.encoder, lr=0.1)


def flattened(rank: int, model: DistributedDataParallel, batch: parallel.Batch) -> None:
    inner = FullyShardedDataParallel(parallel.network(), device_id=torch.device("cpu"), use_orig_params=True)
    AffinityMeter(inner.module.encoder, lr=0.1)


def checked_early(rank: int, model: DistributedDataParallel, batch: parallel.Batch) -> None:
    static = DistributedDataParallel(parallel.network(), static_graph=True)
    meter_of(static).check(lambda: parallel.losses(static, batch))


CASES: list[Callable[..., None]] = [
    broken,
    unrepeatable,
    other_tasks,
    other_calls,
    joined,
    sharded,
    flattened,
    checked_early,
]
EXPECTED = {
    "broken": ("must return a dict", "on another rank"),
    "unrepeatable": ("is not repeatable", "on another rank"),
    "other_tasks": ("`tasks` differs between ranks",) * 2,
    "other_calls": ("different numbers of times",) * 2,
    "joined": ("unequal numbers of batches",) * 2,
    "sharded": ("sharded parameters (FSDP)",) * 2,
    "flattened": ("sharded parameters (FSDP)",) * 2,
    "checked_early": ("static graph",) * 2,
}


def error_messages(rank: int) -> dict[str, str]:
    batch = next(parallel.batches(rank, 2))
    messages = {}
    for case in CASES:
        try:
            case(rank, parallel.wrap(parallel.network()), batch)
        except (ValueError, RuntimeError) as error:
            messages[case.__name__] = str(error)
        dist.barrier()
    return messages


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, str]]:
    return on_ranks(2, tmp_path_factory.mktemp("ranks"), error_messages)


@pytest.mark.parametrize("case", [case.__name__ for case in CASES])
def test_every_rank_raises_the_error(ranks: list[dict[str, str]], case: str) -> None:
    for rank, expected in enumerate(EXPECTED[case]):
        assert expected in ranks[rank][case]


def run_out_of_batches(rank: int, folder: str) -> str:
    """The second rank has one batch fewer and stops early."""
    model = parallel.wrap(parallel.network(), broadcast_buffers=False)
    meter = meter_of(model, tasks=parallel.TASKS)
    batch = next(parallel.batches(rank, 2))
    meter(lambda: parallel.losses(model, batch))
    if rank == 1:
        Path(folder, "1.pickle").write_bytes(pickle.dumps("done"))
        os._exit(0)
    try:
        meter(lambda: parallel.losses(model, batch))
        message = "nothing"
    except RuntimeError as error:
        message = str(error)
    Path(folder, "0.pickle").write_bytes(pickle.dumps(message))
    os._exit(0)


def test_the_error_says_that_another_rank_ran_out_of_batches(tmp_path: Path) -> None:
    message, _ = on_ranks(2, tmp_path, run_out_of_batches, str(tmp_path))
    assert "same number of batches" in message
