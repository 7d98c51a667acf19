"""Networks with different seeds, learning rates and targets equal those trained one by one."""

import itertools
import logging
from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from batched_problems import (
    CNN_WITH_BATCHNORM,
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
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from tagalong.learn import MLP, Diverged, Job, Recipe, Task, build_network, train, train_many
from tagalong.learn.batchable import why_seeds_not_mixed
from tagalong.learn.batched import BatchedTraining, _split_evenly
from tagalong.learn.memory import bytes_per_network
from tagalong.learn.randomness import batches

SEEDS = (0, 3, 2**40)


def some_jobs(problem: Any, seeds: Any = SEEDS, every: int = 4, **options: Any) -> list[Job]:
    return [job for seed in seeds for job in all_jobs(problem, (seed,), **options)[::every]]


@pytest.fixture
def stacks(monkeypatch: pytest.MonkeyPatch) -> list[set[int]]:
    """The seeds of every stack that is trained."""
    found: list[set[int]] = []

    class Watched(BatchedTraining):
        def __init__(self, problem: Any, jobs: Any, *more: Any) -> None:
            super().__init__(problem, jobs, *more)
            found.append({job.seed for job in jobs})

    monkeypatch.setattr("tagalong.learn.batched.BatchedTraining", Watched)
    return found


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw"])
def test_seeds_with_dropout_and_all_kinds_of_tasks_equal_those_alone(optimizer: str, stacks: list[set[int]]) -> None:
    problem = make_problem(MLP_WITH_DROPOUT, optimizer=optimizer)
    jobs = some_jobs(problem)
    found = trained_together(problem, jobs)
    assert stacks == [set(SEEDS)]
    for job in jobs:
        assert_same(found[job], train(problem, job))
    assert len({trained.steps for trained in found.values()}) > 2, "networks should stop at different times here"


@pytest.mark.parametrize("heads", [False, True])
def test_seeds_of_cnns_with_batchnorm_equal_those_alone(heads: bool, stacks: list[set[int]]) -> None:
    def head(features: int) -> nn.Module:
        return nn.Sequential(nn.Linear(features, 5), nn.BatchNorm1d(5), nn.Dropout(0.4), nn.Linear(5, 1))

    tasks = [Task("a", kind="regression", head=head), Task("b", head=head), Task("c", class_weights=(1, 2), weight=0.3)]
    options = {"tasks": tasks} if heads else {}
    problem = make_problem(CNN_WITH_BATCHNORM, images, lr=0.02, epochs=5, **options)
    check_some(problem, some_jobs(problem), every=3)
    assert stacks == [set(SEEDS)]


@pytest.mark.parametrize(
    "options",
    [
        {"batch_size": 23, "rows": (70, 31, 29)},
        {"batch_size": 23, "rows": (70, 31, 29), "patience": None, "keep": "last", "epochs": 3},
        {"batch_size": 69, "rows": (70, 31, 29), "schedule": "cosine", "epochs": 4},
        {"batch_size": 35, "rows": (71, 31, 29), "schedule": "step", "period": 1, "lowest_lr": 0.01, "epochs": 6},
    ],
)
def test_schedules_and_leftover_rows(options: dict[str, Any], stacks: list[set[int]]) -> None:
    problem = make_problem(MLP_WITH_DROPOUT, **options)
    sizes = [len(part) for part in batches(0, 0, len(problem.train), problem.recipe.batch_size)]
    assert 1 not in sizes
    check_some(problem, some_jobs(problem), every=3)
    assert stacks == [set(SEEDS)]


@settings(max_examples=5, deadline=None)
@given(
    picked=st.sets(st.tuples(st.integers(0, 2), st.integers(0, 14)), min_size=2, max_size=7),
    batch_size=st.integers(2, 40),
    patience=st.integers(1, 3),
)
def test_any_choice_of_subsets_and_seeds(picked: set[tuple[int, int]], batch_size: int, patience: int) -> None:
    problem = make_problem(MLP(6, (5,), dropout=0.3), batch_size=batch_size, patience=patience, epochs=4)
    jobs = [all_jobs(problem, (SEEDS[seed],))[place] for seed, place in sorted(picked)]
    found = {trained.job: trained for trained in BatchedTraining(problem, jobs, torch.device("cpu")).run(print)}
    for job in jobs[::2]:
        assert_same(found[job], train(problem, job))


@pytest.mark.parametrize("share", [0.0, 0.01, 2.0])
def test_results_do_not_depend_on_when_stopped_networks_of_some_seeds_are_dropped(
    share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = make_problem(CNN_WITH_BATCHNORM, images, lr=0.02, patience=1)
    jobs = some_jobs(problem, every=5)
    monkeypatch.setattr("tagalong.learn.batched.DROP_FRACTION", share)
    check_some(problem, jobs, every=2)


class Noisy(nn.Module):
    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return inputs + 1e-9 * torch.randn(inputs.shape, dtype=inputs.dtype)


@pytest.mark.parametrize("layer", [lambda: nn.Dropout1d(0.3), lambda: nn.AlphaDropout(0.01), Noisy])
def test_other_random_layers_are_trained_seed_by_seed(
    layer: Any, stacks: list[set[int]], caplog: pytest.LogCaptureFixture
) -> None:
    encoder = Layers(
        lambda: nn.Unflatten(1, (2, 3)), lambda: nn.Conv1d(2, 4, 2), layer, lambda: nn.Dropout(0.1), nn.Flatten
    )
    problem = make_problem(encoder, epochs=3)
    with caplog.at_level(logging.INFO):
        check_some(problem, some_jobs(problem))
    assert stacks == [{seed} for seed in SEEDS]
    assert "seed by seed: some layers draw random numbers other than dropout masks" in caplog.text


def test_layers_whose_plain_attributes_depend_on_the_seed_are_trained_seed_by_seed(stacks: list[set[int]]) -> None:
    class Shuffled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.order = torch.randperm(6).tolist()

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            return inputs[:, self.order]

    problem = make_problem(Layers(Shuffled, lambda: nn.Linear(6, 4)), epochs=3)
    assert "would differ" in str(why_seeds_not_mixed(problem, all_jobs(problem)))
    check_some(problem, some_jobs(problem))
    assert stacks == [{seed} for seed in SEEDS]


def test_an_encoder_without_weights_has_masks_for_each_seed(stacks: list[set[int]]) -> None:
    problem = make_problem(Layers(nn.Tanh, lambda: nn.Dropout(0.5)), epochs=3)
    check_some(problem, some_jobs(problem))
    assert stacks == [set(SEEDS)]


def test_a_diverging_network_does_not_affect_other_seeds() -> None:
    def explosive(out: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return (out.squeeze(1) - target).square() * torch.where(out.squeeze(1).isfinite(), torch.inf, torch.nan)

    tasks = [Task("a", kind="regression"), Task("b"), Task("boom", kind="custom", loss=explosive)]
    problem = make_problem(MLP_WITH_DROPOUT, tasks=tasks, epochs=3)
    jobs = some_jobs(problem, every=1)
    networks = train_many(problem, jobs)
    found = {trained.job: trained for trained in itertools.islice(networks, 9)}
    with pytest.raises(Diverged) as raised:
        next(networks)
    assert {trained.job for trained in raised.value.networks} == {job for job in jobs if "boom" in job.tasks}
    for job, trained in found.items():
        assert_same(trained, train(problem, job))


def test_mixed_precision_of_several_seeds_is_close_to_training_alone(stacks: list[set[int]]) -> None:
    def inputs(rows: int, generator: torch.Generator) -> torch.Tensor:
        return vectors(rows, generator, torch.float32)

    problem = make_problem(MLP(6, (12, 8)), inputs, epochs=3, amp="bf16")
    jobs = some_jobs(problem)
    found = trained_together(problem, jobs)
    for job in jobs[::3]:
        np.testing.assert_allclose(found[job].curve, train(problem, job).curve, rtol=0.05)
    assert stacks == [set(SEEDS)]


def test_many_networks_of_a_seed_are_not_trained_with_few_of_another(stacks: list[set[int]]) -> None:
    problem = make_problem(MLP_WITH_DROPOUT, epochs=2)
    jobs = [*some_jobs(problem, (0,), every=1), *some_jobs(problem, (1, 2), every=5)]
    check_some(problem, jobs)
    assert stacks == [{0}, {1, 2}]


def test_many_networks_are_trained_seed_by_seed_on_a_cpu(
    stacks: list[set[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = make_problem(MLP_WITH_DROPOUT, epochs=2)
    jobs = some_jobs(problem)
    network = build_network(problem, problem.names, 0)
    each = bytes_per_network(problem, network, torch.device("cpu"), several_seeds=True)
    assert each > bytes_per_network(problem, network, torch.device("cpu"))
    monkeypatch.setattr("tagalong.learn.memory.CPU_BYTES_LIMIT_OF_SEEDS", (len(jobs) - 1) * each)
    trained_together(problem, jobs)
    assert stacks == [set(SEEDS[:2]), {SEEDS[2]}]


@given(
    sizes=st.lists(st.integers(1, 40), min_size=1, max_size=6),
    size=st.integers(1, 30),
)
def test_chunks_contain_every_job_once_and_not_too_many(sizes: list[int], size: int) -> None:
    groups = [[Job(("a",), seed, lr=place + 1) for place in range(number)] for seed, number in enumerate(sizes)]
    chunks = list(_split_evenly(groups, size))
    assert Counter(itertools.chain(*chunks)) == Counter(itertools.chain(*groups))
    assert all(1 <= len(chunk) <= size for chunk in chunks)
    if len(sizes) <= size and len(set(sizes)) == 1:
        assert all(len(set(Counter(job.seed for job in chunk).values())) == 1 for chunk in chunks)


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw"])
@pytest.mark.parametrize("schedule", ["constant", "cosine"])
def test_learning_rates_of_their_own(optimizer: Any, schedule: str, stacks: list[set[int]]) -> None:
    problem = make_problem(MLP_WITH_DROPOUT, optimizer=optimizer, schedule=schedule, weight_decay=0.1)
    plain = some_jobs(problem, SEEDS[:2])
    jobs = [replace(job, lr=rate) for job, rate in zip(plain, [None, 0.001, 0.02, 0.05] * len(plain), strict=False)]
    found = trained_together(problem, jobs)
    assert stacks == [set(SEEDS[:2])]
    for job in jobs:
        assert_same(found[job], train(problem, job))
    with_rate = replace(problem, recipe=replace(problem.recipe, lr=0.001))
    alone = train(with_rate, plain[1])
    np.testing.assert_array_equal(train(problem, jobs[1]).curve, alone.curve)


def test_a_network_stops_at_its_own_lowest_rate() -> None:
    problem = make_problem(MLP_WITH_DROPOUT, schedule="step", period=1, lowest_lr=0.004, patience=None, epochs=6)
    jobs = [Job(("size",), lr=rate) for rate in (None, 0.01, 0.02)]
    found = trained_together(problem, jobs)
    for job in jobs:
        assert_same(found[job], train(problem, job))
    assert len({len(trained.curve) for trained in found.values()}) == 3


def test_invalid_rates_are_rejected() -> None:
    problem = make_problem(MLP_WITH_DROPOUT)
    with pytest.raises(ValueError, match=r"`job.lr` must be a positive number or None, found -1"):
        train_many(problem, [Job(("size",), lr=-1)])


def soft_targets(problem: Any, seed: int) -> dict[str, torch.Tensor]:
    """Probabilities and values, as another network would predict them, some of them missing."""
    generator = torch.Generator().manual_seed(seed)
    rows = len(problem.train)
    made = {
        "size": torch.randn(rows, generator=generator, dtype=torch.float64),
        "ill": torch.rand(rows, generator=generator, dtype=torch.float64),
        "sort": torch.randn(rows, 3, generator=generator, dtype=torch.float64).softmax(1),
        "price": torch.randn(rows, generator=generator, dtype=torch.float64),
    }
    for target in made.values():
        target[::7] = torch.nan
    return made


@pytest.mark.parametrize("seeds", [SEEDS[:1], SEEDS])
def test_targets_of_their_own(seeds: tuple[int, ...], stacks: list[set[int]]) -> None:
    problem = make_problem(MLP_WITH_DROPOUT, epochs=5)
    jobs = some_jobs(problem, seeds, every=2)
    targets = {
        job: {name: target for name, target in soft_targets(problem, place % 3).items() if name in job.tasks}
        for place, job in enumerate(jobs)
        if place % 4
    }
    found = trained_together(problem, jobs, targets=targets)
    assert stacks == [set(seeds)]
    for job in jobs[:8]:
        assert_same(found[job], train(problem, job, targets=targets.get(job)))
    taught = next(job for job in jobs if job in targets)
    assert (found[taught].curve[0] != train(problem, taught).curve[0]).all()


def test_class_probabilities_of_known_labels_equal_the_labels() -> None:
    problem = make_problem(MLP_WITH_DROPOUT, epochs=3)
    weighted = replace(problem.task("sort"), class_weights=(1, 2, 0.5))
    problem = replace(problem, tasks=tuple(weighted if task.name == "sort" else task for task in problem.tasks))
    labels = problem.train.targets["sort"]
    probabilities = torch.eye(3, dtype=torch.float64)[labels.nan_to_num(0).long()]
    probabilities[labels.isnan()] = torch.nan
    job = Job(("size", "sort"))
    assert_same(train(problem, job, targets={"sort": probabilities}), train(problem, job))


def test_a_checkpoint_is_not_used_for_other_targets(tmp_path: Any) -> None:
    problem = make_problem(MLP_WITH_DROPOUT, epochs=3)
    job, path = Job(("size",)), tmp_path / "partial.pt"

    def stop(epoch: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(problem, job, checkpoint=path, progress=stop, targets={"size": soft_targets(problem, 0)["size"]})
    with pytest.raises(ValueError, match="must come from the same training job"):
        train(problem, job, checkpoint=path)
    with pytest.raises(ValueError, match="must come from the same training job"):
        train(problem, replace(job, lr=0.1), checkpoint=path)
    own = {"size": soft_targets(problem, 0)["size"]}
    assert_same(train(problem, job, checkpoint=path, targets=own), train(problem, job, targets=own))


@pytest.mark.parametrize(
    ("targets", "message"),
    [
        ({"color": torch.zeros(70)}, r"`targets` must be for tasks of the network, which are 'ill', 'sort'.*'color'"),
        ({"ill": torch.zeros(69)}, r"`targets\['ill'\]` must have the shape \[70\], found \[69\]"),
        ({"ill": torch.zeros(70).long()}, r"must be a floating-point tensor, found torch.int64"),
        ({"ill": torch.full((70,), 1.5)}, r"must be between 0 and 1, or NaN, found 1.5"),
        ({"sort": torch.full((70,), 3.0)}, r"must be labels from 0 to 2, or NaN, found 3.0"),
        ({"sort": torch.zeros(70, 2)}, r"must have the shape \[70\] or \[70, 3\], found \[70, 2\]"),
        ({"sort": torch.full((70, 3), -1.0)}, r"must be between 0 and 1, or NaN, found -1.0"),
    ],
)
def test_invalid_targets_are_rejected_before_any_training(targets: Any, message: str) -> None:
    problem, job = make_problem(MLP_WITH_DROPOUT), Job(("ill", "sort"))
    with pytest.raises(ValueError, match=message):
        train_many(problem, [job], targets={job: targets})
    with pytest.raises(ValueError, match=message):
        train(problem, job, targets=targets)


def test_targets_of_unknown_jobs_are_rejected() -> None:
    problem = make_problem(MLP_WITH_DROPOUT)
    with pytest.raises(ValueError, match="`targets` must be for the given jobs"):
        train_many(problem, [Job(("ill",))], targets={Job(("size",)): {}})


def test_own_targets_count_as_memory() -> None:
    problem = make_problem(MLP_WITH_DROPOUT)
    network = build_network(problem, problem.names, 0)
    cpu = torch.device("cpu")
    more = bytes_per_network(problem, network, cpu, own_targets=1000) - bytes_per_network(problem, network, cpu)
    assert more >= 1000


@pytest.mark.cuda
@pytest.mark.parametrize(("encoder", "inputs"), [(MLP_WITH_DROPOUT, vectors), (CNN_WITH_BATCHNORM, images)])
def test_seeds_rates_and_targets_on_a_gpu_equal_those_alone_there(encoder: Any, inputs: Any) -> None:
    problem = make_problem(encoder, inputs, lr=0.02)
    jobs = [*some_jobs(problem), *some_jobs(problem, lr=0.005)]
    targets = {jobs[1]: {"size": soft_targets(problem, 0)["size"]}} if "size" in jobs[1].tasks else {}
    found = trained_together(problem, jobs, device="cuda", targets=targets)
    for job in jobs[::3]:
        assert_same(found[job], train(problem, job, device="cuda", targets=targets.get(job)))


def test_recipes_ignore_rates_of_none() -> None:
    recipe = Recipe(lr=0.3)
    assert Job(("a",)).adapt(recipe) is recipe
    assert Job(("a",), lr=0.1).adapt(recipe) == Recipe(lr=0.1)
