"""Trained networks reproduce recorded losses, predictions and weights.

Networks of at most 30 steps in float64 agree to 1e-9, whether they are trained alone or many at once. Whole trainings
in float32 agree on the mean over ten seeds to within a quarter of the spread over seeds.
"""

import itertools
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from network_problems import (
    CONVOLUTIONS,
    RECIPE,
    TABLE,
    TASKS,
    Branching,
    Layers,
    Noise,
    make_default_table,
    make_faces,
    make_mapped_images,
    make_places,
    make_problem,
    make_survey,
    make_views,
    make_words,
)
from torch import Tensor, nn
from training import (
    Network,
    Result,
    TabM,
    are_stacked,
    train_killed_after_every_epoch,
    train_measured,
    train_networks,
    widths_of_larger_networks,
)

from tagalong import MLP, Problem, Recipe

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.skipif(not torch.backends.mkl.is_available(), reason="MKL draws the dropout masks of the golden file"),
]
TOLERANCES = {"rtol": 1e-9, "atol": 1e-12}
ALL = tuple(task.name for task in TASKS)
SEEDS = range(10)
GOLDEN_FILE = Path(__file__).with_name("networks.json")


def record(result: Result | None) -> dict[str, Any] | None:
    """Returns what is compared with the golden file."""
    if result is None:
        return None
    plain = ("val", "test", "errors", "best_epoch", "steps", "parameters")
    return {name: result[name] for name in plain} | {
        "curve": result["curve"].sum(1).tolist(),
        "outputs": {task: outputs.flatten(1)[:, :4].tolist() for task, outputs in result["outputs"].items()},
        "weights": {part: sum_of_magnitudes(weights) for part, weights in result["weights"].items()},
    }


def summarize(result: Result) -> list[float]:
    """Returns few numbers, for many networks."""
    losses = [sum(result[part].values()) for part in ("val", "test")]
    weights = sum(map(sum_of_magnitudes, result["weights"].values()))
    return [result["best_epoch"], len(result["curve"]), *losses, weights]


def record_some(results: Sequence[Any]) -> list[Any]:
    """Returns most numbers for the first two networks."""
    return [*map(record, results[:2]), *map(summarize, results[2:])]


def sum_of_magnitudes(weights: dict[str, Tensor]) -> float:
    return sum(float(tensor.double().abs().sum()) for tensor in weights.values())


def train_both_ways(problem: Problem, networks: Sequence[Network], **lesson: Any) -> list[Any]:
    """Returns the results of networks, which are the same if they are trained one by one or many at once."""
    alone = train_networks(problem, networks, together=False, **lesson)
    together = train_networks(problem, networks, together=True, **lesson)
    torch.testing.assert_close(together, alone, **TOLERANCES, equal_nan=True)
    return alone


class Case(NamedTuple):
    make: Callable[[], Problem]
    networks: list[dict[str, Any]]
    stacked: bool = True  # whether the networks are trained as one computation


CASES = {
    "plain": Case(
        lambda: make_problem(TABLE),
        [{"tasks": ALL}, {"tasks": ALL[:3], "seed": 1, "lr": 0.01}, {"tasks": ALL[1:2], "seed": 1}],
    ),
    "rules": Case(
        lambda: make_problem(TABLE),
        [{"tasks": ALL, "rule": rule} for rule in ("uw", "gradnorm", "pcgrad", "pcgrad-uw")],
        stacked=False,
    ),
    "rules with linear heads": Case(
        lambda: make_problem(TABLE),
        [{"tasks": ALL[:3], "rule": rule, "seed": 1} for rule in ("uw", "gradnorm", "pcgrad-uw")],
        stacked=False,
    ),
    "tasks without labels in some batches": Case(
        lambda: make_problem(TABLE, recipe=replace(RECIPE, batch_size=9, epochs=3), missing=0.8),
        [{"tasks": ALL, "rule": rule} for rule in ("plain", "uw", "gradnorm", "pcgrad")] + [{"tasks": ALL[:2]}],
        stacked=False,
    ),
    "wider": Case(
        lambda: make_problem(TABLE),
        [{"tasks": ALL, "width": 2.0}, {"tasks": ALL[:2], "width": 2.0, "seed": 1}, {"tasks": ALL, "width": 0.6}],
    ),
    "tabm": Case(
        lambda: make_problem(TabM(6, (12, 8), 0.2, 4, [[-1, 0, 0.5]] * 5 + [[]]), tasks=TASKS[:3]),
        [{"tasks": ALL[:3]}, {"tasks": ALL[1:3], "seed": 1, "lr": 0.01}],
    ),
    "default networks of a table": Case(
        make_default_table,
        [{"tasks": ALL[:3], "network": "tabm"}, {"tasks": ALL[:2], "network": "tabm"}, {"tasks": ALL[:3]}],
    ),
    "convolutions": Case(
        lambda: make_problem(CONVOLUTIONS, (2, 6, 6)), [{"tasks": ALL}, {"tasks": ALL[:3], "seed": 1}]
    ),
    "words": Case(make_words, [{"tasks": ALL}, {"tasks": ALL[2:], "lr": 0.01}]),
    "several labels and a head of its own": Case(
        make_places, [{"tasks": ("place", "ill")}, {"tasks": ("place",)}, {"tasks": ("place", "ill"), "seed": 1}]
    ),
    "branching": Case(
        lambda: make_problem(Layers(Branching)),
        [{"tasks": ALL}, {"tasks": ALL[:2]}, {"tasks": ALL[:2], "seed": 1}],
        stacked=False,
    ),
    "noise": Case(
        lambda: make_problem(Layers(lambda: nn.Linear(6, 8), Noise, nn.Tanh)),
        [{"tasks": tasks, "seed": seed} for tasks in (ALL, ALL[:2]) for seed in (0, 1)],
        stacked=False,
    ),
    "sgd and cosine": Case(
        lambda: make_problem(TABLE, recipe=replace(RECIPE, optimizer="sgd", schedule="cosine", patience=4)),
        [{"tasks": ALL}, {"tasks": ALL, "lr": 0.1}],
    ),
    "adam, steps and a lowest rate": Case(
        lambda: make_problem(
            TABLE,
            recipe=replace(RECIPE, optimizer="adam", schedule="step", period=2, factor=0.4, lowest_lr=0.004),
        ),
        [{"tasks": ALL}, {"tasks": ALL, "lr": 0.01}],
    ),
    "last weights and heads at the base rate": Case(
        lambda: make_problem(
            TABLE, recipe=replace(RECIPE, epochs=6, patience=None, keep="last", start_heads="base_rate")
        ),
        [{"tasks": ALL}, {"tasks": ALL[:1], "seed": 1}],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_networks_alone_and_together(name: str, golden: Callable[..., None]) -> None:
    case = CASES[name]
    problem = case.make()
    assert are_stacked(problem, case.networks) == case.stacked
    golden(name, record_some(train_both_ways(problem, case.networks)))


def test_every_set_of_tasks_in_one_stack(golden: Callable[..., None]) -> None:
    problem = make_problem(TABLE)
    sets = [tasks for size in range(1, 5) for tasks in itertools.combinations(ALL, size)]
    rates = [None, 0.02, 0.15]
    networks = [
        {"tasks": tasks, "seed": seed, "lr": rates[(number + seed) % 3]}
        for number, tasks in enumerate(sets)
        for seed in (0, 1)
    ]
    results = train_both_ways(problem, networks)
    assert len({len(result["curve"]) for result in results}) > 4, "networks must stop after different epochs"
    golden("every set of tasks", list(map(summarize, results)))
    golden("flattery", results[-1]["flattery"])


@pytest.mark.parametrize("settings", [{"mixtures": 1.0, "unlabelled": True}, {"weights": (0.25, 0.75)}])
def test_taught_networks(settings: dict[str, Any], golden: Callable[..., None]) -> None:
    problem = make_problem(TABLE, recipe=replace(RECIPE, batch_size=64, epochs=8, patience=None))
    lesson = {"teachers": [{"tasks": ALL, "seed": 7}, {"tasks": ALL[:3], "seed": 8}], **settings}
    students = [
        {"tasks": ALL, "mix": 0.5},
        {"tasks": ALL[1:], "seed": 1},
        {"tasks": ALL[:3], "seed": 1, "mix": 0.3, "fill": False, "lr": 0.01},
        {"tasks": ALL, "mix": 0.0, "width": 1.5},
    ]
    results = train_both_ways(problem, students, lesson=lesson)
    golden(f"taught with {', '.join(settings)}", record_some(results))


@pytest.mark.parametrize("make", [make_mapped_images, make_views])
def test_networks_of_drawn_files(make: Callable[[Path], Problem], tmp_path: Path, golden: Callable[..., None]) -> None:
    problem = make(tmp_path)
    networks = [{"tasks": problem.names}, {"tasks": problem.names[1:], "seed": 1}]
    assert are_stacked(problem, networks) == (make is make_mapped_images)
    golden(problem.name, record_some(train_both_ways(problem, networks)))


def test_a_network_that_diverges_leaves_the_others_alone() -> None:
    problem = make_problem(TABLE, recipe=replace(RECIPE, optimizer="sgd"))
    networks = [{"tasks": ALL}, {"tasks": ALL, "lr": 1e60}, {"tasks": ALL[:2]}]
    results = train_both_ways(problem, networks)
    assert [result is None for result in results] == [False, True, False]


def test_a_meter_leaves_training_alone(golden: Callable[..., None]) -> None:
    problem = make_problem(TABLE)
    (unmeasured,) = train_networks(problem, [{"tasks": ALL}], together=False)
    for meter in ({"every": 3}, {"every": 4, "held_out": True, "estimator": "gradient"}):
        measured, affinity = train_measured(problem, {"tasks": ALL}, meter)
        torch.testing.assert_close(measured, unmeasured, **TOLERANCES)
        golden(f"affinity every {meter['every']} steps", affinity)


def test_widths_of_larger_networks(golden: Callable[..., None]) -> None:
    golden("widths", widths_of_larger_networks(make_problem(TABLE), times=(1.5, 2, 4)))


COSINE = replace(RECIPE, lr=0.01, schedule="cosine", epochs=5)
RESUMED: dict[str, tuple[Callable[[Path], Problem], dict[str, Any]]] = {
    "batch norm and dropout": (lambda folder: make_problem(CONVOLUTIONS, (2, 6, 6), recipe=COSINE), {}),
    "uw": (lambda folder: make_problem(TABLE), {"rule": "uw"}),
    "gradnorm": (lambda folder: make_problem(TABLE), {"rule": "gradnorm"}),
    "pcgrad-uw": (lambda folder: make_problem(TABLE), {"rule": "pcgrad-uw"}),
    "tabm": (lambda folder: make_problem(TabM(6, (12, 8), 0.2, 4), tasks=TASKS[:3]), {}),
    "streamed rows and a windowed rate": (make_views, {}),
}


@pytest.mark.parametrize("name", RESUMED)
def test_a_killed_and_resumed_training_equals_an_unbroken_one(name: str, tmp_path: Path) -> None:
    make, settings = RESUMED[name]
    problem = make(tmp_path)
    network = {"tasks": problem.names, "seed": 2, **settings}
    (unbroken,) = train_networks(problem, [network], together=False)
    assert unbroken is not None
    resumed, killed_after = train_killed_after_every_epoch(problem, network, tmp_path / "checkpoint")
    torch.testing.assert_close(resumed, unbroken, rtol=0, atol=0, equal_nan=True)
    assert killed_after == list(range(1, len(unbroken["curve"]) + 1))


def test_a_killed_and_resumed_student_equals_an_unbroken_one(tmp_path: Path) -> None:
    problem, lesson = make_problem(TABLE), {"teachers": [{"tasks": ALL, "seed": 7}], "mixtures": 0.5}
    student = {"tasks": ALL, "mix": 0.5}
    unbroken = train_networks(problem, [student], together=False, lesson=lesson)
    resumed, _ = train_killed_after_every_epoch(problem, student, tmp_path / "checkpoint", lesson)
    torch.testing.assert_close([resumed], unbroken, rtol=0, atol=0, equal_nan=True)


SURVEY = Recipe(lr=5e-3, batch_size=128, epochs=60, patience=6, weight_decay=0.1, start_heads="base_rate")
WHOLE: dict[str, Callable[[], Problem]] = {
    "survey": lambda: make_survey(MLP(12, (32,), dropout=0.1), SURVEY),
    "survey with tabm": lambda: make_survey(TabM(12, (16, 16), 0.1, 4), replace(SURVEY, lr=1e-2)),
    "survey in bfloat16": lambda: make_survey(MLP(12, (32,), dropout=0.1), replace(SURVEY, amp="bf16")),
    "faces": make_faces,
}
SLOW = ("survey with tabm", "survey in bfloat16")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] if name in SLOW else []) for name in WHOLE]
)
def test_whole_trainings_agree_on_the_mean_over_seeds(name: str, golden: Callable[..., None]) -> None:
    problem = WHOLE[name]()
    networks = [{"tasks": problem.names, "seed": seed} for seed in SEEDS]
    assert are_stacked(problem, networks)
    for together in (True, False):
        results = train_networks(problem, networks, together=together)
        losses = np.array([[result["test"][task] for task in problem.names] for result in results if result])
        assert len(losses) == len(SEEDS)
        golden(f"{name}: spread", losses.std(0, ddof=1).tolist(), rtol=0.5)
        recorded = json.loads(GOLDEN_FILE.read_text())[f"{name}: spread"]
        for task, mean, spread in zip(problem.names, losses.mean(0).tolist(), recorded, strict=True):
            golden(f"{name}: mean of {task}", mean, rtol=0, atol=spread / 4)
