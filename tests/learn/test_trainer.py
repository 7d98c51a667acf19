"""The trainer equals the plain loop, follows the protocol of the paper, and has no side effects."""

import copy
import pickle
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from learn_oracle import slow_loss, slow_train
from learn_small import TASKS, encoder, same, small_problem
from torch import nn

from tagalong.learn import (
    Diverged,
    Job,
    Network,
    Problem,
    Recipe,
    Split,
    Task,
    Training,
    build_network,
    derive_seed,
    train,
)
from tagalong.learn.randomness import batches


@pytest.mark.parametrize(
    ("recipe", "make"),
    [
        (Recipe("sgd", lr=0.1, batch_size=8, epochs=4, schedule="step", period=2), encoder()),
        (Recipe("adam", lr=0.02, batch_size=8, epochs=4, schedule="cosine"), encoder(dropout=0.4)),
        (Recipe("adamw", lr=0.02, batch_size=8, epochs=4), encoder(dropout=0.2, norm=True)),
        (Recipe("sgd", lr=0.5, batch_size=8, epochs=30, patience=2), encoder(norm=True)),
        (Recipe("sgd", lr=0.1, batch_size=8, epochs=9, patience=None), encoder()),
        (Recipe("sgd", lr=0.1, batch_size=8, epochs=9, patience=None, keep="last"), encoder(norm=True)),
    ],
    ids=["sgd", "adam-dropout", "adamw-dropout-norm", "stops-early", "all-epochs", "last-weights"],
)
@pytest.mark.parametrize("tasks", [TASKS, ("weight", "ill"), ("age",)])
def test_trainer_equals_the_plain_loop(recipe: Recipe, make: Any, tasks: tuple[str, ...]) -> None:
    problem = small_problem(recipe, make=make, missing=0.5)
    trained, slow = train(problem, Job(tasks, seed=3)), slow_train(problem, tasks, 3)
    np.testing.assert_allclose(trained.curve, slow["curve"], rtol=1e-9)
    assert (trained.best_epoch, trained.steps) == (slow["best_epoch"], slow["steps"])
    best, heads = slow["best"]
    expected = {f"encoder.{name}": value for name, value in best.state_dict().items()}
    for number, head in enumerate(heads.values()):
        expected |= {f"heads.{number}.{name}": value for name, value in head.state_dict().items()}
    assert trained.state is not None
    assert trained.state.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(trained.state[name], value, rtol=1e-8, atol=1e-10)


def test_training_epoch_by_epoch_equals_train() -> None:
    problem = small_problem(make=encoder(dropout=0.3, norm=True))
    with torch.random.fork_rng(devices=[]):
        training = Training(problem, Job(TASKS, seed=2))
        while not training.finished:
            training.run_epoch()
        found = training.result()
    expected = train(problem, Job(TASKS, seed=2))
    assert found.state is not None
    assert expected.state is not None
    assert same(dict(found.state), dict(expected.state))
    np.testing.assert_array_equal(found.curve, expected.curve)
    with pytest.raises(ValueError, match="found 'color'"):
        Training(problem, Job(("color",)))


def test_a_batch_may_lack_all_labels_of_a_task() -> None:
    problem = small_problem(missing=0.9)
    kept = [torch.isfinite(problem.train.targets["age"][rows]).any() for rows in batches(0, 0, 41, 8)]
    assert not all(kept)
    np.testing.assert_allclose(train(problem, Job(TASKS)).curve, slow_train(problem, TASKS, 0)["curve"], rtol=1e-9)


def test_the_best_weights_are_kept_and_scored() -> None:
    problem = small_problem(Recipe("sgd", lr=0.5, batch_size=8, epochs=30, patience=3))
    trained = train(problem, Job(TASKS))
    totals = trained.curve @ [1, 0.5, 1]
    assert trained.best_epoch == totals.argmin()
    assert len(trained.curve) == trained.best_epoch + 1 + 3
    found = [trained.val[task].loss for task in TASKS]
    np.testing.assert_allclose(found, trained.curve[trained.best_epoch], rtol=1e-9)
    rows = trained.test["ill"].rows
    assert rows is not None
    np.testing.assert_array_equal(np.isnan(rows), problem.test.targets["ill"].isnan().numpy())


@pytest.mark.parametrize("make", [encoder(), encoder(dropout=0.3, norm=True)], ids=["plain", "dropout-norm"])
@pytest.mark.parametrize("settings", [{}, {"estimator": "cosine"}, {"update": "sgd", "per_lr": True}])
@pytest.mark.parametrize("held_out", [False, True])
def test_a_meter_changes_nothing(make: Any, settings: dict[str, Any], held_out: bool) -> None:
    problem = small_problem(make=make, missing=0.8)
    alone = train(problem, Job(TASKS))
    measured = train(problem, Job(TASKS), meter={"every": 2, "held_out": held_out, **settings})
    np.testing.assert_array_equal(alone.curve, measured.curve)
    assert same(dict(alone.state or {}), dict(measured.state or {}))
    affinity = measured.affinity
    assert affinity is not None
    assert affinity.tasks == TASKS
    assert affinity.settings["held_out"] is held_out
    assert affinity.settings["estimator"] == settings.get("estimator", "lookahead")
    assert np.isfinite(affinity.mean).all()


def test_tasks_without_labels_in_a_batch_are_neither_source_nor_target() -> None:
    problem = small_problem(missing=0.8)
    there = np.zeros((0, 3))
    for epoch in range(4):
        for rows in batches(0, epoch, 41, 8):
            labels = [torch.isfinite(problem.train.targets[task][rows]).any().item() for task in TASKS]
            there = np.vstack([there, labels])
    affinity = train(problem, Job(TASKS), meter={"every": 1}).affinity
    assert affinity is not None
    np.testing.assert_array_equal(affinity.count, there.T @ there)
    assert not there.all()


def flat(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """A loss of exactly 0 that pulls all the same."""
    return (outputs - outputs.detach()).squeeze(1)


@pytest.mark.parametrize("held_out", [False, True])
@pytest.mark.parametrize("missing", [0.0, 0.8])
def test_a_loss_of_zero_is_not_taken_for_missing_labels(missing: float, held_out: bool) -> None:
    problem = small_problem(Recipe(lr=0.02, batch_size=8, epochs=1), missing=missing)
    problem = replace(problem, tasks=(Task("age", "custom", loss=flat), *problem.tasks[1:]))
    sources, targets = [], []
    for step, rows in enumerate(batches(0, 0, 41, 8)):
        draw = torch.Generator().manual_seed(derive_seed(0, "held out", step))
        looked_at = (problem.val, torch.randperm(24, generator=draw)[:8]) if held_out else (problem.train, rows)
        for found, (split, some) in ((sources, (problem.train, rows)), (targets, looked_at)):
            found.append([torch.isfinite(split.targets[task][some]).any().item() for task in TASKS])
    affinity = train(problem, Job(TASKS), meter={"every": 1, "estimator": "cosine", "held_out": held_out}).affinity
    assert affinity is not None
    np.testing.assert_array_equal(affinity.count, np.array(sources, int).T @ np.array(targets, int))
    assert affinity.count[0].all()


def losses_by_hand(problem: Problem, network: Network, split: Split, rows: torch.Tensor) -> dict[str, torch.Tensor]:
    outputs = network.at_step(0)(split.inputs[rows])
    return {task: slow_loss(problem.task(task), outputs[task], split.targets[task][rows]) for task in TASKS}


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
    assert affinity is not None
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


def test_global_random_numbers_are_not_changed() -> None:
    def states() -> list[Any]:
        return [torch.get_rng_state().tolist(), random.getstate(), np.random.get_state()[1].tolist()]  # noqa: NPY002

    before = states()
    train(small_problem(make=encoder(dropout=0.3)), Job(TASKS, rule="pcgrad"), meter={"every": 3, "held_out": True})
    assert states() == before


def test_global_random_numbers_do_not_affect_training() -> None:
    def noisy(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return (outputs[:, 0] - targets + 0.1 * torch.randn_like(targets)).square()

    problem = small_problem(make=nn.Linear(4, 5))  # without dropout, masks seed nothing
    tasks = tuple(replace(task, kind="custom", loss=noisy, class_weights=None) for task in problem.tasks)
    curves = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        curves.append(train(replace(problem, tasks=tasks), Job(TASKS)).curve)
    np.testing.assert_array_equal(*curves)


def test_divergence_raises_an_error_with_the_cost(tmp_path: Path) -> None:
    problem = small_problem(Recipe("sgd", lr=1e200, batch_size=8, epochs=30, patience=2))
    with pytest.raises(Diverged, match=r"age, ill with seed 7 diverged.*lower `recipe.lr`") as raised:
        train(problem, Job(("age", "ill"), seed=7), checkpoint=tmp_path / "a.pt")
    assert not list(tmp_path.iterdir()), "there is nothing to go on from"
    (lost,) = pickle.loads(pickle.dumps(raised.value)).networks  # as a worker would send it
    assert lost.diverged
    assert lost.state is None
    assert (len(lost.curve), lost.steps) == (2, 2 * (len(problem.train) // 8)), "patience ends it"
    assert all(np.isnan(score.loss) for score in (*lost.val.values(), *lost.test.values()))


def test_mixed_precision_trains_in_bf16_on_the_cpu() -> None:
    problem = small_problem(dtype=torch.float32)
    plain = train(problem, Job(TASKS))
    mixed = train(replace(problem, recipe=replace(problem.recipe, amp="bf16")), Job(TASKS), meter={"every": 5})
    assert not np.array_equal(plain.curve, mixed.curve)
    np.testing.assert_allclose(plain.curve, mixed.curve, rtol=0.1)
    assert all(value.dtype == torch.float32 for value in (mixed.state or {}).values())


def test_invalid_jobs_raise_an_error_at_once() -> None:
    problem = small_problem(Recipe(amp="fp16"))
    with pytest.raises(ValueError, match="several problems") as error:
        train(problem, Job(("age", "height"), width=0))
    assert "`job.tasks` must be a subset of 'age', 'weight', 'ill', found 'height'" in str(error.value)
    assert "`job.width` must be a positive number, found 0" in str(error.value)
    assert "`recipe.amp` must be 'bf16' or None on a CPU, found 'fp16'" in str(error.value)
    with pytest.raises(ValueError, match="must be distinct and in the same order as in the problem"):
        train(small_problem(), Job(("ill", "age")))
    with pytest.raises(ValueError, match="found none"):
        train(small_problem(), Job(()))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_missing_gpu_raises_an_error() -> None:
    with pytest.raises(ValueError, match="CUDA is not available; use `device='cpu'`"):
        train(small_problem(), Job(TASKS), device="cuda")


def test_no_batch_has_a_single_row() -> None:
    assert [len(rows) for rows in batches(0, 0, 41, 8)] == [8, 8, 8, 8, 9]
    train(small_problem(make=encoder(norm=True)), Job(TASKS))


def test_a_task_without_validation_labels_does_not_decide_when_to_stop() -> None:
    problem = small_problem()
    problem.val.targets["weight"].fill_(torch.nan)  # type: ignore[index]
    trained = train(problem, Job(TASKS))
    assert (trained.curve[:, 1] == 0).all()
    assert np.isnan(trained.val["weight"].loss)
    assert np.isfinite(trained.val["age"].loss)


class Words(nn.Module):
    """Integer inputs, an embedding, a Transformer, a mean over words."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(10, 8)
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        return self.layers(self.embedding(words)).mean(1)


def test_a_transformer_over_words_learns() -> None:
    words = torch.randint(0, 10, (60, 5), generator=torch.Generator().manual_seed(0))
    targets = {"many": (words > 5).float().sum(1), "first": (words[:, 0] > 4).float()}
    split = Split(words, targets)
    recipe = Recipe("adam", lr=0.01, batch_size=16, epochs=6)
    problem = Problem("words", (Task("many", "regression"), Task("first")), split, split, split, Words, recipe=recipe)
    trained = train(problem, Job(("many", "first")), meter={"every": 5})
    assert trained.curve[-1].sum() < 0.8 * trained.curve[0].sum()
    np.testing.assert_array_equal(trained.curve, train(problem, Job(("many", "first"))).curve)


def test_a_dense_task_and_a_single_label_are_learned_together() -> None:
    """Where is it bright, pixel by pixel (with unknown pixels), and is the image bright at all?"""
    draw = torch.Generator().manual_seed(0)
    images = torch.rand(40, 1, 6, 6, generator=draw)
    where = (images[:, 0] > 0.5).float().masked_fill(torch.rand(40, 6, 6, generator=draw) < 0.2, torch.nan)
    tasks = (
        Task(
            "where",
            "custom",
            loss=lambda out, goal: nn.functional.binary_cross_entropy_with_logits(out[:, 0], goal, reduction="none"),
            head=lambda channels: nn.Conv2d(channels, 1, 1),
        ),
        Task(
            "bright", head=lambda channels: nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 1))
        ),
    )
    split = Split(images, {"where": where, "bright": (images.mean((1, 2, 3)) > 0.5).float()})
    recipe = Recipe("adam", lr=0.05, batch_size=8, epochs=8)

    def make() -> nn.Module:
        return nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU())

    problem = Problem("pixels", tasks, split, split, split, make, recipe=recipe)
    trained = train(problem, Job(("where", "bright")))
    assert trained.curve[-1, 0] < 0.6 * trained.curve[0, 0]
    assert trained.val["where"].error == trained.val["where"].loss
