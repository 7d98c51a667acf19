"""A study that is killed at any moment, or started twice, gives the same results."""

import shutil
import signal
import sqlite3
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any

import pytest
import torch
from study_small import small_problem

from kill_at import FileOperations, records_without_times, stopping_points
from tagalong.study import Results, Store, Study, executors, runner

pytestmark = pytest.mark.slow

METHODS = ["stl", "tag", "hoa", "hoa+pcgrad"]


def run_study(out: Path, nth: int | None = None, total: Any = None) -> None:
    """Runs a study, killed before its n-th file operation; otherwise sets `total` to their number."""
    operations = FileOperations(out, nth)
    torch.set_num_threads(1)
    # Many small chunks, and a checkpoint after every epoch: more moments to be killed at.
    runner.CHUNK_SIZES["cpu"] = 4
    executors.CHECKPOINT_SECONDS = 0.0
    Study(small_problem("abcd"), out, device="cpu").run(METHODS, [2, 3], 2)
    if total is not None:
        total.value = operations.number


def exit_status(processes: ForkServerContext, *arguments: Any) -> int | None:
    process = processes.Process(target=run_study, args=arguments)
    process.start()
    process.join(timeout=300)
    return process.exitcode


def count_networks(out: Path) -> int:
    """Counts in a copy, so that rolling back a journal is left to the next study."""
    copy = shutil.copytree(out, out.with_name("copy"))
    with Store(copy / "run.sqlite") as store:
        count = len(store)
    shutil.rmtree(copy)
    return count


def contents(out: Path) -> dict[str, Any]:
    """Returns everything that must not depend on when the study was killed."""
    connection = sqlite3.connect(out / "run.sqlite")
    integrity = connection.execute("PRAGMA integrity_check").fetchone()
    networks = connection.execute(
        "SELECT key, definition, json_remove(results, '$.seconds'), batch, place, steps, kept "
        "FROM networks ORDER BY key"
    ).fetchall()
    arrays = connection.execute("SELECT key, name, content FROM arrays ORDER BY key, name, piece").fetchall()
    connection.close()
    paths = {path.relative_to(out) for path in out.rglob("*")}
    # A killed process may leave temporary files.
    files = {path for path in paths if not any(".tmp-" in part for part in path.parts)}
    recommended = {path for path in files if path.parts[0] == "networks" and (out / path).is_file()}
    return {
        "store": (integrity, networks, arrays),
        "records": records_without_times(Results.load(out)),
        "recommended networks": {path: (out / path).read_bytes() for path in recommended},
        "files": files,
    }


def test_kills_at_random_file_operations_lose_and_duplicate_nothing(
    processes: ForkServerContext, tmp_path: Path
) -> None:
    clean, out, total, idle = tmp_path / "clean", tmp_path / "out", processes.Value("i"), processes.Value("i")
    assert [exit_status(processes, clean, None, number) for number in (total, idle)] == [0, 0]
    counts = [0]
    # Kills throughout the study, and in a continuation that only writes its results.
    for nth in [*stopping_points(total.value, 5), idle.value // 2]:
        assert exit_status(processes, out, nth) in (0, -signal.SIGKILL)
        counts.append(count_networks(out))
    assert counts == sorted(counts), "finished networks are kept"
    assert len(set(counts)) > 3, "kills fell between networks"
    assert exit_status(processes, out) == 0
    assert contents(out)["files"] ^ contents(clean)["files"] == set()
    assert contents(out) == contents(clean)


def test_two_processes_on_one_folder_give_the_results_of_one(processes: ForkServerContext, tmp_path: Path) -> None:
    both = [processes.Process(target=run_study, args=(tmp_path / "two",)) for _ in range(2)]
    for process in both:
        process.start()
    for process in both:
        process.join(timeout=300)
    assert [process.exitcode for process in both] == [0, 0]
    assert exit_status(processes, tmp_path / "one") == 0
    two, one = contents(tmp_path / "two"), contents(tmp_path / "one")
    assert (two["store"], two["records"]) == (one["store"], one["records"])
