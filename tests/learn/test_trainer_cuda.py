"""On a GPU: mixed precision with every kind of rule, a meter, resuming, and the same results as on the CPU."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from learn_small import TASKS, encoder, small_problem
from test_checkpoint import assert_equal, train_killed_after_every_epoch

from tagalong.learn import Job, Recipe, train

pytestmark = pytest.mark.cuda
RULES = ["plain", "uw", "pcgrad", "pcgrad-uw", "gradnorm"]


@pytest.mark.parametrize("rule", RULES)
def test_results_on_the_gpu_equal_those_on_the_cpu(rule: str) -> None:
    problem = small_problem(make=encoder(norm=True))
    on_cpu, on_gpu = (train(problem, Job(TASKS, rule=rule), device=device) for device in ("cpu", "cuda"))
    np.testing.assert_allclose(on_gpu.curve, on_cpu.curve, rtol=1e-6)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("amp", ["fp16", "bf16"])
def test_mixed_precision_stays_close(rule: str, amp: str) -> None:
    problem = small_problem(Recipe(lr=0.02, batch_size=8, epochs=4), make=encoder(dropout=0.2), dtype=torch.float32)
    mixed = replace(problem, recipe=replace(problem.recipe, amp=amp))
    plain = train(problem, Job(TASKS, rule=rule), device="cuda")
    trained = train(mixed, Job(TASKS, rule=rule), device="cuda", meter={"every": 3})
    np.testing.assert_allclose(trained.curve, plain.curve, rtol=0.15, atol=0.02)
    assert np.isfinite(trained.affinity.mean).all()


@pytest.mark.parametrize("rule", RULES)
def test_resuming_on_the_gpu_is_exact(rule: str, tmp_path: Path) -> None:
    problem = small_problem(
        Recipe(lr=0.02, batch_size=8, epochs=3, amp="fp16"), make=encoder(dropout=0.3), dtype=torch.float32
    )
    job = Job(TASKS, rule=rule)
    undisturbed = train(problem, job, device="cuda")
    assert_equal(undisturbed, train_killed_after_every_epoch(problem, job, tmp_path / "a.pt", None, device="cuda"))


def test_global_random_numbers_on_the_gpu_are_not_changed() -> None:
    before = torch.cuda.get_rng_state()
    train(small_problem(make=encoder(dropout=0.3)), Job(TASKS, rule="pcgrad"), device="cuda")
    assert torch.equal(before, torch.cuda.get_rng_state())
