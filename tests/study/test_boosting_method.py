"""The methods `boosting` and `ridge`: models of all tasks, which count as one network and are kept like one."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tagalong.learn import MLP, Job, Problem, Recipe, Split, Task, engine, train
from tagalong.study import Best, Study, make_method


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


def test_boosting_is_trained_once_kept_asked_and_exported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    problem, fits = make_problem(), []
    fit = engine.fit
    monkeypatch.setattr(engine, "fit", lambda *given: fits.append(given) or fit(*given))
    methods = ["mtl", "boosting", "ridge"]
    results = Study(problem, tmp_path, device="cpu").run(methods=methods, budgets=[2], seeds=2)
    assert len(fits) == 2  # whatever the number of seeds
    Study(problem, tmp_path, device="cpu").run(methods=methods, budgets=[2], seeds=3)
    assert len(fits) == 2
    for method in ("boosting", "ridge"):
        row = next(row for row in results.table() if row.method == method)
        expected = train(problem, Job(problem.names, network=method)).test
        assert row.total == pytest.approx(sum(score.loss for score in expected.values()))
        assert row.error == pytest.approx({task: score.error for task, score in expected.items()})
        (group,) = row.groups
        assert (group.network, group.trains, group.serves) == (method, {"a", "b"}, {"a", "b"})
    skills = {row.method: row.skill for row in results.table()}
    assert skills["boosting"] > skills["mtl"] + 0.05

    networks = Study(problem, tmp_path, device="cpu").best("boosting")
    rows = problem.test.inputs.numpy()
    answers = networks.predict(rows)
    right = (answers["b"] > 0.5) == (problem.test.targets["b"].numpy() > 0.5)
    error = next(row for row in results.table() if row.method == "boosting").error["b"]
    assert 1 - right.mean() == pytest.approx(error)
    networks.save(tmp_path / "saved")
    loaded = Best.load(tmp_path / "saved").predict(rows)
    assert all(np.array_equal(loaded[task], own) for task, own in answers.items())
    networks.export(tmp_path / "exported")
    program = next((tmp_path / "exported").glob("*.pt2"))
    outputs = torch.export.load(program).module()(problem.test.inputs)
    logits = outputs["b"] if isinstance(outputs, dict) else outputs[1]
    found = torch.sigmoid(logits.clamp(*problem.answer_scales["b"][2:])).flatten().detach()
    np.testing.assert_allclose(found.numpy(), np.ravel(answers["b"]), rtol=1e-5)


IMAGES = Split(torch.zeros(4, 3, 8, 8), {"a": torch.zeros(4), "b": torch.zeros(4)})
OWN_LOSS = (Task("a", kind="custom", loss=lambda outputs, targets: outputs[:, 0] - targets), Task("b"))


@pytest.mark.parametrize("name", ["boosting", "ridge"])
@pytest.mark.parametrize("changed", [{"train": IMAGES}, {"tasks": OWN_LOSS}])
def test_problems_that_are_no_tables_are_refused(changed: dict[str, Any], name: str) -> None:
    problem = replace(make_problem(), **changed)
    (found,) = make_method(name).problems(problem.names, problem)
    assert name in str(found)


def test_libraries_are_chosen_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    assert make_method("boosting", {"boosting": {"library": "xgboost"}}).network == "xgboost"
    with pytest.raises(ValueError, match="library"):
        make_method("boosting", {"boosting": {"library": "unknown"}})
    monkeypatch.setitem(sys.modules, "catboost", None)  # as if it were not installed
    method, problem = make_method("boosting", {"boosting": {"library": "catboost"}}), make_problem()
    with pytest.raises(ImportError, match="pip install 'catboost'"):
        method.problems(problem.names, problem)
