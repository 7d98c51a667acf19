"""One closure per task: the same affinities as one closure for all, with one graph at a time."""

import io
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from small import TwoLayers
from torch import Tensor, nn

from tagalong import AffinityMeter
from tagalong.measure import ClosureError, RoundRobin

TASKS = ("a", "b", "c", "d")


class Losses:
    """The losses of a small network; every task has rows of its own, and other rows held out."""

    def __init__(self, dropout: float = 0.0) -> None:
        torch.manual_seed(0)
        self.model = TwoLayers(TASKS, dropout).double()
        self._rows = {t: torch.randn(2, 16, 4, dtype=torch.float64) for t in TASKS}
        self.runs: list[str] = []

    def __call__(self, task: str, held_out: bool = False) -> Tensor:
        self.runs.append(task)
        return (self.model.heads[task](self.model.encoder(self._rows[task][int(held_out)])) - 1).pow(2).mean()

    def together(self, held_out: bool = False) -> Callable[[], dict[str, Tensor]]:
        return lambda: {t: self(t, held_out) for t in TASKS}

    def apart(self, held_out: bool = False) -> dict[str, Callable[[], Tensor]]:
        return {t: lambda t=t: self(t, held_out) for t in TASKS}  # type: ignore[misc]


def train(form: str, *, held_out: bool = False, measure: bool = True, steps: int = 8, **options: Any) -> Any:
    losses = Losses()
    optimizer = torch.optim.AdamW(losses.model.parameters(), lr=0.01)
    meter = AffinityMeter(losses.model.encoder, optimizer, **options)
    for _ in range(steps):
        closure, other = getattr(losses, form)(), getattr(losses, form)(True) if held_out else None
        found = meter(closure, other) if measure else losses.together()()
        sum(found.values()).backward()
        optimizer.step()
        optimizer.zero_grad()
    return losses.model, meter


@pytest.mark.parametrize("held_out", [False, True])
@pytest.mark.parametrize("every", [1, 3, RoundRobin(1, sources=2), RoundRobin(1, sources=1, targets=2)])
def test_affinities_equal_those_of_one_closure_exactly(every: Any, held_out: bool) -> None:
    estimators = ["lookahead", "gradient", "cosine"]
    one, two = (train(form, every=every, held_out=held_out, estimator=estimators)[1] for form in ("together", "apart"))
    for name in estimators:
        first, second = one.affinity(name), two.affinity(name)
        for field in ("history", "null", "steps", "count"):
            np.testing.assert_array_equal(getattr(first, field), getattr(second, field))
    assert (one.calls, one.measured) == (two.calls, two.measured)


def test_training_is_the_same_bit_for_bit() -> None:
    plain, _ = train("together", measure=False)
    measured, _ = train("apart", every=2)
    for one, two in zip(plain.parameters(), measured.parameters(), strict=True):
        assert torch.equal(one, two)


def test_random_state_and_batchnorm_are_as_without_a_measurement() -> None:
    def run(every: int) -> tuple[Tensor, Tensor, Tensor]:
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Dropout(0.5), nn.Linear(6, 1))
        meter = AffinityMeter(net, lr=0.1, every=every)
        x = {t: torch.randn(8, 4) for t in TASKS}
        for step in range(4):
            task = TASKS[step]
            meter({t: lambda t=t: net(x[t]).pow(2).mean() for t in TASKS})[task].backward()  # type: ignore[misc]
        return net[1].running_mean, net[0].weight.grad, torch.rand(1)  # type: ignore[return-value]

    for one, two in zip(run(1), run(100), strict=True):
        assert torch.equal(one, two)


@pytest.mark.parametrize("held_out", [False, True])
def test_random_batches_for_measurements_do_not_change_training(held_out: bool) -> None:
    """`measure_only` draws batches from the global random state, which training with dropout uses too."""

    def run(every: int) -> tuple[list[Tensor], AffinityMeter]:
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Dropout(0.5), nn.Linear(6, 1))
        optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
        meter = AffinityMeter(net, optimizer, every=RoundRobin(every, targets=2), tasks=TASKS)
        fetch = lambda: torch.randn(8, 4)  # noqa: E731
        for _ in range(12):
            closures = {t: (fetch, lambda x: net(x).pow(2).mean()) for t in TASKS}
            meter.measure_only(closures, closures if held_out else None)
            net(torch.randn(8, 4)).pow(2).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        return [*net.state_dict().values(), torch.rand(1)], meter

    (one, measured), (two, _) = run(2), run(100)
    assert measured.measured == 6
    for first, second in zip(one, two, strict=True):
        assert torch.equal(first, second)


def test_only_needed_losses_are_computed() -> None:
    losses = Losses()
    meter = AffinityMeter(losses.model.encoder, lr=0.1, every=RoundRobin(1, sources=1, targets=2), tasks=TASKS)
    for _ in range(30):  # after the 1st and the 11th measurement, which are verified
        losses.runs.clear()
        meter.measure_only(losses.apart())
    assert len(set(losses.runs)) <= 3
    # The targets before, the source with its graph, the targets after: `lr` alone has no null step.
    assert len(losses.runs) <= 3 + 1 + 2
    assert np.ptp(meter.affinity().count) <= 1
    assert meter.affinity().skipped == {}


def test_a_loss_is_computed_when_it_is_read_and_only_once() -> None:
    losses = Losses()
    meter = AffinityMeter(losses.model.encoder, lr=0.1, every=10)
    meter(losses.apart())
    losses.runs.clear()
    found = meter(losses.apart())
    assert list(found) == list(TASKS)
    assert len(found) == 4
    assert losses.runs == []
    assert found["b"] is found["b"]
    assert losses.runs == ["b"]
    assert "x" not in found
    with pytest.raises(KeyError):
        found["x"]


def test_batches_are_fetched_once_and_only_if_needed() -> None:
    losses = Losses()
    fetched: list[str] = []

    def fetch(task: str) -> str:
        fetched.append(task)
        return task

    def closures(held_out: bool) -> dict[str, Any]:
        return {t: (lambda t=t: fetch(t), lambda t: losses(t, held_out)) for t in TASKS}  # type: ignore[misc]

    meter = AffinityMeter(losses.model.encoder, lr=0.1, every=RoundRobin(2, targets=1), tasks=TASKS)
    meter(closures(False), held_out=closures(True))
    assert len(fetched) == 2  # one source, one held-out target
    fetched.clear()
    assert not meter.due
    found = meter(closures(False), held_out=closures(True))
    assert fetched == []
    found["c"].backward()
    assert fetched == ["c"]
    assert meter.due


def test_memory_does_not_grow_with_the_number_of_tasks() -> None:
    """Counts the bytes of activations that are alive at once, with hooks that see every saved tensor."""

    class Counted:
        alive = peak = 0

        def __init__(self, tensor: Tensor) -> None:
            self.tensor = tensor.detach()  # an output that is saved with its graph would keep itself alive
            Counted.alive += tensor.nbytes
            Counted.peak = max(Counted.peak, Counted.alive)

        def __del__(self) -> None:
            Counted.alive -= self.tensor.nbytes

    def peak(tasks: int) -> int:
        Counted.alive = Counted.peak = 0
        model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1))
        x = [torch.randn(16, 8) for _ in range(tasks)]
        meter = AffinityMeter(model, lr=0.1, every=1, estimator=["lookahead", "cosine"])

        def loss(k: int) -> Tensor:
            return model(x[k]).pow(2).mean()

        # The hooks surround the meter: what a closure reaches, such as these counts, is restored after replays.
        with torch.autograd.graph.saved_tensors_hooks(Counted, lambda counted: counted.tensor):
            for _ in range(2):
                meter({str(k): lambda k=k: loss(k) for k in range(tasks)})  # type: ignore[misc]
        return Counted.peak

    assert peak(12) == peak(3) > 0


def test_missing_labels_are_skipped_and_counted() -> None:
    losses = Losses()
    meter = AffinityMeter(losses.model.encoder, lr=0.1, every=1)
    for _ in range(4):
        meter({**losses.apart(), "b": lambda: None})
    affinity = meter.affinity()
    assert affinity.count[0].tolist() == [4, 0, 4, 4]
    assert affinity.skipped["missing"][0].tolist() == [0, 4, 0, 0]


def test_some_tasks_may_have_no_closure_in_a_call() -> None:
    losses = Losses()
    meter = AffinityMeter(losses.model.encoder, lr=0.1, every=1, tasks=TASKS)
    for k in range(4):
        meter({t: c for t, c in losses.apart().items() if t != TASKS[k]})
    np.testing.assert_array_equal(meter.affinity().count, np.where(np.eye(4, dtype=bool), 3, 2))


def test_a_state_restores_which_targets_come_next() -> None:
    def run(stop: int | None) -> AffinityMeter:
        losses = Losses()
        every = RoundRobin(1, sources=1, targets=2)
        meter = AffinityMeter(losses.model.encoder, lr=0.1, every=every, tasks=TASKS)
        for step in range(9):
            if step == stop:
                state, meter = meter.state_dict(), AffinityMeter(losses.model.encoder, lr=0.1, every=every, tasks=TASKS)
                meter.load_state_dict(state)
            meter.measure_only(losses.apart())
        return meter

    np.testing.assert_array_equal(run(None).affinity().history, run(4).affinity().history)


def test_a_resumed_run_trains_and_measures_the_same() -> None:
    def start() -> tuple[Losses, torch.optim.Optimizer, AffinityMeter]:
        losses = Losses()
        optimizer = torch.optim.AdamW(losses.model.parameters(), lr=0.01)
        every = RoundRobin(2, sources=1, targets=2)
        return losses, optimizer, AffinityMeter(losses.model.encoder, optimizer, every=every, tasks=TASKS)

    def run(stop: int | None) -> tuple[nn.Module, AffinityMeter]:
        losses, optimizer, meter = start()
        for step in range(12):
            if step == stop:
                file = io.BytesIO()
                torch.save([x.state_dict() for x in (losses.model, optimizer, meter)], file)
                file.seek(0)
                states = torch.load(file, weights_only=True)
                losses, optimizer, meter = start()
                for part, state in zip((losses.model, optimizer, meter), states, strict=True):
                    part.load_state_dict(state)
            meter(losses.apart())[TASKS[step % 4]].backward()
            optimizer.step()
            optimizer.zero_grad()
        return losses.model, meter

    (model, meter), (resumed_model, resumed) = run(None), run(7)
    for field in ("history", "null", "steps", "count", "mean", "stderr"):
        np.testing.assert_array_equal(getattr(meter.affinity(), field), getattr(resumed.affinity(), field))
    for one, two in zip(model.parameters(), resumed_model.parameters(), strict=True):
        assert torch.equal(one, two)


def bad_closures() -> Iterator[Any]:
    losses = Losses()
    yield {"a": losses.apart()["a"], "b": 3.0}, "must be a function that returns its loss, or a pair of functions"
    yield {1: losses.apart()["a"]}, "must be given under a string"
    yield {"a": losses.apart()["a"]}, "there is only one task"
    yield {"a": losses.apart()["a"], "b": lambda: torch.ones(2)}, "has shape"


@pytest.mark.parametrize(("closures", "message"), bad_closures())
def test_unsuitable_closures_are_explained(closures: Any, message: str) -> None:
    losses = Losses()
    with pytest.raises(ClosureError, match=message):
        AffinityMeter(losses.model.encoder, lr=0.1)(closures)


def test_held_out_closures_must_have_the_same_form() -> None:
    losses = Losses()
    with pytest.raises(ValueError, match="`held_out` must be a mapping from tasks to closures"):
        AffinityMeter(losses.model.encoder, lr=0.1)(losses.apart(), losses.together())
