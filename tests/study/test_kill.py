"""A study that is killed at any moment, or started twice, ends as if nothing had happened."""

import random
import shutil
import signal
import sqlite3
from pathlib import Path

import torch
from study_small import small_problem

from kill_at import FileOperations, along, but_times
from tagalong.study import Results, Study, backend, executors

KILLS = 10
METHODS = ["mtl", "stl", "tag", "hoa", "optimal", "uw", "random", "hoa+pcgrad"]


def study(out: Path, nth: int | None = None, total=None) -> None:
    """Runs a study, killed before its n-th file operation; without one, `total` becomes how many there were."""
    operations = FileOperations(out, nth)
    torch.set_num_threads(1)
    backend.BATCH["cpu"] = 4  # many small chunks, and a checkpoint after every epoch: more moments to be killed at
    executors.CHECKPOINT_SECONDS = 0.0
    Study(small_problem("abcd"), out, device="cpu").run(METHODS, [2, 3], 2)
    if total is not None:
        total.value = operations.number


def exit_status(processes, *arguments) -> int:
    process = processes.Process(target=study, args=arguments)
    process.start()
    process.join(timeout=300)
    return process.exitcode


def stored(out: Path):
    connection = sqlite3.connect(out / "run.sqlite")
    try:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        networks = connection.execute(
            "SELECT key, definition, scores, steps, parameters, best_epoch, batch, kept, curve, weights, losses "
            "FROM networks ORDER BY key"
        )
        affinities = connection.execute("SELECT key, affinity FROM affinities ORDER BY 1")
        return networks.fetchall(), affinities.fetchall()
    finally:
        connection.close()


def exported(out: Path) -> dict[str, bytes]:
    """The files of the best networks."""
    return {path.name: path.read_bytes() for path in (out / "networks").iterdir()}


def rows(out: Path) -> int:
    """How many networks are there; a copy is opened, so that rolling back a journal is left to the next study."""
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


def late(total: int, idle: int, times: int) -> list[int]:
    """Points in the end of a study, and in those that go on with it, which have nothing left to train."""
    draw = random.Random(0)
    return [draw.randint(total - idle + 1, total), *(draw.randint(1, idle) for _ in range(times - 1))]


def test_ten_kills_at_random_file_operations_lose_and_double_nothing(processes, tmp_path):
    clean, total, idle = tmp_path / "clean", processes.Value("i"), processes.Value("i")
    assert [exit_status(processes, clean, None, number) for number in (total, idle)] == [0, 0]
    seen, kills = set(), 0
    half = KILLS // 2
    for name, points in {"along": along(total.value, half), "late": late(total.value, idle.value, half)}.items():
        out, finished = tmp_path / name, 0
        for nth in points:
            status = exit_status(processes, out, nth)
            assert status in (0, -signal.SIGKILL)
            kills += status != 0
            assert rows(out) >= finished, "finished networks are kept"
            finished = rows(out)
            seen.add(finished)
        assert exit_status(processes, out) == 0
        assert stored(out) == stored(clean)
        assert but_times(Results.load(out)) == but_times(Results.load(clean))
        assert exported(out) == exported(clean)
        assert not list((out / "partial").iterdir())
    assert kills >= KILLS - 2, "hardly any study came to its end before it was to be killed"
    assert len(seen) > 3, "kills fell between networks"


def test_two_processes_on_one_folder_end_as_one_does(processes, tmp_path):
    both = [processes.Process(target=study, args=(tmp_path / "two",)) for _ in range(2)]
    for process in both:
        process.start()
    for process in both:
        process.join(timeout=300)
    assert [process.exitcode for process in both] == [0, 0]
    assert exit_status(processes, tmp_path / "one") == 0
    assert stored(tmp_path / "two") == stored(tmp_path / "one")
    assert but_times(Results.load(tmp_path / "two")) == but_times(Results.load(tmp_path / "one"))
