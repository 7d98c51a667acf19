"""The task Gram matrix of a call: inner products of the tasks' gradients, for those who combine them."""

from collections.abc import Sequence

import torch
from torch import Tensor

from ._blocks import gradient_matrices, plan_blocks
from ._errors import raise_all
from ._gradients import TaskGradients
from ._losses import TaskLosses
from ._setup import Setup
from .steps import Steps


class TaskGram:
    """⟨g_i, g_j⟩ over the shared parameters, from a measured step where that has it.

    Attributes:
        found: That of the last call with its tasks, if it was measured.
        wanted: Whether anyone asks for it; before the first time it is not worth the memory.
    """

    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        self.found: tuple[Sequence[str], Tensor] | None = None
        self.wanted = False

    def forget(self) -> None:
        self.found = None

    def of(self, returned: object) -> Tensor:
        """The matrix of the losses that the last call returned, without those that are missing."""
        self.wanted = True
        read = TaskLosses.read(returned)
        raise_all(read.problems)
        values = read.values(list(read.losses)).tolist()
        losses = {t: loss for (t, loss), value in zip(read.losses.items(), values, strict=True) if value == value}
        if self.found is not None and set(losses) <= set(self.found[0]):
            at = [self.found[0].index(task) for task in losses]
            return self.found[1][at][:, at]
        return self._computed(losses)

    def _computed(self, losses: dict[str, Tensor]) -> Tensor:
        parameters = self._setup.trainable()
        tasks, steps = list(losses), Steps({}, [])
        gradients = TaskGradients(losses, parameters, scale=self._setup.scale())
        blocks, held = plan_blocks(parameters, max(1, len(tasks)), self._setup.gradient_memory, steps)
        gram = torch.zeros(len(tasks), len(tasks), dtype=blocks[0].dtype, device=blocks[0].device)
        for some in [blocks] if held else [[block] for block in blocks]:
            for rows in gradient_matrices(gradients, tasks, some, parameters, whole=held):
                gram += (rows @ rows.T).to(gram)
        return gram

    def __getstate__(self) -> dict[str, object]:
        return {**vars(self), "found": None}
