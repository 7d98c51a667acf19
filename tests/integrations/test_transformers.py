"""Hugging Face's Trainer with the mixin."""

import importlib.util
from pathlib import Path
from typing import Any

import machine
import numpy as np
import pytest
import torch
from torch import Tensor, nn

from ranks import on_ranks
from tagalong import select_groups

if any(importlib.util.find_spec(name) is None for name in ("transformers", "accelerate")):
    pytest.skip("needs transformers and accelerate", allow_module_level=True)

from transformers import Trainer, TrainerCallback, TrainingArguments

from tagalong.integrations.transformers import AffinityMixin, AffinityTrainer

pytestmark = [
    # Pinned memory without a GPU.
    pytest.mark.filterwarnings("ignore:.*pin_memory.*:UserWarning"),
]


class Model(nn.Module):
    """A model as the Trainer requires it: labels in, loss out."""

    def __init__(self) -> None:
        super().__init__()
        self.machine = machine.fresh()
        self.seen: list[torch.dtype] = []

    def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
        self.seen.append(self.machine.encoder[0](x).dtype)
        losses = machine.losses(self.machine, x, labels)
        return {"loss": torch.stack(list(losses.values())).sum(), **losses}


class OneTaskModel(Model):
    """Trains on the task of the batch, which is recognizable by its labels: the others are NaN."""

    def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:  # the column `task` never gets here
        (task,) = torch.isfinite(labels[0]).nonzero()[0].tolist()
        return {"loss": machine.losses(self.machine, x, labels)[machine.TASKS[task]]}


def rows() -> list[dict[str, Any]]:
    x, y = machine.rows()
    return [{"x": x[k], "labels": y[k]} for k in range(len(x))]


def rows_in_turn(mixed: bool = False) -> list[dict[str, Any]]:
    """Returns rows of interleaved datasets: eight rows of one task, then eight of the next."""
    x, y = machine.rows(96)
    tasks = [(k if mixed else k // 8) % 3 for k in range(96)]
    labels = torch.where(torch.nn.functional.one_hot(torch.tensor(tasks), 3).bool(), y, torch.nan)
    return [{"x": x[k], "labels": labels[k], "task": tasks[k]} for k in range(96)]


def task_losses(model: nn.Module, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    out = model(**inputs)
    return {task: out[task] for task in machine.TASKS}


MEASURING = {"task_losses": task_losses, "shared": "machine.encoder", "meter_options": {"every": 2}}
OBSERVING = {"task_of": "task", "shared": "machine.encoder", "meter_options": {"tasks": machine.TASKS}}


def make_trainer(
    folder: Path,
    kind: type[Trainer] = AffinityTrainer,
    settings: dict[str, Any] = MEASURING,
    dataset: Any = None,
    **options: Any,
) -> Any:
    """Makes a trainer, which sets the seed; one that observes tasks takes the rows in their order."""

    class InOrder(kind):  # type: ignore[misc, valid-type]
        def _get_train_sampler(self, *_: Any) -> Any:
            return torch.utils.data.SequentialSampler(self.train_dataset)

    in_turn = settings is OBSERVING
    arguments = {"num_train_epochs": 2, "save_strategy": "no", "logging_strategy": "no"} | options
    return (InOrder if in_turn else kind)(
        model=OneTaskModel() if in_turn else Model(),
        args=TrainingArguments(
            output_dir=str(folder), per_device_train_batch_size=8, use_cpu=True, report_to=[], disable_tqdm=True,
            seed=3, learning_rate=0.01, dataloader_pin_memory=False, **arguments,
        ),
        train_dataset=dataset or (rows_in_turn() if in_turn else rows()),
        **(settings if issubclass(kind, AffinityMixin) else {}),
    )  # fmt: skip


def train(*arguments: Any, **options: Any) -> Any:
    trainer = make_trainer(*arguments, **options)
    trainer.train()
    return trainer


def assert_no_trace(folder: Path, settings: dict[str, Any] = MEASURING, **options: Any) -> Any:
    """Trains with and without the mixin, asserts equal weights and returns the trainer with it."""
    plain, metered = (train(folder, kind, settings, **options) for kind in (Trainer, AffinityTrainer))
    assert machine.equal_states(plain.model.state_dict(), metered.model.state_dict())
    return metered


# All tasks in every step ---------------------------------------------------------------------------------------------


def test_final_weights_are_those_without_the_mixin_and_what_is_measured_is_logged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "tagalong")
    metered = assert_no_trace(tmp_path)
    assert (metered.meter.calls, metered.meter.measured) == (16, 8)
    key = "lookahead onto noise/heat"
    logged = [entry[key] for entry in metered.state.log_history if key in entry]
    np.testing.assert_allclose(logged, metered.meter.affinity().history[:, 0, 1])
    assert metered.grouping == select_groups(metered.meter.affinity(), 2)
    assert str(metered.grouping) in caplog.messages
    assert "network" not in capsys.readouterr().out


@pytest.mark.parametrize("options", [{"bf16": True}, {"gradient_accumulation_steps": 4}])
def test_mixed_precision_and_accumulation_are_the_trainers(tmp_path: Path, options: dict[str, Any]) -> None:
    metered = assert_no_trace(tmp_path, **options)
    assert set(metered.model.seen) == {torch.bfloat16 if "bf16" in options else torch.float32}
    assert metered.meter.measured == 8


class StopAfterFirstEpoch(TrainerCallback):
    """Stops after the first epoch of three, as a crash would."""

    def on_epoch_end(self, args: Any, state: Any, control: Any, **_: Any) -> Any:
        control.should_training_stop = True
        return control


@pytest.mark.parametrize("settings", [MEASURING, OBSERVING], ids=["all tasks", "one task"])
def test_resuming_from_a_checkpoint_measures_what_an_unbroken_run_would(
    tmp_path: Path, settings: dict[str, Any]
) -> None:
    options = {"settings": settings, "num_train_epochs": 3, "save_strategy": "epoch"}
    whole = train(tmp_path / "whole", **options)
    first = make_trainer(tmp_path / "parts", **options)
    first.add_callback(StopAfterFirstEpoch())
    first.train()
    second = make_trainer(tmp_path / "parts", **options)
    second.train(resume_from_checkpoint=True)
    assert (second.meter.measured, second.meter.observed) == (whole.meter.measured, whole.meter.observed)
    np.testing.assert_array_equal(second.meter.affinity().mean, whole.meter.affinity().mean)
    assert machine.equal_states(whole.model.state_dict(), second.model.state_dict())


def parallel(rank: int, folder: str) -> dict[str, Any]:
    metered = assert_no_trace(Path(folder), ddp_backend="gloo")
    assert type(metered.model_wrapped).__name__ == "DistributedDataParallel"
    return {"affinity": metered.meter.affinity().history, "grouping": metered.grouping}


def test_ddp_ranks_share_one_affinity_and_leave_no_trace(tmp_path: Path) -> None:
    first, second = on_ranks(2, tmp_path, parallel, str(tmp_path))
    np.testing.assert_array_equal(first["affinity"], second["affinity"])
    assert first["affinity"].shape == (4, 3, 3)
    assert first["grouping"] == second["grouping"] is not None


# One task per step ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("accumulation", [1, 3])
def test_interleaved_datasets_are_observed_by_their_task_column(tmp_path: Path, accumulation: int) -> None:
    metered = assert_no_trace(tmp_path, OBSERVING, gradient_accumulation_steps=accumulation)
    assert (metered.meter.observed, metered.meter.tasks) == (24, machine.TASKS)
    assert metered.grouping == select_groups(metered.meter.affinity(), 2)


def test_batches_whose_task_is_unknown_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="'heat', 'noise', 'wear'"):
        train(tmp_path, settings=OBSERVING, dataset=rows_in_turn(mixed=True))
    named = [row | {"task": machine.TASKS[row["task"]]} for row in rows_in_turn()]
    with pytest.raises(ValueError, match="collator drops strings"):
        train(tmp_path, settings=OBSERVING, dataset=named)
    with pytest.raises(ValueError, match="`task_losses`"):
        AffinityTrainer(model=Model())


class MixedTrainer(AffinityTrainer):
    def compute_loss(self, model: Any, inputs: Any, **_: Any) -> Tensor:
        assert "task" not in inputs
        known = inputs["labels"].isfinite()
        return (torch.stack(list(model.machine(inputs["x"]).values()), 1) - inputs["labels"])[known].pow(2).mean()


def losses_by_row(model: Any, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    error = torch.stack(list(model.machine(inputs["x"]).values()), 1) - inputs["labels"].nan_to_num()
    chosen = {task: inputs["task"] == k for k, task in enumerate(machine.TASKS)}
    return {task: (error[rows, k] ** 2).mean() for k, (task, rows) in enumerate(chosen.items()) if rows.any()}


def test_task_losses_receive_the_task_column_of_mixed_rows(tmp_path: Path) -> None:
    settings = {"task_losses": losses_by_row, "task_of": "task", "shared": "machine.encoder"}
    trainer = train(tmp_path, MixedTrainer, settings, rows_in_turn(mixed=True), num_train_epochs=1)
    assert trainer.meter.measured
    assert set(trainer.meter.tasks) == set(machine.TASKS)
