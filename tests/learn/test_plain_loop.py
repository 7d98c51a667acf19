"""Networks trained alone or in a stack equal those of a plain loop in float64, whatever their tasks and settings."""

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from sklearn import metrics
from torch import Tensor, nn
from torch.nn import functional

from tagalong.learn import (
    MLP,
    Job,
    Problem,
    Recipe,
    Split,
    TabM,
    TabMHeads,
    Task,
    Trained,
    build_network,
    derive_seed,
    train,
    train_many,
    why_not_batched,
)

pytestmark = pytest.mark.usefixtures("one_thread")
RECIPE = Recipe(lr=0.05, batch_size=23, epochs=10, patience=None)  # 30 steps: batches of 23, 23 and 24 rows
ROWS = {"train": 70, "val": 31, "test": 29}


# The plain loop ------------------------------------------------------------------------------------------------------


class PlainDropout(nn.Dropout):
    def forward(self, values: Tensor) -> Tensor:
        if not self.training:
            return values
        keep = torch.empty(values.shape, dtype=values.dtype).bernoulli_(1 - self.p)
        return values * keep / (1 - self.p)


def plain_loop(problem: Problem, job: Job, targets: dict[str, Tensor] | None = None) -> dict[str, Any]:
    recipe, tasks = replace(problem.recipe, lr=job.lr or problem.recipe.lr), [problem.task(name) for name in job.tasks]
    weights = {part: split.weights for part, split in problem.splits.items()}
    weights |= {} if job.weighting is None else problem.weightings[job.weighting]
    network = build_network(problem.weighted(job.weighting), job.tasks, job.seed, job.width)
    for module in network.modules():
        if isinstance(module, nn.Dropout):
            module.__class__ = PlainDropout
    parameters = [parameter for parameter in network.parameters() if parameter.requires_grad]
    if recipe.optimizer == "sgd":
        optimizer = torch.optim.SGD(parameters, momentum=recipe.momentum, weight_decay=recipe.weight_decay)
    else:
        kind = torch.optim.Adam if recipe.optimizer == "adam" else torch.optim.AdamW
        optimizer = kind(parameters, weight_decay=recipe.weight_decay)

    def outputs_on(inputs: Tensor, step: int) -> dict[str, Tensor]:
        torch.manual_seed(derive_seed(job.seed, "masks", "encoder", step))
        features, outputs = network.encoder(inputs), {}
        for task, head in zip(tasks, network.heads, strict=True):
            torch.manual_seed(derive_seed(job.seed, "masks", task.name, step))
            outputs[task.name] = head(features)
        return outputs

    def losses_on(split: Split, part: str) -> list[float]:
        network.eval()
        with torch.no_grad():
            outputs = outputs_on(split.inputs, 0)
        network.train()
        if part == "test":
            outputs = {task.name: floored(task, outputs[task.name], problem.train.targets[task.name]) for task in tasks}
        return [mean(task, outputs[task.name], split.targets[task.name], weights[part]).item() for task in tasks]

    labels, curve, steps, best = {**problem.train.targets, **(targets or {})}, [], 0, (math.inf, -1, network)
    for epoch in range(recipe.epochs):
        draw = torch.Generator().manual_seed(derive_seed(job.seed, "rows", epoch))
        batches = list(torch.randperm(len(problem.train), generator=draw).split(recipe.batch_size))
        if len(batches[-1]) == 1:
            batches[-2:] = [torch.cat(batches[-2:])]
        rate = {"constant": 1, "step": recipe.factor ** (epoch // recipe.period)}
        rate["cosine"] = (1 + math.cos(math.pi * epoch / recipe.epochs)) / 2
        optimizer.param_groups[0]["lr"] = recipe.lr * rate[recipe.schedule]
        for batch in batches:
            outputs = outputs_on(problem.train.inputs[batch], steps)
            row_weights = None if weights["train"] is None else weights["train"][batch]
            losses = [mean(task, outputs[task.name], labels[task.name][batch], row_weights) for task in tasks]
            optimizer.zero_grad()
            sum(task.weight * loss for task, loss in zip(tasks, losses, strict=True)).backward()
            optimizer.step()
            steps += 1
        curve.append(losses_on(problem.val, "val"))
        loss = sum(task.weight * value for task, value in zip(tasks, curve[-1], strict=True))
        if recipe.keep == "last" or loss < best[0]:
            best = loss, epoch, copy.deepcopy(network)
        if recipe.patience is not None and epoch - best[1] >= recipe.patience:
            break
    network = best[2]
    found = {"curve": curve, "best_epoch": best[1], "steps": steps, "state": network.state_dict()}
    return found | {"test": losses_on(problem.test, "test"), "errors": errors(problem, network, weights["test"])}


def mean(task: Task, outputs: Tensor, targets: Tensor, weights: Tensor | None) -> Tensor:
    """The weighted mean of the losses of all rows that have a label, averaged over the members of a network."""
    members = len(outputs) // len(targets)
    weights = torch.ones(len(targets)) if weights is None else weights
    losses, total = outputs.sum() * 0, 0.0
    for row, weight in enumerate(weights.tolist()):
        known = targets[row].isfinite()
        if weight and known.any():
            answers = outputs[row * members : (row + 1) * members]
            losses = losses + weight * torch.stack([row_loss(task, own, targets[row], known) for own in answers]).mean()
            total += weight
    return losses / (total or 1)


def floored(task: Task, outputs: Tensor, labels: Tensor) -> Tensor:
    """Outputs for scores, in which no probability is below 1 / (2 · training labels)."""
    least = 0.5 / labels.isfinite().sum()
    if task.kind == "binary":
        return outputs.sigmoid().clamp(least, 1 - least).logit()
    return outputs.softmax(1).clamp(min=least).log() if task.kind == "multiclass" else outputs


def row_loss(task: Task, output: Tensor, target: Tensor, known: Tensor) -> Tensor:
    if task.loss is not None:
        return task.loss(output[None], target[None])[0]
    if task.kind == "regression":
        return (output.view_as(target) - target)[known].square().mean()
    weights = torch.tensor(task.class_weights or [1.0] * max(2, task.head_size), dtype=output.dtype)
    logs = output.log_softmax(0) if task.kind == "multiclass" else functional.logsigmoid(torch.cat([-output, output]))
    if target.dim():
        shares = target  # the answer of another network
    elif task.kind == "multiclass":
        shares = functional.one_hot(target.long(), task.head_size)
    else:
        shares = torch.stack([1 - target, target])
    return -(weights * shares * logs).sum()


def errors(problem: Problem, network: nn.Module, weights: Tensor | None) -> dict[str, float]:
    """The errors on the test rows, by scikit-learn."""
    with torch.no_grad():
        outputs = network.eval()(problem.test.inputs)
    found = {}
    for name, values in outputs.items():
        targets, task = problem.test.targets[name], problem.task(name)
        if task.kind == "custom" or targets.dim() > 1:
            continue
        rows = targets.isfinite() & (torch.ones(len(targets)) if weights is None else weights).bool()
        actual, answers = targets[rows].numpy(), values[rows].squeeze(1).numpy()
        measure: Callable[..., float] = {
            "auroc": lambda *given, **more: 1 - metrics.roc_auc_score(*given, **more),
            "auprc": lambda *given, **more: 1 - metrics.average_precision_score(*given, **more),
            "error rate": metrics.zero_one_loss,
            "mae": metrics.mean_absolute_error,
            "rmse": metrics.root_mean_squared_error,
            "r2": lambda *given, **more: 1 - metrics.r2_score(*given, **more),
        }[task.error_name]
        if task.error_name == "error rate":
            answers = answers.argmax(1) if task.kind == "multiclass" else answers > 0
        found[name] = measure(actual, answers, sample_weight=None if weights is None else weights[rows].numpy())
    return found


# The cases -----------------------------------------------------------------------------------------------------------


def pseudo_huber(outputs: Tensor, targets: Tensor) -> Tensor:
    return ((outputs.squeeze(1) - targets).square() + 1).sqrt()


KINDS = (
    Task("size", "regression"),
    Task("ill", class_weights=(1, 3), error="auroc"),
    Task("sort", "multiclass", classes=3, weight=0.5),
    Task("height", "regression", weight=2.0, error="r2"),
    Task("old", error="auprc"),
    Task("shape", "multiclass", classes=3, class_weights=(1, 2, 0.5)),
    Task("color", "multiclass", classes=3),
    Task("young", class_weights=(1, 3)),
)
OWN = (
    Task("price", "custom", loss=pseudo_huber),
    Task("place", "regression", outputs=2),
    Task("size", "regression", error="rmse"),
    Task("rent", "regression", loss=lambda out, target: (out.squeeze(1) - target).abs()),
)


PLAIN, WITH_DROPOUT = MLP(6, (9, 5)), MLP(6, (9, 5), dropout=0.3)


def make_problem(
    tasks: Sequence[Task] = KINDS[:4], encoder: Any = PLAIN, missing: float = 0.2, **settings: Any
) -> Problem:
    """Six inputs per row, and noisy targets that depend on them."""
    generator = torch.Generator().manual_seed(7)
    splits = {}
    for part, rows in ROWS.items():
        inputs = torch.randn(rows, 6, generator=generator, dtype=torch.float64)
        targets = {}
        for place, task in enumerate(tasks):
            shape = (rows, 2) if task.outputs == 2 else (rows,)
            value = inputs[:, [place % 6, (place + 1) % 6]].view(rows, 2)[:, : len(shape)].squeeze(1)
            value = value + torch.randn(shape, generator=generator, dtype=torch.float64)
            value = {"binary": (value > 0).double(), "multiclass": value.round().clamp(-1, 1) + 1}.get(task.kind, value)
            targets[task.name] = value.masked_fill(torch.rand(shape, generator=generator) < missing, torch.nan)
        splits[part] = Split(inputs, targets)
    return Problem("plain", tuple(tasks), **splits, encoder=encoder, **{"recipe": RECIPE, **settings})


def draw_weights(rows: int, seed: int) -> Tensor:
    """Weights like those of a bootstrap resample, a quarter of them 0."""
    return torch.randint(0, 4, (rows,), generator=torch.Generator().manual_seed(seed)).double() / 3


def weigh_rows(problem: Problem) -> Problem:
    parts = {part: replace(split, weights=draw_weights(len(split), 0)) for part, split in problem.splits.items()}
    return replace(problem, **parts)


def weigh_networks(problem: Problem) -> Problem:
    """Two names of weights: some for all rows, and others for training rows alone."""
    resample = {part: draw_weights(rows, 1) for part, rows in ROWS.items()}
    return replace(weigh_rows(problem), weightings={"resample": resample, "half": {"train": draw_weights(70, 2)}})


class Gated(nn.Module):
    """A module of a user, with a parameter, a buffer that changes, and a frozen layer."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen = nn.Linear(6, 8).requires_grad_(False)
        self.gate = nn.Parameter(torch.randn(8))
        self.register_buffer("seen", torch.zeros(8, dtype=torch.float64))

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.frozen(inputs).tanh()
        if self.training:
            self.seen.add_(hidden.detach().mean(0))
        return hidden * self.gate.sigmoid()


def normalized() -> nn.Module:
    images = [nn.Unflatten(1, (1, 2, 3)), nn.Conv2d(1, 4, 2, bias=False), nn.BatchNorm2d(4, momentum=0.3), nn.ReLU()]
    return nn.Sequential(*images, nn.Flatten(), nn.Linear(8, 6, bias=False), nn.BatchNorm1d(6), nn.GELU())


def own_head(features: int) -> nn.Module:
    return nn.Sequential(nn.Linear(features, 6, bias=False), nn.BatchNorm1d(6), nn.Dropout(0.4), nn.Linear(6, 1))


CASES: dict[str, Callable[[], Problem]] = {
    "every kind of task": lambda: make_problem(KINDS),
    "no missing labels": lambda: make_problem(KINDS, missing=0.0),
    "batches without labels": lambda: make_problem(missing=0.9),
    "own losses and dense targets": lambda: make_problem(OWN),
    "weights of rows": lambda: weigh_rows(make_problem((*KINDS, *OWN[:2]))),
    "weights of each network": lambda: weigh_networks(make_problem((*KINDS[:4], *OWN[:1]), WITH_DROPOUT)),
    "base rates of weighted rows": lambda: weigh_networks(
        make_problem(KINDS, recipe=replace(RECIPE, start_heads="base_rate"))
    ),
    "dropout": lambda: make_problem(encoder=WITH_DROPOUT),
    "no weights before the heads": lambda: make_problem(encoder=lambda: nn.Sequential(nn.Tanh(), nn.Dropout(0.5))),
    "batchnorm": lambda: make_problem(encoder=normalized),
    "own heads": lambda: make_problem(
        (Task("size", "regression", head=own_head), Task("ill", head=own_head), Task("old")), WITH_DROPOUT
    ),
    "own modules": lambda: make_problem(encoder=Gated),
    "members": lambda: make_problem((*KINDS[:4], OWN[3]), TabM(6, (7, 5), 0.2, members=3), head=TabMHeads(3)),
    "sgd with steps": lambda: make_problem(recipe=replace(RECIPE, optimizer="sgd", schedule="step", period=3)),
    "adam with cosine": lambda: make_problem(recipe=replace(RECIPE, optimizer="adam", schedule="cosine", lr=0.1)),
    "early stopping": lambda: weigh_rows(make_problem(recipe=replace(RECIPE, lr=0.2, patience=1))),
    "last weights": lambda: make_problem(recipe=replace(RECIPE, lr=0.2, keep="last")),
    "a last batch of one row": lambda: make_problem(recipe=replace(RECIPE, batch_size=23 * 3), encoder=normalized),
}


def assert_equal(trained: Trained, plain: dict[str, Any]) -> None:
    np.testing.assert_allclose(trained.curve, plain["curve"], rtol=1e-9)
    assert (trained.best_epoch, trained.steps) == (plain["best_epoch"], plain["steps"])
    np.testing.assert_allclose([score.loss for score in trained.test.values()], plain["test"], rtol=1e-9)
    np.testing.assert_allclose([np.nanmean(score.rows) for score in trained.test.values()], plain["test"], rtol=1e-6)
    for task, error in plain["errors"].items():
        assert trained.test[task].error == pytest.approx(error, rel=1e-9)
    assert trained.state.keys() == plain["state"].keys()
    for name, tensor in plain["state"].items():
        torch.testing.assert_close(trained.state[name], tensor, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("case", CASES)
def test_networks_trained_alone_or_together_equal_those_of_a_plain_loop(case: str) -> None:
    problem = CASES[case]()
    weightings, width = [None, *problem.weightings] * 7, 2.0 if case == "dropout" else 1.0
    jobs = [
        Job(tasks, seed, width=width, lr=None if number else 0.02, weighting=weightings[number + seed])
        for seed in (0, 3)
        for number, tasks in enumerate((problem.names, problem.names[1:], problem.names[:1], problem.names[::2]))
    ]
    assert why_not_batched(problem, jobs) is None
    together = {trained.job: trained for trained in train_many(problem, jobs)}
    for job in jobs[::3]:
        plain = plain_loop(problem, job)
        assert_equal(train(problem, job), plain)
        assert_equal(together[job], plain)


def test_networks_with_targets_of_their_own_equal_those_of_a_plain_loop() -> None:
    problem = make_problem(KINDS)
    draw = torch.Generator().manual_seed(1)
    soft = torch.rand(70, 3, generator=draw, dtype=torch.float64).softmax(1)
    soft[::7] = torch.nan
    jobs = [Job(problem.names[:6], seed, lr=lr) for seed in (0, 1) for lr in (None, 0.02)]
    targets = {
        jobs[0]: {"sort": soft, "shape": soft.flip(0), "size": problem.train.inputs[:, 0]},
        jobs[3]: {"ill": soft[:, 0], "sort": soft},
    }
    together = {trained.job: trained for trained in train_many(problem, jobs, targets=targets)}
    for job in jobs:
        plain = plain_loop(problem, job, targets.get(job))
        assert_equal(train(problem, job, targets=targets.get(job)), plain)
        assert_equal(together[job], plain)
