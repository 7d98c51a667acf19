"""A small study to be killed at any moment, and everything of it that must not depend on that."""

import multiprocessing
import sqlite3
import tempfile
from collections.abc import Sequence
from multiprocessing.context import ForkServerContext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from study_small import small_problem

from kill_at import FileOperations
from tagalong.study import Study, executors, training_backend

METHODS = ["mtl", "stl", "tag", "hoa", "optimal", "uw", "random", "hoa+pcgrad"]


def run_study(
    out: Path,
    nth: int | None = None,
    total: Any = None,
    executor: str = "serial",
    methods: Sequence[str] = METHODS,
) -> None:
    """Runs a study, killed before its n-th file operation; otherwise sets `total` to their number.

    The worker processes of the executor are forked, so that they start at once.
    """
    if executor != "serial":
        temporary = out.with_name(f"{out.name}-temporary")
        temporary.mkdir(parents=True, exist_ok=True)
        tempfile.tempdir = str(temporary)
        fork = multiprocessing.get_context("fork")
        executors.multiprocessing = SimpleNamespace(
            get_context=lambda _: fork, parent_process=multiprocessing.parent_process
        )
    operations = FileOperations(out, nth)
    torch.set_num_threads(1)
    training_backend.CHUNK_SIZES["cpu"] = (
        4  # many small chunks, and a checkpoint after every epoch: more moments to be killed at
    )
    executors.CHECKPOINT_SECONDS = 0.0
    Study(small_problem("abcd"), out, device="cpu", executor=executor).run(methods, [2, 3], 2)
    if total is not None:
        total.value = operations.number


def exit_status(processes: ForkServerContext, *arguments: Any) -> int | None:
    process = processes.Process(target=run_study, args=arguments)
    process.start()
    process.join(timeout=300)
    return process.exitcode


def stored_rows(out: Path) -> tuple[list[Any], list[Any]]:
    connection = sqlite3.connect(out / "run.sqlite")
    try:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        networks = connection.execute(
            "SELECT key, definition, scores, steps, parameters, best_epoch, batch, kept, weights, losses "
            "FROM networks ORDER BY key"
        )
        affinities = connection.execute("SELECT key, affinity FROM affinities ORDER BY 1")
        return networks.fetchall(), affinities.fetchall()
    finally:
        connection.close()


def exported_files(out: Path) -> dict[str, bytes]:
    """Returns the files of the recommended networks."""
    return {path.name: path.read_bytes() for path in (out / "networks").iterdir()}
