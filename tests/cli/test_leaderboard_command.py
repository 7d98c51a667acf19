"""`tagalong leaderboard`."""

import json

from terminal import Terminal


def test_the_leaderboard_is_a_table_or_json(tagalong: Terminal) -> None:
    shown = tagalong("leaderboard", "--tables", "nhanes", "--budgets", "2", "--seeds", "1")
    assert "nhanes: estimator" in shown.out
    assert "pairs (HOA)" in shown.out
    found = json.loads(tagalong("leaderboard", "--tables", "nhanes", "--budgets", "2", "--seeds", "1", "--json").out)
    assert {"estimator", "table", "pairs", "marginal", "changes", "cost"} <= set(found["leaderboard"][0])


def test_an_unknown_table_is_refused(tagalong: Terminal) -> None:
    shown = tagalong("leaderboard", "--tables", "nhanse")
    assert shown.status == 2
    assert "did you mean 'nhanes'?" in shown.err


def test_no_seeds_are_refused(tagalong: Terminal) -> None:
    shown = tagalong("leaderboard", "--tables", "nhanes", "--seeds", "0")
    assert shown.status == 2
    assert "--seeds must be a positive integer, found 0" in shown.err
