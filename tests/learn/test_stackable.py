"""A trial shows what can be batched, and why not."""

from collections.abc import Callable

import pytest
import torch
from batched_problems import CNN_WITH_BATCHNORM, MLP_WITH_DROPOUT, Layers, images, make_problem
from torch import Tensor, nn

from tagalong.learn import Job, Problem, Task, why_not_batched


class Careful(nn.Module):
    """Branches on values, but only in evaluation."""

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs if self.training or inputs.mean() > 0 else inputs.clamp(min=0)


class Counting(nn.Module):
    """Replaces a buffer instead of changing it."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, inputs: Tensor) -> Tensor:
        self.seen = self.seen + 1
        return inputs


class Growing(nn.Module):
    """Has state outside its buffers."""

    calls = 0

    def forward(self, inputs: Tensor) -> Tensor:
        type(self).calls += 1
        return inputs * self.calls


class Noisy(nn.Module):
    """Draws random numbers, once for all networks."""

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs + torch.randn(inputs.shape, dtype=inputs.dtype)


def with_layer(layer: Callable[[], nn.Module]) -> Problem:
    return make_problem(Layers(lambda: nn.Linear(6, 4), layer))


def with_shared_head() -> Problem:
    shared = nn.Linear(8, 1).double()
    tasks = [Task("a", kind="regression", head=lambda features: shared), Task("b", head=lambda features: shared)]
    return make_problem(MLP_WITH_DROPOUT, tasks=tasks)


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: make_problem(MLP_WITH_DROPOUT), None),
        (lambda: make_problem(CNN_WITH_BATCHNORM, images), None),
        (lambda: with_layer(Noisy), "random numbers"),
        (lambda: make_problem(MLP_WITH_DROPOUT, amp="fp16"), "'bf16' can be batched"),
        (lambda: with_layer(Careful), "vmap: "),
        (lambda: with_layer(Counting), "encoder.1.seen"),
        (lambda: with_layer(Growing), "differ"),
        (with_shared_head, "heads.0"),
    ],
)
def test_the_trial_says_why_a_problem_is_not_batched(make: Callable[[], Problem], reason: str | None) -> None:
    problem = make()
    random_state = torch.get_rng_state()
    found = why_not_batched(problem)
    assert torch.equal(torch.get_rng_state(), random_state)
    assert found is None if reason is None else reason in str(found)


def test_only_the_jobs_asked_for_count() -> None:
    def loss(out: Tensor, target: Tensor) -> Tensor:
        return (out.squeeze(1) - target).square() if out.mean() > 0 else (out.squeeze(1) - target).abs()

    problem = make_problem(MLP_WITH_DROPOUT, tasks=[Task("a", kind="custom", loss=loss), Task("b")])
    assert str(why_not_batched(problem)).startswith("vmap: ")
    assert why_not_batched(problem, [Job(("b",))]) is None
    jobs = [Job(("b",), rule="uw"), Job(("b",), rule="pcgrad")]
    assert "'pcgrad', 'uw'" in str(why_not_batched(problem, jobs))
