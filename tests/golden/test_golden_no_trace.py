"""Training with a meter equals training without one, bit for bit."""

import copy
import random
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tagalong import AffinityMeter
from tagalong.measure import RoundRobin

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.filterwarnings("ignore::UserWarning"),  # in bfloat16, much of an affinity is rounding
]

TASKS = ("a", "b", "c")
STEPS = 12
CLOSURE_ESTIMATORS = ("lookahead", "gradient", "cosine", "cosine_kernels", "centered_cosine")
Losses = dict[str, Tensor]


class Counting(nn.Module):
    """Counts its calls, remembers them in a list and a dict, and computes with what it remembers."""

    def __init__(self) -> None:
        super().__init__()
        self.calls, self.sizes, self.means = 0, [0.0], {"last": torch.zeros(())}

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        self.sizes.append(float(x.detach().abs().mean()))
        self.means["last"] = x.detach().mean()
        self.means[f"call {self.calls}"] = self.means["last"]
        return x * (1 + 0.01 * self.calls + 0.1 * self.sizes[-2]) + 0.1 * self.means["last"]


def make_network() -> nn.ModuleDict:
    torch.manual_seed(3)
    encoder = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Dropout(0.3), Counting(), nn.Linear(8, 6))
    return nn.ModuleDict({"encoder": encoder, **{task: nn.Linear(6, 1) for task in TASKS}})


def train(observe: bool = False, held_out: bool = False, **options: Any) -> dict[str, Any]:
    """Trains with a meter if it gets options, and returns copies of everything that the training leaves behind.

    Args:
        observe: whether to train on one task at a time, and to show its gradient to the meter.
        held_out: whether the meter also gets a held-out closure.
        options: the options of the meter.
    """
    network = make_network()
    optimizer = torch.optim.AdamW(network.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.5)
    meter = AffinityMeter(network["encoder"], optimizer, **options) if options else None
    batches = torch.randn(STEPS, 2, 8, 4, generator=torch.Generator().manual_seed(1))
    torch.manual_seed(4)
    np.random.seed(4)  # noqa: NPY002 - the global generator is what the meter must leave alone
    random.seed(4)
    history: list[float] = []
    state = {"weight": 1.0, "array": np.ones(3), "tensor": torch.ones(3)}
    evaluated: list[float] = []
    runs, seen = 0, []

    def task_losses(x: Tensor) -> Losses:
        """Draws from every generator, and computes with a variable and with containers that it changes."""
        nonlocal runs
        runs += 1
        x = x + 0.1 * torch.randn_like(x) + 0.1 * random.random() + 0.1 * np.random.rand()  # noqa: NPY002
        with torch.autocast("cpu", torch.bfloat16):
            hidden = network["encoder"](x)
            losses = {t: (network[t](hidden)[:, 0] - x[:, j]).float().pow(2).mean() for j, t in enumerate(TASKS)}
        history.append(losses["a"].item())
        state["weight"] = 1 + 0.1 * len(history) / runs
        state["array"] += 0.1 * history[-1]
        state["tensor"] += 0.1 * runs
        factors = {"a": state["weight"], "b": state["array"].mean(), "c": state["tensor"].mean()}
        return {task: factors[task] * loss for task, loss in losses.items()}

    def evaluate(x: Tensor) -> Losses:
        network.eval()  # this mode, and the entry in a list that nothing else reaches, must be undone
        evaluated.append(x.sum().item())
        return task_losses(x)

    for step, (x, other) in enumerate(batches):
        if step % 2 == 0:  # the gradients of two steps accumulate
            optimizer.zero_grad()
        task = TASKS[step % 3]
        if meter is None or observe:
            losses = task_losses(x)
        else:
            extra = [lambda other=other: evaluate(other)] if held_out else []
            losses = meter(lambda x=x: task_losses(x), *extra)
        (losses[task] if observe else sum(losses.values())).backward()
        if meter is not None and observe:
            meter.observe(task)
        if step % 2 == 1:
            optimizer.step()
            scheduler.step()
        seen.append([loss.item() for loss in losses.values()])

    assert meter is None or (meter.observed if observe else meter.measured) > 3
    trace = {
        "losses": seen,
        "network": network.state_dict(),
        "gradients": {name: p.grad for name, p in network.named_parameters()},
        "modes": {name: module.training for name, module in network.named_modules()},
        "counter": {name: getattr(network["encoder"][4], name) for name in ("calls", "sizes", "means")},
        "optimizer": optimizer.state_dict(),
        "scheduler": scheduler.state_dict(),
        "closure": {"runs": runs, "history": history, "evaluated": evaluated, **state},
        "generators": {"torch": torch.get_rng_state(), "numpy": np.random.get_state(), "python": random.getstate()},  # noqa: NPY002
    }
    return copy.deepcopy(trace)


without_meter = cache(train)


def differing(one: Any, two: Any, where: str) -> list[str]:
    """Returns the places where two traces differ by type or by a single bit."""
    if type(one) is not type(two):
        return [where]
    if isinstance(one, dict):
        if list(one) != list(two):
            return [where]
        return [place for key in one for place in differing(one[key], two[key], f"{where}.{key}")]
    if isinstance(one, list | tuple):
        if len(one) != len(two):
            return [where]
        return [place for k in range(len(one)) for place in differing(one[k], two[k], f"{where}[{k}]")]
    if isinstance(one, Tensor):
        return [] if one.dtype == two.dtype and torch.equal(one, two) else [where]
    if isinstance(one, np.ndarray):
        return [] if one.dtype == two.dtype and np.array_equal(one, two) else [where]
    return [] if one == two else [where]


CASES: dict[str, dict[str, Any]] = {
    **{name: {"estimator": name} for name in CLOSURE_ESTIMATORS},
    "every third call": {"every": 3},
    "round robin": {"every": RoundRobin(1)},
    "sgd step": {"update": "sgd"},
    "held out": {"held_out": True},
    "streaming": {"estimator": "streaming", "observe": True},
}


@pytest.mark.parametrize("case", CASES)
def test_training_is_the_same_with_and_without_a_meter(case: str) -> None:
    options = {"every": 1, "estimator": CLOSURE_ESTIMATORS} | CASES[case]
    expected = without_meter(observe=options.get("observe", False))
    assert differing(train(**options), expected, "trace") == []
