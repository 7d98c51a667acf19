"""Replaying the kernels of a projection gives the same bits as launching them one by one, wherever tensors move."""

import copy
import warnings

import pytest
import torch
from torch import Tensor, nn

from tagalong import AffinityMeter
from tagalong.measure import replayed_kernels, sketch
from tagalong.measure.sketch import GradientSketch

pytestmark = pytest.mark.cuda


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(50, 70), nn.Tanh(), nn.Linear(70, 30), nn.Tanh(), nn.Linear(30, 4)).cuda()


def take_step(model: nn.Module, optimizer: torch.optim.Optimizer, seed: int) -> None:
    draw = torch.Generator("cuda").manual_seed(seed)
    optimizer.zero_grad()
    model(torch.randn(16, 50, device="cuda", generator=draw)).pow(2).mean().backward()
    optimizer.step()


def projections(monkeypatch: pytest.MonkeyPatch, limit: int, kind: str, **settings: object) -> list[Tensor]:
    monkeypatch.setattr(sketch, "REPLAYED", limit)
    model = network()
    optimizer = getattr(torch.optim, kind)(model.parameters(), lr=1e-3, **settings)
    project = GradientSketch(list(model.parameters()), [optimizer], 101, seed=0)
    found = []
    for step in range(12):
        take_step(model, optimizer, step)
        if step == 4:  # the state moves to other tensors
            optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
        if step == 7:
            model[0].weight.grad = None
        if step == 9:
            optimizer.param_groups[0]["lr"] = 1e-2
        value = project()
        assert value is not None
        found.append(value)
    graphs = [part.replayed for part in project._parts]
    assert all(graph is None if limit == 0 else graph._graph is not None for graph in graphs)
    return found


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("AdamW", {}),
        ("AdamW", {"fused": True}),
        ("Adam", {"amsgrad": True, "capturable": True}),
        ("RMSprop", {"centered": True}),
        ("Adadelta", {}),
    ],
)
def test_replayed_kernels_give_the_same_bits(
    kind: str, settings: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    one_by_one = projections(monkeypatch, 0, kind, **settings)
    replayed = projections(monkeypatch, sketch.REPLAYED or 1 << 22, kind, **settings)
    for a, b in zip(one_by_one, replayed, strict=True):
        assert torch.equal(a, b)
    assert not torch.equal(replayed[0], replayed[1])  # results are not overwritten by later calls


def test_a_state_that_always_moves_is_projected_one_by_one() -> None:
    model = network()
    optimizer = torch.optim.AdamW(model.parameters())
    project = GradientSketch(list(model.parameters()), [optimizer], 101, seed=0)
    kept = []
    for step in range(replayed_kernels.MAX_CAPTURES + 4):
        take_step(model, optimizer, step)
        kept.append(optimizer.state_dict()["state"])
        optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
        assert project() is not None
    (part,) = project._parts
    assert part.replayed is not None
    assert part.replayed._captures == replayed_kernels.MAX_CAPTURES + 1


def test_observing_on_a_gpu_leaves_no_trace_and_resumes_bit_for_bit() -> None:
    def train(observe: bool, resume_at: int | None = None) -> tuple[list[Tensor], AffinityMeter]:
        model = network()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        meter = AffinityMeter(model, optimizer, estimator="streaming")
        draw = torch.Generator("cuda").manual_seed(1)
        for step in range(200):
            if step == resume_at:
                state = meter.state_dict()
                meter = AffinityMeter(model, optimizer, estimator="streaming")
                meter.load_state_dict(state)
            out = model(torch.randn(16, 50, device="cuda", generator=draw) + step % 4)
            out[:, step % 4].pow(2).mean().backward()
            if observe:
                meter.observe(str(step % 4))
            optimizer.step()
            optimizer.zero_grad()
        return [p.detach() for p in model.parameters()], meter

    plain, _ = train(observe=False)
    weights, meter = train(observe=True)
    assert all(map(torch.equal, plain, weights))
    _, resumed = train(observe=True, resume_at=77)
    assert meter.affinity().mean.tolist() == resumed.affinity().mean.tolist()


def test_observing_never_waits_for_the_gpu() -> None:
    model = network()
    optimizer = torch.optim.AdamW(model.parameters())
    meter = AffinityMeter(model, optimizer, estimator="streaming")
    for step in range(6):
        take_step(model, optimizer, step)
        meter.observe(str(step % 3))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that this mode is a prototype
        torch.cuda.set_sync_debug_mode("error")
        try:
            for step in range(20):
                take_step(model, optimizer, step)
                meter.observe(str(step % 3))
        finally:
            torch.cuda.set_sync_debug_mode("default")
