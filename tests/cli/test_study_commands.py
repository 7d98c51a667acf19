"""From a table to a verdict and predictions on the command line, plans, and errors for invalid arguments."""

import csv
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from terminal import Terminal, environment

from tagalong.affinity import Affinity
from tagalong.learn import Problem, Recipe
from tagalong.study import Study

pytestmark = pytest.mark.usefixtures("one_thread")
TASKS = ["age", "weight", "ill", "kind"]
ROLES = ("--targets", ",".join(TASKS), "--ignore", "id", "--categorical", "town")
SMALL = ("--budgets", "2", "--seeds", "2")
QUICK = ("--recipe", "epochs=2", "--recipe", "batch_size=64", "--device", "cpu")


def make_frame() -> pd.DataFrame:
    """Four targets, one of them with missing labels; the features are four numbers and a word."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(240, 4)).round(4)
    targets = (x @ rng.normal(size=(4, 3)) + 0.5 * rng.normal(size=(240, 3))).round(4)
    frame = pd.DataFrame({"id": [f"r{row}" for row in range(240)], **dict(zip("pqrs", x.T, strict=True))})
    frame["town"] = ["Ulm", "Bonn"] * 120
    frame["age"], frame["weight"] = targets[:, 0], np.where(np.arange(240) % 7 == 0, np.nan, targets[:, 1])
    frame["ill"], frame["kind"] = (
        (targets[:, 2] > 0).astype(int),
        np.array(["blue", "green", "red"])[x[:, :3].argmax(1)],
    )
    return frame


@pytest.fixture
def table(tagalong: Terminal) -> Path:
    make_frame().to_csv("table.csv", index=False)
    return Path("table.csv")


def run(tagalong: Terminal, *more: str) -> tuple[str, str]:
    result = tagalong("run", "table.csv", *ROLES, *SMALL, "--out", "out", *QUICK, *more)
    assert result.status == 0, result.err
    return result.out, result.err


def test_tasks_are_weighted_and_another_method_is_the_reference(tagalong: Terminal, table: Path) -> None:
    run(tagalong, "--methods", "mtl,stl", "--weights", "age=9,ill=2", "--reference", "stl")
    document = json.loads(Path("out/results.json").read_text(encoding="utf-8"))
    assert document["scale"]["weights"] == {"age": 9.0, "weight": 1.0, "ill": 2.0, "kind": 1.0}
    verdict = document["verdict"]
    assert verdict["reference"] == ["stl", None]
    skills = {answer["task"]: answer["before"]["estimate"] for answer in verdict["per_task"]}
    mean = (9 * skills["age"] + skills["weight"] + 2 * skills["ill"] + skills["kind"]) / 13
    assert verdict["reference_skill"] == pytest.approx(mean)
    roles = ("run", "table.csv", *ROLES, "--out", "other")
    assert "--weights" in tagalong.error_of(*roles, "--weights", "nobody=2")
    assert "--reference" in tagalong.error_of(*roles, "--methods", "mtl", "--reference", "stl")


def test_a_table_gives_labels_results_a_verdict_and_predictions(tagalong: Terminal, table: Path) -> None:
    out, err = run(tagalong, "--methods", "mtl,stl,tag")
    for words in ("table: 4 tasks", "regression", "binary", "models", "Use ", "tagalong predict out"):
        assert words in out, words
    assert "2 of 2 networks" in err
    assert "\x1b" not in out + err
    for name in ("run.sqlite", "results.json", "settings.json", "groupings.json", "affinity.json", "run.log"):
        assert (Path("out") / name).exists(), name
    quiet = tagalong("run", "table.csv", *ROLES, *SMALL, "--out", "out", *QUICK, "--methods", "mtl,stl,tag", "--quiet")
    assert quiet.err == "", "nothing is trained again"
    assert "models" in quiet.out.splitlines()[0]
    assert tagalong("report", "out").out.startswith(quiet.out)
    roles = ("--targets", "age,ill", "--ignore", "id,town,weight,kind", "--out", "out")
    assert "out" in tagalong.error_of("run", "table.csv", *roles, *QUICK), "the folder of another problem"


def test_predictions_have_the_losses_and_the_spread_that_the_run_reports(tagalong: Terminal) -> None:
    frame = make_frame().assign(part=["train", "train", "val", "test"] * 60)
    test = frame[frame.part == "test"]
    frame.to_csv("all.csv", index=False)
    test.to_csv("test.csv", index=False)
    roles = {"ignore": ["id"], "categorical": ["town"], "split_column": "part"}
    problem = Problem.from_table("all.csv", TASKS, recipe=Recipe(epochs=2), **roles)
    study = Study(problem, "out", device="cpu")
    (record,) = study.run(["mtl", "ensemble"], [2], seeds=1).records_of(("ensemble", 2))
    study.best("ensemble", 2).save("out")
    assert "60 rows written to new.csv" in tagalong("predict", "out", "test.csv", "--spread", "--out", "new.csv").out
    new = pd.read_csv("new.csv")
    assert (new.filter(like="(spread)") > 0).all(axis=None)
    losses = {
        name: np.nanmean(((new[name] - test[name].to_numpy()) / problem.scales[name][1]) ** 2)
        for name in ("age", "weight")
    }
    losses["ill"] = -np.log(np.where(test.ill > 0, new.ill, 1 - new.ill)).mean()
    right = [row[f"kind={color}"] for (_, row), color in zip(new.iterrows(), test.kind, strict=True)]
    losses["kind"] = -np.log(right).mean()
    assert losses == pytest.approx({task: score.loss for task, score in record.test.items()}, rel=1e-5)
    document = json.loads(tagalong("predict", "out", "test.csv", "--json").out)
    assert document["age"] == pytest.approx(new.age.tolist())
    header, *rows = csv.reader(tagalong("predict", "out", "test.csv").out.splitlines())
    assert header == ["age", "weight", "ill", "kind=blue", "kind=green", "kind=red", "outside"]
    assert len(rows) == 60
    assert {row[-1] for row in rows} == {"0"}
    far = test.reset_index(drop=True)
    far.loc[7, "p"] *= 1e6
    far.to_csv("far.csv", index=False)
    result = tagalong("predict", "out", "far.csv")
    flagged = list(csv.reader(result.out.splitlines()))[1:]
    assert [number for number, row in enumerate(flagged) if row != rows[number]] == [7]
    assert flagged[7][-1] == "1"
    assert "outside the range of the training rows, in p" in result.err
    header, *kept = csv.reader(tagalong("predict", "out", "test.csv", "--keep", "id,town").out.splitlines())
    assert header[:3] == ["id", "town", "age"]
    assert [row[2:] for row in kept] == rows
    assert [row[0] for row in kept] == [str(number) for number in test.id]
    assert "'weight'" in tagalong.error_of("predict", "out", "test.csv", "--keep", "id,weight")
    one = json.loads(tagalong("predict", "out", "test.csv", "--networks", "1", "--json").out)
    assert one["age"] == pytest.approx(study.best("mtl").predict("test.csv")["age"].tolist())
    assert "--networks" in tagalong.error_of("predict", "out", "test.csv", "--networks", "9")


def test_options_of_methods_recipe_and_tasks_are_passed_to_the_study(tagalong: Terminal, table: Path) -> None:
    more = ("--methods", "tag,auto", "--set", "tag.every=1", "--effort", "2", "--set", "auto.teach=False")
    more += ("--set", "auto.average=false", "--tasks", "age,ill", "--recipe", "lr=0.5", "--encoder", "tabm", "--json")
    document = json.loads(run(tagalong, *more)[0])
    assert document["problem"]["tasks"] == ["age", "ill"]
    options = document["settings"]["options"]
    assert options["tag"] == {"every": 1}
    assert (options["auto"]["average"], options["auto"]["teach"]) == (False, False)
    assert json.loads(Path("out/settings.json").read_text())["recipe"]["lr"] == 0.5
    networks = json.loads(Path("out/networks/networks.json").read_text())["networks"]
    assert {network["layers"]["encoder"]["class"] for network in networks} == {"tagalong.learn.tabm.TabM"}
    assert tagalong("predict", "out", "table.csv", "--out", "predicted.csv").status == 0


TABLE = "run table.csv --targets age,ill --ignore id,town,weight,kind"


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("run nhanez", "did you mean 'nhanes'?"),
        ("run missing.csv --targets a", "missing.csv"),
        ("run table.csv", "--targets"),
        ("run table.csv --targets age,height --ignore id,town", "'height'"),
        (f"{TABLE} --methods tagg", "'tag'"),
        (f"{TABLE} --methods ,", "--methods"),
        (f"{TABLE} --budgets 1001", "--budgets"),
        (f"{TABLE} --budgets 1.5", "--budgets"),
        (f"{TABLE} --budgets 1-100000000000", "--budgets"),
        (f"{TABLE} --seeds 0", "--seeds"),
        (f"{TABLE} --confirm -1", "--confirm"),
        (f"{TABLE} --recipe speed=3", "--recipe"),
        (f"{TABLE} --recipe lr=fast", "lr"),
        (f"{TABLE} --recipe epochs=2.5", "epochs"),
        (f"{TABLE} --set every=3", "--set"),
        (f"{TABLE} --set tag.evry=1 --methods tag", "--set"),
        (f"{TABLE} --set cs.every=1 --methods tag", "'cs'"),
        (f"{TABLE} --executor cloud", "--executor"),
        (f"{TABLE} --executor processes:1000000", "workers"),
        (f"{TABLE} --device abacus", "--device"),
        (f"{TABLE} --encoder mlp --effort 1000000000000000000", "--effort"),
        (f"{TABLE} --unlabelled none.csv", "none.csv"),
        (f"{TABLE} --tasks age,wild", "'wild'"),
        (f"{TABLE} --encoder tabn", "--encoder"),
        (f"{TABLE} --features-file short.npy", "--features-file"),
        (f"{TABLE} --features-file table.csv", "--features-file"),
        (f"{TABLE} --out table.csv", "--out"),
        ("run faces --targets a", "--targets"),
        ("run faces --with color=1", "color"),
        ("run faces --with recipe=1", "recipe"),
        ("run faces --with seed=one", "seed"),
        ("run faces --tasks Nose", "'Nose'"),
        ("run faces --encoder tabm", "--encoder"),
        ("run faces --methods optimal --set optimal.max_tasks=many", "'many'"),
        ("run faces --methods auto --set auto.average=maybe", "'maybe'"),
        ("demo birds", "birds"),
        ("demo --budgets 9 --fast faces --methods tag", "--budgets"),
        ("demo faces --methods nope", "'nope'"),
        ("predict nowhere table.csv", "nowhere"),
        ("plan missing.csv", "missing.csv"),
        ("plan square.csv --seeds 0", "--seeds"),
        ("plan square.csv --runs 0", "--runs"),
        ("plan big.csv --budgets 2", "scores"),
        ("verdict missing.csv", "missing.csv"),
        ("verdict table.csv", "network"),
        ("verdict .", "cannot be read"),
        ("leaderboard --tables nhanse", "did you mean 'nhanes'"),
        ("leaderboard --tables nhanes --seeds 0", "--seeds"),
        ("run junk.csv --targets x", "--targets"),
    ],
)
def test_an_error_names_what_to_change_and_trains_nothing(
    tagalong: Terminal, table: Path, line: str, words: str
) -> None:
    Path("square.csv").write_text(",a,b\na,0,1\nb,1,0\n")
    Path("big.csv").write_text(",a,b,c\na,0,1e308,1e308\nb,1e308,0,1e308\nc,-1e308,1e308,0\n")
    Path("junk.csv").write_bytes(b"a\x1b[2J,b\x85\x0c\x07\n1,\x1b[31m\n")
    np.save("short.npy", np.zeros((239, 2)))
    message = tagalong.error_of(*line.split())
    assert words in " ".join(message.split())
    assert all(sign.isprintable() or sign == "\n" for sign in message)
    assert not Path("runs").exists()


def fill_in(losses: Any, path: str = "own/plan.csv") -> None:
    """Fills in the losses of a plan with those of a function of network and seed."""
    plan = pd.read_csv(path, dtype=str, keep_default_na=False)
    for column in ("val_loss", "test_loss"):
        plan[column] = [losses(row.network, int(row.seed)) for row in plan.itertuples()]
    plan.to_csv(path, index=False)


def test_a_plan_filled_in_gives_a_verdict(tagalong: Terminal) -> None:
    Path("affinity.csv").write_text(",a,b,c\na,0,5,1\nb,5,0,0\nc,0,0,0\n")
    planned = tagalong("plan", "affinity.csv", "--budgets", "2", "--out", "own").out
    assert "train 18 networks" in planned
    assert "tagalong verdict own/plan.csv" in planned
    assert json.loads(tagalong("verdict", "own", "--json").out)["networks"]  # nothing is trained yet
    Path("own/one.json").write_text('{"tasks": ["a"], "seed": 0}')
    assert "own/one.json" in tagalong.error_of("verdict", "own/one.json")
    fill_in(lambda network, seed: 1.0 if network == "a+b+c" else 0.5 + 0.001 * seed)
    result = tagalong("verdict", "own/plan.csv").out
    assert "Use tag (budget 2)" in result
    assert "own/report.html" in result
    assert json.loads(tagalong("verdict", "own/plan.csv", "--json").out)["verdict"]["worth_it"] is True
    assert tagalong("verdict", "own", "--quiet").out == tagalong("verdict", "own/plan.csv", "--quiet").out
    assert "--budgets" in tagalong.error_of("verdict", "own/plan.csv", "--budgets", "2")


def test_twelve_runs_are_planned_in_rounds(tagalong: Terminal) -> None:
    Path("affinity.csv").write_text(",a,b,c\na,0,5,1\nb,5,0,0\nc,0,0,0\n")
    command = ("plan", "affinity.csv", "--methods", "mtl,tag", "--budgets", "2", "--out", "own", "--json")
    first = json.loads(tagalong(*command, "--runs", "7").out)
    assert (first["round"], first["rounds"], len(first["networks"])) == (1, 2, 3)
    fill_in(lambda network, seed: 1.0 if network == "a+b+c" else 0.5 + 0.001 * seed, first["file"])
    second = json.loads(tagalong("verdict", first["file"], "--json").out)
    assert (second["round"], second["rounds"], second["file"]) == (2, 2, "own/plan-2.csv")
    assert second["verdict"]["seeds"] == 1
    fill_in(lambda network, seed: 1.0 if network == "a+b+c" else 0.5 + 0.001 * seed, second["file"])
    last = json.loads(tagalong("verdict", second["file"], "--json").out)
    assert len(first["networks"]) + len(second["networks"]) == 6
    assert (last["networks"], len(last["settling"])) == ([], 6)
    assert "To settle it, train 6 more networks" in tagalong("verdict", "own").out
    assert len(json.loads(tagalong(*command, "--runs", "12").out)["networks"]) == 3


def test_a_table_of_losses_gives_a_verdict_for_any_budgets(tagalong: Terminal) -> None:
    rows = [
        (network, seed, task, 1, 1) for network in ("a", "b", "a+b") for seed in (0, 1) for task in network.split("+")
    ]
    pd.DataFrame(rows, columns=["network", "seed", "task", "val_loss", "test_loss"]).to_csv("filled.csv", index=False)
    result = tagalong("verdict", "filled.csv", "--budgets", "1-2")
    assert "Use mtl." in result.out
    for budgets in ("9", "1.5"):
        assert "--budgets" in tagalong.error_of("verdict", "filled.csv", "--budgets", budgets)


def test_copies_are_planned_and_judged_by_their_predictions(tagalong: Terminal) -> None:
    Path("affinity.csv").write_text(",a,b\na,0,5\nb,5,0\n")
    labels = {f"{part}_{task}": np.random.default_rng(0).normal(size=100) for part in ("val", "test") for task in "ab"}
    np.savez("targets.npz", **labels)
    command = (
        "plan",
        "affinity.csv",
        "--budgets",
        "2",
        "--methods",
        "mtl,ensemble,tag",
        "--seeds",
        "2",
        "--out",
        "own",
    )
    assert "--targets-file" in tagalong.error_of(*command)
    tagalong(*command, "--targets-file", "targets.npz")
    plan = pd.read_csv("own/plan.csv", dtype=str, keep_default_na=False)
    plan["predictions"] = plan.network + "-" + plan.seed + ".npz"
    for row in plan.itertuples():
        noise = np.random.default_rng([1, int(row.seed)])
        kept = {name: values for name, values in labels.items() if name[-1] in row.network.split("+")}
        np.savez(f"own/{row.predictions}", **{name: one + noise.normal(size=100) for name, one in kept.items()})
    plan.to_csv("own/plan.csv", index=False)
    judged = json.loads(tagalong("verdict", "own/plan.csv", "--json").out)
    losses = {
        record["method"]: np.mean([score["loss"] for score in record["test"].values()]) for record in judged["records"]
    }
    assert losses["ensemble"] == pytest.approx(losses["mtl"] / 2, rel=0.2)  # the noise of two networks is averaged
    np.savez("targets.npz", **{**labels, "val_a": labels["val_a"][:50]})
    assert "--targets-file" in tagalong.error_of(*command, "--targets-file", "targets.npz")


def test_a_plan_takes_an_affinity_for_each_method_in_any_direction(tagalong: Terminal) -> None:
    matrices = {"lookahead": [[0, 5, 1], [5, 0, 0], [0, 0, 0]], "cosine": [[0, 0, 0], [0, 0, 5], [1, 5, 0]]}
    for name, matrix in matrices.items():
        affinity = replace(Affinity.from_matrix(matrix, ["a", "b", "c"]), settings={"estimator": name})
        affinity.save(f"{name}.json")
    planned = tagalong("plan", "lookahead.json", "cosine.json", "--budgets", "2", "--out", "both")
    assert "for mtl, stl, tag, cs:" in planned.out
    rows = Path("both/plan.csv").read_text()
    assert "\na+b,0,a," in rows
    assert "\nb+c,0,c," in rows
    assert "'cs'" in tagalong.error_of("plan", "lookahead.json", "--methods", "tag,cs")
    assert "FILE" in tagalong.error_of("plan", "cosine.json", "cosine.json")
    Path("transposed.csv").write_text("target,a,b,c\na,0,5,0\nb,5,0,0\nc,1,0,0\n")
    tagalong("plan", "lookahead.json", "--out", "one")
    tagalong("plan", "transposed.csv", "--axis", "target", "--out", "two")
    assert Path("one/plan.csv").read_text() == Path("two/plan.csv").read_text()


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
    assert "stopped; " in err
    assert "Traceback" not in err
