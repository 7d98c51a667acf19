"""A study that is killed at any moment, or started twice, gives the same results."""

import os
import shutil
import signal
import sqlite3
from multiprocessing.context import ForkServerContext
from pathlib import Path

import pytest
from killed_study import exit_status, exported_files, run_study, stored_rows

from kill_at import records_without_times, stopping_points
from tagalong.study import Results, executors

pytestmark = pytest.mark.slow

KILLS = 6


def count_networks(out: Path) -> int:
    """Returns the number of networks; opens a copy, so that rolling back a journal is left to the next study."""
    copy = shutil.copytree(out, out.with_name("copy")) if out.exists() else out
    try:
        connection = sqlite3.connect(f"file:{copy / 'run.sqlite'}?mode=rw", uri=True)
    except sqlite3.OperationalError:
        return 0
    try:
        return int(connection.execute("SELECT count(*) FROM networks").fetchone()[0])
    except sqlite3.OperationalError:  # no table yet
        return 0
    finally:
        connection.close()
        shutil.rmtree(copy)


def files_of(out: Path) -> set[Path]:
    """Returns the files and folders of a run, without what a killed process left less than an hour ago."""
    paths = {path.relative_to(out) for path in out.rglob("*")}
    return {path for path in paths if not any(".tmp-" in part for part in path.parts)}


def test_kills_at_random_file_operations_lose_and_duplicate_nothing(
    processes: ForkServerContext, tmp_path: Path
) -> None:
    clean, out, total, idle = tmp_path / "clean", tmp_path / "out", processes.Value("i"), processes.Value("i")
    assert [exit_status(processes, clean, None, number) for number in (total, idle)] == [0, 0]
    counts, networks = set(), 0
    # Kills throughout the study, the last of them where it writes its results, and in a continuation that only does so.
    for nth in [*stopping_points(total.value, KILLS), idle.value - 2, idle.value // 2]:
        assert exit_status(processes, out, nth) in (0, -signal.SIGKILL)
        assert count_networks(out) >= networks, "finished networks are kept"
        networks = count_networks(out)
        counts.add(networks)
    assert len(counts) > 3, "kills fell between networks"
    assert exit_status(processes, out) == 0
    assert stored_rows(out) == stored_rows(clean)
    assert records_without_times(Results.load(out)) == records_without_times(Results.load(clean))
    assert exported_files(out) == exported_files(clean)
    assert files_of(out) == files_of(clean)


class EndedProcess:
    def join(self) -> None:
        pass


def test_workers_remove_the_temporary_folder_of_a_killed_main_process(
    processes: ForkServerContext, tmp_path: Path
) -> None:
    folder = tmp_path / "temporary"
    folder.mkdir()
    (folder / "problem.pkl").touch()
    worker = processes.Process(target=executors._exit_with_parent, args=(EndedProcess(), folder))
    worker.start()
    worker.join()
    assert os.listdir(tmp_path) == []


def test_two_processes_on_one_folder_give_the_results_of_one(processes: ForkServerContext, tmp_path: Path) -> None:
    both = [processes.Process(target=run_study, args=(tmp_path / "two",)) for _ in range(2)]
    for process in both:
        process.start()
    for process in both:
        process.join(timeout=300)
    assert [process.exitcode for process in both] == [0, 0]
    assert exit_status(processes, tmp_path / "one") == 0
    assert stored_rows(tmp_path / "two") == stored_rows(tmp_path / "one")
    assert records_without_times(Results.load(tmp_path / "two")) == records_without_times(
        Results.load(tmp_path / "one")
    )
