"""The numbers of the paper's fourteen experiments, of the leaderboard and of the truth tables.

Experiments are called through public names of `tagalong_paper` alone, so everything inside may change:

- `EXPERIMENTS` lists their names; `run_experiment(name, setup, **options)` runs one, and `to_document()` of what it
  returns is the document that `tagalong paper NAME --json` prints. "selection" is called as `selections()`, and
  "errata" and "theory" need no setup.
- `ExperimentSetup(problem, out, tasks, seeds, size, device)` holds the problem to train. `load_setup` and the command
  line would load drawn faces in float32, whose results depend on the order of additions. The problems here have the
  paper's names and tasks, but eight float64 inputs and a tiny network, so that results agree to many digits, whichever
  experiments ran before in the same folder and with however many threads.
- `tagalong_paper.truth` offers `leaderboard`, `load_truth` and `truth_names`.

`numbers_of` is the only function that knows the shape of a document. It keeps the cells and headings of all tables, the
answer to every claim with the numbers that explain it and the answers to its parts, and all further results. Titles,
claims and notes are sentences, which may be reworded. Timed results are left out.

CelebA's nine tasks are trained only where the paper's numbers appear beside totals over all tasks; the other
experiments train five of them. Every experiment of a setup uses the same folder, and none depends on the others.
"""

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from tagalong.learn import ModuleFactory, Problem, Recipe, Task
from tagalong_paper import EXPERIMENTS, ExperimentSetup, run_experiment, selections
from tagalong_paper.truth import leaderboard, load_truth, truth_names

pytestmark = pytest.mark.usefixtures("one_thread")  # faster for tiny networks; the results are the same
Golden = Callable[..., None]
CELEBA_TASKS = (
    *("5_o_Clock_Shadow", "Black_Hair", "Blond_Hair", "Brown_Hair"),
    *("Goatee", "Mustache", "No_Beard", "Rosy_Cheeks", "Wearing_Hat"),
)
TASKONOMY_TASKS = ("segmentation", "depth", "normals", "edges", "keypoints")
FIVE_TASKS = ("5_o_Clock_Shadow", "Black_Hair", "Blond_Hair", "Goatee", "No_Beard")
COMPUTED = ("errata", "theory")
TRAINED = [experiment.name for experiment in EXPERIMENTS if experiment.trains]
TIMED_COLUMNS = ("speed-up", "model")
TIMED_NUMBERS = ("measurement_in_plain_steps",)
LABELS = ("method", "groups", "size", "loss")
SENTENCES = ("experiment", "title", "notes", "tables", "claims")
RTOL = 1e-7


class Layer(ModuleFactory):
    """Makes encoders with one layer."""

    def __call__(self, width: float = 1.0) -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(8, round(6 * width)), nn.Tanh())

    def __repr__(self) -> str:
        return "Layer()"


def drawn_problem(name: str, names: tuple[str, ...], tasks: list[Task], train: int, test: int) -> Problem:
    """Draws labels that depend on the inputs through three hidden numbers that the tasks share, and on noise."""
    random = np.random.default_rng(len(names))
    rows = train + 200 + test
    inputs = random.standard_normal((rows, 8))
    shared = np.tanh(inputs @ random.standard_normal((8, 3))) @ random.standard_normal((3, len(names)))
    own = 0.6 * inputs @ random.standard_normal((8, len(names)))
    labels = shared + own + 0.5 * random.standard_normal(shared.shape)
    if tasks[0].kind == "multiclass":
        labels = (labels > random.uniform(-0.5, 1, len(names))).astype(float)
    return Problem.from_arrays(
        torch.from_numpy(inputs).reshape(rows, 2, 4),  # like images, which are not standardized
        dict(zip(names, labels.T, strict=True)),
        tasks,
        name=name,
        encoder=Layer(),
        recipe=Recipe(optimizer="sgd", lr=0.1, batch_size=20, epochs=3, patience=2, weight_decay=0.0),
        split=np.split(np.arange(rows), [train, train + 200]),
    )


@pytest.fixture(scope="module")
def celeba(tmp_path_factory: pytest.TempPathFactory) -> ExperimentSetup:
    """Returns the nine attributes of CelebA, whose results are error rates."""
    tasks = [Task(name, "multiclass", classes=2) for name in CELEBA_TASKS]
    problem = drawn_problem("celeba", CELEBA_TASKS, tasks, train=80, test=420)
    return ExperimentSetup(problem, tmp_path_factory.mktemp("celeba"), None, (0, 1), "small", "cpu")


@pytest.fixture(scope="module")
def five_tasks(celeba: ExperimentSetup, tmp_path_factory: pytest.TempPathFactory) -> ExperimentSetup:
    return ExperimentSetup(
        celeba.problem, tmp_path_factory.mktemp("five-tasks"), FIVE_TASKS, celeba.seeds, "small", "cpu"
    )


@pytest.fixture(scope="module")
def taskonomy(tmp_path_factory: pytest.TempPathFactory) -> ExperimentSetup:
    """Returns the five tasks of Taskonomy, whose results are losses."""
    tasks = [Task(name, "regression") for name in TASKONOMY_TASKS]
    problem = drawn_problem("taskonomy", TASKONOMY_TASKS, tasks, train=80, test=100)
    return ExperimentSetup(problem, tmp_path_factory.mktemp("taskonomy"), None, (0,), "small", "cpu")


def numbers_of(document: dict[str, Any], keep: Callable[[str], bool] = lambda column: True) -> dict[str, Any]:
    """Returns the numbers and decisions of an experiment's document, without sentences and timed results.

    Args:
        document: the document.
        keep: whether to keep the column with this heading. Tables with one column left are dropped.
    """
    results = {key: value for key, value in document.items() if key not in (*SENTENCES, *TIMED_NUMBERS)}
    if "totals" in results:
        results["totals"] = [[total["method"], total["budget"], *total["by_seed"]] for total in results["totals"]]
    tables = []
    for table in document["tables"]:
        headings = {column: place for place, column in enumerate(table["columns"]) if column not in TIMED_COLUMNS}
        places = {column: place for column, place in headings.items() if keep(column)}
        if len(places) > 1:
            rows = [[part for place in places.values() for part in parts_of(row[place])] for row in table["rows"]]
            tables.append([" | ".join(places), *rows])
    claims = [
        [claim["reproduced"], *numbers_in(claim["because"]), "; ".join(map(answer_of, claim["parts"]))]
        for claim in document["claims"]
    ]
    return {**results, "tables": tables, "claims": claims}


def answer_of(part: str) -> str:
    """Returns the answer to a part of a claim.

    Example:
        >>> answer_of("uw (last): 1.5 against 2 (within noise)")
        'within noise'
    """
    return part.rpartition("(")[2].removesuffix(")")


def parts_of(cell: Any) -> list[Any]:
    """Returns a cell's text or number, its standard error if there is one, and whether it is a helper's result."""
    if not isinstance(cell, dict):
        return [cell]
    with_error = [cell["mean"]] if cell["stderr"] is None else [cell["mean"], cell["stderr"]]
    return with_error if cell["served"] else [*with_error, "helper"]


def numbers_in(sentence: str) -> list[float]:
    """Returns the numbers of a sentence.

    Example:
        >>> numbers_in("mtl, 2 groups: -1.5e3 against 60% (within noise)")
        [2.0, -1500.0, 60.0]
    """
    return [float(number) for number in re.findall(r"(?<![\w.])-?\d+(?:\.\d+)?(?:e[+-]?\d+)?", sentence)]


def test_all_fourteen_experiments_are_listed(golden: Golden) -> None:
    golden("experiments", {experiment.name: experiment.trains for experiment in EXPERIMENTS})


def test_selection(golden: Golden) -> None:
    kept = []
    for selection in selections():
        document = selection.to_document()
        printed, best = document["printed"], document["best"]
        groups = [
            " serves ".join([" ".join(group["trains"]), " ".join(group.get("bold", group.get("serves")))])
            for group in (*printed.pop("groups"), *best.pop("groups"))
        ]
        head = [document["dataset"], document["method"], document["budget"], document["objective"], document["same"]]
        kept.append([*head, printed, best, groups, [numbers_in(remark) for remark in document["remarks"]]])
    golden("selection", kept)


@pytest.mark.parametrize("name", COMPUTED)
def test_experiments_without_training(name: str, golden: Golden) -> None:
    document = run_experiment(name).to_document()
    if name == "errata":  # the place in the paper, then the numbers of what is printed, what is right and why
        table = document["tables"][0]
        table["rows"] = [[where, *map(numbers_in, texts)] for where, *texts in table["rows"]]
    golden(name, numbers_of(document), RTOL)


@pytest.mark.parametrize("name", TRAINED)
def test_experiments_with_five_tasks(name: str, five_tasks: ExperimentSetup, golden: Golden) -> None:
    document = run_experiment(name, five_tasks).to_document()
    numbers = numbers_of(document, lambda column: name != "main" or not re.match(r"(printed )?a\d", column))
    golden(f"{name}, five tasks", numbers, RTOL)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["main", "capacity", "validation"])
def test_printed_numbers_beside_results_of_all_tasks(name: str, celeba: ExperimentSetup, golden: Golden) -> None:
    document = run_experiment(name, celeba).to_document()
    numbers = numbers_of(document, lambda column: column.startswith(("printed", "total", *LABELS)))
    golden(f"{name}, nine tasks", {key: numbers[key] for key in ("tables", "claims")}, RTOL)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["main", "capacity", "partner"])
def test_experiments_whose_results_are_losses(name: str, taskonomy: ExperimentSetup, golden: Golden) -> None:
    golden(f"{name}, losses", numbers_of(run_experiment(name, taskonomy).to_document()), RTOL)


def test_options_of_experiments(five_tasks: ExperimentSetup, golden: Golden) -> None:
    document = run_experiment("main", five_tasks, as_published=True).to_document()
    golden("main as published, five tasks", numbers_of(document)["totals"], RTOL)
    for name, methods in (("capacity", ["mtl"]), ("no-early-stopping", ["uw"])):
        document = run_experiment(name, five_tasks, methods=methods).to_document()
        golden(f"{name} with {methods[0]}, five tasks", numbers_of(document)["tables"][0], RTOL)


def test_leaderboard(golden: Golden) -> None:
    standings = {}
    for standing in leaderboard(["nhanes"], budgets=(2, 3), seeds=2):
        numbers = (standing.pairs, standing.marginal, *standing.changes.values(), standing.cost)
        standings[standing.estimator] = [None if np.isnan(number) else number for number in numbers]
    golden("leaderboard", standings, RTOL)


def test_truth_tables(golden: Golden) -> None:
    tables = {}
    for name in truth_names():
        table = load_truth(name)
        halves = {task: table.tasks[place % 2 :: 2] for place, task in enumerate(table.tasks)}
        estimates = [
            [float(np.nanmean(array)) for array in each.values()] for each in (table.affinities, table.predictions)
        ]
        tables[name] = {
            "tasks": " ".join(table.tasks),
            "shape": list(table.val.shape),
            "means": [float(np.nanmean(array)) for array in (table.val, table.test, table.early)],
            "estimates": [sum(means) for means in estimates],
            "costs": sum(table.costs.values()),
            "changes": [table.change(halves), table.change(halves, [0])],
        }
    golden("truth tables", tables)
