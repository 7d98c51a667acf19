"""Training with the meter equals training without it, bit for bit."""

import functools
import random
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from queue import SimpleQueue
from typing import Any

import numpy as np
import pytest
import torch
from networks import (
    NETWORKS,
    TASKS,
    Batch,
    Heads,
    Losses,
    Network,
    batches,
    batchnorm,
    dropout,
    hard_sharing,
    stacked_lstm,
)
from small import comparable
from torch import Tensor, nn
from torch._functorch import config as functorch_config
from torch.nn.modules import module as module_hooks
from torch.optim import SGD, AdamW, Optimizer

from tagalong import AffinityMeter
from tagalong.measure import RoundRobin

STEPS = 20
STRUCTURE = frozenset(vars(nn.Module())) - {"training"}
OPTIMIZERS: dict[str, Callable[[Any], Optimizer]] = {
    "sgd": lambda p: SGD(p, lr=0.05, momentum=0.9, weight_decay=1e-3),
    "adamw": lambda p: AdamW(p, lr=0.01),
    "own adamw": lambda p: type("Own", (AdamW,), {})(p, lr=0.01),  # whose steps are taken by a copy
}
ESTIMATORS = ["lookahead", "gradient", "cosine", "cosine_kernels", "centered_cosine"]
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.cuda)]
Trace = dict[str, Any]
pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    # True in bfloat16; here, only traces matter.
    pytest.mark.filterwarnings("ignore:a large part of the lookahead affinities is rounding error"),
]


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Returns the device to train on; on CUDA, enables deterministic kernels."""
    name: str = request.param
    if name == "cpu":
        yield name
        return
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = False
    try:
        yield name
    finally:
        torch.use_deterministic_algorithms(False)


def seed() -> None:
    torch.manual_seed(3)
    np.random.seed(3)  # noqa: NPY002 - the global generator is what the meter must leave alone
    random.seed(3)


def trace_of(model: nn.Module, optimizer: Optimizer) -> Trace:
    """Returns everything that training leaves behind, by name."""
    found: Trace = {"torch": torch.get_rng_state(), "python": random.getstate(), "numpy": np.random.get_state()}  # noqa: NPY002
    if torch.cuda.is_available():
        found["cuda"] = torch.cuda.get_rng_state()
    for name, p in model.named_parameters():
        found |= {f"parameter {name}": p, f"version {name}": p._version, f"grad {name}": p.grad}
        found |= {f"state {name} {k}": v for k, v in optimizer.state.get(p, {}).items()}
    found["state"] = len(optimizer.state)
    found |= {f"buffer {name}": b for name, b in model.named_buffers()}
    for name, module in model.named_modules():
        own = {k: v for k, v in vars(module).items() if k not in STRUCTURE and not k.startswith("_")}
        found |= {f"attribute {name}.{k}": v for k, v in own.items() if isinstance(v, int | list | Tensor)}
    return comparable(found)  # type: ignore[no-any-return]


def assert_same(found: Trace, expected: Trace) -> None:
    assert list(found) == list(expected)
    assert [name for name in found if found[name] != expected[name]] == []


def train(
    network: Network,
    optimizer: Optimizer,
    meter: Callable[..., Losses],
    *,
    device: str = "cpu",
    steps: int = STEPS,
    accumulate: int = 1,
    held_out: Callable[[Batch], Losses] | None = None,
) -> Trace:
    """Runs a plain training loop; `.grad` stays as after the last step."""
    seen = []
    more = batches(1, device)[0]
    for number, batch in enumerate(batches(steps, device)):
        if number % accumulate == 0:
            optimizer.zero_grad()
        with network.around():
            extra = [] if held_out is None else [lambda: held_out(more)]
            losses = meter(lambda batch=batch: network.losses(batch), *extra)
        torch.stack(list(losses.values())).sum().backward()
        seen += [loss.detach() for loss in losses.values()]
        if (number + 1) % accumulate == 0:
            optimizer.step()
    return {"losses": comparable(seen), **trace_of(network.model, optimizer)}


def bare(closure: Callable[[], Losses], *_: Any) -> Losses:
    return closure()


def make_fresh(make: Callable[[], Network], kind: str = "sgd", device: str = "cpu") -> tuple[Network, Optimizer]:
    seed()
    network = make()
    network.model.to(device)
    return network, OPTIMIZERS[kind](network.model.parameters())


def metered(network: Network, optimizer: Optimizer, *, named: bool = False, **options: Any) -> AffinityMeter:
    model = {"model": network.model} if named or network.needs_model else {}
    return AffinityMeter(network.shared, optimizer, **({"every": 3, "estimator": ESTIMATORS} | model | options))


@functools.cache
def without_meter(make: Callable[[], Network], kind: str, device: str, **loop: Any) -> Trace:
    network, optimizer = make_fresh(make, kind, device)
    return train(network, optimizer, bare, device=device, **loop)


def assert_no_trace(
    make: Callable[[], Network],
    kind: str = "sgd",
    device: str = "cpu",
    *,
    loop: dict[str, Any] | None = None,
    held_out: Callable[[Network], Callable[[Batch], Losses]] | None = None,
    **options: Any,
) -> AffinityMeter:
    expected = without_meter(make, kind, device, **(loop or {}))
    network, optimizer = make_fresh(make, kind, device)
    meter = metered(network, optimizer, **options)
    looked = None if held_out is None else held_out(network)
    assert_same(train(network, optimizer, meter, device=device, held_out=looked, **(loop or {})), expected)
    assert meter.measured > 3
    return meter


@pytest.mark.parametrize("named", [False, True], ids=["all estimators", "lookahead, named model"])
@pytest.mark.parametrize("make", NETWORKS.values(), ids=NETWORKS)
def test_training_is_the_same_with_and_without_the_meter(make: Callable[[], Network], named: bool, device: str) -> None:
    options = {"estimator": "lookahead", "named": True} if named else {}
    meter = assert_no_trace(make, "sgd" if named else "adamw", device, **options)
    # Guards against leaving no trace because nothing was measured.
    affinity = meter.affinity()
    assert affinity.tasks == TASKS
    assert (affinity.mean[np.isfinite(affinity.mean)] != 0).any()


WAYS: dict[str, dict[str, Any]] = {
    **{name: {"estimator": name} for name in ESTIMATORS},
    "own optimizer": {"kind": "own adamw"},
    "sgd step": {"update": "sgd", "kind": "adamw"},
    "sgd step of its own": {"update": "sgd", "lr": 0.1},
    "round robin": {"every": RoundRobin(every=2)},
    "round robin, lookahead": {"every": RoundRobin(every=2), "estimator": "lookahead", "kind": "adamw"},
    "accumulation": {"loop": {"accumulate": 4}, "every": 2, "kind": "adamw"},
}


@pytest.mark.parametrize("make", [batchnorm, dropout])
@pytest.mark.parametrize("way", WAYS)
def test_other_ways_to_measure_leave_no_trace(make: Callable[[], Network], way: str, device: str) -> None:
    assert_no_trace(make, device=device, **WAYS[way])


def test_dropout_inside_a_recurrent_network_leaves_no_trace() -> None:
    assert_no_trace(stacked_lstm, "adamw")


@pytest.mark.cuda
def test_dropout_inside_a_cudnn_network_is_rejected() -> None:
    """Its random state lives in cuDNN, where it cannot be read, and restarts when torch's generator is set."""
    network, optimizer = make_fresh(stacked_lstm, "sgd", "cuda")
    batch = batches(1, "cuda")[0]
    with pytest.raises(ValueError, match=r"cuDNN.*nn\.Dropout"):
        metered(network, optimizer)(lambda: network.losses(batch))
    with torch.backends.cudnn.flags(enabled=False):
        metered(network, optimizer)(lambda: network.losses(batch))


def in_eval_mode(network: Network) -> Callable[[Batch], Losses]:
    """Leaves the model in eval mode, which the meter has to undo."""

    def losses(batch: Batch) -> Losses:
        network.model.eval()
        return network.losses(batch)

    return losses


def by_parts_in_eval_mode(network: Network) -> Callable[[Batch], Losses]:
    """Calls the parts, never the model itself, whose mode it changes."""

    def losses(batch: Batch) -> Losses:
        model: Any = network.model.eval()
        return model.heads.losses(model.encoder(batch.x), batch.y)  # type: ignore[no-any-return]

    return losses


def in_train_mode(network: Network) -> Callable[[Batch], Losses]:
    return network.losses


def by_parts() -> Network:
    network = batchnorm()
    model: Any = network.model
    network.losses = lambda batch: model.heads.losses(model.encoder(batch.x), batch.y)
    return network


@pytest.mark.parametrize("held_out", [in_eval_mode, by_parts_in_eval_mode, in_train_mode])
@pytest.mark.parametrize("make", [batchnorm, by_parts, NETWORKS["checkpointed"], NETWORKS["running_scale"]])
def test_held_out_losses_leave_no_trace(
    make: Callable[[], Network], held_out: Callable[[Network], Any], device: str
) -> None:
    assert_no_trace(make, device=device, held_out=held_out)
    assert_no_trace(make, device=device, held_out=held_out, estimator="lookahead")


@pytest.mark.parametrize("make", NETWORKS.values(), ids=NETWORKS)
def test_check_leaves_no_trace_at_all(make: Callable[[], Network]) -> None:
    network, optimizer = make_fresh(make, "adamw")
    train(network, optimizer, bare, steps=3)
    before = trace_of(network.model, optimizer)
    meter, batch = metered(network, optimizer), batches(1)[0]
    with network.around():
        meter.check(lambda: network.losses(batch), lambda: in_eval_mode(network)(batch))
    assert_same(trace_of(network.model, optimizer), before)


class Runs:
    """Counts runs. An object that holds a queue is left alone by the meter, so replays count as well."""

    def __init__(self) -> None:
        self._queue: SimpleQueue[int] = SimpleQueue()

    def count(self) -> int:
        self._queue.put(1)
        return self._queue.qsize()


class Failing:
    """Losses that raise half-way through one call."""

    def __init__(self, network: Network, at: int, error: type[BaseException]) -> None:
        self.inner, self.at, self.error, self.runs = network.losses, at, error, Runs()

    def __call__(self, batch: Batch) -> Losses:
        losses = self.inner(batch)
        if self.runs.count() == self.at:
            raise self.error("half-way")
        return losses


@pytest.mark.parametrize(
    ("make", "at", "error"),
    [(make, 4, KeyboardInterrupt) for make in NETWORKS.values()]
    + [(batchnorm, at, error) for at in (2, 3, 5) for error in (RuntimeError, KeyboardInterrupt)],
)
def test_replay_that_raises_leaves_no_trace(make: Callable[[], Network], at: int, error: type[BaseException]) -> None:
    """Call 1 is training's own, call 2 the repetition, and then one per looked-ahead task."""
    batch, traces = batches(1)[0], []
    for failing in (False, True):
        network, optimizer = make_fresh(make, "adamw")
        train(network, optimizer, bare, steps=4)
        seed()
        with network.around():
            if failing:
                network.losses = Failing(network, at, error)
                meter = metered(network, optimizer, named=True, estimator="lookahead")
                with pytest.raises(error, match="half-way"):
                    meter(lambda network=network: network.losses(batch))
            else:
                network.losses(batch)
        traces.append(trace_of(network.model, optimizer))
    assert_same(*reversed(traces))


def after_one_call(make: Callable[[], Network], batch: Batch, context: Callable[[], Any] = nullcontext) -> Trace:
    """Returns the trace of one call of the closure without a meter."""
    twin, other = make_fresh(make)
    seed()
    with context():
        twin.losses(batch)
    return trace_of(twin.model, other)


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
def test_where_gradients_are_off_the_closure_runs_and_nothing_else_happens(context: Callable[[], Any]) -> None:
    batch = batches(1)[0]
    expected = after_one_call(batchnorm, batch, context)
    network, optimizer = make_fresh(batchnorm)
    meter = metered(network, optimizer, every=1)
    seed()
    with context():
        found = meter(lambda: network.losses(batch))
        assert not meter.measure_only(lambda: network.losses(batch))
    assert (meter.calls, meter.measured, meter.tasks) == (0, 0, None)
    assert found.keys() == set(TASKS)
    assert_same(trace_of(network.model, optimizer), expected)


class Normalized(nn.Module):
    """Writes its weight in every forward pass, as losses on the sphere do."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.linear.weight.div_(self.linear.weight.norm(dim=1, keepdim=True))
        hidden: Tensor = self.linear(x)
        return hidden


def normalized() -> Network:
    return hard_sharing(Normalized())


def adversarial() -> Network:
    """Finds its perturbation with `.backward()`, which fills every `.grad` on the way."""
    network = hard_sharing(nn.Linear(6, 4))
    inner = network.losses

    def losses(batch: Batch) -> Losses:
        x = batch.x.clone().requires_grad_()
        inner(Batch(x, batch.y))["a"].backward()
        assert x.grad is not None
        return inner(Batch(batch.x + 0.1 * x.grad.sign(), batch.y))

    network.losses = losses
    return network


def unrepeatable() -> Network:
    """Reads another batch in every call."""
    network, runs = batchnorm(), Runs()
    inner = network.losses

    def losses(batch: Batch) -> Losses:
        return inner(batch if runs.count() == 1 else Batch(batch.x.flip(1), batch.y))

    network.losses = losses
    return network


@pytest.mark.parametrize(
    ("make", "part"),
    [(normalized, "linear.weight"), (adversarial, "weight.grad"), (unrepeatable, "is not repeatable")],
)
@pytest.mark.parametrize("named", [False, True])
def test_a_closure_that_cannot_be_undone_or_repeated_is_rejected_and_leaves_no_trace(
    make: Callable[[], Network], part: str, named: bool
) -> None:
    batch = batches(1)[0]
    expected = after_one_call(make, batch)
    network, optimizer = make_fresh(make)
    seed()
    with pytest.raises(ValueError, match=part):
        metered(network, optimizer, named=named)(lambda: network.losses(batch))
    assert_same(trace_of(network.model, optimizer), expected)


def test_parameters_may_be_unfrozen_frozen_and_cast_between_measurements() -> None:
    def live(meter: bool) -> Trace:
        network, optimizer = make_fresh(batchnorm)
        model: Any = network.model
        call: Any = metered(network, optimizer, every=1) if meter else bare
        model.encoder[0].requires_grad_(False)
        train(network, optimizer, call, steps=3)
        model.encoder[0].requires_grad_(True)
        train(network, optimizer, call, steps=3)
        model.encoder.requires_grad_(False)
        train(network, optimizer, call, steps=3)
        model.encoder.requires_grad_(True)
        model.double()
        optimizer.state.clear()
        network.losses = lambda batch: model(batch.x.double(), batch.y)
        return train(network, optimizer, call, steps=3)

    assert_same(live(True), live(False))


def test_several_meters_leave_no_trace() -> None:
    network, optimizer = make_fresh(batchnorm, "adamw")
    inner, outer = metered(network, optimizer, every=2), metered(network, optimizer, estimator="gradient")
    found = train(network, optimizer, lambda closure: outer(lambda: inner(closure)))
    assert_same(found, without_meter(batchnorm, "adamw", "cpu"))
    assert not module_hooks._global_forward_pre_hooks


def test_the_graph_may_be_differentiated_twice() -> None:
    """The graph that the meter returns is the user's, whatever runs before its backward pass."""

    def live(meter: bool) -> Trace:
        network, optimizer = make_fresh(NETWORKS["running_scale"])
        call: Any = metered(network, optimizer, every=1) if meter else bare
        for batch in batches(5):
            optimizer.zero_grad()
            losses = call(lambda batch=batch: network.losses(batch))
            torch.stack(list(losses.values())).sum().backward(retain_graph=True)
            torch.stack(list(losses.values())).sum().backward()
            optimizer.step()
        return trace_of(network.model, optimizer)

    assert_same(live(True), live(False))


def compiled(backend: str) -> Network:
    network = hard_sharing(
        nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Dropout(0.2)), needs_model=True
    )
    run = torch.compile(network.model, backend=backend)
    network.losses = lambda batch: run(batch.x, batch.y)
    return network


@pytest.fixture
def compiling() -> Iterator[None]:
    torch._dynamo.reset()
    with functorch_config.patch(donated_buffer=False):
        yield
    torch._dynamo.reset()


@pytest.mark.usefixtures("compiling")
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_measuring_a_compiled_model_leaves_no_trace(backend: str, device: str) -> None:
    assert_no_trace(functools.partial(compiled, backend), "adamw", device, loop={"steps": 12})


@pytest.mark.usefixtures("compiling")
def test_compiled_function_needs_the_model() -> None:
    """Hooks do not run inside compiled code, so the meter could not see which buffers to protect."""
    network, optimizer = make_fresh(lambda: hard_sharing(nn.BatchNorm1d(6), Heads(lambda: nn.Linear(6, 1))))
    run = torch.compile(network.losses, backend="eager")
    batch = batches(1)[0]
    with pytest.raises(ValueError, match="`model="):
        metered(network, optimizer)(lambda: run(batch))


@pytest.mark.cuda
@pytest.mark.parametrize("around", [False, True], ids=["inside", "around"])
@pytest.mark.parametrize("estimator", ["lookahead", ESTIMATORS])
@pytest.mark.parametrize("kind", ["sgd", "adamw"])
def test_half_precision_with_a_scaler_leaves_no_trace(kind: str, estimator: Any, around: bool, device: str) -> None:
    if device == "cpu":
        pytest.skip("fp16 training is for CUDA")

    def live(measure: bool) -> Trace:
        network, optimizer = make_fresh(batchnorm, kind, "cuda")
        scaler = torch.amp.GradScaler("cuda", init_scale=2.0**30, growth_interval=5)  # overflows at first
        call: Any = metered(network, optimizer, estimator=estimator, scaler=scaler) if measure else bare
        for batch in batches(50, "cuda"):
            optimizer.zero_grad()
            with torch.autocast("cuda", torch.float16, enabled=around):
                losses = call(lambda batch=batch: _half(network, batch))
            scaler.scale(torch.stack(list(losses.values())).sum()).backward()
            scaler.step(optimizer)
            scaler.update()
        return {"scaler": scaler.state_dict()["scale"], **trace_of(network.model, optimizer)}

    def _half(network: Network, batch: Batch) -> Losses:
        if around:
            return network.losses(batch)
        with torch.autocast("cuda", torch.float16):
            return network.losses(batch)

    assert_same(live(True), live(False))
