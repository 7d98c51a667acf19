"""Losses of average answers, compared with the losses of outputs that are averaged one task at a time."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor

from tagalong.learn import Task, row_losses_of
from tagalong.learn.averaging import average_outputs
from tagalong.learn.base_rate import output_range
from tagalong.study.search.answers import ALL, FIRST, SECOND, Answers

ROWS = 20


def absolute_error(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs.reshape(targets.shape) - targets).abs()


TASKS = {
    "regression": Task("regression", kind="regression"),
    "binary": Task("binary"),
    "weighted": Task("weighted", class_weights=(1.0, 3.0)),
    "multiclass": Task("multiclass", kind="multiclass", classes=3),
    "weighted classes": Task("weighted classes", kind="multiclass", classes=3, class_weights=(1.0, 2.0, 0.5)),
    "own loss": Task("own loss", kind="regression", loss=absolute_error, average="outputs"),
    "averaged logits": Task("averaged logits", average="outputs"),
}


def some_targets(task: Task, draw: torch.Generator) -> Tensor:
    if task.kind == "regression":
        return torch.randn(ROWS, generator=draw)
    return torch.randint(3 if task.kind == "multiclass" else 2, (ROWS,), generator=draw).float()


def networks(task: Task, count: int, seed: int) -> tuple[Tensor, list[Tensor]]:
    """Returns targets, some of which are missing, and the outputs of networks."""
    draw = torch.Generator().manual_seed(seed)
    targets = some_targets(task, draw)
    targets[torch.rand(ROWS, generator=draw) < 0.2] = torch.nan
    return targets, [3 * torch.randn(ROWS, task.head_size, generator=draw) for _ in range(count)]


@pytest.mark.parametrize("is_clipped", [False, True])
@pytest.mark.parametrize("kind", TASKS)
@settings(deadline=None, max_examples=20)
@given(seed=st.integers(0, 10_000), members=st.lists(st.integers(0, 3), min_size=1, max_size=5))
def test_losses_are_those_that_averaged_outputs_are_scored_with(
    kind: str, is_clipped: bool, seed: int, members: list[int]
) -> None:
    task = TASKS[kind]
    targets, outputs = networks(task, 4, seed)
    scale = (0.5, 2.0, -1.0, 2.0) if task.kind == "regression" else (0.0, 1.0, *output_range(task.kind, 5))
    scales = {task.name: scale} if is_clipped else {}
    answers = Answers([task], {task.name: targets}, scales=scales)
    for one in outputs:
        answers.add({task.name: one})
    assert task.averaging is not None
    average = average_outputs([outputs[member].double() for member in members], task.averaging)
    rows = row_losses_of(task, average[None], targets.double(), scales.get(task.name))[0]
    np.testing.assert_allclose(answers.row_losses(0, tuple(members)), rows)
    for part, inside in ((ALL, slice(None)), (FIRST, answers.first), (SECOND, ~answers.first)):
        known = rows[inside][~np.isnan(rows[inside])]
        expected = known.mean() if len(known) else math.nan
        assert answers.losses([tuple(members)])[0, 0, part] == pytest.approx(expected, nan_ok=True)


def test_candidates_are_added_to_the_members_that_have_the_task() -> None:
    tasks = [TASKS["regression"], TASKS["binary"]]
    values = {task.name: networks(task, 3, 1) for task in tasks}
    answers = Answers(tasks, {name: targets for name, (targets, _) in values.items()})
    own = [("regression", "binary"), ("regression",), ("binary",)]
    for number, names in enumerate(own):
        answers.add({name: values[name][1][number] for name in names})
    assert answers.trained.tolist() == [[True, True], [True, False], [False, True]]
    found = answers.losses_with((1,), [0, 1, 2])
    np.testing.assert_array_equal(found, answers.losses([(1, 0), (1, 1), (1, 2)]))
    np.testing.assert_allclose(found[2, 0], answers.losses([(1,)])[0, 0])
    np.testing.assert_allclose(found[2, 1], answers.losses([(2,)])[0, 1])
    assert np.isinf(answers.losses([(1,)])[0, 1]).all()


def test_many_candidates_are_averaged_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    targets, outputs = networks(TASKS["binary"], 7, 2)
    answers = Answers([TASKS["binary"]], {"binary": targets})
    for one in outputs:
        answers.add({"binary": one})
    whole = answers.losses_with((0, 1), range(7))
    monkeypatch.setattr("tagalong.study.search.answers.MAX_ELEMENTS", 2 * ROWS)
    np.testing.assert_array_equal(answers.losses_with((0, 1), range(7)), whole)


def test_rows_of_a_cluster_are_in_the_same_half() -> None:
    clusters = torch.tensor([7, 7, 3, 3, 9, 9, 7, 3])
    answers = Answers([TASKS["regression"]], {"regression": torch.zeros(8)}, clusters)
    assert answers.first.tolist() == [False, False, True, True, True, True, False, True]


def test_sure_and_wrong_answers_have_large_but_finite_losses() -> None:
    for task in (TASKS["binary"], TASKS["multiclass"]):
        answers = Answers([task], {task.name: torch.zeros(2)})
        wrong = torch.full((2, task.head_size), -1e6)
        wrong[:, -1] = 1e6
        answers.add({task.name: wrong})
        assert 100 < answers.losses([(0,)])[0, 0, ALL] < math.inf


@pytest.mark.parametrize("clusters", [None, [0] * 4 + [1] * 4 + [2] * 4])
def test_values_of_dense_targets_count_exactly_as_much_as_others_of_their_row(clusters: list[int] | None) -> None:
    draw = np.random.default_rng(0)
    targets, outputs = draw.normal(50, 3, (12, 3)), draw.normal(size=(4, 12, 3))
    targets[draw.random((12, 3)) < 0.4], targets[5] = math.nan, math.nan
    labels = None if clusters is None else torch.tensor(clusters)
    answers = Answers([TASKS["regression"]], {"regression": torch.from_numpy(targets)}, labels)
    for one in outputs:
        answers.add({"regression": torch.from_numpy(one)})
    for members in [(0,), (0, 1), (3, 3, 2), (0, 1, 2, 3)]:
        errors = (outputs[list(members)].mean(0) - targets) ** 2
        rows = np.array([np.mean(row[~np.isnan(row)]) if np.isfinite(row).any() else math.nan for row in errors])
        expected = [np.nanmean(rows[inside]) for inside in (slice(None), answers.first, ~answers.first)]
        np.testing.assert_allclose(answers.losses([members])[0, 0], expected, rtol=1e-12)
