"""A slow, obvious implementation of the affinities: deep copies, the real optimizer, no tricks."""

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

LossesOf = Callable[[nn.Module], Mapping[str, Tensor | None]]
Gradient = list[Tensor]
Used = list[bool]  # which of the shared parameters a task uses


@dataclass
class Situation:
    """A model about to be measured; `losses_of(model)` must also work for copies of the model."""

    model: nn.Module
    optimizer: Optimizer
    losses_of: LossesOf
    held_out_of: LossesOf | None
    tasks: Sequence[str]
    weights: Mapping[str, float]
    update: str
    lr: float
    sources: Sequence[str] | None = None


def slow_affinities(situation: Situation) -> dict[str, np.ndarray]:
    """Returns the affinities of every estimator, NaN where a task is missing; restores the random state."""
    start = torch.get_rng_state()
    ran = copy.deepcopy(situation.model)
    losses = present(situation.losses_of(ran))
    # Held-out losses are computed after the training losses: with the buffers and random numbers that these leave.
    looked_from, looked_rng = (ran, torch.get_rng_state()) if situation.held_out_of else (situation.model, start)
    look = situation.held_out_of or situation.losses_of

    def losses_after(model: nn.Module) -> dict[str, Tensor]:
        moved = copy.deepcopy(looked_from)
        for p, q in zip(shared(moved), shared(model), strict=True):
            p.data = q.data.clone()
        torch.set_rng_state(looked_rng)
        return present(look(moved))

    before = losses_after(looked_from)
    with_used = {t: gradient_at(situation.model, start, situation.losses_of, t) for t in losses}
    own = {t: gradient for t, (gradient, _) in with_used.items()}
    theirs = {t: gradient_at(looked_from, looked_rng, look, t)[0] for t in before}

    def effects(gradient: Gradient, used: Used) -> tuple[dict[str, float], dict[str, float]]:
        """Returns what the step on a gradient does to every target, exactly and to first order."""
        model = step_on(situation, gradient, used)
        after = losses_after(model)
        step = [q.detach() - p.detach() for p, q in zip(shared(situation.model), shared(model), strict=True)]
        exact = {t: (1 - after[t] / before[t]).item() for t in before}
        return exact, {t: -dot(theirs[t], step) / before[t].item() for t in before}

    sources = [t for t in situation.sources or situation.tasks if t in losses]
    null = ({}, {})
    if len(sources) < len(situation.tasks) and situation.update == "optimizer":
        zeros = [torch.zeros_like(p) for p in shared(situation.model)]
        null = effects(zeros, [True] * len(zeros))
    names = ("lookahead", "gradient", "cosine", "cosine_kernels", "centered_cosine")
    found = {name: np.full((len(situation.tasks), len(situation.tasks)), np.nan) for name in names}
    center, their_center = (mean(gradients.values()) for gradients in (own, theirs))
    centered = min(len(own), len(theirs)) > 2  # two centered gradients are always opposite
    for source in sources:
        weight = situation.weights.get(source, 1.0)
        steps = effects([weight * g for g in own[source]], with_used[source][1])
        for target in before:
            at, g, h = (situation.tasks.index(source), situation.tasks.index(target)), own[source], theirs[target]
            for name, values, shift in zip(names, steps, null, strict=False):
                found[name][at] = values[target] - shift.get(target, 0.0)
            found["cosine"][at] = cosine(g, h)
            found["cosine_kernels"][at] = cosine(*([x for x in gradient if x.dim() > 1] for gradient in (g, h)))
            found["centered_cosine"][at] = (
                cosine(minus(g, center), minus(h, their_center)) if centered else cosine(g, h)
            )
    torch.set_rng_state(start)
    return found


def step_on(situation: Situation, gradient: Gradient, used: Used) -> nn.Module:
    """Returns a copy of the model after the step on a gradient of the shared parameters that are used."""
    model, optimizer = copy.deepcopy((situation.model, situation.optimizer))
    if situation.update == "sgd":
        for p, g in zip(shared(model), gradient, strict=True):
            p.data = p.data - situation.lr * g
        return model
    model.zero_grad()
    for p, g, is_used in zip(shared(model), gradient, used, strict=True):
        p.grad = g.clone() if is_used else None
    optimizer.step()
    return model


def gradient_at(model: nn.Module, rng: Tensor, look: LossesOf, target: str) -> tuple[Gradient, Used]:
    here = copy.deepcopy(model)
    torch.set_rng_state(rng)
    found = torch.autograd.grad(present(look(here))[target], shared(here), allow_unused=True)
    gradient = [torch.zeros_like(p) if g is None else g for g, p in zip(found, shared(here), strict=True)]
    return gradient, [g is not None for g in found]


def shared(model: nn.Module) -> list[nn.Parameter]:
    return [p for p in model.encoder.parameters() if p.requires_grad]


def present(losses: Mapping[str, Tensor | None]) -> dict[str, Tensor]:
    return {t: x for t, x in losses.items() if x is not None and not torch.isnan(x)}


def dot(left: Gradient, right: Gradient) -> float:
    return sum((a * b).sum().item() for a, b in zip(left, right, strict=True))


def cosine(left: Gradient, right: Gradient) -> float:
    norms = (dot(left, left) * dot(right, right)) ** 0.5
    return dot(left, right) / norms if norms else np.nan  # no direction, no cosine


def mean(gradients: Iterable[Gradient]) -> Gradient:
    return [torch.stack(parts).mean(0) for parts in zip(*gradients, strict=True)]


def minus(left: Gradient, right: Gradient) -> Gradient:
    return [a - b for a, b in zip(left, right, strict=True)]
