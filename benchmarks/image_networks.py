"""The two benchmark networks, with hard parameter sharing: one encoder, and all heads in one layer."""

from collections.abc import Sequence
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class ResidualBlock(nn.Module):
    """conv-BN-ReLU-conv-BN, plus the input (projected if its shape differs)."""

    def __init__(self, inputs: int, outputs: int, stride: int = 1) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(inplace=True),
            nn.Conv2d(outputs, outputs, 3, padding=1, bias=False),
            nn.BatchNorm2d(outputs),
        )
        same = stride == 1 and inputs == outputs
        project = (nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))
        self.shortcut = nn.Identity() if same else nn.Sequential(*project)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.body(x) + self.shortcut(x), inplace=True)


def celeba_encoder() -> nn.Sequential:
    """Makes the shared layers of the CelebA network for 64×64 images; 14,400 features."""
    return nn.Sequential(
        nn.Conv2d(3, 64, 3, padding=1, bias=False),
        nn.BatchNorm2d(64),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(3, stride=2),
        ResidualBlock(64, 64),
        nn.AvgPool2d(2),
        nn.Flatten(),
    )


def resnet18_encoder() -> nn.Sequential:
    """Makes a stem, four stages of two blocks and a global average pool; 512 features, 11 million parameters."""
    stem = [nn.Conv2d(3, 64, 7, stride=2, padding=3, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True)]
    widths = [64, 64, 128, 256, 512]
    blocks = []
    for stage, (inputs, outputs) in enumerate(pairwise(widths)):
        blocks += [ResidualBlock(inputs, outputs, 1 if stage == 0 else 2), ResidualBlock(outputs, outputs)]
    return nn.Sequential(*stem, nn.MaxPool2d(3, stride=2, padding=1), *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten())


# Rows per batch that keep a large GPU busy, so that kernel launches from the host are not the bottleneck.
SATURATING_BATCH = {"celeba": 1024, "resnet18": 2048}
ENCODERS = {"celeba": (celeba_encoder, 14_400), "resnet18": (resnet18_encoder, 512)}


class MultiTaskNetwork(nn.Module):
    """An encoder and two logits per task; all heads form one Linear, so that tasks add no tiny kernels."""

    def __init__(self, network: str, tasks: Sequence[str]) -> None:
        super().__init__()
        make_encoder, features = ENCODERS[network]
        self.tasks = list(tasks)
        self.encoder = make_encoder()
        self.heads = nn.Linear(features, 2 * len(self.tasks))

    def losses(self, images: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """Returns one scalar cross-entropy per task; `labels` is rows × tasks."""
        logits = self.heads(self.encoder(images)).view(len(images), 2, len(self.tasks))
        per_task = F.cross_entropy(logits, labels, reduction="none").mean(0)
        return dict(zip(self.tasks, per_task.unbind(), strict=True))


def random_batch(rows: int, tasks: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Returns random images, each twice with opposite labels, so that training never gets a loss below log 2."""
    row = torch.arange(rows, device=device)
    images = torch.randn(rows // 2 + 1, 3, 64, 64, device=device)
    labels = torch.randint(2, (rows // 2 + 1, tasks), device=device)
    return images[row // 2], (labels[row // 2] + row[:, None]) % 2
