"""Measures the duration of a forward pass."""

from __future__ import annotations

import time
from dataclasses import dataclass
from statistics import median

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Latency:
    """The duration of a forward pass in seconds, for one row and for a batch of `rows` rows."""

    one: float
    batch: float
    rows: int


def measure_latency(network: nn.Module, inputs: Tensor, *, repeats: int = 20, warm_up: int = 3) -> Latency:
    """Returns the median duration of a forward pass in evaluation mode on the inputs' device.

    Args:
        network: the network to time. The network's training mode is restored afterward.
        inputs: a full batch of rows.
        repeats: the number of timed passes.
        warm_up: the number of untimed warm-up passes.
    """
    mode = network.training
    network.eval()
    try:
        with torch.inference_mode():
            one, batch = (_median_seconds(network, rows, repeats, warm_up) for rows in (inputs[:1], inputs))
    finally:
        network.train(mode)
    return Latency(one, batch, len(inputs))


def _median_seconds(network: nn.Module, rows: Tensor, repeats: int, warm_up: int) -> float:
    for _ in range(warm_up):
        network(rows)
    clock = _cuda_seconds if rows.is_cuda else _cpu_seconds
    return median(clock(network, rows) for _ in range(repeats))


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
