"""State in plain Python objects: what a replay changes is put back, in place, or refused by name."""

import collections
import functools
import importlib
import random
import sys
import threading
import tracemalloc
import types
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from small import TwoLayers, comparable, regression
from torch import Tensor, nn

from tagalong import AffinityMeter
from tagalong.measure import ClosureError, objects

Losses = dict[str, Tensor]


def measured(closure: Callable[[], Any], network: TwoLayers, calls: int = 3, **options: Any) -> AffinityMeter:
    meter = AffinityMeter(network.encoder, lr=0.1, every=1, **options)
    for _ in range(calls):
        meter(closure)
    assert meter.measured == calls
    return meter


class Counted(dict[str, int]):
    """A container with attributes of its own."""

    calls = 0

    def change(self) -> None:
        self.calls += 1
        self["calls"] = self.calls


@dataclass(frozen=True)
class Frozen:
    values: list[int] = field(default_factory=list)


class Itself:
    def __init__(self) -> None:
        self.itself, self.number = self, 0

    def change(self) -> None:
        self.itself.number += 1
        self.itself.added = self.number  # type: ignore[attr-defined]


class Kind(NamedTuple):
    """A kind of object that the meter puts back: how to make it, to change it, and to look at it."""

    make: Callable[[], Any]
    change: Callable[[Any], Any]
    look: Callable[[Any], Any] = comparable


def parameters_of(module: nn.Module) -> Any:
    return comparable([p.detach() for p in module.parameters()])


KINDS: dict[str, Kind] = {
    "list": Kind(list, lambda x: x.append({"step": len(x)})),
    "nested": Kind(lambda: {"a": {"b": [0]}}, lambda x: x["a"]["b"].append(1)),
    "tuple": Kind(lambda: ([0], np.zeros(1)), lambda x: (x[0].append(1), np.add(x[1], 1, out=x[1]))),
    "ordered": Kind(
        lambda: OrderedDict(x=1, y=2), lambda x: (x.move_to_end("x"), x.update(z=1)), lambda x: [*x.items()]
    ),
    "default": Kind(lambda: defaultdict(list), lambda x: x["new"].append(1)),
    "counter": Kind(collections.Counter, lambda x: x.update(["x"])),
    "array": Kind(lambda: np.zeros(3), lambda x: np.add(x, 1, out=x)),
    "tensor": Kind(lambda: torch.zeros(3), lambda x: x.add_(1)),
    "strided tensor": Kind(lambda: torch.zeros(3, 4).t(), lambda x: x[1].add_(1)),
    "tensor by data": Kind(lambda: torch.zeros(3), lambda x: x.data.add_(1)),
    "large tensor": Kind(lambda: torch.zeros(100_000), lambda x: x[5].add_(1)),
    "large tensor by data": Kind(lambda: torch.zeros(100_000), lambda x: x.data[5].add_(1)),
    "large array": Kind(lambda: np.zeros(100_000), lambda x: np.add(x[5:6], 1, out=x[5:6])),
    "tensor by data in a list": Kind(lambda: [torch.zeros(3)], lambda x: x[0].data.add_(1)),
    "tensor whose data is replaced": Kind(
        lambda: {"a": torch.zeros(3)}, lambda x: setattr(x["a"], "data", x["a"].data + 1)
    ),
    "attribute of a parameter": Kind(
        lambda: nn.Parameter(torch.zeros(3)), lambda x: vars(x).setdefault("seen", []).append(1), lambda x: x.seen
    ),
    "gradient of an input": Kind(
        lambda: torch.zeros(3).requires_grad_(), lambda x: x.sum().backward(), lambda x: comparable(x.grad)
    ),
    "frozen copy": Kind(
        lambda: nn.Linear(2, 2).requires_grad_(False), lambda x: [p.add_(1) for p in x.parameters()], parameters_of
    ),
    "frozen copy by data": Kind(
        lambda: nn.Linear(2, 2).requires_grad_(False), lambda x: [p.data.add_(1) for p in x.parameters()], parameters_of
    ),
    "parts of a module": Kind(
        nn.ModuleList, lambda x: (x.append(nn.Identity()), x.register_buffer(f"b{len(x)}", torch.zeros(1))), repr
    ),
    "attribute": Kind(lambda: types.SimpleNamespace(x=0), lambda x: setattr(x, "x", f"{x.x}1"), vars),
    "dict with attributes": Kind(Counted, Counted.change, lambda x: (dict(x), x.calls)),
    "frozen": Kind(Frozen, lambda x: x.values.append(1), lambda x: x.values),
    "itself": Kind(Itself, Itself.change, lambda x: (x.itself is x, x.number, x.added)),
    "torch generator": Kind(
        torch.Generator, lambda x: float(torch.rand((), generator=x)), lambda x: x.get_state().tolist()
    ),
    "numpy generator": Kind(lambda: np.random.default_rng(0), lambda x: x.random(), lambda x: x.bit_generator.state),
    "old numpy generator": Kind(lambda: np.random.RandomState(0), lambda x: x.rand(), lambda x: str(x.get_state())),
    "python generator": Kind(lambda: random.Random(0), lambda x: x.random(), lambda x: x.getstate()),
}


@pytest.mark.parametrize("name", KINDS)
def test_every_kind_of_object_is_as_without_a_meter(name: str) -> None:
    kind = KINDS[name]
    torch.manual_seed(0)
    plain = kind.make()
    torch.manual_seed(0)
    record = kind.make()
    for _ in range(3):
        kind.change(plain)
    model, losses = regression()
    trainer = types.SimpleNamespace(record=record)

    def closure() -> Losses:
        drawn = kind.change(trainer.record)
        factor = 1 + (drawn if isinstance(drawn, float) else 0)
        return {t: loss * factor for t, loss in losses().items()}

    measured(closure, model)
    AffinityMeter(model.encoder, lr=0.1).check(closure)
    assert trainer.record is record
    assert kind.look(record) == kind.look(plain)


COUNTS = {"global": 0}
total_of_module = 0


def count_in_globals(losses: Losses) -> Losses:
    global total_of_module, created_by_closure
    total_of_module += 1
    created_by_closure = total_of_module  # type: ignore[name-defined]
    COUNTS["global"] += 1
    count_in_globals.calls = getattr(count_in_globals, "calls", 0) + 1  # type: ignore[attr-defined]
    return losses


def test_variables_of_modules_and_functions_are_restored() -> None:
    model, losses = regression()
    before = total_of_module
    measured(lambda: count_in_globals(losses()), model, calls=2)
    assert total_of_module == sys.modules[__name__].created_by_closure == COUNTS["global"] == before + 2
    assert count_in_globals.calls == 2  # type: ignore[attr-defined]
    del sys.modules[__name__].created_by_closure


@pytest.mark.parametrize("where", ["nonlocal", "attribute", "list", "forward hook", "returned"])
def test_features_kept_for_an_extra_loss_are_those_of_the_training_run(where: str) -> None:
    """The extra loss is computed outside the closure, so it needs the graph of the run that training differentiates."""

    def gradients(measure: bool) -> list[Tensor]:
        model, _ = regression()
        x = torch.linspace(-1, 1, 32).reshape(8, 4).double().requires_grad_()
        store, kept, last = types.SimpleNamespace(z=None), [], None
        if where == "forward hook":
            model.encoder.register_forward_hook(lambda module, inputs, output: kept.append(output))

        def closure() -> Any:
            nonlocal last
            z = model.encoder(x)
            last = z if where == "nonlocal" else None
            store.z = z if where == "attribute" else None
            if where == "list":
                kept[:] = [z]
            losses = {t: head(z).pow(2).mean() for t, head in model.heads.items()}
            losses["a"] = losses["a"] + torch.autograd.grad(losses["a"], x, create_graph=True)[0].pow(2).sum()
            return (losses, z) if where == "returned" else losses

        meter: Any = AffinityMeter(model.encoder, lr=0.1, every=1) if measure else lambda closure: closure()
        for _ in range(2):
            found = meter(closure)
            losses, z = found if where == "returned" else (found, None)
            z = {"nonlocal": last, "attribute": store.z, "returned": z}.get(where, kept[-1] if kept else None)
            (sum(losses.values()) + z.pow(3).mean()).backward()
        return [p.grad for p in model.parameters()] + [torch.tensor(len(kept))]

    assert all(torch.equal(a, b) for a, b in zip(gradients(True), gradients(False), strict=True))


# What cannot be put back, and what changes it.
SOURCES: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    "set": (lambda: {0}, lambda numbers: numbers.add(len(numbers))),
    "deque": (lambda: deque([7, 8, 9], maxlen=3), lambda numbers: numbers.append(numbers[-1] + 1)),
    "large tensor": (lambda: torch.zeros(1000), lambda tensor: tensor.add_(1)),
    "large array": (lambda: np.zeros(1000), lambda array: np.add(array, 1, out=array)),
    "long list": (lambda: [0] * 200_000, lambda numbers: numbers.append(1)),
    "parameter": (lambda: nn.Parameter(torch.zeros(3)), lambda p: p.detach().add_(1)),
    "gradient": (lambda: nn.Parameter(torch.zeros(3)), lambda p: p.sum().backward()),
    "trained copy": (lambda: nn.Linear(2, 2), lambda module: module.weight.data.mul_(0.9)),
    "trained copy, replaced": (lambda: nn.Linear(2, 2), lambda m: setattr(m.weight, "data", m.weight.data * 0.9)),
}


@pytest.mark.parametrize("kind", SOURCES)
def test_what_cannot_be_put_back_is_refused_by_its_name(kind: str) -> None:
    model, losses = regression()
    make, change = SOURCES[kind]
    self = types.SimpleNamespace(losses_of={"a": types.SimpleNamespace(record=make())})

    def closure() -> Losses:
        change(self.losses_of["a"].record)
        return losses()

    with pytest.raises(ClosureError, match=r"`self\.losses_of\['a'\]\.record"):
        AffinityMeter(model.encoder, lr=0.1, state_memory=4096)(closure)


def train_on_samples(estimator: str | None) -> Any:
    """Trains as opacus does, with hooks that keep activations in lists and gradients of samples on parameters."""
    model, losses = regression()

    def keep(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        module.kept = [*getattr(module, "kept", []), inputs[0].detach()]
        output.register_hook(lambda g: setattr(module.weight, "samples", g[:, :, None] * module.kept.pop()[:, None]))

    layers = [layer for layer in model.modules() if isinstance(layer, nn.Linear)]
    for layer in layers:
        layer.register_forward_hook(keep)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    wrapped: Any = types.SimpleNamespace(original_optimizer=optimizer)
    meter = AffinityMeter(model.encoder, wrapped, every=2, estimator=estimator) if estimator else lambda run: run()
    for _ in range(5):
        sum(meter(losses).values()).backward()
        for layer in layers:
            layer.weight.grad = layer.weight.samples.clamp(-0.01, 0.01).sum(0)
        optimizer.step()
    assert estimator is None or np.isfinite(meter.affinity().mean).all()  # type: ignore[attr-defined]
    return comparable([dict(model.named_parameters()), optimizer.state_dict()])


@pytest.mark.parametrize("estimator", ["lookahead", "gradient"])
def test_gradients_of_samples_are_as_without_a_meter(estimator: str) -> None:
    assert train_on_samples(estimator) == train_on_samples(None)


VIEWS: list[Callable[[Tensor], Any]] = [
    lambda p: p.data, lambda p: p.detach()[1:], lambda p: p.detach().numpy(), lambda p: p.detach().numpy()[1:]
]  # fmt: skip


@pytest.mark.parametrize("view", VIEWS)
def test_views_of_shared_parameters_follow_the_steps(view: Callable[[Tensor], Any]) -> None:
    model, losses = regression()
    expected = measured(losses, model, 1).affinity().mean
    views = [view(p) for p in model.encoder.parameters()]
    np.testing.assert_array_equal(measured(lambda: losses() if views else {}, model, 1).affinity().mean, expected)


def test_shared_parameters_may_be_plain_tensors() -> None:
    x, head = torch.randn(8, 3), torch.randn(2, 2)

    def affinity(weight: Tensor) -> np.ndarray:
        meter = AffinityMeter([weight], lr=0.1)
        meter(lambda: dict(zip("ab", (torch.tanh(x @ weight) @ head - 1).pow(2).mean(0), strict=True)))
        return meter.affinity().mean

    weight = torch.randn(3, 2)
    expected = affinity(nn.Parameter(weight.clone()))
    np.testing.assert_array_equal(affinity(weight.requires_grad_()), expected)
    assert (expected != 0).all()


def test_what_does_not_change_is_not_refused() -> None:
    model, losses = regression()
    unused = [iter([1]), torch.zeros(10_000), np.zeros(10_000), {1}, torch.zeros(2, requires_grad=True)]
    measured(lambda: losses() if unused else {}, model, state_memory=0)


def test_objects_that_other_threads_may_use_are_left_alone() -> None:
    model, losses = regression()

    class Prefetcher:
        def __init__(self) -> None:
            self.lock, self.batches = threading.Lock(), 0

    prefetcher = Prefetcher()

    def closure() -> Losses:
        prefetcher.batches += 1
        return losses()

    AffinityMeter(model.encoder, lr=0.1)(closure)
    assert prefetcher.batches > 3  # each replay counted: putting it back might undo another thread's work


def test_closures_of_every_form_are_searched() -> None:
    model, losses = regression()

    class Losses_:
        def __init__(self) -> None:
            self.calls = 0

        def __call__(self, _: int = 0) -> Losses:
            self.calls += 1
            return losses()

    instance = Losses_()

    @functools.wraps(losses)
    def decorated(count: list[int] = []) -> Losses:  # noqa: B006
        count.append(1)
        return losses()

    assert decorated.__defaults__ is not None
    (counts,) = decorated.__defaults__
    for number, closure in enumerate(
        [instance, instance.__call__, functools.partial(instance, 3), torch.enable_grad()(decorated)], start=1
    ):
        measured(closure, model, calls=1)
        assert instance.calls + len(counts) == number
    append = [].append  # whose owner nothing else refers to
    measured(lambda: (append(1), losses())[1], model)
    assert append.__self__ == [1, 1, 1]  # type: ignore[attr-defined]


def test_a_large_structure_is_searched_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tagalong.measure.objects.MAX_OBJECTS", 500)
    model, losses = regression()
    near, many = [0], [[[0]] for _ in range(900)]

    def closure() -> Losses:
        near[0] += 1
        return losses() if many else {}

    meter = measured(closure, model, calls=1)
    assert near == [1]
    assert any("reaches more than" in note for note in meter.check(closure).notes)


def calls_in_a_measured_call(records: int) -> int:
    """Returns how many functions a measured call runs with a data set of so many records in reach."""
    model, losses = regression()
    data: dict[str, Any] = {"names": [*map(str, range(records))], "rows": [[float(n)] for n in range(records)]}
    data["nested"] = {str(n): [[k] for k in range(900)] for n in range(records // 25)}
    data["table"] = np.zeros((records, 100))
    meter, counts = AffinityMeter(model.encoder, lr=0.1, every=1), [0]
    closure = lambda: losses() if data else {}  # noqa: E731
    meter(closure)
    sys.setprofile(lambda *_: counts.__setitem__(0, counts[0] + 1))
    try:
        meter(closure)
    finally:
        sys.setprofile(None)
    return counts[0]


def test_the_cost_of_a_measured_call_does_not_grow_with_the_data_in_reach() -> None:
    """Every record would add dozens of calls; what may grow a little is the number of outer containers."""
    assert calls_in_a_measured_call(20_000) < calls_in_a_measured_call(2000) + 10_000


@pytest.mark.parametrize("state_memory", [1e7, 1e8])  # enough for one of them, or for both
def test_large_data_is_copied_only_in_calls_that_verify(state_memory: float) -> None:
    model, losses = regression()
    data = {"array": np.zeros((1000, 1000)), "tensor": torch.zeros(1000, 1000)}
    meter = AffinityMeter(model.encoder, lr=0.1, every=1, state_memory=state_memory)
    closure = lambda: losses() if data else {}  # noqa: E731
    meter(closure)
    tracemalloc.start()
    try:
        meter(closure)
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


def test_what_changes_for_the_first_time_later_skips_one_measurement() -> None:
    model, losses = regression()
    bank, calls, weight = torch.zeros(100_000), [0], model.heads["a"].weight
    halved = weight.detach() / 2

    def closure() -> Losses:
        calls[0] += 1
        if calls[0] > 3:
            bank[5] += 1
        if calls[0] == 5:
            weight.data.mul_(0.5)
        return losses()

    meter = AffinityMeter(model.encoder, lr=0.1, every=1)
    for _ in range(3):
        meter(closure)
    for name in ("bank", "weight"):
        with pytest.warns(UserWarning, match=name):
            meter(closure)
    meter(closure)
    assert meter.measured == 4
    assert (calls, bank[5].item(), bank.sum().item()) == ([6], 3.0, 3.0)
    assert torch.equal(weight, halved)


@pytest.mark.parametrize("installed", [True, False])
def test_installed_packages_are_told_from_own_code_wherever_they_are(
    installed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The variables of an own module are restored; those of a library are left alone."""
    (tmp_path / "counting_module.py").write_text("calls = 0\n\ndef count():\n    global calls\n    calls += 1\n")
    if installed:
        (tmp_path / "counting_module-1.0.dist-info").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "counting_module", raising=False)
    global counting
    counting = importlib.import_module("counting_module")
    objects.is_library.cache_clear()
    model, losses = regression()
    measured(lambda: (counting.count(), losses())[1], model, calls=1)
    assert (counting.calls > 1) if installed else (counting.calls == 1)
