"""Networks trained together equal those trained one by one."""

import itertools
import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from batched_problems import (
    CNN_WITH_BATCHNORM,
    MIXED,
    MLP_WITH_DROPOUT,
    Layers,
    all_jobs,
    assert_same,
    check_some,
    images,
    make_problem,
    trained_together,
    vectors,
)
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import nn

from tagalong.learn import MLP, Diverged, Job, Problem, Recipe, Task, Trained, build_network, train, train_many
from tagalong.learn.batched import BatchedTraining
from tagalong.learn.memory import bytes_per_network


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw"])
def test_mlps_with_dropout_and_all_kinds_of_tasks_equal_those_trained_alone(optimizer: str) -> None:
    problem = make_problem(MLP_WITH_DROPOUT, optimizer=optimizer)
    jobs = all_jobs(problem, seeds=(0, 3))
    found = trained_together(problem, jobs)
    assert len(found) == len(jobs)
    for job in jobs[::2]:
        assert_same(found[job], train(problem, job))
    assert len({trained.steps for trained in found.values()}) > 2, "networks should stop at different times here"


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_cnns_with_batchnorm_and_dropout_equal_those_trained_alone(optimizer: str) -> None:
    problem = make_problem(CNN_WITH_BATCHNORM, images, optimizer=optimizer, lr=0.02)
    jobs = all_jobs(problem, seeds=(1,))
    found = trained_together(problem, jobs)
    for job in jobs[::2]:
        assert_same(found[job], train(problem, job))
    assert len({trained.steps for trained in found.values()}) > 1


@pytest.mark.cuda
@pytest.mark.parametrize("seeds", [(0,), (0, 1, 2)])
@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_stacked_graphs_give_the_same_networks(
    seeds: tuple[int, ...], optimizer: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    problem = make_problem(MLP_WITH_DROPOUT, tasks=MIXED[:3], optimizer=optimizer, epochs=14, patience=4, lr=0.01)
    jobs = all_jobs(problem, seeds=seeds)
    found = trained_together(problem, jobs, device="cuda")
    assert "without CUDA graphs" not in caplog.text
    for job in jobs:
        assert_same(found[job], train(problem, job, device="cuda"))


@pytest.mark.cuda
def test_stacked_graphs_of_convolutions_give_the_same_networks() -> None:
    problem = make_problem(CNN_WITH_BATCHNORM, images, tasks=MIXED[:3], optimizer="sgd", epochs=12, patience=4)
    jobs = all_jobs(problem, seeds=(0, 1))
    found = trained_together(problem, jobs, device="cuda")
    for job in jobs:
        assert_same(found[job], train(problem, job, device="cuda"))


@pytest.mark.cuda
@pytest.mark.parametrize(("encoder", "inputs"), [(MLP_WITH_DROPOUT, vectors), (CNN_WITH_BATCHNORM, images)])
def test_networks_on_a_gpu_equal_those_trained_alone_there(encoder: Callable[..., nn.Module], inputs: Any) -> None:
    problem = make_problem(encoder, inputs, lr=0.02)
    jobs = all_jobs(problem)
    found = trained_together(problem, jobs, device="cuda")
    for job in jobs[::3]:
        assert_same(found[job], train(problem, job, device="cuda"))


@settings(max_examples=6, deadline=None)
@given(
    hidden=st.lists(st.integers(1, 5), min_size=1, max_size=2),
    batch_size=st.integers(2, 40),
    patience=st.integers(1, 3),
    seed=st.integers(0, 2**40),
    picked=st.sets(st.integers(0, 14), min_size=2, max_size=4),
)
@example(hidden=[2, 5], batch_size=9, patience=2, seed=1, picked={1, 4})  # rows that a network of dead units ties
def test_any_shape_and_any_choice_of_networks(
    hidden: list[int], batch_size: int, patience: int, seed: int, picked: set[int]
) -> None:
    problem = make_problem(MLP(6, hidden, dropout=0.3), batch_size=batch_size, patience=patience, epochs=4)
    every = all_jobs(problem, seeds=(seed,))
    check_some(problem, [every[place] for place in sorted(picked)], every=2)


def test_widths_and_seeds_may_be_mixed() -> None:
    problem = make_problem(MLP_WITH_DROPOUT, epochs=3)
    jobs = [*all_jobs(problem, (0, 1))[::3], *all_jobs(problem, (0, 1), width=2.0)[::3]]
    check_some(problem, jobs, every=3)


@pytest.mark.parametrize("networks", [1, 2, 5])
def test_results_do_not_depend_on_memory(networks: int) -> None:
    problem = make_problem(MLP_WITH_DROPOUT, epochs=4)
    jobs = all_jobs(problem)
    each = bytes_per_network(problem, build_network(problem, problem.names, 0), torch.device("cpu"))
    few = trained_together(problem, jobs, memory=networks * each)
    for job, trained in trained_together(problem, jobs).items():
        assert_same(few[job], trained)


@pytest.mark.parametrize("share", [0.0, 2.0])
def test_results_do_not_depend_on_when_stopped_networks_are_dropped(
    share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = make_problem(CNN_WITH_BATCHNORM, images, lr=0.02)
    jobs = all_jobs(problem)[:9]
    usual = trained_together(problem, jobs)
    monkeypatch.setattr("tagalong.learn.batched.DROP_FRACTION", share)
    for job, trained in trained_together(problem, jobs).items():
        assert_same(trained, usual[job])


def test_a_chunk_that_runs_out_of_memory_is_split(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Crowded(BatchedTraining):
        def __init__(self, problem: Problem, jobs: list[Job], *more: Any) -> None:
            if len(jobs) > 4:
                raise torch.OutOfMemoryError
            super().__init__(problem, jobs, *more)

    problem = make_problem(MLP_WITH_DROPOUT, epochs=2)
    jobs = all_jobs(problem)
    roomy = trained_together(problem, jobs)
    monkeypatch.setattr("tagalong.learn.batched.BatchedTraining", Crowded)
    counts: list[int] = []
    for job, trained in trained_together(problem, jobs, progress=counts.append).items():
        assert_same(trained, roomy[job])
    assert counts == sorted(counts)
    assert [record.message.split()[0] for record in caplog.records] == ["15", "7", "8"]


def test_networks_are_yielded_when_their_chunk_is_finished_and_progress_counts_them() -> None:
    problem = make_problem(MLP_WITH_DROPOUT, epochs=4)
    jobs = [*all_jobs(problem), *all_jobs(problem, width=2.0)]
    counts: list[int] = []
    networks = train_many(problem, jobs, progress=counts.append)
    assert not counts, "nothing should be trained before the first network is asked for"
    assert next(networks).job.width == 1
    assert counts[-1] == len(jobs) // 2
    assert {trained.job.width for trained in list(networks)[len(jobs) // 2 - 1 :]} == {2}
    assert counts == sorted(counts)
    assert counts[-1] == len(jobs)


def test_training_time_is_shared_in_proportion_to_steps() -> None:
    problem = make_problem(MLP_WITH_DROPOUT)
    found = list(train_many(problem, all_jobs(problem)))
    rates = [trained.seconds / trained.steps for trained in found]
    np.testing.assert_allclose(rates, rates[0])
    assert rates[0] > 0


def test_global_random_numbers_are_not_changed() -> None:
    problem = make_problem(MLP_WITH_DROPOUT, epochs=2)
    before = torch.get_rng_state()
    networks = train_many(problem, all_jobs(problem))
    next(networks)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_diverging_network_does_not_affect_others_and_is_reported_at_the_end() -> None:
    def explosive(out: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return (out.squeeze(1) - target).square() * torch.where(out.squeeze(1).isfinite(), torch.inf, torch.nan)

    tasks = [Task("a", kind="regression"), Task("b", kind="regression"), Task("boom", kind="custom", loss=explosive)]
    problem = make_problem(MLP_WITH_DROPOUT, tasks=tasks, epochs=3)
    jobs = all_jobs(problem)
    found: dict[Job, Trained] = {}
    networks = train_many(problem, jobs)
    for trained in itertools.islice(networks, 3):
        found[trained.job] = trained
    with pytest.raises(Diverged, match=r"lower `recipe.lr`.* for boom with seed 0; a, boom with seed 0") as raised:
        next(networks)
    lost = raised.value.networks
    assert {trained.job for trained in lost} == {job for job in jobs if "boom" in job.tasks}
    assert all(trained.diverged and trained.state is None and trained.seconds > 0 for trained in lost)
    for trained in lost:
        with pytest.raises(Diverged) as alone:
            train(problem, trained.job)
        assert [one.steps for one in alone.value.networks] == [trained.steps]
    assert {job.tasks for job in found} == {("a",), ("b",), ("a", "b")}
    for job, trained in found.items():
        assert_same(trained, train(problem, job))


def test_mixed_precision_is_batched_and_close_to_training_alone(caplog: pytest.LogCaptureFixture) -> None:
    problem = make_problem(
        MLP(6, (12, 8)), lambda rows, generator: torch.randn(rows, 6, generator=generator), epochs=3, amp="bf16"
    )
    jobs = all_jobs(problem)
    found = trained_together(problem, jobs)
    for job in jobs[::5]:
        np.testing.assert_allclose(found[job].curve, train(problem, job).curve, rtol=0.05)
    assert not caplog.records


def test_other_rules_are_trained_one_by_one_and_this_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    problem = make_problem(MLP_WITH_DROPOUT, epochs=2)
    jobs = [Job(("size", "ill"), rule="gradnorm"), Job(("size", "sort"), rule="gradnorm"), *all_jobs(problem)[:3]]
    with caplog.at_level(logging.INFO):
        found = trained_together(problem, jobs)
    assert_same(found[jobs[0]], train(problem, jobs[0]))
    assert [record.message for record in caplog.records] == [
        "training 2 networks of small one at a time: rule 'gradnorm' combines the losses of each network separately"
    ]


def test_layers_that_cannot_be_batched_are_trained_one_by_one_and_this_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Branching(nn.Module):
        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            return inputs if inputs.sum() > 0 else -inputs

    problem = make_problem(Layers(lambda: nn.Linear(6, 4), Branching), epochs=2)
    jobs = all_jobs(problem)[:4]
    found = trained_together(problem, jobs)
    assert_same(found[jobs[2]], train(problem, jobs[2]))
    assert len(caplog.records) == 1
    assert "training 4 networks of small one at a time: vmap: " in caplog.records[0].message


def test_invalid_jobs_raise_an_error_before_any_training() -> None:
    problem = make_problem(MLP_WITH_DROPOUT)
    with pytest.raises(ValueError, match=r"(?s)several problems.*found 'color'.*found none"):
        train_many(problem, [Job(("size", "color")), Job(())])


def test_memory_of_a_network_grows_with_its_batch_and_its_weights() -> None:
    cpu = torch.device("cpu")
    small = make_problem(MLP_WITH_DROPOUT)
    large = replace(small, recipe=Recipe(batch_size=70))
    network = build_network(small, small.names, 0)
    wide = build_network(small, small.names, 0, width=20)
    assert bytes_per_network(small, network, cpu) < bytes_per_network(large, network, cpu)
    weights = sum(parameter.numel() for parameter in wide.parameters()) * 8
    assert bytes_per_network(small, wide, cpu) > 8 * weights
