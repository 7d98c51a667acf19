"""The documented training loop with accelerate."""

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import machine
import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from ranks import on_ranks
from tagalong import AffinityMeter

if importlib.util.find_spec("accelerate") is None:
    pytest.skip("needs accelerate", allow_module_level=True)

from accelerate import Accelerator
from accelerate.state import AcceleratorState
from accelerate.tracking import GeneralTracker


class RecordingTracker(GeneralTracker):
    """A tracker that keeps what is logged."""

    name, requires_logging_directory, main_process_only = "kept", False, True
    tracker = None

    def __init__(self) -> None:
        self.logged: list[dict[str, float]] = []

    def start(self) -> None: ...

    def store_init_configuration(self, values: dict[str, Any]) -> None: ...

    def log(self, values: dict[str, float], step: int | None = None) -> None:
        self.logged.append(values)


def train(
    metered: bool,
    *,
    epochs: int = 2,
    tracker: RecordingTracker | None = None,
    begin: Callable[[Accelerator], None] = lambda _: None,
    **options: Any,
) -> tuple[dict[str, Tensor], AffinityMeter, Accelerator, set[torch.dtype]]:
    accelerator = Accelerator(cpu=True, log_with=tracker, **options)
    accelerator.init_trackers("machine")
    loader = DataLoader(TensorDataset(*machine.rows()), batch_size=8)
    model = machine.fresh()
    model, optimizer, loader = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), lr=0.01), loader)
    inner = accelerator.unwrap_model(model)
    meter = AffinityMeter(inner.encoder, optimizer, every=2, scaler=accelerator.scaler)
    accelerator.register_for_checkpointing(meter)
    begin(accelerator)
    torch.manual_seed(1)
    dtypes = set()
    inner.encoder[0].register_forward_hook(lambda _, __, out: dtypes.add(out.dtype))
    for _ in range(epochs):
        for x, y in loader:
            with accelerator.accumulate(model):
                closure = lambda: machine.losses(model, x, y)  # noqa: B023, E731 - called at once
                losses = meter(closure) if metered else closure()
                accelerator.backward(sum(losses.values()))
                optimizer.step()
                optimizer.zero_grad()
                if metered and tracker is not None:
                    accelerator.log(meter.latest().metrics())
    return {name: value.clone() for name, value in inner.state_dict().items()}, meter, accelerator, dtypes


@pytest.mark.parametrize("steps", [1, 4])
def test_final_weights_are_those_without_a_meter_with_and_without_accumulation(steps: int) -> None:
    plain, *_ = train(False, gradient_accumulation_steps=steps)
    metered, meter, *_ = train(True, gradient_accumulation_steps=steps)
    assert machine.equal_states(plain, metered)
    assert meter.measured == 8


def test_mixed_precision_is_accelerates() -> None:
    plain, *_ = train(False, mixed_precision="bf16")
    AcceleratorState._reset_state()
    metered, meter, _, dtypes = train(True, mixed_precision="bf16")
    assert machine.equal_states(plain, metered)
    assert (dtypes, meter.measured) == ({torch.bfloat16}, 8)


def test_the_meter_is_saved_and_loaded_with_the_accelerators_state(tmp_path: Path) -> None:
    _, first, accelerator, _ = train(True, epochs=1)
    accelerator.save_state(str(tmp_path))
    _, second, *_ = train(True, epochs=1, begin=lambda a: a.load_state(str(tmp_path)))
    assert (second.calls, second.measured) == (16, 8)
    np.testing.assert_array_equal(second.affinity().history[:4], first.affinity().history)


def test_affinities_are_logged_by_the_trackers() -> None:
    tracker = RecordingTracker()
    _, meter, *_ = train(True, tracker=tracker)
    logged = [values["lookahead onto noise/heat"] for values in tracker.logged][::2]
    np.testing.assert_allclose(logged, meter.affinity().history[:, 0, 1])


def parallel(rank: int) -> dict[str, Any]:
    plain, *_ = train(False)
    metered, meter, accelerator, _ = train(True)
    return {
        "plain": plain,
        "metered": metered,
        "affinity": meter.affinity().history,
        "processes": accelerator.num_processes,
    }


def test_ddp_ranks_share_one_affinity_and_leave_no_trace(tmp_path: Path) -> None:
    ranks = on_ranks(2, tmp_path, parallel)
    np.testing.assert_array_equal(ranks[0]["affinity"], ranks[1]["affinity"])
    for found in ranks:
        assert found["processes"] == 2
        assert machine.equal_states(found["plain"], found["metered"])
