"""Lightning's Trainer with the callback."""

import csv
import importlib.util
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import machine
import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, TensorDataset

from ranks import on_ranks
from tagalong import Affinity, AffinityMeter, select_groups
from tagalong.measure import RoundRobin

if importlib.util.find_spec("lightning") is None:
    pytest.skip("needs lightning", allow_module_level=True)

import lightning.pytorch as pl
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.strategies import DDPStrategy
from lightning.pytorch.utilities import CombinedLoader

from tagalong.integrations.lightning import AffinityCallback

pytestmark = [
    # Advice about the machine and the length of the run.
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
    pytest.mark.filterwarnings("ignore:The number of training batches"),
    # Lightning 2.6 with torch 2.13.
    pytest.mark.filterwarnings("ignore:.*LeafSpec.* is deprecated:FutureWarning"),
]


class AutomaticOptimization(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.machine = machine.fresh()

    def task_losses(self, batch: list[Tensor]) -> dict[str, Tensor]:
        return machine.losses(self.machine, *batch)

    def training_step(self, batch: list[Tensor], _: int) -> Tensor:
        return torch.stack(list(self.task_losses(batch).values())).sum()

    def configure_optimizers(self) -> Any:
        return torch.optim.AdamW(self.parameters(), lr=0.01)


class ManualOptimization(AutomaticOptimization):
    """Two optimisers, one of them without shared parameters."""

    automatic_optimization = False

    def training_step(self, batch: list[Tensor], index: int) -> None:  # type: ignore[override]
        self.manual_backward(super().training_step(batch, index))
        for optimizer in self.optimizers():
            optimizer.step()
            optimizer.zero_grad()

    def configure_optimizers(self) -> Any:
        parts = self.machine.encoder, self.machine.heads
        return [torch.optim.SGD(part.parameters(), lr=0.05, momentum=0.9) for part in parts]


class OneTaskPerStep(AutomaticOptimization):
    """Each batch is (task, rows)."""

    def training_step(self, batch: Any, _: int) -> Tensor:
        return self.task_losses(batch["rows"])[machine.TASKS[int(batch["task"][0])]]


class OneTask(Dataset[Any]):
    """A dataset whose batches belong to one task each, in turn."""

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> dict[str, Any]:
        x, y = machine.rows()
        chosen = slice(8 * (index % 8), 8 * (index % 8) + 8)
        return {"task": torch.full((8,), index % 3), "rows": [x[chosen], y[chosen]]}


class FromCombinedLoader(AutomaticOptimization):
    """Each batch is a dict with the rows of each task; None once a loader is exhausted."""

    def task_losses(self, batch: dict[str, Any]) -> dict[str, Tensor]:  # type: ignore[override]
        return {task: super(FromCombinedLoader, self).task_losses(rows)[task] for task, rows in batch.items() if rows}


def rows_of_all_tasks() -> Any:
    return DataLoader(TensorDataset(*machine.rows()), batch_size=8)


def rows_in_turn() -> Any:
    return DataLoader(OneTask(), batch_size=None)


def rows_combined() -> Any:
    x, y = machine.rows()
    sizes = dict(zip(machine.TASKS, (64, 48, 32), strict=True))
    loaders = {t: DataLoader(TensorDataset(x[:n], y[:n]), batch_size=8) for t, n in sizes.items()}
    return CombinedLoader(loaders, mode="max_size")


def callback(**options: Any) -> Any:
    return AffinityCallback(**({"shared": "machine.encoder", "every": 2} | options))


def observing(**options: Any) -> Any:
    chosen = {"shared": "machine.encoder", "task_of": "task", "tasks": machine.TASKS} | options
    return AffinityCallback(None, **chosen)


def fit(
    folder: Path,
    module: pl.LightningModule,
    *callbacks: pl.Callback,
    resume: str | None = None,
    loader: Any = rows_of_all_tasks,
    **options: Any,
) -> pl.Trainer:
    torch.manual_seed(1)
    options = {"max_epochs": 2, "logger": False, "enable_checkpointing": False} | options
    trainer = pl.Trainer(
        accelerator="cpu",
        callbacks=list(callbacks),
        default_root_dir=folder,
        enable_progress_bar=False,
        enable_model_summary=False,
        **options,
    )
    trainer.fit(module, loader(), ckpt_path=resume, weights_only=True if resume else None)
    return trainer


def assert_no_trace(folder: Path, kind: type[AutomaticOptimization], measuring: Any = None, **options: Any) -> Any:
    """Trains with and without the callback, asserts equal weights and returns the callback."""
    plain, metered, measuring = kind(), kind(), measuring or callback()
    fit(folder, plain, **options)
    fit(folder, metered, measuring, **options)
    assert machine.equal_states(plain.state_dict(), metered.state_dict())
    return measuring


# All tasks in every step ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "options"),
    [(AutomaticOptimization, {}), (ManualOptimization, {}), (AutomaticOptimization, {"accumulate_grad_batches": 4})],
)
def test_final_weights_are_those_without_the_callback(
    tmp_path: Path, kind: type[AutomaticOptimization], options: dict[str, Any]
) -> None:
    measuring = assert_no_trace(tmp_path, kind, **options)
    assert (measuring.meter.calls, measuring.meter.measured) == (16, 8)


def test_mixed_precision_is_the_trainers(tmp_path: Path) -> None:
    seen: SimpleQueue[torch.dtype] = SimpleQueue()  # unlike a set, not restored after a measurement

    def losses(module: AutomaticOptimization, batch: list[Tensor]) -> dict[str, Tensor]:
        seen.put(module.machine.encoder(batch[0]).dtype)
        return module.task_losses(batch)

    assert_no_trace(tmp_path, AutomaticOptimization, callback(task_losses=losses), precision="bf16-mixed")
    assert {seen.get() for _ in range(seen.qsize())} == {torch.bfloat16}


def test_what_is_measured_is_logged_written_and_grouped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "tagalong")
    logger, measuring = CSVLogger(tmp_path, name="log"), callback()
    fit(tmp_path, AutomaticOptimization(), measuring, logger=logger, log_every_n_steps=1)
    affinity = Affinity.load(tmp_path / "affinity.json")
    assert affinity.tasks == machine.TASKS
    with open(Path(logger.log_dir) / "metrics.csv", encoding="utf-8") as file:
        values = [row["lookahead onto noise/heat"] for row in csv.DictReader(file)]
    np.testing.assert_allclose([float(value) for value in values if value], affinity.history[:, 0, 1])
    assert measuring.grouping == select_groups(affinity, 2)
    assert str(measuring.grouping) in caplog.text
    assert capsys.readouterr().out == ""


def test_resuming_from_a_checkpoint_goes_on_measuring(tmp_path: Path) -> None:
    whole, first, second = callback(), callback(), callback()
    fit(tmp_path, AutomaticOptimization(), whole, max_epochs=3)
    half = fit(tmp_path, AutomaticOptimization(), first, max_epochs=1)
    half.save_checkpoint(tmp_path / "half.ckpt")
    fit(tmp_path, AutomaticOptimization(), second, max_epochs=3, resume=str(tmp_path / "half.ckpt"))
    expected, resumed = whole.meter.affinity(), second.meter.affinity()
    np.testing.assert_array_equal(resumed.steps, expected.steps)
    np.testing.assert_array_equal(resumed.history[:4], expected.history[:4])
    assert first.meter.measured == 4


def test_groups_are_selected_as_far_as_possible(tmp_path: Path) -> None:
    most, none = callback(budget=9), callback(budget=None)
    one_source, unseen = callback(every=RoundRobin(every=1000)), callback(tasks=(*machine.TASKS, "never seen"))
    for measuring in (most, none, one_source):
        fit(tmp_path, AutomaticOptimization(), measuring, max_epochs=1)
    with pytest.warns(UserWarning, match="'never seen'"):
        fit(tmp_path, AutomaticOptimization(), unseen, max_epochs=1)
    assert most.grouping.budget == len(machine.TASKS)
    assert one_source.grouping.unmeasured == pytest.approx(2 / 3)
    assert none.grouping is None
    assert set(unseen.grouping.per_task) == set(machine.TASKS)


def test_invalid_arguments_are_named(tmp_path: Path) -> None:
    for budget in (0, 1.5, True, "2"):
        with pytest.raises(ValueError, match="`budget`"):
            callback(budget=budget)
    with pytest.raises(ValueError, match=r"`shared` .* found 'trunk'"):
        fit(tmp_path, AutomaticOptimization(), callback(shared="trunk"))


def parallel(rank: int, folder: str) -> dict[str, Any]:
    """Trains with and without the callback; the sampler gives each rank different rows."""
    modules, measuring = (AutomaticOptimization(), AutomaticOptimization()), callback()
    for module, callbacks in zip(modules, ([], [measuring]), strict=True):
        fit(Path(folder), module, *callbacks, devices=2, strategy=DDPStrategy(process_group_backend="gloo"))
    assert machine.equal_states(*(module.state_dict() for module in modules))
    return {"affinity": measuring.meter.affinity().history, "grouping": measuring.grouping}


def test_ddp_ranks_share_one_affinity_and_leave_no_trace(tmp_path: Path) -> None:
    first, second = on_ranks(2, tmp_path, parallel, str(tmp_path))
    np.testing.assert_array_equal(first["affinity"], second["affinity"])
    assert first["affinity"].shape == (4, 3, 3)
    assert first["grouping"] == second["grouping"] is not None


# One task per step ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("accumulate", [1, 3])
def test_one_dataset_per_step_is_observed_after_its_backward_pass(tmp_path: Path, accumulate: int) -> None:
    options = {"loader": rows_in_turn, "accumulate_grad_batches": accumulate}
    measuring = assert_no_trace(tmp_path, OneTaskPerStep, observing(), **options)
    assert (measuring.meter.observed, measuring.meter.tasks) == (24, machine.TASKS)
    assert Affinity.load(tmp_path / "affinity.json").settings["estimator"] == "streaming"
    assert measuring.grouping == select_groups(measuring.meter.affinity(), 2)


def test_observing_equals_a_plain_loop(tmp_path: Path) -> None:
    measuring, module = observing(), OneTaskPerStep()
    fit(tmp_path, OneTaskPerStep(), measuring, max_epochs=1, loader=rows_in_turn)
    optimizer = module.configure_optimizers()
    meter = AffinityMeter(module.machine.encoder, optimizer, model=module, estimator="streaming", tasks=machine.TASKS)
    torch.manual_seed(1)
    for batch in rows_in_turn():
        loss = module.training_step(batch, 0)
        loss.backward()
        meter.observe(machine.TASKS[int(batch["task"][0])])
        optimizer.step()
        optimizer.zero_grad()
    np.testing.assert_allclose(measuring.meter.affinity().mean, meter.affinity().mean, rtol=1e-6)


def test_a_batch_of_several_tasks_cannot_be_observed(tmp_path: Path) -> None:
    mixed = observing(task_of=lambda batch: torch.arange(2))
    with pytest.raises(ValueError, match="'heat', 'noise'"):
        fit(tmp_path, OneTaskPerStep(), mixed, loader=rows_in_turn)


def test_a_combined_loader_gives_one_batch_per_task(tmp_path: Path) -> None:
    measuring = callback(every=1, tasks=machine.TASKS)
    assert_no_trace(tmp_path, FromCombinedLoader, measuring, loader=rows_combined)
    np.testing.assert_array_equal(np.diag(measuring.meter.affinity().count), [16, 12, 8])
    assert measuring.grouping is not None
