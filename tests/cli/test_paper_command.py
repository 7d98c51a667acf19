"""`tagalong paper`."""

import json
from pathlib import Path

import pytest
from terminal import Terminal

from tagalong_paper import EXPERIMENTS, Report, ReportTable, Value
from tagalong_paper.commands import show_report


def test_all_experiments_are_listed(tagalong: Terminal) -> None:
    result = tagalong("paper")
    assert result.status == 0
    listed = [line.split()[2] for line in result.out.splitlines()]
    assert listed == [experiment.name for experiment in EXPERIMENTS]


def test_selection_compares_the_printed_groupings_with_the_best_ones(tagalong: Terminal) -> None:
    out = tagalong("paper", "selection").out
    assert out.count("\n* yes: ") == 13
    assert out.count("\n* no: ") == 2
    assert "the printed networks score -903.081, the best -894.976: a7 also helps a2, a3, a4, a5, a6, a8, a9." in out
    compared = json.loads(tagalong("paper", "selection", "--json").out)["selections"]
    assert len(compared) == 15
    assert [(one["dataset"], one["method"], one["budget"]) for one in compared if not one["same"]] == [
        ("CelebA", "TAG", 2)
    ]


@pytest.mark.parametrize("name", ["selection", "errata", "theory"])
def test_experiments_without_training_write_files_only_with_out(tagalong: Terminal, tmp_path: Path, name: str) -> None:
    out = tmp_path / name
    assert f"{out}: {name}.json" in tagalong("paper", name, "--out", str(out)).out
    assert json.loads((out / f"{name}.json").read_text()) == json.loads(tagalong("paper", name, "--json").out)
    (tmp_path / "file").write_text("")
    assert "file" in tagalong.error_of("paper", name, "--out", str(tmp_path / "file"))
    assert name in tagalong.error_of("paper", name, "--seeds", "3")


def test_an_experiment_trains_prints_its_report_and_resumes(tagalong: Terminal, tmp_path: Path) -> None:
    common = ("--seeds", "1", "--tasks", "Black_Hair,Goatee,No_Beard", "--out", str(tmp_path / "run"))
    first = tagalong("paper", "over-time", *common)
    assert first.status == 0
    assert "measuring affinities (lookahead): 1 of 1 networks" in first.err
    assert 'columns headed "printed"' not in first.out  # it has none
    again = tagalong("paper", "over-time", *common)
    assert (again.out, again.err) == (first.out, "")
    assert json.loads(tagalong("paper", "over-time", "--json", *common).out)["experiment"] == "over-time"


def test_no_number_of_a_wide_table_is_cut(tagalong: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    row = ("tag", *(Value(11.25, 0.12, served=place != 2) for place in range(9)))
    table = ReportTable("wide", ("method", *(f"a{n}" for n in range(1, 10))), [row])
    show_report(Report("main", "title", [table]))
    assert tagalong.capsys.readouterr().out.count("11.25 ± 0.12") == 9


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--problem", "mnist"], "--problem"),
        (["--size", "huge"], "--size"),
        (["--seeds", "0"], "--seeds"),
        (["--recipe", "rate=1"], "rate"),
        (["--with", "seed=x"], "seed"),
        (["--out", "file/run"], "file"),
        (["--device", "meta"], "--device"),
        (["--executor", "cloud"], "--executor"),
        (["--executor", "processes:0"], "workers"),
        (["--methods", "mtl,tag"], "--methods"),
        (["--methods", " ,"], "--methods"),
        (["--as-published"], "capacity"),
        (["--recipe", "lr=1e30", "--tasks", "Goatee,No_Beard", "--seeds", "1", "--quiet"], "lower --recipe lr"),
    ],
)
def test_an_error_names_the_option_as_the_user_types_it(tagalong: Terminal, options: list[str], words: str) -> None:
    Path("file").touch()
    assert words in tagalong.error_of("paper", "capacity", *options)


def test_a_problem_that_does_not_fit_into_memory_is_a_one_line_error(
    tagalong: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load(*_: object, **__: object) -> None:
        raise MemoryError("Unable to allocate 112. GiB")

    monkeypatch.setattr("tagalong_paper.experiment_setup.load_problem", load)
    assert tagalong.error_of("paper", "main") == "Unable to allocate 112. GiB"
