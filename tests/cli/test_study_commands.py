"""From a table to a verdict and predictions on the command line, and errors for invalid arguments."""

import csv
import json
import os
import signal
import subprocess
import sys
from contextlib import nullcontext, redirect_stderr, redirect_stdout
from dataclasses import replace
from io import StringIO
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from terminal import Terminal, environment

from kill_at import FileOperations, interrupt, records_without_times, stopping_points
from tagalong.affinity import Affinity
from tagalong.cli import main
from tagalong.cli.arguments import load_input
from tagalong.cli.run import show_labels
from tagalong.learn import Problem, Recipe, Task
from tagalong.progress import NoProgress
from tagalong.study import Results, Study

pytestmark = pytest.mark.usefixtures("one_thread")
ROLES = ("--targets", "age,weight,ill", "--ignore", "id", "--categorical", "town")
SMALL = ("--budgets", "2", "--seeds", "2")
QUICK = ("--recipe", "epochs=2", "--recipe", "batch_size=64", "--device", "cpu")


@pytest.fixture
def table(tagalong: Terminal) -> Path:
    """Writes a table with three targets, one of them with missing labels; the features are four numbers and a word."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(240, 4))
    targets = x @ rng.normal(size=(4, 3)) + 0.5 * rng.normal(size=(240, 3))
    with open("table.csv", "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["id", *"pqrs", "town", "age", "weight", "ill"])
        for row, (numbers, (age, weight, ill)) in enumerate(zip(x, targets, strict=True)):
            town = ("Ulm", "Bonn")[row % 2]
            known = "" if row % 7 == 0 else f"{weight:.4f}"
            writer.writerow([f"r{row}", *(f"{one:.4f}" for one in numbers), town, f"{age:.4f}", known, int(ill > 0)])
    return Path("table.csv")


def run(tagalong: Terminal, *more: str) -> tuple[str, str]:
    result = tagalong("run", "table.csv", *ROLES, *SMALL, "--out", "out", *QUICK, *more)
    assert result.status == 0, result.err
    return result.out, result.err


def test_a_table_gives_labels_results_a_verdict_and_predictions(tagalong: Terminal, table: Path) -> None:
    out, err = run(tagalong, "--methods", "mtl,stl,tag")
    for words in (
        "table: 3 tasks",
        "pairs share",
        "regression",
        "binary",
        "method",
        "verdict:",
        "tagalong predict out",
    ):
        assert words in out, words
    assert "all tasks together: 2 of 2 networks" in err
    assert "\x1b" not in out + err
    for name in ("run.sqlite", "results.json", "settings.json", "groupings.json", "affinity.json", "run.log"):
        assert (Path("out") / name).exists(), name
    result = tagalong("predict", "out", "table.csv")
    assert result.status == 0, result.err
    header, *rows = list(csv.reader(result.out.splitlines()))
    assert header == ["age", "weight", "ill"]
    assert len(rows) == 240
    assert all(0 <= float(row[2]) <= 1 for row in rows)
    assert "240 rows written to new.csv" in tagalong("predict", "out", "table.csv", "--out", "new.csv").out
    assert tagalong("predict", "out", "table.csv", "--out", "again.csv", "--quiet").out == ""
    found = json.loads(tagalong("predict", "out", "table.csv", "--json").out)
    assert found["age"] == [float(row[0]) for row in rows]
    assert "folder of a run" in tagalong.error_of("verdict", "out", "--out", "out")
    assert "neither similarity nor causation" in json.loads(Path("out/groupings.json").read_text())["caution"]


def test_the_disagreement_of_networks_can_be_predicted(tagalong: Terminal, table: Path) -> None:
    problem = Problem.from_table(table, ["age", "weight", "ill"], ignore=["id", "town"], recipe=Recipe(epochs=2))
    study = Study(problem, "out", device="cpu")
    study.run(["mtl", "ensemble"], [2], seeds=1)
    study.best("ensemble", 2).save("out")
    result = tagalong("predict", "out", "table.csv", "--spread")
    assert result.status == 0, result.err
    header, *rows = list(csv.reader(result.out.splitlines()))
    assert header == ["age", "weight", "ill", "age (spread)", "weight (spread)", "ill (spread)"]
    assert all(float(value) > 0 for row in rows for value in row[3:])
    assert result.err == ""
    study.best("mtl").save("out")
    result = tagalong("predict", "out", "table.csv", "--spread")
    assert result.err == "tagalong: a single network answers every task, so the spread there is always 0\n"


def test_predicted_averages_give_the_reported_test_losses(tagalong: Terminal, table: Path) -> None:
    header, *rows = list(csv.reader(table.read_text(encoding="utf-8").splitlines()))
    parts = [("train", "train", "val", "test")[row % 4] for row in range(len(rows))]
    for name, wanted in (("all.csv", ("train", "val", "test")), ("test.csv", ("test",))):
        with open(name, "w", newline="", encoding="utf-8") as file:
            kept = [[*row, part] for row, part in zip(rows, parts, strict=True) if part in wanted]
            csv.writer(file).writerows([[*header, "part"], *kept])
    names, recipe = ["age", "weight", "ill"], Recipe(epochs=2)
    roles = {"ignore": ["id"], "categorical": ["town"], "split_column": "part"}
    problem = Problem.from_table("all.csv", names, recipe=recipe, **roles)
    study = Study(problem, "out", device="cpu")
    (record,) = study.run(["mtl", "ensemble"], [2], seeds=1).records_of(("ensemble", 2))
    study.best("ensemble", 2).save("out")
    found = json.loads(tagalong("predict", "out", "test.csv", "--json").out)
    test = [row for row, part in zip(rows, parts, strict=True) if part == "test"]
    labels = {name: np.array([float(row[header.index(name)] or "nan") for row in test]) for name in names}
    losses = {
        name: np.nanmean(((np.array(found[name]) - labels[name]) / problem.scales[name][1]) ** 2)
        for name in ("age", "weight")
    }
    ill = np.where(labels["ill"] > 0, found["ill"], 1 - np.array(found["ill"]))
    losses["ill"] = -np.log(ill).mean()
    assert losses == pytest.approx({task: score.loss for task, score in record.test.items()}, rel=1e-6)


def test_labels_of_hundreds_of_tasks_are_cut_after_fifty(capsys: pytest.CaptureFixture[str]) -> None:
    rng = np.random.default_rng(0)
    tasks = [Task(f"task{i}", kind="regression") for i in range(300)]
    show_labels(Problem.from_arrays(rng.normal(size=(60, 2)), rng.normal(size=(60, 300)), tasks))
    shown = capsys.readouterr().out.splitlines()
    assert len([line for line in shown if line.startswith("task") and "regression" in line]) == 50
    assert "and 250 more tasks" in shown


def test_reading_a_table_is_announced(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    announced: list[tuple[str, bool]] = []

    def spinner(what: str, quiet: bool = False) -> nullcontext[None]:
        announced.append((what, quiet))
        return nullcontext()

    monkeypatch.setattr("tagalong.cli.arguments.spinner", spinner)
    roles = {"targets": ["age"], "ignore": ["id"], "categorical": ["town"]}
    for progress in (NoProgress(), None):
        load_input(str(table), dict(roles), {}, progress)
    assert announced == [("reading table.csv", False), ("reading table.csv", True)]


def test_a_second_run_trains_nothing_and_gives_the_same_results(tagalong: Terminal, table: Path) -> None:
    first = json.loads(run(tagalong, "--methods", "mtl,stl", "--json")[0])
    again, err = run(tagalong, "--methods", "mtl,stl", "--json")
    assert err == ""
    assert json.loads(again)["records"] == first["records"]
    assert "networks," not in run(tagalong, "--methods", "mtl,stl")[1]


def test_quiet_prints_only_the_verdict(tagalong: Terminal, table: Path) -> None:
    out, err = run(tagalong, "--methods", "mtl,stl", "--quiet")
    assert "erdict: " in out.splitlines()[0]
    assert err == ""
    assert tagalong("verdict", "out", "--quiet").out == out


def test_a_table_is_learned_by_an_encoder_given_by_name(tagalong: Terminal, table: Path) -> None:
    run(tagalong, "--methods", "mtl,stl", "--encoder", "tabm")
    document = json.loads(Path("out/networks/networks.json").read_text())
    assert {network["layers"]["encoder"]["class"] for network in document["networks"]} == {"tagalong.learn.tabm.TabM"}
    result = tagalong("predict", "out", "table.csv", "--out", "predicted.csv")
    assert result.status == 0, result.err


def test_options_of_methods_recipe_and_tasks_are_passed_to_the_study(tagalong: Terminal, table: Path) -> None:
    more = ("--methods", "tag", "--set", "tag.every=1", "--tasks", "age,ill", "--recipe", "lr=0.5", "--json")
    document = json.loads(run(tagalong, *more)[0])
    assert document["problem"]["tasks"] == ["age", "ill"]
    assert document["settings"]["options"] == {"tag": {"every": 1}}
    assert json.loads(Path("out/settings.json").read_text())["recipe"]["lr"] == 0.5


def test_flags_of_methods_are_spelled_as_in_the_documentation(tagalong: Terminal, table: Path) -> None:
    more = ("--methods", "auto", "--effort", "2", "--set", "auto.tabm=false", "--set", "auto.teach=False", "--json")
    document = json.loads(run(tagalong, *more)[0])
    options = document["settings"]["options"]["auto"]
    assert (options["tabm"], options["teach"]) == (False, False)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["run", "nhanez"], "did you mean 'nhanes'?"),
        (["run", "missing.csv", "--targets", "a"], "missing.csv"),
        (["run", "table.csv"], "--targets must name the columns"),
        (["run", "table.csv", "--targets", "age,height", "--ignore", "id,town"], "'height'"),
        (["run", "table.csv", "--targets", "age,ill"], "--ignore"),
        (["run", "table.csv", "--targets", "age,ill", "--ignore", "id,town", "--methods", "tagg"], "'tag'"),
        (["run", "table.csv", "--targets", "age,ill", "--ignore", "id,town", "--budgets", "1001"], "--budgets"),
        (["run", "table.csv", "--targets", "age,ill", "--ignore", "id,town", "--seeds", "0"], "--seeds"),
        (["run", "table.csv", "--targets", "age,ill", "--ignore", "id,town", "--recipe", "speed=3"], "--recipe"),
        (["run", "table.csv", "--targets", "age,ill", "--ignore", "id,town", "--set", "every=3"], "--set"),
        (["run", "table.csv", "--targets", "age,ill", "--ignore", "id,town", "--size", "full"], "--size"),
        (["run", "faces", "--targets", "a"], "--targets"),
        (["run", "faces", "--with", "color=1"], "color"),
        (
            ["run", "faces", "--with", "recipe=1"],
            "cannot be used for settings that have their own option, found",
        ),
        (["run", "faces", "--with", "seed=one"], "--with seed must be an integer, found 'one'"),
        (["run", "faces", "--device", "meta"], "--device must be available, found 'meta'"),
        (["run", "faces", "--tasks", "Nose"], "'Nose'"),
        (["run", "table.csv", "--targets", "age,ill", "--ignore", "id,town", "--executor", "cloud"], "--executor"),
        (["run", "table.csv", "--targets", "age,ill", "--ignore", "id,town", "--device", "abacus"], "--device"),
        (["run", "table.csv", "--targets", "age,ill", "--ignore", "id,town", "--budgets", "1.5"], "found 1.5"),
        (["run", "table.csv", "--targets", "age,ill", "--ignore", "id,town", "--recipe", "lr=fast"], "lr must be"),
        (["run", "faces", "--methods", "optimal", "--set", "optimal.max_tasks=many"], "found 'many'"),
        (["run", "faces", "--methods", "auto", "--set", "auto.tabm=maybe"], "must be True or False, found 'maybe'"),
        (["run", "faces", "--encoder", "tabm"], "--encoder can only be used with tables, found 'faces'"),
        (["demo", "birds"], "birds"),
        (["predict", "nowhere", "table.csv"], "nowhere must be the folder of a finished run"),
        (["plan", "missing.csv"], "missing.csv"),
        (["verdict", "missing.csv"], "missing.csv"),
        (["verdict", "table.csv"], "network"),
        (["verdict", "."], ". must be a results file or the folder of a finished run"),
        (["verdict", "table.csv", "--out", "table.csv"], "--out must be a folder, found the file table.csv"),
        (["paper", "theory", "--out", "table.csv"], "--out must be a folder, found the file table.csv"),
        (["paper", "main", "--tasks", "Nose"], "--tasks must be one of"),
        (["plan", "square.csv", "--seeds", "0"], "--seeds must be a positive integer, found 0"),
        (["run", "junk.csv", "--targets", "x"], "--targets must name columns"),
        (
            ["demo", "--budgets", "9", "--fast", "--all", "faces"],
            "--budgets must contain at least one budget for random, cs, tag+pcgrad, hoa",
        ),
        (["demo", "--budgets", "0", "--fast", "faces"], "--budgets must be between 1 and 1,000, found 0"),
        (
            ["demo", "--budgets", "9", "--fast", "faces", "--methods", "tag"],
            "--budgets must be between 1 and the number of tasks",
        ),
        (
            ["demo", "faces", "--methods", "nope"],
            "--methods must be a known method, found 'nope'; choose from mtl, stl",
        ),
    ],
)
def test_invalid_arguments_give_one_error_message(
    tagalong: Terminal, table: Path, arguments: list[str], words: str
) -> None:
    Path("square.csv").write_text(",a,b\na,0,1\nb,1,0\n")
    Path("junk.csv").write_bytes(b"a\x1b[2J,b\x85\x0c\x07\n1,\x1b[31m\n")
    message = tagalong.error_of(*arguments)
    assert words in message
    assert all(sign.isprintable() or sign == "\n" for sign in message)
    assert not Path("runs").exists()


def test_a_folder_of_another_problem_is_rejected(tagalong: Terminal, table: Path) -> None:
    run(tagalong, "--methods", "mtl")
    roles = ("--targets", "age,ill", "--ignore", "id,town", "--out", "out")
    assert "out" in tagalong.error_of("run", "table.csv", *roles, *QUICK)


def test_a_plan_filled_in_gives_a_verdict(tagalong: Terminal) -> None:
    Path("affinity.csv").write_text(",a,b,c\na,0,5,1\nb,5,0,0\nc,0,0,0\n")
    assert "train 18 networks" in tagalong("plan", "affinity.csv", "--budgets", "2").out
    with open("plan.csv", newline="") as file:
        header, *rows = list(csv.reader(file))
    places = [header.index(name) for name in ("val_loss", "test_loss")]
    for row in rows:
        for place in places:
            row[place] = str(1.0 if row[0] == "a+b+c" else 0.5 + 0.001 * int(row[1]))
    with open("plan.csv", "w", newline="") as file:
        csv.writer(file).writerows([header, *rows])
    out = tagalong("verdict", "plan.csv").out
    assert "rouping is worth it" in out
    assert json.loads(tagalong("verdict", "plan.csv", "--json").out)["verdict"]["worth_it"] is True
    result = tagalong("verdict", "plan.csv", "--out", "own")
    assert result.out.endswith("\nreport: own/report.html\n")
    assert "tagalong verdict plan.csv --out own" in Path("own/report.html").read_text(encoding="utf-8")
    assert tagalong("verdict", "own", "--quiet").out == tagalong("verdict", "plan.csv", "--quiet").out
    assert "page.html" in tagalong("report", "own", "--out", "page.html", "--quiet").out


def test_copies_are_planned_and_judged_by_their_predictions(tagalong: Terminal) -> None:
    Path("affinity.csv").write_text(",a,b\na,0,5\nb,5,0\n")
    result = tagalong("plan", "affinity.csv", "--budgets", "2", "--methods", "mtl,ensemble,tag", "--seeds", "2")
    assert "tagalong verdict plan.csv --targets-file TARGETS" in result.out
    with open("plan.csv", newline="") as file:
        header, *rows = list(csv.reader(file))
    assert [header[0], header[1], header[-2], header[-1]] == ["network", "seed", "copy", "predictions"]
    rng = np.random.default_rng(0)
    labels = {f"{part}_{task}": rng.normal(size=100) for part in ("val", "test") for task in "ab"}
    np.savez("targets.npz", **labels)
    for row in rows:
        seed = int(row[1])
        row[-1] = f"{row[0]}-{seed}.npz"
        noise = np.random.default_rng([1, seed])
        predicted = {name: values + noise.normal(size=100) for name, values in labels.items() if name[-1] in row[0]}
        np.savez(row[-1], **predicted)
    with open("plan.csv", "w", newline="") as file:
        csv.writer(file).writerows([header, *rows])
    judged = json.loads(tagalong("verdict", "plan.csv", "--targets-file", "targets.npz", "--json").out)
    means = {
        record["method"]: np.mean([score["loss"] for score in record["test"].values()]) for record in judged["records"]
    }
    assert means["ensemble"] == pytest.approx(means["mtl"] / 2, rel=0.2)  # the noise of two networks is averaged
    networks = json.loads(tagalong("plan", "affinity.csv", "--methods", "ensemble", "--seeds", "1", "--json").out)
    (copy,) = [one for one in networks["networks"] if "copy" in one]
    assert (copy["copy"], copy["copy_of_seed"], copy["seed"] > 1000) == (1, 0, True)
    np.savez("targets.npz", **{**labels, "val_a": labels["val_a"][:50]})
    with open("plan.csv", "w", newline="") as file:
        csv.writer(file).writerows([header, *rows])
    message = " ".join(tagalong.error_of("verdict", "plan.csv", "--targets-file", "targets.npz").split())
    assert message == "targets.npz: 'val' must have as many rows for every task, found 50 for 'a', 100 for 'b'"
    message = " ".join(tagalong.error_of("verdict", "plan.csv").split())
    assert message == "--targets-file is required, since the table names predictions"


def test_a_plan_names_the_file_whose_scores_are_too_large(tagalong: Terminal) -> None:
    Path("big.csv").write_text(",a,b,c\na,0,1e308,1e308\nb,1e308,0,1e308\nc,-1e308,1e308,0\n")
    message = " ".join(tagalong.error_of("plan", "big.csv", "--budgets", "2").split())
    assert message.startswith("big.csv must sum to less than")


def test_a_plan_takes_an_affinity_for_each_method(tagalong: Terminal) -> None:
    matrices = {"lookahead": [[0, 5, 1], [5, 0, 0], [0, 0, 0]], "cosine": [[0, 0, 0], [0, 0, 5], [1, 5, 0]]}
    for name, matrix in matrices.items():
        affinity = replace(Affinity.from_matrix(matrix, ["a", "b", "c"]), settings={"estimator": name})
        affinity.save(f"{name}.json")
    assert "for mtl, stl, tag, cs;" in tagalong("plan", "lookahead.json", "cosine.json", "--budgets", "2").out
    rows = Path("plan.csv").read_text().splitlines()
    assert "a+b,0,a,tag:2,,,,," in rows
    assert "b+c,0,c,cs:2,,,,," in rows
    assert "for mtl, stl, cs;" in tagalong("plan", "cosine.json").out
    message = tagalong.error_of("plan", "lookahead.json", "--methods", "tag,cs")
    assert (
        "must include a measurement with the estimator 'cosine', 'cosine_kernels' or 'centered_cosine' for 'cs'"
        in " ".join(message.split())
    )
    message = " ".join(tagalong.error_of("plan", "cosine.json", "cosine.json").split())
    assert "affinity must contain a single affinity for 'cs', found 2: 'cosine', 'cosine'; choose one" in message


def test_problems_are_listed(tagalong: Terminal) -> None:
    out = tagalong("problems").out
    assert all(name in out for name in ("nhanes", "faces", "qm9", "tagalong run TABLE.csv"))
    assert {one["name"] for one in json.loads(tagalong("problems", "--json").out)["problems"]} >= {"nhanes", "faces"}


@pytest.mark.slow
@pytest.mark.parametrize("executor", ["serial", "processes"])
def test_ctrl_c_while_networks_are_trained_says_what_is_kept(tagalong: Terminal, table: Path, executor: str) -> None:
    endless = ("--recipe", "epochs=100000", "--recipe", "patience=100000", "--executor", executor)
    command = ("run", "table.csv", *ROLES, "--out", "out", "--methods", "mtl,stl", *endless)
    child = subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("interrupted.py")), "1", "out/partial", *command],
        env={**environment(), "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        _, err = child.communicate(timeout=300)
    finally:
        child.kill()
    assert Path("pressed").exists()
    assert child.returncode == 130
    assert "finished networks are kept in out" in err
    assert "Traceback" not in err


def run_interrupted(out: str, nth: int | None, queue: Any) -> None:
    """Runs a command that Ctrl-C stops at its n-th file operation; queues status, stderr and their number."""
    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    operations = FileOperations(Path(out), nth, interrupt)
    with redirect_stderr(StringIO()) as err, redirect_stdout(StringIO()):
        status = main(["run", "table.csv", *ROLES, "--out", out, "--methods", "mtl,stl,tag,uw", *SMALL, *QUICK])
    queue.put((status, err.getvalue(), operations.number))


@pytest.mark.slow
def test_after_ctrl_c_at_any_file_operation_the_run_says_what_is_kept_and_can_resume(
    tagalong: Terminal, table: Path, processes: ForkServerContext
) -> None:
    def run_in_process(out: str, nth: int | None = None) -> tuple[int, str, int]:
        queue = processes.Queue()
        child = processes.Process(target=run_interrupted, args=(out, nth, queue))
        child.start()
        answer = queue.get(timeout=100)
        child.join()
        return answer

    status, _, total = run_in_process("clean")
    assert status == 0
    for nth in stopping_points(total, 5):
        status, err, _ = run_in_process("out", nth)
        assert status == 130
        assert err.splitlines()[-1].startswith(
            "tagalong: stopped; finished networks are kept in out, run the same command"
        )
        assert "Traceback" not in err
    assert run_in_process("out")[0] == 0
    assert records_without_times(Results.load("out")) == records_without_times(Results.load("clean"))
