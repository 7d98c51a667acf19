"""
Use the meter with Lightning: add one callback.

$ pip install 'tagalong[lightning]'
$ python examples/with_lightning.py

The callback measures before training steps and logs the measurements. At the end of training, it writes affinity.json
and chooses groups. Training stays bit-for-bit identical.
"""

import argparse
import warnings

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from tagalong.integrations.lightning import AffinityCallback

parser = argparse.ArgumentParser(description="The callback for Lightning.")
parser.add_argument("--steps", type=int, default=300)
args = parser.parse_args()
warnings.filterwarnings("ignore", ".*LeafSpec.* is deprecated", FutureWarning)  # Lightning 2.6 with torch 2.13
warnings.filterwarnings("ignore", ".*does not have many workers")

torch.manual_seed(0)
TASKS = ("protein", "fat", "price")
x = torch.randn(2048, 10)
food, market = x[:, :5].sum(1).tanh(), x[:, 5:].sum(1).tanh()
y = torch.stack([food, 0.7 - 0.5 * food, market], 1)


class Model(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(10, 24), nn.BatchNorm1d(24), nn.ReLU())
        self.heads = nn.ModuleDict({task: nn.Linear(24, 1) for task in TASKS})

    def task_losses(self, batch: list[Tensor]) -> dict[str, Tensor]:
        x, y = batch
        features = self.encoder(x)
        return {task: F.mse_loss(self.heads[task](features).squeeze(1), y[:, k]) for k, task in enumerate(TASKS)}

    def training_step(self, batch: list[Tensor], index: int) -> Tensor:
        loss = sum(self.task_losses(batch).values())
        self.log("loss", loss)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=3e-3)


callback = AffinityCallback(task_losses="task_losses", shared="encoder", every=5, budget=2)
trainer = Trainer(
    accelerator="cpu", max_steps=args.steps, callbacks=[callback], logger=False,
    enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
)  # fmt: skip
trainer.fit(Model(), DataLoader(TensorDataset(x, y), batch_size=64, shuffle=True))
print(callback.meter.affinity(), callback.grouping, sep="\n\n")
