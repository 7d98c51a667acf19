"""The documents that commands print with `--json`, one entry per command, on tiny inputs.

Numbers, names and decisions are kept; sentences and what differs from run to run (times, paths, versions, hashes) are
not, see `numbers_of`. `run` and `demo` train a float64 problem with a network of its own, so that neither the order of
additions nor the preparation of tables matters. Tables are trained in float32: `FLOAT32` is their tolerance.
"""

import csv
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from tagalong.affinity import Affinity
from tagalong.cli import main
from tagalong.learn import ModuleFactory, Problem, Recipe, Task
from tagalong.problems import DEMOS, Demo, register_problem

pytestmark = pytest.mark.usefixtures("one_thread")
Golden = Callable[..., None]
Print = Callable[..., dict[str, Any]]
RUN_DEPENDENT = ("seconds", "latency", "machine", "versions", "git", "command", "caution", "page", "file", "checksum")
HASH = re.compile(r"[0-9a-f]{16,64}")
TASKS = ("age", "weight", "ill")
MATRIX = [[1.0, 0.6, -0.2, 0.3], [0.4, 1.2, 0.1, 0.5], [-0.1, 0.2, 0.8, 0.5], [0.7, -0.4, 0.7, 0.9]]
RESULTS = """group,a,b,c,cost
a,1.0,,,1
b,,1.1,,1
c,,,0.9,1
a+b,0.8,1.0,,1.5
a+c,1.1,,0.8,1.5
b+c,,0.7,0.95,1.5
a+b+c,0.9,0.9,0.85,2
"""
FLOAT32 = {"rtol": 1e-6, "atol": 1e-6}
RTOL = 1e-7


class Layer(ModuleFactory):
    """Makes encoders with one layer."""

    def __call__(self, width: float = 1.0) -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(6, round(5 * width)), nn.Tanh())

    def __repr__(self) -> str:
        return "Layer()"


def drawn_rows(rows: int) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Draws six inputs and the labels of two numbers and one class; a ninth of the weights is missing."""
    random = np.random.default_rng(0)
    inputs = random.standard_normal((rows, 6))
    labels = np.tanh(inputs @ random.standard_normal((6, 3))) @ random.standard_normal((3, 3))
    labels += 0.4 * random.standard_normal(labels.shape)
    labels[::9, 1], labels[:, 2] = np.nan, labels[:, 2] > 0
    return inputs, dict(zip(TASKS, labels.T, strict=True))


def tiny() -> Problem:
    """Three tasks and a network with one layer."""
    inputs, labels = drawn_rows(300)
    return Problem.from_arrays(
        torch.from_numpy(inputs).reshape(300, 2, 3),  # like images, which are not standardized
        labels,
        [Task("age", "regression"), Task("weight", "regression"), Task("ill", "binary")],
        name="tiny",
        encoder=Layer(),
        recipe=Recipe(optimizer="sgd", lr=0.05, batch_size=20, epochs=4, patience=2, weight_decay=0.0),
        split=np.split(np.arange(300), [100, 180]),
    )


@pytest.fixture
def printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Print:
    """Returns a function that runs a command in an empty folder and returns the document that it prints."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> dict[str, Any]:
        capsys.readouterr()
        status = main([*arguments, "--json"])
        out, err = capsys.readouterr()
        assert status == 0, err
        document: dict[str, Any] = json.loads(out)
        return document

    return run


def numbers_of(value: Any) -> Any:
    """Returns what is left of a document without sentences, and without what differs from run to run.

    Groups become strings, such as "age+ill serves age".
    """
    if isinstance(value, dict):
        if {"trains", "serves"} <= value.keys():
            return " serves ".join("+".join(value[name]) for name in ("trains", "serves"))
        kept = {key: numbers_of(entry) for key, entry in value.items() if is_kept(entry) and key not in RUN_DEPENDENT}
        return {key: entry for key, entry in kept.items() if entry not in ([], {})}
    if isinstance(value, list):
        return [numbers_of(entry) for entry in value if is_kept(entry)]
    return value


def is_kept(value: Any) -> bool:
    """Returns whether a value is neither a sentence nor a hash."""
    return not (isinstance(value, str) and (" " in value or HASH.fullmatch(value)))


def write_table(path: str, rows: int) -> None:
    inputs, labels = drawn_rows(rows)
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow([*"pqrstu", "town", *labels])
        for row, numbers in enumerate(inputs):
            cells = ["" if np.isnan(values[row]) else f"{values[row]:.3f}" for values in labels.values()]
            writer.writerow([*(f"{number:.3f}" for number in numbers), ("Ulm", "Bonn", "")[row % 3], *cells])


def test_problems(printed: Print, golden: Golden) -> None:
    shipped = printed("problems")["problems"]
    golden("problems", {problem["name"]: problem["tasks"] for problem in shipped})


def test_group(printed: Print, golden: Golden) -> None:
    history = np.array(MATRIX) + np.random.default_rng(1).normal(0, 0.3, (12, 4, 4))
    Affinity.from_history(history, ["a", "b", "c", "d"]).save("affinity.json")
    Path("results.csv").write_text(RESULTS)
    explained = printed("group", "affinity.json", "--budget", "3", "--explain", "all", "--resamples", "40")
    Affinity.from_matrix(MATRIX, ["a", "b", "c", "d"]).to_csv("square.csv")
    Path("square.csv").write_text(Path("square.csv").read_text().replace("source", "target"))
    several = printed("group", "square.csv", "--budgets", "2-4", "--axis", "target", "--max-size", "3")
    by_cost = printed("group", "results.csv", "--objective", "min", "--max-total-cost", "3.5", "--weights", "a=2")
    documents = {"explained": explained, "several": several, "by cost": by_cost}
    golden("group", numbers_of(documents))


def test_plan_and_verdict(printed: Print, golden: Golden) -> None:
    Affinity.from_matrix(MATRIX, ["a", "b", "c", "d"]).save("affinity.json")
    planned = printed("plan", "affinity.json", "--budgets", "2,3", "--seeds", "2", "--out", "own")
    golden("plan", numbers_of({key: planned[key] for key in ("file", "networks")}))
    with open("own/plan.csv", newline="") as file:
        header, *rows = list(csv.reader(file))
    for row in rows:
        network, seed, task = row[:3]
        loss = 1 + 0.1 * "abcd".index(task) - 0.05 * (network.count("+") == 1) + 0.01 * int(seed) * len(network)
        row[header.index("val_loss")], row[header.index("test_loss")] = f"{loss}", f"{loss + 0.1 * len(network) ** 0.5}"
    with open("own/plan.csv", "w", newline="") as file:
        csv.writer(file).writerows([header, *rows])
    document = printed("verdict", "own/plan.csv")
    golden("verdict", numbers_of({key: document[key] for key in ("table", "verdict")}))


def test_run_and_report(printed: Print, golden: Golden) -> None:
    register_problem("tiny", tiny)
    command = ("run", "tiny", "--methods", "mtl,stl,tag,ensemble", "--budgets", "2", "--seeds", "2", "--device", "cpu")
    document = printed(*command, "--out", "out")
    spent = document["settings"]["spent"]
    kept = {key: document[key] for key in ("problem", "scale", "records", "table", "verdict")}
    golden("run", numbers_of({**kept, "spent": spent}), RTOL, 1e-9)
    assert numbers_of(printed(*command, "--out", "out"))["records"] == numbers_of(document)["records"]
    golden("report", [Path(path).as_posix() for path in printed("report", "out").values()])


def test_demo(printed: Print, golden: Golden, monkeypatch: pytest.MonkeyPatch) -> None:
    register_problem("tiny", tiny)
    monkeypatch.setitem(DEMOS, "faces", Demo("tiny", "drawn rows", TASKS, seeds=2, effort=6))
    document = printed("demo", "faces", "--out", "out", "--device", "cpu")
    golden("demo", numbers_of(document["verdict"]), RTOL, 1e-9)


def test_run_on_a_table_and_predict(printed: Print, golden: Golden) -> None:
    write_table("table.csv", 240)
    write_table("new.csv", 12)
    targets = ("--targets", ",".join(TASKS), "--categorical", "town", "--encoder", "mlp")
    quick = ("--recipe", "epochs=2", "--recipe", "batch_size=64", "--device", "cpu")
    document = printed("run", "table.csv", *targets, *quick, "--methods", "mtl", "--seeds", "1", "--out", "out")
    kept = {key: document[key] for key in ("problem", "records")}
    golden("run on a table", numbers_of(kept), **FLOAT32)
    golden("predict", printed("predict", "out", "new.csv"), **FLOAT32)


def test_paper(printed: Print, golden: Golden) -> None:
    document = printed("paper", "theory")
    golden("paper theory", [document["experiment"], *[claim["reproduced"] for claim in document["claims"]]])
    small = ("--seeds", "1", "--tasks", "Black_Hair,Goatee,No_Beard", "--recipe", "epochs=1", "--with", "rows=200")
    document = printed("paper", "over-time", *small, "--device", "cpu", "--out", "out")
    # Affinities in float32 are small differences of losses: with two threads, they differ by a twenty-thousandth.
    golden("paper over-time", numbers_of(document["tables"]), rtol=1e-3, atol=1e-3)


def test_leaderboard(printed: Print, golden: Golden) -> None:
    document = printed("leaderboard", "--tables", "nhanes", "--budgets", "2", "--seeds", "1")
    kept = ("pairs", "marginal", "changes", "cost")
    rows = {row["estimator"]: [row[key] for key in kept] for row in document["leaderboard"] if row["seeds"] == 1}
    golden("leaderboard", dict(sorted(rows.items())[:6]))
