"""The setup of experiments: names, folders, options, and resuming after an interruption."""

from pathlib import Path

import numpy as np
import pytest

from tagalong.learn import Problem, Task
from tagalong_paper import ExperimentSetup, load_setup, run_experiment

THREE = ("5_o_Clock_Shadow", "Black_Hair", "No_Beard")


class Interrupting:
    """Progress that raises KeyboardInterrupt after a number of networks."""

    def __init__(self, after: int) -> None:
        self.left = after

    def start(self, total: int, what: str) -> None: ...

    def advance(self, n: int) -> None:
        self.left -= n
        if self.left < 0:
            raise KeyboardInterrupt

    def done(self) -> None: ...


@pytest.mark.slow
def test_an_interrupted_experiment_resumes_to_the_same_results(tmp_path: Path) -> None:
    wanted = {"tasks": THREE, "seeds": 1, "device": "cpu"}
    whole = load_setup("faces", "small", out=tmp_path / "whole", **wanted)
    torn = load_setup("faces", "small", out=tmp_path / "torn", progress=Interrupting(2), **wanted)
    with pytest.raises(KeyboardInterrupt):
        run_experiment("partner", torn)
    again = ExperimentSetup(torn.problem, torn.out, torn.tasks, torn.seeds, torn.size, "cpu")
    assert run_experiment("partner", again).to_document() == run_experiment("partner", whole).to_document()


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
    setup = ExperimentSetup(problem, tmp_path, progress=Interrupting(0), device="cpu")
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
