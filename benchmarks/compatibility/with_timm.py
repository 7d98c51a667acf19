"""timm: a convolutional network and a vision transformer as encoders in a plain loop.

Needs: pip install --no-deps timm; pip install pyyaml huggingface_hub safetensors, and the torchvision of your torch
Run:   python benchmarks/compatibility/with_timm.py
"""

from typing import Any

import timm
import torch
from reference import Case, bare, main
from torch import nn

from tagalong import AffinityMeter

TASKS = ("hue", "shape", "size")


class System(nn.Module):
    """An encoder from timm with one linear head per task."""

    def __init__(self, name: str, options: dict[str, Any]) -> None:
        super().__init__()
        self.encoder = timm.create_model(name, num_classes=0, in_chans=1, **options)
        self.heads = nn.ModuleDict({task: nn.Linear(self.encoder.num_features, 1) for task in TASKS})
        self.double()
        self.optimizer = torch.optim.AdamW(self.parameters(), lr=1e-3)

    def losses(self, batch: Any) -> dict[str, torch.Tensor]:
        features = self.encoder(batch[0])
        return {
            t: (head(features)[:, 0] - batch[1][:, k]).pow(2).mean() for k, (t, head) in enumerate(self.heads.items())
        }


def train(system: System, before_step: Any, meter: Any) -> None:
    generator = torch.Generator().manual_seed(7)
    for _ in range(6):
        batch = torch.randn(4, 1, 32, 32, generator=generator).double(), torch.randn(4, 3, generator=generator).double()
        before_step(batch)
        losses = (meter or bare)(lambda batch=batch: system.losses(batch))
        torch.stack(list(losses.values())).sum().backward()
        system.optimizer.step()
        system.optimizer.zero_grad()


def case(name: str, **options: Any) -> Case:
    return Case(
        f"timm, {name}",
        lambda: System(name, options),
        lambda system: system,
        lambda system: system.optimizer,
        lambda system: list(system.encoder.parameters()),
        lambda system, batch: system.losses(batch),
        train,
        lambda system: AffinityMeter(system.encoder, system.optimizer, every=1),
    )


if __name__ == "__main__":
    main(
        [
            case("resnet10t", drop_path_rate=0.1),
            case("vit_tiny_patch16_224", img_size=32, depth=2, drop_path_rate=0.1, proj_drop_rate=0.1),
        ]
    )
