"""Puts the meter into the training loops of other libraries and prints what happens.

Every case trains twice from the same seed, with and without the meter, and compares what training leaves behind bit for
bit: weights, buffers, the optimizer's state, random states and the library's own records. Before each measurement, the
affinities are also computed from copies of everything that the closure reaches, by the library's own optimizer. A
package that is not installed is only named.

    python benchmarks/compatibility.py              # all packages
    python benchmarks/compatibility.py opacus       # some of them
"""

import contextlib
import importlib.metadata
import io
import logging
import random
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from fnmatch import fnmatchcase
from functools import partial
from types import SimpleNamespace
from typing import Any
from unittest import mock

import cloudpickle
import numpy as np
import torch
from torch import Tensor, nn

import tagalong

TASKS = ("a", "b", "c")
STEPS = 24


class AffinityMeter(tagalong.AffinityMeter):
    """Compares each measured step with one on copies.

    Attributes:
        difference: The largest difference between an affinity and that of the copies so far.
    """

    def __init__(self, shared: Any, optimizer: Any, **options: Any) -> None:
        parameters = shared
        if isinstance(shared, str):
            named = options["model"].named_parameters()
            parameters = [p for name, p in named if fnmatchcase(name, shared) and p.requires_grad]
        elif isinstance(shared, nn.Module):
            parameters = shared.parameters()
        self._compared = list(parameters), optimizer
        self.difference = 0.0
        super().__init__(self._compared[0], optimizer, **options)

    def __call__(self, closure: Any, held_out: Any = None) -> Any:
        expected = affinities_of_copies(closure, *self._compared) if self.due else None
        returned = super().__call__(closure, held_out)
        self._compare(expected)
        return returned

    def measure_only(self, closure: Any, held_out: Any = None) -> bool:
        expected = affinities_of_copies(closure, *self._compared) if self.due else None
        measured = super().measure_only(closure, held_out)
        self._compare(expected)
        return measured

    def _compare(self, expected: np.ndarray | None) -> None:
        if expected is not None:
            self.difference = max(self.difference, float(np.abs(self.affinity(last=True).mean - expected).max()))


def affinities_of_copies(closure: Callable[[], Any], parameters: list[Tensor], optimizer: Any) -> np.ndarray:
    """Returns 1 - after / before [source, target], where every loss is computed on a copy of its own."""
    wrapped = optimizer if isinstance(optimizer, list) else [optimizer]
    plain = [getattr(o, "original_optimizer", getattr(o, "optimizer", o)) for o in wrapped]  # opacus's, accelerate's
    saved = cloudpickle.dumps((closure, parameters, plain))
    random_state, state_of_python = torch.get_rng_state(), random.getstate()

    def losses(copied: Callable[[], Any]) -> list[Tensor]:
        torch.set_rng_state(random_state)
        returned = copied()
        return list((returned[0] if isinstance(returned, tuple) else returned).values())

    before = torch.stack(losses(cloudpickle.loads(saved)[0])).detach()
    affinities = []
    for source in range(len(before)):
        # A step of the library's optimizer, on the gradients of the shared parameters alone.
        copied, shared, optimizers = cloudpickle.loads(saved)
        gradients = torch.autograd.grad(losses(copied)[source], shared, allow_unused=True)
        for copied_optimizer in optimizers:
            copied_optimizer.zero_grad()
        for p, gradient in zip(shared, gradients, strict=True):
            p.grad = gradient
        for copied_optimizer in optimizers:
            copied_optimizer.step()
        # The losses after it, with the buffers and random numbers of the beginning.
        copied, fresh, _ = cloudpickle.loads(saved)
        for p, moved in zip(fresh, shared, strict=True):
            p.data = moved.detach()
        affinities.append(1 - torch.stack(losses(copied)).detach() / before)
    torch.set_rng_state(random_state)
    random.setstate(state_of_python)
    return torch.stack(affinities).cpu().double().numpy()


Trained = tuple[nn.Module, torch.optim.Optimizer, AffinityMeter | None]  # the meter is None in a run without one
Train = Callable[[bool], Trained]  # trains with or without a meter
Cases = Iterator[tuple[str, list[Train]]]  # what is tried, and the trainings


def network() -> nn.Sequential:
    """Returns a shared encoder, and the heads of all tasks in one layer."""
    return nn.Sequential(nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Dropout(0.1)), nn.Linear(8, len(TASKS)))


def losses_of(model: nn.Module, batch: Sequence[Tensor]) -> dict[str, Tensor]:
    x, y = batch[0], batch[1]
    return dict(zip(TASKS, (model(x) - y).pow(2).mean(dim=0), strict=True))


class MeasuredBatches:
    """Batches that are measured just before the training loop receives them."""

    def __init__(self, batches: Sequence[Any], meter: AffinityMeter, model: nn.Module) -> None:
        self.batches, self.meter, self.model = batches, meter, model

    def __iter__(self) -> Iterator[Any]:
        for batch in self.batches:
            self.meter.measure_only(partial(losses_of, self.model, batch))
            yield batch

    def __len__(self) -> int:
        return len(self.batches)


def rows(number: int = 8 * STEPS) -> torch.utils.data.TensorDataset:
    """Returns inputs, labels of all tasks, and the task of each batch of eight rows."""
    draw = torch.Generator().manual_seed(7)
    x = torch.randn(number, 6, generator=draw)
    tasks = (torch.arange(number) // 8) % len(TASKS)
    return torch.utils.data.TensorDataset(x, torch.stack([x[:, 0], x[:, :3].sum(1), x.prod(1)], dim=1), tasks)


def libmtl() -> Cases:
    """LibMTL's trainer. Its source replaces its last release, which needs an old torch."""
    import LibMTL.trainer as module
    from LibMTL.loss import AbsLoss
    from LibMTL.metrics import AbsMetric

    if not torch.cuda.is_available():  # LibMTL's trainer asks for cuda:0
        module.torch = SimpleNamespace(**{**vars(torch), "device": lambda name: torch.device("cpu")})

    class SquaredError(AbsLoss):
        def compute_loss(self, pred: Tensor, gt: Tensor) -> Tensor:
            return (pred - gt).pow(2).mean()

    class AbsoluteError(AbsMetric):
        def update_fun(self, pred: Tensor, gt: Tensor) -> None:
            self.record.append(float((pred - gt).abs().mean()))

        def score_fun(self) -> list[float]:
            return [sum(self.record)]

    class MeasuringTrainer(module.Trainer):
        affinity_meter: Any = None

        def forward4loss(self, model: Any, inputs: Any, gts: Any, return_preds: bool = False) -> Any:
            if self.affinity_meter is None or not model.training:
                return super().forward4loss(model, inputs, gts, return_preds)
            compute = super().forward4loss

            def closure() -> Any:
                losses, predictions = compute(model, inputs, gts, return_preds=True)
                return dict(zip(TASKS, losses, strict=True)), (losses, predictions)

            return self.affinity_meter(closure)[1]

    def task() -> dict[str, Any]:
        return {"loss_fn": SquaredError(), "metrics": ["error"], "metrics_fn": AbsoluteError(), "weight": [0]}

    def train(weighting: str, architecture: str, measured: bool) -> Trained:
        trainer = MeasuringTrainer(
            {name: task() for name in TASKS},
            weighting,
            architecture,
            partial(nn.Sequential, nn.Linear(6, 8), nn.Tanh()),
            nn.ModuleDict({task: nn.Linear(8, 1) for task in TASKS}),
            rep_grad=False,
            multi_input=False,
            optim_param={"optim": "adam", "lr": 1e-2},
            scheduler_param=None,
            weight_args={"DWA": {"T": 2.0}, "GradNorm": {"alpha": 1.5}}.get(weighting, {}),
            arch_args={"img_size": [6], "num_experts": [2]},
        )
        if measured:
            trainer.affinity_meter = AffinityMeter(trainer.model.get_share_params(), trainer.optimizer, every=1)
        x, y, _ = rows(64).tensors
        batches = [(x[k : k + 16], {t: y[k : k + 16, [n]] for n, t in enumerate(TASKS)}) for k in range(0, 64, 16)]
        trainer.train(batches, batches, epochs=3)
        trainer.model.register_buffer("records", torch.as_tensor(trainer.model.train_loss_buffer))
        return trainer.model, trainer.optimizer, trainer.affinity_meter

    weightings = ("EW", "DWA", "GradNorm", "UW", "PCGrad")
    yield f"trainer, HPS with {', '.join(weightings)}", [partial(train, w, "HPS") for w in weightings]
    yield "trainer, MMoE with EW, DWA", [partial(train, w, "MMoE") for w in ("EW", "DWA")]


def peft() -> Cases:
    """A small GPT-2 with LoRA, in a plain loop and in the Hugging Face Trainer."""
    from peft import LoraConfig, get_peft_model
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

    from tagalong.integrations import transformers as adapter

    mock.patch.object(adapter, "AffinityMeter", AffinityMeter).start()

    def make() -> Any:
        config = GPT2Config(vocab_size=64, n_positions=32, n_embd=32, n_layer=2, n_head=2)
        lora = LoraConfig(r=4, target_modules=["c_attn"], lora_dropout=0.1, fan_in_fan_out=True)
        return get_peft_model(GPT2LMHeadModel(config), lora).double()

    def lora_parameters(model: nn.Module) -> list[nn.Parameter]:
        return [p for name, p in model.named_parameters() if "lora_" in name]

    draw = torch.Generator().manual_seed(7)
    texts = [torch.randint(16 * 2 ** (k % 3), (4, 16), generator=draw) for k in range(STEPS)]

    def plain_loop(measured: bool) -> Trained:
        model = make()
        optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2)
        meter = AffinityMeter("*lora_*", optimizer, model=model, every=2) if measured else None
        for k in range(0, STEPS, 3):
            batch = dict(zip(TASKS, texts[k : k + 3], strict=True))
            step(optimizer, meter, lambda batch=batch: {t: model(input_ids=x, labels=x).loss for t, x in batch.items()})
        return model, optimizer, meter

    def hugging_face(measured: bool) -> Trained:
        data = [{"input_ids": text[0], "labels": text[0], "task": k % 3} for k, text in enumerate(texts)]
        arguments = TrainingArguments(
            tempfile.mkdtemp(),
            per_device_train_batch_size=1,
            use_cpu=True,
            report_to=[],
            disable_tqdm=True,
            save_strategy="no",
        )
        common = {"model": make(), "args": arguments, "train_dataset": data}
        lora = {"task_of": "task", "shared": lora_parameters, "meter_options": {"tasks": TASKS}}
        trainer: Any = adapter.AffinityTrainer(**common, **lora) if measured else Trainer(**common)
        trainer.train()
        return trainer.model, trainer.optimizer, trainer.meter if measured else None

    yield "loop, GPT-2 with LoRA", [plain_loop]
    yield "Trainer, GPT-2 with LoRA, observe", [hugging_face]


def rechub() -> Cases:
    """torch-rechub's own `fit`, through a wrapped loader."""
    from torch_rechub.basic.features import DenseFeature, SparseFeature
    from torch_rechub.models.multi_task import MMOE, PLE, SharedBottom
    from torch_rechub.trainers import MTLTrainer

    types, layers, towers = ["regression"] * 3, {"dims": [8, 8], "dropout": 0.2}, [{"dims": [4]} for _ in TASKS]
    x, y, _ = rows(64).tensors
    columns = {"user": (x[:, 0].sigmoid() * 20).long(), "age": x[:, 1]}
    batches = [({name: c[k : k + 16] for name, c in columns.items()}, y[k : k + 16]) for k in range(0, 64, 16)]

    def train(kind: type[nn.Module], sizes: Sequence[int], method: str | None, measured: bool) -> Trained:
        features = [SparseFeature("user", 20, 4), DenseFeature("age")]
        model = kind(features, types, *sizes, layers, towers)
        adaptive = None if method is None else {"method": method}
        trainer = MTLTrainer(model, types, adaptive_params=adaptive, n_epoch=3, model_path=tempfile.mkdtemp())
        heads = ("towers", "predict_layers", "loss weight")
        shared = [p for name, p in trainer.model.named_parameters() if not name.startswith(heads)]
        meter = AffinityMeter(shared, trainer.optimizer, every=1) if measured else None
        trainer.fit(batches if meter is None else MeasuredBatches(batches, meter, trainer.model), batches)
        return trainer.model, trainer.optimizer, meter

    kinds = [(SharedBottom, (), None), (MMOE, (3,), None), (PLE, (1, 1, 2), None), (MMOE, (3,), "uwl")]
    yield "fit, SharedBottom, MMOE, PLE, MMOE with uwl", [partial(train, *kind) for kind in kinds]


def geometric() -> Cases:
    """PyG: two graph convolutions with BatchNorm and attention dropout, and properties of graphs as tasks."""
    from torch_geometric.data import Data
    from torch_geometric.loader import DataLoader
    from torch_geometric.nn import BatchNorm, GATConv, GCNConv, Sequential, global_mean_pool

    draw = torch.Generator().manual_seed(7)
    features = torch.randn(96, 6, 5, generator=draw)
    properties = torch.stack([features[:, :, 0].sum(1), features.amax((1, 2)), features.std((1, 2))], dim=1)
    edges = torch.randint(6, (96, 2, 12), generator=draw)
    graphs = [Data(x=x, edge_index=e, y=y) for x, e, y in zip(features, edges, properties, strict=True)]

    def train(measured: bool) -> Trained:
        convolutions = [(conv, "x, edges -> x") for conv in (GCNConv(5, 8), GATConv(8, 8, dropout=0.2))]
        encoder = Sequential("x, edges", [convolutions[0], BatchNorm(8), nn.ReLU(), convolutions[1]])
        heads = nn.Linear(8, 3)
        optimizer = torch.optim.Adam([*encoder.parameters(), *heads.parameters()], lr=1e-2)
        meter = AffinityMeter(encoder, optimizer, every=2) if measured else None

        def losses(batch: Any) -> dict[str, Tensor]:
            out = heads(global_mean_pool(encoder(batch.x, batch.edge_index), batch.batch))
            return dict(zip(TASKS, (out - batch.y.view(-1, 3)).pow(2).mean(dim=0), strict=True))

        for batch in DataLoader(graphs, batch_size=8, shuffle=True):
            step(optimizer, meter, partial(losses, batch))
        return nn.ModuleList([encoder, heads]), optimizer, meter

    yield "loop, GCN and GAT", [train]


def lightning() -> Cases:
    from lightning.pytorch import LightningModule, Trainer

    from tagalong.integrations import lightning as adapter

    mock.patch.object(adapter, "AffinityMeter", AffinityMeter).start()

    class Module(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = network()

        def task_losses(self, batch: Sequence[Tensor]) -> dict[str, Tensor]:
            return losses_of(self.model, batch)

        def training_step(self, batch: Sequence[Tensor], number: int) -> Tensor:
            losses = list(self.task_losses(batch).values())
            return losses[number % 3] if self.one_task else torch.stack(losses).sum()

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.AdamW(self.parameters(), lr=1e-2)

    def train(options: dict[str, Any], measured: bool) -> Trained:
        module, path = Module(), tempfile.mkdtemp() + "/affinity.json"
        module.one_task = "task_of" in options
        callback = adapter.AffinityCallback(shared="model.0", path=path, **options)
        trainer = Trainer(
            max_epochs=1,
            accelerator="cpu",
            callbacks=[callback] if measured else [],
            accumulate_grad_batches=2,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        trainer.fit(module, torch.utils.data.DataLoader(rows(), batch_size=8))
        return module, trainer.optimizers[0], callback.meter

    yield "Trainer, accumulated", [partial(train, {"every": 2})]
    observe = {"task_losses": None, "task_of": lambda batch: TASKS[int(batch[2][0])]}
    yield "Trainer, accumulated, observe", [partial(train, observe)]


def accelerate() -> Cases:
    from accelerate import Accelerator

    def train(estimator: str, measured: bool) -> Trained:
        accelerator, model = Accelerator(cpu=True, gradient_accumulation_steps=2), network()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        model, optimizer, loader = accelerator.prepare(
            model, optimizer, torch.utils.data.DataLoader(rows(), batch_size=8)
        )
        shared = accelerator.unwrap_model(model)[0]
        meter = AffinityMeter(shared, optimizer, every=2, estimator=estimator) if measured else None
        for batch in loader:
            with accelerator.accumulate(model):
                step(
                    optimizer,
                    meter,
                    partial(losses_of, model, batch),
                    task=batch_task(batch, estimator),
                    backward=accelerator.backward,
                )
        return model, optimizer, meter

    yield "loop, accumulated", [partial(train, "lookahead")]
    yield "loop, accumulated, observe", [partial(train, "streaming")]


def opacus() -> Cases:
    """opacus: per-sample gradients are clipped and made noisy."""
    from opacus import PrivacyEngine

    def train(estimator: str, measured: bool) -> Trained:
        model = network()
        model, optimizer, loader = PrivacyEngine().make_private(
            module=model,
            optimizer=torch.optim.Adam(model.parameters(), lr=1e-2),
            data_loader=torch.utils.data.DataLoader(rows(), batch_size=8),
            noise_multiplier=1.0,
            max_grad_norm=1.0,
            poisson_sampling=False,
        )
        meter = AffinityMeter(model._module[0], optimizer, every=2, estimator=estimator) if measured else None
        for batch in loader:
            step(optimizer, meter, partial(losses_of, model, batch), task=batch_task(batch, estimator))
        return model, optimizer, meter

    yield "loop, observe", [partial(train, "streaming")]
    yield "loop", [partial(train, "lookahead")]


PACKAGES: dict[str, Callable[[], Cases]] = {
    "LibMTL": libmtl,
    "transformers+peft": peft,
    "torch-rechub": rechub,
    "torch-geometric": geometric,
    "lightning": lightning,
    "accelerate": accelerate,
    "opacus": opacus,
}


def batch_task(batch: Sequence[Tensor], estimator: str) -> str | None:
    return TASKS[int(batch[2][0])] if estimator == "streaming" else None


def step(
    optimizer: torch.optim.Optimizer,
    meter: AffinityMeter | None,
    closure: Callable[[], dict[str, Tensor]],
    task: str | None = None,
    backward: Callable[[Tensor], object] = Tensor.backward,
) -> None:
    """Takes a training step on all tasks, or on one task, whose gradient is then observed."""
    losses = meter(closure) if meter is not None and task is None else closure()
    loss = losses[task] if task is not None else torch.stack(list(losses.values())).sum()
    backward(loss)
    if meter is not None and task is not None:
        meter.observe(task)
    optimizer.step()
    optimizer.zero_grad()


def outcome(train: Train) -> tuple[str, float, int]:
    """Trains with and without a meter; returns what happened, the largest difference, and how much was measured."""
    left_behind = []
    for measured in (False, True):
        torch.manual_seed(1)
        np.random.seed(1)  # noqa: NPY002 - what the libraries draw from
        random.seed(1)
        try:
            with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
                model, optimizer, meter = train(measured)
        except Exception as error:
            return f"stops {'with' if measured else 'without'} a meter: {error}".splitlines()[0], np.nan, 0
        generators = torch.get_rng_state(), np.random.get_state(), random.getstate()  # noqa: NPY002
        left_behind.append(comparable([model.state_dict(), optimizer.state_dict(), *generators]))
    assert isinstance(meter, AffinityMeter)
    if left_behind[0] != left_behind[1]:
        return "DIFFERS", meter.difference, meter.measured
    if not np.isfinite(meter.affinity().mean).all():
        return "bit for bit, but affinities are not finite", np.nan, meter.measured
    return "bit for bit", np.nan if meter.observed else meter.difference, meter.measured + meter.observed


def comparable(state: Any) -> Any:
    """Returns states with bytes in place of tensors and arrays, which are equal only if all bits are."""
    if isinstance(state, dict):
        return {key: comparable(value) for key, value in state.items()}
    if isinstance(state, list | tuple):
        return [comparable(value) for value in state]
    return np.asarray(state).tobytes() if isinstance(state, Tensor | np.ndarray) else state


def version_of(distribution: str) -> str:
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        return f"{distribution} {importlib.metadata.version(distribution)}"
    return f"{distribution} (source)"


def main() -> None:
    warnings.simplefilter("ignore")
    logging.disable()
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)  # so that differences are rounding errors of double precision
    print("| package | tried | training | steps | difference |\n|---|---|---|---|---|")
    for name in sys.argv[1:] or PACKAGES:
        try:
            cases = list(PACKAGES[name]())
        except ImportError as error:
            print(f"| {name} | | missing: {error} | | |")
            continue
        for tried, trainings in cases:
            results = [outcome(train) for train in trainings]
            training = "; ".join(sorted({result[0] for result in results}))
            steps, difference = sum(result[2] for result in results), max(result[1] for result in results)
            versions = ", ".join(map(version_of, name.split("+")))
            shown = "" if np.isnan(difference) else f"{difference:.0e}"
            print(f"| {versions} | {tried} | {training} | {steps} | {shown} |", flush=True)


if __name__ == "__main__":
    main()
