"""Streaming affinities: exact, resumable and without a trace, for tasks that take turns in training."""

import copy
import io
import math
import random
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from small import comparable
from torch import Tensor, nn

from tagalong import Affinity, AffinityMeter

FAMILIES, MEMBERS, INPUTS = 4, 6, 16
TASKS = [f"{family}{member}" for member in range(MEMBERS) for family in range(FAMILIES)]


class LoraNetwork(nn.Module):
    """A frozen network with low-rank weights, whose B starts at zero."""

    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Sequential(nn.Linear(INPUTS, 48), nn.Tanh(), nn.Linear(48, 1)).requires_grad_(False)
        self.a, self.b = nn.Parameter(torch.randn(4, INPUTS) / 4), nn.Parameter(torch.zeros(48, 4))

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.base[0](x) + x @ self.a.T @ self.b.T
        return self.base[2](self.base[1](hidden))


def full_network() -> nn.Module:
    return nn.Sequential(nn.Linear(INPUTS, 48), nn.Tanh(), nn.Linear(48, 1))


class FamilyLosses:
    """Regression on linear teachers, half of whose variance comes from the task's family."""

    def __init__(self, model: nn.Module) -> None:
        draw = torch.Generator().manual_seed(7)
        self.model = model
        common = {str(f): torch.randn(INPUTS, 1, generator=draw) for f in range(FAMILIES)}
        self._teachers = {t: common[t[0]] + torch.randn(INPUTS, 1, generator=draw) for t in TASKS}

    def __call__(self, task: str, x: Tensor | None = None) -> Tensor:
        x = torch.randn(32, INPUTS) if x is None else x
        return (self.model(x) - x @ self._teachers[task]).pow(2).mean()


def train(
    make: Callable[[], nn.Module] = full_network,
    *,
    visits: int = 10,
    observe: bool = True,
    checkpoint_at: int | None = None,
    read_every: int | None = None,
    **options: Any,
) -> tuple[nn.Module, AffinityMeter]:
    """Trains on one task per step in random order, and restarts from a checkpoint at some step."""

    def start() -> tuple[FamilyLosses, torch.optim.Optimizer, AffinityMeter]:
        losses = FamilyLosses(make())
        optimizer = torch.optim.AdamW([p for p in losses.model.parameters() if p.requires_grad], 3e-3)
        chosen = {"estimator": "streaming", "sketch_dimension": 211} | options
        return losses, optimizer, AffinityMeter(losses.model, optimizer, **chosen)

    torch.manual_seed(0)
    losses, optimizer, meter = start()
    draw = np.random.default_rng(0)
    for step, k in enumerate(k for _ in range(visits) for k in draw.permutation(len(TASKS))):
        if step == checkpoint_at:
            file = io.BytesIO()
            torch.save([x.state_dict() for x in (losses.model, optimizer, meter)] + [torch.get_rng_state()], file)
            file.seek(0)
            *states, random_state = torch.load(file, weights_only=True)
            losses, optimizer, meter = start()
            for part, state in zip((losses.model, optimizer, meter), states, strict=True):
                part.load_state_dict(state)
            torch.set_rng_state(random_state)
        if read_every is not None and step % read_every == 3:
            meter.affinity()
        loss = losses(TASKS[k])
        loss.backward()
        if observe:
            meter.observe(TASKS[k])
        optimizer.step()
        optimizer.zero_grad()
    return losses.model, meter


@pytest.fixture(scope="module")
def trained() -> tuple[nn.Module, AffinityMeter]:
    return train()


def nearest_in_family(affinity: Affinity) -> float:
    values = affinity.mean.copy()
    np.fill_diagonal(values, -np.inf)
    best = [affinity.tasks[i] for i in values.argmax(axis=0)]
    return float(np.mean([one[0] == two[0] for one, two in zip(best, affinity.tasks, strict=True)]))


def test_planted_families_are_found_with_counts_errors_and_settings(trained: tuple[nn.Module, AffinityMeter]) -> None:
    meter = trained[1]
    affinity = meter.affinity()
    assert nearest_in_family(affinity) >= 0.9
    assert affinity.tasks == meter.tasks
    assert set(affinity.tasks) == set(TASKS)
    np.testing.assert_array_equal(affinity.mean, affinity.mean.T)
    np.testing.assert_array_equal(affinity.mean.diagonal(), 1.0)
    assert (affinity.count[affinity.count > 0] <= 10).all()
    assert (affinity.stderr[~np.eye(len(TASKS), dtype=bool)] > 0).all()
    assert affinity.settings["estimator"] == "streaming"
    assert affinity.settings["observed"] == meter.observed == 10 * len(TASKS)
    assert "240 gradients observed" in repr(meter)


@pytest.mark.parametrize("tile", [202, 1 << 18])  # smaller and larger than the first layer
@pytest.mark.parametrize("kind", ["SGD", "AdamW"])
def test_gradients_states_and_random_numbers_are_as_without_observing(
    kind: str, tile: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Trains with dropout, BatchNorm, mixed precision and accumulated gradients of two tasks per step."""
    monkeypatch.setattr("tagalong.measure.sketch.CPU_TILE", tile)

    def run(observe: bool) -> Any:
        torch.manual_seed(0)
        layers = nn.Linear(INPUTS, 32), nn.BatchNorm1d(32), nn.Tanh(), nn.Dropout(0.5), nn.Linear(32, 1)
        losses, scaler = FamilyLosses(nn.Sequential(*layers)), torch.amp.GradScaler("cpu", init_scale=256.0)
        optimizer = getattr(torch.optim, kind)(losses.model.parameters(), lr=0.01)
        meter = AffinityMeter(losses.model, optimizer, estimator="streaming", scaler=scaler, sketch_dimension=101)
        seen = []
        for step in range(70):  # more than the meter copies at once
            for k in (0, 1):
                with torch.autocast("cpu", dtype=torch.bfloat16):
                    loss = losses(TASKS[(2 * step + k) % 5])
                scaler.scale(loss).backward()
                if observe:
                    meter.observe(TASKS[(2 * step + k) % 5])
                seen += [(p.grad.clone(), p.grad._version) for p in losses.model.parameters()]
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        assert meter.observed == 140 * observe
        states = losses.model.state_dict(), optimizer.state_dict(), scaler.state_dict()
        generators = torch.get_rng_state(), np.random.get_state(), random.getstate()  # noqa: NPY002
        return comparable([seen, *states, *generators])

    assert run(True) == run(False)


@pytest.mark.parametrize("step", [1, 101])
def test_a_resumed_run_gives_the_same_affinity(trained: tuple[nn.Module, AffinityMeter], step: int) -> None:
    _, resumed = train(checkpoint_at=step)
    one, two = trained[1].affinity(), resumed.affinity()
    for field in ("mean", "stderr", "count"):
        np.testing.assert_array_equal(getattr(one, field), getattr(two, field))


def test_reading_the_affinity_in_between_changes_nothing() -> None:
    _, read = train(read_every=7, visits=5)
    _, quiet = train(visits=5)
    np.testing.assert_array_equal(read.affinity().mean, quiet.affinity().mean)
    other = copy.deepcopy(quiet)
    np.testing.assert_array_equal(other.affinity().mean, quiet.affinity().mean)
    quiet.reset()
    assert (other.observed, quiet.observed, quiet.tasks) == (5 * len(TASKS), 0, None)
    with pytest.raises(RuntimeError, match="nothing was observed"):
        quiet.affinity()


def test_lora_is_observed_from_its_first_steps() -> None:
    """B starts at zero, so that A has no gradient and Adam's moments of A are zero after the first step."""
    _, meter = train(LoraNetwork, visits=8)
    affinity = meter.affinity()
    assert np.isfinite(affinity.mean).all()
    assert int(affinity.skipped["no optimizer state yet"].diagonal().sum()) == 1
    assert nearest_in_family(affinity) >= 0.8


class Gradients:
    """Shows given gradients to a meter, whose projection only changes their signs."""

    def __init__(self, dimension: int, tasks: int, **options: Any) -> None:
        self._parameter = nn.Parameter(torch.zeros(dimension, dtype=torch.float64))
        names = list(map(str, range(tasks)))
        options = {"estimator": "streaming", "tasks": names, "sketch_dimension": dimension} | options
        self.meter = AffinityMeter([self._parameter], **options)

    def show(self, task: int, gradient: Any) -> None:
        self._parameter.grad = torch.as_tensor(gradient, dtype=torch.float64).clone()
        self.meter.observe(str(task))

    @property
    def affinity(self) -> Affinity:
        return self.meter.affinity()


def slow_cosines(gradients: Iterable[tuple[int, Any]], tasks: int, blocks: int = 8) -> tuple[Any, Any]:
    """Centers each gradient with the most recent ones of all tasks, and averages by task and block.

    Returns the cosines, and how far they may be off, since the noise of the means is not taken out of their products.
    """
    latest: dict[int, Any] = {}
    parts: dict[int, list[list[Any]]] = {t: [[] for _ in range(blocks)] for t in range(tasks)}
    for task, gradient in gradients:
        latest[task] = gradient / np.linalg.norm(gradient)
        if len(latest) > 1:
            visits = sum(map(len, parts[task]))
            parts[task][visits % blocks].append(latest[task] - np.mean([*latest.values()], axis=0))
    sizes = {t: np.array([len(part) for part in parts[t]]) for t in parts}
    left = np.mean([np.concatenate([np.stack(p) for p in parts[t]]).mean(axis=0) for t in parts], axis=0)
    sums = {t: np.stack([np.sum(part, axis=0) - len(part) * left for part in parts[t]]) for t in parts}
    means = np.stack([sums[t].sum(axis=0) / sizes[t].sum() for t in parts])
    # Products of different blocks of a task are free of noise.
    inner = {t: sums[t] @ sums[t].T for t in parts}
    squares = np.array(
        [(inner[t].sum() - np.trace(inner[t])) / (sizes[t].sum() ** 2 - (sizes[t] ** 2).sum()) for t in parts]
    )
    norms = np.sqrt(np.outer(squares, squares))
    noise = ((means**2).sum(axis=1) - squares).mean()
    return means @ means.T / norms, 2 * noise / norms


def test_cosines_equal_a_slow_reference() -> None:
    draw = np.random.default_rng(0)
    tasks, dimension = 5, 17
    directions = draw.normal(size=(tasks, dimension))
    order = [*range(tasks), *draw.integers(tasks, size=90)]
    gradients = [(int(t), directions[t] + 0.3 * draw.normal(size=dimension)) for t in order]
    stream = Gradients(dimension, tasks)
    for task, gradient in gradients:
        stream.show(task, gradient)
    expected, tolerance = slow_cosines(gradients, tasks)
    off_diagonal = ~np.eye(tasks, dtype=bool)
    assert (np.abs(stream.affinity.mean - expected)[off_diagonal] <= tolerance[off_diagonal]).all()
    assert tolerance.max() < 0.1


def simulate(
    visits: Sequence[int], seed: int, noise: float = 6.0, drift: float = 0.0, dimension: int = 300
) -> tuple[Affinity, Any]:
    """Shows noisy gradients of tasks in two families, visited in random order, around a mean that moves.

    Returns their affinity and the true cosines.
    """
    draw, tasks = np.random.default_rng(seed), len(visits)
    signal = np.random.default_rng(99)
    common, own = signal.normal(size=(2, dimension)), signal.normal(size=(tasks, dimension))
    directions = (common[np.arange(tasks) % 2] + own) / math.sqrt(2)
    stream, moving = Gradients(dimension, tasks), np.zeros(dimension)
    for task in draw.permutation(np.repeat(np.arange(tasks), visits)):
        moving += drift * draw.normal(size=dimension)
        stream.show(int(task), directions[task] + moving + noise * draw.normal(size=dimension))
    centered = directions - directions.mean(axis=0)
    norms = np.linalg.norm(centered, axis=1)
    return stream.affinity, centered @ centered.T / np.outer(norms, norms)


def test_standard_errors_describe_the_actual_errors() -> None:
    scores = []
    for seed in range(20):
        affinity, truth = simulate([40] * 8, seed)
        above = np.triu_indices(8, 1)
        # Nothing is lost in these projections, so the part of the error that comes from projecting is left out.
        projecting = (1 - affinity.mean**2) ** 2 / 300
        jackknife = np.sqrt(np.maximum(affinity.stderr**2 - projecting, 1e-12))
        scores.append(((affinity.mean - truth) / jackknife)[above])
    assert abs(np.mean(scores)) < 0.3
    assert 0.8 < np.std(scores) < 1.3


def test_few_visits_do_not_shrink_cosines() -> None:
    """Uncorrected norms contain the noise of single batches, and would shrink the cosines of rarely visited tasks."""
    affinities, truths = zip(*(simulate([12, 12, 100, 100, 100, 100], s, noise=3.0) for s in range(20)), strict=True)
    values = np.mean([affinity.mean for affinity in affinities], axis=0)
    assert values[0, 2] == pytest.approx(truths[0][0, 2], abs=0.08)
    assert values[2, 4] == pytest.approx(truths[0][2, 4], abs=0.05)


def test_a_moving_mean_does_not_hide_the_families() -> None:
    affinity, _ = simulate([30] * 8, seed=0, noise=1.0, drift=0.5)
    family = np.arange(8) % 2
    same = (family[:, None] == family) & ~np.eye(8, dtype=bool)
    assert affinity.mean[same].min() > affinity.mean[family[:, None] != family].max()


def test_tasks_that_never_took_turns_have_no_affinity() -> None:
    draw, stream = np.random.default_rng(0), Gradients(20, 6)
    for phase in ([0, 1, 2], [3, 4, 5]):  # a curriculum: the first three tasks, then the others
        for _ in range(100):
            for task in draw.permutation(phase):
                stream.show(int(task), draw.normal(size=20) + task % 2)
    affinity = stream.affinity
    for known in (affinity.mean[:3, :3], affinity.mean[3:, 3:]):
        assert np.isfinite(known).all()
    assert np.isnan(affinity.mean[:3, 3:]).all()
    assert np.isnan(affinity.stderr[:3, 3:]).all()
    assert (affinity.count[:3, 3:] == 0).all()


def test_one_task_after_the_other_is_skipped_and_counted() -> None:
    stream = Gradients(20, 2)
    for task in (0, 1):
        for _ in range(300):
            stream.show(task, np.ones(20))
    assert stream.affinity.count[0, 1] == 0
    assert stream.affinity.skipped["no other task nearby"][0, 0] == 300


@pytest.mark.parametrize("rounds", [1, 2, 4])
def test_few_visits_give_bounded_cosines_or_none(rounds: int) -> None:
    draw = np.random.default_rng(0)
    for _ in range(5):
        stream = Gradients(30, 6)
        for task in [t for _ in range(rounds) for t in draw.permutation(6)]:
            stream.show(int(task), draw.normal(size=30))
        affinity = stream.affinity
        assert (np.abs(affinity.mean[affinity.count > 0]) <= 1).all()
        assert not (affinity.stderr[np.isfinite(affinity.stderr)] > 200).any()
        assert rounds > 1 or np.isnan(affinity.mean).all()


def test_norms_that_are_only_noise_do_not_inflate_cosines() -> None:
    noise = np.stack([simulate([40] * 8, seed, noise=1000.0)[0].mean for seed in range(4)])
    assert (np.abs(noise[:, ~np.eye(8, dtype=bool)]) == 1).mean() < 0.1


def test_every_task_stays_recent_for_two_rounds_through_all_tasks() -> None:
    draw, tasks = np.random.default_rng(0), 120
    stream = Gradients(7, tasks)
    for task in [t for _ in range(3) for t in draw.permutation(tasks)]:
        stream.show(int(task), draw.normal(size=7))
    assert stream.affinity.count.min() == 2  # in the first round, only the later task of a pair sees the other


def test_two_tasks_have_a_plain_cosine() -> None:
    draw = np.random.default_rng(0)
    stream = Gradients(40, 2)
    for _ in range(50):
        for task in (0, 1):
            gradient = np.eye(40)[task] + np.eye(40)[2] + 0.01 * draw.normal(size=40)
            stream.show(task, gradient)
    assert stream.affinity.mean[0, 1] == pytest.approx(0.5, abs=0.02)


def test_non_finite_and_zero_gradients_are_skipped() -> None:
    stream = Gradients(5, 3)
    for _ in range(10):
        for task in range(3):
            stream.show(task, np.arange(5.0) + task**2 * np.eye(5)[task])
        stream.show(0, np.full(5, np.nan))
        stream.show(1, np.zeros(5))
    skipped = stream.affinity.skipped
    assert skipped["non-finite gradient"][0, 0] == skipped["zero gradient"][1, 1] == 10
    assert np.isfinite(stream.affinity.mean).all()


def set_gradients(model: nn.Module, loss: Tensor) -> None:
    """Sets ``.grad`` to the gradient of this loss alone."""
    parameters = list(model.parameters())
    for p, gradient in zip(parameters, torch.autograd.grad(loss, parameters, retain_graph=True), strict=True):
        p.grad = gradient


@pytest.mark.parametrize("set_to_none", [True, False])
def test_accumulated_gradients_are_told_apart(set_to_none: bool) -> None:
    """Observing each of several backward passes gives what separate backward passes at the same weights give."""
    torch.manual_seed(0)
    model, twin = full_network().double(), full_network().double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    together, apart = (AffinityMeter(m, lr=0.01, estimator="streaming", sketch_dimension=101) for m in (model, twin))
    x = torch.randn(8, INPUTS).double()
    for _ in range(20):
        twin.load_state_dict(model.state_dict())
        batch = x + torch.randn(8, INPUTS)
        for k, task in enumerate("abc"):
            (model(batch) - k).pow(2).mean().backward()
            together.observe(task)
            set_gradients(twin, (twin(batch) - k).pow(2).mean())
            apart.observe(task)
        optimizer.step()
        optimizer.zero_grad(set_to_none=set_to_none)
    np.testing.assert_allclose(together.affinity().mean, apart.affinity().mean, rtol=1e-4)


def test_gradients_are_not_taken_for_accumulated_ones_without_a_reason() -> None:
    """They are set to zero without a step in between, or belong to other parameters."""
    torch.manual_seed(0)
    parts, x = nn.ModuleList(nn.Linear(INPUTS, 1) for _ in range(2)), torch.randn(8, INPUTS)
    zeroed, accumulated, alone = (AffinityMeter(parts, estimator="streaming", sketch_dimension=101) for _ in range(3))
    for k in 4 * (0, 1):
        parts[k](x).sum().backward()
        accumulated.observe(str(k))
        if k:
            parts.zero_grad()
    for k in 4 * (0, 1):
        parts[k](x).sum().backward()
        alone.observe(str(k))
        parts.zero_grad()
    np.testing.assert_allclose(accumulated.affinity().mean, alone.affinity().mean, rtol=1e-4, atol=1e-6)
    kept = []  # gradients that somebody else still needs
    for _ in range(2):
        parts[0](x).sum().backward()
        zeroed.observe("a")
        kept += [p.grad for p in parts[0].parameters()]
        parts.zero_grad()
    assert "zero gradient" not in zeroed.affinity().skipped


def test_observing_twice_after_one_backward_pass_counts_once() -> None:
    model, x = full_network(), torch.randn(8, INPUTS)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    meter = AffinityMeter(model, optimizer, estimator="streaming", sketch_dimension=101)
    for _ in range(6):
        for k, task in enumerate("abc"):
            optimizer.zero_grad()
            (model(x) - k).pow(2).mean().backward()
            meter.observe(task)
            meter.observe(task)
            optimizer.step()
    affinity = meter.affinity()
    assert affinity.count.max() == 6
    assert affinity.skipped["zero gradient"].diagonal().tolist() == [6, 6, 6]


def test_tasks_that_were_named_but_never_observed_have_no_affinity() -> None:
    _, meter = train(visits=4, tasks=["never", *TASKS])
    affinity = meter.affinity()
    assert affinity.tasks == ("never", *TASKS)
    assert np.isnan(affinity.mean[0]).all()
    assert (affinity.count[:, 0] == 0).all()
    assert affinity.skipped
    assert all((pairs[0] == 0).all() for pairs in affinity.skipped.values())
    assert np.isfinite(affinity.mean[1:, 1:]).all()
    with pytest.raises(ValueError, match=r"`task`.*'nver'; did you mean"):
        meter.observe("nver")


def test_misuse_is_explained() -> None:
    model = full_network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    meter = AffinityMeter(model, optimizer, estimator="streaming")
    with pytest.raises(RuntimeError, match="no shared parameter has a gradient"):
        meter.observe("a")
    for call in (meter, meter.check):
        with pytest.raises(RuntimeError, match="only observes"):
            call(dict)
    with pytest.raises(RuntimeError, match="estimator='streaming'"):
        AffinityMeter(model, optimizer).observe("a")
    with pytest.raises(ValueError, match="`sketch_dimension`"):
        AffinityMeter(model, estimator="streaming", sketch_dimension=0)
    model(torch.ones(2, INPUTS)).sum().backward()
    meter.observe("a")
    with pytest.raises(ValueError, match="single steps"):
        meter.affinity(last=True)
    scaler = torch.amp.GradScaler("cpu")
    scaled = AffinityMeter(model, optimizer, estimator="streaming", scaler=scaler)
    scaler.scale(model(torch.ones(2, INPUTS)).sum()).backward()
    scaler.unscale_(optimizer)
    with pytest.raises(RuntimeError, match="unscale_"):
        scaled.observe("a")


def test_streaming_and_lookahead_share_a_meter() -> None:
    model = full_network()
    losses, optimizer = FamilyLosses(model), torch.optim.AdamW(model.parameters(), lr=1e-3)
    meter = AffinityMeter(model, optimizer, every=4, estimator=["lookahead", "streaming"], tasks=TASKS[:4])
    for step in range(24):
        task = TASKS[step % 4]
        meter.measure_only({t: partial(losses, t) for t in TASKS[:4]})
        losses(task).backward()
        meter.observe(task)
        optimizer.step()
        optimizer.zero_grad()
    assert (meter.measured, meter.observed) == (6, 24)
    assert meter.affinity().settings["estimator"] == "lookahead"
    assert meter.affinity("streaming").settings["estimator"] == "streaming"
