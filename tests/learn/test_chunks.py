"""Which networks are trained together, and what cannot be stacked. Their numbers are in `test_plain_loop.py`."""

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from batched_problems import (
    CNN_WITH_BATCHNORM,
    MIXED,
    MLP_WITH_DROPOUT,
    Layers,
    all_jobs,
    assert_same,
    images,
    make_problem,
    some_jobs,
    trained_together,
    vectors,
)
from torch import Tensor, nn

from tagalong.learn import (
    Job,
    Problem,
    Recipe,
    Task,
    build_network,
    train,
    train_many,
    why_not_batched,
)
from tagalong.learn.chunks import bytes_per_network
from tagalong.learn.stack_step import StackStep

SEEDS = (0, 3, 2**40)
CPU = torch.device("cpu")


@pytest.fixture
def stacks(monkeypatch: pytest.MonkeyPatch) -> list[set[int]]:
    """The seeds of every stack that is trained."""
    seeds: list[set[int]] = []

    class Watched(StackStep):
        def __init__(self, problem: Any, jobs: Any, *more: Any) -> None:
            super().__init__(problem, jobs, *more)
            seeds.append({job.seed for job in jobs})

    monkeypatch.setattr("tagalong.learn.engine.StackStep", Watched)
    return seeds


# Chunks and memory ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("networks", [1, 4])
def test_results_do_not_depend_on_memory(networks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = make_problem(MLP_WITH_DROPOUT, epochs=3)
    jobs = all_jobs(problem)
    many = trained_together(problem, jobs)
    each = bytes_per_network(problem, build_network(problem, problem.names, 0), CPU)
    monkeypatch.setattr("tagalong.learn.chunks.CPU_BYTES_LIMIT", networks * each)
    for job, trained in trained_together(problem, jobs).items():
        assert_same(many[job], trained)


@pytest.mark.parametrize("share", [0.0, 2.0])
def test_results_do_not_depend_on_when_stopped_networks_are_dropped(
    share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = make_problem(CNN_WITH_BATCHNORM, images, lr=0.02, patience=1)
    jobs = some_jobs(problem, SEEDS[:2])
    usual = trained_together(problem, jobs)
    assert len({trained.steps for trained in usual.values()}) > 1, "networks should stop at different times here"
    monkeypatch.setattr("tagalong.learn.stack_step.DROP_FRACTION", share)
    for job, trained in trained_together(problem, jobs).items():
        assert_same(trained, usual[job])


def test_a_chunk_that_runs_out_of_memory_is_split(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Crowded(StackStep):
        def __init__(self, problem: Problem, jobs: list[Job], *more: Any) -> None:
            if len(jobs) > 4:
                raise torch.OutOfMemoryError
            super().__init__(problem, jobs, *more)

    problem = make_problem(MLP_WITH_DROPOUT, epochs=2)
    jobs = all_jobs(problem)
    roomy = trained_together(problem, jobs)
    monkeypatch.setattr("tagalong.learn.engine.StackStep", Crowded)
    counts: list[int] = []
    for job, trained in trained_together(problem, jobs, progress=counts.append).items():
        assert_same(trained, roomy[job])
    assert counts == sorted(counts)
    assert [record.message.split()[0] for record in caplog.records] == ["15", "7", "8"]


def test_networks_are_yielded_when_their_chunk_is_finished_and_progress_counts_them() -> None:
    problem = make_problem(MLP_WITH_DROPOUT, epochs=3)
    jobs = [*all_jobs(problem), *all_jobs(problem, width=2.0)]
    counts: list[int] = []
    networks = train_many(problem, jobs, progress=counts.append)
    assert not counts, "nothing should be trained before the first network is asked for"
    random_state = torch.get_rng_state()
    assert next(networks).job.width == 1
    assert torch.equal(torch.get_rng_state(), random_state)
    assert counts[-1] == len(jobs) // 2
    assert {trained.job.width for trained in list(networks)[len(jobs) // 2 - 1 :]} == {2}
    assert counts == sorted(counts)
    assert counts[-1] == len(jobs)


def test_the_memory_of_a_network_grows_with_its_batch_weights_and_targets() -> None:
    small = make_problem(MLP_WITH_DROPOUT)
    large = replace(small, recipe=Recipe(batch_size=70))
    network = build_network(small, small.names, 0)
    wide = build_network(small, small.names, 0, width=20)
    plain = bytes_per_network(small, network, CPU)
    assert plain < bytes_per_network(large, network, CPU)
    assert plain + 1000 <= bytes_per_network(small, network, CPU, own_targets=1000)
    weights = sum(parameter.numel() for parameter in wide.parameters()) * 8
    assert bytes_per_network(small, wide, CPU) > 8 * weights


# Seeds that share a stack, and others --------------------------------------------------------------------------------


def test_many_networks_of_a_seed_are_not_trained_with_few_of_another(stacks: list[set[int]]) -> None:
    problem = make_problem(MLP_WITH_DROPOUT, epochs=2)
    jobs = [*all_jobs(problem), *some_jobs(problem, (1, 2), every=5)]
    trained_together(problem, jobs)
    assert stacks == [{0}, {1, 2}]


def test_many_networks_are_trained_seed_by_seed_on_a_cpu(
    stacks: list[set[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = make_problem(MLP_WITH_DROPOUT, epochs=2)
    jobs = some_jobs(problem, SEEDS)
    each = bytes_per_network(problem, build_network(problem, problem.names, 0), CPU)
    monkeypatch.setattr("tagalong.learn.chunks.CPU_BYTES_LIMIT_OF_SEEDS", (len(jobs) - 1) * each)
    trained_together(problem, jobs)
    assert stacks == [set(SEEDS[:2]), {SEEDS[2]}]


# What cannot be stacked ----------------------------------------------------------------------------------------------


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
    """Draws random numbers that are no dropout masks."""

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs + 1e-9 * torch.randn(inputs.shape, dtype=inputs.dtype)


class Shuffled(nn.Module):
    """Has a plain attribute that depends on the seed."""

    def __init__(self) -> None:
        super().__init__()
        self.order = torch.randperm(4).tolist()

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs[:, self.order]


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
        (lambda: with_layer(lambda: nn.AlphaDropout(0.01)), "random"),
        (lambda: with_layer(Shuffled), "differ"),
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


@pytest.mark.parametrize("rule", ["plain", "gradnorm"])
def test_what_cannot_be_stacked_is_trained_one_by_one_and_this_is_logged(
    rule: str, caplog: pytest.LogCaptureFixture
) -> None:
    problem = with_layer(Careful) if rule == "plain" else make_problem(MLP_WITH_DROPOUT, epochs=2)
    jobs = [Job(("size", "ill"), rule=rule), Job(("size", "sort"), rule=rule)]
    with caplog.at_level(logging.INFO):
        networks = trained_together(problem, jobs)
    assert_same(networks[jobs[0]], train(problem, jobs[0]))
    (record,) = caplog.records
    assert "2 networks of small one at a time" in record.message
    assert ("'gradnorm'" in record.message) == (rule == "gradnorm")


@pytest.mark.parametrize(
    ("task", "target"),
    [
        ("color", torch.zeros(70)),
        ("ill", torch.zeros(69)),
        ("ill", torch.zeros(70).long()),
        ("ill", torch.full((70,), 1.5)),
        ("sort", torch.zeros(70, 2)),
        ("sort", torch.full((70, 3), -1.0)),
    ],
)
def test_invalid_targets_are_refused_before_any_training(task: str, target: Tensor) -> None:
    problem, job = make_problem(MLP_WITH_DROPOUT), Job(("ill", "sort"))
    with pytest.raises(ValueError, match=f"targets.*'{task}'"):
        train_many(problem, [job], targets={job: {task: target}})
    with pytest.raises(ValueError, match="`targets`"):
        train_many(problem, [job], targets={Job(("size",)): {task: target}})


# On a GPU ------------------------------------------------------------------------------------------------------------


@pytest.mark.cuda
@pytest.mark.parametrize("seeds", [(0,), (0, 1, 2)])
@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_stacked_graphs_give_the_same_networks(
    seeds: tuple[int, ...], optimizer: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    problem = make_problem(MLP_WITH_DROPOUT, tasks=MIXED[:3], optimizer=optimizer, epochs=14, patience=4, lr=0.01)
    networks = trained_together(problem, all_jobs(problem, seeds), device="cuda")
    assert "as a CUDA graph" in caplog.text
    for job, trained in networks.items():
        assert_same(trained, train(problem, job, device="cuda"))


@pytest.mark.cuda
def test_stacked_graphs_of_convolutions_give_the_same_networks() -> None:
    problem = make_problem(CNN_WITH_BATCHNORM, images, tasks=MIXED[:3], optimizer="sgd", epochs=12, patience=4)
    for job, trained in trained_together(problem, all_jobs(problem, (0, 1)), device="cuda").items():
        assert_same(trained, train(problem, job, device="cuda"))


@pytest.mark.cuda
@pytest.mark.parametrize(("encoder", "inputs"), [(MLP_WITH_DROPOUT, vectors), (CNN_WITH_BATCHNORM, images)])
def test_seeds_rates_and_targets_on_a_gpu_equal_those_alone_there(
    encoder: Callable[..., nn.Module], inputs: Any
) -> None:
    problem = make_problem(encoder, inputs, lr=0.02)
    jobs = [*some_jobs(problem, SEEDS), *some_jobs(problem, SEEDS, lr=0.005)]
    targets = {jobs[0]: {"size": torch.randn(70, dtype=torch.float64)}}
    networks = trained_together(problem, jobs, device="cuda", targets=targets)
    for job in jobs[::3]:
        assert_same(networks[job], train(problem, job, device="cuda", targets=targets.get(job)))
