"""After Ctrl-C commands say what is kept and how to continue; a long search returns the best result so far."""

import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from terminal import Terminal

from tagalong.affinity import Affinity
from tagalong.group import Grouping, select_groups


@pytest.fixture
def hard_table(tmp_path: Path) -> str:
    """A table on which the solver spends some seconds."""
    path = tmp_path / "hard.csv"
    names = [f"t{i:02}" for i in range(16)]
    Affinity.from_matrix(np.random.default_rng(0).standard_normal((16, 16)), names).to_csv(path)
    return str(path)


@pytest.fixture
def ctrl_c_presses(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Presses Ctrl-C once per element, as soon as the search first asks whether to stop."""
    left: list[int] = []

    def select(*arguments: Any, stop: Callable[[], bool], **options: Any) -> Any:
        def pressed() -> bool:
            while left:
                left.pop()
                signal.raise_signal(signal.SIGINT)
            return stop()

        return select_groups(*arguments, stop=pressed, **options)

    monkeypatch.setattr("tagalong.group.select_groups", select)
    return left


def test_ctrl_c_prints_the_best_grouping_so_far(hard_table: str, tagalong: Terminal, ctrl_c_presses: list[int]) -> None:
    ctrl_c_presses.append(1)
    result = tagalong("group", hard_table, "--budget", "10", "--json")
    assert result.status == 0
    assert json.loads(result.out)["interrupted"] is True
    assert Grouping.from_json(result.out).status == "feasible"
    assert result.err == "stopping with the best result so far; press Ctrl-C again to quit immediately\n"


def test_a_second_ctrl_c_quits_at_once(hard_table: str, tagalong: Terminal, ctrl_c_presses: list[int]) -> None:
    ctrl_c_presses.extend([1, 2])
    result = tagalong("group", hard_table, "--budget", "10")
    assert (result.status, result.out) == (130, "")
    assert "tagalong: stopped; " in result.err


def test_the_signal_handler_is_restored_afterwards(
    tagalong: Terminal, hard_table: str, ctrl_c_presses: list[int]
) -> None:
    before = signal.getsignal(signal.SIGINT)
    ctrl_c_presses.append(1)
    tagalong("group", hard_table, "--budget", "10", "--quiet")
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.parametrize(
    ("command", "work"),
    [
        ("demo faces --fast --out out", "tagalong.study.Study.run"),
        ("run faces --tasks Goatee,No_Beard --out out", "tagalong.study.Study.check"),
        ("paper over-time --out out", "tagalong_paper.ExperimentSetup.open_runner"),
        ("report out", "tagalong.report.write_report"),
        ("predict out new.csv", "tagalong.study.Best.load"),
    ],
)
def test_every_command_says_how_to_continue(
    tagalong: Terminal, monkeypatch: pytest.MonkeyPatch, command: str, work: str
) -> None:
    def interrupted(*_: Any, **__: Any) -> None:
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr("tagalong.study.read_run", lambda folder: folder)
    monkeypatch.setattr(work, interrupted)
    result = tagalong(*command.split())
    assert result.status == 130
    assert result.err.startswith("tagalong: stopped; ")
    assert result.err.count("\n") == 1
