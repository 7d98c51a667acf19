"""All estimators against the slow, obvious implementation, in float64."""

from collections.abc import Callable, Mapping

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings, strategies as st
from oracle import Situation, slow_affinities
from torch import Tensor, nn

from tagalong import AffinityMeter
from tagalong.measure import RoundRobin

# Networks this small may have all their units dropped, so that a step is real and yet changes no loss.
pytestmark = pytest.mark.filterwarnings("ignore:a step on each task changed no loss")

ESTIMATORS = ["lookahead", "gradient", "cosine", "cosine_kernels", "centered_cosine"]
OPTIMIZERS: dict[str, Callable[[list[nn.Parameter]], torch.optim.Optimizer]] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.05),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, nesterov=True, weight_decay=1e-3),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.1),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.01, momentum=0.5),
}


class Net(nn.Module):
    """A shared encoder with BatchNorm and dropout; the last task reads an inner layer only."""

    def __init__(self, inputs: int, hidden: int, tasks: list[str], dropout: float) -> None:
        super().__init__()
        self.encoder = nn.ModuleDict(
            {
                "low": nn.Sequential(nn.Linear(inputs, hidden), nn.BatchNorm1d(hidden), nn.Tanh()),
                "high": nn.Sequential(nn.Dropout(dropout), nn.Linear(hidden, hidden), nn.Tanh()),
            }
        )
        self.heads = nn.ModuleDict({t: nn.Sequential(nn.Dropout(dropout), nn.Linear(hidden, 1)) for t in tasks})

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        low = self.encoder["low"](x)
        high = self.encoder["high"](low)
        last = list(self.heads)[-1]
        return {t: head(low if t == last else high) for t, head in self.heads.items()}


def losses_on(
    x: Tensor, labels: Mapping[str, Tensor | None], absent: Mapping[str, str]
) -> Callable[[nn.Module], dict[str, Tensor | None]]:
    def losses_of(model: nn.Module) -> dict[str, Tensor | None]:
        found: dict[str, Tensor | None] = {}
        for task, out in model(x).items():
            loss = (out - labels[task]).pow(2).mean() + 0.1
            how = absent.get(task)
            if how == "none":
                found[task] = None
            elif how == "nan":
                found[task] = loss * float("nan")
            elif how is None:
                found[task] = loss
        return found

    return losses_of


@st.composite
def situations(draw: st.DrawFn) -> Situation:
    tasks = [f"t{i}" for i in range(draw(st.integers(2, 4)))]
    inputs, hidden, rows = draw(st.integers(1, 4)), draw(st.integers(1, 6)), draw(st.integers(3, 9))
    torch.manual_seed(draw(st.integers(0, 10_000)))
    model = Net(inputs, hidden, tasks, draw(st.sampled_from([0.0, 0.4]))).double()
    name = draw(st.sampled_from(sorted(OPTIMIZERS)))
    optimizer = OPTIMIZERS[name](list(model.parameters()))
    ways = st.sampled_from(["absent", "none", "nan"])
    missing = draw(st.dictionaries(st.sampled_from(tasks), ways, max_size=len(tasks) - 1))
    gone = draw(st.dictionaries(st.sampled_from(tasks), ways, max_size=len(tasks) - 1))

    def batch() -> tuple[Tensor, dict[str, Tensor]]:
        x = torch.randn(rows, inputs, dtype=torch.float64)
        return x, {t: torch.randn(rows, 1, dtype=torch.float64) for t in tasks}

    for _ in range(draw(st.integers(0, 3))):  # the optimizer's state, not only its first step
        torch.stack(list(losses_on(*batch(), {})(model).values())).sum().backward()  # type: ignore[arg-type]
        optimizer.step()
        optimizer.zero_grad()
    weights = draw(st.just({}) | st.fixed_dictionaries({t: st.floats(0.1, 3.0) for t in tasks}))
    return Situation(
        model, optimizer, losses_on(*batch(), missing), draw(st.none() | st.just(losses_on(*batch(), gone))),
        tasks, weights, draw(st.sampled_from(["sgd", "optimizer"])), optimizer.param_groups[0]["lr"],
    )  # fmt: skip


def measure(situation: Situation, **options: object) -> AffinityMeter:
    meter = AffinityMeter(
        situation.model.encoder, situation.optimizer, estimator=ESTIMATORS, update=situation.update,
        weights=situation.weights or None, tasks=situation.tasks, **options,
    )  # fmt: skip
    held_out = situation.held_out_of
    meter(
        lambda: situation.losses_of(situation.model),
        held_out=None if held_out is None else lambda: held_out(situation.model),
    )
    return meter


def assert_equal(meter: AffinityMeter, expected: Mapping[str, np.ndarray]) -> None:
    for name in ESTIMATORS:
        found = meter.affinity(name).history[0]
        # 1e-12 is the size of 1 − after/before when nothing changes in float64
        np.testing.assert_allclose(found, expected[name], rtol=1e-6, atol=1e-12, err_msg=name)


slow = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)


@slow
@pytest.mark.filterwarnings("ignore:no pair of tasks")
@given(situations())
def test_all_estimators_equal_the_slow_obvious_implementation(situation: Situation) -> None:
    expected = slow_affinities(situation)
    assert_equal(measure(situation), expected)


@slow
@pytest.mark.filterwarnings("ignore:no pair of tasks")
@given(situations(), st.integers(0, 20))
def test_round_robin_measures_some_sources_relative_to_the_null_step(situation: Situation, seed: int) -> None:
    start = torch.get_rng_state()
    meter = measure(situation, every=RoundRobin(every=1), seed=seed)
    (chosen,) = np.flatnonzero(np.isfinite(meter.affinity("lookahead").history[0]).any(axis=1))
    situation.sources = [situation.tasks[chosen]]
    torch.set_rng_state(start)
    assert_equal(meter, slow_affinities(situation))
