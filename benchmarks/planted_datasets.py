"""Datasets of planted families, and a small transformer that is fine-tuned on one of them per step."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

VOCABULARY, CLASSES, PRETRAINING_DATASETS = 64, 8, 64


@dataclass(frozen=True)
class Setting:
    """The sizes of a run; batch and length are the same for all datasets."""

    device: torch.device
    datasets: int = 50
    families: int = 8
    share: float = 0.5
    width: int = 128
    layers: int = 4
    batch: int = 32
    length: int = 32
    rank: int = 8
    lr: float = 1e-3
    pretraining: int = 300


class PlantedDatasets:
    """Sequences of random tokens, each with a class: the largest entry for it and the token before it in two tables.

    The two tables are the dataset's teacher: √share · (its family's) + √(1 − share) · (its own), so `share` is the
    fraction of its variance that comes from the family. The entries of each class sum to zero, so that classes are
    balanced. As in a language model, there is a loss for every token. The first token names the dataset.
    """

    def __init__(self, setting: Setting, *, count: int, families: int, first_token: int, seed: int) -> None:
        draw = torch.Generator().manual_seed(seed)
        self.family = torch.randperm(count, generator=draw) % families
        common = torch.randn(families, 2, VOCABULARY, CLASSES, generator=draw)
        own = torch.randn(count, 2, VOCABULARY, CLASSES, generator=draw)
        teachers = math.sqrt(setting.share) * common[self.family] + math.sqrt(1 - setting.share) * own
        self._teachers = (teachers - teachers.mean(2, keepdim=True)).to(setting.device)
        self._setting, self._first_token = setting, first_token
        self._draw = torch.Generator(setting.device).manual_seed(seed + 1)

    def batch(self, dataset: int) -> tuple[Tensor, Tensor]:
        s = self._setting
        tokens = torch.randint(VOCABULARY, (s.batch, s.length), generator=self._draw, device=s.device)
        current, previous = self._teachers[dataset]
        labels = (current[tokens] + previous[tokens.roll(1, 1)]).argmax(2)
        name = torch.full_like(tokens[:, :1], self._first_token + dataset)
        return torch.cat([name, tokens], 1), labels


class LoraLinear(nn.Module):
    """A frozen linear layer plus B A, where B starts at zero (Hu et al., 2022)."""

    def __init__(self, base: nn.Linear, rank: int) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.a = nn.Parameter(torch.randn(rank, base.in_features, device=base.weight.device) / math.sqrt(rank))
        self.b = nn.Parameter(torch.zeros(base.out_features, rank, device=base.weight.device))

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + F.linear(F.linear(x, self.a), self.b)


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (part.unflatten(2, (4, -1)).transpose(1, 2) for part in self.qkv(self.norms[0](x)).chunk(3, 2))
        x = x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norms[1](x))))


class Transformer(nn.Module):
    def __init__(self, setting: Setting, tokens: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(tokens, setting.width)
        self.position = nn.Parameter(0.1 * torch.randn(setting.length + 1, setting.width))
        self.blocks = nn.Sequential(*(Block(setting.width) for _ in range(setting.layers)))
        self.head = nn.Sequential(nn.LayerNorm(setting.width), nn.Linear(setting.width, CLASSES))

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = self.blocks(self.embedding(tokens) + self.position)
        return self.head(hidden[:, 1:])


def pretrained(setting: Setting) -> Transformer:
    """Returns a network that has been trained on other datasets, as a model that is fine-tuned has been."""
    torch.manual_seed(0)
    model = Transformer(setting, VOCABULARY + PRETRAINING_DATASETS + setting.datasets).to(setting.device)
    others = PlantedDatasets(
        setting, count=PRETRAINING_DATASETS, families=PRETRAINING_DATASETS, first_token=VOCABULARY, seed=1000
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=setting.lr)
    for step in range(setting.pretraining):
        loss_of(model, *others.batch(step % PRETRAINING_DATASETS)).backward()
        optimizer.step()
        optimizer.zero_grad()
    return model


def with_lora(model: Transformer, setting: Setting) -> Transformer:
    """Freezes the network, and adds low-rank weights to every linear layer of its blocks."""
    model.requires_grad_(False)
    for block in model.blocks:
        for name in ("qkv", "out", "up", "down"):
            setattr(block, name, LoraLinear(getattr(block, name), setting.rank))
    return model


def loss_of(model: nn.Module, tokens: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(model(tokens).flatten(0, 1), labels.flatten())
