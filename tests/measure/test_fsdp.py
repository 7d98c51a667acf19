"""Ranks that shard every parameter (FSDP2) observe what one process on all rows would, without a trace."""

from typing import Any

import numpy as np
import parallel_streaming as streaming
import pytest
import torch.distributed as dist

from ranks import on_ranks

pytestmark = pytest.mark.skipif(not dist.is_available(), reason="torch without torch.distributed")
CASES = ("partly", "in copies", "by columns", "lookahead")


def everything(rank: int) -> dict[str, Any]:
    found: dict[str, Any] = {way: streaming.observed(rank, 2, streaming.SHARDED[way]) for way in streaming.SHARDED}
    found["changed"] = streaming.changed_by_observing(rank)
    return found | {case: streaming.refused_sharding(rank, case) for case in CASES}


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return on_ranks(2, tmp_path_factory.mktemp("ranks"), everything)


@pytest.mark.parametrize("way", streaming.SHARDED)
def test_ranks_observe_sharded_gradients_as_one_process_does(ranks: list[dict[str, Any]], way: str) -> None:
    expected = streaming.observed(0, 1, streaming.SHARDED[way])
    assert np.isfinite(expected["cosines"]).all()
    for found in (rank[way] for rank in ranks):
        np.testing.assert_array_equal(found["count"], expected["count"])
        np.testing.assert_allclose(found["cosines"], expected["cosines"], rtol=1e-6, atol=1e-12)
        np.testing.assert_array_equal(found["cosines"], ranks[0][way]["cosines"])
        for name in ("weights", "states"):
            assert len(found[name][0]) == len(expected[name][0])
            for observed, plain in zip(*found[name], strict=True):
                np.testing.assert_array_equal(observed, plain)


def test_observing_sharded_gradients_only_reads(ranks: list[dict[str, Any]]) -> None:
    assert [found["changed"] for found in ranks] == [[], []]


@pytest.mark.parametrize("case", CASES)
def test_what_cannot_be_observed_is_refused(ranks: list[dict[str, Any]], case: str) -> None:
    for found in ranks:
        assert "`shared`" in found[case]
