"""Invalid input of `tagalong run`: one clear message before any training, exit status 2."""

from __future__ import annotations

from collections.abc import Callable
from json import loads
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from terminal import Terminal

from tagalong.cli.messages import print_damage
from tagalong.files import damage_logger

ROWS = 60
Columns = dict[str, Any]


def columns() -> Columns:
    draw = np.random.default_rng(0)
    x, y = draw.normal(size=(2, ROWS)).round(3)
    return {"x": x, "y": y, "age": (x + y).round(3), "ill": (x > 0).astype(int)}


def write(path: str, table: Columns) -> None:
    rows = zip(*table.values(), strict=True)
    Path(path).write_text("\n".join([",".join(table), *(",".join(map(str, row)) for row in rows)]) + "\n")


def parts(table: Columns) -> Columns:
    """Adds a third class that only test rows have."""
    kinds = ["u", "v"] * (ROWS // 2 - 1) + ["w", "w"]
    return {**table, "kind": kinds, "part": ["train"] * 40 + ["val"] * 10 + ["test"] * 10}


def first(number: int) -> Callable[[Columns], Columns]:
    return lambda table: {name: column[:number] for name, column in table.items()}


def with_column(name: str, values: Any) -> Callable[[Columns], Columns]:
    return lambda table: {**table, name: values}


TABLES: dict[str, tuple[Callable[[Columns], Columns], list[str], str]] = {
    "no targets": (dict, ["--targets", ","], "--targets must name at least one column, found ','"),
    "constant": (with_column("ill", [1] * ROWS), [], "'ill' must have at least two distinct labels, found only 1"),
    "all missing": (with_column("ill", [""] * ROWS), [], "'ill' must have labels, but all 60 are missing"),
    "new class": (
        parts,
        ["--targets", "age,kind", "--split-column", "part"],
        "'w' in test, which does not occur in train",
    ),
    "text": (with_column("town", ["A", "B"] * (ROWS // 2)), [], "add it to --categorical or to --ignore"),
    "infinite": (with_column("x", ["inf", *range(1, ROWS)]), [], "column 'x' must be finite, found inf in 1 rows"),
    "one row": (first(1), [], "table.csv must have at least 10 rows for three splits, found 1"),
    "no row": (first(0), [], "table.csv must have columns and at least one row, found none"),
    "no features": (
        dict,
        ["--ignore", "x,y"],
        "--features must name at least one column, found none; --targets and --ignore together name every column",
    ),
    "two groups": (
        with_column("who", [0, 1] * (ROWS // 2)),
        ["--group-column", "who"],
        "--group-column must have at least 3 groups",
    ),
    "wrong kind": (dict, ["--kinds", "age=binary"], "'age' is binary and must have exactly two distinct labels, found"),
    "wrong error": (dict, ["--errors", "age=auroc"], "task 'age': --errors must be one of 'mae'"),
}


@pytest.mark.parametrize("case", TABLES)
def test_a_table_that_cannot_be_learnt_from_is_rejected(tagalong: Terminal, case: str) -> None:
    change, more, words = TABLES[case]
    write("table.csv", change(columns()))
    targets = [] if "--targets" in more else ["--targets", "age,ill"]
    assert words in tagalong.error_of("run", "table.csv", *targets, *more)
    assert not Path("runs").exists()


@pytest.mark.parametrize(
    "option",
    [
        *("--targets", "--features", "--ignore", "--categorical", "--kinds", "--errors", "--split-column"),
        *(
            "--group-column",
            "--features-file",
            "--unlabelled",
            "--encoder",
            "--tasks",
            "--methods",
            "--budgets",
            "--device",
            "--out",
            "-o",
        ),
    ],
)
def test_empty_options_are_rejected_by_name(tagalong: Terminal, option: str) -> None:
    write("table.csv", columns())
    for words in ([option, ""], [option, "  "], *([[f"{option}="]] if option.startswith("--") else [])):
        error = tagalong.error_of("run", "table.csv", "--targets", "age,ill", *words)
        assert error == f"{'--out' if option == '-o' else option} must not be empty (see `tagalong run --help`)"
    assert [path.name for path in Path().iterdir()] == ["table.csv"]


def test_empty_arguments_are_rejected(tagalong: Terminal) -> None:
    for command in (["run", ""], ["predict", "", "new.csv"], ["group", " ", "--budget", "2"], ["verdict", ""]):
        assert tagalong.error_of(*command) == f"arguments must not be empty (see `tagalong {command[0]} --help`)"


def test_a_table_needs_targets(tagalong: Terminal) -> None:
    write("table.csv", columns())
    assert "--targets must name the columns of table.csv" in tagalong.error_of("run", "table.csv")


def test_a_file_that_does_not_exist_is_named_with_or_without_a_suffix(tagalong: Terminal) -> None:
    Path("folder").mkdir()
    for name in ("nothing", "nothing.csv", "folder"):
        assert tagalong.error_of("run", name, "--targets", "y").startswith(f"{name} cannot be read: ")


def test_a_typing_error_is_shown_with_its_line(tagalong: Terminal) -> None:
    table = columns()
    table["x"] = ["oops" if row == 7 else x for row, x in enumerate(table["x"])]
    table["age"] = ["12 kg" if row == 9 else age for row, age in enumerate(table["age"])]
    write("table.csv", table)
    assert tagalong.error_of("run", "table.csv", "--targets", "age,ill").split("\n")[1:] == [
        "  - --targets: 'age' must be numeric, found '12 kg' in line 11; write NA where a value is missing, or pass "
        "--kinds if the labels are classes",
        "  - table.csv: column 'x' must be numeric, found 'oops' in line 9; write NA where a value is missing; if the "
        "column is not numeric, add it to --categorical or to --ignore",
    ]


def test_warnings_about_the_data_are_shown_once_before_training(tagalong: Terminal) -> None:
    table = columns()
    write("table.csv", {**table, "copy": table["age"], "id": range(ROWS)})
    short = ("--methods", "mtl", "--seeds", "1", "--recipe", "epochs=1", "--device", "cpu", "--out", "out")
    status, out, err = tagalong("run", "table.csv", "--targets", "age,ill", *short)
    assert status == 0, err
    lines = out.splitlines()
    first = next(number for number, line in enumerate(lines) if line.startswith("warning: "))
    assert lines[first].startswith("warning: feature 'copy' determines the target 'age' almost exactly")
    assert lines[first + 1].startswith("warning: feature 'id' numbers the rows")
    assert out.count("'copy'") == 1
    assert "'copy'" not in err
    status, out, err = tagalong("run", "table.csv", "--targets", "age,ill", *short, "--quiet")
    assert "'copy'" not in out
    assert err.startswith("warning: feature 'copy' determines the target 'age' almost exactly")


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--budgets", "1.5"], "--budgets must be integers (numbers of networks), found 1.5"),
        (["--budgets", "0"], "--budgets must be between 1"),
        (["--recipe", "lr=fast"], "lr must be a positive number, found 'fast'"),
        (["--recipe", "weight_decay=-1"], "weight_decay must be a non-negative number, found -1"),
        (["--recipe", "epochs=2.5"], "epochs must be a positive integer, found 2.5"),
        (["--set", "tag.evry=1", "--methods", "tag"], "--set: 'tag' accepts"),
        (["--set", "hoa.size=1", "--methods", "hoa"], "--set: 'hoa' accepts no options, found size"),
        (["--set", "cs.every=1", "--methods", "tag"], "--set must only refer to methods in the comparison, found 'cs'"),
        (["--methods", ","], "--methods must name at least one method, found none"),
        (["--price-per-hour", "-1"], "--price-per-hour must be a non-negative number"),
        (["--confirm", "-1"], "--confirm must be a non-negative integer"),
        (["--budgets", "1-100000000000"], "--budgets must be at most 10,000 numbers, found '1-100000000000'"),
        (["--effort", "1000000000000000000"], "--effort must be a number of training runs (1 to 10,000)"),
        (["--passes", "0"], "--passes must be a positive integer or None, found 0"),
        (["--passes", "1", "--methods", "tag"], "--passes applies only to 'auto', which is not among --methods"),
        (["--unlabelled", "none.csv"], "none.csv"),
        (["--unlabelled", "narrow.csv"], "narrow.csv must have the same columns as the training table, found no 'y'"),
        (["--recipe", "epochs=1000000000000"], "epochs must be at most 1,000,000, found 1000000000000"),
        (["--recipe", f"batch_size={10**30}"], "batch_size must be at most 1,000,000,000,000"),
        (["--tasks", "age,wild"], "--tasks must be one of 'age', 'ill', found 'wild'"),
        (["--out", "table.csv"], "--out must be a folder, found the file table.csv"),
        (["--encoder", "tabn"], "--encoder must be 'mlp' or 'tabm', found 'tabn'"),
        (["--features-file", "nan.npy"], "--features-file must be finite, found NaN or inf in column 1 (1 rows)"),
        (["--features-file", "short.npy"], "--features-file must have 60 rows to match the table, found 59"),
        (["--features-file", "none.npy"], "--features-file must be an npy or npz file, found no file at none.npy"),
    ],
)
def test_invalid_settings_are_rejected(tagalong: Terminal, more: list[str], words: str) -> None:
    write("table.csv", columns())
    inputs = np.zeros((ROWS, 2))
    np.save("short.npy", inputs[1:])
    inputs[0, 1] = np.nan
    np.save("nan.npy", inputs)
    write("narrow.csv", {"x": columns()["x"]})
    assert words in tagalong.error_of("run", "table.csv", "--targets", "age,ill", *more)
    assert not Path("runs").exists()


def test_networks_learn_from_rows_without_labels(tagalong: Terminal) -> None:
    write("table.csv", columns())
    write("more.csv", {name: columns()[name] for name in ("x", "y")})
    more = ("--unlabelled", "more.csv", "--methods", "auto", "--passes", "1", "--effort", "3", "--budgets", "2")
    quick = ("--seeds", "1", "--recipe", "epochs=2", "--recipe", "batch_size=8", "--device", "cpu", "--json")
    result = tagalong("run", "table.csv", "--targets", "age,ill", *more, *quick)
    assert result.status == 0, result.err
    settings = loads(result.out)["settings"]
    assert settings["options"]["auto"] == {"effort": "3", "passes": 1}
    copy, other, student = (one for step in settings["decisions"]["auto"]["steps"] for one in step["trained"])
    assert (copy["kind"], other["kind"], student["kind"]) == ("copy", "copy", "student")
    assert student["effort"] > 1.5, "its epochs have more steps, since they include the rows without labels"


def test_errors_call_problems_and_runs_by_their_argument_names(tagalong: Terminal) -> None:
    assert "PROBLEM must be a known problem, found 'nhanez'; did you mean 'nhanes'?" in tagalong.error_of(
        "run", "nhanez"
    )
    assert "nowhere must be the folder of a finished run" in tagalong.error_of("predict", "nowhere", "new.csv")
    assert tagalong.error_of("demo", "birds").startswith("'birds' is not one of 'nhanes', 'molecules', 'faces'")


def test_all_budgets_of_a_table_of_results_end_at_its_number_of_tasks(tagalong: Terminal) -> None:
    lines = ["network,seed,task,val_loss,test_loss"]
    for network in ("a", "b", "a+b"):
        lines += [f"{network},{seed},{task},1,1" for seed in (0, 1) for task in network.split("+")]
    Path("filled.csv").write_text("\n".join(lines) + "\n")
    result = tagalong("verdict", "filled.csv", "--budgets", "all")
    assert result.status == 0, result.err
    assert [line.split()[1] for line in result.out.splitlines() if line.startswith("chosen")] == ["1", "2"]
    assert "must be integers" in tagalong.error_of("verdict", "filled.csv", "--budgets", "1.5")


@pytest.mark.parametrize("start", [b"PK\x03\x04", b"\xd0\xcf\x11\xe0"])
def test_the_error_names_a_workbook(tagalong: Terminal, start: bytes) -> None:
    Path("table.xlsx").write_bytes(start + bytes(100))
    assert "table.xlsx" in tagalong.error_of("run", "table.xlsx", "--targets", "age,ill")


@pytest.mark.parametrize("content", [b"x,y\n1,2\n", b"", b"PK\x03\x04 cut short"])
def test_inputs_that_are_not_an_array_are_rejected(tagalong: Terminal, content: bytes) -> None:
    write("table.csv", columns())
    Path("inputs.npz").write_bytes(content)
    message = tagalong.error_of("run", "table.csv", "--targets", "age,ill", "--features-file", "inputs.npz")
    assert "--features-file must be a numeric npy or npz file, found a different format in inputs.npz" in message


def test_the_error_for_a_diverging_training_names_the_option_to_change(tagalong: Terminal) -> None:
    write("table.csv", columns())
    wild = ("--recipe", "lr=1e30", "--recipe", "optimizer=sgd", "--recipe", "epochs=2", "--seeds", "1")
    result = tagalong("run", "table.csv", "--targets", "age,ill", "--methods", "mtl", "--quiet", *wild)
    assert result.status == 2
    assert "lower --recipe lr" in result.err


def test_a_warning_about_a_file_that_is_read_twice_is_printed_once(capsys: pytest.CaptureFixture[str]) -> None:
    with print_damage():
        for _ in range(2):
            damage_logger.warning("%s has been edited", "settings.json")
    assert capsys.readouterr().err == "tagalong: warning: settings.json has been edited\n"
