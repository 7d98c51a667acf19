"""Problems built by hand are checked in the same way as those from tables."""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tagalong.errors import InvalidInput
from tagalong.learn import MLP, Problem, Split, Task, check_data
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


def with_nan(part: Split) -> Split:
    inputs = part.inputs.clone()
    inputs[3, 1] = torch.nan
    return replace(part, inputs=inputs)


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ({"test": split(0)}, "`test`"),
        ({"train": with_nan(split(60))}, "`train`: inputs"),
        ({"train": split(60, age=missing)}, "labels of 'age' in train"),
        ({"val": split(20, kind=missing)}, "labels of 'kind' in val"),
        ({"train": split(60, age=torch.ones_like)}, "labels of 'age' in train"),
        ({"val": split(20, ill=lambda labels: labels + 1)}, "'ill' in val must be integers from 0 to 1, found 2"),
        ({"test": split(30, kind=lambda labels: labels / 2)}, "found 0.5"),
        ({"train": split(60, kind=lambda labels: labels.clamp(max=1))}, "must not be of class 2"),
        ({"test": split(30, age=lambda labels: labels * 1e20)}, "'age'"),
        ({"val": split(20, ill=lambda labels: labels / 0)}, "'ill'"),
        ({"val": split(20, ill=lambda labels: labels.long())}, "'ill' must have a floating-point dtype"),
    ],
)
def test_data_that_cannot_be_learned_from_raises_an_error(parts: dict[str, Split], words: str) -> None:
    with pytest.raises(InvalidInput, match=re.escape(words)):
        check_data(problem(**parts))


def test_missing_labels_pixels_and_any_labels_of_a_custom_loss_are_valid() -> None:
    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        return (outputs.squeeze(1) - targets).square()

    some = split(60, age=lambda labels: torch.where(torch.arange(60) % 4 == 0, torch.nan, labels))
    pixels = replace(split(20), inputs=torch.randint(0, 255, (20, 3), dtype=torch.uint8))
    unusual = split(30, ill=lambda labels: labels + 5, kind=torch.ones_like)
    tasks = (TASKS[0], Task("ill", loss=loss), Task("kind", kind="custom", loss=loss))
    check_data(problem(tasks, train=some, val=pixels, test=unusual))


def test_a_study_reports_all_problems_before_any_training(tmp_path: Path) -> None:
    wrong = problem(val=split(20, age=missing), test=with_nan(split(30)))
    with pytest.raises(ValueError, match="several problems") as refused:
        Study(wrong, tmp_path / "run").run(["mtl", "tga"])
    assert all(said in str(refused.value) for said in ("labels of 'age' in val", "`test`: inputs", "found 'tga'"))
    assert not (tmp_path / "run").exists()
