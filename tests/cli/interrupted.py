"""Runs `tagalong …` and presses Ctrl-C at the n-th file operation in a folder: `python interrupted.py N FOLDER run …`.

Its worker processes run this file too; the first process to reach its n-th operation interrupts the whole process
group, as a terminal does.
"""

import os
import signal
import sys
from pathlib import Path

from kill_at import FileOperations
from tagalong.cli import main
from tagalong.study import executors


def press_ctrl_c() -> None:
    try:
        Path("pressed").touch(exist_ok=False)
    except FileExistsError:
        return
    os.killpg(0, signal.SIGINT)


if __name__ in ("__main__", "__mp_main__"):  # the second in a worker
    executors.CHECKPOINT_SECONDS = 0.0  # written after every epoch
    FileOperations(Path(sys.argv[2]), int(sys.argv[1]), press_ctrl_c)

if __name__ == "__main__":
    sys.exit(main(sys.argv[3:]))
