"""A task that only harms: labels of other rows, with a large weight."""

from __future__ import annotations

from dataclasses import replace

import torch

from tagalong.learn import Problem, Rows, Split
from tagalong.learn._rows import held
from tagalong.learn._seeds import derived

DESTRUCTIVE, WEIGHT = "destructive", 20.0


def with_destructive_task(problem: Problem) -> Problem:
    """The problem with one more task: the first task's labels, each taken from another row, weighing much.

    Nothing can be learnt from it beyond the share of each label, and its gradients outweigh all others.
    """
    task = replace(problem.tasks[0], name=DESTRUCTIVE, weight=WEIGHT)

    def spoilt(part: str, rows: Rows) -> Split:
        split = held(rows, "a task that only harms")
        generator = torch.Generator().manual_seed(derived(0, "destructive", part))
        order = torch.randperm(len(split), generator=generator)
        labels = split.targets[problem.names[0]][order.to(split.inputs.device)]
        return replace(split, targets={**split.targets, DESTRUCTIVE: labels})

    train, val, test = (spoilt(part, split) for part, split in problem.splits.items())
    return replace(problem, tasks=(*problem.tasks, task), train=train, val=val, test=test)
