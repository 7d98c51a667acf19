"""The documented training loop with accelerate."""

import importlib.util
from pathlib import Path
from typing import Any, NamedTuple

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


class Trained(NamedTuple):
    state: dict[str, Tensor]
    meter: AffinityMeter
    accelerator: Accelerator
    dtypes: list[torch.dtype]


def train(metered: bool, *, epochs: int = 2, load: Path | None = None, **options: Any) -> Trained:
    accelerator = Accelerator(cpu=True, **options)
    loader = DataLoader(TensorDataset(*machine.rows()), batch_size=8)
    model = machine.fresh()
    model, optimizer, loader = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), lr=0.01), loader)
    inner = accelerator.unwrap_model(model)
    meter = AffinityMeter(inner.encoder, optimizer, every=2, scaler=accelerator.scaler)
    accelerator.register_for_checkpointing(meter)
    if load is not None:
        accelerator.load_state(str(load))
    torch.manual_seed(1)
    dtypes: list[torch.dtype] = []
    inner.encoder[0].register_forward_hook(lambda _, __, out: dtypes.append(out.dtype))
    for _ in range(epochs):
        for x, y in loader:
            with accelerator.accumulate(model):
                closure = lambda: machine.losses(model, x, y)  # noqa: B023, E731 - called at once
                losses = meter(closure) if metered else closure()
                accelerator.backward(sum(losses.values()))
                optimizer.step()
                optimizer.zero_grad()
    state = {name: value.clone() for name, value in inner.state_dict().items()}
    return Trained(state, meter, accelerator, dtypes)


@pytest.mark.parametrize(
    "options", [{}, {"gradient_accumulation_steps": 4}, {"mixed_precision": "bf16"}], ids=["plain", "four", "bf16"]
)
def test_final_weights_are_those_without_a_meter(options: dict[str, Any]) -> None:
    plain = train(False, **options)
    AcceleratorState._reset_state()
    metered = train(True, **options)
    assert machine.equal_states(plain.state, metered.state)
    assert metered.meter.measured == 8
    assert set(metered.dtypes) == {torch.bfloat16 if "mixed_precision" in options else torch.float32}


def test_the_meter_is_saved_and_loaded_with_the_accelerators_state(tmp_path: Path) -> None:
    first = train(True, epochs=1)
    first.accelerator.save_state(str(tmp_path))
    second = train(True, epochs=1, load=tmp_path)
    assert (second.meter.calls, second.meter.measured) == (16, 8)
    np.testing.assert_array_equal(second.meter.affinity().history[:4], first.meter.affinity().history)


def parallel(rank: int) -> dict[str, Any]:
    plain, metered = train(False), train(True)
    assert metered.accelerator.num_processes == 2
    assert machine.equal_states(plain.state, metered.state)
    return metered.meter.affinity().history


def test_ddp_ranks_share_one_affinity_and_leave_no_trace(tmp_path: Path) -> None:
    np.testing.assert_array_equal(*on_ranks(2, tmp_path, parallel))
