"""Measurements in loops that cannot be edited, and of the last step alone."""

from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

import numpy as np
import torch
from small import regression
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from tagalong import AffinityMeter


class Trainer:
    """A trainer that keeps records of its losses, as LibMTL and torch-rechub do."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.encoder = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Dropout(0.2))
        self.heads = nn.ModuleDict({t: nn.Linear(6, 1) for t in "ab"})
        self.optimizer = torch.optim.Adam([*self.encoder.parameters(), *self.heads.parameters()], lr=0.01)
        self.records: dict[str, list[float]] = {t: [] for t in "ab"}

    def losses(self, batch: tuple[Tensor, Tensor]) -> dict[str, Tensor]:
        features = self.encoder.train()(batch[0])
        found = {t: (h(features)[:, 0] - batch[1][:, k]).pow(2).mean() for k, (t, h) in enumerate(self.heads.items())}
        for task, loss in found.items():
            self.records[task].append(loss.item())
        return found


def loader() -> DataLoader[Any]:
    x = torch.linspace(-1, 1, 256).reshape(64, 4)
    return DataLoader(TensorDataset(x, x[:, :2].square()), batch_size=16, shuffle=True)


def test_measure_only_equals_a_call_and_leaves_no_trace_of_the_closure() -> None:
    batch, affinities = next(iter(loader())), []
    ways: list[Callable[[AffinityMeter, Any], Any]] = [AffinityMeter.__call__, AffinityMeter.measure_only]
    for way in ways:
        torch.manual_seed(3)
        trainer = Trainer()
        trainer.encoder.eval()
        meter = AffinityMeter(trainer.encoder, lr=0.1, every=2)
        before = [*(v.clone() for v in trainer.encoder.state_dict().values()), torch.get_rng_state()]
        returned = way(meter, lambda trainer=trainer: trainer.losses(batch))
        affinities.append(meter.affinity().mean)
    assert returned is True
    assert all(map(torch.equal, before, [*trainer.encoder.state_dict().values(), torch.get_rng_state()]))
    assert not trainer.encoder.training
    assert trainer.records == {"a": [], "b": []}
    np.testing.assert_array_equal(*affinities)


def test_measure_only_does_not_run_the_closure_when_nothing_is_due() -> None:
    model, closure = regression()
    meter = AffinityMeter(model.encoder, lr=0.1, every=2)
    runs: SimpleQueue[int] = SimpleQueue()  # unlike a list, not restored after a replay

    def counting() -> dict[str, Tensor]:
        runs.put(1)
        return closure()

    assert [bool(meter.measure_only(counting)) for _ in range(3)] == [True, False, True]
    before = runs.qsize()
    assert before > 2
    assert not meter.measure_only(counting)
    assert (runs.qsize(), meter.calls, meter.measured) == (before, 4, 2)


def test_the_latest_step_is_the_last_of_the_history() -> None:
    names = ["lookahead", "cosine"]
    model, closure = regression(dropout=0.3)
    meter = AffinityMeter(model.encoder, lr=0.1, every=5, estimator=names)
    for _ in range(20):
        meter(closure)
    for name in names:
        latest, history = meter.affinity(name, last=True), meter.affinity(name).history
        np.testing.assert_array_equal(latest.mean, history[-1])
        assert (latest.tasks, list(latest.steps)) == (("a", "b", "c"), [15])
        assert latest.metrics()[f"{name} onto c/a"] == history[-1, 0, 2]
