"""Ranks under DistributedDataParallel measure what one process on all their rows would."""

from typing import Any

import numpy as np
import parallel
import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.nn.functional import all_reduce

from ranks import on_ranks
from tagalong import AffinityMeter

pytestmark = pytest.mark.skipif(not dist.is_available(), reason="torch without torch.distributed")
BLOCKS = 500.0  # bytes: less than one gradient


def measure_everything(rank: int, world: int) -> dict[str, Any]:
    found: dict[str, Any] = {name: parallel.measure_affinities(rank, world, name) for name in parallel.OPTIMIZERS}
    found["in blocks"] = parallel.measure_affinities(rank, world, "momentum", gradient_memory=BLOCKS)
    found["unwrapped"] = through_the_inner_module(rank, world)
    found["trained"] = training_gradient(rank, world)
    found["nan"] = nan_for_missing(rank, world)
    found["unnamed"] = without_names(rank, world)
    found["sent"] = count_messages(rank, world)
    found["held out"] = held_out(rank, world)
    found["synchronized"] = with_synchronized_norm(rank, world)
    found["reset"] = after_a_reset(rank, world)
    return found


def through_the_inner_module(rank: int, world: int) -> np.ndarray:
    """The closure calls the module inside the wrapper, which the meter must notice."""
    inner = parallel.network()
    model = inner if world == 1 else parallel.wrap(inner)
    meter = AffinityMeter(inner.encoder, lr=0.1, model=inner, tasks=parallel.TASKS)
    meter(lambda: parallel.losses(inner, next(parallel.batches(rank, world))))
    del model
    return meter.affinity().mean


def held_out(rank: int, world: int) -> dict[str, np.ndarray]:
    inner = parallel.network()
    model = inner if world == 1 else parallel.wrap(inner)
    found = {}
    for names in (["lookahead", "gradient"], ["gradient", "cosine", "centered_cosine"]):
        optimizer = parallel.OPTIMIZERS["momentum"](inner.parameters())
        meter = AffinityMeter(inner.encoder, optimizer, tasks=parallel.TASKS, estimator=names)
        first, second = parallel.batches(rank, world, steps=2)
        meter(lambda: parallel.losses(model, first), held_out=lambda: parallel.losses(model, second))  # noqa: B023
        found |= {f"{name} of {names}": meter.affinity(name).mean for name in names}
    return found


class SynchronisedNorm(nn.SyncBatchNorm):
    """What SyncBatchNorm does on a GPU: statistics, and their gradients, over the rows of all ranks."""

    def forward(self, x: Tensor) -> Tensor:
        sums = torch.cat([x.sum(0), x.pow(2).sum(0), x.new_tensor([len(x)])])
        if dist.is_initialized():
            sums = all_reduce(sums)
        mean, square = (part / sums[-1] for part in sums[:-1].chunk(2))
        return (x - mean) / (square - mean.pow(2) + self.eps).sqrt() * self.weight + self.bias


def with_synchronized_norm(rank: int, world: int) -> np.ndarray:
    """Ranks communicate within every gradient, including ranks without a label of its task."""
    model, names = parallel.network(), ["lookahead", "gradient"]
    model.encoder[2] = SynchronisedNorm(6).double()
    group = None if world == 1 else dist.group.WORLD  # the wrapper requires a GPU for these norms
    meter = AffinityMeter(model.encoder, lr=0.1, tasks=parallel.TASKS, estimator=names, process_group=group)
    meter(lambda: parallel.losses(model, next(parallel.batches(rank, world))))
    return np.stack([meter.affinity(name).mean for name in names])


def training_gradient(rank: int, world: int) -> np.ndarray:
    """Returns the gradient of `meter.backward`, from a meter that measures its own rank only."""
    inner = parallel.network()
    model = inner if world == 1 else parallel.wrap(inner)
    meter = AffinityMeter(inner.encoder, lr=0.1, every=1, tasks=parallel.TASKS, process_group=None)
    for batch in parallel.batches(rank, world):
        meter(lambda batch=batch: parallel.losses(model, batch))
        meter.backward()
    assert inner.encoder[0].weight.grad is not None
    return inner.encoder[0].weight.grad.numpy()


def nan_for_missing(rank: int, world: int) -> np.ndarray:
    """A rank without a label returns NaN instead of leaving the task out."""
    inner = parallel.network()
    model = inner if world == 1 else parallel.wrap(inner)
    batch = next(parallel.batches(rank, world))

    def closure() -> dict[str, Any]:
        nothing = {t: (out.sum() * float("nan"), 3) for t, out in model(batch.x).items()}
        return nothing | parallel.losses(model, batch)

    meter = AffinityMeter(inner.encoder, lr=0.1, estimator="gradient")
    meter(closure)
    return meter.affinity().mean


def without_names(rank: int, world: int) -> tuple[Any, ...]:
    """The first rank's closure never returns b, and the meter is not given the task names."""
    inner = parallel.network()
    model = inner if world == 1 else parallel.wrap(inner)
    meter = AffinityMeter(inner.encoder, lr=0.1)
    checked = meter.check(lambda: parallel.losses(model, next(parallel.batches(rank, world))))
    assert sorted(checked.tasks) == ["a", "b", "c"]
    assert {tasks for _, tasks in checked.shared.values()} == {checked.tasks}
    meter(lambda: parallel.losses(model, next(parallel.batches(rank, world))))
    affinity = meter.affinity()
    order = [affinity.tasks.index(t) for t in parallel.TASKS]
    return affinity.tasks, affinity.mean[np.ix_(order, order)], dict(affinity.settings)


def after_a_reset(rank: int, world: int) -> tuple[tuple[str, ...], np.ndarray, np.ndarray]:
    """Returns tasks and histories before and after a reset, when the ranks agree on the task names again."""
    inner = parallel.network()
    model = inner if world == 1 else parallel.wrap(inner)
    meter = AffinityMeter(inner.encoder, lr=0.1, every=2)
    histories = []
    for _ in range(2):
        meter.reset()
        for batch in parallel.batches(rank, world):
            meter(lambda batch=batch: parallel.losses(model, batch))
        affinity = meter.affinity()
        order = [affinity.tasks.index(t) for t in parallel.TASKS]
        histories.append(affinity.history[:, order][:, :, order])
    return affinity.tasks, *histories


@pytest.fixture(scope="module", params=[2, 3])
def ranks(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return on_ranks(request.param, tmp_path_factory.mktemp("ranks"), measure_everything, request.param)


@pytest.mark.parametrize("optimizer", parallel.OPTIMIZERS)
@pytest.mark.parametrize("estimator", parallel.NAMES)
def test_ranks_through_the_wrapped_model_equal_one_process(
    ranks: list[dict[str, Any]], optimizer: str, estimator: str
) -> None:
    expected = parallel.measure_affinities(0, 1, optimizer)[estimator]
    assert np.isfinite(expected).all()
    for found in ranks:
        np.testing.assert_allclose(found[optimizer][estimator], expected, rtol=1e-6, atol=1e-12)


def test_all_ranks_have_the_same_affinity_to_the_last_bit(ranks: list[dict[str, Any]]) -> None:
    for found in ranks[1:]:
        for optimizer in parallel.OPTIMIZERS:
            for name, history in found[optimizer].items():
                np.testing.assert_array_equal(history, ranks[0][optimizer][name])
        assert found["unnamed"][2] == ranks[0]["unnamed"][2]


@pytest.mark.parametrize("estimator", parallel.NAMES)
def test_blocks_of_parameters_change_nothing(ranks: list[dict[str, Any]], estimator: str) -> None:
    for found in ranks:
        np.testing.assert_allclose(found["in blocks"][estimator], found["momentum"][estimator], rtol=1e-6, atol=1e-12)


def test_a_closure_that_calls_the_inner_module_is_averaged_too(ranks: list[dict[str, Any]]) -> None:
    for found in ranks:
        np.testing.assert_allclose(found["unwrapped"], through_the_inner_module(0, 1), rtol=1e-6, atol=1e-12)


def test_a_loss_that_is_nan_on_one_rank_is_missing_there(ranks: list[dict[str, Any]]) -> None:
    for found in ranks:
        np.testing.assert_allclose(found["nan"], nan_for_missing(0, 1), rtol=1e-6, atol=1e-12)


def test_the_training_gradient_is_always_that_of_the_wrapper(ranks: list[dict[str, Any]]) -> None:
    for found in ranks[1:]:
        np.testing.assert_array_equal(found["trained"], ranks[0]["trained"])


def test_ranks_agree_on_the_names_of_tasks(ranks: list[dict[str, Any]]) -> None:
    for found in ranks:
        tasks, mean, settings = found["unnamed"]
        assert tasks == ("a", "c", "b")  # the first rank's names, followed by those that only other ranks have
        np.testing.assert_allclose(mean, without_names(0, 1)[1], rtol=1e-6, atol=1e-12)
        assert settings["unconnected"] == []


def test_ranks_measure_the_same_again_after_a_reset(ranks: list[dict[str, Any]]) -> None:
    _, expected, _ = after_a_reset(0, 1)
    for found in ranks:
        tasks, before, after = found["reset"]
        assert tasks == ("a", "c", "b")
        np.testing.assert_array_equal(before, after)
        np.testing.assert_allclose(after, expected, rtol=1e-6, atol=1e-12)


def test_held_out_losses_of_all_ranks_equal_those_of_one_process(ranks: list[dict[str, Any]]) -> None:
    for found in ranks:
        for name, expected in held_out(0, 1).items():
            np.testing.assert_allclose(found["held out"][name], expected, rtol=1e-6, atol=1e-12, err_msg=name)


def test_norms_synchronized_over_ranks_equal_one_process(ranks: list[dict[str, Any]]) -> None:
    for found in ranks:
        np.testing.assert_allclose(found["synchronized"], with_synchronized_norm(0, 1), rtol=1e-6, atol=1e-12)


def count_messages(rank: int, world: int) -> dict[str, tuple[list[list[int]], int]]:
    """Returns the sizes of the meter's messages at each call, by estimator, and the number of shared parameters."""
    sent: list[int] = []
    real = dist.all_reduce

    def counting(message: torch.Tensor, **options: Any) -> Any:
        sent.append(message.numel())
        return real(message, **options)

    found = {}
    dist.all_reduce = counting
    ways = [("lookahead", 1e9), ("gradient", 1e9), ("cosine", 1e9), ("gradient", BLOCKS), ("gradient, held out", 1e9)]
    for name, memory in ways:
        inner = parallel.network()
        model = parallel.wrap(inner)
        meter = AffinityMeter(
            inner.encoder, lr=0.1, every=2, estimator=name.split(",")[0], tasks=parallel.TASKS, gradient_memory=memory
        )
        calls = []
        for batch in parallel.batches(rank, world, steps=6):
            sent.clear()
            closure = lambda batch=batch: parallel.losses(model, batch)  # noqa: B023, E731 - called at once
            meter(closure, held_out=closure if "held out" in name else None)
            calls.append(list(sent))
        found[f"{name} {memory:g}"] = calls, sum(p.numel() for p in inner.encoder.parameters())
    dist.all_reduce = real
    return found


def test_communication_is_n_gradients_and_a_few_numbers_at_measured_calls_only(ranks: list[dict[str, Any]]) -> None:
    n = len(parallel.TASKS)
    for found in ranks:
        for name, (calls, size) in found["sent"].items():
            plain, measured = calls[1::2], calls[0::2]
            assert plain == [[], [], []], name
            for sent in measured:
                agreed, *rest = sent
                assert agreed == 2 * n * (1 + ("held out" in name)) + 3  # losses, weights, problems, calls
                numbers = [m for m in rest if m == n * n]
                gradients = [m for m in rest if m != n * n]
                assert sum(gradients) == n * size, name
                assert len(numbers) == ("lookahead" in name or "held out" in name)
                assert len(gradients) == n or "500" in name
