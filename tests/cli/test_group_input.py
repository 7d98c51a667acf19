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
    ("text", "named"),
    [
        ("1,2,3\n4,5,6\n7,8,9\n", "file.csv"),
        ("a b c\n1 2 3\n", "file.csv"),
        (SQUARE.replace("c,5,6,0\n", ""), "file.csv"),
        (",a,b\na,1,2\nb,1,2\nc,1,2\n", "'c'"),
        ("age,weight,ill\n31,60,no\n47,80,yes\n50,70,no\n", "tagalong run"),
        (SQUARE.replace("c,5,6,0", "c,5,6"), "file.csv, line 4"),
        (SQUARE.replace("a,b,c", "a,b,b"), "'b'"),
        (SQUARE.replace("\nb,", "\na,"), "'a', 'b'"),
        (SQUARE.replace("1", "inf"), "line 2, column 'b'"),
        (SQUARE.replace("1", '"1,5"'), "decimal separators"),
        (",a,b\na,0,1,1,5\nb,2,5,0,1\n", "decimal commas"),
        (SQUARE.replace("source", "target"), "--axis source"),
        ("", "file.csv"),
        ("source,a,b\n", "file.csv"),
    ],
)
def test_square_tables_are_checked(tagalong: Terminal, text: str, named: str) -> None:
    Path("file.csv").write_text(text, encoding="utf-8")
    assert named in tagalong.error_of("group", "file.csv", "--budget", "2")


@pytest.mark.parametrize("cell", ["", "n/a", "nan"])
def test_an_empty_cell_of_a_square_table_is_an_unmeasured_pair(tagalong: Terminal, cell: str) -> None:
    Path("file.csv").write_text(SQUARE.replace("1", cell), encoding="utf-8")
    status, out, _ = tagalong("group", "file.csv", "--budget", "2", "--json")
    assert status == 0
    assert json.loads(out)["unmeasured"] == pytest.approx(1 / 6)


def test_tasks_without_measured_pairs_are_left_out(tagalong: Terminal) -> None:
    Path("file.csv").write_text(",a,b,c\na,,1,\nb,2,,\nc,,,\n")
    status, out, error = tagalong(
        "group", "file.csv", "--cost", "1", "--max-total-cost", "3", "--explain", "all", "--json"
    )
    assert (status, json.loads(out)["unplaced"]) == (0, ["c"])
    assert "'c'" in error
    assert len(error.splitlines()) == 1
    status, out, error = tagalong("group", "file.csv", "--budget", "1", "--place-unmeasured", "--json")
    assert (status, json.loads(out)["groups"][0]["serves"], error) == (0, ["a", "b", "c"], "")


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("group,a,b\n", "file.csv"),
        (RESULTS + "a+c,1,2\n", "'a+c'"),
        (RESULTS + "a+a,1,\n", "line 5"),
        (RESULTS.replace("3", "3,0"), "line 4"),
        (RESULTS.replace("3", "three"), "line 4, column 'a'"),
        (RESULTS.replace("3", "-inf"), "line 4, column 'a'"),
        (RESULTS + "b+a,1,2\n", "only once"),
        (RESULTS.replace("a,1,", "a,1,9"), "'b'"),
        (RESULTS.replace("group,a,b", "group,a,a"), "'a'"),
        ("group,a,b,cost\na+b,1,2,0\n", "{a, b}"),
        ("group,a,b,cost\na+b,1,2,\n", "line 2"),
        ("group,a,b\na+b,1,\n", "'b'"),
    ],
)
def test_results_are_checked(tagalong: Terminal, text: str, named: str) -> None:
    Path("file.csv").write_text(text, encoding="utf-8")
    assert named in tagalong.error_of("group", "file.csv", "--budget", "1")


@pytest.mark.parametrize(
    ("document", "named"),
    [
        ({}, "format"),
        ([], "format"),
        ({"format": "tagalong-affinity"}, "version"),
    ],
)
def test_documents_are_checked(tagalong: Terminal, document: object, named: str) -> None:
    Path("file.json").write_text(json.dumps(document))
    assert named in tagalong.error_of("group", "file.json", "--budget", "1")


@pytest.mark.parametrize("text", ["{", "[" * 100_000])
def test_json_must_be_json(tagalong: Terminal, text: str) -> None:
    Path("file.json").write_text(text)
    assert "file.json" in tagalong.error_of("group", "file.json", "--budget", "1")


def test_the_error_names_files_that_cannot_be_read(tagalong: Terminal) -> None:
    Path("folder.csv").mkdir()
    Path("binary.csv").write_bytes(bytes(range(256)))
    Path("zeros.csv").write_bytes(b"a,b\0c")
    Path("latin.csv").write_bytes("größe,a".encode("latin-1"))
    Path("grouping.json").write_text(select_groups(np.ones((2, 2)), 1).to_json())
    for name in ("none.csv", "folder.csv", "binary.csv", "zeros.csv", "latin.csv", "grouping.json"):
        assert name in tagalong.error_of("group", name, "--budget", "1")


@pytest.mark.parametrize(
    ("typed", "words"),
    [
        ("--budget -2", ["--budget", "-2"]),
        ("--budget 4", ["--budget", "--budget", "3"]),
        ("--budget 1.5", ["--budget"]),
        ("--budget inf", ["--budget"]),
        ("--budget two", ["--budget", "'two'"]),
        ("--budgets 1,x", ["--budgets", "'x'"]),
        ("--budgets 5-1", ["--budgets", "'5-1'"]),
        ("--budgets ,", ["--budgets"]),
        ("--budgets 1,2 --explain a", ["--explain"]),
        ("--budgets 1-100000000000", ["--budget"]),
        ("--budget 2 --tasks a,x", ["--tasks", "'x'"]),
        ("--budget 2 --tasks a,a", ["--tasks"]),
        ("--budget 2 --explain x", ["'x'"]),
        ("--budget 2 --objective best", ["--objective"]),
        ("--budget 2 --max-size 0", ["--max-size"]),
        ("--budget 2 --max-size 1", ["--max-size", "--must-link", "--cannot-link"]),
        ("--budget 2 --must-link a", ["--must-link"]),
        ("--budget 2 --must-link a,x", ["--must-link", "'x'"]),
        ("--budget 2 --weights a", ["--weights"]),
        ("--budget 2 --weights a=1,a=2", ["--weights"]),
        ("--budget 2 --weights a=-1", ["--weights"]),
        ("--budget 2 --cost cheap", ["--cost", "cheap"]),
        ("--budget 2 --cost -1", ["--cost"]),
        ("--budget 2 --max-cost 1", ["--max-cost", "--cost"]),
        ("--budget 2 --max-total-cost 1", ["--max-total-cost", "--cost"]),
        ("--budget 3 --cost 1+1 --max-cost 2", ["--max-cost"]),
        ("--budget 2 --time-limit 0", ["--time-limit"]),
        ("--budget 2 --seed -1", ["--seed"]),
        ("--budget 2 --resamples -1", ["--resamples"]),
        ("--budget 2 --resamples 10", ["--resamples"]),
        ("--budget 2 --average median", ["--average"]),
        ("--budget 2 --out folder", ["folder"]),
        ("--budget 2 more.csv", ["more.csv"]),
    ],
)
def test_options_are_checked(tagalong: Terminal, typed: str, words: list[str]) -> None:
    Path("a.csv").write_text(SQUARE)
    Path("folder").mkdir()
    message = tagalong.error_of("group", "a.csv", *typed.split())
    assert [word for word in words if word not in message] == []


@pytest.mark.parametrize(
    ("name", "typed", "words"),
    [
        ("c.csv", "--cost 2", "--cost"),
        ("r.csv", "--average mean", "--average"),
        ("saved.json", "--average mean", "history"),
        ("saved.json", "--axis target", "--axis"),
        ("r.csv", "--tasks b,x", "--tasks"),
    ],
)
def test_options_that_do_not_fit_the_kind_of_file_are_rejected(
    tagalong: Terminal, name: str, typed: str, words: str
) -> None:
    Path("r.csv").write_text(RESULTS)
    Path("c.csv").write_text("group,a,b,cost\na,1,,1\nb,,1,1\na+b,1,1,1\n")
    Affinity.from_matrix(np.ones((2, 2)), ["a", "b"]).save("saved.json")
    assert words in tagalong.error_of("group", name, "--budget", "1", *typed.split())
