"""Measures the duration of a forward pass."""

from __future__ import annotations

import time
from statistics import median

import torch
from torch import Tensor, nn


def measure_latency(network: nn.Module, inputs: Tensor, *, repeats: int = 20, warm_up: int = 3) -> float:
    """Returns the median duration of a forward pass in seconds, in evaluation mode on the inputs' device.

    Args:
        network: the network to time. The network's training mode is restored afterward.
        inputs: the rows of a pass.
        repeats: the number of timed passes.
        warm_up: the number of untimed warm-up passes.
    """
    clock = _cuda_seconds if inputs.is_cuda else _cpu_seconds
    mode = network.training
    network.eval()
    try:
        with torch.inference_mode():
            seconds = [clock(network, inputs) for _ in range(warm_up + repeats)]
    finally:
        network.train(mode)
    return median(seconds[warm_up:])


def _cpu_seconds(network: nn.Module, rows: Tensor) -> float:
    start = time.perf_counter()
    network(rows)
    return time.perf_counter() - start


def _cuda_seconds(network: nn.Module, rows: Tensor) -> float:
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    with torch.cuda.device(rows.device):
        start.record()
        network(rows)
        end.record()
        end.synchronize()
    return float(start.elapsed_time(end)) / 1000
