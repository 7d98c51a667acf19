"""Keys of networks: they depend on everything that changes the numbers, and on nothing else."""

import signal
import subprocess
import sys
import types
from dataclasses import replace
from functools import partial, wraps
from pathlib import Path

import pytest
import torch
from study_small import RECIPE, small_problem
from torch import nn

from tagalong._version import NUMERICS
from tagalong.learn import MLP, Job, Task
from tagalong.measure import Cosine, Every, RoundRobin
from tagalong.study.keys import Keys

JOB = Job(("a", "b"), 0)


def key(problem=None, job=JOB, device="cpu"):
    return Keys(problem or small_problem(), device).of(job)


def architecture(encoder):
    return Keys(replace(small_problem(), encoder=encoder), "cpu").architecture


def with_loss(loss):
    problem = small_problem()
    return replace(problem, tasks=(Task("a", kind="custom", loss=loss), *problem.tasks[1:]))


def test_same_definition_has_the_same_key():
    assert key() == key(small_problem())
    assert key() == key(replace(small_problem(), name="other name")), "a name defines nothing"


def test_everything_that_changes_the_numbers_changes_the_key():
    problem = small_problem()
    pretrained = MLP(4, hidden=(5,))().double()
    scaled = replace(problem, scales={"a": (0.0, 2.0)})
    variants = {
        "itself": key(),
        "data": key(small_problem(seed=1)),
        "recipe": key(small_problem(recipe=replace(RECIPE, lr=0.2))),
        "layers": key(replace(problem, encoder=MLP(4, hidden=(6,)))),
        "activations": key(replace(problem, encoder=MLP(4, hidden=(5,), dropout=0.1))),
        "first weights": key(replace(problem, encoder=pretrained)),
        "tasks": key(job=Job(("a", "c"), 0)),
        "seed": key(job=Job(("a", "b"), 1)),
        "rule": key(job=Job(("a", "b"), 0, "uw")),
        "width": key(job=Job(("a", "b"), 0, "plain", 2.0)),
        "device": key(device="meta"),
        "scales": key(scaled),
        "own loss": key(with_loss(lambda outputs, targets: (outputs[:, 0] - targets).abs())),
        "another own loss": key(with_loss(lambda outputs, targets: (outputs[:, 0] - targets).abs() ** 2)),
    }
    assert len(set(variants.values())) == len(variants)


def test_keys_do_not_depend_on_the_index_of_the_device():
    assert key(device="cuda:0") == key(device="cuda:1") != key(device="cpu")


def test_keys_of_measurements_depend_on_the_network_and_the_settings_of_the_meter():
    def measured(job=JOB, **settings):
        return Keys(small_problem(), "cpu").of_affinity(job, settings)

    settings = [
        lambda: {"every": 10},
        lambda: {"every": 1},
        lambda: {"every": Every(4)},
        lambda: {"every": Every(5)},
        lambda: {"every": RoundRobin(4)},
        lambda: {"estimator": Cosine()},
        lambda: {"estimator": [Cosine(kernels_only=True)]},
    ]
    assert all(measured(**make()) == measured(**make()) for make in settings)
    found = [measured(**make()) for make in settings] + [measured(replace(JOB, seed=1), every=10), key()]
    assert len(set(found)) == len(found)
    assert measured(every=1, update="sgd") == measured(update="sgd", every=1)


def scaled_error(outputs, targets, by):
    return by * (outputs[:, 0] - targets).abs()


def scaled_by(by):
    return lambda outputs, targets: scaled_error(outputs, targets, by)


def with_default(by):
    def loss(outputs, targets, *, by=by):
        return scaled_error(outputs, targets, by)

    return loss


class Scaled:
    def __init__(self, by):
        self.by = by

    def __call__(self, outputs, targets):
        return scaled_error(outputs, targets, self.by)


class Slotted(Scaled):
    __slots__ = ("by",)


class Held(nn.Linear):
    """A layer that is used as a loss."""

    def __init__(self, value):
        super().__init__(4, 4)
        self.value = value
        nn.init.constant_(self.weight, 0.5)
        nn.init.constant_(self.bias, 0.5)


class Circular(Held):
    def __init__(self, gain):
        super().__init__(gain)
        self.activation = lambda inputs: inputs.relu() * self.value


def in_module(source, **constants):
    """Returns the loss that a module with this source defines."""
    made = {"__name__": "somebodys", **constants}
    exec(source, made)
    return made["loss"]


DIRECT = "def loss(outputs, targets):\n    return (outputs - targets).abs() ** POWER\n"
THROUGH = "def raised(x):\n    return x ** POWER\n\n\ndef loss(o, t):\n    return raised((o - t).abs())\n"
MUTUAL = (
    "def a(x):\n    return b(x)\n\n\ndef b(x):\n    return POWER * a(x)\n\n\ndef loss(o, t):\n    return a(o - t)\n"
)
LOSSES = {
    "partial": lambda by: partial(scaled_error, by=by),
    "closure": scaled_by,
    "default": with_default,
    "object": Scaled,
    "bound method": lambda by: Scaled(by).__call__,
    "slots": Slotted,
    "constant": lambda by: in_module(DIRECT, POWER=by),
    "constant of a function that it calls": lambda by: in_module(THROUGH, POWER=by),
    "function that it calls": lambda by: in_module(THROUGH.replace("x ** POWER", f"x ** {by}")),
    "functions that call each other": lambda by: in_module(MUTUAL, POWER=by),
    "layer": Held,
    "layer that refers to itself": Circular,
    "nested": lambda by: Held([[[[[[[[by]]]]]]]]),
    "enum": lambda by: Held([signal.SIGINT, signal.SIGTERM][by - 2]),
    "bytes": lambda by: Held(bytes(by)),
    "range": lambda by: Held(range(by)),
    "complex number": lambda by: Held(by * 1j),
    "class": lambda by: Held([nn.ReLU, nn.Tanh][by - 2]),
}


@pytest.mark.parametrize("made", LOSSES.values(), ids=LOSSES)
def test_losses_with_other_settings_have_other_keys(made):
    assert key(with_loss(made(2))) == key(with_loss(made(2))) != key(with_loss(made(3)))


class Powered(nn.Module):
    """Neither its text nor its weights show the power."""

    def __init__(self, power=1, act=torch.tanh):
        super().__init__()
        self.layer, self.power, self.act = nn.Linear(4, 3), power, act
        self.seen = object()  # says nothing, and differs between instances

    def forward(self, rows):
        return self.act(self.layer(rows)) ** self.power


class Shifted(Powered):
    def forward(self, rows):
        return super().forward(rows) + 1


Shifted.__name__ = "Powered"  # the same text


class Attending(nn.Module):
    def __init__(self, heads):
        super().__init__()
        self.layer = nn.MultiheadAttention(4, heads)

    def forward(self, rows):
        return self.layer(rows, rows, rows)[0]


def test_keys_depend_on_what_layers_compute_not_only_on_their_text():
    assert architecture(Powered) == architecture(Powered)
    encoders = [Powered, lambda: Powered(2), lambda: Powered(act=torch.sin), Shifted]
    encoders += [lambda: Attending(1), lambda: Attending(2)]
    assert len({architecture(encoder) for encoder in encoders}) == len(encoders)


SOURCE = """
import numpy
import torch
from functools import partial
from torch import nn


class Net(nn.Module):
    sign = -1

    def __init__(self, power=2):
        super().__init__()
        self.layer, self._power = nn.Linear(4, 3), power

    @staticmethod
    def shift():
        return 1

    def forward(self, rows):
        return self.sign * self.layer(rows) ** self._power + self.shift()


class Scaled:
    def __init__(self, by):
        self.by = by

    def __call__(self, outputs, targets):
        return self.by * (outputs[:, 0] - targets).abs()

    def squared(self, outputs, targets):
        return self(outputs, targets) ** 2


class Holder:
    def __init__(self, by):
        self.by = by

    def loss(self, outputs, targets):
        return self.by * (outputs[:, 0] - targets).abs()


def plain(outputs, targets):
    return (outputs[:, 0] - targets).abs()


def closed(kind):
    import torch as held

    return lambda outputs, targets: held.abs(outputs[:, 0] - targets) * kind(2).by


LOSSES = [plain, Scaled(2), Scaled(2).squared, Holder(2).loss, partial(Scaled(2).squared), closed(Scaled)]
"""


def module(name, source=SOURCE):
    """Returns a module with this name and source."""
    made = types.ModuleType(name)
    exec(source, vars(made))
    return made


def test_keys_do_not_depend_on_where_a_class_or_function_is_defined():
    here, there = module("here"), module("package.there")
    assert here.Net.__module__ != there.Net.__module__
    assert architecture(here.Net) == architecture(there.Net)
    for first, second in zip(here.LOSSES, there.LOSSES, strict=True):
        assert key(with_loss(first)) == key(with_loss(second))
    assert len({key(with_loss(loss)) for loss in here.LOSSES}) == len(here.LOSSES)


@pytest.mark.parametrize(
    ("text", "other"),
    [
        ("sign = -1", "sign = 1"),
        ("return 1", "return 2"),
        ("power=2", "power=3"),
        ("rows) ** self._power", "rows) * self._power"),
        ("return self.by * (", "return self.by + ("),
        ("targets) ** 2", "targets) ** 3"),
    ],
)
def test_keys_depend_on_what_a_users_layer_or_loss_computes(text, other):
    def keys(source):
        users = module("here", source)
        return architecture(users.Net), key(with_loss(users.Scaled(2).squared))

    changed = SOURCE.replace(text, other)
    assert keys(SOURCE) == keys(SOURCE) != keys(changed)


def test_functions_with_the_same_name_are_told_apart():
    @wraps(nn.functional.l1_loss)
    def loss(outputs, targets):
        return nn.functional.l1_loss(outputs[:, 0], targets, reduction="none")

    @wraps(nn.functional.l1_loss)
    def twice(outputs, targets):
        return 2 * nn.functional.l1_loss(outputs[:, 0], targets, reduction="none")

    named = [with_loss(found) for found in (nn.functional.l1_loss, loss, twice)]
    assert len(set(map(key, named))) == 3


def test_keys_depend_on_the_contents_of_losses_that_are_modules():
    weights = torch.ones(2000)
    others = weights.clone()
    others[1000] = 2  # where a printed tensor shows dots
    losses = [nn.L1Loss(reduction="none"), nn.MSELoss(reduction="none"), nn.HuberLoss("none"), nn.HuberLoss("none", 2)]
    losses += [nn.BCEWithLogitsLoss(found, reduction="none") for found in (weights, others)]
    assert len({key(with_loss(loss)) for loss in losses}) == len(losses)
    assert key(with_loss(nn.L1Loss())) == key(with_loss(nn.L1Loss()))


def changed_encoder(change):
    encoder = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)).double()
    for parameter in encoder.parameters():
        nn.init.constant_(parameter, 0.5)
    change(encoder)
    return encoder


def test_frozen_shared_and_eval_mode_layers_have_other_keys():
    def share(encoder):
        encoder[1] = encoder[0]

    def tie(encoder):
        encoder[1].weight = encoder[0].weight

    def freeze(encoder):
        encoder[0].requires_grad_(False)

    changes = (lambda encoder: None, share, tie, freeze, lambda encoder: encoder[0].eval())
    assert len({architecture(changed_encoder(change)) for change in changes}) == len(changes)


def test_keys_depend_on_neither_the_release_nor_the_process():
    script = """
import sys
from tagalong import _version

_version.__version__ = "99.0.0"
sys.path[:0] = sys.argv[1:]
from test_key import SOURCE, Powered, architecture, key, module, with_loss

print(key(), architecture(Powered), *(key(with_loss(loss)) for loss in module("elsewhere").LOSSES))
"""
    folder = Path(__file__).parent
    done = subprocess.run(
        [sys.executable, "-c", script, str(folder), str(folder.parent)], capture_output=True, text=True, check=True
    )
    losses = [key(with_loss(loss)) for loss in module("here").LOSSES]
    assert done.stdout.split() == [key(), architecture(Powered), *losses]


def test_another_version_of_the_numerics_gives_other_keys(monkeypatch):
    problem, before = small_problem(), key()
    assert Keys(problem, "cpu").definition(JOB)["numerics"] == NUMERICS
    monkeypatch.setattr("tagalong.study.keys.NUMERICS", NUMERICS + 1)
    assert key(problem) != before
