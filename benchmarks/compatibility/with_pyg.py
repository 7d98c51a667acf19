"""torch_geometric: a graph network that predicts several properties of a graph, in a plain loop.

Needs: pip install torch_geometric
Run:   python benchmarks/compatibility/with_pyg.py
"""

from typing import Any

import torch
from reference import Case, main, train_in_loop
from torch import nn
from torch_geometric.data import Data
from torch_geometric.loader import DataLoader
from torch_geometric.nn import BatchNorm, GATConv, GCNConv, global_mean_pool

from tagalong import AffinityMeter

TASKS = ("gap", "dipole", "heat")


class System(nn.Module):
    """Two graph convolutions with attention dropout and BatchNorm, and one linear head per task."""

    def __init__(self) -> None:
        super().__init__()
        self.convolutions = nn.ModuleList([GCNConv(5, 8, cached=False), GATConv(8, 8, dropout=0.2)])
        self.norm = BatchNorm(8)
        self.heads = nn.ModuleDict({task: nn.Linear(8, 1) for task in TASKS})
        self.double()
        self.optimizer = torch.optim.Adam(self.parameters(), lr=1e-2)

    def losses(self, batch: Any) -> dict[str, torch.Tensor]:
        first, second = self.convolutions
        hidden = second(self.norm(first(batch.x, batch.edge_index).relu()), batch.edge_index)
        pooled = global_mean_pool(hidden, batch.batch)
        return {t: (head(pooled)[:, 0] - batch.y[:, k]).pow(2).mean() for k, (t, head) in enumerate(self.heads.items())}


def graphs() -> list[Data]:
    generator = torch.Generator().manual_seed(7)
    drawn = []
    for _ in range(96):
        x = torch.randn(6, 5, generator=generator).double()
        edges = torch.randint(6, (2, 12), generator=generator)
        drawn.append(Data(x=x, edge_index=edges, y=torch.stack([x[:, 0].sum(), x[:, 1].sum(), x.mean()])[None]))
    return drawn


def train(system: System, before_step: Any, meter: Any) -> None:
    train_in_loop(system, DataLoader(graphs(), batch_size=8, shuffle=True), before_step, meter)


if __name__ == "__main__":
    main(
        [
            Case(
                "torch_geometric, GCN and GAT",
                System,
                lambda system: system,
                lambda system: system.optimizer,
                lambda system: [*system.convolutions.parameters(), *system.norm.parameters()],
                lambda system, batch: system.losses(batch),
                train,
                lambda system: AffinityMeter([system.convolutions, system.norm], system.optimizer, every=1),
            )
        ]
    )
