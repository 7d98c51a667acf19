"""`tagalong leaderboard`."""

import json

from terminal import Terminal


def test_the_leaderboard_is_a_table_or_json(tagalong: Terminal) -> None:
    result = tagalong("leaderboard", "--tables", "nhanes", "--budgets", "2", "--seeds", "1")
    assert "nhanes: estimator" in result.out
    assert "pairs (HOA)" in result.out
    found = json.loads(tagalong("leaderboard", "--tables", "nhanes", "--budgets", "2", "--seeds", "1", "--json").out)
    assert {"estimator", "table", "pairs", "marginal", "changes", "cost"} <= set(found["leaderboard"][0])


def test_an_unknown_table_is_rejected(tagalong: Terminal) -> None:
    result = tagalong("leaderboard", "--tables", "nhanse")
    assert result.status == 2
    expected = "tagalong: --tables must be names of truth tables, found 'nhanse'; did you mean 'nhanes'?"
    assert " ".join(result.err.split()) == expected


def test_zero_seeds_are_rejected(tagalong: Terminal) -> None:
    result = tagalong("leaderboard", "--tables", "nhanes", "--seeds", "0")
    assert result.status == 2
    assert "--seeds must be a positive integer, found 0" in result.err
