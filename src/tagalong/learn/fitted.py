"""Fits the heads of one network: boosting, or ridge regression."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np

from .boosting import RawColumns
from .early_stopping import halve_rows
from .fitted_heads import FittedHead, FittedHeads
from .job import Job, Trained
from .network import build_network
from .problem import Problem
from .rows import require_in_memory
from .scoring import average_scores_on


def fit(problem: Problem, job: Job) -> Trained:
    """Fits a network, given the problem with the job's network and row weights."""
    start = time.perf_counter()
    factory, network = problem.head, build_network(problem, job.tasks, job.seed)
    tasks = [problem.task(name) for name in job.tasks]
    splits = {part: require_in_memory(rows, "fitting").only(job.tasks) for part, rows in problem.splits.items()}
    encoded = [replace(splits[part], inputs=network.encode(splits[part].inputs.cpu())) for part in ("train", "val")]
    levels = [0] * encoded[0].inputs.shape[1]
    if isinstance(problem.encoder, RawColumns):
        levels = [size - 1 if is_category else 0 for is_category, size in problem.encoder.blocks]
    assert isinstance(factory, FittedHeads)
    for task, head in zip(tasks, network.heads, strict=True):
        assert isinstance(head, FittedHead)
        if task.name in problem.base_rates:
            head.fill(constant=problem.base_rates[task.name].cpu())
    factory.fit(network.heads, tasks, levels, *encoded)

    val, test = (average_scores_on(problem, [network], splits[part]) for part in ("val", "test"))
    return Trained(
        job,
        val=val,
        test=test,
        steps=1,
        seconds=time.perf_counter() - start,
        parameters=sum(buffer.numel() for buffer in network.buffers()),
        curve=np.array([[val[task].loss for task in job.tasks]]),
        state=dict(network.state_dict()),
        flattery=dict.fromkeys(job.tasks, 0.0),  # the same trees are kept on either half of the validation rows
        halves=halve_rows({task: score.rows for task, score in val.items()}, problem.val.groups),
    )
