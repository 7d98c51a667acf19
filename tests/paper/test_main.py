"""The main comparison at small size: what must hold whatever the data."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tagalong.study import Record, Results
from tagalong_paper import ExperimentSetup, Report
from tagalong_paper.experiment_setup import totals_by_method
from tagalong_paper.experiments import main

pytestmark = pytest.mark.slow

Reports = Callable[..., Report]
GROUPING = ("random", "cs", "hoa", "tag", "optimal", "oracle")


@pytest.fixture(scope="module")
def records(report: Reports, setup: ExperimentSetup) -> list[Record]:
    report("main")
    return list(Results.load(setup.out / "main-results.json").records)


def test_no_grouping_of_plain_networks_beats_the_best_by_the_same_measure(
    records: list[Record], setup: ExperimentSetup
) -> None:
    mtl = {record.seed: record for record in records if record.method == "mtl"}
    changes: dict[Any, list[float]] = {}
    for record in records:
        together = mtl[record.seed].val
        change = np.mean([score.loss / together[task].loss - 1 for task, score in record.val.items()])
        changes.setdefault((record.method, record.budget), []).append(float(change))
    totals = totals_by_method(setup.chosen, records)
    for k in setup.budgets:
        for other in [("mtl", None), *((method, k) for method in GROUPING)]:
            assert np.mean(changes["optimal", k]) <= np.mean(changes[other]) + 1e-9, other
            assert np.mean(totals["oracle", k]) <= np.mean(totals[other]) + 1e-9, other


@pytest.mark.parametrize(
    ("printed", "count", "reproduced"),
    [("celeba", 5, "not tested"), (None, 2, "not tested"), (None, 9, "no"), ("taskonomy", 5, "no")],
)
def test_the_speed_up_is_not_tested_with_fewer_tasks_than_in_the_paper(
    printed: str | None, count: int, reproduced: str
) -> None:
    setup: Any = SimpleNamespace(printed_dataset=printed, chosen=SimpleNamespace(names=("task",) * count))
    lines: Any = [SimpleNamespace(method=name, deciding_cost=cost) for name, cost in (("hoa", 5.0), ("tag", 2.0))]
    assert main.judge_speed(setup, lines).reproduced == reproduced
