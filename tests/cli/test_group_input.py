"""Wrong input: status 2 and a clear sentence, never a traceback or a silent wrong answer."""

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
        ("1,2,3\n4,5,6\n7,8,9\n", "line 1: expected a header line: a first cell, then one task name per column, found"),
        ("a,1,2\nb,3,4\n", "line 1: expected a header line"),
        ("a b c\n1 2 3\n", "found one cell; are the columns separated by commas?"),
        (SQUARE.replace("c,5,6,0\n", ""), "expected as many rows as columns, found 2 and 3"),
        (",a,b\na,1,2\nb,1,2\nc,1,2\n", "line 4: expected as row name one of the column names 'a', 'b', found 'c'"),
        (SQUARE.replace("c,5,6,0", "c,5,6"), "line 4: expected 3 values, found 2"),
        (SQUARE.replace("c,5,6,0", "c,5,6,0,1"), "line 4: expected 3 values, found 4"),
        (SQUARE.replace("source,a,b,c", "source,a,b,b"), "column names must be distinct, found more than once: 'b'"),
        (SQUARE.replace("\nb,", "\na,"), "row names must be distinct, found more than once: 'a'"),
        (SQUARE.replace("1", "inf"), "line 2, column 'b': expected a finite number or nothing, found 'inf'"),
        (SQUARE.replace("1", "n/a"), "line 2, column 'b': expected a finite number or nothing, found 'n/a'"),
        (SQUARE.replace("1", ""), "file.csv must be finite, found nan from 'a' onto 'b'; measure that pair, or leave"),
        (SQUARE.replace("1", "nan"), "file.csv must be finite, found nan from 'a' onto 'b'"),
        (
            SQUARE.replace(",", ";").replace("1", "1,5"),
            "line 2, column 'b': expected a finite number or nothing, found '1,5'; if decimals are written with a "
            "comma, write them with a point",
        ),
        (",a,b\na,0,1,1,5\nb,2,5,0,1\n", "line 2: expected 2 values, found 4; if decimals are written with a comma"),
        (SQUARE.replace("source", "target"), "the first cell, 'target', says what the lines are, but they are read as"),
        ("", "file.csv is empty; expected a table (CSV) or JSON"),
        (" \n\n", "file.csv is empty"),
        ("source,a,b\n", "expected as many rows as columns, found 0 and 2"),
    ],
)
def test_square_tables_are_checked(tagalong: Terminal, text: str, message: str) -> None:
    Path("file.csv").write_text(text, encoding="utf-8")
    assert message in tagalong.refused("group", "file.csv", "--budget", "2")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("group,a,b\n", "expected a line for each group, found only a header"),
        (RESULTS + "a+c,1,2\n", "line 5: expected tasks ('a', 'b') joined by +, found 'a+c'"),
        (RESULTS + "a+a,1,\n", "line 5: expected tasks ('a', 'b') joined by +, found 'a+a'"),
        (RESULTS.replace("3", "3,0"), "line 4: expected 3 cells, found 4"),
        (RESULTS.replace("3", "three"), "line 4, column 'a': expected a finite number, found 'three'"),
        (RESULTS.replace("3", "-inf"), "line 4, column 'a': expected a finite number, found '-inf'"),
        (RESULTS.replace(",", ";").replace("3", "3,5"), "found '3,5'; if decimals are written with a comma"),
        (RESULTS + "b+a,1,2\n", "a group must be given once, found {a, b} again; take the mean over runs, or give"),
        (RESULTS.replace("a,1,", "a,1,9"), "line 2: 'a' has a result of 'b', not trained"),
        (RESULTS.replace("group,a,b", "group,a,a"), "column names must be distinct, found more than once: 'a'"),
        ("group,a,b,cost\na+b,1,2,0\n", "the cost of {a, b} must be a positive number, found 0"),
        ("group,a,b,cost\na+b,1,2,\n", "line 2, column 'cost': expected a finite number, found ''"),
        ("group,a,b\na+b,1,\n", "must serve every task, found no result for 'b'"),
        ("group,task,value\na+b,a,1\na+b,a,2\na+b,b,1\n", "the result of 'a' in 'a+b' is given twice; take the mean"),
        ("group,task,value\na,a,1\na,b,2\n", "line 3: 'a' does not train 'b'"),
    ],
)
def test_results_are_checked(tagalong: Terminal, text: str, message: str) -> None:
    Path("file.csv").write_text(text, encoding="utf-8")
    assert message in tagalong.refused("group", "file.csv", "--budget", "1")


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({}, "expected a saved affinity, {tasks, matrix}"),
        ([], "expected a saved affinity"),
        ({"tasks": ["a"]}, "found an object with 'tasks'"),
        ([1, 2], "expected a saved affinity"),
        ({"matrix": [[1, 2], [3]]}, "the matrix must be square, found 2 rows of 1, 2 values"),
        ({"matrix": [[1, "x"], [3, 4]]}, "row 1, column 2: expected a finite number or null, found 'x'"),
        ({"matrix": [[1, None], [3, 4]]}, "file.json must be finite, found nan from '0' onto '1'"),
        ({"tasks": ["a", "a"], "matrix": [[1, 2], [3, 4]]}, "tasks must be distinct, found more than once: 'a'"),
        ({"tasks": ["a"], "matrix": [[1, 2], [3, 4]]}, "file.json: tasks must name the 2 rows"),
        ({"matrix": [[1, 2], [3, 4]], "direction": "[target][source]"}, "but its rows are read as --axis source"),
        ({"a": {"b": 1}, "c": {"d": 2}}, "expected the same tasks inside and outside, or groups such as 'a+b'"),
        ([{"trains": ["a", "a"], "values": {}}], "entry 1: trains must name each task once"),
        ([{"trains": ["a"], "values": {"b": 1}}], "entry 1: values must be results of trained tasks, found 'b'"),
        ([{"trains": ["a"]}], "entry 1: values must be the result of each task, found None"),
        ([{"trains": [1], "values": {}}], "entry 1: trains must be a list of names"),
        ([{"trains": ["a"], "values": {"a": "x"}}], "the result of 'a' in {a} must be a finite number, found 'x'"),
        ({"format": "tagalong-affinity"}, "must have version 1, found None"),
    ],
)
def test_documents_are_checked(tagalong: Terminal, document: object, message: str) -> None:
    Path("file.json").write_text(json.dumps(document))
    assert message in tagalong.refused("group", "file.json", "--budget", "1")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "starts like JSON and is not"),
        ('{"a": {"a": 1}, "a": {"a": 2}}', "names must be distinct, found more than once: 'a'"),
        ('{"matrix": [[NaN]]}', "values must be finite numbers or null, found NaN"),
        ('{"matrix": [[Infinity]]}', "values must be finite numbers or null, found Infinity"),
        ("[" * 100_000, "starts like JSON and is not"),
    ],
)
def test_json_must_be_json(tagalong: Terminal, text: str, message: str) -> None:
    Path("file.json").write_text(text)
    assert message in tagalong.refused("group", "file.json", "--budget", "1")


def test_files_that_cannot_be_read_are_named(tagalong: Terminal) -> None:
    Path("folder.csv").mkdir()
    Path("binary.csv").write_bytes(bytes(range(256)))
    Path("zeros.csv").write_bytes(b"a,b\0c")
    Path("latin.csv").write_bytes("größe,a".encode("latin-1"))
    select_groups(np.ones((2, 2)), 1).to_json()
    Path("grouping.json").write_text(select_groups(np.ones((2, 2)), 1).to_json())
    for name, message in [
        ("none.csv", "none.csv: there is no such file"),
        ("folder.csv", "folder.csv is a folder; give the name of a file in it"),
        ("binary.csv", "binary.csv is not a text file"),
        ("zeros.csv", "zeros.csv is not a text file"),
        ("latin.csv", "latin.csv is not a text file; expected a table (CSV, UTF-8) or JSON"),
        ("grouping.json", "holds a grouping, not scores; to compare it with the best, give it to --compare"),
    ]:
        assert message in tagalong.refused("group", name, "--budget", "1")


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        ("--budget 0", "--budget must be positive, found 0; 1 is one network for all tasks"),
        ("--budget -2", "--budget must be positive, found -2"),
        ("--budget 4", "--budget must be from 1 to the number of tasks, 3, found 4"),
        ("--budget 1.5", "--budget must be a whole number of networks, found 1.5; or give a --cost"),
        ("--budget inf", "--budget must be positive, found inf"),
        ("--budget two", "--budget must be a number, found 'two'"),
        ("--budget 2 --budgets 1,2", "--budget and --budgets exclude each other"),
        ("", "--budget or --budgets must be given, such as --budget 3 or --budgets 1-5"),
        ("--budgets 1,x", "--budgets must be numbers and ranges such as 1,2,3 or 1-5, or all, found 'x'"),
        ("--budgets 5-1", "--budgets must be numbers and ranges such as 1,2,3 or 1-5, or all, found '5-1'"),
        ("--budgets ,", "found none"),
        ("--budgets all --cost 2", "--budgets all counts networks; where they have costs list totals, such as 1,2.5,4"),
        ("--budgets 1-9", "--budget must be from 1 to the number of tasks, 3, found 4"),
        ("--budgets 1,2 --explain a", "--compare, --explain and --together look at one grouping"),
        ("--budgets 1,2 --together", "look at one grouping"),
        ("--budget 2 --tasks a,x", "--tasks must be among 'a', 'b', 'c', found 'x'"),
        ("--budget 2 --tasks a,a", "--tasks must be distinct"),
        ("--budget 2 --tasks ,", "--tasks must name at least one task"),
        ("--budget 2 --explain x", "--explain must be among 'a', 'b', 'c' or all, found 'x'"),
        ("--budget 2 --objective best", "--objective: 'best' is not one of 'max', 'min'"),
        ("--budget 2 --solver magic", "--solver: 'magic' is not one of"),
        ("--budget 2 --max-size 0", "--max-size must be a whole number from 1, found 0"),
        ("--budget 2 --max-size 1", "no budget can: look at --max-size, --must-link, --cannot-link"),
        ("--budget 1 --max-size 2", "the smallest budget that can is 2"),
        ("--budget 2 --max-size x", "--max-size must be a whole number, found 'x'"),
        ("--budget 2 --must-link a", "--must-link must be two or more names, such as age,ill, found 'a'"),
        ("--budget 2 --must-link a,x", "--must-link must name tasks ('a', 'b', 'c'), found 'x'"),
        ("--budget 3 --must-link a,b --cannot-link a,b", "no budget can"),
        ("--budget 1 --cannot-link a,b", "the smallest budget that can is 2"),
        ("--budget 2 --weights a", "--weights must be name=number between commas, such as age=2,ill=0.5, found 'a'"),
        ("--budget 2 --weights a=1,a=2", "--weights must name each task once, found 'a' again"),
        ("--budget 2 --weights x=1", "--weights must name tasks ('a', 'b', 'c'), found 'x'"),
        ("--budget 2 --weights a=-1", "the weight of 'a' must be a positive number, found -1"),
        ("--budget 2 --cost cheap", "--cost must be a number, half-single, ENCODER+HEAD such as 10+0.5, or a file"),
        ("--budget 2 --cost -1", "--cost must be a positive number"),
        ("--budget 2 --max-cost 1", "--max-cost needs --cost"),
        ("--budget 9 --cost 1+1 --max-cost 2", "--max-cost of 2 leaves tasks unserved; the smallest that works is 3"),
        ("--budget 2 --time-limit 0", "--time-limit must be a positive number of seconds, found 0"),
        ("--budget 2 --seed -1", "--seed must be a whole number from 0, found -1"),
        ("--budget 2 --resamples -1", "--resamples must be a whole number from 0, found -1"),
        ("--budget 2 --average median", "--average needs the history of a saved affinity, found a square table"),
        ("--budget 2 --out best.txt", "--out must end in .json, .yaml or .yml, found 'best.txt'"),
        ("--budget 2 --bugdet 3", "No such option: --bugdet"),
        ("--budget 2 more.csv", "Got unexpected extra argument"),
    ],
)
def test_options_are_checked(tagalong: Terminal, typed: str, message: str) -> None:
    Path("a.csv").write_text(SQUARE)
    assert message in tagalong.refused("group", "a.csv", *typed.split())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("group,cost\na+b,1\nb+a,2\n", "line 3: the cost of 'b+a' is given twice"),
        ("a+b,1,2\n", "line 1: expected two cells, a group and its cost, found 3"),
        ("a+x,1\n", "line 1: expected tasks ('a', 'b', 'c') joined by +, or their number, found 'a+x'"),
        ("a+b,free\n", "line 1: a cost must be a positive number, found 'free'"),
        ("group,cost\n", "expected the cost of groups of 'a', 'b', 'c', found none"),
        ("[1]", "expected {group: cost}, found a list"),
    ],
)
def test_files_of_costs_are_checked(tagalong: Terminal, text: str, message: str) -> None:
    Path("a.csv").write_text(SQUARE)
    Path("costs.csv").write_text(text)
    assert message in tagalong.refused("group", "a.csv", "--budget", "2", "--cost", "costs.csv")


def test_what_does_not_fit_the_kind_is_refused(tagalong: Terminal) -> None:
    Path("r.csv").write_text(RESULTS)
    Path("c.csv").write_text("group,a,b,cost\na,1,,1\nb,,1,1\na+b,1,1,1\n")
    Affinity.from_matrix(np.ones((2, 2)), ["a", "b"]).save("saved.json")
    for name, typed, message in [
        ("c.csv", "--cost 2", "--cost must be left out: each Candidate has its own"),
        ("r.csv", "--average mean", "--average needs the history of a saved affinity"),
        ("saved.json", "--average mean", "needs the history of measured steps, and this affinity has none"),
        ("saved.json", "--axis target", "--axis must be left out"),
        ("r.csv", "--tasks b,x", "--tasks must be among 'a', 'b', found 'x'"),
    ]:
        assert message in tagalong.refused("group", name, "--budget", "1", *typed.split())


def test_all_problems_are_named_at_once(tagalong: Terminal) -> None:
    Path("a.csv").write_text(SQUARE)
    said = tagalong.refused("group", "a.csv", "--budget", "9", "--must-link", "a,x", "--weights", "y=1")
    assert said.splitlines()[0] == "several problems:"
    assert [line.split()[1].rstrip(":") for line in said.splitlines()[1:]] == ["--budget", "--must-link", "--weights"]


def test_a_folder_cannot_be_written_over(tagalong: Terminal) -> None:
    Path("a.csv").write_text(SQUARE)
    Path("best.json").mkdir()
    assert main_error(tagalong) == "best.json is a folder; give the name of a file in it"


def main_error(tagalong: Terminal) -> str:
    status, _, err = tagalong("group", "a.csv", "--budget", "2", "--out", "best.json")
    assert status == 2
    return err.removeprefix("tagalong: ").rstrip("\n")
