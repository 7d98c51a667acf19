"""`tagalong paper`."""

import io
import json
import re
from pathlib import Path

import pytest
from rich.console import Console
from terminal import Terminal

from tagalong_paper import EXPERIMENTS, Report, ReportTable, Value
from tagalong_paper.report_printing import show_report


def test_all_experiments_are_listed(tagalong: Terminal) -> None:
    result = tagalong("paper")
    assert result.status == 0
    assert result.out.startswith("tagalong paper selection")
    listed = [line.split()[2] for line in result.out.splitlines()]
    assert listed == [experiment.name for experiment in EXPERIMENTS]
    assert max(map(len, result.out.splitlines())) <= 110


def test_selection_shows_the_printed_and_the_best_groupings(tagalong: Terminal) -> None:
    out = tagalong("paper", "selection").out
    assert (
        "CelebA, TAG\n"
        "budget  printed                    total  best                         total\n"
        "   * 2  a1 a7                   -903.081  a1 a7                     -894.976\n"
        "        a2 a3 a4 a5 a6 a8 a9              a2 a3 a4 a5 a6 a8 a9 +a7\n"
    ) in out
    assert "the printed networks score -903.081, the best -894.976: a7 also helps a2, a3, a4, a5, a6, a8, a9." in out
    assert "by its score, d would be served from {d, s} (0.4136), but the table serves it from {d, n} (0.2914)" in out
    assert "the total test result of 0.5246 becomes 0.5331." in out
    assert "14 of 15 printed groupings are proven to be the unique optimum." in out
    assert out.count("\n* ") == 2


@pytest.mark.parametrize("width", ["80", "120"])
def test_tables_of_selection_fit_the_terminal(tagalong: Terminal, monkeypatch: pytest.MonkeyPatch, width: str) -> None:
    monkeypatch.setenv("COLUMNS", width)
    lines = tagalong("paper", "selection").out.splitlines()
    tables = [line for line in lines if line.startswith((" ", "budget"))]
    assert max(map(len, tables)) <= 80
    assert not any(line.endswith(" ") for line in lines)


def test_selection_prints_json(tagalong: Terminal) -> None:
    found = json.loads(tagalong("paper", "selection", "--json").out)["selections"]
    assert len(found) == 15
    assert [(one["dataset"], one["method"], one["budget"]) for one in found if not one["same"]] == [
        ("CelebA", "TAG", 2)
    ]
    assert all(one["best"]["status"] == "optimal" and one["best"]["unique"] for one in found)


def test_errata_and_theory_run_without_training(tagalong: Terminal, tmp_path: Path) -> None:
    out = tagalong("paper", "errata").out
    assert "* where: CelebA, STL; printed: total 49.99; found: 50.96; why: the sum of the printed columns\n" in out
    found = json.loads(tagalong("paper", "theory", "--json", "--out", str(tmp_path / "theory")).out)
    assert [claim["reproduced"] for claim in found["claims"]] == ["yes", "yes", "no", "no"]
    assert (tmp_path / "theory" / "theory-counterexample.html").exists()


@pytest.mark.parametrize("name", ["selection", "errata"])
def test_experiments_without_training_write_files_only_with_out(tagalong: Terminal, tmp_path: Path, name: str) -> None:
    out = tmp_path / name
    shown = tagalong("paper", name, "--out", str(out)).out
    assert shown.endswith(f"{out}: {name}.json\n")  # there is nothing to resume
    assert json.loads((out / f"{name}.json").read_text()) == json.loads(tagalong("paper", name, "--json").out)
    (tmp_path / "file").write_text("")
    assert "--out must be a folder" in tagalong.error_of("paper", name, "--out", str(tmp_path / "file"))


def test_an_experiment_trains_prints_its_report_and_resumes(tagalong: Terminal, tmp_path: Path) -> None:
    common = ("--seeds", "1", "--tasks", "Black_Hair,Goatee,No_Beard", "--out", str(tmp_path / "run"))
    first = tagalong("paper", "over-time", *common)
    assert first.status == 0
    assert "measuring affinities (lookahead): 1 of 1 networks" in first.err
    assert "Were the paper's claims reproduced?" in first.out
    assert "over-time.json, over-time.html; another run continues from here" in first.out
    assert 'columns headed "printed"' not in first.out  # it has none
    again = tagalong("paper", "over-time", *common)
    assert (again.out, again.err) == (first.out, "")
    found = json.loads(tagalong("paper", "over-time", "--json", *common).out)
    assert found["experiment"] == "over-time"


def test_no_number_of_a_wide_table_is_cut(tagalong: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    row = ("tag", *(Value(11.25, 0.12, served=place != 2) for place in range(9)))
    table = ReportTable("wide", ("method", *(f"a{n}" for n in range(1, 10))), [row])
    show_report(Report("main", "title", [table]))
    assert tagalong.capsys.readouterr().out.count("11.25 ± 0.12") == 9


def test_served_tasks_are_bold_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = io.StringIO()
    monkeypatch.setattr(
        "tagalong_paper.report_printing.screen", lambda: Console(file=shown, force_terminal=True, width=80)
    )
    columns = ("method", "a1", "a2")
    groups = ReportTable(
        "2 groups", columns, [("tag", Value(11.25), Value(8.5, served=False)), ("tag", None, Value(7.75))]
    )
    show_report(Report("main", "title", [groups, ReportTable("Baselines", columns, [("mtl", Value(3.5), Value(2.5))])]))
    served = re.findall(r"\x1b\[1m *([\d.]+)", shown.getvalue())
    assert served == ["11.25", "7.75"]


def test_one_error_lists_all_invalid_options(tagalong: Terminal) -> None:
    assert "--problem must be one of 'faces', 'celeba', 'taskonomy'" in tagalong.error_of(
        "paper", "main", "--problem", "mnist"
    )
    message = tagalong.error_of("paper", "tune", "--size", "huge", "--seeds", "0", "--recipe", "rate=1")
    for words in ("--size must be 'small' or 'full'", "--seeds must be a positive integer", "found rate"):
        assert words in message
    for option, value in (("recipe", "1"), ("size", "full")):
        message = tagalong.error_of("paper", "matrix", "--with", f"{option}={value}")
        assert message.endswith(f"found '{option}'; use --{option} instead")
    assert not Path("runs").exists()
    assert tagalong.error_of("paper", "everything").startswith("No such command 'everything'")


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--out", "file"], "--out must be a folder, found the file file"),
        (["--out", "file/run"], "--out must be a folder, found the file file"),
        (["--out", "locked/run"], "--out must be a writable folder, found locked, which is read-only"),
        (["--device", "meta"], "--device must be available, found 'meta'"),
        (["--executor", "cloud"], "--executor must be a known executor"),
        (["--methods", "mtl,tag"], "--methods must be one or more of 'mtl', 'uw', 'gradnorm', found 'tag'"),
        (["--methods", " ,"], "--methods must be one or more of 'mtl', 'uw', 'gradnorm', found none"),
    ],
)
def test_invalid_options_are_errors_before_anything_is_decoded(
    tagalong: Terminal, monkeypatch: pytest.MonkeyPatch, more: list[str], words: str
) -> None:
    def load(*_: object, **__: object) -> None:
        raise AssertionError("the problem was loaded")

    monkeypatch.setattr("tagalong.problems.load_problem", load)
    Path("file").touch()
    Path("locked").mkdir()
    monkeypatch.setattr("os.access", lambda path, mode: Path(path).name != "locked")  # root may write everywhere
    assert words in tagalong.error_of("paper", "capacity", "--problem", "celeba", *more)


@pytest.mark.parametrize("command", ["paper main", "run faces"])
def test_errors_name_options_as_the_user_types_them(tagalong: Terminal, command: str) -> None:
    small = (*command.split(), "--size", "small")
    assert tagalong.error_of(*small, "--with", "seed=x") == "--with seed must be an integer, found 'x'"
    message = tagalong.error_of(*small, "--executor", "processes:0")
    assert message == "workers of --executor must be a positive integer, found 0"
    assert not Path("runs").exists()


def test_the_error_for_diverging_networks_names_the_option_to_change(tagalong: Terminal, tmp_path: Path) -> None:
    wild = ("--recipe", "lr=1e30", "--tasks", "Goatee,No_Beard", "--seeds", "1", "--out", str(tmp_path / "run"))
    assert tagalong.error_of("paper", "over-time", *wild, "--quiet").endswith("diverged; lower --recipe lr")


def test_a_problem_that_does_not_fit_into_memory_is_a_one_line_error(
    tagalong: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load(*_: object, **__: object) -> None:
        raise MemoryError("Unable to allocate 112. GiB")

    monkeypatch.setattr("tagalong.problems.load_problem", load)
    assert tagalong.error_of("paper", "main") == "not enough memory: Unable to allocate 112. GiB"


def test_the_error_for_an_unavailable_problem_names_a_substitute(
    tagalong: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tagalong.problems.problem_names", lambda: ("faces",))
    message = tagalong.error_of("paper", "partner", "--problem", "celeba")
    assert message == "--problem 'celeba' is not available in this installation; use the substitute 'faces'"
