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
