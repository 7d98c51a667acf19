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
        self.seen: set[torch.dtype] = set()

    def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
        self.seen.add(self.machine.encoder[0](x).dtype)
        losses = machine.losses(self.machine, x, labels)
        return {"loss": torch.stack(list(losses.values())).sum(), **losses}


def task_losses(model: nn.Module, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    out = model(**inputs)
    return {task: out[task] for task in machine.TASKS}


def rows() -> list[dict[str, Tensor]]:
    x, y = machine.rows()
    return [{"x": x[k], "labels": y[k]} for k in range(len(x))]


def make_trainer(folder: Path, kind: type[Trainer] = AffinityTrainer, **options: Any) -> Any:
    measuring = {
        "task_losses": task_losses,
        "shared": "machine.encoder",
        "meter_options": {"every": 2},
    }
    arguments = {"num_train_epochs": 2, "save_strategy": "no", "logging_strategy": "no"} | options
    return kind(
        model=Model(),
        args=TrainingArguments(
            output_dir=str(folder), per_device_train_batch_size=8, use_cpu=True, report_to=[], disable_tqdm=True,
            seed=3, learning_rate=0.01, dataloader_pin_memory=False, **arguments,
        ),
        train_dataset=rows(),
        **(measuring if issubclass(kind, AffinityMixin) else {}),
    )  # fmt: skip


def train(folder: Path, kind: type[Trainer] = AffinityTrainer, **options: Any) -> Any:
    trainer = make_trainer(folder, kind, **options)  # sets the seed, so trainers must not be made in advance
    trainer.train()
    return trainer


def assert_no_trace(folder: Path, **options: Any) -> Any:
    plain, metered = train(folder, Trainer, **options), train(folder, **options)
    assert machine.equal_states(plain.model.state_dict(), metered.model.state_dict())
    return metered


def test_final_weights_are_those_without_the_mixin(tmp_path: Path) -> None:
    metered = assert_no_trace(tmp_path)
    assert (metered.meter.calls, metered.meter.measured) == (16, 8)


def test_accumulation_counts_micro_batches(tmp_path: Path) -> None:
    assert assert_no_trace(tmp_path, gradient_accumulation_steps=4).meter.measured == 8


def test_mixed_precision_is_the_trainers(tmp_path: Path) -> None:
    metered = assert_no_trace(tmp_path, bf16=True)
    assert metered.model.seen == {torch.bfloat16}
    assert metered.meter.measured == 8


class StopAfterFirstEpoch(TrainerCallback):
    """Stops after the first epoch of three, as a crash would."""

    def on_epoch_end(self, args: Any, state: Any, control: Any, **_: Any) -> Any:
        control.should_training_stop = True
        return control


def test_resuming_from_a_checkpoint_measures_what_an_unbroken_run_would(tmp_path: Path) -> None:
    options = {"num_train_epochs": 3, "save_strategy": "epoch"}
    whole, first = train(tmp_path / "whole", **options), make_trainer(tmp_path / "parts", **options)
    first.add_callback(StopAfterFirstEpoch())
    first.train()
    assert first.meter.measured == 4
    second = make_trainer(tmp_path / "parts", **options)
    second.train(resume_from_checkpoint=True)
    np.testing.assert_array_equal(second.meter.affinity().history, whole.meter.affinity().history)
    assert machine.equal_states(whole.model.state_dict(), second.model.state_dict())


def test_measured_steps_are_logged(tmp_path: Path) -> None:
    documented = "lookahead onto target/source"
    assert f"``{documented}``" in (AffinityMixin.__doc__ or "")
    key = documented.replace("target", "noise").replace("source", "heat")
    metered = train(tmp_path)
    logged = [entry[key] for entry in metered.state.log_history if key in entry]
    np.testing.assert_allclose(logged, metered.meter.affinity().history[:, 0, 1])


def test_the_groups_are_kept_and_logged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "tagalong")
    metered = make_trainer(tmp_path)
    assert metered.grouping is None
    metered.train()
    assert metered.grouping == select_groups(metered.meter.affinity(), 2)
    assert str(metered.grouping) in caplog.messages
    assert "network" not in capsys.readouterr().out


def parallel(rank: int, folder: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, kind in (("plain", Trainer), ("metered", AffinityTrainer)):
        each = train(Path(folder), kind, ddp_backend="gloo")
        found[name] = {key: value.clone() for key, value in each.model.state_dict().items()}
    return found | {
        "affinity": each.meter.affinity().history,
        "grouping": each.grouping,
        "wrapped": type(each.model_wrapped).__name__,
    }


def test_ddp_ranks_share_one_affinity_and_leave_no_trace(tmp_path: Path) -> None:
    ranks = on_ranks(2, tmp_path, parallel, str(tmp_path))
    np.testing.assert_array_equal(ranks[0]["affinity"], ranks[1]["affinity"])
    assert ranks[0]["affinity"].shape == (4, 3, 3)
    assert ranks[0]["grouping"] == ranks[1]["grouping"]
    assert ranks[0]["grouping"] is not None
    for found in ranks:
        assert found["wrapped"] == "DistributedDataParallel"
        assert machine.equal_states(found["plain"], found["metered"])


class OneTaskModel(Model):
    """Trains on the task of the batch, which is recognizable by its labels: the others are NaN."""

    def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:  # the column `task` never gets here
        (task,) = torch.isfinite(labels[0]).nonzero()[0].tolist()
        return {"loss": machine.losses(self.machine, x, labels)[machine.TASKS[task]]}


def rows_in_turn(mixed: bool = False) -> list[dict[str, Any]]:
    """Returns rows of interleaved datasets: eight rows of one task, then eight of the next."""
    x, y = machine.rows(96)
    tasks = [(k if mixed else k // 8) % 3 for k in range(96)]
    labels = torch.where(torch.nn.functional.one_hot(torch.tensor(tasks), 3).bool(), y, torch.nan)
    return [{"x": x[k], "labels": labels[k], "task": tasks[k]} for k in range(96)]


def trainer_in_turn(folder: Path, kind: type[Trainer], dataset: Any = None, **options: Any) -> Any:
    class InOrder(kind):  # type: ignore[misc, valid-type]
        def _get_train_sampler(self, *_: Any) -> Any:
            return torch.utils.data.SequentialSampler(self.train_dataset)

    observing = {"task_of": "task", "shared": "machine.encoder", "meter_options": {"tasks": machine.TASKS}}
    return InOrder(
        model=OneTaskModel(),
        args=TrainingArguments(
            output_dir=str(folder), per_device_train_batch_size=8, use_cpu=True, report_to=[], disable_tqdm=True,
            seed=3, learning_rate=0.01, dataloader_pin_memory=False,
            **({"num_train_epochs": 2, "save_strategy": "no", "logging_strategy": "no"} | options),
        ),
        train_dataset=rows_in_turn() if dataset is None else dataset,
        **(observing if issubclass(kind, AffinityMixin) else {}),
    )  # fmt: skip


@pytest.mark.parametrize("accumulation", [1, 3])
def test_interleaved_datasets_are_observed_by_their_task_column(tmp_path: Path, accumulation: int) -> None:
    plain = trainer_in_turn(tmp_path, Trainer, gradient_accumulation_steps=accumulation)
    plain.train()
    metered = trainer_in_turn(tmp_path, AffinityTrainer, gradient_accumulation_steps=accumulation)
    metered.train()
    assert machine.equal_states(plain.model.state_dict(), metered.model.state_dict())
    assert (metered.meter.observed, metered.meter.tasks) == (24, machine.TASKS)
    assert metered.grouping == select_groups(metered.meter.affinity(), 2)


def test_observations_are_saved_and_restored_with_checkpoints(tmp_path: Path) -> None:
    options = {"num_train_epochs": 3, "save_strategy": "epoch"}
    whole = trainer_in_turn(tmp_path / "whole", AffinityTrainer, **options)
    whole.train()
    first = trainer_in_turn(tmp_path / "parts", AffinityTrainer, **options)
    first.add_callback(StopAfterFirstEpoch())
    first.train()
    second = trainer_in_turn(tmp_path / "parts", AffinityTrainer, **options)
    second.train(resume_from_checkpoint=True)
    assert second.meter.observed == whole.meter.observed == 36
    np.testing.assert_array_equal(second.meter.affinity().mean, whole.meter.affinity().mean)


def test_rows_of_several_tasks_cannot_be_observed(tmp_path: Path) -> None:
    trainer = trainer_in_turn(tmp_path, AffinityTrainer, rows_in_turn(mixed=True))
    with pytest.raises(ValueError, match="the same task for all rows of a batch, found 'heat', 'noise', 'wear'; draw"):
        trainer.train()


def test_a_task_column_that_the_collator_drops_is_reported(tmp_path: Path) -> None:
    rows = [row | {"task": machine.TASKS[row["task"]]} for row in rows_in_turn()]
    with pytest.raises(ValueError, match=r"column of the batch \('task'\), found .*collator drops strings"):
        trainer_in_turn(tmp_path, AffinityTrainer, rows).train()


def test_task_losses_receive_the_task_column_of_mixed_rows(tmp_path: Path) -> None:
    def by_row(model: Any, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        y = inputs["labels"].nan_to_num()
        error = torch.stack(list(model.machine(inputs["x"]).values()), 1) - y
        return {
            task: (error[inputs["task"] == k, k] ** 2).mean()
            for k, task in enumerate(machine.TASKS)
            if (inputs["task"] == k).any()
        }

    class MixedTrainer(AffinityTrainer):
        def compute_loss(self, model: Any, inputs: Any, **_: Any) -> Tensor:
            assert "task" not in inputs
            known = inputs["labels"].isfinite()
            return (torch.stack(list(model.machine(inputs["x"]).values()), 1) - inputs["labels"])[known].pow(2).mean()

    trainer = MixedTrainer(
        model=Model(), args=TrainingArguments(
            output_dir=str(tmp_path), per_device_train_batch_size=8, use_cpu=True, report_to=[], disable_tqdm=True,
            num_train_epochs=1, save_strategy="no", logging_strategy="no", dataloader_pin_memory=False,
        ),
        train_dataset=rows_in_turn(mixed=True), task_losses=by_row, task_of="task", shared="machine.encoder",
    )  # fmt: skip
    trainer.train()
    assert trainer.meter.measured
    assert set(trainer.meter.tasks) == set(machine.TASKS)


def test_either_losses_or_tasks_are_required() -> None:
    with pytest.raises(ValueError, match="`task_losses` is required unless `task_of` names the task of each batch"):
        AffinityTrainer(model=Model())
