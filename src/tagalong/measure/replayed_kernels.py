"""Replays the kernels of a projection as a CUDA graph, since a GPU runs small kernels faster than they are launched."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

MAX_CAPTURES = 4  # some optimizers put their state into new tensors at every step
logger = logging.getLogger(__name__)

Kernels = Callable[[Sequence[Tensor | None], Any], Tensor]
"""Computes a projection from the gradients and a number."""


class ReplayedKernels:
    """Runs a function of the gradients and of the optimizer's state that launches the same kernels each time.

    The gradients are copied to a fixed place, because they are somewhere else after each backward pass. The state is
    read where it is. If it has moved, the kernels are captured again, and after some moves, they are launched one by
    one. The results are the same.

    Args:
        parameters: The parameters, on a CUDA device.
        dtype: The type of the number that the function takes.
    """

    def __init__(self, parameters: Sequence[Tensor], dtype: torch.dtype) -> None:
        device = parameters[0].device
        self._gradients = [torch.zeros_like(p, memory_format=torch.contiguous_format) for p in parameters]
        self._number = torch.zeros((), dtype=dtype, device=device)
        self._stream = torch.cuda.Stream(device)
        self._state: tuple[Any, list[list[int]]] | None = None
        self._graph: torch.cuda.CUDAGraph | None = None
        self._result = self._number
        self._captures = 0

    def __call__(
        self,
        kernels: Kernels,
        gradients: Sequence[Tensor | None],
        number: Any,
        state: Sequence[Sequence[Tensor | None]],
        setting: Any,
    ) -> Tensor:
        """Returns ``kernels(gradients, number)``, in a tensor that the next call overwrites.

        Args:
            kernels: The function. It may also read `state` and `setting`.
            gradients: The gradient of each parameter, or None, which counts as zero.
            number: A number, which may change from call to call.
            state: The tensors that the function reads.
            setting: A setting on which the function depends.
        """
        places = setting, [[0 if t is None else t.data_ptr() for t in tensors] for tensors in state]
        if places != self._state:
            if self._captures > MAX_CAPTURES:
                return kernels(gradients, number)
            self._state, self._captures = places, self._captures + 1
            self._capture(kernels)
        if self._graph is None:
            return kernels(gradients, number)
        self._copy(gradients)
        self._number.fill_(number)
        self._graph.replay()
        return self._result

    def _copy(self, gradients: Sequence[Tensor | None]) -> None:
        found = [(copy, g) for copy, g in zip(self._gradients, gradients, strict=True) if g is not None]
        if len(found) < len(gradients):
            torch._foreach_zero_(self._gradients)
        torch._foreach_copy_([copy for copy, _ in found], [g for _, g in found])

    def _capture(self, kernels: Kernels) -> None:
        """Captures the kernels, after a run in which libraries allocate their workspaces."""
        self._graph = None
        graph, here = torch.cuda.CUDAGraph(), torch.cuda.current_stream(self._number.device)
        self._stream.wait_stream(here)
        try:
            with torch.cuda.stream(self._stream):
                kernels(self._gradients, self._number)
                # `torch.cuda.graph` would also collect garbage and empty the allocator's cache.
                torch.cuda.synchronize(self._number.device)
                graph.capture_begin(capture_error_mode="thread_local")
                try:
                    self._result = kernels(self._gradients, self._number)
                finally:
                    graph.capture_end()
        except RuntimeError as error:
            logger.info("projecting gradients without CUDA graphs: %s", str(error).splitlines()[0])
        else:
            self._graph = graph
        here.wait_stream(self._stream)
