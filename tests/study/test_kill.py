"""A study that is killed at any moment, or started twice, ends as if nothing had happened."""

import random
import sqlite3
import time
from dataclasses import replace
from pathlib import Path

import torch
from study_small import small_problem

from tagalong.study import Results, Study

KILLS = 10
METHODS = ["mtl", "stl", "tag", "hoa", "optimal", "uw", "random", "hoa+pcgrad"]


def study(out: Path, methods=METHODS) -> None:
    from tagalong.study import backend as _workshop
    from tagalong.study import executors as _executors

    torch.set_num_threads(1)
    _workshop.BATCH["cpu"] = 4  # many small chunks, and a checkpoint after every epoch: more moments to be killed at
    _executors.CHECKPOINT_SECONDS = 0.0
    Study(small_problem("abcd"), out, device="cpu").run(methods, [2, 3], 2)


def finished(processes, out: Path) -> float:
    start = time.perf_counter()
    process = processes.Process(target=study, args=(out,))
    process.start()
    process.join(timeout=300)
    assert process.exitcode == 0
    return time.perf_counter() - start


def numbers(out: Path):
    """Everything that must not depend on how often a run was interrupted: all but times."""
    return [
        replace(r, latency=None, deciding=replace(r.deciding, seconds=0), training=replace(r.training, seconds=0))
        for r in Results.load(out).records
    ]


def stored(out: Path):
    connection = sqlite3.connect(out / "run.sqlite")
    try:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        networks = connection.execute(
            "SELECT key, definition, scores, steps, weights IS NULL FROM networks ORDER BY key"
        )
        affinities = connection.execute("SELECT key, affinity FROM affinities ORDER BY 1")
        return networks.fetchall(), affinities.fetchall()
    finally:
        connection.close()


def rows(out: Path) -> int:
    """How many networks are there, as far as one can see from outside."""
    try:
        # Not read-only: a kill may leave a journal that has to be rolled back before anything can be read.
        connection = sqlite3.connect(f"file:{out / 'run.sqlite'}?mode=rw", uri=True)
    except sqlite3.OperationalError:
        return 0
    try:
        return int(connection.execute("SELECT count(*) FROM networks").fetchone()[0])
    except sqlite3.OperationalError:  # no table yet
        return 0
    finally:
        connection.close()


def killed(process, out: Path, draw: random.Random, whole: float) -> None:
    """Kills a study at a random moment: of its first steps, or soon after it has finished something new."""
    before, start = rows(out), time.perf_counter()
    process.start()
    if draw.random() < 0.7:
        while rows(out) == before and process.is_alive() and time.perf_counter() - start < whole:
            time.sleep(0.002)
        start = time.perf_counter()
    process.join(timeout=draw.uniform(0, whole / 10))
    process.kill()
    process.join()


def test_ten_kills_at_random_moments_lose_and_double_nothing(processes, tmp_path):
    whole = finished(processes, tmp_path / "clean")
    draw = random.Random(0)
    seen = []
    for _ in range(KILLS):
        killed(processes.Process(target=study, args=(tmp_path / "killed",)), tmp_path / "killed", draw, whole)
        seen.append(rows(tmp_path / "killed"))
    finished(processes, tmp_path / "killed")
    assert seen == sorted(seen), "finished networks are kept"
    assert len(set(seen)) > 3, "kills fell between networks"
    assert stored(tmp_path / "killed") == stored(tmp_path / "clean")
    assert numbers(tmp_path / "killed") == numbers(tmp_path / "clean")
    assert not list((tmp_path / "killed" / "partial").iterdir())


def test_two_processes_on_one_folder_end_as_one_does(processes, tmp_path):
    both = [processes.Process(target=study, args=(tmp_path / "two",)) for _ in range(2)]
    for process in both:
        process.start()
    for process in both:
        process.join(timeout=300)
    assert [process.exitcode for process in both] == [0, 0]
    finished(processes, tmp_path / "one")
    assert stored(tmp_path / "two") == stored(tmp_path / "one")
    assert numbers(tmp_path / "two") == numbers(tmp_path / "one")
