"""Problems that were made by hand, from splits of one's own, are checked as those from tables are."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tagalong.learn import MLP, Problem, Split, Task, data_problems
from tagalong.study import Study

TASKS = (Task("age", kind="regression"), Task("ill"), Task("kind", kind="multiclass", classes=3))
Change = Callable[[Tensor], Tensor]


def split(rows: int, **changes: Change) -> Split:
    draw = torch.Generator().manual_seed(rows)
    inputs = torch.randn(rows, 4, generator=draw)
    classes = torch.arange(rows)
    targets = {"age": inputs[:, 0].clone(), "ill": (classes % 2).float(), "kind": (classes % 3).float()}
    return Split(inputs, {name: changes.get(name, lambda labels: labels)(labels) for name, labels in targets.items()})


def problem(tasks: tuple[Task, ...] = TASKS, **parts: Split) -> Problem:
    made = {"train": split(60), "val": split(20), "test": split(30)} | parts
    return Problem("by hand", tasks, **made, encoder=MLP(4))


def missing(labels: Tensor) -> Tensor:
    return torch.full_like(labels, torch.nan)


def hole(part: Split) -> Split:
    inputs = part.inputs.clone()
    inputs[3, 1] = torch.nan
    return replace(part, inputs=inputs)


def test_sound_data_has_no_problems() -> None:
    some = split(60, age=lambda labels: torch.where(torch.arange(60) % 4 == 0, torch.nan, labels))
    assert data_problems(problem(train=some)) == []
    pixels = replace(split(20), inputs=torch.randint(0, 255, (20, 3), dtype=torch.uint8))
    assert data_problems(problem(val=pixels)) == []


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        ({"test": split(0)}, "`test` must have rows, found none"),
        ({"train": hole(split(60))}, "`train`: inputs must be finite, found NaN or inf in 1 rows"),
        ({"test": hole(split(30))}, "`test`: inputs must be finite, found NaN or inf in 1 rows"),
        ({"train": split(60, age=missing)}, "`train`: 'age' must have labels, found none; leave the task out"),
        ({"val": split(20, kind=missing)}, "`val`: 'kind' must have labels, found none; leave the task out"),
        ({"train": split(60, age=torch.ones_like)}, "`train`: 'age' must vary, found 1 wherever it is known"),
        ({"val": split(20, ill=lambda labels: labels + 1)}, "labels of 'ill' must be whole numbers 0 to 1, found 2"),
        ({"test": split(30, kind=lambda labels: labels / 2)}, "whole numbers 0 to 2, found 0.5"),
        ({"train": split(60, kind=lambda labels: labels.clamp(max=1))}, "'kind' has the class 2 that train lacks"),
        ({"test": split(30, age=lambda labels: labels * 1e20)}, "'age' must be at most 1e+18 in size (standardised"),
        ({"val": split(20, ill=lambda labels: labels / 0)}, "found 10 rows beyond; if that stands for a missing label"),
        ({"val": split(20, ill=lambda labels: labels.long())}, "the target of 'ill' must be floating point"),
    ],
)
def test_what_cannot_be_learnt_or_judged_is_said(parts: dict[str, Split], said: str) -> None:
    assert said in "\n".join(data_problems(problem(**parts)))


def test_own_losses_may_mean_anything_by_their_labels() -> None:
    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        return (outputs.squeeze(1) - targets).square()

    tasks = (TASKS[0], Task("ill", loss=loss), Task("kind", kind="custom", loss=loss))
    odd = split(30, ill=lambda labels: labels + 5, kind=torch.ones_like)
    assert data_problems(problem(tasks, test=odd)) == []


def test_a_study_says_it_all_at_once_before_any_training(tmp_path: Path) -> None:
    wrong = problem(val=split(20, age=missing), test=hole(split(30)))
    with pytest.raises(ValueError, match="several problems") as refused:
        Study(wrong, tmp_path / "run").run(["mtl", "tga"])
    assert all(said in str(refused.value) for said in ("`val`: 'age'", "`test`: inputs", "found 'tga'"))
    assert not (tmp_path / "run").exists()
