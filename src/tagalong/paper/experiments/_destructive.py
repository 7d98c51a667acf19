"""A task that only harms: labels of other rows, with a large weight."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from tagalong.learn import Problem, ReadRows, Rows, Split
from tagalong.learn._reading import Reader
from tagalong.learn._rows import Batch, held
from tagalong.learn._seeds import derived

DESTRUCTIVE, WEIGHT = "destructive", 20.0


def with_destructive_task(problem: Problem) -> Problem:
    """The problem with one more task: the first task's labels, each taken from another row, weighing much.

    Nothing can be learnt from it beyond the share of each label, and its gradients outweigh all others.
    """
    task = replace(problem.tasks[0], name=DESTRUCTIVE, weight=WEIGHT)
    train, val, test = (_spoilt(part, rows, problem.names[0]) for part, rows in problem.splits.items())
    return replace(problem, tasks=(*problem.tasks, task), train=train, val=val, test=test)


def _spoilt(part: str, rows: Rows, task: str) -> Rows:
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(derived(0, "destructive", part)))
    if isinstance(rows, ReadRows):
        return replace(rows, reader=Spoilt(rows.reader, task, order), tasks=(*rows.tasks, DESTRUCTIVE))
    split: Split = held(rows, "a task that only harms")
    labels = split.targets[task][order.to(split.inputs.device)]
    return replace(split, targets={**split.targets, DESTRUCTIVE: labels})


@dataclass(frozen=True, eq=False)
class Spoilt:
    """Reads rows with one more label: that of a task, from another row.

    Attributes:
        reader: of the rows.
        task: whose labels are taken.
        order: of each row, which row its label comes from.
    """

    reader: Reader
    task: str
    order: Tensor

    @property
    def tasks(self) -> tuple[str, ...]:
        """The reader's, and the one that harms."""
        return (*self.reader.tasks, DESTRUCTIVE)

    def __len__(self) -> int:
        return len(self.reader)

    def read(self, row: int, tasks: Sequence[str], draw: int | None) -> Batch:
        """One row, with both labels as chance has them."""
        inputs, targets = self.reader.read(row, [task for task in tasks if task != DESTRUCTIVE], draw)
        if DESTRUCTIVE in tasks:
            targets[DESTRUCTIVE] = self.reader.read(int(self.order[row]), [self.task], draw)[1][self.task]
        return inputs, targets

    def contents(self) -> Iterator[bytes]:
        """The reader's, and which label is whose."""
        yield from self.reader.contents()
        yield f"{DESTRUCTIVE} {self.task} {self.order.tolist()}".encode()
