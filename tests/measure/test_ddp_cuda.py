"""Data parallelism on a GPU, which two ranks may share."""

from pathlib import Path
from typing import Any

import numpy as np
import parallel
import pytest
import torch
from torch import nn

from ranks import on_ranks
from tagalong import AffinityMeter

pytestmark = pytest.mark.cuda


def measure_affinities(rank: int, world: int, synchronized: bool) -> dict[str, Any]:
    """Returns affinities with BatchNorm in the encoder, and the final states with and without a meter."""
    device = rank % torch.cuda.device_count()
    found: dict[str, Any] = {}
    for metered in (False, True):
        inner = parallel.network()
        inner.encoder[2] = nn.BatchNorm1d(6).double()
        if synchronized and world > 1:
            inner = nn.SyncBatchNorm.convert_sync_batchnorm(inner)
        inner = inner.to(device)
        model = inner if world == 1 else parallel.wrap(inner, device_ids=[device])
        optimizer = torch.optim.AdamW(inner.parameters(), lr=0.01)
        meter = AffinityMeter(
            inner.encoder, optimizer, every=1, tasks=parallel.TASKS, estimator=["lookahead", "gradient"]
        )
        for batch in parallel.batches(rank, world):
            here = parallel.Batch(
                batch.x.to(device), {t: labels.to(device) for t, labels in batch.y.items()}, batch.counts
            )
            closure = lambda here=here: parallel.losses(model, here)  # noqa: B023, E731 - called at once
            losses = meter(closure) if metered else closure()
            sum(loss * count * world / here.counts[t] for t, (loss, count) in losses.items()).backward()
            optimizer.step()
            optimizer.zero_grad()
        found[f"state {metered}"] = {name: value.cpu().clone() for name, value in inner.state_dict().items()}
    return found | {"affinity": np.stack([meter.affinity(name).history for name in ("lookahead", "gradient")])}


def assert_no_trace(found: dict[str, Any]) -> None:
    for name, value in found["state False"].items():
        assert torch.equal(value, found["state True"][name]), name


def backend() -> str:
    return "nccl" if torch.cuda.device_count() > 1 else "gloo"  # nccl does not support two ranks on one GPU


def test_synchronized_batchnorm_equals_one_process_on_the_full_batch(tmp_path: Path) -> None:
    expected = measure_affinities(0, 1, synchronized=True)["affinity"]
    for found in on_ranks(2, tmp_path, measure_affinities, 2, True, backend=backend()):
        np.testing.assert_allclose(found["affinity"], expected, rtol=1e-6, atol=1e-10)
        assert_no_trace(found)


def test_plain_batchnorm_gives_the_same_on_all_ranks_and_leaves_no_trace(tmp_path: Path) -> None:
    ranks = on_ranks(2, tmp_path, measure_affinities, 2, False, backend=backend())
    np.testing.assert_array_equal(ranks[0]["affinity"], ranks[1]["affinity"])
    for found in ranks:
        assert_no_trace(found)


def test_one_rank_of_nccl_is_one_process(tmp_path: Path) -> None:
    (found,) = on_ranks(1, tmp_path, measure_affinities, 1, False, backend="nccl")
    np.testing.assert_allclose(
        found["affinity"], measure_affinities(0, 1, synchronized=False)["affinity"], rtol=1e-9, atol=1e-12
    )
    assert_no_trace(found)
