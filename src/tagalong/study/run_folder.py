"""The folder of a run, which contains its settings, log and report."""

from __future__ import annotations

import logging
import platform
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from tagalong._version import OWN_PACKAGES, __version__
from tagalong.errors import InvalidInput
from tagalong.files import DocumentError, read_document, write_document
from tagalong.learn import Problem

from .keys import Keys
from .store import Store

FORMAT, VERSION = "tagalong-run", 1
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
        Store(path, verify=False).close()


def check_folder(out: Path, fingerprint: str) -> None:
    """Raises an error if this folder cannot be used for a problem with this fingerprint."""
    if out.exists() and not out.is_dir():
        raise InvalidInput("out", "must be a folder", f"the file {out}")
    check_store(out)
    path = out / "settings.json"
    if not path.exists():
        return
    try:
        other, name = read_document(path, FORMAT, (VERSION,), _problem_identity)
    except DocumentError as error:
        hint = "choose another folder, or remove the file"
        raise InvalidInput("`out`:", f"{path} does not contain the settings of a run", hint=hint) from error
    if other != fingerprint:
        conflict = (
            f"{out} contains a run of a different problem or of different data ({name!r}, {other}; this one is "
            f"{fingerprint})"
        )
        raise InvalidInput("`out`:", conflict, hint="choose another folder")


def _problem_identity(settings: Mapping[str, Any]) -> tuple[str, str]:
    return settings["problem"]["fingerprint"], settings["problem"]["name"]


def write_settings(out: Path, problem: Problem, architecture: str, request: Mapping[str, Any]) -> dict[str, Any]:
    """Writes the settings of a run and returns them."""
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
        "versions": {"tagalong": __version__, "python": platform.python_version()} | _package_versions(),
        "machine": platform.platform(),
    }
    write_document(path, FORMAT, VERSION, document, default=repr)
    return read_document(path, FORMAT, (VERSION,), dict)


def _package_versions() -> dict[str, str]:
    found = {package: _package_version(package) for package in RECORDED_PACKAGES}
    return {package: number for package, number in found.items() if number is not None}


def _package_version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _git_commit() -> str | None:
    """Returns the current Git commit of the working directory, or None if it is not in a repository."""
    try:
        done = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, timeout=5, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


@contextmanager
def log_to_file(path: Path) -> Iterator[None]:
    """Also writes the library's log messages to this file."""
    handler = logging.FileHandler(path, encoding="utf-8")
    handler.setFormatter(logging.Formatter(LOG_FORMAT))
    levels = {own: own.level for own in map(logging.getLogger, OWN_PACKAGES)}
    for own in levels:
        own.addHandler(handler)
        if not own.isEnabledFor(logging.INFO):
            own.setLevel(logging.INFO)
    try:
        yield
    finally:
        for own, level in levels.items():
            own.setLevel(level)
            own.removeHandler(handler)
        handler.close()


def write_run_report(out: Path) -> None:
    """Writes `report.html`. Errors are only logged, so they cannot affect the results."""
    try:
        from tagalong.report import write_report

        write_report(out)
    except Exception:
        (out / "report.html").unlink(missing_ok=True)  # the report of an earlier run would show outdated results
        logger.exception("the report could not be written; the results are safe, so try `tagalong report %s`", out)
