"""A slow, obvious implementation of the affinities: deep copies, the real optimizer, no tricks."""

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

LossesOf = Callable[[nn.Module], Mapping[str, Tensor | None]]


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
    losses = _present(situation.losses_of(ran))
    looked_from, looked_rng = (ran, torch.get_rng_state()) if situation.held_out_of else (situation.model, start)
    look = situation.held_out_of or situation.losses_of
    torch.set_rng_state(looked_rng)
    before = _present(look(copy.deepcopy(looked_from)))
    sources = [t for t in situation.sources or situation.tasks if t in losses]
    found = {name: _nans(situation.tasks) for name in ("lookahead", "gradient", "cosine", "centered_cosine")}
    own = {t: _flat_gradient(situation.model, start, situation.losses_of, t) for t in losses}
    theirs = {t: _flat_gradient(looked_from, looked_rng, look, t) for t in before}
    null_row = None
    if len(sources) < len(situation.tasks) and situation.update == "optimizer":
        null_row = _row(situation, None, start, looked_from, looked_rng, look, before)
    for i, source in enumerate(situation.tasks):
        if source not in sources:
            continue
        row = _row(situation, source, start, looked_from, looked_rng, look, before)
        for j, target in enumerate(situation.tasks):
            if target in before:
                found["centered_cosine"][i, j] = _centered_cosine(own, theirs, source, target)
                for name, values in row.items():
                    shift = null_row[name][target] if null_row and name != "cosine" else 0.0
                    found[name][i, j] = values[target] - shift
    torch.set_rng_state(start)
    return found


def _row(situation, source, start, looked_from, looked_rng, look, before):  # type: ignore[no-untyped-def]
    """Returns what the step on one source (None: on a zero gradient) does to every target."""
    model, optimizer = copy.deepcopy((situation.model, situation.optimizer))
    shared = [p for p in model.encoder.parameters() if p.requires_grad]
    theta = [p.detach().clone() for p in shared]
    gradient = [torch.zeros_like(p) for p in shared]
    torch.set_rng_state(start)
    losses = _present(situation.losses_of(model))
    if source is not None:
        own = torch.autograd.grad(losses[source], shared, allow_unused=True)
        gradient = [torch.zeros_like(p) if g is None else g for g, p in zip(own, shared, strict=True)]
    weight = situation.weights.get(source, 1.0)
    _take_step(situation, model, optimizer, shared, [weight * g for g in gradient])
    step = [p.detach() - t for p, t in zip(shared, theta, strict=True)]
    moved = copy.deepcopy(looked_from)
    for p, q in zip([p for p in moved.encoder.parameters() if p.requires_grad], shared, strict=True):
        p.data = q.data.clone()
    torch.set_rng_state(looked_rng)
    after = _present(look(moved))
    values = {name: {} for name in ("lookahead", "gradient", "cosine")}
    for target in before:
        g = _gradient_at(looked_from, looked_rng, look, target)
        values["lookahead"][target] = (1 - after[target] / before[target]).item()
        values["gradient"][target] = -_dot(g, step) / before[target].item()
        norms = (_dot(gradient, gradient) * _dot(g, g)) ** 0.5
        values["cosine"][target] = _dot(gradient, g) / norms if norms else np.nan  # no direction, no cosine
    return values


def _flat_gradient(model: nn.Module, rng: Tensor, look: LossesOf, task: str) -> Tensor:
    return torch.cat([g.flatten() for g in _gradient_at(model, rng, look, task)])


def _centered_cosine(own: Mapping[str, Tensor], theirs: Mapping[str, Tensor], source: str, target: str) -> float:
    """Returns the cosine of two gradients minus the means over all tasks; two tasks are not centered."""
    g, h = own[source], theirs[target]
    if min(len(own), len(theirs)) > 2:
        g, h = g - torch.stack(list(own.values())).mean(0), h - torch.stack(list(theirs.values())).mean(0)
    norms = (g.norm() * h.norm()).item()
    return g.dot(h).item() / norms if norms else np.nan


def _take_step(situation, model, optimizer, shared, gradient):  # type: ignore[no-untyped-def]
    if situation.update == "sgd":
        for p, g in zip(shared, gradient, strict=True):
            p.data = p.data - situation.lr * g
        return
    for p in model.parameters():
        p.grad = None
    for p, g in zip(shared, gradient, strict=True):
        p.grad = g.clone()
    optimizer.step()


def _gradient_at(model: nn.Module, rng: Tensor, look: LossesOf, target: str) -> list[Tensor]:
    here = copy.deepcopy(model)
    torch.set_rng_state(rng)
    shared = [p for p in here.encoder.parameters() if p.requires_grad]
    found = torch.autograd.grad(_present(look(here))[target], shared, allow_unused=True)
    return [torch.zeros_like(p) if g is None else g for g, p in zip(found, shared, strict=True)]


def _present(losses: Mapping[str, Tensor | None]) -> dict[str, Tensor]:
    return {t: x for t, x in losses.items() if x is not None and not torch.isnan(x)}


def _dot(left: list[Tensor], right: list[Tensor]) -> float:
    return sum((a * b).sum().item() for a, b in zip(left, right, strict=True))


def _nans(tasks: Sequence[str]) -> np.ndarray:
    return np.full((len(tasks), len(tasks)), np.nan)
