"""State in plain Python objects: what a replay changes is put back, in place, or refused by name."""

import collections
import functools
import itertools
import random
import sys
import threading
import types
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from small import TwoLayers, regression
from torch import Tensor, nn

from tagalong import AffinityMeter
from tagalong.measure import ClosureError
from tagalong.measure.objects import ObjectState

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


class Slotted:
    __slots__ = ("later", "value")

    def __init__(self) -> None:
        self.value = 0


class OfAClass:
    total = 0
    seen: list[int] = []  # noqa: RUF012 - shared by all instances on purpose


@dataclass(frozen=True)
class Frozen:
    values: list[int] = field(default_factory=list)


class EveryKind:
    """Holds one of each kind of object that the meter restores."""

    def __init__(self) -> None:
        self.number, self.text = 0, ""
        self.list: list[Any] = []
        self.nested = {"a": {"b": [0]}}
        self.ordered: OrderedDict[str, int] = OrderedDict(x=1, y=2)
        self.default: defaultdict[str, list[int]] = defaultdict(list)
        self.counter: collections.Counter[str] = collections.Counter()
        self.deque: deque[int] = deque([7, 8, 9], maxlen=3)
        self.set = {0}
        self.bytes = bytearray(b"0")
        self.array = np.zeros(3)
        self.tensor = torch.zeros(3)
        self.strided = torch.zeros(3, 4).t()
        self.by_data = torch.zeros(3)
        self.large = torch.zeros(100_000)
        self.counted, self.slotted, self.frozen = Counted(), Slotted(), Frozen()
        self.space = types.SimpleNamespace(value=0)
        self.pair = ([0], np.zeros(1))
        self.itself = self
        self.generators = torch.Generator(), np.random.default_rng(0), np.random.RandomState(0), random.Random(0)

    def change(self) -> float:
        self.number, self.text = self.number + 1, f"{self.number}"
        self.list.append({"step": self.number})
        self.list[0]["step"] += 1
        self.nested["a"]["b"].append(self.number)
        self.ordered.move_to_end("x")
        self.ordered[str(self.number)] = self.number
        self.default["new"].append(self.number)
        self.counter.update(["x"])
        self.deque.append(self.number)
        self.set.add(self.number)
        self.bytes += b"1"
        self.array += 1
        self.tensor += 1
        self.strided[1] += 1
        self.by_data.data.add_(1)
        self.large[5] += 1
        self.counted["x"] = self.counted.calls = self.number
        self.slotted.value = self.slotted.later = self.number
        self.frozen.values.append(self.number)
        self.space.value += 1
        self.pair[0].append(1)
        self.pair[1][0] += 1
        self.itself.added = self.number  # type: ignore[attr-defined]
        OfAClass.total += 1
        OfAClass.seen.append(self.number)
        a, b, c, d = self.generators
        return float(torch.rand((), generator=a)) + b.random() + c.rand() + d.random()

    def summary(self) -> list[Any]:
        a, b, c, d = self.generators
        plain = [self.number, self.text, self.list, self.nested, self.ordered, list(self.ordered), self.default]
        plain += [self.counter, list(self.deque), self.set, self.bytes, self.array.tolist(), self.tensor.tolist()]
        plain += [self.strided.tolist(), self.by_data.tolist(), float(self.large.sum()), self.counted, self.frozen]
        plain += [self.counted.calls, self.slotted.value, self.space, self.pair[0], self.pair[1].tolist()]
        plain += [OfAClass.total, OfAClass.seen, getattr(self, "added", None)]
        return [*plain, a.get_state().tolist(), b.bit_generator.state, str(c.get_state()), d.getstate()]


@pytest.fixture
def untouched_class() -> Iterator[None]:
    yield
    OfAClass.total, OfAClass.seen = 0, []


@pytest.mark.usefixtures("untouched_class")
@pytest.mark.parametrize("way", ["measure", "check"])
def test_every_kind_of_object_is_as_without_a_meter(way: str) -> None:
    plain = EveryKind()
    for _ in range(3 if way == "measure" else 1):
        plain.change()
    expected, OfAClass.total, OfAClass.seen = plain.summary(), 0, []
    model, losses = regression()
    found = EveryKind()
    inside = [found.nested["a"]["b"], found.array, found.tensor, found.slotted, found.generators]

    def closure() -> Losses:
        factor = 1 + found.change()
        return {t: loss * factor for t, loss in losses().items()}

    if way == "measure":
        measured(closure, model)
    else:
        AffinityMeter(model.encoder, lr=0.1).check(closure)
        found.change()
    assert found.summary() == expected
    now = [found.nested["a"]["b"], found.array, found.tensor, found.slotted, found.generators]
    assert all(a is b for a, b in zip(now, inside, strict=True))


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


@pytest.mark.parametrize("penalty", [False, True], ids=["plain", "with a gradient penalty"])
@pytest.mark.parametrize("where", ["nonlocal", "attribute", "list", "forward hook", "returned"])
def test_features_kept_for_an_extra_loss_are_those_of_the_training_run(where: str, penalty: bool) -> None:
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
            if penalty:
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


def test_a_closure_may_return_anything_along_with_the_losses() -> None:
    model, losses = regression()
    returned = ({t: (loss, 16) for t, loss in losses().items()}, "anything", 3)
    meter, plain = (AffinityMeter(model.encoder, lr=0.1, every=1) for _ in range(2))
    found = meter(lambda: (losses(), returned), held_out=lambda: (losses(), None))
    assert found[1] is returned
    plain(losses, held_out=losses)
    np.testing.assert_array_equal(meter.affinity().mean, plain.affinity().mean)
    meter.backward()
    assert model.encoder[0].weight.grad is not None
    assert meter.check(lambda: (losses(), None)).tasks == ("a", "b", "c")


class Reader:
    """A trainer whose losses depend on something that cannot be put back."""

    def __init__(self, source: Any) -> None:
        self.losses_of = {"a": types.SimpleNamespace(record=source)}


def changing(kind: str, folder: Path) -> tuple[Any, Callable[[Any], Any]]:
    file = (folder / "log.txt").open("w") if kind == "file" else None
    loader = torch.utils.data.DataLoader(torch.zeros(9, 1))
    sources: dict[str, tuple[Any, Callable[[Any], Any]]] = {
        "list iterator": (iter([1, 2, 3]), next),
        "count": (itertools.count(), next),
        "generator": ((number for number in range(9)), next),
        "enumerate": (enumerate([1, 2, 3]), next),
        "zip": (zip([1, 2, 3], "abc", strict=True), next),
        "chain": (itertools.chain([1, 2], [3]), next),
        "cycle": (itertools.cycle([1, 2, 3]), next),
        "islice": (itertools.islice(iter([1, 2, 3]), 2), next),
        "data loader": (iter(loader), next),
        "file": (file, lambda file: file.write("x")),
        "large tensor": (torch.zeros(1000), lambda tensor: tensor.add_(1)),
        "large array": (np.zeros(1000), lambda array: np.add(array, 1, out=array)),
        "large list": ([0] * 1000, lambda numbers: numbers.append(1)),
        "parameter": (torch.zeros(3, requires_grad=True), lambda p: p.detach().add_(1)),
        "gradient": (torch.zeros(3, requires_grad=True), lambda p: p.sum().backward()),
    }
    return sources[kind]


@pytest.mark.parametrize(
    "kind",
    [
        *("list iterator", "count", "generator", "enumerate", "zip", "chain", "cycle", "islice", "data loader", "file"),
        *("large tensor", "large array", "large list", "parameter", "gradient"),
    ],
)
def test_what_cannot_be_put_back_is_refused_by_its_name(kind: str, tmp_path: Path) -> None:
    model, losses = regression()
    source, change = changing(kind, tmp_path)
    self = Reader(source)

    def closure() -> Losses:
        change(self.losses_of["a"].record)
        return losses()

    with pytest.raises(ClosureError, match=r"`self\.losses_of\['a'\]\.record"):
        AffinityMeter(model.encoder, lr=0.1, state_memory=4096)(closure)
    if kind == "file":
        source.close()


def test_what_does_not_change_is_not_refused() -> None:
    model, losses = regression()
    unused = [iter([1]), torch.zeros(10_000), np.zeros(10_000), itertools.count(), torch.zeros(2, requires_grad=True)]
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


def test_a_large_structure_is_searched_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tagalong.measure.objects.MAX_OBJECTS", 200)
    model, losses = regression()
    near, many = [0], [[[0]] for _ in range(500)]

    def closure() -> Losses:
        near[0] += 1
        return losses() if many else {}

    meter = measured(closure, model, calls=1)
    assert near == [1]
    assert any("reaches more than" in note for note in meter.check(closure).notes)


def test_one_record_per_task_is_restored_for_many_tasks() -> None:
    model, losses = regression()
    records: list[list[int]] = [[] for _ in range(800)]

    def closure() -> Losses:
        records[799].append(1)
        return losses()

    measured(closure, model)
    assert records[799] == [1, 1, 1]


def test_the_owner_of_a_builtin_method_is_restored() -> None:
    model, losses = regression()
    record: list[int] = []
    append = record.append
    del record

    def closure() -> Losses:
        append(1)
        return losses()

    measured(closure, model)
    assert append.__self__ == [1, 1, 1]  # type: ignore[attr-defined]


def test_containers_of_plain_values_are_not_searched_one_by_one() -> None:
    state = ObjectState()
    state.add([list(range(100_000)), dict.fromkeys(range(1000), "text")], "data")
    assert len(state._seen) == 3


def test_a_module_outside_the_model_that_only_counts_is_restored() -> None:
    model, losses = regression()

    class Metric(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.total = torch.zeros(())

        def update(self, value: Tensor) -> None:
            self.total += value

    metric = Metric()

    def closure() -> Losses:
        found = losses()
        metric.update(found["a"].detach().float())
        return found

    plain = sum(losses()["a"].float() for _ in range(2))
    measured(closure, model, calls=2, model=model)
    torch.testing.assert_close(metric.total, plain.detach())  # type: ignore[union-attr]
