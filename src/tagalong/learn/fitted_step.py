"""The single step of a network whose heads are fitted: boosting, or ridge regression."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from tagalong.score import Score

from .base_rate import base_rates
from .classical import FEWEST_LABELS, FittedHead, FittedHeads, labelled_rows
from .job import Job
from .network import build_network
from .problem import Problem
from .rows import require_in_memory
from .scoring import average_scores_on


class FittedStep:
    """Fits the heads of one network in a single step, see `Step`."""

    is_resumable = False

    def __init__(self, problem: Problem, job: Job) -> None:
        self.problem, self.seeds, self.steps = problem, [job.seed], 0
        self.tasks = [problem.task(name) for name in job.tasks]
        self.trains = np.ones((1, len(self.tasks)), dtype=bool)
        self.network = build_network(problem, job.tasks, job.seed)

    def rates(self, epoch: int) -> NDArray[np.float64]:
        return np.array([self.problem.recipe.rate(epoch)])

    def train_epoch(self, epoch: int, parts: Sequence[Sequence[Tensor]]) -> None:
        heads = self.problem.head
        assert isinstance(heads, FittedHeads)
        rows = [require_in_memory(part, "fitting") for part in (self.problem.train, self.problem.val)]
        for task, head in zip(self.tasks, self.network.heads, strict=True):
            assert isinstance(head, FittedHead)
            train, val = (labelled_rows(part, task) for part in rows)
            labels = train[1]
            head.fill(labels=max(1, len(labels)))
            if len(labels) >= FEWEST_LABELS and len(np.unique(labels)) > 1:
                heads.fit(head, task, train, val)
            elif len(labels):
                head.fill(**{head.constant: base_rates(self.problem)[task.name].cpu()})
        self.steps += 1

    def validate(self) -> NDArray[np.float64]:
        (scores,) = self.scores("val", self.trains)
        losses = np.array([[scores[task.name].loss for task in self.tasks]])
        return np.stack([losses] * 3, -1)  # halves of the rows are only compared between epochs

    def keep(self, networks: NDArray[np.intp]) -> None:
        pass

    def drop(self, running: NDArray[np.bool_]) -> None:
        pass

    def scores(self, part: str, learned: NDArray[np.bool_]) -> list[dict[str, Score]]:
        rows = self.problem.splits[part].only(task.name for task in self.tasks)
        return [average_scores_on(self.problem, [self.network], rows)]

    def states(self) -> list[dict[str, Tensor]]:
        return [dict(self.network.state_dict())]

    def count_parameters(self) -> list[int]:
        return [sum(buffer.numel() for buffer in self.network.buffers())]

    def affinity(self) -> None:
        return None

    def state_dict(self) -> dict[str, Any]:
        return {"steps": self.steps, "network": self.network.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.steps = state["steps"]
        self.network.load_state_dict(state["network"])
