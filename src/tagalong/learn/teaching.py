"""Trains networks on the answers of other networks.

The loss of a student is (1 - m) · loss(label) + m · loss(answer), where m is the mix. It is computed with one target
per label, (1 - m) · label + m · answer, in which classes are probabilities:

- Cross-entropy is linear in the target, with class weights too, so both losses are the same.
- The squared error of the mixed target differs by m (1 - m) (label - answer)², which does not depend on the student.
  The gradients are the same. Rules and schedules that read loss values see the loss of the mixed target.
- A loss of the user's own is computed with the mixed target if its task declares `soft_targets`. Other tasks with
  losses of their own, and multiclass tasks with several labels per row, learn from their labels alone.

Early stopping and scores use the true labels of the validation and test rows.

Boosting knows the labels of its training rows nearly by heart. To answer them, models that are fitted are therefore
fitted again without each third of the training rows.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from tagalong.errors import InvalidInput
from tagalong.group import Taught

from .averaging import average_answers
from .classical import FITTED
from .engine import tensors_digest, train
from .job import Job, Trained
from .losses import to_probabilities
from .network import Network, build_network
from .problem import Problem
from .randomness import derive_seed
from .rows import Split, require_in_memory
from .scoring import outputs_on_rows
from .task import Task, squeeze_like

FOLDS = 3
OPERATION = "teaching"  # what needs rows in memory, for messages
BETA = 0.4  # both parameters of the distribution from which the weights of mixed rows are drawn


def teach(
    problem: Problem,
    networks: Sequence[Network | Trained],
    tasks: Sequence[str] | None = None,
    *,
    seed: int = 0,
    mix: float = 1.0,
    fill: bool = True,
    mixtures: float = 0.0,
    unlabelled: bool = True,
    weights: Sequence[float] = (),
    width: float = 1.0,
    device: torch.device | str = "cpu",
    checkpoint: Path | None = None,
    progress: Callable[[int], None] | None = None,
) -> Trained:
    """Trains one network on the average answer of others, to keep part of the gain of averaging them.

    To train several students of the same teachers, see `prepare_students`.

    Args:
        problem: the problem on which the networks were trained. Its rows must be in memory.
        networks: the teachers. Each task is taught by those that train it; without any, it is learned from its labels.
        tasks: the tasks of the student. If None, these are all tasks of the problem.
        seed: the seed of the student.
        mix: the weight of the loss against the answer, from 0 (labels only) to 1 (answers only). 1 is often best for a
            single student, 0.5 for several that are averaged.
        fill: whether answers replace missing labels.
        mixtures: the number of mixtures of two training rows to learn from, as a multiple of the training rows. The
            weights of both rows are drawn from a Beta distribution, and only the teachers answer the mixtures.
        unlabelled: whether to learn from `problem.unlabelled`, if there are any.
        weights: the weight of each teacher in the average. If empty, all count the same.
        width: the width of the student.
        device: the device to train on.
        checkpoint: see `train`.
        progress: see `train`.

    Raises:
        InvalidInput: If the rows are not in memory, an argument is invalid, or no task can be taught.
        Diverged: If the validation loss was never finite.

    Example:
        >>> from tagalong.learn import Recipe, train
        >>> inputs = torch.rand(100, 3)
        >>> recipe = Recipe(epochs=2, batch_size=70)
        >>> problem = Problem.from_arrays(inputs, inputs.sum(1), ["sum"], recipe=recipe)
        >>> teachers = [train(problem, Job(("sum",), seed)) for seed in (1, 2, 3)]
        >>> student = teach(problem, teachers, mixtures=1)
        >>> print(student.job.taught)
        taught by 3 networks, with 1 mixture per row
        >>> (teachers[0].steps, student.steps), student.val.keys() == {"sum"}
        ((2, 4), True)
    """
    if isinstance(networks, (Network, Trained)) or not networks:
        raise InvalidInput("networks", "must be a list of networks", repr(networks), "write [network]")
    names = [problem.task(name).name for name in tasks or problem.names]

    # Teachers are named by their weights.
    teachers = [_as_network(problem, network) for network in networks]
    keys = [f"{network.tasks} {tensors_digest(network.state_dict())}" for network in teachers]
    has_unlabelled = unlabelled and problem.unlabelled is not None
    taught = Taught(tuple(keys), tuple(weights), mix, fill, mixtures, has_unlabelled)

    answers = teacher_answers(problem, taught, dict(zip(keys, networks, strict=True)), device)
    if not set(names) & set(answers):
        raise InvalidInput("tasks", f"must include a task that is taught ({', '.join(answers)})", repr(tasks))
    job = Job(tuple(sorted(names, key=problem.names.index)), seed, width=width, taught=taught)
    extended, targets = prepare_students(problem, [job], {taught.lesson: answers})
    return train(extended, job, device=device, targets=targets[job], checkpoint=checkpoint, progress=progress)


def prepare_students(
    problem: Problem, jobs: Sequence[Job], answers: Mapping[Taught, Mapping[str, Tensor]]
) -> tuple[Problem, dict[Job, dict[str, Tensor]]]:
    """Returns the problem to train students on, with additional rows, and the targets of each student.

    Students with equal targets share them.

    Args:
        problem: the problem.
        jobs: the students. All of them learn from the same additional rows. Other networks are ignored.
        answers: the answers of the teachers (see `teacher_answers`) of each `Taught.lesson`.

    Example:
        >>> from tagalong.learn import Recipe, train_many
        >>> inputs = torch.rand(100, 3)
        >>> problem = Problem.from_arrays(inputs, inputs.sum(1), ["sum"], recipe=Recipe(epochs=2))
        >>> teachers = {"teacher": train(problem, Job(("sum",), 9))}
        >>> taught = Taught(("teacher",), mix=0.5)
        >>> students = [Job(("sum",), seed, taught=taught) for seed in (0, 1)]
        >>> answers = {taught.lesson: teacher_answers(problem, taught, teachers)}
        >>> extended, targets = prepare_students(problem, students, answers)
        >>> [trained.job.seed for trained in train_many(extended, students, targets=targets)]
        [0, 1]
    """
    students = {job: job.taught for job in jobs if job.taught is not None}
    if not students:
        return problem, {}
    extended = with_additional_rows(problem, next(iter(students.values())))
    rows = require_in_memory(extended.train, OPERATION)
    mixed: dict[tuple[Taught, str], Tensor] = {}
    targets: dict[Job, dict[str, Tensor]] = {}
    for job, taught in students.items():
        taught_tasks = answers[taught.lesson]
        for name in job.tasks:
            if name in taught_tasks and (taught, name) not in mixed:
                labels, answer = rows.targets[name].cpu(), taught_tasks[name]
                mixed[taught, name] = mix_targets(labels, answer, taught.mix, taught.fill, len(problem.train))
        targets[job] = {name: mixed[taught, name] for name in job.tasks if name in taught_tasks}
    return extended, targets


def mix_targets(labels: Tensor, answers: Tensor, mix: float, fill: bool = True, labelled: int | None = None) -> Tensor:
    """Returns (1 - mix) · label + mix · answer, in which labels of classes become probabilities if the answers are.

    Args:
        labels: the labels [rows] or [rows, …], with NaN for missing ones (not -1 or -100).
        answers: the answers in the same shape, or probabilities [rows, classes].
        mix: the weight of the answers, from 0 to 1.
        fill: whether answers replace missing labels.
        labelled: the number of rows that `fill` is about. Missing labels of later rows are always replaced. If None,
            it is about all rows.

    Example:
        >>> labels, answers = torch.tensor([1.0, 0.0, torch.nan]), torch.tensor([0.5, 0.25, 0.125])
        >>> mix_targets(labels, answers, 0.5)
        tensor([0.7500, 0.1250, 0.1250])
    """
    known = labels
    if labels.dim() < answers.dim():
        known = to_probabilities(labels, answers.shape[1])
    replaced = answers.clone()
    if not fill:
        replaced[:labelled] = torch.nan
    return torch.where(known.isfinite(), (1 - mix) * known + mix * answers, replaced)


def with_additional_rows(problem: Problem, taught: Taught) -> Problem:
    """Returns the problem with unlabelled rows and mixtures of training rows, all without labels, as training rows.

    All students of a problem learn from the same mixtures, so that their teachers answer them only once.

    Raises:
        InvalidInput: If rows are not in memory, cannot be mixed, or do not exist.
    """
    rows = require_in_memory(problem.train, OPERATION)
    added: list[Tensor] = []
    if taught.unlabelled and problem.unlabelled is not None:
        added.append(problem.unlabelled)
    if taught.mixtures:
        if not rows.inputs.is_floating_point():
            found = f"{taught.mixtures:g} and {rows.inputs.dtype} inputs"
            raise InvalidInput("mixtures", "must be 0 unless inputs are floating-point numbers", found)
        added.append(mix_rows(rows.inputs, round(taught.mixtures * len(rows))))
    if not added:
        return problem
    inputs = torch.cat([rows.inputs, *added])
    count = len(inputs) - len(rows)
    targets = {name: _append(target, count, torch.nan) for name, target in rows.targets.items()}
    weights = None if rows.weights is None else _append(rows.weights, count, float(rows.weights.mean()))
    weightings = {name: dict(by_part) for name, by_part in problem.weightings.items()}
    for by_part in weightings.values():
        if "train" in by_part:
            by_part["train"] = _append(by_part["train"], count, float(by_part["train"].mean()))
    return replace(problem, train=Split(inputs, targets, weights=weights), weightings=weightings)


def _append(rows: Tensor, count: int, value: float) -> Tensor:
    return torch.cat([rows, rows.new_full((count, *rows.shape[1:]), value)])


def mix_rows(inputs: Tensor, count: int) -> Tensor:
    """Returns mixtures of two random rows each, weighted by draws from Beta(0.4, 0.4); always the same ones.

    Example:
        >>> mix_rows(torch.tensor([[0.0, 1.0], [1.0, 0.0]]), 3).sum(1)
        tensor([1., 1., 1.])
    """
    draw = np.random.default_rng(derive_seed(0, "mixtures"))
    pairs = torch.as_tensor(draw.integers(len(inputs), size=(2, count))).to(inputs.device)
    weights = torch.as_tensor(draw.beta(BETA, BETA, count)).to(inputs).view(-1, *[1] * (inputs.dim() - 1))
    return torch.lerp(inputs.index_select(0, pairs[0]), inputs.index_select(0, pairs[1]), weights)


def _as_network(problem: Problem, teacher: Network | Trained) -> Network:
    if isinstance(teacher, Network):
        return teacher
    job = teacher.job
    assert teacher.state is not None, "diverged networks have no weights"
    network = build_network(problem.with_network(job.network), job.tasks, job.seed, job.width)
    network.load_state_dict(teacher.state)
    return network


def teacher_answers(
    problem: Problem,
    taught: Taught,
    teachers: Mapping[str, Network | Trained],
    device: torch.device | str = "cpu",
) -> dict[str, Tensor]:
    """Returns the teachers' average answer to each training row and each additional row, by task.

    Answers are outputs of regression tasks, probabilities of label 1 of binary tasks, and probabilities [rows, classes]
    of multiclass tasks, on the CPU.

    Args:
        problem: the problem.
        taught: how students are taught.
        teachers: the teachers, by the keys that name them in `taught`. Networks that are `Trained` must have been
            trained on this problem.
        device: the device to compute on.

    Raises:
        InvalidInput: see `teach`.
    """
    rows = require_in_memory(with_additional_rows(problem, taught).train, OPERATION)
    networks = [copy.deepcopy(_as_network(problem, teachers[key])).to(device) for key in taught.teachers]
    outputs = outputs_on_rows(networks, Split(rows.inputs, {}).to(device))
    for key, own in zip(taught.teachers, outputs, strict=True):
        teacher = teachers[key]
        if isinstance(teacher, Trained) and teacher.job.network in FITTED:
            for name, unseen in _out_of_fold(problem, teacher.job).items():
                own[name] = torch.cat([unseen, own[name][len(unseen) :]])
    tasks = {task.name: task for task in problem.tasks if can_be_taught(task, rows.targets[task.name])}
    usable = [{name: own[name] for name in own if name in tasks} for own in outputs]
    averages = average_answers(usable, {task.name: task.averaging for task in problem.tasks}, taught.weights)
    if not averages:
        hint = "a task with a loss of its own needs `average` and `soft_targets`"
        raise InvalidInput("networks", "must train a task with soft targets", "none that do", hint)
    return {name: _as_target(tasks[name], average, rows.targets[name]) for name, average in averages.items()}


def _out_of_fold(problem: Problem, job: Job) -> dict[str, Tensor]:
    """Returns the outputs of a fitted model on the training rows, each from a fit without this row and its group."""
    rows = require_in_memory(problem.weighted(job.weighting).train, OPERATION)
    unit = torch.arange(len(rows)) if rows.groups is None else torch.unique(rows.groups.cpu(), return_inverse=True)[1]
    weights = torch.ones(len(rows)) if rows.weights is None else rows.weights
    outputs: dict[str, Tensor] = {}
    for fold in range(FOLDS):
        left_out = unit % FOLDS == fold
        part = replace(problem, weightings={"others": {"train": weights.masked_fill(left_out.to(weights.device), 0)}})
        network = _as_network(problem, train(part, replace(job, weighting="others")))
        (answers,) = outputs_on_rows([network], Split(rows.inputs.cpu(), {}))
        for name, own in answers.items():
            outputs[name] = torch.where(left_out[:, None], own, outputs.get(name, own))
    return outputs


def can_be_taught(task: Task, target: Tensor) -> bool:
    """Returns whether a task has soft targets. Otherwise, students learn it from its labels alone."""
    if task.loss is not None:
        return task.soft_targets
    return task.kind != "multiclass" or target.dim() == 1


def _as_target(task: Task, outputs: Tensor, target: Tensor) -> Tensor:
    """Converts outputs to what the loss expects as a target."""
    answers = outputs.double() if task.averaging == "softmax" else squeeze_like(outputs.double(), target)
    if task.averaging == "sigmoid":
        answers = torch.sigmoid(answers)
    elif task.averaging == "softmax":
        answers = torch.softmax(answers, 1)
    if task.loss is None and task.class_weights is not None:
        answers = _undo_class_weights(task, answers, task.class_weights)
    return answers.to(target.dtype)


def _undo_class_weights(task: Task, probabilities: Tensor, weights: Sequence[float]) -> Tensor:
    """Returns the probabilities that a network would have learned without class weights.

    With weights w, a network learns probabilities proportional to w · p. The loss of the student has the same weights,
    and would multiply by them once more. A class of weight 0 gets the probability 0, since nothing is known about it.
    """
    inverse = probabilities.new_tensor([1 / weight if weight else 0.0 for weight in weights])
    if task.kind == "multiclass":
        unweighted = probabilities * inverse
        return unweighted / unweighted.sum(1, keepdim=True)
    negative, positive = inverse[0] * (1 - probabilities), inverse[1] * probabilities
    return positive / (negative + positive)
