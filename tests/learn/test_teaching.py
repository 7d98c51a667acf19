"""Networks that learn from the answers of others, compared with slow loops in float64."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from batched_problems import MIXED, MLP_WITH_DROPOUT, assert_same, make_problem, words
from learn_small import stream
from torch import Tensor, nn

from tagalong.errors import InvalidInput
from tagalong.group import Taught
from tagalong.learn import (
    Job,
    Network,
    Problem,
    Recipe,
    Split,
    Task,
    Trained,
    build_network,
    mean_loss,
    mix_targets,
    prepare_students,
    teach,
    teacher_answers,
    train,
    train_many,
)

MIX = 0.3


@cache
def problem(**settings: float) -> Problem:
    return make_problem(MLP_WITH_DROPOUT, **settings)


@cache
def teachers() -> tuple[Trained, ...]:
    """Three networks, of which the last one trains only two tasks."""
    jobs = [Job(problem().names, 1), Job(problem().names, 2), Job(("size", "ill"), 3)]
    return tuple(train(problem(), job) for job in jobs)


class Lesson(NamedTuple):
    """What a student learns from."""

    answers: dict[str, Tensor]
    problem: Problem  # with additional rows
    job: Job
    targets: dict[str, Tensor]


def lesson_by(networks: Sequence[Network | Trained], made: Problem, **settings: Any) -> Lesson:
    """Prepares a student of all tasks."""
    keys = tuple(f"network {number}" for number in range(len(networks)))
    taught = Taught(keys, **settings)
    answers = teacher_answers(made, taught, dict(zip(keys, networks, strict=True)))
    job = Job(made.names, taught=taught)
    extended, targets = prepare_students(made, [job], {taught.lesson: answers})
    return Lesson(answers, extended, job, targets[job])


# The loss ------------------------------------------------------------------------------------------------------------


def slow_loss(task: Task, output: Tensor, label: float | None, answer: float | list[float], mix: float) -> Tensor:
    """The mixed loss of one row and label, as the issue defines it. `answer` has no class weights in it."""
    if task.kind == "regression":
        of_answer = (output[0] - answer) ** 2
        of_label = None if label is None else (output[0] - label) ** 2
    else:
        logits = torch.stack([torch.zeros_like(output[0]), output[0]]) if task.kind == "binary" else output
        losses = -torch.log_softmax(logits, 0)
        weights = task.class_weights or (1.0,) * len(losses)
        probabilities = [1 - answer, answer] if isinstance(answer, float) else answer
        of_answer = sum(p * w * loss for p, w, loss in zip(probabilities, weights, losses, strict=True))
        of_label = None if label is None else weights[int(label)] * losses[int(label)]
    return of_answer if of_label is None else (1 - mix) * of_label + mix * of_answer


@pytest.mark.parametrize("mix", [0.0, MIX, 1.0])
@pytest.mark.parametrize("fill", [True, False])
@pytest.mark.parametrize(
    "task",
    [
        Task("x", "regression"),
        Task("x", "binary"),
        Task("x", "binary", class_weights=(0.5, 3)),
        Task("x", "multiclass", classes=3),
        Task("x", "multiclass", classes=3, class_weights=(1, 2, 0.5)),
    ],
    ids=["squares", "binary", "weighted binary", "classes", "weighted classes"],
)
def test_mixed_targets_give_the_gradients_of_mixed_losses(task: Task, fill: bool, mix: float) -> None:
    draw = torch.Generator().manual_seed(0)
    outputs = torch.randn(12, task.head_size, generator=draw, dtype=torch.float64, requires_grad=True)
    labels = torch.randint(task.classes or 2, (12,), generator=draw).double()
    labels[[2, 5, 6]] = torch.nan
    logits = torch.randn(12, task.head_size, generator=draw, dtype=torch.float64)
    answers = {
        "regression": logits[:, 0],
        "binary": logits[:, 0].sigmoid(),
        "multiclass": logits.softmax(1),
    }[task.kind]
    losses = [
        slow_loss(task, outputs[row], None if math.isnan(labels[row]) else float(labels[row]), answer, mix)
        for row, answer in enumerate(answers.tolist())
        if fill or not math.isnan(labels[row])
    ]
    expected = torch.stack(losses).mean()
    found = mean_loss(task, outputs, mix_targets(labels, answers, mix, fill))
    (wanted,) = torch.autograd.grad(expected, outputs)
    torch.testing.assert_close(torch.autograd.grad(found, outputs)[0], wanted, rtol=1e-12, atol=1e-15)
    if task.kind != "regression":  # whose loss differs by a constant
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("kind", ["binary", "multiclass"])
def test_the_best_answer_of_a_student_with_class_weights_is_its_teachers(kind: str) -> None:
    """Class weights shift the teacher's answers; the student's loss must not shift them once more."""
    weights = (1, 5) if kind == "binary" else (1.0, 4.0, 0.5)
    task = Task("x", kind, classes=None if kind == "binary" else 3, class_weights=weights)  # type: ignore[arg-type]
    inputs, labels = torch.randn(8, 2, dtype=torch.float64), (torch.arange(8) % 2).double()
    split = Split(inputs, {"x": labels})
    made = Problem("p", (task,), split, split, split, lambda: nn.Linear(2, 4))
    network = build_network(made, ["x"], 0)
    targets = lesson_by([network], made).targets
    outputs = network(inputs)["x"].detach().requires_grad_()
    mean_loss(task, outputs, targets["x"]).backward()
    assert outputs.grad.abs().max() < 1e-12


# Teachers ------------------------------------------------------------------------------------------------------------


def test_each_task_is_taught_by_the_average_of_the_networks_that_train_it() -> None:
    found, networks = lesson_by(teachers(), problem()).answers, [rebuilt(one).eval() for one in teachers()]
    assert set(found) == {"size", "ill", "sort"}  # `price` has a loss of its own
    for row in (0, 17, 69):
        inputs = problem().train.batch(torch.tensor([row]))[0]
        outputs = [network(inputs) for network in networks]
        assert found["size"][row].item() == pytest.approx(np.mean([float(own["size"].detach()) for own in outputs]))
        ill = np.mean([float(own["ill"].detach().sigmoid()) for own in outputs])
        assert found["ill"][row].item() == pytest.approx(ill / 3 / (ill / 3 + 1 - ill))  # class weights (1, 3)
        sort = sum(own["sort"].detach().softmax(1)[0] for own in outputs[:2]) / 2
        torch.testing.assert_close(found["sort"][row], sort)


def rebuilt(trained: Trained) -> Network:
    network = build_network(problem(), trained.job.tasks, trained.job.seed)
    network.load_state_dict(trained.state)
    return network


def test_teachers_answer_in_evaluation_mode_and_stay_as_they_were() -> None:
    network = rebuilt(teachers()[0]).train()
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    random_state = torch.get_rng_state()
    answers = lesson_by([network], problem()).answers
    assert torch.equal(random_state, torch.get_rng_state())
    assert network.training
    assert all(torch.equal(before[name], tensor) for name, tensor in network.state_dict().items())
    again = lesson_by([teachers()[0]], problem()).answers
    assert all(torch.equal(answers[name], again[name]) for name in answers)


def test_the_order_of_teachers_and_the_scale_of_their_weights_do_not_matter() -> None:
    assert Taught(("b", "a"), (1, 3)) == Taught(("a", "b"), (6, 2))
    assert Taught(("b", "a"), (2, 2)) == Taught(("a", "b"))


# Students ------------------------------------------------------------------------------------------------------------


def test_a_student_of_nothing_but_labels_is_the_plain_network() -> None:
    plain = train(problem(), Job(problem().names, 4))
    student = teach(problem(), teachers(), seed=4, mix=0, fill=False)
    assert_same(replace(student, job=plain.job), plain)


@pytest.mark.cuda
def test_students_on_a_gpu_are_the_same_alone_and_together() -> None:
    made = make_problem(MLP_WITH_DROPOUT, tasks=MIXED[:3])  # steps are captured as CUDA graphs
    keyed = {"teacher": train(made, Job(made.names, 9), device="cuda")}
    ways = [Taught(("teacher",), mix=mix, mixtures=1) for mix in (0.5, 1)]
    answers = {ways[0].lesson: teacher_answers(made, ways[0], keyed, "cuda")}
    jobs = [Job(made.names, seed, taught=taught) for seed in (0, 1) for taught in ways]
    extended, targets = prepare_students(made, jobs, answers)
    for trained in train_many(extended, jobs, device="cuda", targets=targets):
        assert_same(trained, train(extended, trained.job, device="cuda", targets=targets[trained.job]))


def test_a_loss_that_declares_soft_targets_is_computed_with_mixed_ones() -> None:
    price = replace(MIXED[3], average="outputs", soft_targets=True)
    made = replace(problem(), tasks=(*MIXED[:3], price))
    given = lesson_by(teachers(), made, mix=MIX)
    labels = problem().train.batch(torch.arange(len(problem().train)))[1]["price"]
    mixed = (1 - MIX) * labels + MIX * given.answers["price"]
    expected = torch.where(labels.isfinite(), mixed, given.answers["price"])
    torch.testing.assert_close(given.targets["price"], expected)
    with pytest.raises(InvalidInput, match="`average`"):
        replace(price, average=None)


def test_labels_of_dense_targets_are_mixed_one_by_one() -> None:
    task = Task("depth", "regression", outputs=3)
    draw = torch.Generator().manual_seed(0)
    inputs = torch.randn(40, 2, generator=draw)
    target = torch.randn(40, 3, generator=draw)
    target[4, 1] = target[9] = torch.nan
    split = Split(inputs, {"depth": target})
    made = Problem("p", (task,), split, split, split, lambda: nn.Linear(2, 4), recipe=Recipe(epochs=1))
    given = lesson_by([build_network(made, ["depth"], 0)], made, mix=MIX)
    answers, mixed = given.answers["depth"], given.targets["depth"]
    torch.testing.assert_close(mixed[5], (1 - MIX) * target[5] + MIX * answers[5])
    assert torch.equal(mixed[4, 1], answers[4, 1])
    assert torch.equal(mixed[9], answers[9])


# Additional rows -----------------------------------------------------------------------------------------------------


def test_mixtures_lie_between_two_training_rows_and_only_teachers_answer_them() -> None:
    given = lesson_by(teachers(), problem(), mixtures=2, mix=0, fill=False)
    rows = given.problem.train
    inputs, labels = rows.batch(torch.arange(len(rows)))
    assert len(rows) == 3 * len(problem().train)
    assert torch.equal(inputs[:70], problem().train.batch(torch.arange(70))[0])
    assert all(target[70:].isnan().all() for target in labels.values())
    distances = torch.cdist(inputs[70:], inputs[:70])
    pairs = torch.cdist(inputs[:70], inputs[:70])
    detours = distances[:, :, None] + distances[:, None, :] - pairs
    assert detours.flatten(1).min(1).values.max() < 1e-6
    targets = given.targets
    assert set(targets) == {"size", "ill", "sort"}
    assert torch.equal(targets["size"][70:], given.answers["size"][70:])
    known = labels["size"][:70].isfinite()
    assert torch.equal(targets["size"][:70][known], labels["size"][:70][known])
    assert targets["size"][:70][~known].isnan().all()


def test_unlabelled_rows_are_prepared_like_training_rows() -> None:
    draw = np.random.default_rng(0)
    inputs, more = draw.normal(5, 3, (60, 2)), draw.normal(5, 3, (7, 2))
    made = Problem.from_arrays(inputs, inputs.sum(1), ["sum"], recipe=Recipe(epochs=1), unlabelled=more)
    assert torch.equal(made.unlabelled, made.table.inputs(more))
    assert made.fingerprint == replace(made, unlabelled=None).fingerprint  # plain networks do not depend on them
    assert made.unlabelled_fingerprint != replace(made, unlabelled=made.unlabelled[:6]).unlabelled_fingerprint
    given = lesson_by([train(made, Job(("sum",)))], made, unlabelled=True)
    assert torch.equal(given.problem.train.batch(torch.arange(42, 49))[0], made.unlabelled)


def test_a_table_of_unlabelled_rows_may_lack_targets_but_no_features() -> None:
    draw = np.random.default_rng(0)
    table = {"x": draw.normal(size=50), "town": ["Ulm", "Bonn"] * 25, "a": draw.normal(size=50)}
    table["a"] = np.where(np.arange(50) < 10, np.nan, table["a"])
    more = {"town": ["Rome"], "x": [1.0]}
    made = Problem.from_table(table, ["a"], categorical=["town"], split=(0.7, 0.1, 0.2), unlabelled=more)
    assert [len(rows) for rows in made.splits.values()] == [35, 5, 10], "rows without any label stay in their split"
    assert torch.equal(made.unlabelled, made.table.inputs(more))
    with pytest.raises(InvalidInput, match="`unlabelled`"):
        Problem.from_table(table, ["a"], categorical=["town"], unlabelled={"x": [1.0]})


# What is refused -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "argument"),
    [
        (lambda: Taught(("a",), mix=2), "`mix`"),
        (lambda: teach(problem(), []), "`networks`"),
        (lambda: teach(problem(), teachers(), ["price"]), "`tasks`"),
        (lambda: train(problem(), Job(("size",), taught=Taught(("teacher",)))), "`targets`"),
        (lambda: replace(problem(), unlabelled=torch.zeros(3, 5, dtype=torch.float64)), "`unlabelled`"),
    ],
)
def test_invalid_arguments_are_named(call: Callable[[], object], argument: str) -> None:
    with pytest.raises(InvalidInput, match=argument):
        call()


def test_rows_that_cannot_be_mixed_or_are_read_from_files_are_refused() -> None:
    def embed() -> nn.Module:
        return nn.Sequential(nn.Embedding(5, 3), nn.Flatten())

    texts = make_problem(embed, words, MIXED[:1], epochs=1)
    with pytest.raises(InvalidInput, match="`mixtures`"):
        teach(texts, [build_network(texts, ["size"], 0)], mixtures=1)
    with pytest.raises(InvalidInput, match="rows in memory"):
        teach(stream(problem()), [rebuilt(teachers()[0])])


def test_fitted_teachers_answer_training_rows_that_they_have_not_seen() -> None:
    """A model that is fitted to none of the labels of some rows is the one that answers these rows."""
    made = make_problem(MLP_WITH_DROPOUT, tasks=MIXED[:1], rows=(150, 60, 60))
    job = Job(("size",), network="boosting")
    teacher, rows = train(made, job), made.train
    answers = lesson_by([teacher], made, mixtures=1).answers["size"]
    for fold in range(3):
        left_out = torch.arange(150) % 3 == fold
        labels = rows.targets["size"].masked_fill(left_out, torch.nan)
        blind = replace(made, train=Split(rows.inputs, {"size": labels}))
        network = build_network(made.with_network("boosting"), ("size",), 0)
        network.load_state_dict(dict(train(blind, job).state))
        expected = network(rows.inputs[left_out])["size"][:, 0]
        torch.testing.assert_close(answers[:150][left_out], expected)
        own = build_network(made.with_network("boosting"), ("size",), 0)
        own.load_state_dict(dict(teacher.state))
        assert (own(rows.inputs[left_out])["size"][:, 0] - expected).abs().max() > 0.1
    assert len(answers) == 300
