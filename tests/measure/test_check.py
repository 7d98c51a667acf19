"""`meter.check`: what it reports; that it leaves no trace is tested with all networks."""

import copy
from functools import partial
from typing import Any

import pytest
import torch
from small import regression
from torch import Tensor, nn

from tagalong import AffinityMeter
from tagalong.measure import ClosureError, Every, RoundRobin


def test_check_lists_parameters_tasks_memory_and_cost() -> None:
    model, closure = regression()
    found = AffinityMeter(model.encoder, lr=0.1, every=20).check(closure, held_out=closure)
    assert found.tasks == ("a", "b", "c")
    assert found.shared["encoder.0.weight"] == ((6, 4), ("a", "b", "c"))
    size = sum(p.numel() * 8 for p in model.encoder.parameters())
    assert found.memory > 3 * size
    assert found.ratio > 0
    assert found.overhead == pytest.approx(found.ratio / Every(20).interval)
    assert all(part in str(found) for part in ("encoder.0.weight", "6×4"))


def test_check_reports_what_a_user_may_not_expect() -> None:
    torch.manual_seed(0)
    embed, inner, spare = nn.Embedding(5, 3), nn.Linear(3, 3), nn.Linear(2, 2)
    head = nn.Linear(3, 5, bias=False)
    head.weight = embed.weight
    model = nn.ModuleDict({"embed": embed, "inner": inner, "spare": spare, "head": head})
    inner.bias.requires_grad_(False)
    index = torch.tensor([0, 3, 1])

    def closure() -> dict[str, Tensor | None]:
        z = inner(embed(index))
        return {"a": head(z).pow(2).mean(), "b": z.abs().mean(), "c": None}

    optimizer = torch.optim.SGD([embed.weight, inner.weight], lr=0.1)
    meter = AffinityMeter([embed, inner, spare], optimizer, model=model, every=RoundRobin(1))
    found = meter.check(closure)
    for part in ("tied to head.weight", "no optimizer updates spare.weight"):
        assert part in str(found)
    assert found.shared["spare.weight"] == ((2, 2), ())


def test_check_lists_unconnected_pairs_and_raises_what_measuring_would() -> None:
    left, right = nn.Linear(3, 2), nn.Linear(3, 2)
    x = torch.randn(5, 3)
    meter = AffinityMeter([left, right], lr=0.1)
    found = meter.check(lambda: {"a": left(x).pow(2).mean(), "b": right(x).pow(2).mean()})
    assert found.unconnected == (("a", "b"),)
    assert "a – b" in str(found)
    with pytest.raises(ClosureError, match="must return a dict"):
        meter.check(lambda: left(x).pow(2).mean())


def task_closures() -> tuple[nn.Module, dict[str, Any]]:
    """Returns a network with dropout, and closures of four tasks; d skips a layer."""
    torch.manual_seed(0)
    model = nn.ModuleDict({"first": nn.Linear(4, 4), "second": nn.Linear(4, 4), "dropout": nn.Dropout(0.5)})

    def loss(task: str, x: Tensor) -> Tensor:
        hidden = model["dropout"](model["first"](x))
        return (hidden if task == "d" else model["second"](hidden)).pow(2).mean()

    return model, {t: partial(loss, t, torch.randn(8, 4)) for t in "abcd"}


@pytest.mark.parametrize("held_out", [False, True])
def test_check_takes_one_closure_per_task(held_out: bool) -> None:
    model, closures = task_closures()
    optimizer = torch.optim.AdamW(model.parameters())
    every = RoundRobin(5)
    meter = AffinityMeter(model, optimizer, model=model, every=every, estimator=["lookahead", "cosine"])
    before, rng = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    found = meter.check(closures, closures if held_out else None)
    assert found.tasks == ("a", "b", "c", "d")
    assert found.shared["second.weight"] == ((4, 4), ("a", "b", "c"))
    assert found.shared["first.bias"] == ((4,), ("a", "b", "c", "d"))
    assert found.overhead == pytest.approx(found.ratio / 5)
    assert [name for name, value in model.state_dict().items() if not torch.equal(value, before[name])] == []
    assert torch.equal(rng, torch.get_rng_state())
    assert not optimizer.state
    assert (meter.calls, meter.measured, meter.tasks) == (0, 0, None)


def test_check_reports_every_unsuitable_closure() -> None:
    model, closures = task_closures()
    meter = AffinityMeter(model, lr=0.1, every=RoundRobin(1))
    with pytest.raises(ClosureError, match=r"(?s)'b'.*'d'"):
        meter.check({**closures, "b": lambda: torch.ones(2), "d": lambda: 0.5})
    with pytest.raises(ValueError, match="`held_out`"):
        meter.check(closures, dict)
    with pytest.raises(TypeError, match="dict"):
        meter.check({"a": 0.5})
