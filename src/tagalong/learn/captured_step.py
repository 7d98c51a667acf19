"""Replays training steps as CUDA graphs, since a GPU runs small kernels faster than they can be launched."""

from __future__ import annotations

import gc
import logging
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from tagalong._version import is_own_module

WARM_UP_STEPS = 3  # in which libraries allocate their workspaces
MAX_CACHED_BYTES = 2**30
KNOWN_LAYERS = frozenset(
    {nn.Sequential, nn.ModuleList, nn.ModuleDict, nn.Identity, nn.Flatten, nn.Unflatten, nn.Linear, nn.Embedding}
    | {nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.LayerNorm, nn.GroupNorm}
    | {nn.Dropout, nn.MaxPool1d, nn.MaxPool2d, nn.AvgPool1d, nn.AvgPool2d, nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d}
    | {nn.ReLU, nn.LeakyReLU, nn.ELU, nn.SELU, nn.GELU, nn.SiLU, nn.Mish, nn.Tanh, nn.Sigmoid, nn.Softplus, nn.Softmax}
)
logger = logging.getLogger(__name__)


class CapturedStep:
    """A training step on a GPU that is captured as a CUDA graph, once for each batch size, and then replayed.

    If a step cannot be captured, it runs as an ordinary function, and the reason is logged.

    Args:
        step: performs a step, given the row indices of the batch. It must not read values back from the GPU, and all
            tensors that outlive it must stay where they are.
        seed: seeds the random number generators of the step, and returns those besides the default generator of the
            GPU. It is called before each step, outside the graph.
        warm_up: the number of ordinary steps before capturing.
    """

    def __init__(
        self,
        step: Callable[[Tensor], object],
        seed: Callable[[], Sequence[torch.Generator]],
        warm_up: int = WARM_UP_STEPS,
    ) -> None:
        self._step, self._seed, self._warm_up = step, seed, warm_up
        self._runs: Counter[torch.Size] = Counter()
        # For each batch size, the graph and the tensor from which it reads the row indices of the batch
        self._recordings: dict[torch.Size, tuple[torch.cuda.CUDAGraph, Tensor]] = {}
        self._stream = torch.cuda.Stream()
        self._pool = torch.cuda.graph_pool_handle()
        self._possible = True

    def __call__(self, rows: Tensor) -> None:
        size = rows.shape
        generators = self._seed()
        is_warm = self._runs[size] > 0 and self._runs.total() >= self._warm_up
        if self._possible and is_warm and size not in self._recordings:
            self._try_to_capture(rows, generators)
        if size in self._recordings:
            graph, static_rows = self._recordings[size]
            static_rows.copy_(rows)
            graph.replay()
            return
        self._runs[size] += 1
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            self._step(rows)
        torch.cuda.current_stream().wait_stream(self._stream)

    def _try_to_capture(self, rows: Tensor, generators: Sequence[torch.Generator]) -> None:
        if torch.cuda.memory_reserved() > MAX_CACHED_BYTES:
            torch.cuda.empty_cache()  # a graph cannot use the memory that ordinary steps have left in the cache
        static_rows = rows.clone()
        torch.cuda.synchronize()
        try:
            graph = self._capture(lambda: self._step(static_rows), generators, self._pool)
        except RuntimeError as error:
            self._possible = False
            logger.info("training without CUDA graphs: %s", str(error).splitlines()[0])
        else:
            self._recordings[rows.shape] = graph, static_rows
            logger.info("replaying steps on batches of shape %s as a CUDA graph", tuple(rows.shape))
            return
        # A failed capture leaves generators in a state in which they would draw nonsense. Another capture ends it. It
        # has memory of its own, since that of the failed one still counts as being recorded.
        self._capture(lambda: None, generators)
        self._seed()

    def _capture(
        self, step: Callable[[], object], generators: Sequence[torch.Generator], pool: Any = None
    ) -> torch.cuda.CUDAGraph:
        """Captures a step without running it.

        Unlike in `torch.cuda.graph`, garbage is not collected before, which would take longer than many steps, nor
        meanwhile, since freeing tensors would end the capture.
        """
        graph, collects_garbage = torch.cuda.CUDAGraph(), gc.isenabled()
        for generator in generators:
            graph.register_generator_state(generator)
        gc.disable()
        try:
            with torch.cuda.stream(self._stream), warnings.catch_warnings():
                warnings.filterwarnings("ignore", "The CUDA Graph is empty")
                graph.capture_begin(pool=pool, capture_error_mode="thread_local")
                try:
                    step()
                finally:
                    graph.capture_end()
        finally:
            if collects_garbage:
                gc.enable()
        return graph


def can_be_captured(module: nn.Module) -> bool:
    """Returns whether the training steps of a module are known to be capturable.

    A graph repeats the same kernels in each step, so layers must neither decide anything in Python nor read values back
    from the GPU. This is known only for common layers of torch, and for those of tagalong.
    """
    for part in module.modules():
        is_known = type(part) in KNOWN_LAYERS or is_own_module(type(part).__module__)
        reads_count = isinstance(part, nn.modules.batchnorm._NormBase) and part.momentum is None
        hooks = (part._forward_hooks, part._forward_pre_hooks, part._backward_hooks, part._backward_pre_hooks)
        if not is_known or reads_count or any(hooks):
            return False
    return True
