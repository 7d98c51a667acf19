"""Affinities of short loops in float64: means, standard errors and counts as they were first measured."""

import copy
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD, AdamW, Optimizer

from ranks import on_ranks
from tagalong import Affinity, AffinityMeter
from tagalong.measure import RoundRobin, Schedule

pytestmark = pytest.mark.usefixtures("one_thread")

TASKS = ("a", "b", "c")
STEPS, ROWS = 20, 16
ESTIMATORS = ("lookahead", "gradient", "cosine")
ALL_ESTIMATORS = (*ESTIMATORS, "cosine_kernels", "centered_cosine")
OPTIMIZERS: dict[str, Callable[[Any], Optimizer]] = {
    "sgd": lambda parameters: SGD(parameters, lr=0.1, momentum=0.9, weight_decay=0.01),
    "adamw": lambda parameters: AdamW(parameters, lr=0.02, weight_decay=0.1),
}
DATA_PARALLEL = ("plain", "missing labels, held out", "labels of some rows")
SINGLE_PRECISION = {"rtol": 1e-5, "atol": 1e-7}  # in which streaming affinities add up projections
Golden = Callable[..., None]
Losses = dict[str, Tensor]


class LastQuarter(Schedule):
    def due(self, call: int) -> bool:
        return call >= 3 * STEPS // 4


class Network(nn.Module):
    """Two shared layers and one head per task.

    Args:
        noisy: whether the first layer normalises its batch and drops units.
        early: the tasks whose heads read the first layer only, so that they do not use the second one.
    """

    def __init__(self, noisy: bool = False, early: tuple[str, ...] = ()) -> None:
        super().__init__()
        linear = partial(nn.Linear, dtype=torch.float64)  # initial values in float32 depend on the kind of CPU
        self.encoder = nn.ModuleList([linear(3, 4), linear(4, 4)])
        self.norm = nn.BatchNorm1d(4, dtype=torch.float64) if noisy else None
        self.heads = nn.ModuleDict({task: linear(4, 1) for task in TASKS})
        self.early = early

    def forward(self, x: Tensor) -> Losses:
        first = torch.tanh(self.encoder[0](x))
        if self.norm is not None:
            # The mask is drawn here because the random numbers of nn.Dropout depend on how torch was built.
            first = self.norm(first) * (torch.rand_like(first) > 0.3)
        second = torch.tanh(self.encoder[1](first))
        return {task: head(first if task in self.early else second)[:, 0] for task, head in self.heads.items()}


class Batch(NamedTuple):
    """Rows, their labels (NaN where missing), and the number of labels of every task over all ranks."""

    x: Tensor
    y: Tensor
    labels: list[int]


def batches(rank: int, world: int, labels: str) -> Iterator[tuple[Batch, Batch]]:
    """Yields the rank's share of a training batch and of a held-out batch for every step."""
    draw = torch.Generator().manual_seed(1)
    teachers = torch.randn(3, len(TASKS), generator=draw, dtype=torch.float64)
    for step in range(STEPS):
        pair = []
        for _ in range(2):
            x = torch.randn(ROWS, 3, generator=draw, dtype=torch.float64)
            y = torch.tanh(x @ teachers) + 0.3 * torch.randn(ROWS, len(TASKS), generator=draw, dtype=torch.float64)
            if labels == "some rows":  # the first of two ranks has no label of b
                y[:8, 1] = y[4:13, 2] = torch.nan
            if labels == "some steps" and step % 4 == 1:
                y[:, step % 3] = torch.nan
            counts = (~y.isnan()).sum(0).tolist()
            here = slice(rank * ROWS // world, (rank + 1) * ROWS // world)
            pair.append(Batch(x[here], y[here], counts))
        yield pair[0], pair[1]


def task_losses(network: nn.Module, batch: Batch) -> Losses:
    """Returns the mean squared error over the labelled rows of every task, NaN if there are none."""
    losses = {}
    for j, (task, output) in enumerate(network(batch.x).items()):
        labelled = ~batch.y[:, j].isnan()
        losses[task] = (output[labelled] - batch.y[labelled, j]).pow(2).mean()
    return losses


def call(meter: AffinityMeter, form: str, closure: Callable[[], Losses], held_out: Callable[[], Losses] | None) -> Any:
    """Calls the meter in one of the forms that users choose from."""
    if form == "one closure per task":
        apart = [{t: lambda t=t, f=f: f()[t] for t in TASKS} for f in (closure, held_out) if f is not None]
        return meter(*apart)
    if form == "losses and more":
        return meter(lambda: (closure(), "more"), held_out)[0]
    if form == "measure only":
        meter.measure_only(closure, held_out)
        return closure()
    return meter(closure, held_out)


def train(
    optimizer: str = "sgd",
    *,
    form: str = "one closure",
    labels: str = "all",
    held_out: bool = False,
    resumed_at: int = STEPS,
    rank: int = 0,
    world: int = 1,
    network: dict[str, Any] | None = None,
    **options: Any,
) -> AffinityMeter:
    """Trains for a few steps, measuring every other one, and returns the meter.

    Args:
        optimizer: the name of the optimizer.
        form: the form of the closure, or what else differs in how the meter is used.
        labels: "all", or which labels exist: on "some steps", or of "some rows".
        held_out: whether losses are held out.
        resumed_at: the step at which a new meter goes on from the state of the first.
        rank: the number of this process.
        world: the number of processes, which share the rows.
        network: the options of the network.
        options: the options of the meter.
    """
    torch.manual_seed(0)
    inner = Network(**(network or {}))
    model = inner if world == 1 else DistributedDataParallel(inner, find_unused_parameters=labels != "all")
    steps = OPTIMIZERS[optimizer](inner.parameters())
    options = {"every": 2, "tasks": TASKS} | options
    meter = AffinityMeter(inner.encoder, steps, **options)
    scaler = options.get("scaler", torch.amp.GradScaler("cpu", enabled=False))
    for number, (batch, other) in enumerate(batches(rank, world, labels)):
        if number == resumed_at:
            state, meter = meter.state_dict(), AffinityMeter(inner.encoder, steps, **options)
            meter.load_state_dict(state)

        def closure(batch: Batch = batch, number: int = number) -> Any:
            losses = task_losses(model, batch)
            if labels == "some steps" and number % 4 == 3:
                del losses[TASKS[number // 4 % 3]]
            if form == "pairs":
                counts = (~batch.y.isnan()).sum(0).tolist()
                return {t: (losses[t], n) for t, n in zip(TASKS, counts, strict=True) if n}
            return losses

        returned = call(meter, form, closure, (lambda other=other: task_losses(model, other)) if held_out else None)
        losses = {task: loss[0] if isinstance(loss, tuple) else loss for task, loss in returned.items()}
        # What a process that has the rows of all ranks would train on.
        shares = (~batch.y.isnan()).sum(0) * world / torch.tensor(batch.labels, dtype=torch.float64)
        total = sum(shares[TASKS.index(task)] * loss for task, loss in losses.items() if loss.isfinite())
        if form == "meter.backward":
            meter.backward()
        else:
            scaler.scale(total).backward()
        scaler.step(steps)
        scaler.update()
        steps.zero_grad()
    return meter


def stream(optimizer: str, rank: int = 0, world: int = 1) -> AffinityMeter:
    """Trains on one task after the other, and shows every gradient to a meter."""
    torch.manual_seed(0)
    inner = Network()
    model = inner if world == 1 else DistributedDataParallel(inner, find_unused_parameters=True)
    steps = OPTIMIZERS[optimizer](inner.parameters())
    # So many buckets that every parameter has one of its own: the affinity does not depend on the hashing.
    meter = AffinityMeter(inner.encoder, steps, estimator="streaming", sketch_dimension=20011)
    for number, pair in enumerate(batches(rank, world, "all")):
        for task, batch in ((TASKS[number % 3], pair[0]), (TASKS[(number + 1) % 3], pair[1])):
            loss = task_losses(model, batch)[task]
            loss.backward()
            meter.observe(task)
            steps.step()
            steps.zero_grad()
    return meter


def record(affinity: Affinity) -> dict[str, Any]:
    names = ["mean", "stderr", "count"]
    if "cosine" in affinity.settings.get("estimator", ""):
        # A task's cosine with itself is 1. How that rounds decides the block length of all standard errors.
        names.remove("stderr")
    return {name: getattr(affinity, name).tolist() for name in names}


CASES: dict[str, dict[str, Any]] = {
    "plain": {"estimator": ALL_ESTIMATORS},
    "held out": {"held_out": True, "estimator": ALL_ESTIMATORS},
    "missing labels": {"labels": "some steps", "every": RoundRobin(1), "estimator": ALL_ESTIMATORS},
    "missing labels, held out": {
        "labels": "some steps",
        "every": RoundRobin(1),
        "held_out": True,
        "estimator": ALL_ESTIMATORS,
    },
    "labels of some rows": {"labels": "some rows", "form": "pairs"},
    "loss weights": {"weights": {"a": 0.5, "b": 2.0, "c": 1.0}, "estimator": ("lookahead", "gradient")},
    "sgd step": {"update": "sgd", "lr": 0.05, "estimator": ("lookahead", "gradient")},
    "per learning rate": {"per_lr": True, "estimator": ("lookahead",)},
    "window": {"every": LastQuarter(), "estimator": ("lookahead",)},
    "noise": {"network": {"noisy": True}},
    "unused parameters": {"network": {"early": ("a",)}},
}
# Other ways to measure what a case measures.
SAME: dict[str, tuple[str, dict[str, Any]]] = {
    **{f"only {name}": ("plain", {"estimator": (name,)}) for name in ALL_ESTIMATORS},
    **{
        f"{form}, {case}": (case, {"form": form, "estimator": ALL_ESTIMATORS})
        for case in ("plain", "held out")
        for form in ("one closure per task", "measure only", "losses and more", "pairs", "meter.backward")
    },
    "resumed": ("plain", {"resumed_at": 9}),
    "resumed, missing labels": ("missing labels", {"resumed_at": 9, "estimator": ALL_ESTIMATORS}),
    "scaler": ("plain", {"scaler": torch.amp.GradScaler("cpu", init_scale=1024.0)}),
}


def records(case: str, optimizer: str, rank: int = 0, world: int = 1, **others: Any) -> dict[str, Any]:
    """Returns what is measured in a case, by the names of the golden entries."""
    options = {"estimator": ESTIMATORS} | CASES[case] | copy.deepcopy(others)
    meter = train(optimizer, rank=rank, world=world, **options)
    return {f"{case}, {optimizer}, {name}": record(meter.affinity(name)) for name in options["estimator"]}


def streamed_records(optimizer: str, rank: int = 0, world: int = 1) -> dict[str, Any]:
    return {f"streaming, {optimizer}": record(stream(optimizer, rank, world).affinity())}


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("case", CASES)
def test_what_is_measured(golden: Golden, case: str, optimizer: str) -> None:
    for name, values in records(case, optimizer).items():
        golden(name, values)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("way", SAME)
def test_other_ways_measure_the_same(golden: Golden, way: str, optimizer: str) -> None:
    case, others = SAME[way]
    for name, values in records(case, optimizer, **others).items():
        golden(name, values)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_streaming(golden: Golden, optimizer: str) -> None:
    for name, values in streamed_records(optimizer).items():
        golden(name, values, **SINGLE_PRECISION)


def measure_on_a_rank(rank: int, world: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns the affinities of a rank, and its streaming affinities."""
    measured, streamed = {}, {}
    for optimizer in OPTIMIZERS:
        for case in DATA_PARALLEL:
            measured |= records(case, optimizer, rank, world)
        streamed |= streamed_records(optimizer, rank, world)
    return measured, streamed


@pytest.mark.skipif(not torch.distributed.is_available(), reason="torch without torch.distributed")
def test_two_ranks_measure_what_one_process_does(golden: Golden, tmp_path: Path) -> None:
    for measured, streamed in on_ranks(2, tmp_path, measure_on_a_rank, 2):
        assert len(measured) >= len(OPTIMIZERS) * len(DATA_PARALLEL) * len(ESTIMATORS)
        for name, values in measured.items():
            golden(name, values)
        for name, values in streamed.items():
            golden(name, values, **SINGLE_PRECISION)


def test_steps_whose_scaled_gradients_overflow_are_skipped() -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**100)
    network, (batch, _) = Network(), next(batches(0, 1, "all"))
    meter = AffinityMeter(network.encoder, update="sgd", lr=0.1, scaler=scaler, every=1)
    for factor in (1e290, 1.0):
        meter(lambda factor=factor: {task: factor * loss for task, loss in task_losses(network, batch).items()})
    assert meter.affinity().steps.tolist() == [1]


def test_backward_accumulates_the_gradient_of_the_weighted_sum() -> None:
    torch.manual_seed(0)
    network = Network()
    twin, weights = copy.deepcopy(network), {"a": 0.5, "b": 2.0, "c": 0.0}
    meter = AffinityMeter(network.encoder, every=2, estimator=ESTIMATORS, update="sgd", lr=0.1)

    def penalty(module: nn.Module) -> Tensor:
        return sum((p.pow(2).sum() for p in module.parameters()), torch.zeros(()))

    for batch, _ in islice(batches(0, 1, "all"), 5):
        meter(lambda batch=batch: task_losses(network, batch))
        meter.backward(weights=weights, extra=penalty(network))
        losses = task_losses(twin, batch)
        (sum(weights[task] * loss for task, loss in losses.items()) + penalty(twin)).backward()
    for ours, theirs in zip(network.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-12, atol=1e-14)


def drifting(tasks: list[str], seed: int) -> Affinity:
    """Returns the affinity of a history with correlated steps and missing values, partly relative to a null step."""
    draw, n = np.random.default_rng(seed), len(tasks)
    history = draw.normal(size=(30, n, n))
    for step in range(1, len(history)):
        history[step] += 0.6 * history[step - 1]
    history += 2 * draw.normal(size=(n, n))
    history[draw.random(history.shape) < 0.2] = np.nan
    null = np.where(draw.random((30, n)) < 0.5, draw.normal(size=(30, n)), np.nan)
    return Affinity.from_history(history, tasks, steps=range(0, 300, 10), null=null)


DERIVED: dict[str, Callable[[Affinity], Affinity]] = {
    "mean": lambda affinity: affinity.averaged("mean"),
    "trimmed": lambda affinity: affinity.averaged("trimmed"),
    "median": lambda affinity: affinity.averaged("median"),
    "between": lambda affinity: affinity.between(50, 200),
    "every": lambda affinity: affinity.every(3),
    "only": lambda affinity: affinity.only(["d", "b"]),
    "leveled": lambda affinity: affinity.leveled(),
    "merged": lambda affinity: affinity.merge(drifting(list("cde"), seed=1)),
}


@pytest.mark.parametrize("name", DERIVED)
def test_what_is_derived_from_a_history(golden: Golden, name: str) -> None:
    golden(f"history, {name}", record(DERIVED[name](drifting(list("abcd"), seed=0))))


@pytest.mark.parametrize("average", ["mean", "trimmed"])
def test_bootstrap_standard_errors(golden: Golden, average: Any) -> None:
    resamples = drifting(list("abcd"), seed=0).averaged(average).bootstrap(100, seed=0)
    golden(f"history, bootstrap of the {average}", resamples.std(axis=0, ddof=1).tolist())


def test_spread_and_settled_groups(golden: Golden) -> None:
    affinity = drifting(list("abcd"), seed=0)
    spread, settled = affinity.spread(), affinity.settled(2)
    golden(
        "history, spread and settled",
        {
            "spread": dict(spread.values),
            "noise": dict(spread.noise),
            "flagged": list(spread.flagged),
            "settled": settled.settled,
            "since": settled.since,
            "groups": {str(fraction): list(map(list, groups)) for fraction, groups in settled.groups.items()},
        },
    )


def test_a_loaded_affinity_equals_the_saved_one(tmp_path: Path) -> None:
    for affinity in (
        train(**CASES["missing labels"]).affinity("lookahead"),
        drifting(list("abcd"), seed=0),
    ):
        affinity.save(tmp_path / "affinity.json")
        loaded = Affinity.load(tmp_path / "affinity.json")
        assert (loaded.tasks, loaded.settings) == (affinity.tasks, affinity.settings)
        for name in ("mean", "stderr", "count", "steps", "history", "null"):
            np.testing.assert_array_equal(getattr(loaded, name), getattr(affinity, name))
