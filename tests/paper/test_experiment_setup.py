"""The setup of experiments: names, folders and options."""

from pathlib import Path

import numpy as np
import pytest

from tagalong.learn import Problem, Task
from tagalong_paper import ExperimentSetup, load_setup, run_experiment

THREE = ("5_o_Clock_Shadow", "Black_Hair", "No_Beard")


def test_a_folder_belongs_to_one_problem(setup: ExperimentSetup) -> None:
    with pytest.raises(ValueError, match="different problem"):
        load_setup("faces", "small", out=setup.out, options={"seed": 1})


@pytest.mark.parametrize(
    ("argument", "value"),
    [("problem", "mnist"), ("size", "tiny"), ("seeds", 0), ("recipe", {"rate": 1}), ("tasks", THREE[:1])],
)
def test_an_invalid_argument_is_named_before_the_folder_is_made(argument: str, value: object, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=f"`{argument}`"):
        load_setup(**{"problem": "faces", "size": "small", argument: value, "out": tmp_path / "run"})
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("name", ["main", "frequency", "hyperparameters"])
def test_too_many_tasks_for_all_subsets_are_an_error_before_any_training(name: str, tmp_path: Path) -> None:
    rows = np.random.default_rng(0).normal(size=(60, 3)).astype(np.float32)
    labels = {f"task {number}": (rows[:, 0] > 0).astype(float) for number in range(13)}
    problem = Problem.from_arrays(rows, labels, [Task(name) for name in labels])
    setup = ExperimentSetup(problem, tmp_path, device="cpu")
    with pytest.raises(ValueError, match="`tasks`"):
        run_experiment(name, setup)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("everything", {}),
        ("tune", {"methods": ["mtl"]}),
        ("capacity", {"methods": ["tag"]}),
        ("tune", {"as_published": True}),
    ],
)
def test_an_unknown_experiment_or_option_is_an_error(name: str, options: dict, setup: ExperimentSetup) -> None:
    with pytest.raises(ValueError, match=r"experiment|`methods`|`as_published`"):
        run_experiment(name, setup, **options)


def test_tasks_have_the_short_names_of_the_paper(setup: ExperimentSetup) -> None:
    assert setup.short_names(setup.problem.names) == tuple(f"a{n}" for n in range(1, 10))
    assert setup.short_names() == ("a1", "a2", "a3", "a5", "a7")
    assert (setup.printed_dataset, setup.budgets, len(setup.seeds)) == ("celeba", (2, 3, 4), 2)
