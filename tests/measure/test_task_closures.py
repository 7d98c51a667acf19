"""One closure per task: the same affinities as one closure for all, with one graph at a time."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from small import TwoLayers
from torch import Tensor, nn

from tagalong import AffinityMeter
from tagalong.measure import ClosureError

TASKS = ("a", "b", "c", "d")


class Losses:
    """The losses of a small network; every task has rows of its own, and other rows held out."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = TwoLayers(TASKS).double()
        self._rows = {t: torch.randn(2, 16, 4, dtype=torch.float64) for t in TASKS}
        self.runs: list[str] = []

    def __call__(self, task: str, held_out: bool = False) -> Tensor:
        self.runs.append(task)
        return (self.model.heads[task](self.model.encoder(self._rows[task][int(held_out)])) - 1).pow(2).mean()

    def together(self, held_out: bool = False) -> Callable[[], dict[str, Tensor]]:
        return lambda: {t: self(t, held_out) for t in TASKS}

    def apart(self, held_out: bool = False) -> dict[str, Callable[[], Tensor]]:
        return {t: lambda t=t: self(t, held_out) for t in TASKS}  # type: ignore[misc]


def test_random_state_and_batchnorm_are_as_without_a_measurement() -> None:
    def run(every: int) -> tuple[Tensor, Tensor, Tensor]:
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Dropout(0.5), nn.Linear(6, 1))
        meter = AffinityMeter(net, lr=0.1, every=every)
        x = {t: torch.randn(8, 4) for t in TASKS}
        for task in TASKS:
            meter({t: lambda t=t: net(x[t]).pow(2).mean() for t in TASKS})[task].backward()  # type: ignore[misc]
        return net[1].running_mean, net[0].weight.grad, torch.rand(1)  # type: ignore[return-value]

    assert all(map(torch.equal, run(1), run(100)))


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
    with pytest.raises(KeyError):
        found["x"]


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
        # The hooks surround the meter: what a closure reaches, such as these counts, is restored after replays.
        with torch.autograd.graph.saved_tensors_hooks(Counted, lambda counted: counted.tensor):
            for _ in range(2):
                meter({str(k): lambda k=k: model(x[k]).pow(2).mean() for k in range(tasks)})  # type: ignore[misc]
        return Counted.peak

    assert peak(12) == peak(3) > 0


def test_missing_labels_and_missing_closures_are_skipped() -> None:
    losses = Losses()
    unlabelled, absent = (AffinityMeter(losses.model.encoder, lr=0.1, every=1, tasks=TASKS) for _ in range(2))
    for k in range(4):
        unlabelled({**losses.apart(), "b": lambda: None})
        absent({t: c for t, c in losses.apart().items() if t != TASKS[k]})
    affinity = unlabelled.affinity()
    assert affinity.count[0].tolist() == [4, 0, 4, 4]
    assert affinity.skipped["missing"][0].tolist() == [0, 4, 0, 0]
    np.testing.assert_array_equal(absent.affinity().count, np.where(np.eye(4, dtype=bool), 3, 2))


@pytest.mark.parametrize(
    ("closures", "part"),
    [
        ({"b": 3.0}, r"'b'.*function"),
        ({1: lambda: torch.ones(())}, "string"),
        ({"b": None}, "only one task"),
        ({"b": lambda: torch.ones(2)}, "shape"),
    ],
)
def test_unsuitable_closures_are_explained(closures: Any, part: str) -> None:
    losses = Losses()
    given = {"a": losses.apart()["a"], **{t: c for t, c in closures.items() if c is not None}}
    with pytest.raises(ClosureError, match=part):
        AffinityMeter(losses.model.encoder, lr=0.1)(given)
    with pytest.raises(ValueError, match="`held_out`"):
        AffinityMeter(losses.model.encoder, lr=0.1)(losses.apart(), losses.together())
