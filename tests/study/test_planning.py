"""A plan as a table to fill in, and the verdict on a filled one."""

import csv
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from external_losses import TASKS, losses_of, rows_of, tell_all

from tagalong.affinity import Affinity
from tagalong.group import select_groups
from tagalong.study import ExternalStudy, TrainingPlan, plan, tasks_in_csv, verdict_from_csv

AFFINITY = Affinity.from_matrix([[0, 5, 0, 0], [5, 0, 0, 0], [0, 0, 0, 5], [0, 0, 5, 0]], TASKS)
LOOKAHEAD = replace(AFFINITY, settings={"estimator": "lookahead"})
CROSSED = [[0, 0, 0, 5], [0, 0, 5, 0], [0, 5, 0, 0], [5, 0, 0, 0]]
COSINE = replace(Affinity.from_matrix(CROSSED, TASKS), settings={"estimator": "cosine"})


def make_plan(methods: tuple[str, ...] = ("stl", "tag"), seeds: int = 3) -> TrainingPlan:
    return plan(AFFINITY, [2, 3], methods, seeds)


def filled_plan(
    folder: Path, methods: tuple[str, ...] = ("stl", "tag"), rows: bool = False, drop: tuple[str, ...] = ()
) -> Path:
    """Writes the table of a plan and fills it in as a user would, network by network."""
    path = make_plan(methods).to_csv(folder / "plan.csv")
    with open(path, newline="") as file:
        lines = list(csv.DictReader(file))
    for line in lines:
        tasks, seed = tuple(line["network"].split("+")), int(line["seed"])
        for part in ("val", "test"):
            line[f"{part}_loss"] = repr(losses_of(tasks, seed, part)[line["task"]])
        if rows:
            line["test_rows"] = f"{line['network']}-{seed}-{line['task']}.npy"
            np.save(path.parent / line["test_rows"], rows_of(tasks, seed, "test")[line["task"]])
    with open(path, "w", newline="") as file:
        writer = csv.DictWriter(file, [column for column in lines[0] if column not in drop], extrasaction="ignore")
        writer.writeheader()
        writer.writerows(lines)
    return path


@pytest.mark.parametrize(("methods", "rows"), [(("stl", "tag"), False), (("optimal",), True), (("hoa",), True)])
def test_a_filled_table_gives_the_verdict_of_ask_and_tell(tmp_path: Path, methods: tuple[str, ...], rows: bool) -> None:
    path = filled_plan(tmp_path, methods, rows)
    assert tasks_in_csv(path) == TASKS
    results = verdict_from_csv(path)
    study = ExternalStudy(TASKS)
    study.plan(AFFINITY, methods=methods, budgets=[2, 3])
    tell_all(study, rows=rows)
    expected = study.results()
    assert {(one.label, one.seed): (one.groups, one.val, one.test) for one in results.records} == {
        (one.label, one.seed): (one.groups, one.val, one.test) for one in expected.records
    }
    assert results.noise == expected.noise
    assert (results.verdict().row_stderr is not None) == rows
    assert (results.verdict().recommended, results.verdict().low) == (
        expected.verdict().recommended,
        expected.verdict().low,
    )


def test_one_error_names_all_missing_results(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"missing required values: val_loss of a.* and 16 more"):
        verdict_from_csv(make_plan(seeds=1).to_csv(tmp_path / "plan.csv"))
    path = filled_plan(tmp_path)
    path.write_text("\n".join(line for line in path.read_text().split("\n") if not line.startswith("c,")))
    with pytest.raises(ValueError, match=r"column 'serves' must name stl exactly once for each task, .* for c"):
        verdict_from_csv(path)


def test_the_error_names_networks_still_to_train_for_groups_that_the_table_decides(tmp_path: Path) -> None:
    path = filled_plan(tmp_path, ("hoa",))
    assert verdict_from_csv(path).verdict().worth_it  # the best groups are pairs, which are in the table
    changed = []
    for line in path.read_text().split("\n"):
        cells = line.split(",")
        if len(cells[0]) in (1, 3):  # singles and pairs; without d pairs are good, so three of them look best
            cells[5] = "1.0" if len(cells[0]) == 1 else "9.0" if "d" in cells[0] else "0.5"
        changed.append(",".join(cells))
    path.write_text("\n".join(changed))
    with pytest.raises(ValueError, match=r"missing for 3 networks: a\+b\+c \(seed 0\), a\+b\+c \(seed 1\)"):
        verdict_from_csv(path)


def test_any_table_of_results_is_accepted(tmp_path: Path) -> None:
    path = filled_plan(tmp_path, ("optimal",), drop=("serves", "decides", "val_error", "test_error"))
    results = verdict_from_csv(path, budgets=[2])
    assert {record.label for record in results.records} == {("mtl", None), ("stl", None), ("chosen", 2)}
    assert results.verdict().recommended == ("chosen", 2)
    with pytest.raises(ValueError, match="`budgets` must be a list of integers, found 3"):
        verdict_from_csv(path, budgets=3)  # type: ignore[arg-type]


HEADER = "network,seed,task,val_loss,test_loss\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("network,seed,task\nab,0,a\n", "found no val_loss, test_loss"),
        (HEADER, "at least one row"),
        (HEADER + "a,x,a,1,1\n", "line 2 must specify a network, a seed"),
        (HEADER + "a,0,a,1,1\na,0,a,1,1\n", "line 3 repeats"),
        (HEADER + "a,0,a,low,1\n", "line 2, column 'val_loss' must be a finite number or empty, found 'low'"),
        (HEADER + "a,0,a,nan,1\n", "must be a finite number"),
        (HEADER + "a,0,a,1,1\nb,0,b,1,1\n", "a network that trains all tasks \\(a, b\\)"),
        (HEADER + "a+b,0,a,1,1\na+b,0,b,1,1\nb+a,1,a,1,1\n", "a row for each task of network b\\+a \\(seed 1\\)"),
        ("network,seed,task,serves,val_loss,test_loss\na,0,a,tag:x,1,1\n", "found 'tag:x'"),
    ],
)
def test_invalid_tables_are_rejected(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "results.csv").write_text(text)
    with pytest.raises(ValueError, match=message):
        verdict_from_csv(tmp_path / "results.csv")


@pytest.mark.parametrize("given", [[LOOKAHEAD, COSINE], (COSINE, LOOKAHEAD), [AFFINITY, COSINE]])
def test_each_method_groups_by_the_affinity_of_its_estimator(given: Any) -> None:
    for methods in (["tag", "cs"], None):
        found = plan(given, [2, 3], methods).groupings
        for budget in (2, 3):
            assert found["tag", budget] == select_groups(LOOKAHEAD, budget).groups
            assert found["cs", budget] == select_groups(COSINE, budget).groups
        assert found["tag", 2] != found["cs", 2]
    assert ExternalStudy(TASKS).plan(given, budgets=[2]).methods == ("mtl", "stl", "tag", "cs")


@pytest.mark.parametrize(
    ("estimator", "method"),
    [("gradient", "tag"), ("own", "tag"), (None, "tag"), ("cosine_kernels", "cs"), ("centered_cosine", "cs")],
)
def test_an_affinity_decides_the_method_of_its_estimator(estimator: str | None, method: str) -> None:
    affinity = replace(AFFINITY, settings={} if estimator is None else {"estimator": estimator})
    assert plan(affinity, [2]).methods == ("mtl", "stl", method)
    other = "cs" if method == "tag" else "tag"
    with pytest.raises(ValueError, match=f"for '{other}', found .*; measure it, or remove '{other}'"):
        plan(affinity, [2], ["tag", "cs"])


def test_tasks_choose_among_affinities() -> None:
    assert "tag" not in plan([LOOKAHEAD, AFFINITY], [2], ["stl"]).methods
    assert plan([LOOKAHEAD, COSINE.only(TASKS[:3])], [2], tasks=TASKS[:3]).tasks == TASKS[:3]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"budgets": 3}, r"`budgets` .*; write a list such as \[2, 3\]"),
        ({"budgets": "23"}, "`budgets`"),
        ({"budgets": [0]}, "`budgets`"),
        ({"budgets": [5]}, "`budgets`"),
        ({"budgets": [], "methods": ["hoa"]}, "`budgets` must contain at least one"),
        ({"methods": "tag"}, r"`methods` .*; write a list such as \['stl', 'tag'\]"),
        ({"methods": 3}, "`methods`"),
        ({"methods": []}, "`methods` must name at least one method"),
        ({"methods": ["pcgrad"]}, "`methods`"),
        ({"seeds": 0}, "`seeds`"),
        ({"seeds": "3"}, "`seeds`"),
        ({"seeds": 2.5}, "`seeds`"),
        ({"seeds": True}, "`seeds`"),
        ({"affinity": 7}, "`affinity`"),
        (
            {"affinity": [LOOKAHEAD, AFFINITY], "methods": ["tag"]},
            "`affinity` must contain a single affinity for 'tag'",
        ),
        ({"affinity": {"hoa": AFFINITY}, "methods": ["hoa"]}, "`affinity` must only have the keys"),
        ({"affinity": {"auto": AFFINITY}, "methods": ["cs", "auto"]}, "`affinity` .* for 'cs'"),
    ],
    ids=str,
)
def test_invalid_plans_are_rejected(tmp_path: Path, given: dict[str, Any], message: str) -> None:
    study = ExternalStudy(TASKS, tmp_path / "study")
    asked = {"affinity": AFFINITY, "budgets": [2], "methods": None} | given
    for ask in (plan, study.plan):
        with pytest.raises(ValueError, match=message):
            ask(**asked)
    assert not study.out.exists()


def test_invalid_tasks_of_a_plan_are_rejected_with_all_other_problems() -> None:
    with pytest.raises(ValueError, match="several problems") as caught:
        plan(None, [0], ["tag"], 0, tasks=["a", "b"])
    assert all(name in str(caught.value) for name in ("`affinity` is required for 'tag'", "`budgets`", "`seeds`"))
    for affinity, methods, tasks, message in (
        (AFFINITY, ["tag"], ["a", "z"], "found none for 'z'"),
        ([LOOKAHEAD, COSINE.only(TASKS[:3])], None, None, "for the same tasks, found a, b, c, d and a, b, c"),
        (None, ["stl"], None, "`tasks` must name at least one task"),
        (None, ["optimal"], [f"t{number}" for number in range(13)], "8,191 networks per seed; use 'hoa'"),
    ):
        with pytest.raises(ValueError, match=message):
            plan(affinity, [2], methods, tasks=tasks)
