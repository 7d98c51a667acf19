"""deepctr-torch: its own `fit`, which creates the data loader itself, with SharedBottom, MMOE and PLE.

Needs: pip install --no-deps deepctr-torch; pip install tqdm scikit-learn pandas
Run:   python benchmarks/compatibility/with_deepctr.py
"""

import contextlib
import io
from typing import Any
from unittest import mock

import numpy as np
import torch
from deepctr_torch.inputs import DenseFeat, SparseFeat
from deepctr_torch.models import MMOE, PLE, SharedBottom
from reference import Case, main
from torch.utils.data import DataLoader

from tagalong import AffinityMeter
from tagalong.measure import MeasuredLoader

TASKS = ("click", "buy", "rating")


def make(kind: Any) -> Any:
    columns = [SparseFeat("user", 20, embedding_dim=4), SparseFeat("item", 30, embedding_dim=4), DenseFeat("age", 1)]
    model = kind(
        columns, task_types=["binary", "binary", "regression"], task_names=list(TASKS), dnn_dropout=0.2, device="cpu"
    )
    model.compile("adam", loss=["binary_crossentropy", "binary_crossentropy", "mse"])
    return model


def task_losses(model: Any, batch: Any) -> dict[str, torch.Tensor]:
    x, y = (part.to(model.device).float() for part in batch)
    predicted = model(x)
    return {t: model.loss_func[k](predicted[:, k], y[:, k], reduction="sum") for k, t in enumerate(TASKS)}


def shared(model: Any) -> list[torch.Tensor]:
    return [p for name, p in model.named_parameters() if "tower" not in name and "linear" not in name]


def train(model: Any, before_step: Any, meter: Any) -> None:
    class Announced:
        def __init__(self, **options: Any) -> None:
            self.loader = DataLoader(**options)

        def __iter__(self) -> Any:
            for batch in self.loader:
                before_step(batch)
                yield batch

    def make_loader(**options: Any) -> Any:
        loader = Announced(**options)
        return loader if meter is None else MeasuredLoader(loader, meter, lambda batch: task_losses(model, batch))

    rng = np.random.default_rng(7)
    x = {"user": rng.integers(20, size=320), "item": rng.integers(30, size=320), "age": rng.random(320)}
    y = np.stack([rng.random(320) < 0.5, rng.random(320) < 0.3, x["age"] + rng.random(320)], axis=1).astype(float)
    quiet = contextlib.redirect_stdout(io.StringIO())
    with quiet, mock.patch("deepctr_torch.models.basemodel.DataLoader", make_loader):
        model.fit(x, y, batch_size=32, epochs=2, verbose=0)


def case(kind: Any) -> Case:
    return Case(
        f"deepctr-torch, {kind.__name__}",
        lambda: make(kind),
        lambda model: model,
        lambda model: model.optim,
        shared,
        task_losses,
        train,
        lambda model: AffinityMeter(shared(model), model.optim, every=1),
    )


if __name__ == "__main__":
    main([case(SharedBottom), case(MMOE), case(PLE)])
