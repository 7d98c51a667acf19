"""torch-rechub: its own `fit`, with SharedBottom, MMOE and PLE, and with uncertainty weights.

Needs: pip install --no-deps torch-rechub; pip install tqdm scikit-learn pandas
Run:   python benchmarks/compatibility/with_rechub.py
"""

import contextlib
import io
import tempfile
from typing import Any

import torch
from reference import Case, main
from torch_rechub.basic.features import DenseFeature, SparseFeature
from torch_rechub.models.multi_task import MMOE, PLE, SharedBottom
from torch_rechub.trainers import MTLTrainer

from tagalong import AffinityMeter
from tagalong.measure import MeasuredLoader

TASKS = ("click", "like", "watch")
TYPES = ["classification", "classification", "regression"]


def batches() -> list[Any]:
    generator = torch.Generator().manual_seed(7)
    found = []
    for _ in range(10):
        x = torch.rand(64, 3, generator=generator)
        features = {"user": (20 * x[:, 0]).long(), "item": (30 * x[:, 1]).long(), "age": x[:, 2]}
        noise = torch.rand(64, 2, generator=generator)
        labels = torch.stack([(x[:, 0] > noise[:, 0]), (x[:, 1] > noise[:, 1]), x.sum(1)], dim=1).float()
        found.append((features, labels))
    return found


def make(kind: str, method: str | None) -> MTLTrainer:
    features = [SparseFeature("user", 20, 4), SparseFeature("item", 30, 4), DenseFeature("age")]
    layers = {"dims": [8, 8], "dropout": 0.2}
    towers = [{"dims": [4]} for _ in TASKS]
    model: Any
    if kind == "SharedBottom":
        model = SharedBottom(features, TYPES, layers, towers)
    elif kind == "MMOE":
        model = MMOE(features, TYPES, 3, layers, towers)
    else:
        model = PLE(features, TYPES, 1, 1, 2, layers, towers)
    adaptive = None if method is None else {"method": method}
    return MTLTrainer(model, TYPES, adaptive_params=adaptive, n_epoch=2, model_path=tempfile.mkdtemp())


def task_losses(trainer: MTLTrainer, batch: Any) -> dict[str, torch.Tensor]:
    x, y = batch
    predicted = trainer.model({name: column.to(trainer.device) for name, column in x.items()})
    columns = y.to(trainer.device).float()
    return {t: trainer.loss_fns[k](predicted[:, k], columns[:, k]) for k, t in enumerate(TASKS)}


def shared(trainer: MTLTrainer) -> list[torch.Tensor]:
    heads = ("towers", "predict_layers", "loss weight")
    return [p for name, p in trainer.model.named_parameters() if not name.startswith(heads)]


def train(trainer: MTLTrainer, before_step: Any, meter: Any) -> None:
    def measure(batch: Any) -> Any:
        return task_losses(trainer, batch)

    class Loader(list[Any]):
        def __iter__(self) -> Any:
            for batch in super().__iter__():
                before_step(batch)
                yield batch

    loader: Any = Loader(batches())
    if meter is not None:
        loader = MeasuredLoader(loader, meter, measure)
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        trainer.fit(loader, batches())


def case(kind: str, method: str | None = None) -> Case:
    return Case(
        f"torch-rechub, {kind}" + (f", {method}" if method else ""),
        lambda: make(kind, method),
        lambda trainer: trainer.model,
        lambda trainer: trainer.optimizer,
        shared,
        task_losses,
        train,
        lambda trainer: AffinityMeter(shared(trainer), trainer.optimizer, every=1),
    )


if __name__ == "__main__":
    main([case("SharedBottom"), case("MMOE"), case("PLE"), case("MMOE", "uwl")])
