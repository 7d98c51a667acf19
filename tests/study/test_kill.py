"""A study that is killed at any moment, or started twice, gives the same results."""

import random
import shutil
import signal
import sqlite3
from pathlib import Path
from types import SimpleNamespace

import pytest
from killed_study import exit_status, exported_files, run_study, stored_rows

from kill_at import die, records_without_times, stopping_points
from tagalong import files
from tagalong.study import Results, best, executors

pytestmark = pytest.mark.slow

KILLS = 10
FILES = {"affinity.json", "groupings.json", "networks", "report.html", "results.json", "run.log"}
FILES |= {"run.sqlite", "settings.json"}


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
        assert files_of(out) == files_of(clean)
    assert kills >= KILLS - 2, "hardly any study came to its end before it was to be killed"
    assert len(counts) > 3, "kills fell between networks"


def files_of(out: Path) -> set[Path]:
    return {path.relative_to(out) for path in out.rglob("*")}


def test_kills_do_not_change_what_worker_processes_train(processes, tmp_path):
    clean, out, total = tmp_path / "clean" / "run", tmp_path / "killed" / "run", processes.Value("i")
    assert exit_status(processes, clean, None, total, "processes:2", ["tag"]) == 0
    points = stopping_points(total.value, 3)
    assert [exit_status(processes, out, n, None, "processes:2", ["tag"]) for n in points] == [-signal.SIGKILL] * 3
    assert exit_status(processes, out, None, None, "processes:2", ["tag"]) == 0
    assert stored_rows(out) == stored_rows(clean)
    assert exported_files(out) == exported_files(clean)
    assert files_of(out.parent) == files_of(clean.parent)


def die_while(step: str, out: Path) -> None:
    """Runs a study that is killed while it writes something, so that temporary files are left."""
    if step == "writing a file":
        files.move_into_place = lambda finished, path: die()
    if step == "starting workers":
        executors.Processes.map = lambda self, chunks, advance: die()
    if step == "writing networks":
        best._replace_folder = lambda draft, folder: die()
    if step == "replacing networks":
        best.shutil = SimpleNamespace(rmtree=lambda folder, ignore_errors: die())
    run_study(out, executor=executor_for(step), methods=["tag"])


def executor_for(step: str) -> str:
    return "processes:1" if step == "starting workers" else "serial"


@pytest.mark.parametrize(
    ("step", "pattern"),
    [
        ("writing a file", "run/.settings.json.*.tmp"),
        ("starting workers", "run-temporary/tagalong-*/problem.pkl"),
        ("writing networks", "run/.networks.*"),
        ("replacing networks", "run/.networks.*.before"),
    ],
)
def test_the_next_run_removes_what_a_killed_one_left(processes, tmp_path, step, pattern):
    out = tmp_path / "run"
    if step == "replacing networks":
        assert exit_status(processes, out, None, None, "serial", ["tag"]) == 0
    killed = processes.Process(target=die_while, args=(step, out))
    killed.start()
    killed.join(timeout=300)
    assert killed.exitcode == -signal.SIGKILL
    assert list(tmp_path.glob(pattern))
    running = out / f".report.html.{files.owner_mark()}.tmp"  # of this process, which is alive
    running.write_text("half")
    assert exit_status(processes, out, None, None, executor_for(step), ["tag"]) == 0
    assert running.exists()
    running.unlink()
    assert {path.name for path in out.iterdir()} - {"partial"} == FILES
    assert not list(tmp_path.glob("run-temporary/*"))


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
