"""Lightning's Trainer with the callback."""

import csv
import importlib.util
from pathlib import Path
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


def callback(**options: Any) -> AffinityCallback:
    return AffinityCallback(**({"shared": "machine.encoder", "every": 2} | options))


def fit(
    folder: Path,
    module: pl.LightningModule,
    *callbacks: pl.Callback,
    resume: str | None = None,
    loader: Any = None,
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
    loader = DataLoader(TensorDataset(*machine.rows()), batch_size=8) if loader is None else loader
    trainer.fit(module, loader, ckpt_path=resume, weights_only=True if resume else None)
    return trainer


def assert_no_trace(folder: Path, kind: type[AutomaticOptimization], **options: Any) -> AffinityCallback:
    """Trains with and without the callback, asserts equal weights and returns the callback."""
    plain, metered, measuring = kind(), kind(), callback()
    fit(folder, plain, **options)
    fit(folder, metered, measuring, **options)
    assert machine.equal_states(plain.state_dict(), metered.state_dict())
    return measuring


@pytest.mark.parametrize("kind", [AutomaticOptimization, ManualOptimization])
def test_final_weights_are_those_without_the_callback(tmp_path: Path, kind: type[AutomaticOptimization]) -> None:
    measuring = assert_no_trace(tmp_path, kind)
    assert measuring.meter is not None
    assert (measuring.meter.calls, measuring.meter.measured) == (16, 8)


def test_accumulation_counts_micro_batches(tmp_path: Path) -> None:
    measuring = assert_no_trace(tmp_path, AutomaticOptimization, accumulate_grad_batches=4)
    assert measuring.meter is not None
    assert measuring.meter.measured == 8


def test_mixed_precision_is_the_trainers(tmp_path: Path) -> None:
    seen = set()

    def losses(module: AutomaticOptimization, batch: list[Tensor]) -> dict[str, Tensor]:
        seen.add(module.machine.encoder(batch[0]).dtype)
        return module.task_losses(batch)

    plain, metered = AutomaticOptimization(), AutomaticOptimization()
    fit(tmp_path, plain, precision="bf16-mixed")
    fit(tmp_path, metered, callback(task_losses=losses), precision="bf16-mixed")
    assert machine.equal_states(plain.state_dict(), metered.state_dict())
    assert seen == {torch.bfloat16}


def test_resuming_from_a_checkpoint_goes_on_measuring(tmp_path: Path) -> None:
    whole, first, second = callback(), callback(), callback()
    fit(tmp_path, AutomaticOptimization(), whole, max_epochs=3)
    half = fit(tmp_path, AutomaticOptimization(), first, max_epochs=1)
    half.save_checkpoint(tmp_path / "half.ckpt")
    fit(tmp_path, AutomaticOptimization(), second, max_epochs=3, resume=str(tmp_path / "half.ckpt"))
    assert whole.meter is not None
    assert second.meter is not None
    expected, found = whole.meter.affinity(), second.meter.affinity()
    np.testing.assert_array_equal(found.steps, expected.steps)
    np.testing.assert_array_equal(found.history[:4], expected.history[:4])
    assert first.meter is not None
    assert first.meter.measured == 4


def test_measured_steps_go_to_the_loggers(tmp_path: Path) -> None:
    documented = "lookahead onto target/source"
    assert f"``{documented}``" in (AffinityCallback.__doc__ or "")
    key = documented.replace("target", "noise").replace("source", "heat")
    logger = CSVLogger(tmp_path, name="log")
    measuring = callback()
    fit(tmp_path, AutomaticOptimization(), measuring, logger=logger, log_every_n_steps=1)
    with open(Path(logger.log_dir) / "metrics.csv", encoding="utf-8") as file:
        logged = [float(row[key]) for row in csv.DictReader(file) if row[key]]
    assert measuring.meter is not None
    np.testing.assert_allclose(logged, measuring.meter.affinity().history[:, 0, 1])


def test_the_affinity_is_written_and_the_groups_are_logged_and_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "tagalong")
    measuring = callback()
    assert measuring.grouping is None
    fit(tmp_path, AutomaticOptimization(), measuring)
    affinity = Affinity.load(tmp_path / "affinity.json")
    assert affinity.tasks == machine.TASKS
    assert measuring.grouping == select_groups(affinity, 2)
    logged = "\n".join(record.getMessage() for record in caplog.records if record.name.startswith("tagalong"))
    assert "Affinity (row helps column" in logged
    assert f"affinity written to {tmp_path / 'affinity.json'}" in logged
    assert str(measuring.grouping) in logged
    assert "no groups" not in logged
    assert capsys.readouterr().out == ""


def test_the_budget_determines_the_number_of_groups(tmp_path: Path) -> None:
    most, none = callback(budget=9), callback(budget=None)
    for measuring in (most, none):
        fit(tmp_path, AutomaticOptimization(), measuring, max_epochs=1)
    assert most.grouping is not None
    assert most.grouping.budget == len(machine.TASKS)
    assert none.grouping is None


@pytest.mark.parametrize("budget", [0, 1.5, True, "2"])
def test_an_invalid_budget_is_rejected_before_training(budget: Any) -> None:
    with pytest.raises(ValueError, match="`budget` must be a positive integer or None, found "):
        callback(budget=budget)


def test_groups_that_cannot_be_selected_do_not_fail_a_finished_training(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    measuring = callback(tasks=(*machine.TASKS, "never seen"))
    fit(tmp_path, AutomaticOptimization(), measuring)
    assert measuring.grouping is None
    expected = "could not select groups: `scores` must contain at least one measured pair of every task, found none "
    assert f"{expected}from or onto 'never seen'" in caplog.text


def test_groups_are_selected_even_if_only_one_source_was_measured(tmp_path: Path) -> None:
    measuring = callback(every=RoundRobin(every=1000))
    fit(tmp_path, AutomaticOptimization(), measuring)
    assert measuring.grouping is not None
    assert measuring.grouping.unmeasured == pytest.approx(2 / 3)


def test_another_fit_discards_the_grouping_of_the_previous_one(tmp_path: Path) -> None:
    measuring, during = callback(), []

    class Recorder(pl.Callback):
        def on_train_batch_end(self, *_: Any) -> None:
            during.append(measuring.grouping)

    for _ in range(2):
        fit(tmp_path, AutomaticOptimization(), measuring, Recorder(), max_epochs=1)
        assert measuring.grouping is not None
    assert set(during) == {None}


def test_the_error_names_an_unknown_module(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"`shared` must be the name of a .*Optimization attribute .*, found 'trunk'"):
        fit(tmp_path, AutomaticOptimization(), callback(shared="trunk"))


def parallel(rank: int, folder: str) -> dict[str, Any]:
    """Trains with and without the callback; the sampler gives each rank different rows."""
    found: dict[str, Any] = {}
    for name, callbacks in (("plain", []), ("metered", [callback()])):
        module = AutomaticOptimization()
        fit(Path(folder), module, *callbacks, devices=2, strategy=DDPStrategy(process_group_backend="gloo"))
        found[name] = {key: value.clone() for key, value in module.state_dict().items()}
    found["affinity"] = callbacks[0].meter.affinity().history
    found["grouping"] = callbacks[0].grouping
    return found


def test_ddp_ranks_share_one_affinity_and_leave_no_trace(tmp_path: Path) -> None:
    ranks = on_ranks(2, tmp_path, parallel, str(tmp_path))
    np.testing.assert_array_equal(ranks[0]["affinity"], ranks[1]["affinity"])
    assert ranks[0]["affinity"].shape == (4, 3, 3)
    assert ranks[0]["grouping"] == ranks[1]["grouping"]
    assert ranks[0]["grouping"] is not None
    for found in ranks:
        assert machine.equal_states(found["plain"], found["metered"])


class OneTaskPerStep(AutomaticOptimization):
    """Each batch is (task, rows)."""

    def training_step(self, batch: Any, _: int) -> Tensor:
        task, rows = batch["task"], batch["rows"]
        return self.task_losses(rows)[task if isinstance(task, str) else machine.TASKS[int(task[0])]]


class OneTask(Dataset[Any]):
    """A dataset whose batches belong to one task each, in turn."""

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> dict[str, Any]:
        x, y = machine.rows()
        chosen = slice(8 * (index % 8), 8 * (index % 8) + 8)
        return {"task": torch.full((8,), index % 3), "rows": [x[chosen], y[chosen]]}


def observing(**options: Any) -> AffinityCallback:
    return AffinityCallback(
        None, **({"shared": "machine.encoder", "task_of": "task", "tasks": machine.TASKS} | options)
    )


def fit_in_turn(folder: Path, module: pl.LightningModule, *callbacks: pl.Callback, **options: Any) -> pl.Trainer:
    return fit(folder, module, *callbacks, loader=DataLoader(OneTask(), batch_size=None), **options)


@pytest.mark.parametrize("accumulate", [1, 3])
def test_one_dataset_per_step_is_observed_after_its_backward_pass(tmp_path: Path, accumulate: int) -> None:
    plain, metered, measuring = OneTaskPerStep(), OneTaskPerStep(), observing()
    fit_in_turn(tmp_path, plain, accumulate_grad_batches=accumulate)
    fit_in_turn(tmp_path, metered, measuring, accumulate_grad_batches=accumulate)
    assert machine.equal_states(plain.state_dict(), metered.state_dict())
    assert measuring.meter is not None
    assert (measuring.meter.observed, measuring.meter.tasks) == (24, machine.TASKS)
    assert Affinity.load(tmp_path / "affinity.json").settings["estimator"] == "streaming"
    assert measuring.grouping == select_groups(measuring.meter.affinity(), 2)


def test_observing_equals_a_plain_loop(tmp_path: Path) -> None:
    measuring, module = observing(estimator="streaming_gradient"), OneTaskPerStep()
    fit_in_turn(tmp_path, OneTaskPerStep(), measuring, max_epochs=1)
    optimizer = module.configure_optimizers()
    meter = AffinityMeter(
        module.machine.encoder, optimizer, model=module, estimator="streaming_gradient", tasks=machine.TASKS
    )
    torch.manual_seed(1)
    for batch in DataLoader(OneTask(), batch_size=None):
        loss = module.training_step(batch, 0)
        loss.backward()
        meter.observe(machine.TASKS[int(batch["task"][0])], loss)
        optimizer.step()
        optimizer.zero_grad()
    assert measuring.meter is not None
    np.testing.assert_allclose(measuring.meter.affinity().mean, meter.affinity().mean, rtol=1e-6)


def test_a_batch_of_several_tasks_cannot_be_observed(tmp_path: Path) -> None:
    mixed = observing(task_of=lambda batch: torch.arange(2))
    with pytest.raises(ValueError, match="the same task for all rows of a batch, found 'heat', 'noise'; draw each"):
        fit_in_turn(tmp_path, OneTaskPerStep(), mixed)


class FromCombinedLoader(AutomaticOptimization):
    """Each batch is a dict with the rows of each task; None once a loader is exhausted."""

    def task_losses(self, batch: dict[str, Any]) -> dict[str, Tensor]:  # type: ignore[override]
        return {task: super(FromCombinedLoader, self).task_losses(rows)[task] for task, rows in batch.items() if rows}


def test_a_combined_loader_gives_one_batch_per_task(tmp_path: Path) -> None:
    def loader() -> CombinedLoader:
        x, y = machine.rows()
        sizes = dict(zip(machine.TASKS, (64, 48, 32), strict=True))
        loaders = {t: DataLoader(TensorDataset(x[:n], y[:n]), batch_size=8) for t, n in sizes.items()}
        return CombinedLoader(loaders, mode="max_size")

    plain, metered, measuring = FromCombinedLoader(), FromCombinedLoader(), callback(every=1)
    fit(tmp_path, plain, loader=loader())
    fit(tmp_path, metered, measuring, loader=loader())
    assert machine.equal_states(plain.state_dict(), metered.state_dict())
    assert measuring.meter is not None
    count = measuring.meter.affinity().count
    np.testing.assert_array_equal(np.diag(count), [16, 12, 8])
    assert measuring.grouping is not None
