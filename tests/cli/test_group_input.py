"""Invalid input: status 2 and a clear message, never a traceback or a silently wrong result."""

import json
from pathlib import Path

import numpy as np
import pytest
from terminal import Terminal

from tagalong.affinity import Affinity
from tagalong.group import select_groups

SQUARE = "source,a,b,c\na,0,1,2\nb,3,0,4\nc,5,6,0\n"
RESULTS = "group,a,b\na,1,\nb,,2\na+b,3,4\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "1,2,3\n4,5,6\n7,8,9\n",
            "line 1 must be a header row: a label for the first column, then one task name per column, found",
        ),
        ("a,1,2\nb,3,4\n", "line 1 must be a header"),
        ("a b c\n1 2 3\n", "found one cell; are the columns separated by commas?"),
        (SQUARE.replace("c,5,6,0\n", ""), "file.csv must have 3 rows, one per column, found 2"),
        (",a,b\na,1,2\nb,1,2\nc,1,2\n", "line 4 must start with one of the column names 'a', 'b', found 'c'"),
        (
            "age,weight,ill\n31,60,no\n47,80,yes\n50,70,no\n",
            "file.csv must be a square table whose rows and columns have the same names, found 3 rows that are not "
            "named after columns; for a table with one row per example, use tagalong run",
        ),
        (SQUARE.replace("c,5,6,0", "c,5,6"), "line 4 must have 4 cells, found 3"),
        (SQUARE.replace("c,5,6,0", "c,5,6,0,1"), "line 4 must have 4 cells, found 5"),
        (SQUARE.replace("a,b,c", "a,b,b"), "line 1 must have unique column names, found 'b' more than once"),
        (SQUARE.replace("\nb,", "\na,"), "file.csv must have exactly one row for 'a', found several"),
        (SQUARE.replace("1", "inf"), "line 2, column 'b' must be a finite number or empty, found 'inf'"),
        (
            "source,a,b,c\na,0,,2\nb,n/a,0,\nc,5,nan,0\n",
            "file.csv must contain at least one measured pair of every task, found none from or onto 'b'; measure some",
        ),
        (
            SQUARE.replace("1", '"1,5"'),
            "line 2, column 'b' must be a finite number or empty, found '1,5'; if commas are decimal separators, "
            "use points instead",
        ),
        (",a,b\na,0,1,1,5\nb,2,5,0,1\n", "line 2 must have 3 cells, found 5; if commas are decimal separators"),
        (
            SQUARE.replace("source", "target"),
            "line 1: the first cell must match --axis source, found 'target'",
        ),
        ("", "file.csv is empty"),
        (" \n\n", "file.csv is empty"),
        ("source,a,b\n", "file.csv must have rows below its header, found none"),
    ],
)
def test_square_tables_are_checked(tagalong: Terminal, text: str, message: str) -> None:
    Path("file.csv").write_text(text, encoding="utf-8")
    assert message in tagalong.error_of("group", "file.csv", "--budget", "2")


@pytest.mark.parametrize("cell", ["", "n/a", "nan"])
def test_an_empty_cell_of_a_square_table_is_an_unmeasured_pair(tagalong: Terminal, cell: str) -> None:
    Path("file.csv").write_text(SQUARE.replace("1", cell), encoding="utf-8")
    status, out, _ = tagalong("group", "file.csv", "--budget", "2", "--json")
    assert status == 0
    assert json.loads(out)["unmeasured"] == pytest.approx(1 / 6)
    _, text, _ = tagalong("group", "file.csv", "--budget", "2")
    assert "17% of pairs were never measured; their scores are predictions" in text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("group,a,b\n", "file.csv must have rows below its header, found none"),
        (RESULTS + "a+c,1,2\n", "line 5 must contain task names ('a', 'b') joined by +, found 'a+c'"),
        (RESULTS + "a+a,1,\n", "line 5 must contain task names ('a', 'b') joined by +, found 'a+a'"),
        (RESULTS.replace("3", "3,0"), "line 4 must have 3 cells, found 4"),
        (RESULTS.replace("3", "three"), "line 4, column 'a' must be a finite number, found 'three'"),
        (RESULTS.replace("3", "-inf"), "line 4, column 'a' must be a finite number, found '-inf'"),
        (RESULTS.replace("3", '"3,5"'), "found '3,5'; if commas are decimal separators"),
        (
            RESULTS + "b+a,1,2\n",
            "file.csv must list each group only once, found {a, b} more than once; average the results over runs, or",
        ),
        (RESULTS.replace("a,1,", "a,1,9"), "line 2 must have results only for the tasks in 'a', found one for 'b'"),
        (RESULTS.replace("group,a,b", "group,a,a"), "line 1 must have unique column names, found 'a' more than once"),
        ("group,a,b,cost\na+b,1,2,0\n", "the cost of {a, b} must be a positive number, found 0"),
        ("group,a,b,cost\na+b,1,2,\n", "line 2, column 'cost' must be a finite number, found ''"),
        ("group,a,b\na+b,1,\n", "must have a result for every task, found none for 'b'"),
        (
            "group,task,value\na+b,a,1\na+b,a,2\na+b,b,1\n",
            "line 3 repeats the result for 'a' in 'a+b'; average repeated results",
        ),
        ("group,task,value\na,a,1\na,b,2\n", "line 3 must have a result for a task in 'a', found one for 'b'"),
    ],
)
def test_results_are_checked(tagalong: Terminal, text: str, message: str) -> None:
    Path("file.csv").write_text(text, encoding="utf-8")
    assert message in tagalong.error_of("group", "file.csv", "--budget", "1")


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({}, "must be a saved affinity, {tasks, matrix}"),
        ([], "must be a saved affinity"),
        ({"tasks": ["a"]}, "found an object with 'tasks'"),
        ([1, 2], "must be a saved affinity"),
        ({"matrix": [[1, 2], [3]]}, "the matrix must be square, found 2 rows of 1, 2 values"),
        ({"matrix": [[1, "x"], [3, 4]]}, "row 1, column 2 must be a finite number or null, found 'x'"),
        (
            {"matrix": [[1, None], [None, 4]]},
            "at least one measured pair of every task, found none from or onto '0', '1'",
        ),
        ({"tasks": ["a", "a"], "matrix": [[1, 2], [3, 4]]}, "tasks must be distinct, found 'a' more than once"),
        ({"tasks": ["a"], "matrix": [[1, 2], [3, 4]]}, "file.json: 'tasks' must contain 2 names, one per row"),
        (
            {"matrix": [[1, 2], [3, 4]], "direction": "[target][source]"},
            "file.json: 'direction' must match --axis source, found '[target][source]'",
        ),
        ({"a": {"b": 1}, "c": {"d": 2}}, "must have the same tasks as inner and outer keys, or groups like 'a+b'"),
        ([{"trains": ["a", "a"], "values": {}}], "entry 1: 'trains' must list each task only once"),
        (
            [{"trains": ["a"], "values": {"b": 1}}],
            "entry 1: values must contain results only for tasks in trains, found 'b'",
        ),
        ([{"trains": ["a"]}], "entry 1: 'values' must map each task to its result, found None"),
        ([{"trains": [1], "values": {}}], "entry 1: 'trains' must be a list of names"),
        ([{"trains": ["a"], "values": {"a": "x"}}], "the result of 'a' in {a} must be a finite number, found 'x'"),
        ({"format": "tagalong-affinity"}, "must have version 1, found None"),
    ],
)
def test_documents_are_checked(tagalong: Terminal, document: object, message: str) -> None:
    Path("file.json").write_text(json.dumps(document))
    assert message in tagalong.error_of("group", "file.json", "--budget", "1")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is not valid JSON"),
        ('{"a": {"a": 1}, "a": {"a": 2}}', "file.json must contain each name only once, found 'a' more than once"),
        ('{"matrix": [[NaN]]}', "file.json must contain only finite numbers or null, found NaN"),
        ('{"matrix": [[Infinity]]}', "file.json must contain only finite numbers or null, found Infinity"),
        ("[" * 100_000, "is not valid JSON"),
    ],
)
def test_json_must_be_json(tagalong: Terminal, text: str, message: str) -> None:
    Path("file.json").write_text(text)
    assert message in tagalong.error_of("group", "file.json", "--budget", "1")


def test_the_error_names_files_that_cannot_be_read(tagalong: Terminal) -> None:
    Path("folder.csv").mkdir()
    Path("binary.csv").write_bytes(bytes(range(256)))
    Path("zeros.csv").write_bytes(b"a,b\0c")
    Path("latin.csv").write_bytes("größe,a".encode("latin-1"))
    select_groups(np.ones((2, 2)), 1).to_json()
    Path("grouping.json").write_text(select_groups(np.ones((2, 2)), 1).to_json())
    for name, message in [
        ("none.csv", "none.csv does not exist"),
        ("folder.csv", "folder.csv must be a file, found a folder; specify a file in it"),
        ("binary.csv", "binary.csv is not a text file"),
        ("zeros.csv", "zeros.csv is not a text file"),
        ("latin.csv", "latin.csv must have rows below its header, found none"),
        ("grouping.json", "must contain scores, found a grouping; to compare it with the best grouping, pass it with"),
    ]:
        assert message in tagalong.error_of("group", name, "--budget", "1")


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        ("--budget 0", "--budget must be positive, found 0; 1 means one network for all tasks"),
        ("--budget -2", "--budget must be positive, found -2"),
        ("--budget 4", "--budget must be at most the number of tasks (3), found 4"),
        ("--budget 1.5", "--budget must be an integer (the number of networks), found 1.5; pass --cost"),
        ("--budget inf", "--budget must be finite, found inf; there are 3 tasks"),
        ("--budget two", "--budget must be a number, found 'two'"),
        ("--budget 2 --budgets 1,2", "--budget and --budgets cannot be used together"),
        ("", "--budget or --budgets is required; for example --budget 3 or --budgets 1-5"),
        ("--budgets 1,x", "--budgets must be 'all', or a list of numbers or ranges (e.g. 1,2,3 or 1-5), found 'x'"),
        ("--budgets 5-1", "--budgets must be 'all', or a list of numbers or ranges (e.g. 1,2,3 or 1-5), found '5-1'"),
        ("--budgets ,", "found none"),
        (
            "--budgets all --cost 2",
            "--budgets all cannot be used with costs; list total costs instead, for example --budgets 1,2.5,4",
        ),
        ("--budgets 1-9", "--budget must be at most the number of tasks (3), found 4"),
        ("--budgets 1,2 --explain a", "--compare, --explain and --together require a single grouping"),
        ("--budgets 1,2 --together", "require a single grouping"),
        ("--budget 2 --tasks a,x", "--tasks must contain only known tasks ('a', 'b', 'c'), found 'x'"),
        ("--budget 2 --tasks a,a", "--tasks must be distinct"),
        ("--budget 2 --tasks ,", "--tasks must name at least one task"),
        ("--budget 2 --explain x", "--explain must be one of 'a', 'b', 'c', or 'all', found 'x'"),
        ("--budget 2 --objective best", "--objective: 'best' is not one of 'max', 'min'"),
        ("--budget 2 --solver magic", "--solver: 'magic' is not one of"),
        ("--budget 2 --max-size 0", "--max-size must be a positive integer, found 0"),
        ("--budget 2 --max-size 1", "no budget is large enough, so check --max-size, --must-link, --cannot-link"),
        ("--budget 1 --max-size 2", "the smallest feasible budget is 2"),
        ("--budget 2 --max-size x", "--max-size must be an integer, found 'x'"),
        ("--budget 2 --must-link a", "--must-link must list two or more names (e.g. age,income), found 'a'"),
        ("--budget 2 --must-link a,x", "--must-link must contain only known tasks ('a', 'b', 'c'), found 'x'"),
        ("--budget 3 --must-link a,b --cannot-link a,b", "no budget is large enough"),
        ("--budget 1 --cannot-link a,b", "the smallest feasible budget is 2"),
        (
            "--budget 2 --weights a",
            "--weights must be comma-separated TASK=WEIGHT pairs (e.g. age=2,income=0.5), found 'a'",
        ),
        ("--budget 2 --weights a=1,a=2", "--weights must name each task only once, found 'a' twice"),
        ("--budget 2 --weights x=1", "--weights must contain only known tasks ('a', 'b', 'c'), found 'x'"),
        ("--budget 2 --weights a=-1", "--weights must contain only positive numbers, found -1 for 'a'"),
        ("--budget 2 --cost cheap", "--cost must be a number, 'half-single', ENCODER+HEAD (e.g. 10+0.5), or a file"),
        ("--budget 2 --cost -1", "--cost must be a positive number"),
        ("--budget 2 --max-cost 1", "--max-cost requires --cost"),
        (
            "--budget 9 --cost 1+1 --max-cost 2",
            "--max-cost of 2 leaves some tasks unserved; the smallest feasible value is 3",
        ),
        ("--budget 2 --time-limit 0", "--time-limit must be a positive number of seconds, found 0"),
        ("--budget 2 --seed -1", "--seed must be a non-negative integer, found -1"),
        ("--budget 2 --resamples -1", "--resamples must be a non-negative integer, found -1"),
        ("--budgets 1-100000000000", "--budgets must be at most 10,000 numbers, found '1-100000000000'"),
        ("--budgets 1-10000", "and 9,947 more"),
        (
            "--budget 2 --average median",
            "--average requires an affinity that was saved with its history, found a square table",
        ),
        ("--budget 2 --out best.txt", "--out must end in .json, .yaml or .yml, found 'best.txt'"),
        ("--budget 2 --bugdet 3", "No such option: --bugdet"),
        ("--budget 2 more.csv", "Got unexpected extra argument"),
    ],
)
def test_options_are_checked(tagalong: Terminal, typed: str, message: str) -> None:
    Path("a.csv").write_text(SQUARE)
    assert message in tagalong.error_of("group", "a.csv", *typed.split())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("group,cost\na+b,1\nb+a,2\n", "line 3 repeats the cost of 'b+a'; list each group only once"),
        ("a+b,1,2\n", "line 1 must have 2 cells, found 3"),
        ("a+x,1\n", "line 1 must be task names ('a', 'b', 'c') joined by +, or a number of tasks, found 'a+x'"),
        ("a+b,free\n", "line 1 must have a positive cost, found 'free'"),
        ("group,cost\n", "costs.csv must have rows below its header, found none"),
        ("[1]", "must be a mapping {group: cost}, found a list"),
    ],
)
def test_files_of_costs_are_checked(tagalong: Terminal, text: str, message: str) -> None:
    Path("a.csv").write_text(SQUARE)
    Path("costs.csv").write_text(text)
    assert message in tagalong.error_of("group", "a.csv", "--budget", "2", "--cost", "costs.csv")


def test_options_that_do_not_fit_the_kind_of_file_are_rejected(tagalong: Terminal) -> None:
    Path("r.csv").write_text(RESULTS)
    Path("c.csv").write_text("group,a,b,cost\na,1,,1\nb,,1,1\na+b,1,1,1\n")
    Affinity.from_matrix(np.ones((2, 2)), ["a", "b"]).save("saved.json")
    for name, typed, message in [
        ("c.csv", "--cost 2", "--cost cannot be combined with candidates, which have their own costs"),
        ("r.csv", "--average mean", "--average requires an affinity that was saved with its history"),
        ("saved.json", "--average mean", "requires a history of measured steps, but this affinity has none"),
        ("saved.json", "--axis target", "--axis must be omitted"),
        ("r.csv", "--tasks b,x", "--tasks must contain only known tasks ('a', 'b'), found 'x'"),
    ]:
        assert message in tagalong.error_of("group", name, "--budget", "1", *typed.split())


def test_one_error_lists_all_problems(tagalong: Terminal) -> None:
    Path("a.csv").write_text(SQUARE)
    message = tagalong.error_of("group", "a.csv", "--budget", "9", "--must-link", "a,x", "--weights", "y=1")
    assert message.splitlines()[0] == "several problems:"
    assert [line.split()[1].rstrip(":") for line in message.splitlines()[1:]] == [
        "--budget",
        "--must-link",
        "--weights",
    ]


def test_a_folder_cannot_be_overwritten(tagalong: Terminal) -> None:
    Path("a.csv").write_text(SQUARE)
    Path("best.json").mkdir()
    assert error_of_saving(tagalong) == "best.json is a folder; specify a file in it"


def error_of_saving(tagalong: Terminal) -> str:
    status, _, err = tagalong("group", "a.csv", "--budget", "2", "--out", "best.json")
    assert status == 2
    return err.removeprefix("tagalong: ").rstrip("\n")


def test_resamples_that_would_take_days_are_rejected(tagalong: Terminal) -> None:
    Affinity.from_history(np.zeros((2, 2, 2)), ["a", "b"]).save("a.json")
    message = tagalong.error_of("group", "a.json", "--budget", "1", "--resamples", "1000000000")
    assert message.startswith("--resamples must be at most 100,000 for 2 tasks")
