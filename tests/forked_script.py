"""Runs scripts in processes that have torch and the package already, so that they start at once."""

import os
import runpy
import sys
import tempfile
import traceback
import warnings
from pathlib import Path
from subprocess import CompletedProcess

from forkserver import forkserver

TIMEOUT = 300  # seconds


def run_script(script: Path, *arguments: str, folder: Path | None = None) -> "CompletedProcess[str]":
    """Runs a Python script as `python -W error SCRIPT ARGUMENTS` would; returns its status and output."""
    with tempfile.TemporaryDirectory() as outputs:
        files = [os.path.join(outputs, name) for name in ("stdout", "stderr")]
        process = forkserver().Process(target=_run, args=(str(script), arguments, str(folder or Path.cwd()), files))
        process.start()
        process.join(TIMEOUT)
        if process.is_alive():
            process.kill()
            process.join()
        stdout, stderr = (Path(file).read_text(encoding="utf-8") for file in files)
    return CompletedProcess([str(script), *arguments], process.exitcode or 0, stdout, stderr)


def _run(script: str, arguments: tuple[str, ...], folder: str, files: list[str]) -> None:
    for number, file in enumerate(files, 1):
        os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT), number)
    os.chdir(folder)
    sys.argv = [script, *arguments]
    sys.path.insert(0, os.path.dirname(script))
    warnings.resetwarnings()
    warnings.simplefilter("error")
    warnings.filterwarnings("ignore", "Guards may run slower on Python 3.13.0")  # torch.compile; not with 3.13.1
    status = 0
    try:
        runpy.run_path(script, run_name="__main__")
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
        status = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
