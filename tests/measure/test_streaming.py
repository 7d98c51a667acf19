"""Streaming affinities: exact, resumable and without a trace, for tasks that take turns in training."""

import copy
import io
import math
import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tagalong import AffinityMeter
from tagalong.measure import sketch
from tagalong.measure.streaming import BLOCKS, RunningMeans

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


class FamilyLosses:
    """Regression on linear teachers, half of whose variance comes from the task's family."""

    def __init__(self, model: nn.Module) -> None:
        draw = torch.Generator().manual_seed(7)
        self.model = model
        common = {str(f): torch.randn(INPUTS, 1, generator=draw) for f in range(FAMILIES)}
        self._teachers = {t: common[t[0]] + torch.randn(INPUTS, 1, generator=draw) for t in TASKS}

    def __call__(self, task: str, rows: int = 32) -> Tensor:
        x = torch.randn(rows, INPUTS)
        return (self.model(x) - x @ self._teachers[task]).pow(2).mean()


def full_network() -> nn.Module:
    return nn.Sequential(nn.Linear(INPUTS, 48), nn.Tanh(), nn.Linear(48, 1))


def train(
    make: Callable[[], nn.Module] = full_network,
    *,
    visits: int = 10,
    observe: bool = True,
    checkpoint_at: int | None = None,
    after: Callable[[int, nn.Module], None] = lambda step, model: None,
    **options: Any,
) -> tuple[nn.Module, AffinityMeter]:
    """Trains on one task per step in random order, and restarts from a checkpoint at some step."""
    torch.manual_seed(0)
    model = make()
    losses, optimizer = FamilyLosses(model), torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], 3e-3)
    meter = AffinityMeter(model, optimizer, **{"estimator": "streaming", "sketch_dimension": 211, **options})
    draw = np.random.default_rng(0)
    order = [TASKS[k] for _ in range(visits) for k in draw.permutation(len(TASKS))]
    for step, task in enumerate(order):
        if step == checkpoint_at:
            file = io.BytesIO()
            torch.save([x.state_dict() for x in (model, optimizer, meter)] + [torch.get_rng_state()], file)
            file.seek(0)
            states = torch.load(file, weights_only=True)
            return _resume(make, order[step:], states, options)
        loss = losses(task)
        loss.backward()
        after(step, model)
        if observe:
            meter.observe(task, loss)
        optimizer.step()
        optimizer.zero_grad()
    return model, meter


def _resume(
    make: Callable[[], nn.Module], order: Sequence[str], states: Any, options: dict[str, Any]
) -> tuple[nn.Module, AffinityMeter]:
    model = make()
    losses, optimizer = FamilyLosses(model), torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], 1.0)
    meter = AffinityMeter(model, optimizer, **{"estimator": "streaming", "sketch_dimension": 211, **options})
    for part, state in zip((model, optimizer, meter), states[:3], strict=True):
        part.load_state_dict(state)
    torch.set_rng_state(states[3])
    for task in order:
        loss = losses(task)
        loss.backward()
        meter.observe(task, loss)
        optimizer.step()
        optimizer.zero_grad()
    return model, meter


@pytest.fixture(scope="module")
def trained() -> tuple[nn.Module, AffinityMeter]:
    return train(estimator=["streaming", "streaming_gradient"])


def nearest_in_family(meter: AffinityMeter, estimator: str = "streaming") -> float:
    affinity = meter.affinity(estimator)
    values = affinity.mean.copy()
    np.fill_diagonal(values, -np.inf)
    best = [affinity.tasks[i] for i in values.argmax(axis=0)]
    return float(np.mean([one[0] == two[0] for one, two in zip(best, affinity.tasks, strict=True)]))


@pytest.mark.parametrize("estimator", ["streaming", "streaming_gradient"])
def test_planted_families_are_found(trained: tuple[nn.Module, AffinityMeter], estimator: str) -> None:
    assert nearest_in_family(trained[1], estimator) >= 0.9


def test_the_affinity_has_counts_errors_and_settings(trained: tuple[nn.Module, AffinityMeter]) -> None:
    affinity = trained[1].affinity()
    assert affinity.tasks == trained[1].tasks
    assert set(affinity.tasks) == set(TASKS)
    np.testing.assert_array_equal(affinity.mean, affinity.mean.T)
    np.testing.assert_array_equal(affinity.mean.diagonal(), 1.0)
    assert (affinity.count[affinity.count > 0] <= 10).all()
    assert (affinity.stderr[~np.eye(len(TASKS), dtype=bool)] > 0).all()
    assert affinity.settings["estimator"] == "streaming"
    assert affinity.settings["observed"] == trained[1].observed == 10 * len(TASKS)
    assert "240 observed" in repr(trained[1])


def test_observing_leaves_no_trace(trained: tuple[nn.Module, AffinityMeter]) -> None:
    plain, _ = train(observe=False)
    for one, two in zip(plain.parameters(), trained[0].parameters(), strict=True):
        assert torch.equal(one, two)


@pytest.mark.parametrize("tile", [202, sketch.CPU_TILE])  # smaller and larger than the first layer
@pytest.mark.parametrize("kind", ["SGD", "AdamW", "RMSprop", "Adagrad"])
def test_gradients_states_and_random_numbers_are_as_without_observing(
    kind: str, tile: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Trains with dropout, BatchNorm, mixed precision and accumulated gradients of two tasks per step."""
    monkeypatch.setattr(sketch, "CPU_TILE", tile)

    def run(observe: bool) -> list[Any]:
        torch.manual_seed(0)
        layers = nn.Linear(INPUTS, 32), nn.BatchNorm1d(32), nn.Tanh(), nn.Dropout(0.5), nn.Linear(32, 1)
        losses, scaler = FamilyLosses(nn.Sequential(*layers)), torch.amp.GradScaler("cpu", init_scale=256.0)
        optimizer = getattr(torch.optim, kind)(losses.model.parameters(), lr=0.01)
        meter = AffinityMeter(
            losses.model, optimizer, estimator=["streaming", "streaming_gradient"], scaler=scaler, sketch_dimension=101
        )
        seen = []
        for step in range(70):  # more than the meter copies at once
            for k in (0, 1):
                with torch.autocast("cpu", dtype=torch.bfloat16):
                    loss = losses(TASKS[(2 * step + k) % 5])
                scaler.scale(loss).backward()
                if observe:
                    meter.observe(TASKS[(2 * step + k) % 5], loss)
                seen += [(p.grad.clone(), p.grad._version) for p in losses.model.parameters()]
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        assert meter.observed == 140 * observe
        states = losses.model.state_dict(), optimizer.state_dict(), scaler.state_dict()
        return [seen, *states, torch.get_rng_state(), np.random.get_state(), random.getstate()]  # noqa: NPY002

    assert _as_bytes(run(True)) == _as_bytes(run(False))


def _as_bytes(values: Any) -> Any:
    if isinstance(values, dict):
        return {key: _as_bytes(value) for key, value in values.items()}
    if isinstance(values, list | tuple):
        return [_as_bytes(value) for value in values]
    if isinstance(values, Tensor | np.ndarray):
        return np.asarray(values).tobytes()
    return values


@pytest.mark.parametrize("step", [1, 64, 101])
def test_a_resumed_run_gives_the_same_affinity(trained: tuple[nn.Module, AffinityMeter], step: int) -> None:
    _, resumed = train(checkpoint_at=step, estimator=["streaming", "streaming_gradient"])
    for name in ("streaming", "streaming_gradient"):
        one, two = trained[1].affinity(name), resumed.affinity(name)
        np.testing.assert_array_equal(one.mean, two.mean)
        np.testing.assert_array_equal(one.stderr, two.stderr)
        np.testing.assert_array_equal(one.count, two.count)


def test_reading_the_affinity_in_between_changes_nothing(trained: tuple[nn.Module, AffinityMeter]) -> None:
    model = full_network()
    meters: list[AffinityMeter] = []

    def read(step: int, _: nn.Module) -> None:
        if step % 7 == 3:
            meters[0].affinity()

    original = AffinityMeter.observe

    def observe(self: AffinityMeter, *arguments: Any) -> None:
        meters[:] = [self]
        original(self, *arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(AffinityMeter, "observe", observe)
        _, meter = train(after=read, visits=5)
    _, quiet = train(visits=5)
    np.testing.assert_array_equal(meter.affinity().mean, quiet.affinity().mean)
    assert model is not None


def test_lora_is_observed_from_its_first_steps() -> None:
    """B starts at zero, so that A has no gradient and Adam's moments of A are zero after the first step."""
    _, meter = train(LoraNetwork, visits=8)
    affinity = meter.affinity()
    assert np.isfinite(affinity.mean).all()
    assert int(affinity.skipped["no optimizer state yet"].diagonal().sum()) == 1
    assert nearest_in_family(meter) >= 0.8


def slow_means(gradients: Sequence[tuple[int, Any]], tasks: int) -> Any:
    """Centers each gradient with the most recent ones of all tasks, and averages by task and block."""
    latest: dict[int, Any] = {}
    sums: dict[tuple[int, int], list[Any]] = {}
    visits = dict.fromkeys(range(tasks), 0)
    known = 0
    for task, gradient in gradients:
        known = max(known, task + 1)
        latest[task] = gradient / np.linalg.norm(gradient)
        if len(latest) < max(2, min(3, known)):
            continue
        sums.setdefault((task, visits[task] % BLOCKS), []).append(latest[task] - np.mean([*latest.values()], axis=0))
        visits[task] += 1
    return sums


def test_running_means_equal_a_slow_reference() -> None:
    draw = np.random.default_rng(0)
    tasks, dimension = 5, 17
    directions = draw.normal(size=(tasks, dimension))
    gradients = [(int(t), directions[t] + 0.3 * draw.normal(size=dimension)) for t in draw.integers(tasks, size=90)]
    means = RunningMeans(dimension, unit_length=True)
    for task, gradient in gradients:
        means.add(task, gradient, math.nan, layout=0)
    sums = slow_means(gradients, tasks)
    blocks = {t: [np.sum(sums[t, b], axis=0) for b in range(BLOCKS)] for t in range(tasks)}
    sizes = {t: [len(sums[t, b]) for b in range(BLOCKS)] for t in range(tasks)}
    left = np.mean([np.sum(blocks[t], axis=0) / sum(sizes[t]) for t in range(tasks)], axis=0)
    blocks = {t: [s - n * left for s, n in zip(blocks[t], sizes[t], strict=True)] for t in range(tasks)}

    def square(t: int) -> float:
        pairs = [(b, c) for b in range(BLOCKS) for c in range(BLOCKS) if b != c]
        return sum(blocks[t][b] @ blocks[t][c] for b, c in pairs) / sum(sizes[t][b] * sizes[t][c] for b, c in pairs)

    def mean(t: int) -> Any:
        return np.sum(blocks[t], axis=0) / sum(sizes[t])

    noise = np.array([mean(t) @ mean(t) - square(t) for t in range(tasks)])

    values, _, _ = means.estimate(first_order=False)
    for t in range(tasks):
        for u in range(tasks):
            if t != u:
                correction = np.abs(noise).sum() / tasks  # of the order of 1/n of the noise, which is small here
                expected = mean(t) @ mean(u) / math.sqrt(square(t) * square(u))
                assert values[t, u] == pytest.approx(expected, abs=2 * correction / math.sqrt(square(t) * square(u)))
    assert (noise < 0.01).all()


def simulate(visits: Sequence[int], seed: int, noise: float = 6.0, drift: float = 0.0, dimension: int = 300) -> Any:
    """Adds noisy gradients of tasks in two families, visited in random order, around a mean that moves."""
    draw = np.random.default_rng(seed)
    signal = np.random.default_rng(99)
    tasks = len(visits)
    common, own = signal.normal(size=(2, dimension)), signal.normal(size=(tasks, dimension))
    directions = (common[np.arange(tasks) % 2] + own) / math.sqrt(2)
    order = draw.permutation(np.repeat(np.arange(tasks), visits))
    means = RunningMeans(dimension, unit_length=False)
    moving = np.zeros(dimension)
    for task in order:
        moving += drift * draw.normal(size=dimension)
        means.add(int(task), directions[task] + moving + noise * draw.normal(size=dimension), 1.0, layout=0)
    centered = directions - directions.mean(axis=0)
    norms = np.linalg.norm(centered, axis=1)
    return means, centered @ centered.T / np.outer(norms, norms)


def test_tasks_that_come_later_are_added_without_touching_a_copy() -> None:
    draw = np.random.default_rng(0)
    means = RunningMeans(7, unit_length=True)
    for task in range(5):
        means.add(task, draw.normal(size=7), 1.0, layout=0)
    other, state = copy.deepcopy(means), means.state_dict()
    resumed = RunningMeans(7, unit_length=True)
    resumed.load_state_dict(state)
    for task in (5, 3, 11, 5):
        gradient = draw.normal(size=7)
        means.add(task, gradient, 1.0, layout=0)
        resumed.add(task, gradient, 1.0, layout=0)
    assert means.state_dict()["sums"].shape == (12, BLOCKS, 7)
    assert _as_bytes(means.state_dict()) == _as_bytes(resumed.state_dict())
    assert _as_bytes(other.state_dict()) == _as_bytes(state)


def test_standard_errors_describe_the_actual_errors() -> None:
    scores = []
    for seed in range(40):
        means, truth = simulate([40] * 8, seed)
        values, errors, _ = means.estimate(first_order=False)
        above = np.triu_indices(8, 1)
        # The vectors are not projected here, so the part of the error that comes from a projection is left out.
        jackknife = np.sqrt(np.maximum(errors**2 - (1 - values**2) ** 2 / 300, 1e-12))
        scores.append(((values - truth) / jackknife)[above])
    assert abs(np.mean(scores)) < 0.3
    assert 0.8 < np.std(scores) < 1.3


def test_few_visits_do_not_shrink_cosines() -> None:
    """Uncorrected norms contain the noise of single batches, and would shrink the cosines of rarely visited tasks."""
    found = [simulate([12, 12, 200, 200, 200, 200], seed, noise=3.0) for seed in range(30)]
    values = np.mean([means.estimate(first_order=False)[0] for means, _ in found], axis=0)
    truth = found[0][1]
    assert values[0, 2] == pytest.approx(truth[0, 2], abs=0.08)
    assert values[2, 4] == pytest.approx(truth[2, 4], abs=0.05)


def test_a_moving_mean_does_not_hide_the_families() -> None:
    means, _ = simulate([30] * 8, seed=0, noise=1.0, drift=0.5)
    values, _, _ = means.estimate(first_order=False)
    same = np.add.outer(np.arange(8), np.arange(8)) % 2 == 0
    np.fill_diagonal(same, False)
    other = np.add.outer(np.arange(8), np.arange(8)) % 2 == 1
    assert values[same].min() > values[other].max()


def test_tasks_that_never_took_turns_have_no_affinity() -> None:
    draw = np.random.default_rng(0)
    means = RunningMeans(20, unit_length=True)
    for phase in ([0, 1, 2], [3, 4, 5]):  # a curriculum: the first three tasks, then the others
        for _ in range(100):
            for task in draw.permutation(phase):
                means.add(int(task), draw.normal(size=20) + task % 2, math.nan, layout=0)
    values, errors, counts = means.estimate(first_order=False)
    assert np.isfinite(values[:3, :3]).all()
    assert np.isfinite(values[3:, 3:]).all()
    assert np.isnan(values[:3, 3:]).all()
    assert np.isnan(errors[:3, 3:]).all()
    assert (counts[:3, 3:] == 0).all()


def test_one_task_after_the_other_is_skipped_and_counted() -> None:
    means = RunningMeans(20, unit_length=True)
    for task in (0, 1):
        for _ in range(300):
            means.add(task, np.ones(20), math.nan, layout=0)
    assert (means.estimate(first_order=False)[2][0, 1]) == 0
    assert means.skipped_pairs()["no other task nearby"][0, 0] == 300


@pytest.mark.parametrize("rounds", [1, 2, 3, 4])
def test_few_visits_give_bounded_cosines_or_none(rounds: int) -> None:
    draw = np.random.default_rng(0)
    for _ in range(20):
        means = RunningMeans(30, unit_length=True)
        for task in [t for _ in range(rounds) for t in draw.permutation(6)]:
            means.add(int(task), draw.normal(size=30), math.nan, layout=0)
        values, errors, counts = means.estimate(first_order=False)
        assert (np.abs(values[counts > 0]) <= 1).all()
        assert not (errors[np.isfinite(errors)] > 200).any()
        assert rounds > 1 or np.isnan(values).all()


def test_two_tasks_have_a_plain_cosine() -> None:
    draw = np.random.default_rng(0)
    means = RunningMeans(40, unit_length=True)
    for _ in range(50):
        for task in (0, 1):
            means.add(task, np.eye(40)[task] + np.eye(40)[2] + 0.01 * draw.normal(size=40), math.nan, layout=0)
    assert means.estimate(first_order=False)[0][0, 1] == pytest.approx(0.5, abs=0.02)


def test_first_order_equals_the_inner_products_of_mean_gradients() -> None:
    draw = np.random.default_rng(0)
    means = RunningMeans(40, unit_length=False)
    gradients = draw.normal(size=(4, 40))
    for _ in range(20):
        for task in range(4):
            means.add(task, gradients[task], 2.0 + task, layout=0)
    values, _, _ = means.estimate(first_order=True)
    np.testing.assert_allclose(values, gradients @ gradients.T / (2.0 + np.arange(4)), rtol=0.1, atol=0.3)


def test_non_finite_and_zero_gradients_are_skipped() -> None:
    means = RunningMeans(5, unit_length=True)
    for _ in range(10):
        for task in range(3):
            means.add(task, np.arange(5.0) + task**2 * np.eye(5)[task], math.nan, layout=0)
        means.add(0, np.full(5, np.nan), math.nan, layout=0)
        means.add(1, np.zeros(5), math.nan, layout=0)
    skipped = means.skipped_pairs()
    assert skipped["non-finite gradient"][0, 0] == skipped["zero gradient"][1, 1] == 10
    assert np.isfinite(means.estimate(first_order=False)[0]).all()


@pytest.mark.parametrize("set_to_none", [True, False])
def test_accumulated_gradients_are_told_apart(set_to_none: bool) -> None:
    """Observing each of several backward passes gives what separate backward passes at the same weights give."""
    torch.manual_seed(0)
    model = full_network().double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    together, apart = (AffinityMeter(model, optimizer, estimator="streaming", sketch_dimension=101) for _ in "ab")
    x, tasks = torch.randn(8, INPUTS).double(), ["a", "b", "c"]
    for _ in range(20):
        losses = {t: (model(x + torch.randn(8, INPUTS)) - k).pow(2).mean() for k, t in enumerate(tasks)}
        for task, loss in losses.items():
            optimizer.zero_grad()
            loss.backward(retain_graph=True)
            apart.observe(task)
            apart._stream._accumulated = None  # type: ignore[union-attr] - this meter must not take differences
        optimizer.zero_grad(set_to_none=set_to_none)
        together._stream._accumulated = None  # type: ignore[union-attr] - the other meter's backward passes came between
        for task, loss in losses.items():
            loss.backward()
            together.observe(task)
        optimizer.step()
        optimizer.zero_grad(set_to_none=set_to_none)
    np.testing.assert_allclose(together.affinity().mean, apart.affinity().mean, rtol=1e-4)


def test_gradients_set_to_zero_without_a_step_are_not_taken_for_accumulated_ones() -> None:
    model = full_network()
    meter = AffinityMeter(model, estimator="streaming", sketch_dimension=101)
    for _ in range(2):
        model(torch.ones(4, INPUTS)).sum().backward()
        meter.observe("a")
        model.zero_grad()
    one, two = meter._stream._waiting  # type: ignore[union-attr]
    assert torch.equal(one.sketch, two.sketch)  # type: ignore[arg-type]


def test_accumulated_gradients_are_told_apart_if_tasks_use_different_parameters() -> None:
    torch.manual_seed(0)
    parts, x = nn.ModuleList(nn.Linear(INPUTS, 1) for _ in range(2)), torch.randn(8, INPUTS)
    meter, alone = (AffinityMeter(parts, estimator="streaming", sketch_dimension=101) for _ in range(2))
    for k in (0, 1):
        parts[k](x).sum().backward()
        meter.observe(str(k))
    parts.zero_grad()
    parts[1](x).sum().backward()
    alone.observe("1")
    second, expected = meter._stream._waiting[1].sketch, alone._stream._waiting[0].sketch  # type: ignore[union-attr]
    torch.testing.assert_close(second, expected, rtol=1e-4, atol=1e-4)


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


def test_the_scale_of_a_grad_scaler_is_removed() -> None:
    torch.manual_seed(0)
    model, x = full_network(), torch.randn(8, INPUTS)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scaled = AffinityMeter(model, optimizer, estimator="streaming_gradient", scaler=scaler, sketch_dimension=101)
    plain = AffinityMeter(model, optimizer, estimator="streaming_gradient", sketch_dimension=101)
    for _ in range(10):
        for k, task in enumerate("abc"):
            loss = (model(x) - k).pow(2).mean()
            loss.backward(retain_graph=True)
            plain.observe(task, loss)
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaled.observe(task, loss)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            plain._stream._accumulated = None  # type: ignore[union-attr]
    np.testing.assert_allclose(scaled.affinity().mean, plain.affinity().mean, rtol=1e-4)
    scaler.scale((model(x)).pow(2).mean()).backward()
    scaler.unscale_(optimizer)
    with pytest.raises(RuntimeError, match=r"before scaler\.unscale_\(\) and clipping"):
        scaled.observe("a", 1.0)


def test_tasks_that_were_named_but_never_observed_have_no_affinity() -> None:
    _, meter = train(visits=4, tasks=["never", *TASKS])
    affinity = meter.affinity()
    assert affinity.tasks == ("never", *TASKS)
    assert np.isnan(affinity.mean[0]).all()
    assert (affinity.count[:, 0] == 0).all()
    assert np.isfinite(affinity.mean[1:, 1:]).all()
    with pytest.raises(ValueError, match="`task` must be a known task of this meter, found 'nver'; did you mean"):
        meter.observe("nver")


def test_reset_forgets_what_was_observed() -> None:
    _, meter = train(visits=3)
    meter.reset()
    assert (meter.observed, meter.tasks) == (0, None)
    with pytest.raises(RuntimeError, match="nothing was observed"):
        meter.affinity()


def test_a_copied_meter_continues_on_its_own() -> None:
    model, meter = train(visits=3)
    other = copy.deepcopy(meter)
    np.testing.assert_array_equal(other.affinity().mean, meter.affinity().mean)
    assert other.observed == meter.observed
    assert model is not None


def test_misuse_is_explained() -> None:
    model = full_network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    meter = AffinityMeter(model, optimizer, estimator="streaming")
    with pytest.raises(RuntimeError, match="no shared parameter has a gradient; call `observe` after backward"):
        meter.observe("a")
    with pytest.raises(RuntimeError, match="this meter only observes gradients"):
        meter(dict)
    with pytest.raises(RuntimeError, match="`observe` needs one of the estimators 'streaming', 'streaming_gradient'"):
        AffinityMeter(model, optimizer).observe("a")
    with pytest.raises(ValueError, match="the step size is unknown"):
        AffinityMeter(model, estimator="streaming_gradient")
    with pytest.raises(ValueError, match="`sketch_dimension` must be a positive integer"):
        AffinityMeter(model, estimator="streaming", sketch_dimension=0)
    model(torch.ones(2, INPUTS)).sum().backward()
    with pytest.raises(ValueError, match="`loss` is required by estimator='streaming_gradient'"):
        AffinityMeter(model, optimizer, estimator="streaming_gradient").observe("a")
    for loss in ("0.5", torch.ones(3)):
        with pytest.raises(ValueError, match=r"`loss` must be the scalar loss whose backward\(\) was called"):
            meter.observe("a", loss)  # type: ignore[arg-type]
    meter.observe("a")
    with pytest.raises(ValueError, match="measures no single steps"):
        meter.latest()
    with pytest.raises(RuntimeError, match="this meter only observes gradients"):
        meter.check(dict)


def test_streaming_and_lookahead_share_a_meter() -> None:
    model = full_network()
    losses, optimizer = FamilyLosses(model), torch.optim.AdamW(model.parameters(), lr=1e-3)
    meter = AffinityMeter(model, optimizer, every=4, estimator=["lookahead", "streaming"], tasks=TASKS[:4])
    for step in range(24):
        task = TASKS[step % 4]
        meter.measure_only(
            {t: (lambda t=t: (t, torch.randn(8, INPUTS)), lambda b: _loss(losses, *b)) for t in TASKS[:4]}
        )
        losses(task).backward()
        meter.observe(task)
        optimizer.step()
        optimizer.zero_grad()
    assert (meter.measured, meter.observed) == (6, 24)
    assert meter.affinity().settings["estimator"] == "lookahead"
    assert meter.affinity("streaming").settings["estimator"] == "streaming"


def _loss(losses: FamilyLosses, task: str, x: Tensor) -> Tensor:
    return (losses.model(x) - x @ losses._teachers[task]).pow(2).mean()
