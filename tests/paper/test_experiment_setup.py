"""Where experiments run: names, sizes, folders, and what a kill leaves."""

from pathlib import Path

import numpy as np
import pytest

from tagalong.learn import Problem, Task
from tagalong_paper import Bench, Report, Sheet, open_bench, run_experiment

THREE = ("5_o_Clock_Shadow", "Black_Hair", "No_Beard")


class Interrupting:
    """Progress that is interrupted when so many networks are finished."""

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


def test_an_interrupted_experiment_goes_on_to_the_same_results(tmp_path: Path) -> None:
    wanted = {"tasks": THREE, "seeds": 1, "device": "cpu"}
    whole = open_bench("faces", "small", out=tmp_path / "whole", **wanted)
    torn = open_bench("faces", "small", out=tmp_path / "torn", progress=Interrupting(2), **wanted)
    with pytest.raises(KeyboardInterrupt):
        run_experiment("partner", torn)
    again = Bench(torn.problem, torn.out, torn.tasks, torn.seeds, torn.size, "cpu")
    report = run_experiment("partner", whole)
    assert run_experiment("partner", again).to_document() == report.to_document()
    assert [note for note in report.notes if "columns headed printed" in note] == whole.about_printed != []


def test_printed_columns_are_explained_where_there_are_some(bench: Bench) -> None:
    plain, printed = (Report("main", "title", [Sheet("table", columns, [])]) for columns in (("a1",), ("printed a1",)))
    assert (plain.holds_printed, printed.holds_printed) == (False, True)
    assert not any("printed" in note for note in bench.about)


def test_a_folder_belongs_to_one_problem(bench: Bench) -> None:
    with pytest.raises(ValueError, match="holds a run of another problem"):
        open_bench("faces", "small", out=bench.out, options={"seed": 1})


def test_what_cannot_be_meant_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="`problem` must be one of 'faces', 'celeba', 'taskonomy'") as caught:
        open_bench("mnist", "tiny", seeds=0, recipe={"rate": 1}, out=tmp_path)
    message = str(caught.value)
    for words in ("`size` must be 'small' or 'full'", "`seeds` must be a number from 1", "found rate"):
        assert words in message
    assert not list(tmp_path.iterdir())


def test_one_task_is_too_few_to_group(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="`tasks` must be 2 at least"):
        open_bench("faces", "small", tasks=THREE[:1], out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("name", ["main", "frequency", "hyperparameters"])
def test_every_subset_of_many_tasks_is_refused_before_any_training(name: str, tmp_path: Path) -> None:
    rows = np.random.default_rng(0).normal(size=(60, 3)).astype(np.float32)
    labels = {f"task {number}": (rows[:, 0] > 0).astype(float) for number in range(13)}
    problem = Problem.from_arrays(rows, labels, [Task(name) for name in labels])
    bench = Bench(problem, tmp_path, progress=Interrupting(0), device="cpu")
    with pytest.raises(ValueError, match=r"`tasks` must be 12 at most, .* found 13: 8,191 networks a seed"):
        run_experiment(name, bench)


def test_unknown_experiments_are_refused() -> None:
    with pytest.raises(ValueError, match="`name` must be one of 'errata', 'theory', 'matrix'"):
        run_experiment("everything")


def test_tasks_have_the_paper_s_names(bench: Bench) -> None:
    assert [bench.short(task) for task in bench.problem.names] == [f"a{n}" for n in range(1, 10)]
    assert bench.short("depth") == "depth"
    assert bench.printed == "celeba"
