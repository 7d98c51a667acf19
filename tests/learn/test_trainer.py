"""The trainer follows the protocol of the paper and has no side effects."""

import copy
import pickle
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from learn_small import TASKS, encoder, small_problem

from tagalong.learn import (
    Diverged,
    Job,
    Network,
    Problem,
    Recipe,
    Split,
    Task,
    build_network,
    derive_seed,
    mean_loss,
    train,
    train_many,
)
from tagalong.learn.randomness import batches


def losses_by_hand(problem: Problem, network: Network, split: Split, rows: torch.Tensor) -> dict[str, torch.Tensor]:
    outputs = network.at_step(0)(split.inputs[rows])
    return {task: mean_loss(problem.task(task), outputs[task], split.targets[task][rows]) for task in TASKS}


def stepped(network: Network, loss: torch.Tensor, lr: float) -> Network:
    """The network after a step of its encoder on one loss."""
    moved = copy.deepcopy(network)
    gradients = torch.autograd.grad(loss, list(network.encoder.parameters()), retain_graph=True)
    for parameter, gradient in zip(moved.encoder.parameters(), gradients, strict=True):
        parameter.data -= lr * gradient
    return moved


@pytest.mark.parametrize("held_out", [False, True])
def test_affinity_equals_equation_1(held_out: bool) -> None:
    """In the first step, with SGD: one minus the ratio of losses after and before a step on the source alone."""
    recipe = Recipe("sgd", lr=0.1, weight_decay=0, batch_size=8, epochs=1)
    problem = small_problem(recipe, make=encoder(dropout=0.3, norm=True), missing=0.0)
    affinity = train(problem, Job(TASKS), meter={"every": 1000, "held_out": held_out}).affinity
    first = batches(0, 0, 41, 8)[0]
    draw = torch.Generator().manual_seed(derive_seed(0, "held out", 0))
    looked_at = (problem.val, torch.randperm(24, generator=draw)[:8]) if held_out else (problem.train, first)
    network = build_network(problem, TASKS, 0)
    sources = losses_by_hand(problem, network, problem.train, first)
    before = losses_by_hand(problem, copy.deepcopy(network).train(not held_out), *looked_at)
    for i, source in enumerate(TASKS):
        moved = stepped(network, sources[source], 0.1 * problem.task(source).weight).train(not held_out)
        after = losses_by_hand(problem, moved, *looked_at)
        expected = [1 - after[target].item() / before[target].item() for target in TASKS]
        np.testing.assert_allclose(affinity.mean[i], expected, rtol=1e-6, atol=1e-12)


@pytest.mark.parametrize("keep", ["best", "last"])
def test_divergence_raises_an_error_with_the_cost(tmp_path: Path, keep: str) -> None:
    settings = {"epochs": 30, "patience": 2} if keep == "best" else {"epochs": 2, "patience": None}
    problem = small_problem(Recipe("sgd", lr=1e200, batch_size=8, keep=keep, **settings))
    with pytest.raises(Diverged):
        list(train_many(problem, [Job(("age",)), Job(("age", "ill"))]))
    with pytest.raises(Diverged, match=r"age, ill with seed 7.*`recipe.lr`") as raised:
        train(problem, Job(("age", "ill"), seed=7), checkpoint=tmp_path / "a.pt")
    assert not list(tmp_path.iterdir()), "there is nothing to go on from"
    (lost,) = pickle.loads(pickle.dumps(raised.value)).networks  # as a worker would send it
    assert lost.diverged
    assert lost.state is None
    assert (len(lost.curve), lost.steps) == (2, 2 * (len(problem.train) // 8)), "patience or epochs end it"
    assert all(np.isnan(score.loss) for score in (*lost.val.values(), *lost.test.values()))


def test_a_task_without_validation_labels_does_not_decide_when_to_stop() -> None:
    problem = small_problem()
    problem.val.targets["weight"].fill_(torch.nan)  # type: ignore[index]
    trained = train(problem, Job(TASKS))
    assert (trained.curve[:, 1] == 0).all()
    assert np.isnan(trained.val["weight"].loss)
    assert np.isfinite(trained.val["age"].loss)


def flat(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """A loss of exactly 0 that pulls all the same."""
    return (outputs - outputs.detach()).squeeze(1)


@pytest.mark.parametrize("held_out", [False, True])
@pytest.mark.parametrize("missing", [0.0, 0.8])
def test_tasks_are_measured_where_they_have_labels_even_if_their_loss_is_zero(missing: float, held_out: bool) -> None:
    problem = small_problem(Recipe(lr=0.02, batch_size=8, epochs=1), missing=missing)
    problem = replace(problem, tasks=(Task("age", "custom", loss=flat), *problem.tasks[1:]))
    count = np.zeros((3, 3))  # [source, target]
    for step, rows in enumerate(batches(0, 0, 41, 8)):
        draw = torch.Generator().manual_seed(derive_seed(0, "held out", step))
        looked_at = (problem.val, torch.randperm(24, generator=draw)[:8]) if held_out else (problem.train, rows)
        count += np.outer(labelled(problem.train, rows), labelled(*looked_at))
    affinity = train(problem, Job(TASKS), meter={"every": 1, "estimator": "cosine", "held_out": held_out}).affinity
    np.testing.assert_array_equal(affinity.count, count)
    assert affinity.count[0].all()


def labelled(split: Split, rows: torch.Tensor) -> list[bool]:
    return [bool(split.targets[task][rows].isfinite().any()) for task in TASKS]


@pytest.mark.parametrize(
    ("job", "words"),
    [
        (Job(("age", "height")), "`job.tasks`"),
        (Job(("age",), width=0), "`job.width`"),
        (Job(("age",)), "`recipe.amp`"),
        (Job(("ill", "age")), "`job.tasks`"),
        (Job(()), "`job.tasks`"),
    ],
)
def test_a_job_that_cannot_run_is_refused(job: Job, words: str) -> None:
    problem = small_problem(Recipe(amp="fp16"))
    with pytest.raises(ValueError, match=words):
        train(problem, job)
    with pytest.raises(ValueError, match=words):  # before any training
        train_many(problem, [job])


@pytest.mark.parametrize(("limit", "threads"), [(10**6, 1), (10**3, 2)])
def test_small_networks_are_trained_by_one_thread(
    limit: int, threads: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("tagalong.learn.engine.ONE_THREAD_MULTIPLICATIONS", limit)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with caplog.at_level("INFO"):
            train(small_problem(), Job(TASKS))
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert f"with {threads} of 2 threads" in caplog.text


def test_a_rate_below_the_lowest_ends_training_after_the_first_epoch() -> None:
    problem = small_problem(Recipe(lr=0.01, lowest_lr=0.1, batch_size=8))
    trained = [train(problem, Job(TASKS)), *train_many(problem, [Job(TASKS[:1]), Job(TASKS[1:])])]
    assert [len(network.curve) for network in trained] == [1, 1, 1]


def test_threads_train_the_same_networks_as_one_after_the_other() -> None:
    """Torch's random number generators are the process's, and draw weights, dropout masks and rows."""
    problem = small_problem(Recipe(epochs=3, batch_size=8), make=encoder(dropout=0.3))
    jobs = [Job((task,), seed) for task in TASKS for seed in range(4)]
    alone = [train(problem, job).val for job in jobs]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as pool:
            together = [trained.val for trained in pool.map(lambda job: train(problem, job), jobs)]
    finally:
        sys.setswitchinterval(interval)
    assert [str(scores) for scores in together] == [str(scores) for scores in alone]
