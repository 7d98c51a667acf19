"""Trains networks for the golden tests and describes them by plain values.

Only this file of the golden tests calls the training engine; a new engine needs no change elsewhere.

A network is described by the arguments of a `Job`: "tasks", "seed", "rule", "width", "epochs", "lr" and "network". With
a lesson, it is a student: "tasks", "seed", "width", "lr", "mix" and "fill". A lesson holds "teachers", which are
networks, and the arguments of `Taught`.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tagalong.group import Taught
from tagalong.learn import (
    Diverged,
    Job,
    Problem,
    Split as Split,
    StreamedRows as StreamedRows,
    TabM as TabM,
    Trained,
    build_network,
    outputs_on,
    prepare_students,
    teacher_answers,
    train,
    train_many,
    why_not_batched,
)
from tagalong_paper.experiments.capacity import capacities
from tagalong_paper.mapped_tensor import MappedTensor as MappedTensor

Network = Mapping[str, Any]
Result = dict[str, Any]
PREDICTED_ROWS = 2  # of the test rows


def train_networks(
    problem: Problem, networks: Sequence[Network], *, together: bool, lesson: Mapping[str, Any] | None = None
) -> list[Result | None]:
    """Trains networks one by one or all together. The result of a network that diverges is None."""
    problem, jobs, targets = _jobs(problem, networks, lesson)

    def train_one_by_one() -> Iterator[Trained]:
        for job in jobs:
            with suppress(Diverged):
                yield train(problem, job, targets=targets.get(job))

    results: dict[Job, Result | None] = dict.fromkeys(jobs)
    with suppress(Diverged):  # raised after all other networks have been returned
        for trained in train_many(problem, jobs, targets=targets) if together else train_one_by_one():
            results[trained.job] = _describe(problem, trained)
    return list(results.values())


def are_stacked(problem: Problem, networks: Sequence[Network]) -> bool:
    """Returns whether such networks are trained as one computation."""
    jobs = [Job(**network) for network in networks]
    return all(why_not_batched(problem.with_network(job.network), [job]) is None for job in jobs)


def train_measured(problem: Problem, network: Network, meter: Mapping[str, Any]) -> tuple[Result, list[list[float]]]:
    """Trains a network with a meter. Returns its result and the affinities [source, target]."""
    trained = train(problem, Job(**network), meter=meter)
    assert trained.affinity is not None
    return _describe(problem, trained), trained.affinity.mean.tolist()


def train_killed_after_every_epoch(
    problem: Problem, network: Network, checkpoint: Path, lesson: Mapping[str, Any] | None = None
) -> tuple[Result, list[int]]:
    """Trains a network that is killed after every epoch and continues from its checkpoint.

    Returns its result and the numbers of epochs after which it was killed.
    """
    problem, (job,), targets = _jobs(problem, [network], lesson)
    killed_after: list[int] = []

    def kill(epoch: int) -> None:
        killed_after.append(epoch)
        raise KeyboardInterrupt

    trained = None
    while trained is None and len(killed_after) <= problem.recipe.epochs:
        with suppress(KeyboardInterrupt):
            trained = train(problem, job, targets=targets.get(job), checkpoint=checkpoint, progress=kill)
        torch.rand(3)  # a process that continues the training may have drawn random numbers
    assert trained is not None, f"killed after the epochs {killed_after}, the training started again each time"
    return _describe(problem, trained), killed_after


def widths_of_larger_networks(problem: Problem, times: Sequence[float]) -> dict[str, list[float]]:
    """Returns the widths and numbers of parameters of networks with n times the channels or parameters."""
    found = capacities(problem, times)
    return {f"{size.times:g} x {size.by}": [size.width, size.parameters] for size in found}


def _jobs(
    problem: Problem, networks: Sequence[Network], lesson: Mapping[str, Any] | None
) -> tuple[Problem, list[Job], dict[Job, dict[str, Tensor]]]:
    """Returns the problem to train on, with the rows of the lesson, the jobs, and the targets of students."""
    if lesson is None:
        return problem, [Job(**network) for network in networks], {}
    settings = {name: value for name, value in lesson.items() if name != "teachers"}
    teachers = {f"{number}": train(problem, Job(**teacher)) for number, teacher in enumerate(lesson["teachers"])}
    jobs = []
    for network in networks:
        own = {name: value for name, value in network.items() if name not in ("mix", "fill")}
        how = {name: value for name, value in network.items() if name in ("mix", "fill")}
        jobs.append(Job(**own, taught=Taught(tuple(teachers), **settings, **how)))
    lesson_key = jobs[0].taught.lesson
    answers = teacher_answers(problem, lesson_key, teachers)
    extended, targets = prepare_students(problem, jobs, {lesson_key: answers})
    return extended, jobs, targets


def _describe(problem: Problem, trained: Trained) -> Result:
    assert trained.state is not None
    job = trained.job
    network = build_network(problem.with_network(job.network), job.tasks, job.seed, job.width)
    network.load_state_dict(trained.state)
    inputs, _ = problem.test.batch(torch.arange(PREDICTED_ROWS))
    parts = {"encoder": network.encoder} | dict(zip(network.tasks, network.heads, strict=True))
    return {
        "val": {task: score.loss for task, score in trained.val.items()},
        "test": {task: score.loss for task, score in trained.test.items()},
        "errors": {task: score.error for task, score in trained.test.items()},
        "curve": torch.as_tensor(trained.curve),  # [epochs, tasks]
        "flattery": dict(trained.flattery),
        "best_epoch": trained.best_epoch,
        "steps": trained.steps,
        "parameters": trained.parameters,
        "outputs": outputs_on(network, inputs),
        "weights": {part: module.state_dict() for part, module in parts.items()},
    }
