"""The setup of experiments: names, sizes, folders, and resuming after an interruption."""

from pathlib import Path

import numpy as np
import pytest

from tagalong.learn import Problem, Task
from tagalong_paper import ExperimentSetup, Report, ReportTable, load_setup, run_experiment

THREE = ("5_o_Clock_Shadow", "Black_Hair", "No_Beard")


class Interrupting:
    """Progress that raises KeyboardInterrupt after a number of networks."""

    def __init__(self, after: int) -> None:
        self.left = after

    def start(self, total: int, what: str) -> None:
        pass

    def advance(self, n: int) -> None:
        self.left -= n
        if self.left < 0:
            raise KeyboardInterrupt

    def done(self) -> None:
        pass


def test_an_interrupted_experiment_resumes_to_the_same_results(tmp_path: Path) -> None:
    wanted = {"tasks": THREE, "seeds": 1, "device": "cpu"}
    whole = load_setup("faces", "small", out=tmp_path / "whole", **wanted)
    torn = load_setup("faces", "small", out=tmp_path / "torn", progress=Interrupting(2), **wanted)
    with pytest.raises(KeyboardInterrupt):
        run_experiment("partner", torn)
    again = ExperimentSetup(torn.problem, torn.out, torn.tasks, torn.seeds, torn.size, "cpu")
    report = run_experiment("partner", whole)
    assert run_experiment("partner", again).to_document() == report.to_document()
    assert [note for note in report.notes if 'columns headed "printed"' in note] == whole.printed_notes != []


def test_only_reports_with_printed_columns_explain_them(setup: ExperimentSetup) -> None:
    plain, printed = (
        Report("main", "title", [ReportTable("table", columns, [])]) for columns in (("a1",), ("printed a1",))
    )
    assert (plain.has_printed_columns, printed.has_printed_columns) == (False, True)
    assert not any("printed" in note for note in setup.notes)


def test_a_folder_belongs_to_one_problem(setup: ExperimentSetup) -> None:
    with pytest.raises(ValueError, match="contains a run on a different problem"):
        load_setup("faces", "small", out=setup.out, options={"seed": 1})


def test_one_error_lists_all_invalid_arguments(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="`problem` must be one of 'faces', 'celeba', 'taskonomy'") as caught:
        load_setup("mnist", "tiny", seeds=0, recipe={"rate": 1}, out=tmp_path)
    message = str(caught.value)
    for words in ("`size` must be 'small' or 'full'", "`seeds` must be a positive integer", "found rate"):
        assert words in message
    assert not list(tmp_path.iterdir())


def test_one_task_is_too_few_to_group(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="`tasks` must contain at least 2"):
        load_setup("faces", "small", tasks=THREE[:1], out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("name", ["main", "frequency", "hyperparameters"])
def test_too_many_tasks_for_all_subsets_are_an_error_before_any_training(name: str, tmp_path: Path) -> None:
    rows = np.random.default_rng(0).normal(size=(60, 3)).astype(np.float32)
    labels = {f"task {number}": (rows[:, 0] > 0).astype(float) for number in range(13)}
    problem = Problem.from_arrays(rows, labels, [Task(name) for name in labels])
    setup = ExperimentSetup(problem, tmp_path, progress=Interrupting(0), device="cpu")
    with pytest.raises(
        ValueError, match=r"`tasks` must contain at most 12 tasks, found 13; .* 8,191 networks per seed"
    ):
        run_experiment(name, setup)


def test_an_unknown_experiment_is_an_error() -> None:
    with pytest.raises(ValueError, match="`name` must be one of 'errata', 'theory', 'matrix'"):
        run_experiment("everything")


def test_tasks_have_the_short_names_of_the_paper(setup: ExperimentSetup) -> None:
    assert [setup.short_name(task) for task in setup.problem.names] == [f"a{n}" for n in range(1, 10)]
    assert setup.short_name("depth") == "depth"
    assert setup.printed_dataset == "celeba"
