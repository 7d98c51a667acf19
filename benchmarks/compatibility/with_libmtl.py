"""LibMTL: its own trainer, with EW, DWA, GradNorm, UW and PCGrad, and with HPS, MMoE and Cross-stitch.

LibMTL 1.1.5, the last release, does not work with current versions of torch; its current source does. Without CUDA,
this script replaces the device that LibMTL's trainer has built in.

Needs: pip install git+https://github.com/median-research-group/LibMTL torch_geometric cvxpy qpsolvers scipy
Run:   python benchmarks/compatibility/with_libmtl.py
"""

import contextlib
import io
from typing import Any

import LibMTL.trainer as libmtl_trainer
import torch
from LibMTL import Trainer
from LibMTL.loss import AbsLoss
from LibMTL.metrics import AbsMetric
from reference import Case, main
from torch import nn

from tagalong import AffinityMeter

TASKS = ("a", "b", "c")


class OnCpu:
    """Stands for torch in LibMTL's trainer, which asks for cuda:0."""

    def __getattr__(self, attribute: str) -> Any:
        return (lambda *_: torch.device("cpu")) if attribute == "device" else getattr(torch, attribute)


if not torch.cuda.is_available():
    libmtl_trainer.torch = OnCpu()


class SquaredError(AbsLoss):
    """Keeps a record of all losses, like every loss of LibMTL."""

    def compute_loss(self, pred: torch.Tensor, gt: torch.Tensor) -> torch.Tensor:
        return (pred - gt).pow(2).mean()


class AbsoluteError(AbsMetric):
    def update_fun(self, pred: torch.Tensor, gt: torch.Tensor) -> None:
        self.record.append(float((pred - gt).abs().mean()))
        self.bs.append(len(pred))

    def score_fun(self) -> list[float]:
        return [sum(self.record) / len(self.record)]


class SmallResNet(nn.Module):
    """Has the parts of a ResNet that LibMTL's Cross-stitch networks take apart."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.bn1, self.relu = nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU()
        self.maxpool = nn.MaxPool2d(2)
        self.layer1, self.layer2, self.layer3 = (nn.Conv2d(4, 4, 1) for _ in range(3))
        self.layer4 = nn.Sequential(nn.Conv2d(4, 4, 1), nn.Flatten())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        return self.layer4(self.layer3(self.layer2(self.layer1(x))))


class MeasuringTrainer(Trainer):  # type: ignore[misc]
    """LibMTL's trainer with a meter around the computation of the losses."""

    affinity_meter: Any = None
    before_step: Any = None

    def forward4loss(self, model: Any, inputs: Any, gts: Any, return_preds: bool = False) -> Any:
        if self.affinity_meter is None or not model.training:
            return super().forward4loss(model, inputs, gts, return_preds)
        compute = super().forward4loss

        def closure() -> Any:
            losses, predictions = compute(model, inputs, gts, return_preds=True)
            return dict(zip(self.task_name, losses, strict=True)), (losses, predictions)

        return self.affinity_meter(closure)[1]


def batches() -> list[Any]:
    generator = torch.Generator().manual_seed(7)
    draw = [torch.randn(16, 67, generator=generator) for _ in range(5)]
    return [(d[:, :64].reshape(-1, 1, 8, 8), {t: d[:, 64 + k : 65 + k] for k, t in enumerate(TASKS)}) for d in draw]


def make(weighting: str, architecture: str) -> Any:
    tasks = {
        t: {"metrics": ["L1"], "metrics_fn": AbsoluteError(), "loss_fn": SquaredError(), "weight": [0]} for t in TASKS
    }
    arguments = {"DWA": {"T": 2.0}, "GradNorm": {"alpha": 1.5}}.get(weighting, {})
    return MeasuringTrainer(
        tasks, weighting, architecture, SmallResNet, nn.ModuleDict({t: nn.Linear(36, 1) for t in TASKS}),
        rep_grad=False, multi_input=False, optim_param={"optim": "adam", "lr": 1e-2}, scheduler_param=None,
        weight_args=arguments, arch_args={"img_size": [1, 8, 8], "num_experts": [2]},
    )  # fmt: skip


def task_losses(trainer: Any, batch: Any) -> dict[str, torch.Tensor]:
    meter, trainer.affinity_meter = trainer.affinity_meter, None
    losses = trainer.forward4loss(trainer.model, *batch)
    trainer.affinity_meter = meter
    return dict(zip(TASKS, losses, strict=True))


class Loader(list[Any]):
    """Calls a function before each training step."""

    before_step: Any = None

    def __iter__(self) -> Any:
        for batch in super().__iter__():
            self.before_step(batch)
            yield batch


def train(trainer: Any, before_step: Any, meter: Any) -> None:
    loader, trainer.affinity_meter = Loader(batches()), meter
    loader.before_step = before_step
    with contextlib.redirect_stdout(io.StringIO()):
        trainer.train(loader, batches(), epochs=4)
    trainer.affinity_meter = None


def case(weighting: str, architecture: str) -> Case:
    def quiet_make() -> Any:
        with contextlib.redirect_stdout(io.StringIO()):
            return make(weighting, architecture)

    return Case(
        f"LibMTL, {weighting}, {architecture}",
        quiet_make,
        lambda trainer: trainer.model,
        lambda trainer: trainer.optimizer,
        lambda trainer: list(trainer.model.get_share_params()),
        task_losses,
        train,
        lambda trainer: AffinityMeter(trainer.model.get_share_params(), trainer.optimizer, every=1),
        lambda trainer: (trainer.batch_weight.tolist(), trainer.model.train_loss_buffer.tolist()),
    )


if __name__ == "__main__":
    main(
        [case(name, "HPS") for name in ("EW", "DWA", "GradNorm", "UW", "PCGrad")]
        + [case("EW", "MMoE"), case("DWA", "MMoE"), case("EW", "Cross_stitch"), case("DWA", "Cross_stitch")]
    )
