"""The counterexample of the paper's appendix, through the public meter.

L_a(x) = (x₁² + 10 x₂²) / 2 at x = (−2, −1), learning rate 0.09. The printed values (6.96 and 6.98 after one step,
6.09 and 6.07 combined) come out with gradients of unit length, not of the length of g_a as the text says.
"""

import pytest
import torch
from torch import nn

from tagalong import AffinityMeter

LR = 0.09


def loss_of_a_after(direction_b: list[float], direction_c: list[float]) -> dict[str, float]:
    x = nn.Parameter(torch.tensor([-2.0, -1.0], dtype=torch.float64))
    b, c = (nn.functional.normalize(torch.tensor(d, dtype=torch.float64), dim=0) for d in (direction_b, direction_c))
    length = (x.detach() * torch.tensor([1.0, 10.0])).norm()  # of g_a

    def closure() -> dict[str, torch.Tensor]:
        a = 0.5 * (x[0] ** 2 + 10 * x[1] ** 2)
        unit_a = a / length
        return {"a": a, "b": 9 + b @ x, "c": 9 + c @ x, "a+b": 9 + unit_a + b @ x, "a+c": 9 + unit_a + c @ x}

    meter = AffinityMeter([x], update="sgd", lr=LR)
    losses = meter(closure)
    assert losses["a"].item() == pytest.approx(7.0)
    affinity = meter.affinity()
    onto_a = affinity.mean[:, affinity.tasks.index("a")]
    return {task: 7.0 * (1.0 - z) for task, z in zip(affinity.tasks, onto_a, strict=True)}


def test_the_task_with_the_higher_affinity_can_be_the_worse_partner() -> None:
    after = loss_of_a_after([8.0, -2.0], [-12.0, 2.0])
    assert after["b"] == pytest.approx(6.9625, abs=5e-5)
    assert after["c"] == pytest.approx(6.9754, abs=5e-5)
    assert after["a+b"] == pytest.approx(6.1015, abs=5e-5)
    assert after["a+c"] == pytest.approx(6.0852, abs=5e-5)
    assert after["b"] < after["c"]
    assert after["a+b"] > after["a+c"]


def test_in_the_second_case_of_the_appendix_the_order_holds() -> None:
    after = loss_of_a_after([8.0, -2.0], [-0.2, 15.0])
    assert after["c"] == pytest.approx(7.938, abs=5e-4)
    assert after["a+c"] == pytest.approx(6.9799, abs=5e-5)
    assert after["b"] < after["c"]
    assert after["a+b"] < after["a+c"]
