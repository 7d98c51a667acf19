"""A study that is killed at any moment, or started twice, gives the same results."""

import random
import shutil
import signal
import sqlite3
from pathlib import Path

from killed_study import exit_status, exported_files, run_study, stored_rows

from kill_at import records_without_times, stopping_points
from tagalong.study import Results

KILLS = 10


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


def late_stopping_points(total: int, idle: int, times: int) -> list[int]:
    """Returns points near the end of a study, and in its continuations, which have nothing left to train."""
    draw = random.Random(0)
    return [draw.randint(total - idle + 1, total), *(draw.randint(1, idle) for _ in range(times - 1))]


def test_ten_kills_at_random_file_operations_lose_and_duplicate_nothing(processes, tmp_path):
    clean, total, idle = tmp_path / "clean", processes.Value("i"), processes.Value("i")
    assert [exit_status(processes, clean, None, number) for number in (total, idle)] == [0, 0]
    counts, kills = set(), 0
    half = KILLS // 2
    for name, points in {
        "along": stopping_points(total.value, half),
        "late": late_stopping_points(total.value, idle.value, half),
    }.items():
        out, finished = tmp_path / name, 0
        for nth in points:
            status = exit_status(processes, out, nth)
            assert status in (0, -signal.SIGKILL)
            kills += status != 0
            assert count_networks(out) >= finished, "finished networks are kept"
            finished = count_networks(out)
            counts.add(finished)
        assert exit_status(processes, out) == 0
        assert stored_rows(out) == stored_rows(clean)
        assert records_without_times(Results.load(out)) == records_without_times(Results.load(clean))
        assert exported_files(out) == exported_files(clean)
        assert not list((out / "partial").iterdir())
    assert kills >= KILLS - 2, "hardly any study came to its end before it was to be killed"
    assert len(counts) > 3, "kills fell between networks"


def test_two_processes_on_one_folder_give_the_results_of_one(processes, tmp_path):
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
