"""The method `boosting`: a reference without networks, which is never recommended."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tagalong.learn import MLP, Problem, Recipe, Split, Task, boosting_scores
from tagalong.study import Results, Study, make_method
from tagalong.study.methods import boosting


def make_problem() -> Problem:
    """Two tasks that trees learn better than a short training of a small network."""
    draw = torch.Generator().manual_seed(0)

    def split(rows: int) -> Split:
        inputs = torch.randn(rows, 3, generator=draw)
        steps = (inputs[:, 0] > 0.5).float()
        targets = {"a": 4 * steps + torch.randn(rows, generator=draw), "b": (steps + inputs[:, 1] > 0.7).float()}
        targets["a"][::7] = torch.nan
        return Split(inputs, targets)

    tasks = (Task("a", kind="regression"), Task("b"))
    recipe = Recipe(lr=0.01, batch_size=50, epochs=12, patience=3)
    return Problem("steps", tasks, split(300), split(150), split(150), MLP(3, (2,)), recipe=recipe)


def test_boosting_is_a_reference_in_results_and_report(tmp_path: Path) -> None:
    problem = make_problem()
    options = {"boosting": {"max_trees": 40}}
    study = Study(problem, tmp_path, device="cpu")
    found = study.run(methods=["mtl", "stl", "boosting"], budgets=[2], seeds=2, options=options)
    row = next(row for row in found.table() if row.method == "boosting")
    expected = boosting_scores(problem, make_method("boosting", options).settings)["test"]
    assert row.loss == pytest.approx({task: score.loss for task, score in expected.items()})
    assert row.error == pytest.approx({task: score.error for task, score in expected.items()})
    assert (row.groups, row.training.networks, row.diverged) == ((), 0, 0)
    assert row.change is not None
    assert row.change < -0.1
    assert found.verdict().candidate == ("stl", None)  # although boosting is better
    assert found.verdict().recommended != ("boosting", None)
    assert next(row for row in Results.load(tmp_path).table() if row.method == "boosting").loss == row.loss


def test_a_continued_study_does_not_boost_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study, options = Study(make_problem(), tmp_path, device="cpu"), {"boosting": {"max_trees": 5}}
    first = study.run(methods=["boosting"], seeds=1, options=options)
    calls = []
    monkeypatch.setattr(boosting, "boosting_scores", lambda *given: calls.append(given) or boosting_scores(*given))
    second = study.run(methods=["boosting"], seeds=2, options=options)
    assert not calls
    records = [one.records_of(("boosting", None))[0] for one in (first, second)]
    assert (records[0].val, records[0].test) == (records[1].val, records[1].test)
    study.run(methods=["boosting"], seeds=1, options={"boosting": {"max_trees": 6}})
    assert len(calls) == 1


IMAGES = Split(torch.zeros(4, 3, 8, 8), {"a": torch.zeros(4), "b": torch.zeros(4)})
TOKENS = Split(torch.zeros(4, 3, dtype=torch.long), {"a": torch.zeros(4), "b": torch.zeros(4)})
DENSE = Split(torch.zeros(4, 3), {"a": torch.zeros(4, 5), "b": torch.zeros(4)})
OWN_LOSS = (Task("a", kind="custom", loss=lambda outputs, targets: outputs[:, 0] - targets), Task("b"))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"train": IMAGES}, r"requires a table, with a vector of numbers per row, found .* of shape \(3, 8, 8\)"),
        ({"train": TOKENS}, "requires a table, .* found torch.int64 inputs"),
        ({"train": DENSE}, "requires tasks with one label per row and without a loss of their own, found a$"),
        ({"tasks": OWN_LOSS}, "requires tasks with one label per row and without a loss of their own, found a$"),
    ],
)
def test_problems_that_are_no_tables_are_refused(changed: dict[str, Any], message: str) -> None:
    problem = replace(make_problem(), **changed)
    (found,) = make_method("boosting").problems(problem.names, problem)
    with pytest.raises(ValueError, match=f"^`methods`: 'boosting' {message}"):
        raise found


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"learning_rate": 0}, "`options`: `learning_rate` of 'boosting' must be a positive number, found 0"),
        ({"max_trees": 0}, "`options`: `max_trees` of 'boosting' must be a positive integer, found 0"),
        ({"patience": 1.5}, "`options`: `patience` of 'boosting' must be a positive integer, found 1.5"),
    ],
)
def test_invalid_options_are_refused(options: dict[str, Any], message: str) -> None:
    (found,) = make_method("boosting", {"boosting": options}).problems(("a", "b"), make_problem())
    assert str(found) == message
