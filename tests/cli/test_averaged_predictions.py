"""The predictions that a command prints for averaged networks have the test losses that the run reports."""

import csv
from pathlib import Path

import numpy as np
import pytest
from terminal import Terminal, process

from tagalong.learn import Problem, Recipe
from tagalong.study import Results, Study

pytestmark = pytest.mark.usefixtures("one_thread")
TASKS = ["age", "ill", "kind"]
RECIPE = Recipe(epochs=8, lr=0.01, batch_size=32, keep="last", patience=None)


def make_columns(rows: int = 900) -> dict[str, np.ndarray]:
    """Returns features and targets of three kinds; few rows are for training, so that averaging helps."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(rows, 8))
    age = 50 + 10 * (x[:, 0] + x[:, 1] * x[:, 2] + 0.4 * rng.normal(size=rows))
    ill = (x[:, 1] + x[:, 3] * x[:, 0] + 0.4 * rng.normal(size=rows) > 0).astype(int)
    kind = (x[:, 4:7] + 0.4 * rng.normal(size=(rows, 3))).argmax(1)
    part = np.array(["train", "val", "test"])[np.searchsorted([0.3, 0.65], rng.random(rows))]
    features = {f"x{number}": x[:, number] for number in range(8)}
    return {**features, "part": part, "age": age, "ill": ill, "kind": np.array(["red", "green", "blue"])[kind]}


def write_table(path: Path, columns: dict[str, np.ndarray]) -> Path:
    with open(path, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        writer.writerows(zip(*(values.tolist() for values in columns.values()), strict=True))
    return path


def losses_of(
    predicted: dict[str, np.ndarray], labels: dict[str, np.ndarray], scale: tuple[float, float]
) -> list[float]:
    age, ill = (predicted["age"] - labels["age"]) / scale[1], predicted["ill"]
    kind = np.choose(np.searchsorted(["blue", "green", "red"], labels["kind"]), predicted["kind"])
    return [
        float(np.mean(age**2)),
        float(np.mean(-np.log(np.where(labels["ill"] == 1, ill, 1 - ill)))),
        float(np.mean(-np.log(kind))),
    ]


def test_recommended_averages_give_the_reported_losses_in_another_process(tagalong: Terminal) -> None:
    columns = make_columns()
    table = write_table(Path("table.csv"), columns)
    problem = Problem.from_table(table, TASKS, split_column="part", recipe=RECIPE)
    Study(problem, "out", device="cpu").run(["mtl", "ensemble"], [3], seeds=3)
    results = Results.load("out")
    label = results.verdict().recommended
    assert label == ("ensemble", 3)
    best = results.best()
    (record,) = [one for one in results.records_of(label) if one.seed == best.seed]
    expected = [record.test[task].loss for task in TASKS]
    test = {name: values[columns["part"] == "test"] for name, values in columns.items()}
    write_table(Path("new.csv"), test)
    loaded = {task: values.astype(float) for task, values in best.predict("new.csv").items()}
    loaded["kind"] = loaded["kind"].T
    assert losses_of(loaded, test, problem.scales["age"]) == pytest.approx(expected, rel=1e-6)
    command = process("predict", "out", "new.csv", "--out", "answers.csv")
    _, error = command.communicate()
    assert command.returncode == 0, error
    with open("answers.csv", newline="") as file:
        header, *rows = list(csv.reader(file))
    answers = dict(zip(header, np.array(rows, dtype=float).T, strict=True))
    answers["kind"] = np.array([answers[f"kind={color}"] for color in ("blue", "green", "red")])
    assert losses_of(answers, test, problem.scales["age"]) == pytest.approx(expected, rel=1e-6)
