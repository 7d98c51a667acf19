"""A plan as a table to fill in, and the verdict on a filled one."""

import csv
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from external_losses import TASKS, losses_of, rows_of

from tagalong.affinity import Affinity
from tagalong.group import select_groups
from tagalong.study import ExternalStudy, TrainingPlan, plan, tasks_in_csv, verdict_from_csv

AFFINITY = Affinity.from_matrix([[0, 5, 0, 0], [5, 0, 0, 0], [0, 0, 0, 5], [0, 0, 5, 0]], TASKS)
LOOKAHEAD = replace(AFFINITY, settings={"estimator": "lookahead"})
CROSSED = [[0, 0, 0, 5], [0, 0, 5, 0], [0, 5, 0, 0], [5, 0, 0, 0]]
COSINE = replace(Affinity.from_matrix(CROSSED, TASKS), settings={"estimator": "cosine"})


def make_plan(methods: tuple[str, ...] = ("stl", "tag"), seeds: int = 3) -> TrainingPlan:
    return plan(AFFINITY, [2, 3], methods, seeds)


def fill_in(path: Path, rows: bool = False, drop: tuple[str, ...] = ()) -> None:
    """Fills in the table as a user would, network by network."""
    with open(path, newline="") as file:
        lines = list(csv.DictReader(file))
    for line in lines:
        tasks, seed = tuple(line["network"].split("+")), int(line["seed"])
        for part in ("val", "test"):
            line[f"{part}_loss"] = repr(losses_of(tasks, seed, part)[line["task"]])
        if rows:
            line["test_rows"] = f"{line['network']}-{seed}-{line['task']}.npy"
            np.save(path.parent / line["test_rows"], rows_of(tasks, seed, "test")[line["task"]])
    columns = [column for column in lines[0] if column not in drop]
    with open(path, "w", newline="") as file:
        writer = csv.DictWriter(file, columns, extrasaction="ignore")
        writer.writeheader()
        writer.writerows(lines)


def tell_all(study: ExternalStudy, rows: bool = False) -> ExternalStudy:
    while (network := study.ask()) is not None:
        tasks, seed = network
        more = {"rows": rows_of(tasks, seed, "test")} if rows else {}
        study.tell(tasks, seed, val=losses_of(tasks, seed, "val"), test=losses_of(tasks, seed, "test"), **more)
    return study


@pytest.mark.parametrize("rows", [False, True])
@pytest.mark.parametrize("methods", [("stl", "tag"), ("optimal",), ("stl", "tag", "optimal")])
def test_a_filled_table_gives_the_verdict_of_ask_and_tell(tmp_path: Path, methods: tuple[str, ...], rows: bool) -> None:
    path = make_plan(methods).to_csv(tmp_path / "plan.csv")
    fill_in(path, rows)
    assert tasks_in_csv(path) == TASKS
    results = verdict_from_csv(path)
    study = ExternalStudy(TASKS)
    study.plan(AFFINITY, methods=methods, budgets=[2, 3])
    expected = tell_all(study, rows).results()
    assert results.verdict() == expected.verdict()
    assert {(one.method, one.budget, one.seed): one.groups for one in results.records} == {
        (one.method, one.budget, one.seed): one.groups for one in expected.records
    }
    assert (results.verdict().row_stderr is not None) == rows


def test_tables_saved_by_a_spreadsheet_are_read(tmp_path: Path) -> None:
    path = make_plan().to_csv(tmp_path / "plan.csv")
    fill_in(path)
    expected = verdict_from_csv(path).verdict()
    header, *lines = path.read_text().splitlines()
    semicolons = "\n".join([header, *lines]).replace(",", ";").replace(".", ",")
    variants = {
        "semicolons, decimal commas": semicolons.encode("utf-8-sig"),
        "utf-16, tabs": "\n".join([header, *lines]).replace(",", "\t").encode("utf-16"),
        "empty rows": "\n".join([header, *(line + "\n" + "," * header.count(",") for line in lines)]).encode(),
        "spaces": "\n".join([header.replace(",", " , "), *lines]).encode(),
        "blank above": ("\n\n" + "\r\n".join([header, *lines])).encode(),
    }
    for what, content in variants.items():
        path.write_bytes(content)
        assert verdict_from_csv(path).verdict() == expected, what


def test_the_table_has_a_row_per_network_seed_and_task(tmp_path: Path) -> None:
    text = make_plan().to_csv(tmp_path / "plan.csv").read_text().split("\n")
    assert text[0] == "network,seed,task,serves,decides,val_loss,test_loss,val_error,test_error"
    assert text[1] == "a+b+c+d,0,a,mtl,,,,,"
    assert "a+b,0,a,tag:2 tag:3,,,,," in text
    assert "a,2,a,stl,,,,," in text
    assert "a,0,a,,hoa:2 hoa:3,,,," in make_plan(("hoa",)).to_csv(tmp_path / "hoa.csv").read_text().split("\n")


def test_one_error_names_all_missing_results(tmp_path: Path) -> None:
    path = make_plan(seeds=1).to_csv(tmp_path / "plan.csv")
    with pytest.raises(ValueError, match="is missing required values: val_loss of a") as caught:
        verdict_from_csv(path)
    assert "(seed 0) d and 16 more" in str(caught.value)
    assert "\n" not in str(caught.value)
    fill_in(path)
    path.write_text("\n".join(line for line in path.read_text().split("\n") if not line.startswith("c,0")))
    expected = "column 'serves' must name stl exactly once for each task, found a different count for c"
    with pytest.raises(ValueError, match=expected):
        verdict_from_csv(path)


def test_the_error_names_networks_still_to_train_for_groups_that_the_table_decides(tmp_path: Path) -> None:
    path = make_plan(("hoa",), seeds=2).to_csv(tmp_path / "plan.csv")
    fill_in(path)
    assert verdict_from_csv(path).verdict().worth_it  # the best groups are pairs, which are in the table
    changed = []
    for line in path.read_text().split("\n"):
        cells = line.split(",")
        if len(cells[0]) in (1, 3):  # singles and pairs; without d pairs are good, so three of them look best
            cells[5] = "1.0" if len(cells[0]) == 1 else "9.0" if "d" in cells[0] else "0.5"
        changed.append(",".join(cells))
    path.write_text("\n".join(changed))
    message = r"missing for 2 networks: a\+b\+c \(seed 0\), a\+b\+c \(seed 1\); train these networks"
    with pytest.raises(ValueError, match=message):
        verdict_from_csv(path)


def test_any_table_of_results_is_accepted(tmp_path: Path) -> None:
    path = make_plan(("optimal",)).to_csv(tmp_path / "plan.csv")
    fill_in(path, drop=("serves", "decides", "val_error", "test_error"))
    results = verdict_from_csv(path, budgets=[2])
    assert {(record.method, record.budget) for record in results.records} == {
        ("mtl", None),
        ("stl", None),
        ("chosen", 2),
    }
    assert results.verdict().recommended == ("chosen", 2)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("network,seed,task\nab,0,a\n", "found no val_loss, test_loss"),
        ("network,seed,task,val_loss,test_loss\n", "at least one row"),
        (
            "network,seed,task,val_loss,test_loss\na,x,a,1,1\n",
            "line 2 must specify a network, a seed \\(a non-negative integer\\) and a task",
        ),
        (
            "network,seed,task,val_loss,test_loss\na,0,a,1,1\na,0,a,1,1\n",
            "line 3 repeats",
        ),
        (
            "network,seed,task,val_loss,test_loss\na,0,a,low,1\n",
            "line 2, column 'val_loss' must be a finite number or empty, found 'low'",
        ),
        ("network,seed,task,val_loss,test_loss\na,0,a,nan,1\n", "must be a finite number"),
        ("network,seed,task,val_loss,test_loss\na,0,a,1,1\nb,0,b,1,1\n", "a network that trains all tasks \\(a, b\\)"),
        ("network,seed,task,serves,val_loss,test_loss\na,0,a,tag:x,1,1\n", "found 'tag:x'"),
    ],
)
def test_invalid_tables_are_rejected(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "results.csv").write_text(text)
    with pytest.raises(ValueError, match=message):
        verdict_from_csv(tmp_path / "results.csv")


def test_one_error_lists_all_problems_of_a_plan() -> None:
    with pytest.raises(ValueError, match="several problems") as caught:
        plan(None, [0, 5], ["tag", "pcgrad"], 0, tasks=["a", "b"])
    message = str(caught.value)
    assert (
        "`methods` must not require balancing rules or wider networks if networks are trained elsewhere, "
        "found 'pcgrad'" in message
    )
    assert "`affinity` is required for 'tag'" in message
    assert "`budgets` must be between 1 and the number of tasks (2), found 0" in message
    assert "`budgets` must be between 1 and the number of tasks (2), found 5" in message
    assert "`seeds` must be a positive integer (3 means 0, 1, 2)" in message
    with pytest.raises(ValueError, match="found none for 'z'"):
        plan(AFFINITY, [1], ["tag"], tasks=["a", "z"])
    with pytest.raises(ValueError, match="`tasks` must name at least one task"):
        plan(None, [], ["stl"])
    with pytest.raises(ValueError, match="8,191 networks per seed; use 'hoa'"):
        plan(None, [2], ["optimal"], tasks=[f"t{number}" for number in range(13)])
    with pytest.raises(ValueError, match="`budgets` must contain at least one"):
        plan(None, [], ["hoa"], tasks=["a", "b"])


@pytest.mark.parametrize("given", [[LOOKAHEAD, COSINE], (COSINE, LOOKAHEAD), [AFFINITY, COSINE]])
def test_each_method_groups_by_the_affinity_of_its_estimator(given: Any) -> None:
    for methods in (["tag", "cs"], None):
        found = plan(given, [2, 3], methods).groupings
        for budget in (2, 3):
            assert found["tag", budget] == select_groups(LOOKAHEAD, budget).groups
            assert found["cs", budget] == select_groups(COSINE, budget).groups
        assert found["tag", 2] != found["cs", 2]


@pytest.mark.parametrize(
    ("estimator", "method"),
    [
        ("lookahead", "tag"),
        ("gradient", "tag"),
        ("own", "tag"),
        (None, "tag"),
        ("cosine", "cs"),
        ("cosine_kernels", "cs"),
        ("centered_cosine", "cs"),
    ],
)
def test_an_affinity_decides_the_method_of_its_estimator(estimator: str | None, method: str) -> None:
    affinity = replace(AFFINITY, settings={} if estimator is None else {"estimator": estimator})
    assert plan(affinity, [2]).methods == ("mtl", "stl", method)
    other = "cs" if method == "tag" else "tag"
    with pytest.raises(ValueError, match=f"for '{other}', found .*; measure it, or remove '{other}'") as caught:
        plan(affinity, [2], ["tag", "cs"])
    assert "\n" not in str(caught.value)


def test_affinities_may_be_given_for_each_method_or_one_for_all() -> None:
    with pytest.raises(
        ValueError,
        match=r"^`affinity` must include a measurement with the estimator 'cosine', 'cosine_kernels' or "
        r"'centered_cosine' for 'cs', found 'lookahead'; measure it, or remove 'cs'$",
    ):
        plan(LOOKAHEAD, [2], ["tag", "cs"])
    with pytest.raises(
        ValueError,
        match=r"^`affinity` must contain a single affinity for 'tag', found 2: 'lookahead', one without an estimator; "
        r"choose one$",
    ):
        plan([LOOKAHEAD, AFFINITY], [2], ["tag"])
    assert "tag" not in plan([LOOKAHEAD, AFFINITY], [2], ["stl"]).methods
    with pytest.raises(ValueError, match="for the same tasks, found a, b, c, d and a, b, c"):
        plan([LOOKAHEAD, COSINE.only(TASKS[:3])], [2])
    assert plan([LOOKAHEAD, COSINE.only(TASKS[:3])], [2], tasks=TASKS[:3]).tasks == TASKS[:3]
    with pytest.raises(
        ValueError, match="`affinity` must be an Affinity, a list or mapping of Affinities, or None, found 7"
    ):
        plan(7, [2])  # type: ignore[arg-type]


def test_a_study_takes_several_affinities(tmp_path: Path) -> None:
    assert ExternalStudy(TASKS, tmp_path).plan([LOOKAHEAD, COSINE], budgets=[2]).methods == ("mtl", "stl", "tag", "cs")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"budgets": 3}, "`budgets` must be a list of integers, found 3; write a list such as [2, 3]"),
        ({"budgets": "23"}, "`budgets` must be a list of integers, found '23'; write a list such as [2, 3]"),
        ({"methods": "tag"}, "`methods` must be a list of names, found 'tag'; write a list such as ['stl', 'tag']"),
        ({"methods": 3}, "`methods` must be a list of names, found 3; write a list such as ['stl', 'tag']"),
        (
            {"seeds": "3"},
            "`seeds` must be a positive integer (3 means 0, 1, 2) or a list of distinct non-negative integers, "
            "found '3'",
        ),
        (
            {"seeds": 2.5},
            "`seeds` must be a positive integer (3 means 0, 1, 2) or a list of distinct non-negative integers, "
            "found 2.5",
        ),
        (
            {"seeds": True},
            "`seeds` must be a positive integer (3 means 0, 1, 2) or a list of distinct non-negative integers, "
            "found True",
        ),
    ],
)
def test_wrong_types_are_rejected_with_one_message(tmp_path: Path, given: dict[str, Any], message: str) -> None:
    study = ExternalStudy(TASKS, tmp_path / "study")
    for ask in (plan, study.plan):
        with pytest.raises(ValueError, match=r"^`\w+` must be") as caught:
            ask(AFFINITY, **{"budgets": [2], **given})
        assert str(caught.value) == message
    assert not study.out.exists()


def test_a_table_s_budgets_are_a_list(tmp_path: Path) -> None:
    path = make_plan(("optimal",)).to_csv(tmp_path / "plan.csv")
    fill_in(path, drop=("serves", "decides"))
    with pytest.raises(ValueError, match="`budgets` must be a list of integers, found 3"):
        verdict_from_csv(path, budgets=3)  # type: ignore[arg-type]


def test_a_table_cannot_hold_task_names_with_a_plus(tmp_path: Path) -> None:
    affinity = Affinity.from_matrix(np.eye(3), ["a+b", "a", "b"])
    with pytest.raises(ValueError, match=r"task names must not contain '\+', found 'a\+b'; rename them"):
        plan(affinity, [2], methods=["stl"], seeds=1).to_csv(tmp_path / "plan.csv")


def test_a_plan_without_methods_is_an_error() -> None:
    with pytest.raises(ValueError, match="`methods` must name at least one method, found none"):
        plan(Affinity.from_matrix(np.eye(2), ["a", "b"]), [2], methods=[])
