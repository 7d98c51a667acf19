"""Measuring in training loops that cannot be edited."""

import pickle
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from tagalong import AffinityMeter
from tagalong.measure import MeasuredLoader


class ClosedTrainer:
    """A trainer that keeps records of its losses, as LibMTL and torch-rechub do, and whose loop cannot be edited."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.encoder = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Dropout(0.2))
        self.heads = nn.ModuleDict({t: nn.Linear(6, 1) for t in "ab"})
        self.optimizer = torch.optim.Adam([*self.encoder.parameters(), *self.heads.parameters()], lr=0.01)
        self.records: dict[str, list[float]] = {t: [] for t in "ab"}

    def losses(self, batch: tuple[Tensor, Tensor]) -> dict[str, Tensor]:
        features = self.encoder(batch[0])
        found = {t: (h(features)[:, 0] - batch[1][:, k]).pow(2).mean() for k, (t, h) in enumerate(self.heads.items())}
        for task, loss in found.items():
            self.records[task].append(loss.item())
        return found

    def fit(self, loader: Iterable[Any]) -> None:
        for _ in range(2):
            for batch in loader:
                self.optimizer.zero_grad()
                weights = [1 + sum(record[-3:]) for record in self.records.values()]
                sum(w * loss for w, loss in zip(weights, self.losses(batch).values(), strict=True)).backward()
                self.optimizer.step()


def loader() -> DataLoader[Any]:
    x = torch.linspace(-1, 1, 256).reshape(64, 4)
    return DataLoader(TensorDataset(x, x[:, :2].square()), batch_size=16, shuffle=True)


def test_a_closed_loop_trains_the_same_and_is_measured_as_in_an_open_one() -> None:
    plain, measured, opened = ClosedTrainer(), ClosedTrainer(), ClosedTrainer()
    torch.manual_seed(1)
    plain.fit(loader())
    meter = AffinityMeter(measured.encoder, measured.optimizer, every=1)
    torch.manual_seed(1)
    measured.fit(MeasuredLoader(loader(), meter, measured.losses))
    for a, b in zip(plain.encoder.state_dict().values(), measured.encoder.state_dict().values(), strict=True):
        assert torch.equal(a, b)
    assert plain.records == measured.records
    assert meter.measured == meter.calls == 8

    inside = AffinityMeter(opened.encoder, opened.optimizer, every=1)
    compute = opened.losses
    opened.losses = lambda batch: inside(lambda: compute(batch))  # type: ignore[method-assign]
    torch.manual_seed(1)
    opened.fit(loader())
    np.testing.assert_array_equal(meter.affinity().history, inside.affinity().history)


def test_a_measured_loader_looks_like_the_loader() -> None:
    trainer, inner = ClosedTrainer(), loader()
    found = MeasuredLoader(inner, AffinityMeter(trainer.encoder, trainer.optimizer), trainer.losses)
    assert len(found) == 4
    assert found.dataset is inner.dataset
    assert found.batch_size == 16
    assert len(pickle.loads(pickle.dumps(MeasuredLoader([1, 2], None, len)))) == 2  # type: ignore[arg-type]


def test_a_measured_loader_does_nothing_where_gradients_are_off() -> None:
    trainer = ClosedTrainer()
    meter = AffinityMeter(trainer.encoder, trainer.optimizer, every=1)
    with torch.no_grad():
        assert len(list(MeasuredLoader(loader(), meter, trainer.losses))) == 4
    assert meter.calls == 0
