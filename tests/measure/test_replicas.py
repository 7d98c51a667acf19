"""Averages over the ranks of a process group; through the wrapped model, see `test_ddp`."""

import os
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from small import TwoLayers
from torch import Tensor

from forkserver import forkserver
from tagalong import AffinityMeter
from tagalong.measure import ClosureError

ROWS = {0: slice(0, 5), 1: slice(5, 16)}
NAMES = ["lookahead", "gradient", "cosine", "centered_cosine"]


def batch() -> tuple[TwoLayers, Tensor, dict[str, Tensor]]:
    torch.manual_seed(0)
    model = TwoLayers().double()
    y = {t: torch.randn(16, 1).double() for t in "abc"}
    y["b"][:5] = float("nan")  # rank 0 has no label of b
    y["c"][3:9] = float("nan")
    return model, torch.randn(16, 4).double(), y


def losses(model: TwoLayers, x: Tensor, y: dict[str, Tensor]) -> dict[str, tuple[Tensor, int]]:
    found = {}
    for task, out in model(x).items():
        known = ~y[task].isnan()
        if known.any():
            found[task] = ((out - y[task])[known].pow(2).mean(), int(known.sum()))
    return found


def meter_of(model: TwoLayers, group: object) -> AffinityMeter:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    return AffinityMeter(model.encoder, optimizer, estimator=NAMES, process_group=group, tasks=["a", "b", "c"])


def run_rank(index: int, folder: str) -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1")
    store = dist.FileStore(f"{folder}/store", 2)
    dist.init_process_group("gloo", store=store, rank=index, world_size=2)
    model, x, y = batch()
    here = ROWS[index]
    meter = meter_of(model, dist.group.WORLD)
    meter(lambda: losses(model, x[here], {t: labels[here] for t, labels in y.items()}))
    np.save(f"{folder}/{index}.npy", np.stack([meter.affinity(name).mean for name in NAMES]))
    broken = meter_of(model, dist.group.WORLD)
    try:
        broken(lambda: losses(model, x, y) if index else x.sum())
    except ClosureError as error:
        Path(f"{folder}/{index}.txt").write_text(str(error))
    dist.barrier()
    os._exit(0)  # everything is written; gloo's threads may abort a successful process as they are torn down


@pytest.mark.skipif(not dist.is_available(), reason="torch without torch.distributed")
def test_two_ranks_equal_one_process_on_the_full_batch_and_agree_on_errors(tmp_path: Path) -> None:
    forkserver()
    mp.start_processes(run_rank, (str(tmp_path),), 2, start_method="forkserver")
    model, x, y = batch()
    alone = meter_of(model, None)
    alone(lambda: losses(model, x, y))
    expected = np.stack([alone.affinity(name).mean for name in NAMES])
    ranks = [np.load(tmp_path / f"{index}.npy") for index in (0, 1)]
    np.testing.assert_array_equal(ranks[0], ranks[1])
    np.testing.assert_allclose(ranks[0], expected, rtol=1e-6, atol=1e-12)
    assert "must return a dict" in (tmp_path / "0.txt").read_text()
    assert "on another rank" in (tmp_path / "1.txt").read_text()
