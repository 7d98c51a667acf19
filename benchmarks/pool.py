"""Networks that are trained on demand and kept in memory, so that all methods of a comparison share them."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tagalong.affinity import Affinity
from tagalong.group import Group, Taught
from tagalong.learn import (
    Diverged,
    Job,
    Problem,
    Trained,
    build_network,
    outputs_on,
    prepare_students,
    teacher_answers,
    train,
    train_many,
)
from tagalong.study import Cost, Runner
from tagalong.study.runner import plain_steps
from tagalong.study.search.answers import ALL, Answers


class Pool(Runner):
    """Trains networks on demand, and keeps them and their answers in memory."""

    def __init__(self, problem: Problem, device: torch.device | str) -> None:
        super().__init__(problem, device=str(device))
        self.trained: dict[Job, Trained] = {}
        self._jobs_by_key: dict[str, Job] = {}
        self._lessons: dict[Taught, Mapping[str, Tensor]] = {}
        self._outputs: dict[tuple[Job, str], dict[str, Tensor]] = {}
        self._affinities: dict[str, tuple[Affinity, Cost]] = {}

    def train(self, jobs: Iterable[Job]) -> list[Trained]:
        """Trains the networks that are missing, students after all others, and returns all of them."""
        wanted = list(jobs)
        missing = [job for job in dict.fromkeys(wanted) if job not in self.trained]
        self._train_here(self.problem, [job for job in missing if job.taught is None])
        # Students that learn from the same rows are trained together.
        by_rows: dict[object, list[Job]] = {}
        for job in missing:
            if job.taught is not None:
                by_rows.setdefault((job.taught.mixtures, job.taught.unlabelled), []).append(job)
        for students in by_rows.values():
            answers = {job.taught.lesson: self._teacher_answers(job.taught) for job in students if job.taught}
            extended, targets = prepare_students(self.problem, students, answers)
            self._train_here(extended, students, targets)
        return [self.trained[job] for job in wanted]

    def _train_here(self, problem: Problem, jobs: Sequence[Job], targets: Mapping[Job, Any] | None = None) -> None:
        if not jobs:
            return
        try:
            for network in train_many(problem, jobs, device=self.device, targets=targets):
                self.trained[network.job] = network
        except Diverged as error:
            self.trained |= {network.job: network for network in error.networks}

    def _teacher_answers(self, taught: Taught) -> Mapping[str, Tensor]:
        if taught.lesson not in self._lessons:
            teachers = {name: self.trained[self._jobs_by_key[name]] for name in taught.teachers}
            self._lessons[taught.lesson] = teacher_answers(self.problem, taught, teachers, self.device)
        return self._lessons[taught.lesson]

    def find_results(self, jobs: Sequence[Job], what: str) -> dict[Job, Trained]:
        """Returns the results of networks, which are trained if necessary."""
        results = {}
        for network in self.train(jobs):
            job = network.job
            key = f"{'+'.join(job.tasks)} {job.seed} {job.rule} {job.width} {job.taught!r} {job.network}"
            self._jobs_by_key[key] = job
            results[job] = replace(network, key=key)
        return results

    def measure_affinity(
        self, seeds: Sequence[int], settings: Mapping[str, Any], method: str = ""
    ) -> tuple[Affinity, dict[int, Cost]]:
        """Measures affinities while training with the first seed."""
        key = repr((seeds[0], sorted(settings.items())))
        if key not in self._affinities:
            network = train(self.problem, self.job(self.tasks, seeds[0]), meter=settings, device=self.device)
            steps = plain_steps(network.affinity, network.steps)
            self._affinities[key] = network.affinity, Cost(1, steps, network.seconds)
        affinity, cost = self._affinities[key]
        return affinity, {seeds[0]: cost}

    def outputs(self, jobs: Iterable[Job], part: str) -> dict[Job, dict[str, Tensor]]:
        """Returns the outputs of networks."""
        wanted = list(dict.fromkeys(jobs))
        for job in wanted:
            if (job, part) not in self._outputs:
                network = build_network(self.problem.with_network(job.network), job.tasks, job.seed, job.width)
                network.load_state_dict(self.trained[job].state)
                network.to(self.device)
                outputs = outputs_on(network, getattr(self.problem, part).inputs.to(self.device))
                self._outputs[job, part] = {task: values.cpu() for task, values in outputs.items()}
        return {job: self._outputs[job, part] for job in wanted}

    def targets(self, part: str) -> Mapping[str, Tensor]:
        """Returns the targets of each task."""
        return getattr(self.problem, part).targets

    def answers(self, jobs: Sequence[Job], part: str) -> Answers:
        """Returns the answers of networks, which can be averaged."""
        answers, outputs = Answers(self.problem.tasks, self.targets(part)), self.outputs(jobs, part)
        for job in jobs:
            answers.add(outputs[job])
        return answers

    def losses(self, groups: Sequence[Group], seed: int, part: str = "test") -> np.ndarray:
        """Returns the loss of each task from the average answers of the networks that serve it."""
        return self._served(groups, seed, part).losses([tuple(range(len(groups)))])[0, :, ALL]

    def test_rows(self, groups: Sequence[Group], seed: int) -> dict[str, np.ndarray]:
        """Returns the loss of each test row, by task, from the average answers of the networks that serve it."""
        answers, members = self._served(groups, seed, "test"), tuple(range(len(groups)))
        return {task.name: answers.row_losses(number, members) for number, task in enumerate(answers.tasks)}

    def _served(self, groups: Sequence[Group], seed: int, part: str) -> Answers:
        jobs = [self.group_job(group, seed) for group in groups]
        self.train(jobs)
        answers, outputs = Answers(self.problem.tasks, self.targets(part)), self.outputs(jobs, part)
        for group, job in zip(groups, jobs, strict=True):
            answers.add({task: outputs[job][task] for task in group.serves})
        return answers
