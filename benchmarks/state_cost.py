"""How long does it take to save and restore what a closure reaches, compared with a plain training step?

    python benchmarks/state_cost.py

Times are CPU times in one thread. A measured step with n tasks saves twice and restores about 2n times.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from tagalong.measure.objects import ObjectState

TASKS = [f"task {number}" for number in range(9)]


class Trainer:
    """A loop's usual surroundings: records of losses, settings, and a list of samples."""

    def __init__(self, model: nn.Module, rows: tuple[int, ...], width: int) -> None:
        self.model, self.heads = model, nn.ModuleDict({task: nn.Linear(width, 1) for task in TASKS})
        self.record: dict[str, list[float]] = {task: [0.0] * 1000 for task in TASKS}
        self.settings = {f"setting {number}": {"value": number} for number in range(100)}
        self.samples = [(str(number), torch.zeros(3)) for number in range(10_000)]
        self.x, self.y = torch.randn(*rows), torch.randn(rows[0], len(TASKS))

    def losses(self) -> dict[str, Tensor]:
        features = self.model(self.x)
        features = features.mean(1) if features.ndim == 3 else features
        found = {t: (h(features)[:, 0] - self.y[:, k]).pow(2).mean() for k, (t, h) in enumerate(self.heads.items())}
        for task, loss in found.items():
            self.record[task].append(loss.item())
        return found


def seconds(run: Callable[[], Any], repeats: int) -> float:
    run()
    times = []
    for _ in range(repeats):
        start = time.process_time()
        run()
        times.append(time.process_time() - start)
    return sorted(times)[repeats // 2]


def plain_step(trainer: Trainer) -> None:
    torch.stack(list(trainer.losses().values())).sum().backward()


def report(name: str, trainer: Trainer) -> None:
    def saved() -> ObjectState:
        state = ObjectState()
        state.add_closure(trainer.losses)
        return state

    state = saved()
    step, save, restore = (seconds(run, 15) for run in (lambda: plain_step(trainer), saved, state.restore))
    share = (2 * save + 2 * len(TASKS) * restore) / (3 * len(TASKS) * step / 3)
    print(f"| {name} | {len(state._seen)} | {1e3 * step:.1f} | {1e3 * save:.1f} | {1e3 * restore:.2f} | {share:.1%} |")


def main() -> None:
    torch.set_num_threads(1)
    layer = nn.TransformerEncoderLayer(128, 4, 256, batch_first=True)
    print("| network | objects | plain step, ms | save, ms | restore, ms | share of a measured step |")
    print("|---|---|---|---|---|---|")
    report("perceptron, batch 256", Trainer(nn.Sequential(nn.Linear(64, 256), nn.ReLU()), (256, 64), 256))
    report("12-layer transformer, batch 32 × 32", Trainer(nn.TransformerEncoder(layer, 12), (32, 32, 128), 128))


if __name__ == "__main__":
    main()
