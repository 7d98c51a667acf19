"""The documented training loop with Fabric."""

import importlib.util
from contextlib import nullcontext
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import machine
import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from ranks import on_ranks
from tagalong import AffinityMeter

if importlib.util.find_spec("lightning") is None:
    pytest.skip("needs lightning", allow_module_level=True)

from lightning.fabric import Fabric
from lightning.fabric.strategies import DDPStrategy


def train(
    metered: bool, *, micro: int = 1, load: Path | None = None, save: Path | None = None, **options: Any
) -> tuple[dict[str, Tensor], AffinityMeter, set[torch.dtype]]:
    fabric = Fabric(accelerator="cpu", **({"devices": 1} | options))
    fabric.launch()
    model = machine.fresh()
    model, optimizer = fabric.setup(model, torch.optim.AdamW(model.parameters(), lr=0.01))
    loader = fabric.setup_dataloaders(DataLoader(TensorDataset(*machine.rows()), batch_size=8))
    inner = model.module
    meter = AffinityMeter(inner.encoder, optimizer, every=2, model=inner)
    state = {"model": model, "optimizer": optimizer, "meter": meter}
    if load is not None:
        fabric.load(load, state)
    torch.manual_seed(1)
    dtypes: SimpleQueue[torch.dtype] = SimpleQueue()  # unlike a set, not restored after a measurement

    def losses_of(x: Tensor, y: Tensor) -> dict[str, Tensor]:
        with fabric.autocast():
            dtypes.put(inner.encoder[0](x).dtype)
            return machine.losses(inner, x, y)

    for step, (x, y) in enumerate(loader):
        last = step % micro == micro - 1
        if metered:
            meter.measure_only(lambda: losses_of(x, y))  # noqa: B023 - called at once
        with nullcontext() if last else fabric.no_backward_sync(model):
            fabric.backward(sum(machine.losses(model, x, y).values()) / micro)
        if last:
            optimizer.step()
            optimizer.zero_grad()
    if save is not None:
        fabric.save(save, state)
    weights = {name: value.clone() for name, value in inner.state_dict().items()}
    return weights, meter, {dtypes.get() for _ in range(dtypes.qsize())}


@pytest.mark.parametrize("options", [{}, {"micro": 4}, {"precision": "bf16-mixed"}], ids=["plain", "four", "bf16"])
@pytest.mark.filterwarnings("ignore:.*`no_backward_sync`.*")  # one process has nothing to skip
def test_final_weights_are_those_without_a_meter(options: dict[str, Any]) -> None:
    plain, *_ = train(False, **options)
    metered, meter, dtypes = train(True, **options)
    assert machine.equal_states(plain, metered)
    assert meter.measured == 4
    assert dtypes == {torch.bfloat16 if "precision" in options else torch.float32}


def test_the_meter_is_saved_and_loaded_with_fabrics_state(tmp_path: Path) -> None:
    _, first, _ = train(True, save=tmp_path / "half.ckpt")
    _, second, _ = train(True, load=tmp_path / "half.ckpt")
    assert (second.calls, second.measured) == (16, 8)
    np.testing.assert_array_equal(second.affinity().history[:4], first.affinity().history)


def parallel(rank: int) -> Any:
    ways = [(metered, DDPStrategy(process_group_backend="gloo")) for metered in (False, True)]
    (plain, *_), (metered, meter, _) = (train(how, micro=2, devices=2, strategy=strategy) for how, strategy in ways)
    assert machine.equal_states(plain, metered)
    return meter.affinity().history


def test_ddp_ranks_share_one_affinity_and_leave_no_trace(tmp_path: Path) -> None:
    np.testing.assert_array_equal(*on_ranks(2, tmp_path, parallel))
