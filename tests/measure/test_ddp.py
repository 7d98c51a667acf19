"""Ranks under DistributedDataParallel measure what one process on all rows would, without a trace, or all refuse."""

from collections.abc import Callable
from typing import Any

import numpy as np
import parallel
import parallel_streaming as streaming
import pytest
import torch
import torch.distributed as dist
from parallel import TASKS, Batch
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.nn.parallel import DistributedDataParallel

from ranks import on_ranks
from tagalong import AffinityMeter

pytestmark = pytest.mark.skipif(not dist.is_available(), reason="torch without torch.distributed")
CLOSE = {"rtol": 1e-6, "atol": 1e-12}
MESSAGES = ("lookahead", "gradient", "cosine", "gradient, held out")


def meter_of(model: DistributedDataParallel, **options: Any) -> AffinityMeter:
    return AffinityMeter(model.module.encoder, **({"lr": 0.1, "every": 1} | options))


def broken(rank: int, model: DistributedDataParallel, batch: Batch) -> None:
    meter_of(model)(lambda: parallel.losses(model, batch) if rank else batch.x.sum())


def unrepeatable(rank: int, model: DistributedDataParallel, batch: Batch) -> None:
    factors = iter(range(1, 100))

    def closure() -> dict[str, Any]:
        factor = 1 if rank else next(factors)
        return {t: loss * factor for t, (loss, _) in parallel.losses(model, batch).items()}

    meter_of(model, tasks=TASKS)(closure)


def other_tasks(rank: int, model: DistributedDataParallel, batch: Batch) -> None:
    meter_of(model, tasks=["a", "b", "c"] if rank else ["c", "b", "a"])(lambda: parallel.losses(model, batch))


def other_calls(rank: int, model: DistributedDataParallel, batch: Batch) -> None:
    meter = meter_of(model, tasks=TASKS, every=1 + rank)
    for _ in range(2 + rank):
        meter(lambda: parallel.losses(model, batch))


def sharded(rank: int, model: DistributedDataParallel, batch: Batch) -> None:
    inner = parallel.network()
    fully_shard(inner.encoder)
    AffinityMeter(inner.encoder, lr=0.1)


def flattened(rank: int, model: DistributedDataParallel, batch: Batch) -> None:
    inner = FullyShardedDataParallel(parallel.network(), device_id=torch.device("cpu"), use_orig_params=True)
    AffinityMeter(inner.module.encoder, lr=0.1)


def static_graph(rank: int, model: DistributedDataParallel, batch: Batch) -> None:
    static = DistributedDataParallel(parallel.network(), static_graph=True)
    meter_of(static)(lambda: parallel.losses(static, batch))


# What cannot be measured, with a part of the error on the first rank and on the second.
REFUSED: dict[Callable[..., None], tuple[str, str]] = {
    broken: ("must return a dict", "on another rank"),
    unrepeatable: ("not repeatable", "on another rank"),
    other_tasks: ("`tasks`", "`tasks`"),
    other_calls: ("numbers of times", "numbers of times"),
    sharded: ("FSDP", "FSDP"),
    flattened: ("FSDP", "FSDP"),
    static_graph: ("static_graph", "static_graph"),
}


def error_of(case: Callable[..., None], rank: int) -> str:
    try:
        case(rank, parallel.wrap(parallel.network()), next(parallel.batches(rank, 2)))
    except (ValueError, RuntimeError) as error:
        return str(error)
    finally:
        dist.barrier()
    return "accepted"


def measure(rank: int, world: int) -> dict[str, Any]:
    return {situation.__name__: situation(rank, world) for situation in parallel.SITUATIONS}


def everything(rank: int, world: int) -> dict[str, Any]:
    """Does everything in one start of the processes."""
    found = measure(rank, world)
    if world > 2:
        return found
    found["trained"] = parallel.training_gradient(rank, world)
    for name in MESSAGES:
        found[f"sent for {name}"] = parallel.messages(rank, world, name)
    for way in parallel.WRAPPERS:
        found[way] = [parallel.trace(rank, way, metered=metered) for metered in (False, True)]
    for name, way in streaming.WAYS.items():
        found[f"streaming {name}"] = streaming.observed(rank, world, way)
    found["different tasks"] = streaming.refused(rank, resumed=False, rounds=1)
    found["different tasks after a checkpoint"] = streaming.refused(rank, resumed=True, rounds=1)
    found["bucket views"] = streaming.bucket_views_without_sync(rank)
    found["different tasks later"] = streaming.refused(rank, resumed=False, rounds=32)
    found |= {case.__name__: error_of(case, rank) for case in REFUSED}
    return found


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return on_ranks(2, tmp_path_factory.mktemp("two_ranks"), everything, 2)


@pytest.fixture(scope="module", params=[2, pytest.param(3, marks=pytest.mark.slow)])
def ranks(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    if request.param == 2:
        return request.getfixturevalue("two_ranks")  # type: ignore[no-any-return]
    return on_ranks(3, tmp_path_factory.mktemp("three_ranks"), everything, 3)


@pytest.fixture(scope="module")
def alone() -> dict[str, Any]:
    return measure(0, 1)


@pytest.mark.parametrize("situation", [situation.__name__ for situation in parallel.SITUATIONS])
def test_ranks_equal_one_process_in(ranks: list[dict[str, Any]], alone: dict[str, Any], situation: str) -> None:
    for found in ranks:
        np.testing.assert_allclose(found[situation], alone[situation], **CLOSE)


def test_the_training_gradient_is_always_that_of_the_wrapper(two_ranks: list[dict[str, Any]]) -> None:
    np.testing.assert_array_equal(*(found["trained"] for found in two_ranks))


@pytest.mark.parametrize("name", MESSAGES)
def test_communication_is_gradients_and_a_few_numbers_at_measured_calls_only(
    two_ranks: list[dict[str, Any]], name: str
) -> None:
    n, closures = len(TASKS), 1 + ("held out" in name)
    for found in two_ranks:
        calls, size = found[f"sent for {name}"]
        assert calls[1::2] == [[], []]
        for agreed, *rest in calls[0::2]:
            assert agreed == 2 * n * closures + 2  # losses, weights, problems, calls
            losses_after = [m for m in rest if m == n * n]
            gradients = [m for m in rest if m != n * n]
            # with flags that tell which of the four parameters a task uses
            assert gradients == [size + 4] * n * closures
            assert len(losses_after) == ("lookahead" in name)


@pytest.mark.parametrize("way", parallel.WRAPPERS)
def test_weights_buffers_and_random_state_of_every_rank_are_those_without_a_meter(
    two_ranks: list[dict[str, Any]], way: str
) -> None:
    for found in two_ranks:
        (plain, _), (metered, measured) = found[way]
        assert measured == 4
        assert plain.keys() == metered.keys()
        assert [name for name, value in plain.items() if not torch.equal(value, metered[name])] == []


@pytest.mark.parametrize("way", streaming.WAYS)
def test_ranks_observe_what_one_process_does_on_all_rows(two_ranks: list[dict[str, Any]], way: str) -> None:
    expected = streaming.observed(0, 1, streaming.WAYS[way])
    assert np.isfinite(expected["cosines"]).all()
    for found in (rank[f"streaming {way}"] for rank in two_ranks):
        assert found["tasks"] == expected["tasks"]
        np.testing.assert_array_equal(found["count"], expected["count"])
        np.testing.assert_allclose(found["cosines"], expected["cosines"], atol=1e-4)
        np.testing.assert_array_equal(found["cosines"], two_ranks[0][f"streaming {way}"]["cosines"])
        for one, two in zip(*found["weights"], strict=True):
            np.testing.assert_array_equal(one, two)


@pytest.mark.parametrize(("when", "number"), [("", 0), (" after a checkpoint", 0), (" later", 127)])
def test_different_tasks_in_the_same_step_are_refused_on_every_rank(
    two_ranks: list[dict[str, Any]], when: str, number: int
) -> None:
    """Ranks compare their tasks at the first observations, and then every 64."""
    for found in two_ranks:
        assert found[f"different tasks{when}"].startswith(f"{number}: ranks have trained on different tasks")
        assert "gradient_as_bucket_view=True" in found["bucket views"]


@pytest.mark.parametrize("case", REFUSED, ids=lambda case: case.__name__)
def test_every_rank_raises_the_error(two_ranks: list[dict[str, Any]], case: Callable[..., None]) -> None:
    for found, expected in zip(two_ranks, REFUSED[case], strict=True):
        assert expected in found[case.__name__]
