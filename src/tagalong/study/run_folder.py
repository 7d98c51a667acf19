"""The folder of a run, which contains its settings, log and report."""

from __future__ import annotations

import json
import logging
import platform
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from reprlib import repr as short
from typing import Any

from tagalong._version import OWN_PACKAGES, __version__
from tagalong.errors import InvalidInput
from tagalong.files import describe_unwritten, document_text, write_atomic
from tagalong.learn import Problem

from .documents import SettingsFile
from .keys import Keys
from .store import Store

RECORDED_PACKAGES = ("torch", "numpy", "scipy", "torchjd", "ray")
LOG_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
logger = logging.getLogger(__name__)


def claim_folder(out: str | Path, problem: Problem, about: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Prepares a folder for a run by writing `settings.json`.

    Raises an error if the folder contains a run of a different problem.

    Args:
        out: the folder, which is created if it does not exist.
        problem: the problem of the run.
        about: additional settings to write.

    Returns:
        The settings.

    Raises:
        ValueError: If the folder contains a run of a different problem, or networks that cannot be used.
    """
    folder = Path(out)
    check_folder(folder, problem.fingerprint)
    folder.mkdir(parents=True, exist_ok=True)
    return write_settings(folder, problem, Keys(problem, "cpu").architecture, about or {})


def check_store(out: Path) -> None:
    """Raises a StoreError if the networks in this folder cannot be used."""
    path = out / "run.sqlite"
    if path.exists():
        Store(path).close()


def check_folder(out: Path, fingerprint: str) -> None:
    """Raises an error if this folder cannot be used for a problem with this fingerprint."""
    if out.exists() and not out.is_dir():
        raise InvalidInput("out", "must be a folder", f"the file {out}")
    check_store(out)
    path = out / "settings.json"
    if not path.exists():
        return
    problem = SettingsFile.read(path).problem
    if problem.fingerprint != fingerprint:
        conflict = f"{out} contains a run on a different problem or different data"
        details = f"({short(problem.name)}, {short(problem.fingerprint)[1:-1]}; this run is on {fingerprint})"
        raise InvalidInput("`out`:", f"{conflict} {details}", hint="choose another folder")


def write_settings(out: Path, problem: Problem, architecture: str, request: Mapping[str, Any]) -> dict[str, Any]:
    """Writes the settings of a run and returns them."""
    packages = {}
    for package in RECORDED_PACKAGES:
        with suppress(PackageNotFoundError):
            packages[package] = version(package)
    path = out / "settings.json"
    document = {
        "problem": {
            "name": problem.name,
            "fingerprint": problem.fingerprint,
            "tasks": list(problem.names),
            "rows": {part: len(split) for part, split in problem.splits.items()},
        },
        "recipe": asdict(problem.recipe),
        "architecture": architecture,
        **request,
        "command": sys.argv,
        "git": _git_commit(),
        "versions": {"tagalong": __version__, "python": platform.python_version()} | packages,
        "machine": platform.platform(),
    }
    text = document_text(SettingsFile.kind, SettingsFile.format_version, document, default=repr)
    write_atomic(path, text + "\n")
    written: dict[str, Any] = json.loads(text)
    return written


def _git_commit() -> str | None:
    try:
        done = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, timeout=5, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


@contextmanager
def log_to_file(path: Path) -> Iterator[list[str]]:
    """Also writes the library's log messages to this file.

    Yields a list, to which a sentence is added if the file cannot be written.
    """
    unwritten: list[str] = []

    def report_failure(record: logging.LogRecord) -> None:
        if not unwritten:  # once, instead of a traceback for each message
            unwritten.append(describe_unwritten(path, sys.exc_info()[1] or OSError()))

    handler = logging.FileHandler(path, encoding="utf-8")
    handler.handleError = report_failure  # type: ignore[method-assign]
    handler.setFormatter(logging.Formatter(LOG_FORMAT))
    levels = {own: own.level for own in map(logging.getLogger, OWN_PACKAGES)}
    for own in levels:
        own.addHandler(handler)
        if not own.isEnabledFor(logging.INFO):
            own.setLevel(logging.INFO)
    try:
        yield unwritten
    finally:
        for own, level in levels.items():
            own.setLevel(level)
            own.removeHandler(handler)
        with suppress(OSError):  # of messages that could not be written
            handler.close()


def write_run_report(out: Path) -> str | None:
    """Writes `report.html`. Errors are logged, so they cannot affect the results.

    Returns:
        A sentence that says why the report could not be written, or None if it was.
    """
    page = out / "report.html"
    try:
        from tagalong.report import write_report

        write_report(out)
    except Exception as error:
        with suppress(OSError):
            page.unlink(missing_ok=True)  # the report of an earlier run would show outdated results
        sentence = f"{describe_unwritten(page, error)}; the results are safe, so try `tagalong report {out}`"
        if isinstance(error, OSError) and error.filename is not None and str(error.filename) != str(page):
            sentence = f"{page} could not be written: {error.filename}: {error.strerror}"  # a file that it is made from
        logger.error(sentence, exc_info=not isinstance(error, OSError))
        return sentence
    return None
