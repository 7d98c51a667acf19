from dataclasses import replace
from functools import partial

import pytest
import torch
from study_small import RECIPE, small_problem
from torch import nn

from tagalong.learn import MLP, Job, Recipe, Task
from tagalong.study._key import Keys

JOB = Job(("a", "b"), 0)


def key(problem=None, job=JOB, device="cpu"):
    return Keys(problem or small_problem(), device).of(job)


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


def test_which_of_several_devices_does_not_matter():
    assert key(device="cuda:0") == key(device="cuda:1") != key(device="cpu")


def test_another_start_of_a_module_is_another_architecture():
    problem = small_problem()
    first, second = (replace(problem, encoder=torch.nn.Linear(4, 5).double()) for _ in range(2))
    assert Keys(first, "cpu").architecture != Keys(second, "cpu").architecture


def test_keys_of_measurements_depend_on_the_meter_and_the_network():
    keys = Keys(small_problem(), "cpu")
    job = Job(("a", "b", "c"), 0)
    found = {
        keys.measured(job, {"every": 10}),
        keys.measured(job, {"every": 1}),
        keys.measured(replace(job, seed=1), {"every": 10}),
        keys.of(job),
    }
    assert len(found) == 4
    assert keys.measured(job, {"every": 1, "update": "sgd"}) == keys.measured(job, {"update": "sgd", "every": 1})


def test_definition_says_what_the_recipe_was():
    problem = small_problem(recipe=Recipe(lr=0.125))
    assert Keys(problem, "cpu").definition(Job(("a",), 3))["recipe"]["lr"] == 0.125


def scaled_error(outputs, targets, by):
    return by * (outputs[:, 0] - targets).abs()


def scaled_by(by):
    return lambda outputs, targets: scaled_error(outputs, targets, by)


class Scaled:
    def __init__(self, by):
        self.by = by

    def __call__(self, outputs, targets):
        return scaled_error(outputs, targets, self.by)


@pytest.mark.parametrize("made", [lambda by: partial(scaled_error, by=by), scaled_by, Scaled])
def test_losses_with_other_settings_are_other_losses(made):
    assert key(with_loss(made(2.0))) == key(with_loss(made(2.0)))
    assert key(with_loss(made(2.0))) != key(with_loss(made(3.0)))


def with_default(by):
    def loss(outputs, targets, *, by=by):
        return scaled_error(outputs, targets, by)

    return loss


@pytest.mark.parametrize("made", [with_default, lambda by: Scaled(by).__call__])
def test_defaults_and_owners_of_methods_are_settings_too(made):
    assert key(with_loss(made(2.0))) == key(with_loss(made(2.0)))
    assert key(with_loss(made(2.0))) != key(with_loss(made(3.0)))


class Powered(nn.Module):
    """Neither its text nor its weights show the power."""

    def __init__(self, power=1, act=torch.tanh):
        super().__init__()
        self.layer, self.power, self.act = nn.Linear(4, 3), power, act
        self.seen = object()  # says nothing, and differs from one to the next

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


def test_what_layers_do_counts_and_not_only_their_text():
    def architecture(encoder):
        return Keys(replace(small_problem(), encoder=encoder), "cpu").architecture

    assert architecture(Powered) == architecture(Powered)
    encoders = [Powered, lambda: Powered(2), lambda: Powered(act=torch.sin), Shifted]
    encoders += [lambda: Attending(1), lambda: Attending(2)]
    assert len({architecture(encoder) for encoder in encoders}) == len(encoders)
